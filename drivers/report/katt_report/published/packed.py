"""Published HDF5 files are small, since a table of texts of fixed width is a tenth of its bytes when it is compressed,
and name no folder of the machine."""

import os
import re
from pathlib import Path

import h5py
import numpy as np

_LEAST_BYTES = 4096  # below this a chunk's own index costs what it saves
_FOLDERS = re.compile(r"(?<![^\s,=])/(?:[^\s,/]+/)+")  # of an absolute path in a command


def pack(path: Path) -> None:
    """Replaces an HDF5 file by one of the same groups, types, values and attributes, with large datasets deflated, and
    with the names of files in its runs' commands in place of absolute paths.

    A sweep does not write this form itself: each row that it adds would leave the chunk's old form behind as a hole.
    """
    packed = path.with_name(f".{path.name}.packed")
    try:
        with h5py.File(path) as source, h5py.File(packed, "w", libver=("v108", "v110")) as target:
            _copy_group(source, target)
            commands = [run.attrs.get("command", "") for run in source.get("runs", {}).values()]
            names_folders = any(command != _without_folders(command) for command in commands)
        if names_folders or packed.stat().st_size < path.stat().st_size:
            packed.chmod(path.stat().st_mode)
            os.replace(packed, path)
    finally:
        packed.unlink(missing_ok=True)


def _without_folders(command: str | bytes) -> str | bytes:
    if isinstance(command, bytes):  # a text of fixed width
        return _FOLDERS.sub("", command.decode(errors="surrogateescape")).encode(errors="surrogateescape")
    return _FOLDERS.sub("", command)


def _copy_group(source: h5py.Group, target: h5py.Group) -> None:
    _copy_attributes(source, target)
    for name, item in source.items():
        if isinstance(item, h5py.Group):
            _copy_group(item, target.create_group(name))
        elif item.nbytes >= _LEAST_BYTES and item.dtype.kind != "O":
            _deflate(item, target)
        else:
            source.copy(item, target, name)


def _copy_attributes(source: h5py.HLObject, target: h5py.HLObject) -> None:
    for name, value in source.attrs.items():
        value = _without_folders(value) if name == "command" else value
        target.attrs.create(name, value, dtype=source.attrs.get_id(name).dtype)


def _deflate(source: h5py.Dataset, target: h5py.Group) -> None:
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_obj_track_times(False)
    creation.set_chunk(source.shape)
    creation.set_deflate(9)
    kind = source.id.get_type()
    space = h5py.h5s.create_simple(source.shape, tuple(extent or h5py.h5s.UNLIMITED for extent in source.maxshape))
    values = np.empty(source.shape, source.dtype)
    source.id.read(h5py.h5s.ALL, h5py.h5s.ALL, values, mtype=kind)
    name = source.name.rsplit("/", 1)[-1].encode()
    copied = h5py.h5d.create(target.id, name, kind, space, dcpl=creation)
    copied.write(h5py.h5s.ALL, h5py.h5s.ALL, values, mtype=kind)
    _copy_attributes(source, h5py.Dataset(copied))
