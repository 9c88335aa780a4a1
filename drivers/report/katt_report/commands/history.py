"""`katt-report history`: speedups over commits."""

from pathlib import Path

from katt_report.commands.parser import Parser
from katt_report.text import show


def run(arguments: list[str]) -> int:
    parser = Parser(
        prog="katt-report history",
        description="Shows the speedup of every row over the commits that result files of one machine were measured "
        "at, and where it changed; several machines apart.",
        examples={"katt-report history monday.h5 tuesday.h5 wednesday.h5 -o history": "speedups over commits, with change points"},
    )
    parser.add_argument("results", nargs="+", type=Path, metavar="FILE",
                        help="result files of the same sweep, or folders of such files")  # fmt: skip
    parser.add_folder("history.html and the figures")
    parser.add_source("whose history sorts the commits")
    options = parser.parse_args(arguments)
    from katt_report.pages.history_page import history_report, table_text
    from katt_report.pages.output import write_folder
    from katt_report.published.files import read_each, tree_of
    from katt_report.published.history import history

    found = history(read_each(options.results, every_run=True), tree_of(options.source))
    if options.output:
        write_folder(options.output, lambda: history_report(found), options.results, options.overwrite)
    print(table_text(found))
    if options.output:
        show(f"report: {options.output / 'history.html'}")
    return 0
