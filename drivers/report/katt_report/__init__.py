"""Reports and comparisons of Katt result files (docs/schema.md describes the files).

`load` reads and checks one file or several; `groups` splits the points into sets that can share a
figure; `katt_report.figures` draws; `headline` puts the result into words; `compare` judges two
files.
"""

import signal
import sys

_IS_PROGRAM = "".join(sys.argv[:1]).endswith(("-m", "katt-report"))
if _IS_PROGRAM and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback of the imports below; cli.main() takes over

from katt_report.compare import compare  # noqa: E402
from katt_report.errors import InputError  # noqa: E402
from katt_report.groups import Group, groups  # noqa: E402
from katt_report.headline import headline  # noqa: E402
from katt_report.load import Results, load  # noqa: E402
from katt_report.points import Points  # noqa: E402

__all__ = ["Group", "InputError", "Points", "Results", "compare", "groups", "headline", "load"]
__version__ = "1.0.0"
