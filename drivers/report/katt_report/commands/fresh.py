"""`katt-report fresh`: rows whose code has changed since they were measured."""

import json
from pathlib import Path

from katt_report.commands.parser import Parser

_MOST_FILES = 3


def run(arguments: list[str]) -> int:
    parser = Parser(
        prog="katt-report fresh",
        description="Lists rows whose code has changed since they were measured, by machine and experiment: their share, "
        "their age and the files that changed. Comments and layout do not count.",
        examples={"katt-report fresh results/": "rows whose code has changed since they were measured"},
    )
    parser.add_argument("results", nargs="+", type=Path, metavar="DIR|FILE.h5")
    parser.add_source("to compare with")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    options = parser.parse_args(arguments)
    from katt_report.published.fresh import parts, source_tree

    found = parts(options.results, source_tree(options.source))
    print(json.dumps([part.as_dict() for part in found], indent=1) if options.json else text(found))
    return 0


def text(found) -> str:
    """A line a machine and experiment, with its rows that are not fresh below it."""
    machine, experiment = (
        max((len(getattr(part, name)) for part in found), default=0) for name in ("machine", "experiment")
    )
    lines = []
    for part in found:
        rows = f"{part.share.rows:5} row{'s' if part.share.rows != 1 else ' '}"
        lines.append(f"{part.machine:{machine}}  {part.experiment:{experiment}}  {rows}  {part.share}")
        known = {key: count for key, count in part.stale.items() if key[-1].changed}
        for (op, a_pass, variant, dtype, state), count in known.items():
            lines.append(f"    {op} {a_pass} {variant} {dtype}: {count}, {_some(state.changed)}")
    fresh, rows = (sum(getattr(part.share, name) for part in found) for name in ("fresh", "rows"))
    lines.append(f"{fresh} of {rows} rows are fresh" if rows else "no rows")
    return "\n".join(lines)


def _some(files: tuple[str, ...]) -> str:
    more = len(files) - _MOST_FILES
    return ", ".join(files[:_MOST_FILES]) + (f" and {more} more" if more > 0 else "")
