"""`python -m katt_report` is `katt-report`."""

import sys

from katt_report.cli import main

sys.exit(main())
