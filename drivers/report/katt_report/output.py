"""Writing a folder of results so that it holds all of them or none."""

import io
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from katt_report.errors import InputError
from katt_report.figures import style


def render(figure: Figure) -> tuple[bytes, bytes]:
    """The figure as SVG and PNG; the same figure always gives the same bytes."""
    svg, png = io.BytesIO(), io.BytesIO()
    with style.context():
        figure.savefig(png, format="png", metadata={"Software": None})
        # The layout is settled now; finding it again for the second format would take as long as drawing.
        figure.set_layout_engine("none")
        figure.savefig(svg, format="svg", metadata={"Date": None})
    return svg.getvalue(), png.getvalue()


def write_folder(folder: Path, make: Callable[[], dict[str, bytes]]) -> None:
    """Writes what `make` returns to a temporary folder beside `folder`, then moves it in.

    `make` is called only once the place is known to be writable. Other files in an existing folder stay.
    Throws InputError where the folder cannot be written.
    """
    temporary = None
    created = []
    try:
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(f"{folder} is a file")
        for parent in reversed(folder.absolute().parents):
            if not parent.exists():
                parent.mkdir()
                created.append(parent)
        # A folder may be a mount of its own: what goes into an existing one is prepared inside it.
        place = folder if folder.exists() else folder.absolute().parent
        temporary = Path(tempfile.mkdtemp(prefix=".katt-report.", dir=place))
        temporary.chmod(0o777 & ~_umask())
        for name, data in make().items():
            (temporary / name).write_bytes(data)
        if folder.exists():
            for file in temporary.iterdir():
                os.replace(file, folder / file.name)
            temporary.rmdir()
        else:
            os.rename(temporary, folder)
        temporary, created = None, []
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"-o {folder}", f"a folder that cannot be written ({reason})", "a writable folder") from error
    finally:
        if temporary:
            shutil.rmtree(temporary, ignore_errors=True)
        for parent in reversed(created):
            if not any(parent.iterdir()):
                parent.rmdir()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
