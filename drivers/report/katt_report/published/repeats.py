"""The tables of a calibration, for a terminal and for the README of its results."""

import csv
import io
import math
from dataclasses import asdict, fields
from pathlib import Path

from katt_report.calibration import Alarm, Calibration, calibrate
from katt_report.errors import InputError
from katt_report.isolation import runs_isolated
from katt_report.load import text_of
from katt_report.text import list_text

ALARMS = "alarms.csv"
"""False alarms and detections, which take minutes to compute, beside the file with the repeats."""


def calibration_text(found: Calibration, rates: list[Alarm]) -> str:
    """Findings from repeats, as Markdown, which a terminal can show, too."""
    lines = [_sentence(found), "", *_terms(found)]
    return "\n".join([*lines, "", *_alarms(rates)] if rates else lines)


def readme_text(file: Path) -> str:
    """The same with explanations, for the README of the results that hold this file."""
    found, beside = calibrate(runs_isolated(file)), file.with_name(ALARMS)
    lines = [_sentence(found), "", _COVERAGE, "", *_terms(found)]
    if beside.exists():
        lines += ["", "## False alarms and detections", "", _ALARMS, "", *_alarms(read_alarms(beside))]
    return "\n".join(lines)


def alarms_csv(rates: list[Alarm]) -> str:
    """The alarms as a table of text."""
    out = io.StringIO()
    writer = csv.DictWriter(out, [field.name for field in fields(Alarm)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(one) for one in rates)
    return out.getvalue()


def read_alarms(path: Path) -> list[Alarm]:
    """The table that `alarms_csv` made."""
    kind = "what katt-report calibration -o DIR wrote"
    lines = text_of(path, kind).splitlines()
    try:
        return [
            Alarm(row["rule"], row["calibrated"] == "True", float(row["slowdown"]), int(row["comparisons"]),
                  *(float(row[name]) for name in ("any_row", "untold", "one_row")))
            for row in csv.DictReader(lines)
        ]  # fmt: skip
    except (KeyError, ValueError, TypeError) as error:
        raise InputError(path, f"no table of alarms ({error})", kind) from error


def _sentence(found: Calibration) -> str:
    commits = f", commit {list_text(found.commits)}" if found.commits else ""
    hours = f"{found.minutes / 60:.1f} hours" if found.minutes >= 120 else f"{found.minutes:.0f} minutes"
    span = f" in {hours}" if math.isfinite(found.minutes) else ""
    return f"{found.runs} runs of one sweep{span} on {found.machine or 'a machine without a name'}{commits}."


_COVERAGE = """\
*Before*: the share of later medians inside an earlier 95 % interval. Without any difference between runs it would be
83 %, since the later median errs too. *Between runs*: the relative standard deviation that a median has from run to
run beyond its interval. *After*: the share inside the interval of a repeat with that term, fitted without the run that
is judged; the aim is 93 to 97 %. [The formulas](../../../docs/published_results.md#between-runs)."""
_ALARMS = """\
Pairs of these runs, which are equal programs, judged by each rule. *Slower*: all samples of every variant but naive in
the new file are multiplied; an alarm at 0 % is a false one. The second table has the chance to find a slowdown of one
row. `check_regression` asks for three sweeps in a row, with a tolerance of 25 %. *With*: the between-runs terms, fitted
without the two runs, widen the intervals."""


def _terms(found: Calibration) -> list[str]:
    head = ["operator", "metric", "rows", "pairs", "before", "between runs", "after"]
    return _table(head, [
        [term.op, term.metric, str(term.rows), str(term.pairs), _percent(term.before), _percent(term.between, 1),
         _percent(term.after)]
        for term in found.terms
    ])  # fmt: skip


def _alarms(rates: list[Alarm]) -> list[str]:
    """Two tables with a column a slowdown: comparisons that end with an alarm, and rows that are found."""
    slowdowns = list(dict.fromkeys(one.slowdown for one in rates))
    heads = [_percent(slowdown) for slowdown in slowdowns]
    every, rows = [], []
    for rule, calibrated in dict.fromkeys((one.rule, one.calibrated) for one in rates):
        same = [one for one in rates if (one.rule, one.calibrated) == (rule, calibrated)]
        name = [rule, "with" if calibrated else "without"]
        every.append([*name, str(same[0].comparisons), *(_percent(one.any_row) for one in same),
                      _percent(same[0].untold)])  # fmt: skip
        if all(math.isfinite(one.one_row) for one in same):
            rows.append([*name, *(_percent(one.one_row, 1) for one in same)])
    return [
        "Comparisons that end with an alarm, by slowdown, and those at 0 % that cannot tell:",
        "",
        *_table(["rule", "term", "comparisons", *heads, "cannot tell"], every),
        "",
        "Rows that are called a regression, by slowdown:",
        "",
        *_table(["rule", "term", *heads], rows),
    ]


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    """A table of Markdown with columns as wide as their cells."""
    widths = [max(len(row[index]) for row in [head, *rows]) for index in range(len(head))]
    lines = [[text.ljust(width) for text, width in zip(row, widths, strict=True)] for row in [head, *rows]]
    lines.insert(1, ["-" * width for width in widths])
    return [f"| {' | '.join(line)} |" for line in lines]


def _percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %" if math.isfinite(share) else "–"
