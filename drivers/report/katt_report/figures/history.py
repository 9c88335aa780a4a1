"""The ratio of every row over the runs of a machine: a small panel each."""

import math
import textwrap
from itertools import pairwise

from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from katt_report.figures import style
from katt_report.figures.marks import Drawing
from katt_report.published.history import History, Series
from katt_report.text import interval_text, ratio_text

_COLUMNS, _MOST_PANELS = 4, 40
_COLOUR, _WORSE, _BETTER = "#0072B2", "#D55E00", "#009E73"


def panels(found: History, machine: str) -> style.Plot:
    """The rows of one machine, those with changes first."""
    every = [series for series in found.series if series.machine == machine]
    drawn = every[:_MOST_PANELS]
    rows = math.ceil(len(drawn) / _COLUMNS)
    with style.context():
        columns = min(_COLUMNS, len(drawn))
        figure = Drawing(
            figsize=(max(style.PAGE_WIDTH * columns / _COLUMNS, 4.0), 0.4 + 1.75 * rows), layout="constrained"
        )
        axes = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
        for unused in axes[len(drawn) :]:
            unused.remove()
        for panel, series in zip(axes, drawn, strict=False):
            _panel(panel, series)
        figure.supylabel("times as fast as naive", fontsize=9)
    return style.Plot(
        f"history_{machine}",
        machine,
        figure,
        "The paired speedup over naive, with its 95 % interval, a point a run, the oldest commit left; below, the commits "
        "of the first run, of the last and of changes. Lines: the levels between change points. A dashed line marks a "
        "change, red to slower, green to faster; a change that one run alone shows is dotted."
        + style.first_note(_MOST_PANELS, len(every), "rows"),
        f"Small panels of the speedup of each row over the commits measured on {machine}.",
    )


def _panel(panel, series: Series) -> None:
    ratios = [m.ratio for m in series.measurements]
    places = range(len(ratios))
    low, high = min(r.mid for r in ratios), max(r.mid for r in ratios)
    bottom, top = 0.93 * low, 1.07 * high
    for place, ratio in zip(places, ratios, strict=True):
        panel.plot(
            [place] * 2, [max(ratio.lo, bottom / 2), min(ratio.hi, 2 * top)], color=_COLOUR, linewidth=1.0, alpha=0.6
        )
    panel.plot(places, [r.mid for r in ratios], "o", color=_COLOUR, markersize=3)
    words = [(series.name, interval_text(m.ratio.mid, m.ratio.lo, m.ratio.hi, lambda value: f"{ratio_text(value)}×"),
              f"commit {m.commit[:12]} · measured {m.started_at[:10]}") for m in series.measurements]  # fmt: skip
    panel.figure.add_marks(panel, None, zip(places, [r.mid for r in ratios], strict=True), words)
    starts = [0, *(change.index for change in series.changes), len(ratios)]
    for first, last in pairwise(starts):
        panel.plot([first - 0.4, last - 0.6], [series.levels[first]] * 2, color="black", linewidth=1.1)
    for change in series.changes:
        panel.axvline(change.index - 0.5, color=_WORSE if change.factor < 1 else _BETTER, linewidth=1.2,
                      linestyle=":" if change.runs == 1 else "--")  # fmt: skip
    panel.set_ylim(bottom, top)
    panel.set_xlim(-0.6, len(ratios) - 0.4)
    ticks = sorted({0, len(ratios) - 1, *(change.index for change in series.changes)})
    # Names of commits that would touch each other: the change's counts most, then the last.
    room = max(len(ratios) / 4.5, 1)
    kept = [c.index for c in series.changes][:1]
    for tick in [ticks[-1], *ticks]:
        if all(abs(tick - other) >= room for other in kept):
            kept.append(tick)
    panel.xaxis.set_major_locator(FixedLocator(sorted(kept)))
    panel.set_xticks(sorted(kept), [series.measurements[tick].commit[:7] for tick in sorted(kept)], fontsize=6.5)
    panel.xaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{ratio_text(value)}×"))
    panel.tick_params(axis="y", labelsize=7)
    panel.locator_params(axis="y", nbins=4)
    panel.set_title(textwrap.fill(series.name, 38), fontsize=7, fontweight="normal")
