"""`katt-report export`: rows and profiles for other programs."""

import sys
from pathlib import Path

from katt_report.commands.parser import Parser
from katt_report.errors import InputError
from katt_report.text import show


def run(arguments: list[str]) -> int:
    parser = Parser(
        prog="katt-report export",
        description="Writes every column of the rows of result files, or every step of training logs, as CSV, JSON or "
        "Parquet, or the profiles of a file recorded with --profile as a trace for Perfetto and chrome://tracing.",
        examples={
            "katt-report export mine.h5 --csv mine.csv": "the rows for a spreadsheet",
            "katt-report export mine.h5 --json - --only variant=flash,dtype=f32": "some rows, on standard output",
        },
    )
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULT.h5", help="result files, or logs")
    form = parser.add_mutually_exclusive_group(required=True)
    for name, what in (("csv", "CSV, NaN as an empty cell"), ("json", "a JSON array with an object a row"),
                       ("parquet", "Parquet, with pyarrow"), ("trace", "Chrome's Trace Event Format")):  # fmt: skip
        form.add_argument(f"--{name}", metavar="OUT", help=f"{what}; - is standard output")
    parser.add_argument("--only", action="append", metavar="COLUMN=VALUE,…",
                        help="rows with these values: variant=flash,naive,dtype=f32; also repeated")  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")
    options = parser.parse_args(arguments)
    kind = next(name for name in ("csv", "json", "parquet", "trace") if getattr(options, name) is not None)
    target = getattr(options, kind)
    from katt_report import export
    from katt_report.isolation import logs_or_results
    from katt_report.pages.output import check_file, write_file
    from katt_report.ratios import only

    out = None if target == "-" else Path(target)
    if out:
        check_file(f"--{kind}", out, options.results, options.overwrite)
    logs, results = logs_or_results(*options.results)
    if logs and options.only:
        raise InputError("--only", "a log, which has no rows", "a result file of katt sweep")
    if options.only:
        results = only(results, options.only)
    if kind == "trace":
        profiles = export.profiles_of_logs(logs) if logs else export.profiles_of(results)
        if not profiles:
            raise InputError(options.results[0], "no profile", "a file recorded with --profile")
        data = export.as_trace(profiles)
    else:
        table = export.table_of_logs(logs) if logs else export.table_of(results)
        data = {"csv": export.as_csv, "json": export.as_json, "parquet": export.as_parquet}[kind](table)
    if out:
        write_file(out, data)
        show(f"{kind}: {out}")
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    return 0
