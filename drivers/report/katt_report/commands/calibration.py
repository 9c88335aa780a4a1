"""`katt-report calibration`: what intervals of one run are worth for the next, from repeats of a sweep."""

import json
from dataclasses import asdict
from pathlib import Path

from katt_report.commands.parser import Parser


def run(arguments: list[str]) -> int:
    parser = Parser(
        prog="katt-report calibration",
        description="Judges intervals by repeats of one sweep on one machine, a run each in one file: how often a later "
        "median lies in an earlier 95 % interval, the between-runs term that makes it 95 %, and how often compare and "
        "scripts/check_regression raise false alarms and find slowdowns.",
        examples={"katt-report calibration repeats.h5 -o calibration": "from katt sweep FILE.toml, repeated into one file (docs/published_results.md)"},
    )
    parser.add_argument("repeats", type=Path, metavar="FILE.h5")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--no-alarms", action="store_true", help="coverage alone, without the minute for the alarms")
    parser.add_folder("the figure, and for the alarms as a table")
    options = parser.parse_args(arguments)
    from katt_report.calibration import alarms, calibrate
    from katt_report.export import finite
    from katt_report.isolation import runs_isolated
    from katt_report.pages.calibration_page import calibration_report
    from katt_report.pages.output import write_folder
    from katt_report.published.repeats import calibration_text

    runs = runs_isolated(options.repeats)
    found = calibrate(runs)
    rates = [] if options.no_alarms else alarms(runs)
    if options.output:
        write_folder(options.output, lambda: calibration_report(found, rates), [options.repeats], options.overwrite)
    if options.json:
        told = {**asdict(found), "alarms": [asdict(one) for one in rates]}
        print(json.dumps(finite(told), indent=1, allow_nan=False))
    else:
        print(calibration_text(found, rates))
    return 0
