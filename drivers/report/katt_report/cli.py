"""The command `katt-report`: make a report, compare two result files, or judge the baselines of one."""

import argparse
import json
import sys
from difflib import get_close_matches
from pathlib import Path

from katt_report.errors import InputError
from katt_report.text import printable


class _Parser(argparse.ArgumentParser):
    """Complains in one line, with the option that was meant."""

    def error(self, message):
        unknown = message.partition("unrecognized arguments: ")[2].partition(" ")[0].partition("=")[0]
        if unknown.startswith("-"):
            message = f"{unknown}: unknown option{_meant(unknown, list(self._option_string_actions))}"
        print(f"katt-report: {printable(message)}; see {self.prog} --help", file=sys.stderr)
        raise SystemExit(2)


def _meant(word: str, known: list[str]) -> str:
    """", did you mean NAME?" for the nearest of the known words, if one is near."""
    near = get_close_matches(word, known, 1)
    return f", did you mean {near[0]}?" if near else ""


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 done, 1 `compare` found a regression or `baselines` an unexplained case above the limit, or the
    output cannot be written (one line on stderr), 2 bad usage or input (one line), 3 `compare` cannot tell."""
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # names of files, and a terminal that cannot show µ or ×
            stream.reconfigure(errors="backslashreplace")
    try:
        commands = {"compare": _compare, "baselines": _baselines}
        command = commands.get(arguments[0]) if arguments else None
        if not command and len(arguments) > 1 and not Path(arguments[0]).exists():
            meant = _meant(arguments[0], list(commands))
            if meant:
                holds = f"neither a command nor a file{meant}"
                raise InputError(arguments[0], holds, "compare, baselines or a result file")
        status = command(arguments[1:]) if command else _report(arguments)
        sys.stdout.flush()
        return status
    except InputError as error:
        print(f"katt-report: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of the output went away (head, less): not an error of the report.
        sys.stdout = None
        return 0
    except OSError as error:
        if not error.filename:  # the rest of its buffer would be written, and reported, again at the end
            sys.stdout = None
        name = error.filename or "standard output"
        print(f"katt-report: {printable(f'{name}: cannot be written ({error.strerror})')}", file=sys.stderr)
        return 1


def _report(arguments: list[str]) -> int:
    parser = _Parser(
        prog="katt-report",
        description="Makes report.html, with its figures as PNG and SVG, from result files of katt sweep, or from logs "
        "of katt train and katt generate.",
        epilog="katt-report compare OLD.h5 NEW.h5 judges one file against another, katt-report baselines RESULT.h5 "
        "naive against PyTorch.",
    )
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULT.h5", help="result files, shown together")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR",
                        help="folder for the report (./NAME-report, where NAME.h5 is the first file)")  # fmt: skip
    options = parser.parse_args(arguments)
    folder = options.output or Path(f"{options.results[0].stem}-report")
    # A late import: --help and a wrong option should not wait for Matplotlib.
    from katt_report.headline import headline
    from katt_report.isolation import load_isolated, logs_isolated
    from katt_report.pages.log_page import log_lines, log_report
    from katt_report.pages.output import write_folder
    from katt_report.pages.page import report

    logs = logs_isolated(*options.results)
    if logs:
        if len(logs) < len(options.results):
            raise InputError(options.results[0], "not the same kind as the other files", "result files alone or logs alone")
        write_folder(folder, lambda: log_report(logs))
        print("\n".join(line for log in logs for line in log_lines(log)))
        print(f"report: {folder / 'report.html'}")
        return 0
    results = load_isolated(*options.results)
    write_folder(folder, lambda: report(results))
    for title, lines in headline(results):
        print(f"{title}:")
        print("\n".join(f"  {line}" for line in lines))
    print(f"report: {folder / 'report.html'}")
    return 0


def _compare(arguments: list[str]) -> int:
    parser = _Parser(
        prog="katt-report compare",
        description="Compares two result files row by row; exit status 1 if anything became worse or was lost, 3 where "
        "the files do not tell.",
    )
    parser.add_argument("old", type=Path, metavar="OLD.h5")
    parser.add_argument("new", type=Path, metavar="NEW.h5")
    parser.add_argument("--tolerance", type=_fraction, default=0.05, metavar="X",
                        help="a change of at most this fraction is no regression (0.05)")  # fmt: skip
    parser.add_argument("--metric", choices=("auto", "speedup", "time"), default="auto",
                        help="auto: paired speedups where there are any, else times beyond the machine's own drift; "
                        "speedup: only those; time: times as they are")  # fmt: skip
    parser.add_argument("--allow-lost", action="store_true", help="rows that the new file lacks are no regression")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="folder for compare.html and its figure")
    options = parser.parse_args(arguments)
    from katt_report.compare import compare
    from katt_report.pages.compare_page import compare_report, table_text
    from katt_report.isolation import load_isolated
    from katt_report.pages.output import write_folder

    old, new = load_isolated(options.old), load_isolated(options.new)
    found = compare(old, new, tolerance=options.tolerance, metric=options.metric, allow_lost=options.allow_lost)
    if options.output:
        write_folder(options.output, lambda: compare_report(found, options.old.name, options.new.name))
    print(json.dumps(found.as_dict(), indent=1, allow_nan=False) if options.json else table_text(found))
    return 1 if found.worse else 3 if found.untold else 0


def _baselines(arguments: list[str]) -> int:
    parser = _Parser(
        prog="katt-report baselines",
        description="Lists the cases in which naive is too slow beside PyTorch eager; exit status 1 if one is not "
        "explained.",
    )
    parser.add_argument("result", type=Path, metavar="RESULT.h5")
    parser.add_argument("--explained", type=Path, metavar="FILE.toml",
                        help="tables [[explained]]: columns, their values, and the reason")  # fmt: skip
    parser.add_argument("--limit", type=_positive, default=1.5, metavar="X", help="naive's time over the peer's (1.5)")
    parser.add_argument("--peer", default="torch_eager", metavar="NAME", help="what naive is held against")
    options = parser.parse_args(arguments)
    from katt_report.baselines import judge, read_explanations, table_text
    from katt_report.isolation import load_isolated

    results = load_isolated(options.result)
    explanations = read_explanations(options.explained, list(results.points.columns)) if options.explained else []
    verdict = judge(results, explanations, options.limit, options.peer)
    print(table_text(verdict))
    return 1 if verdict.unexplained else 0


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"holds {text}, expected a positive number")
    return value


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"holds {text}, expected a fraction from 0 to below 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
