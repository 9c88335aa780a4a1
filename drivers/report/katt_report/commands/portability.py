"""`katt-report portability`: one source on many machines."""

from pathlib import Path

from katt_report.commands.parser import Parser
from katt_report.errors import InputError
from katt_report.text import show


def run(arguments: list[str]) -> int:
    parser = Parser(
        prog="katt-report portability",
        description="Says how near one source comes to the limit of each machine, and to the best program there: the "
        "efficiencies by operator, pass and dtype, and Pennycook's P over the machines.",
        examples={
            "katt-report portability results -o portable": "one source on many machines: a page and figures",
            "katt-report portability results --figure portability.png": "one figure, for a README",
        },
    )
    parser.add_argument("results", nargs="+", type=Path, metavar="FILE",
                        help="result files of several machines, or folders of such files")  # fmt: skip
    parser.add_argument("-o", "--output", type=Path, metavar="DIR",
                        help="folder for portability.html, portability.json and the figures")  # fmt: skip
    parser.add_argument("--figure", type=Path, metavar="FILE.png",
                        help="the shares of the limits as one figure, for a README: PNG or SVG")  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace an existing --figure")
    parser.add_argument("--source", type=Path, metavar="DIR",
                        help="source tree that tells whether rows are fresh (that of this program)")  # fmt: skip
    options = parser.parse_args(arguments)
    from katt_report.pages.output import check_file, write_file, write_folder
    from katt_report.pages.portability_page import figure_file, portability_report, table_text
    from katt_report.published.files import read_each, tree_of
    from katt_report.published.portability import portability

    tree = tree_of(options.source)
    figure = options.figure
    if figure and figure.suffix not in (".png", ".svg"):
        raise InputError(f"--figure {figure}", f"the ending {figure.suffix or 'of no kind'}", "NAME.png or NAME.svg")
    if figure:
        check_file("--figure", figure, options.results, options.overwrite)
    parts = read_each(options.results)
    found = portability(parts)
    if options.output:
        write_folder(options.output, lambda: portability_report(found, parts, tree), options.results)
    if figure:
        write_file(figure, figure_file(found, parts, tree, figure.suffix))
    print(table_text(found))
    if options.output:
        show(f"report: {options.output / 'portability.html'}")
    return 0
