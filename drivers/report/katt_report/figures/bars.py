"""Bars by label (models, named sweep entries) when there is no x axis for curves."""

import math
import textwrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.markers import CARETRIGHTBASE
from matplotlib.ticker import FuncFormatter, MultipleLocator

from katt_report.figures import style
from katt_report.figures.curves import CLIPPED
from katt_report.figures.marks import measured_words
from katt_report.groups import Group
from katt_report.points import Points
from katt_report.text import bytes_text, list_text, rate_text, ratio_text, significant

_MOST_CATEGORIES = 24


def categories(group: Group, points: Points) -> list[tuple[str, tuple]]:
    """The first bars' names and facet values, in file order, so that a sweep's own order is kept."""
    seen = dict.fromkeys(points.tuples(group.facets))
    names = [(group.short_text(values) or group.facet_text(values) or group.key[0], values) for values in seen]
    names = [(name.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}"), values) for name, values in names]
    return [(textwrap.fill(name, 34), values) for name, values in names[:_MOST_CATEGORIES]]


def speedup_bars(group: Group) -> style.Plot | None:
    """Speedup over the baseline by label, a bar a variant with its 95 % interval, a panel a dtype."""
    points = group.best.where((group.best["variant"] != group.baseline) & np.isfinite(group.best["speedup"]))
    if not len(points):
        return None
    figure = _ratios(group, points, "speedup", f"speedup over {group.baseline}")
    return style.Plot(
        style.plot_name("speedup", group),
        f"Speedup over {group.baseline}",
        figure,
        f"How many times as fast as {group.baseline}: median of the ratios round by round, with their 95 % interval; "
        f"right of the line at 1 is faster. Fastest tile of each point.{CLIPPED}" + _note(group, points),
        f"Bar charts of the speedup of {list_text(group.compared)} over {group.baseline} by {_what(group)}.",
    )


def peer_bars(group: Group) -> style.Plot | None:
    """Paired ratio of Katt's fastest variant to every peer by label, a bar a peer, a panel a dtype."""
    if group.against is None:
        return None
    figure = _ratios(group, group.against, "ratio", "Katt's fastest / peer")
    return style.Plot(
        style.plot_name("peers", group),
        "Against the peers",
        figure,
        "How many times as fast as each peer Katt's fastest variant at the point is: median of the ratios round by "
        f"round, with their 95 % interval; right of the line at 1 Katt is faster.{CLIPPED}"
        + _note(group, group.against),
        f"Bar charts of the speed of Katt's fastest variant over that of each peer by {_what(group)}.",
    )


def throughput_bars(group: Group) -> style.Plot | None:
    """Throughput by label, a bar a variant, a panel a dtype."""
    if not np.any(group.rates(group.best) > 0):
        return None
    scale, unit = style.rate_scale(group.rates(group.best), group.rate_unit)

    def values(rows: Points) -> tuple:
        rates = group.rates(rows) / scale
        return rates, style.rate_ends(rows, rates)

    with style.context():
        figure, axes = _by_variant(group, group.best, values, significant,
                                   lambda value: rate_text(value * scale, group.rate_unit))  # fmt: skip
        for panel in axes:
            panel.set_xlabel(f"throughput, {unit}")
    return style.Plot(
        style.plot_name("throughput", group),
        "Throughput",
        figure,
        "Useful work over median time, longer is better; with the 95 % interval. Every panel has its own scale. "
        f"Fastest tile of each point.{CLIPPED}" + _note(group, group.best),
        f"Bar charts of throughput by {_what(group)} and variant, a panel a dtype.",
    )


def memory_bars(group: Group) -> style.Plot | None:
    """Total measured peak by label, a bar a variant, a panel a dtype."""
    known = group.best.with_memory
    if not len(known):
        return None
    with style.context():
        figure, axes = _by_variant(group, known, lambda rows: (rows["total_bytes"], None), bytes_text)
        for panel in axes:
            panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: bytes_text(value)))
            panel.set_xlabel("peak memory")
            step = 2.0 ** math.floor(math.log2(panel.get_xlim()[1] / 2.5))
            panel.xaxis.set_major_locator(MultipleLocator(step))
    return style.Plot(
        style.plot_name("memory", group),
        "Memory",
        figure,
        "Measured peak of everything a call holds, inputs and outputs included; shorter is better. No bar: another "
        "program, whose allocator does not tell." + _note(group, known),
        f"Bar charts of peak memory by {_what(group)} and variant, a panel a dtype.",
    )


def _what(group: Group) -> str:
    return "label" if "label" in group.facets else "point"


def _note(group: Group, points: Points) -> str:
    return style.first_note(_MOST_CATEGORIES, len(points.combinations(group.facets)), "points")


def _ratios(group: Group, points: Points, name: str, title: str):
    with style.context():
        figure, axes = _by_variant(group, points, lambda rows: (rows[name], style.ends_of(rows, name)),
                                   lambda value: f"{ratio_text(value)}×")  # fmt: skip
        for panel in axes:
            panel.set_xlim(0.0, max(panel.get_xlim()[1], 1.2))
            panel.axvline(1.0, color="black", linewidth=1.0)
            panel.set_xlabel(title)
            panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    return figure


def _by_variant(group: Group, points: Points, values, text, say=None):
    """A panel a dtype with a bar for every variant that has a value there, `text` behind it; `say` is `text` with the
    unit where the axis names it."""
    names = categories(group, points)
    kept = {key for _, key in names}
    points = points.where(np.array([key in kept for key in points.tuples(group.facets)], bool))
    dtypes = [dtype for dtype in group.dtypes if len(points.where(dtype=dtype))]
    looks = {name: look for name, look in style.group_looks(group).items() if len(points.where(variant=name))}
    # A place for every variant that a category has in any of the panels.
    has = set(points.tuples([*group.facets, "variant"]))
    places, centres, place = {}, [], 0.0
    for _, key in names:
        present = [variant for variant in looks if (*key, variant) in has]
        places |= {(key, variant): place + index for index, variant in enumerate(present)}
        centres.append(place + (len(present) - 1) / 2)
        place += len(present) + 0.6
    figure, axes = style.grid(len(dtypes), len(dtypes), 1.2 + 0.19 * max(place, 3.0), sharey=True)
    for panel, dtype in zip(axes, dtypes, strict=True):
        rows = points.where(dtype=dtype)
        _bars(panel, group, rows, looks, places, values, text, say or text)
        panel.set_title(dtype)
        panel.set_yticks(centres, [name for name, _ in names])
        panel.set_ylim(place - 0.9, -0.8)
        panel.grid(axis="y", visible=False)
    style.legend_of_figure(figure, axes, looks)
    return figure, axes


def _bars(panel: Axes, group: Group, points: Points, looks: dict, places: dict, values, text, say) -> None:
    found = []
    for variant, look in looks.items():
        rows = points.where(variant=variant)
        # One bar a category: if an axis still varies (a short x), the largest row represents it.
        last = {key: i for i, key in enumerate(rows.tuples(group.facets)) if (key, variant) in places}
        if last:
            chosen = rows.where(np.array(list(last.values()), int))
            middle, ends = values(chosen)
            words = measured_words(group, chosen, middle, ends, say)
            found.append((variant, look, np.array([places[key, variant] for key in last]), words, middle, ends))
    # Room for the numbers behind the bars.
    limit = 1.3 * style.top_of(np.concatenate([middle for *_, middle, _ in found]))
    panel.set_xlim(0.0, limit)
    for name, look, at, words, middle, ends in found:
        parts = [*panel.barh(at, middle, 0.9, label=style.label(name), **look.bar())]
        reach = middle
        if ends is not None:
            parts.append(panel.hlines(at, ends[0], np.minimum(ends[1], limit), color="black", linewidth=0.9))
            reach = np.maximum(middle, ends[1])
        for place, end, number in zip(at, reach, middle, strict=True):
            inside = end > 0.86 * limit
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.4} if inside else None
            parts.append(panel.annotate(
                text(number), (min(end, limit), place), xytext=(-4 if inside else 4, 0), textcoords="offset points",
                va="center", ha="right" if inside else "left", fontsize=7.5, zorder=4, bbox=box))  # fmt: skip
            if end > limit:
                (arrow,) = panel.plot([limit], [place], marker=CARETRIGHTBASE, color="black", clip_on=False)
                arrow.set_in_layout(False)
                parts.append(arrow)
        panel.figure.add_series(name, look.colour, *parts)
        bars = ((0.0, place - 0.45, end, place + 0.45) for place, end in zip(at, middle, strict=True))
        panel.figure.add_marks(panel, name, bars, words)
