"""Published files are compressed and hold the same: types, values, attributes, extents. They name no folder."""

import h5py
import numpy as np
from katt_report.published.packed import pack


def contents(path):
    """What a file holds, by name: type, extents, bytes and attributes."""
    found = {}
    with h5py.File(path) as file:

        def add(name, item):
            data = isinstance(item, h5py.Dataset)
            about = (item.dtype, item.shape, item.maxshape, item[()].tobytes()) if data else ()
            found[name] = (*about, {key: np.asarray(value).tolist() for key, value in item.attrs.items()})

        file.visititems(add)
        found["/"] = dict(file.attrs)
    return found


def test_a_packed_file_holds_the_same_in_fewer_bytes(tmp_path):
    path = tmp_path / "sweep.h5"
    with h5py.File(path, "w") as file:
        file.attrs["schema"] = np.int64(1)
        rows = np.zeros(300, dtype=[("op", "S32"), ("reason", "S256"), ("time_s", "f8")])
        rows["op"], rows["time_s"] = b"softmax", np.arange(300)
        points = file.create_dataset("points", data=rows, maxshape=(None,), chunks=(32,))
        points.attrs["unit"] = "s"
        file.create_dataset("samples/run-0001/000001", data=np.arange(5.0))
        file["samples"].attrs["note"] = "five"
        file.create_dataset("empty", shape=(0,), maxshape=(None,), dtype="f8")
    before, size = contents(path), path.stat().st_size
    path.chmod(0o640)
    pack(path)
    assert contents(path) == before
    assert path.stat().st_size < size / 5
    assert path.stat().st_mode & 0o777 == 0o640
    assert [found.name for found in tmp_path.iterdir()] == ["sweep.h5"]


def test_a_file_that_gains_nothing_is_left_as_it_is(tmp_path):
    path = tmp_path / "log.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file["few"] = np.arange(3)
    before = path.read_bytes()
    pack(path)
    assert path.read_bytes() == before


def test_commands_name_no_folder(tmp_path):
    path = tmp_path / "sweep.h5"
    with h5py.File(path, "w") as file:
        file.create_group("runs/run-0001").attrs["command"] = (
            "katt sweep experiments/flex/forward.toml -o /home/me/build/out.h5 --score-rule-file /tmp/a/b.st,/tmp/a/c.st --seq 64"
        )
        file.create_group("runs/run-0002").attrs["command"] = np.bytes_("katt sweep softmax -o /root/x.h5")
    pack(path)
    with h5py.File(path) as file:
        assert file["runs/run-0001"].attrs["command"] == (
            "katt sweep experiments/flex/forward.toml -o out.h5 --score-rule-file b.st,c.st --seq 64"
        )
        assert file["runs/run-0002"].attrs["command"] == b"katt sweep softmax -o x.h5"
    assert b"/home" not in path.read_bytes() and b"/root" not in path.read_bytes()
