"""Speedup, throughput and time over the x axis."""

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes

from katt_report.figures import style
from katt_report.figures.marks import measured_words
from katt_report.groups import Group
from katt_report.points import Points
from katt_report.text import list_text, rate_text, ratio_text, seconds_text

CLIPPED = " The axis follows the medians: an interval that leaves it ends in an arrow."


def speedup(group: Group) -> style.Plot | None:
    """Paired speedup over the baseline with its 95 % interval: a line a variant, a panel a dtype and facet."""
    points = group.best.where((group.best["variant"] != group.baseline) & np.isfinite(group.best["speedup"]))
    if not len(points):
        return None
    names = list_text([name for name in group.compared if name in points.values("variant")])
    figure, note = _ratios(group, points, "speedup", f"speedup over {group.baseline}", f"{group.baseline} = 1×")
    return style.Plot(
        style.plot_name("speedup", group),
        f"Speedup over {group.baseline}",
        figure,
        f"How many times as fast as {group.baseline} at the same point: median of the ratios round by round, bars are "
        f"the 95 % interval. Above the black line is faster. Fastest tile of each point.{CLIPPED}{note}",
        f"Line charts of the speedup of {names} over {group.baseline} against {group.x_title}, a panel a dtype.",
    )


def peers(group: Group) -> style.Plot | None:
    """Paired ratio of Katt's fastest variant to every peer: a line a peer, a panel a dtype and facet."""
    if group.against is None:
        return None
    figure, note = _ratios(group, group.against, "ratio", "Katt's fastest / peer", "as fast as the peer")
    return style.Plot(
        style.plot_name("peers", group),
        "Against the peers",
        figure,
        "How many times as fast as each peer Katt's fastest variant at the point is: median of the ratios round by "
        f"round, bars are the 95 % interval. Above the black line Katt is faster.{CLIPPED}{note}",
        f"Line charts of the speed of Katt's fastest variant over that of each peer against {group.x_title}.",
    )


def throughput(group: Group) -> style.Plot | None:
    """Throughput by variant with its interval: a panel a dtype and facet."""
    if not np.any(group.rates(group.best) > 0):
        return None
    scale, unit = style.rate_scale(group.rates(group.best), group.rate_unit)

    def values(rows: Points) -> tuple:
        rates = group.rates(rows) / scale
        return rates, style.rate_ends(rows, rates)

    def setup(panel: Axes, rows: Points) -> None:
        panel.set_ylim(0.0, 1.12 * style.top_of(group.rates(rows) / scale))

    figure, note = _panels(group, group.best, values, setup,
                           lambda value: rate_text(value * scale, group.rate_unit), f"throughput, {unit}")  # fmt: skip
    return style.Plot(
        style.plot_name("throughput", group),
        f"Throughput over {group.symbol}",
        figure,
        "Useful work over median time, higher is better; bars are the 95 % interval. Every panel has its own "
        f"scale from zero. Fastest tile of each point.{CLIPPED}{note}",
        f"Line charts of throughput by variant against {group.x_title}, a panel a dtype.",
    )


def time(group: Group) -> style.Plot | None:
    """Median time by variant with its interval, both axes logarithmic."""
    times = group.best["time_s"]
    times = times[times > 0]
    if not len(times):
        return None

    def setup(panel: Axes, _: Points) -> None:
        panel.set_ylim(times.min() / 1.5, times.max() * 1.5)
        style.time_axis(panel)

    figure, note = _panels(group, group.best, lambda rows: (rows["time_s"], style.ends_of(rows, "time_s")), setup,
                           seconds_text, "median time", sharey=True)  # fmt: skip
    return style.Plot(
        style.plot_name("time", group),
        f"Time over {group.symbol}",
        figure,
        "Median time of one call, lower is better; bars are the 95 % interval. Fastest tile of each point."
        + note,
        f"Line charts of median time by variant against {group.x_title}, a panel a dtype.",
    )


def _ratios(group: Group, points: Points, name: str, title: str, line: str):
    def setup(panel: Axes, _: Points) -> None:
        style.limits(panel, points[name], (1.0,))
        style.ratio_axis(panel, line)

    return _panels(group, points, lambda rows: (rows[name], style.ends_of(rows, name)), setup,
                   lambda value: f"{ratio_text(value)}×", title, sharey=True)  # fmt: skip


def _panels(group: Group, points: Points, values: Callable, setup: Callable, say: Callable, title: str, **share):
    """Panels by facet and dtype with a curve a variant; the sentence on those that do not fit as well.

    `values` gives the medians of rows and the ends of their intervals, `setup` sets the limits of a panel, `say` puts a
    value into words.
    """
    looks = style.group_looks(group)
    panels = style.dtype_panels(group, points)
    with style.context():
        figure, axes = style.grid(len(panels), style.columns_of(group, panels), 2.7, **share)
        for panel, (name, rows, _) in zip(axes, panels, strict=True):
            style.x_axis(panel, rows[group.x], group.x_title)
            setup(panel, rows)
            for variant, look in looks.items():
                line = rows.where(variant=variant).sorted_by(group.x)
                if len(line):
                    middle, ends = values(line)
                    words = measured_words(group, line, middle, ends, say)
                    style.curve(panel, line[group.x], middle, ends, look, variant, words)
            panel.set_title(name)
            if panel.get_subplotspec().is_first_col():
                panel.set_ylabel(title)
        style.legend_of_figure(figure, axes, looks)
    return figure, style.panels_note(group, points)
