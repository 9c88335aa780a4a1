"""Writes a folder of results so that it holds all of them or none."""

import contextlib
import fcntl
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from katt_report.errors import FAILURES, InputError
from katt_report.figures import style
from katt_report.pages import markup
from katt_report.text import tell_more

FORMATS = ("png", "svg")
"""The formats in which figures are written by default."""

# Dates and versions would make the same figure differ from run to run.
_METADATA = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None, "Producer": None}}


def render(figure: Figure, formats: tuple[str, ...] = ("svg", "png")) -> tuple[bytes, ...]:
    """The figure in each of the formats (svg, png, pdf); the same figure always gives the same bytes."""
    made = {}
    with style.context():
        _settle_layout(figure, min(formats, key=lambda kind: kind != "png"))
        for kind in set(formats):
            file = io.BytesIO()
            options = {"pil_kwargs": {"compress_level": 1}} if kind == "png" else {}
            figure.savefig(file, format=kind, metadata=_METADATA[kind], **options)
            made[kind] = of_few_colours(file.getvalue()) if kind == "png" else file.getvalue()
    return tuple(made[kind] for kind in formats)


def of_few_colours(png: bytes) -> bytes:
    """The image with a palette of 256 colours, a third of the bytes: results lie in the repository."""
    with Image.open(io.BytesIO(png)) as image:
        palette = image.convert("RGB").quantize(256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    palette.putpalette([255 if part > 253 else part for part in palette.getpalette()])  # white is white
    file = io.BytesIO()
    palette.save(file, "PNG", optimize=True)
    return file.getvalue()


class _SettledError(Exception):
    """Ends a `savefig` that is for the layout alone."""


def _settle_layout(figure: Figure, kind: str) -> None:
    """The layout for a format, once for all: with a layout engine `savefig` draws a figure twice."""

    def draw(_) -> None:
        with contextlib.suppress(ValueError):  # as Figure.draw does
            figure.get_layout_engine().execute(figure)
        raise _SettledError

    figure.draw = draw
    with contextlib.suppress(_SettledError):
        figure.savefig(io.BytesIO(), format=kind)
    del figure.draw
    figure.set_layout_engine(None)


def add_figure(plot: style.Plot, files: dict[str, bytes], formats: tuple[str, ...] = FORMATS) -> str:
    """Adds a figure to the files in each format; returns its HTML, in which the vector image travels."""
    svg, *images = render(plot.figure, ("svg", *formats))
    files |= {f"{plot.name}.{kind}": data for kind, data in zip(formats, images, strict=True)}
    return markup.figure(svg, plot)


_PREFIX = ".katt-report."


def write_folder(
    folder: Path, make: Callable[[], dict[str, bytes]], inputs: Iterable[Path] = (), overwrite: bool = False
) -> None:
    """Writes the result of `make` to a temporary folder beside `folder`, then moves it in.

    `make` is called only once the place is known to be writable. Other files in an existing folder stay. Files of the
    same names are replaced where the page among them is an earlier one of katt-report, or with `overwrite`. The
    leftovers of a killed run are removed. Throws InputError when the folder cannot be written, or a file is in the way
    (one of `inputs`, files and folders of result files, always is), OSError for a full disk.
    """
    temporary = lock = None
    created = []
    try:
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(f"{folder} is a file")
        for parent in reversed(folder.absolute().parents):
            if not parent.exists():
                parent.mkdir()
                created.append(parent)
        # A folder may be a mount of its own: files for an existing folder are prepared inside it.
        place = folder if folder.exists() else folder.absolute().parent
        for where in {place, folder.absolute().parent}:
            _remove_left(where)
        temporary, lock = _temporary(place)
        temporary.chmod(0o777 & ~_umask())
        # The page first: it holds its figures, and tells a later run that this one was ours.
        files = dict(sorted(make().items(), key=lambda file: not file[0].endswith(".html")))
        if folder.exists():
            inputs = list(inputs)  # an iterator would be empty for the second file
            ours = overwrite or any(name.endswith(".html") and markup.is_page(folder / name) for name in files)
            for name in files:
                check_file("-o", folder / name, inputs, ours)
            _replace({folder / name: data for name, data in files.items()})
            temporary.rmdir()
        else:
            for name, data in files.items():
                _write(temporary / name, data)
            os.rename(temporary, folder)
        temporary, created = None, []
        for name in files:
            tell_more(f"wrote {folder / name}")
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in FAILURES:
            raise OSError(error.errno, reason, str(folder)) from error
        raise InputError(f"-o {folder}", f"a folder that cannot be written ({reason})", "a writable folder") from error
    finally:
        if temporary:
            shutil.rmtree(temporary, ignore_errors=True)
        if lock is not None:
            os.close(lock)
        for parent in reversed(created):
            if not any(parent.iterdir()):
                parent.rmdir()


def check_file(option: str, path: Path, inputs: Iterable[Path], overwrite: bool) -> None:
    """Throws InputError where `write_file` would replace an input, or a file that may not be replaced."""
    inputs = [file for one in inputs for file in ([one] if not one.is_dir() else one.rglob("*.h5"))]
    if any(path.exists() and one.exists() and path.samefile(one) for one in inputs):
        raise InputError(f"{option} {path}".strip(), "an input of the command", "another file")
    if path.is_dir():
        raise InputError(f"{option} {path}".strip(), "a folder", "a file")
    if path.is_symlink() and os.path.islink(os.path.realpath(path)):
        raise InputError(f"{option} {path}".strip(), "a link to itself", "a file")
    if path.exists() and not path.is_file():
        raise InputError(f"{option} {path}".strip(), "a device or a FIFO", "a file")
    if path.exists() and not overwrite:
        raise InputError(f"{option} {path}".strip(), "an existing file", "a new one, or --overwrite")
    if (writer := _writer(path)) is not None:
        raise InputError(f"{option} {path}".strip(), f"a file that process {writer} is writing", "one writer at a time")


def _writer(path: Path) -> str | None:
    """The number of the process that holds katt's lock on a file (docs/schema.md, "How files are written")."""
    target = Path(os.path.realpath(path))
    try:
        descriptor = os.open(target.with_name(f".{target.name}.katt-lock"), os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.read(descriptor, 64).decode(errors="replace").split(" ")[0]
    except OSError:  # a file system without locks
        pass
    finally:
        os.close(descriptor)
    return None


def write_file(path: Path, data: bytes) -> None:
    """Writes a file so that it is whole or as it was before; a link stays, its target is replaced, and keeps its mode.
    Throws InputError for a place that cannot be written, OSError for a full disk."""
    check_file("", path, [], overwrite=True)
    try:
        _replace({path: data})
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in FAILURES:
            raise OSError(error.errno, reason, str(path)) from error
        raise InputError(path, f"a place that cannot be written ({reason})", "a writable file") from error


def _replace(files: dict[Path, bytes]) -> None:
    """Writes all files beside their targets, then renames them into place: a failure leaves all as they were."""
    places: dict[Path, tuple[Path, int | None]] = {}
    written = []
    try:
        for path, data in files.items():
            target = Path(os.path.realpath(path))  # a link stays a link
            if target.parent not in places:
                _remove_left(target.parent)
                places[target.parent] = _temporary(target.parent)
            file = places[target.parent][0] / target.name
            _write(file, data)
            if target.exists():
                _keep_owner_and_mode(file, target)
            written.append((file, target))
        for file, target in written:
            os.replace(file, target)
    finally:
        for temporary, lock in places.values():
            shutil.rmtree(temporary, ignore_errors=True)
            if lock is not None:
                os.close(lock)


def _write(path: Path, data: bytes) -> None:
    """On the disk before a rename shows it."""
    with open(path, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def _keep_owner_and_mode(file: Path, old: Path) -> None:
    held = old.stat()
    with contextlib.suppress(OSError):  # root alone may give a file away
        os.chown(file, held.st_uid, held.st_gid)
    with contextlib.suppress(OSError):
        file.chmod(held.st_mode & 0o777)


def _locked(folder: Path, wait: int = 0) -> int | None:
    """A descriptor that holds the lock of a folder until it is closed, at the latest when the
    process ends; None when the folder is gone, the file system has no locks, or, with wait =
    LOCK_NB, another process holds it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | wait)
        if os.stat(folder).st_ino == os.fstat(descriptor).st_ino:
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


def _temporary(place: Path) -> tuple[Path, int | None]:
    """A new folder and its lock, which shows other runs that somebody writes there; a file system
    without locks has no lock, and nothing is ever removed there."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
    lock = _locked(folder)
    # Between the two lines another run may have taken the folder for a leftover, and removed it.
    return (folder, lock) if folder.exists() else _temporary(place)


def _remove_left(place: Path) -> None:
    """Removes the temporary folders of killed runs: the ones whose lock nobody holds."""
    for folder in place.glob(f"{_PREFIX}*"):
        lock = _locked(folder, fcntl.LOCK_NB)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
