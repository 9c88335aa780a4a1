"""The figure of a calibration."""

import math

import numpy as np

from katt_report.calibration import METRICS, Alarm, Calibration, Term
from katt_report.figures import style
from katt_report.pages.output import render
from katt_report.published.repeats import ALARMS, alarms_csv

FIGURE = "coverage.png"
_TARGET = (0.93, 0.97)


def calibration_report(found: Calibration, rates: list[Alarm]) -> dict[str, bytes]:
    """The figure, and the alarms as a table for `katt-report readme`, which makes README.md."""
    (png,) = render(_figure(found), ("png",))
    return {FIGURE: png, **({ALARMS: alarms_csv(rates).encode()} if rates else {})}


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
