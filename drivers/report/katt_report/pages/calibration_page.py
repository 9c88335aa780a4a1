"""The README and the figure of a calibration."""

import math

import numpy as np

from katt_report.calibration import METRICS, Alarm, Calibration, Term
from katt_report.figures import style
from katt_report.pages.output import render
from katt_report.text import list_text

FIGURE = "coverage"
_TARGET = (0.93, 0.97)


def calibration_report(found: Calibration, rates: list[Alarm], file: str) -> dict[str, bytes]:
    """README.md, and the figure as SVG and PNG."""
    svg, png = render(_figure(found))
    return {"README.md": _readme(found, rates, file).encode(), f"{FIGURE}.svg": svg, f"{FIGURE}.png": png}


def calibration_text(found: Calibration, rates: list[Alarm]) -> str:
    """The tables for a terminal."""
    return "\n".join([_sentence(found), "", *_terms(found), *(["", *_alarms(rates)] if rates else [])])


def _sentence(found: Calibration) -> str:
    commits = f", commit {list_text(found.commits)}" if found.commits else ""
    hours = f"{found.minutes / 60:.1f} hours" if found.minutes >= 120 else f"{found.minutes:.0f} minutes"
    span = f" in {hours}" if math.isfinite(found.minutes) else ""
    return f"{found.runs} runs of one sweep{span} on {found.machine or 'a machine without a name'}{commits}."


_COVERAGE = """\
*Before*: the share of later medians inside an earlier 95 % interval. Without any difference between runs it would be
83 %, since the later median errs too. *Between runs*: the relative standard deviation that a median has from run to
run beyond its interval. *After*: the share inside the interval of a repeat with that term, fitted without the run that
is judged; the aim is 93 to 97 %. [measuring.md](../../../docs/measuring.md#between-runs) has the formulas."""
_ALARMS = """\
Pairs of these runs, which are equal programs, judged by each rule. *Slower*: all samples of every variant but naive in
the new file are multiplied; an alarm at 0 % is a false one. The second table has the chance to find a slowdown of one
row. `check_regression` asks for three sweeps in a row, with a tolerance of 25 %. *With*: the between-runs terms, fitted
without the two runs, widen the intervals."""


def _readme(found: Calibration, rates: list[Alarm], file: str) -> str:
    lines = [
        "# calibration",
        "",
        "What the 95 % intervals of one run are worth for the next run of the same program on this machine.",
        "For readers of intervals and of `katt-report compare`.",
        "",
        _sentence(found),
        "",
        f"![Coverage by operator]({FIGURE}.png)",
        "",
        _COVERAGE,
        "",
        *_terms(found),
        "",
    ]
    if rates:
        lines += ["## False alarms and detections", "", _ALARMS, "", *_alarms(rates), ""]
    return "\n".join([
        *lines,
        "    build/venv/bin/python experiments/calibration/run.py        # continues the file",
        f"    katt-report calibration {file} -o DIR",
        "",
    ])


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


def _figure(found: Calibration):
    metrics = [metric for metric in METRICS if any(term.metric == metric for term in found.terms)]
    with style.context():
        most = max(sum(term.metric == metric for term in found.terms) for metric in metrics)
        figure, axes = style.grid(len(metrics), len(metrics), 1.6 + 0.32 * most)
        for panel, metric in zip(axes, metrics, strict=True):
            _panel(panel, [term for term in found.terms if term.metric == metric])
            panel.set_title(metric)
        style.legend_of_figure(figure, axes)
    return figure


def _panel(panel, terms: list[Term]) -> None:
    places = np.arange(len(terms))[::-1]
    panel.axvspan(*(100 * end for end in _TARGET), color="#009E73", alpha=0.2, linewidth=0, label="aim: 93–97 %")
    for place, term in zip(places, terms, strict=True):
        if math.isfinite(term.after):
            panel.plot([100 * term.before, 100 * term.after], [place, place], color=style.GREY, linewidth=0.8, zorder=1)
    panel.plot([100 * term.before for term in terms], places, "s", color="#D55E00", markersize=6,
               label="before: 95 % interval of a run")  # fmt: skip
    panel.plot([100 * term.after for term in terms], places, "o", color="#0072B2", markersize=6,
               label="after: with the between-runs term")  # fmt: skip
    panel.set_yticks(places, [f"{term.op}, ±{100 * term.between:.1f} %" for term in terms])
    panel.set_ylim(-0.6, len(terms) - 0.4)
    panel.set_xlim(min(40.0, *(100 * term.before - 5 for term in terms)), 101)
    panel.set_xlabel("later medians inside, %")
