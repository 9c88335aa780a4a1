"""`katt-report FILE…`: the report of result files or of logs."""

from pathlib import Path

from katt_report.commands.parser import Parser
from katt_report.errors import InputError


def run(arguments: list[str]) -> int:
    parser = Parser(
        prog="katt-report",
        description="Makes report.html, with its figures as PNG and SVG, from result files of katt sweep, or from logs "
        "of katt train and katt generate.",
        epilog="katt-report compare OLD.h5 NEW.h5 judges one file against another, katt-report baselines RESULT.h5 "
        "naive against PyTorch, katt-report fresh DIR lists rows whose code has changed since.",
    )
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULT.h5", help="result files, shown together")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR",
                        help="folder for the report (./NAME-report, where NAME.h5 is the first file)")  # fmt: skip
    parser.add_argument("--calibration", type=Path, metavar="FILE.h5",
                        help="repeats of a sweep on this machine (katt-report calibration): intervals hold the differences "
                        "between runs")  # fmt: skip
    options = parser.parse_args(arguments)
    folder = options.output or Path(f"{options.results[0].stem}-report")
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
    if options.calibration:
        from katt_report.calibration import calibrate_terms, with_between_runs
        from katt_report.isolation import runs_isolated

        results = with_between_runs(results, calibrate_terms(runs_isolated(options.calibration)))
    write_folder(folder, lambda: report(results))
    for title, lines in headline(results):
        print(f"{title}:")
        print("\n".join(f"  {line}" for line in lines))
    print(f"report: {folder / 'report.html'}")
    return 0
