"""`katt-report readme`: fills the numbers of documents in from result files."""

from pathlib import Path

from katt_report.commands.parser import Parser
from katt_report.errors import InputError
from katt_report.text import show


def run(arguments: list[str]) -> int:
    parser = Parser(
        prog="katt-report readme",
        description="Makes README.md of results/MACHINE/EXPERIMENT from experiments/EXPERIMENT/results.md or, without "
        "it, from a template of its own; fills the markers <!-- katt: FILE QUANTITY … --> of other documents.",
        examples={
            "katt-report readme results README.md docs/*.md": "fills the numbers in",
            "katt-report readme --check results README.md": "exit status 1 where a number differs from the files",
        },
    )
    parser.add_argument("places", nargs="+", type=Path, metavar="DIR|FILE.md",
                        help="an experiment's results, a folder above them, or a document")  # fmt: skip
    parser.add_argument("--check", action="store_true",
                        help="write nothing; name the lines that differ, exit status 1 if there are any")  # fmt: skip
    options = parser.parse_args(arguments)
    from katt_report.load import text_of
    from katt_report.pages.output import check_file, write_file
    from katt_report.published.markers import fill
    from katt_report.published.readme import experiments_below, readme

    made = {}
    for place in options.places:
        if place.is_dir():
            folders = experiments_below(place)
            if not folders:
                raise InputError(place, "no results", "results/MACHINE/EXPERIMENT, or a folder above")
            made |= {folder / "README.md": readme(folder) for folder in folders}
        else:
            made[place] = fill(text_of(place, "a document, or a folder of results"), place)
    differ = 0
    for path, text in made.items():
        check_file("", path, [], overwrite=True)
        before = path.read_text("utf-8", "replace") if path.exists() else ""
        if text == before:
            continue
        if options.check:
            differ += 1
            print(_difference(path, before, text))
        else:
            write_file(path.resolve(), text.encode())
            show(str(path))
    return 1 if differ else 0


def _difference(path: Path, before: str, after: str) -> str:
    """The first line that differs."""
    pairs = zip([*before.splitlines(), ""], [*after.splitlines(), ""], strict=False)
    line, (old, new) = next((n, pair) for n, pair in enumerate(pairs, 1) if pair[0] != pair[1])
    return f"{path}:{line}: holds {old.strip() or 'nothing'}, the files give {new.strip() or 'nothing'}"
