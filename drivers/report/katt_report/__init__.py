"""Reports and comparisons of Katt result files (docs/schema.md describes the files).

`load` reads and checks one file or several; `groups` splits the points into sets that can share a
figure; `katt_report.figures` draws; `headline` puts the result into words; `compare` judges two
files.
"""

from katt_report.compare import compare
from katt_report.errors import InputError
from katt_report.groups import Group, groups
from katt_report.headline import headline
from katt_report.load import Results, load
from katt_report.points import Points

__all__ = ["Group", "InputError", "Points", "Results", "compare", "groups", "headline", "load"]
__version__ = "1.0.0"
