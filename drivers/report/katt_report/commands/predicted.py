"""`katt-report predicted`: predicted times beside measured ones."""

import json
from pathlib import Path

from katt_report.commands.parser import Parser


def run(arguments: list[str]) -> int:
    parser = Parser(
        prog="katt-report predicted",
        description="Compares the times that scripts/gpu_predictions wrote before a device was met with those that a "
        "sweep measured on it, row by row.",
        examples={"katt-report predicted predicted.h5 measured.h5": "a line a row that was predicted and measured"},
    )
    parser.add_argument("predicted", type=Path, metavar="PREDICTED.h5")
    parser.add_argument("measured", type=Path, metavar="MEASURED.h5")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    from katt_report.export import finite
    from katt_report.isolation import load_isolated
    from katt_report.predictions import compare_predictions, table_text

    found = compare_predictions(load_isolated(options.predicted), load_isolated(options.measured))
    print(json.dumps(finite(found.as_dict()), indent=1, allow_nan=False) if options.json else table_text(found))
    return 0
