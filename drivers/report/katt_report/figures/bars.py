"""Bars by label (models, named sweep entries) when there is no x axis for curves."""

import textwrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from katt_report import schema
from katt_report.figures import style
from katt_report.groups import Group
from katt_report.points import Points
from katt_report.text import bytes_text, list_text, ratio_text, significant

_MOST_CATEGORIES = 24


def categories(group: Group, points: Points) -> list[tuple[str, tuple]]:
    """The bars' names and facet values, in file order, so that a sweep's own order is kept."""
    seen = dict.fromkeys(points.tuples(group.facets))
    names = [(group.short_text(values) or group.facet_text(values) or group.key[0], values) for values in seen]
    names = [(name.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}"), values) for name, values in names]
    return [(textwrap.fill(name, 34), values) for name, values in names[:_MOST_CATEGORIES]]


def speedup_bars(group: Group) -> style.Plot | None:
    """Speedup over the baseline by label, a bar a dtype, with its 95 % interval."""
    points = group.best.where((group.best["variant"] != schema.BASELINE) & np.isfinite(group.best["speedup"]))
    if not len(points):
        return None
    variants = points.values("variant")
    names = categories(group, points)
    looks = style.dtype_looks(group.dtypes)
    with style.context():
        figure, axes = _panels(len(variants), len(names) * len(group.dtypes))
        for panel, variant in zip(axes, variants, strict=True):
            series = {d: (looks[d], points.where(variant=variant, dtype=d)) for d in group.dtypes}
            _bars(panel, group, names, series, lambda rows: rows["speedup"], lambda value: f"{ratio_text(value)}×",
                  lambda rows: style.bars_of(rows, "speedup", "speedup_lo", "speedup_hi"))  # fmt: skip
            panel.axvline(1.0, color="black", linewidth=1.0)
            panel.set_title(variant if len(variants) > 1 else "")
            panel.set_xlabel(f"speedup over {schema.BASELINE}")
            panel.set_xlim(0, max(panel.get_xlim()[1] * 1.08, 1.2))
            panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
        style.legend_of_figure(figure, axes)
    return style.Plot(
        style.plot_name("speedup", group),
        "Speedup",
        figure,
        f"How many times faster {list_text(variants)} is than {schema.BASELINE}: median of the ratios round by round, "
        "bars with their 95 % interval; right of the line at 1 is faster. Fastest tile of each point.",
        f"Bar chart of the speedup over {schema.BASELINE} by {_what(group)}.",
    )


def throughput_bars(group: Group) -> style.Plot | None:
    """Throughput by label, a bar a variant, a panel a dtype."""
    if not np.any(group.rates(group.best) > 0):
        return None
    scale, unit = style.rate_scale(group.rates(group.best), group.rate_unit)

    def intervals(rows: Points) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            ends = np.array([1 - rows["time_s"] / rows["time_hi_s"], rows["time_s"] / rows["time_lo_s"] - 1])
        ends = np.where(np.isfinite(ends), np.maximum(ends, 0.0), 0.0)
        return ends * group.rates(rows) / scale

    with style.context():
        figure, axes = _by_variant(group, group.best, lambda rows: group.rates(rows) / scale, significant, intervals)
        for panel in axes:
            panel.set_xlim(0, panel.get_xlim()[1] * 1.15)
            panel.set_xlabel(f"throughput, {unit}")
    return style.Plot(
        style.plot_name("throughput", group),
        "Throughput",
        figure,
        "Useful work over median time, longer is better; with the 95 % interval. Every panel has its own scale. "
        "Fastest tile of each point.",
        f"Bar charts of throughput by {_what(group)} and variant, a panel a dtype.",
    )


def memory_bars(group: Group) -> style.Plot | None:
    """Total measured peak by label, a bar a variant, a panel a dtype, logarithmic."""
    known = group.best.with_memory
    if not len(known):
        return None
    with style.context():
        figure, axes = _by_variant(group, known, lambda rows: rows["total_bytes"], bytes_text)
        least, most = float(known["total_bytes"].min()), float(known["total_bytes"].max())
        for panel in axes:
            panel.set_xscale("log", base=2)
            panel.set_xlim(least / 2, most * 6)
            panel.xaxis.set_major_locator(LogLocator(base=8, numticks=6))
            panel.xaxis.set_minor_locator(NullLocator())
            panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: bytes_text(value, 0)))
            panel.set_xlabel("peak memory")
    return style.Plot(
        style.plot_name("memory", group),
        "Memory",
        figure,
        "Measured peak of everything a call holds, inputs and outputs included; shorter is better, logarithmic. No bar: "
        "another program, whose allocator does not tell.",
        f"Bar charts of peak memory by {_what(group)} and variant, a panel a dtype.",
    )


def _what(group: Group) -> str:
    return "label" if "label" in group.facets else "point"


def _panels(count: int, bars: int):
    figure, axes = style.grid(count, count, 1.1 + 0.2 * bars + 0.1, sharey=True)
    return figure, axes


def _by_variant(group: Group, points: Points, value, text, intervals=None):
    names = categories(group, group.best)
    looks = style.variant_looks(group.variants)
    figure, axes = _panels(len(group.dtypes), len(names) * len(looks))
    for panel, dtype in zip(axes, group.dtypes, strict=False):
        series = {v: (look, points.where(dtype=dtype, variant=v)) for v, look in looks.items()}
        _bars(panel, group, names, series, value, text, intervals)
        panel.set_title(dtype)
    style.legend_of_figure(figure, axes)
    return figure, axes


def _bars(panel: Axes, group: Group, names, series: dict, value, text, intervals=None) -> None:
    height = 0.8 / len(series)
    for index, (name, (look, rows)) in enumerate(series.items()):
        order = {key: place for place, (_, key) in enumerate(names)}
        # One bar a category: if an axis still varies (a short x), the largest row represents it.
        last = {key: i for i, key in enumerate(rows.tuples(group.facets)) if key in order}
        chosen = rows.where(np.array(list(last.values()), int))
        places = np.array([order[key] for key in last]) + (index - (len(series) - 1) / 2) * height
        values = value(chosen)
        bars = intervals(chosen) if intervals is not None and len(chosen) else None
        panel.barh(places, values, height * 0.92, label=style.label(name), **look.bar())
        if bars is not None:
            panel.errorbar(values, places, xerr=bars, fmt="none", ecolor="black", elinewidth=0.9, capsize=2)
        reach = values + bars[1] if bars is not None else values
        for place, end, number in zip(places, reach, values, strict=True):
            panel.annotate(text(number), (end, place), xytext=(4, 0), textcoords="offset points", va="center",
                           fontsize=7.5)  # fmt: skip
    panel.set_yticks(range(len(names)), [name for name, _ in names])
    panel.set_ylim(len(names) - 0.5, -0.5)
    panel.grid(axis="y", visible=False)
