"""write_stubs FOLDER: _functions.pyi of the packages katt and katt.torch in the folder of the built module _katt. Needs
nothing but the module."""

import pathlib
import sys

folder = pathlib.Path(sys.argv[1])
sys.path[:0] = [str(folder), str(pathlib.Path(__file__).parent / "katt")]

import _katt  # noqa: E402
from _schema import plans, stub  # noqa: E402

made = plans(_katt.passes())
(folder / "_functions.pyi").write_text(stub(made))
(folder / "torch").mkdir(exist_ok=True)
(folder / "torch" / "_functions.pyi").write_text(stub(made, in_torch=True))
