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
    parser.add_folder("portability.html, portability.json and the figures")
    parser.add_argument("--figure", type=Path, metavar="FILE.png",
                        help="the shares of the limits as one figure, for a README: PNG or SVG")  # fmt: skip
    parser.add_source("that tells whether rows are fresh")
    options = parser.parse_args(arguments)
    from katt_report.pages.output import check_file, write_file, write_folder
    from katt_report.pages.portability_page import figure_file, portability_report, table_text
    from katt_report.published.files import read_each, tree_of
    from katt_report.published.portability import portability

    tree = tree_of(options.source)
    figure, within = options.figure, False
    if figure and figure.suffix not in (".png", ".svg"):
        raise InputError(f"--figure {figure}", f"the ending {figure.suffix or 'of no kind'}", "NAME.png or NAME.svg")
    if figure:
        check_file("--figure", figure, options.results, options.overwrite)
        folder = options.output and options.output.resolve()
        if folder and folder.is_relative_to(figure.resolve()):
            raise InputError(f"--figure {figure}", "the folder of -o", "a file")
        within = figure.resolve().parent == folder
        if not within and not figure.parent.is_dir():
            raise InputError(f"--figure {figure}", "a file in a folder that does not exist", "an existing folder")
    parts = read_each(options.results)
    found = portability(parts)
    drawn = figure_file(found, parts, tree, figure.suffix) if figure else b""

    def made() -> dict[str, bytes]:
        files = portability_report(found, parts, tree)
        if within and figure.name in files:
            raise InputError(f"--figure {figure}", "a file of the report in -o", "another name")
        return files | ({figure.name: drawn} if within else {})

    if options.output:
        write_folder(options.output, made, options.results, options.overwrite)
    if figure and not within:
        write_file(figure, drawn)
    print(table_text(found))
    if options.output:
        show(f"report: {options.output / 'portability.html'}")
    return 0
