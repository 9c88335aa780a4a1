"""`katt-report compare`: one result file judged against another."""

import json
from functools import partial
from pathlib import Path

from katt_report.commands.parser import Parser, fraction


def run(arguments: list[str]) -> int:
    parser = Parser(
        prog="katt-report compare",
        description="Compares two result files row by row; exit status 1 if anything became worse or was lost, 3 where "
        "the files do not tell.",
        examples={
            "katt-report compare old.h5 new.h5": "exit status 1 on a regression or a lost row, 3: cannot tell",
            "katt-report compare old.h5 new.h5 --tolerance 0.1 --allow-lost": "slower by 10 % and fewer rows are no regression",
        },
    )
    parser.add_argument("old", type=Path, metavar="OLD.h5")
    parser.add_argument("new", type=Path, metavar="NEW.h5")
    parser.add_argument("--tolerance", type=fraction, default=0.05, metavar="X",
                        help="a change of at most this fraction is no regression (0.05)")  # fmt: skip
    parser.add_argument("--metric", choices=("auto", "speedup", "time"), default="auto",
                        help="auto: paired speedups where there are any, else times beyond the machine's own drift; "
                        "speedup: only those; time: times as they are")  # fmt: skip
    parser.add_argument("--allow-lost", action="store_true", help="rows that the new file lacks are no regression")
    parser.add_argument("--calibration", type=Path, metavar="FILE.h5",
                        help="repeats of a sweep on this machine (katt-report calibration): widens the intervals by the "
                        "differences between runs")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_folder("compare.html and its figure")
    options = parser.parse_args(arguments)
    from katt_report.calibration import calibrate_terms
    from katt_report.compare import compare
    from katt_report.export import finite
    from katt_report.isolation import load_isolated, runs_isolated
    from katt_report.pages.compare_page import compare_report, table_text
    from katt_report.pages.output import write_folder

    old, new = load_isolated(options.old), load_isolated(options.new)
    calibration = calibrate_terms(runs_isolated(options.calibration)) if options.calibration else None
    found = compare(old, new, options.tolerance, options.metric, options.allow_lost, calibration)
    if options.output:
        inputs = filter(None, [options.old, options.new, options.calibration])
        made = partial(compare_report, found, options.old.name, options.new.name)
        write_folder(options.output, made, inputs, options.overwrite)
    print(json.dumps(finite(found.as_dict()), indent=1, allow_nan=False) if options.json else table_text(found))
    return 1 if found.worse else 3 if found.untold else 0
