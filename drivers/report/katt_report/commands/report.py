"""`katt-report FILE…`: the report of result files or of logs."""

import argparse
import time
from pathlib import Path

from katt_report import __version__
from katt_report.commands.parser import Parser, meant
from katt_report.errors import InputError
from katt_report.text import show, tell

PATIENCE_S = 10.0
"""Seconds after which a report that is not finished says how far it is, and again as often."""


COMMANDS = """Commands, after which --help tells more:
  judge    compare OLD.h5 NEW.h5   baselines RESULT.h5   calibration FILE.h5   predicted PREDICTED.h5 MEASURED.h5
  export   export RESULT.h5 --csv OUT.csv
  many     portability DIR         history FILE…         fresh DIR
  publish  index DIR               readme DIR|FILE.md"""


def run(arguments: list[str]) -> int:
    parser = Parser(
        prog="katt-report",
        description="Makes report.html, with its figures, from result files of katt sweep, or from logs of katt train "
        "and katt generate.",
        examples={
            "katt-report mine.h5": "mine-report/report.html: the answer first, then figures and tables",
            "katt-report mine.h5 --table --baseline flash --only dtype=f32": "on the terminal",
            "katt-report compare old.h5 new.h5": "exit status 1 on a regression",
            "katt-report COMMAND --help": "more examples",
        },
        more=COMMANDS,
    )
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULT.h5", help="result files, shown together")
    parser.add_folder("the report (./NAME-report, where NAME.h5 is the first file)", has_usual=True)
    parser.add_argument("--baseline", metavar="NAME",
                        help="variant or peer that all ratios refer to, round by round (naive)")  # fmt: skip
    parser.add_argument("--only", action="append", metavar="COLUMN=VALUE,…",
                        help="rows with these values: variant=flash,naive,dtype=f32; also repeated")  # fmt: skip
    parser.add_argument("--formats", type=_formats, metavar="LIST",
                        help="formats of the figures, of png, svg and pdf (png,svg)")  # fmt: skip
    parser.add_argument("--table", action="store_true", help="print the rows as a table; make no folder")
    parser.add_argument("--calibration", type=Path, metavar="FILE.h5",
                        help="repeats of a sweep on this machine (katt-report calibration): intervals hold the differences "
                        "between runs")  # fmt: skip
    parser.add_argument("--version", action="version", version=f"katt-report {__version__}")
    options = parser.parse_args(arguments)
    for name in ("output", "overwrite", "formats"):
        if options.table and getattr(options, name):
            told = "-o" if name == "output" else f"--{name}"
            parser.error(f"--table: holds {told} beside it, expected one of the two: it makes no folder")
    folder = options.output or Path(f"{options.results[0].stem}-report")
    formats = options.formats or ("png", "svg")
    from katt_report.isolation import logs_or_results
    from katt_report.pages.log_page import log_lines, log_report

    logs, results = logs_or_results(*options.results)
    if logs:
        for name in ("baseline", "only", "calibration"):
            if getattr(options, name):
                raise InputError(f"--{name}", "a log, which has no rows", "a result file of katt sweep")
        lines = [line for log in logs for line in log_lines(log)]
        return _finish(options, folder, lambda: log_report(logs, formats), lines)
    from katt_report.groups import groups
    from katt_report.headline import headline
    from katt_report.pages.page import report
    from katt_report.ratios import only, with_baseline

    if options.baseline:
        results = with_baseline(results, options.baseline)
    if options.calibration:
        from katt_report.calibration import calibrate_terms, with_between_runs
        from katt_report.isolation import runs_isolated

        results = with_between_runs(results, calibrate_terms(runs_isolated(options.calibration)))
    if options.only:
        results = only(results, options.only)
    found = groups(results)
    if options.table:
        from katt_report.pages.points_table import text_table

        print("\n\n".join(f"{group.title}\n{text_table(group)}" for group in found))
        return 0
    told = headline(results, found)
    lines = [text for title, lines in told for text in (f"{title}:", *(f"  {line}" for line in lines))]
    far = _teller()
    return _finish(options, folder, lambda: report(results, formats, far, found), lines)


def _finish(options, folder: Path, make, lines: list[str]) -> int:
    from katt_report.pages.output import write_folder

    if not options.table:
        write_folder(folder, make, filter(None, [*options.results, options.calibration]), options.overwrite)
    print("\n".join(lines))
    if not options.table:
        show(f"report: {folder / 'report.html'}")
    return 0


def _formats(text: str) -> tuple[str, ...]:
    known = ("png", "svg", "pdf")
    chosen = tuple(dict.fromkeys(text.split(",")))
    for name in chosen:
        if name not in known:
            held = f"{name or 'nothing'}{meant(name, known)}"
            raise argparse.ArgumentTypeError(f"holds {held}, expected {', '.join(known)}")
    return chosen


def _teller():
    """Says how far the figures are, once it takes long."""
    last = time.monotonic()

    def far(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= PATIENCE_S:
            last = time.monotonic()
            tell(f"katt-report: figure {done + 1} of {total}")

    return far
