"""`katt-report index`: results/README.md."""

from pathlib import Path

from katt_report.commands.parser import Parser
from katt_report.errors import InputError
from katt_report.text import show


def run(arguments: list[str]) -> int:
    parser = Parser(
        prog="katt-report index",
        description="Writes DIR/README.md: a table of the machines and experiments in DIR/MACHINE/EXPERIMENT, each with "
        "its ratio, whether its rows are fresh, commit and date.",
        examples={"katt-report index results": "writes results/README.md"},
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="results")
    parser.add_source("that tells whether rows are fresh")
    parser.add_argument("--check", action="store_true",
                        help="write nothing; exit status 1 if README.md says another thing than the files, apart from "
                        "what is fresh")  # fmt: skip
    options = parser.parse_args(arguments)
    from katt_report.pages.output import check_file, write_file
    from katt_report.published.files import tree_of
    from katt_report.published.index import MARKER, index, without_freshness

    path = options.folder / "README.md"
    check_file("", path, [], overwrite=True)
    before = path.read_text("utf-8", "replace") if path.exists() else ""
    if before and not before.startswith(MARKER):
        raise InputError(path, "a text that katt-report index did not make", f"a first line {MARKER}")
    if options.check:
        if without_freshness(index(options.folder, None)) == without_freshness(before):
            return 0
        print(f"{path}: says another thing than the files; katt-report index {options.folder} makes it again")
        return 1
    write_file(path, index(options.folder, tree_of(options.source)).encode())
    show(str(path))
    return 0
