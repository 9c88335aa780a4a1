"""The command `katt-report`: make a report, compare two result files, or judge the baselines of one."""

import argparse
import json
import sys
from pathlib import Path

from katt_report.errors import InputError


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        print(f"katt-report: {message}; see {self.prog} --help", file=sys.stderr)
        raise SystemExit(2)


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 done, 1 `compare` found a regression or `baselines` an unexplained case above the limit, 2 bad
    usage or input (one line on stderr)."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        commands = {"compare": _compare, "baselines": _baselines}
        command = commands.get(arguments[0]) if arguments else None
        return command(arguments[1:]) if command else _report(arguments)
    except InputError as error:
        print(f"katt-report: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of the output went away (head, less): not an error of the report.
        sys.stdout = None
        return 0


def _report(arguments: list[str]) -> int:
    parser = _Parser(
        prog="katt-report",
        description="Makes report.html, with its figures as PNG and SVG, from result files of katt sweep, or from logs "
        "of katt train and katt generate.",
        epilog="katt-report compare OLD.h5 NEW.h5 judges one file against another, katt-report baselines RESULT.h5 "
        "naive against PyTorch.",
    )
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULT.h5", help="result files, shown together")
    parser.add_argument("-o", "--output", required=True, type=Path, metavar="DIR", help="folder for the report")
    options = parser.parse_args(arguments)
    # Imported late: --help and a wrong option should not wait for Matplotlib.
    from katt_report.headline import headline
    from katt_report.isolation import load_isolated, logs_isolated
    from katt_report.log_page import log_lines, log_report
    from katt_report.output import write_folder
    from katt_report.page import report

    logs = logs_isolated(*options.results)
    if logs:
        if len(logs) < len(options.results):
            raise InputError(options.results[0], "not the same kind as the other files", "result files alone or logs alone")
        write_folder(options.output, lambda: log_report(logs))
        print("\n".join(line for log in logs for line in log_lines(log)))
        print(f"report: {options.output / 'report.html'}")
        return 0
    results = load_isolated(*options.results)
    write_folder(options.output, lambda: report(results))
    for title, lines in headline(results):
        print(f"{title}:")
        print("\n".join(f"  {line}" for line in lines))
    print(f"report: {options.output / 'report.html'}")
    return 0


def _compare(arguments: list[str]) -> int:
    parser = _Parser(
        prog="katt-report compare",
        description="Compares two result files row by row; exit status 1 if anything became worse.",
    )
    parser.add_argument("old", type=Path, metavar="OLD.h5")
    parser.add_argument("new", type=Path, metavar="NEW.h5")
    parser.add_argument("--tolerance", type=_fraction, default=0.05, metavar="X",
                        help="a change of at most this fraction is no regression (0.05)")  # fmt: skip
    parser.add_argument("--metric", choices=("auto", "speedup", "time"), default="auto",
                        help="auto: paired speedups where there are any, else times beyond the machine's own drift; "
                        "speedup: only those; time: times as they are")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="folder for compare.html and its figure")
    options = parser.parse_args(arguments)
    from katt_report.compare import compare
    from katt_report.compare_page import compare_report, table_text
    from katt_report.isolation import load_isolated
    from katt_report.output import write_folder

    old, new = load_isolated(options.old), load_isolated(options.new)
    found = compare(old, new, tolerance=options.tolerance, metric=options.metric)
    if options.output:
        write_folder(options.output, lambda: compare_report(found, options.old.name, options.new.name))
    print(json.dumps(found.as_dict(), indent=1, allow_nan=False) if options.json else table_text(found))
    return 1 if found.regressions else 0


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
