"""The roofline with measured ceilings, and the share of the ceiling that every variant reaches."""

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from katt_report.figures import style
from katt_report.groups import Group
from katt_report.load import Ceiling
from katt_report.points import Points
from katt_report.text import percent_text, rate_text


def usable_ceilings(group: Group) -> list[Ceiling]:
    """One ceiling a name, the median over the runs, at the thread count that most points used."""
    threads = group.best["threads"].tolist()
    usual = max(set(threads), key=threads.count) if threads else 0
    chosen = []
    for name in dict.fromkeys(ceiling.name for ceiling in group.ceilings):
        same = [c for c in group.ceilings if c.name == name and c.value > 0 and math.isfinite(c.value)]
        same = [c for c in same if c.threads == usual] or same
        if same:
            chosen.append(sorted(same, key=lambda ceiling: ceiling.value)[len(same) // 2])
    return chosen


def roofline(group: Group) -> style.Plot | None:
    """Work rate over arithmetic intensity under the measured ceilings, both axes logarithmic."""
    ceilings = usable_ceilings(group)
    rows = group.best.where((group.best["flops"] > 0) & (group.best["bytes"] > 0) & (group.best["tflops"] > 0))
    if not ceilings or not len(rows):
        return None
    named = set(rows.values("ceiling"))
    flat = sorted((c for c in ceilings if c.unit == "FLOP/s"), key=lambda c: c.value)
    slopes = [c for c in ceilings if c.unit == "B/s"]
    # Read and copy of every level would be a bundle of lines: reads bound an operator from above.
    reads = [c for c in slopes if c.name.startswith("read")] or slopes
    slopes = [c for c in slopes if c in reads or c.name in named]
    intensity = rows["flops"] / rows["bytes"]
    rates = rows["tflops"] * 1e12
    top = max([c.value for c in flat] + [float(rates.max())])
    ridges = [top / c.value for c in slopes]
    low = min([float(intensity.min()) / 2, *(min(c.value for c in flat or [slopes[0]]) / s.value / 4 for s in slopes)])
    high = max([float(intensity.max()) * 2, *(ridge * 1.5 for ridge in ridges)])
    bottom = min(float(rates.min()) / 2, top / 200)
    with style.context():
        figure, (panel,) = style.grid(1, 1, 4.6)
        figure.set_size_inches(9.0, 4.6)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xlim(low, high)
        panel.set_ylim(bottom, top * 2)
        handles = _points(panel, group, rows, intensity, rates)
        _slopes(panel, slopes, low, bottom, top)
        _flat(panel, flat, low, high, slopes)
        panel.set_xlabel("arithmetic intensity: FLOP per byte of least traffic")
        panel.set_ylabel("throughput")
        panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        panel.yaxis.set_major_formatter(lambda value, _: rate_text(value, "FLOP/s", 0))
        style.legend_above(figure, handles, [handle.get_label() for handle in handles])
    return style.Plot(
        style.plot_name("roofline", group),
        "Roofline",
        figure,
        "Each marker is a point (fastest tile): work per second over work per byte of the least traffic that the "
        "operator needs. Horizontal lines are arithmetic ceilings, sloped lines read bandwidths, all measured in "
        "the same run. A variant that moves more than the least traffic, as naive does, lies further below its roof.",
        "Roofline chart: points by variant and dtype under measured arithmetic and bandwidth ceilings.",
    )


def _points(panel: Axes, group: Group, rows: Points, intensity, rates) -> list[Line2D]:
    variants = style.variant_looks(group.variants)
    dtypes = style.dtype_looks(group.dtypes)
    handles = []
    for variant, look in variants.items():
        for dtype in group.dtypes:
            chosen = (rows["variant"] == variant) & (rows["dtype"] == dtype)
            if chosen.any():
                how = look.curve(linestyle="", marker=dtypes[dtype].marker, markersize=6.5)
                if variant == group.variants[0] and len(group.variants) > 1:
                    how |= {"markerfacecolor": "white", "markeredgecolor": look.colour, "markeredgewidth": 1.3}
                handles += panel.plot(
                    intensity[chosen], rates[chosen], zorder=3, label=style.label(f"{variant} {dtype}"), **how
                )
    return handles


def _slopes(panel: Axes, slopes: list[Ceiling], low: float, bottom: float, top: float) -> None:
    for index, ceiling in enumerate(sorted(slopes, key=lambda c: -c.value)):
        start = max(low, bottom / ceiling.value)
        end = top / ceiling.value
        panel.plot([start, end], [start * ceiling.value, top], color=style.GREY, linewidth=1.1, linestyle="-.")
        # The label follows the line, each further up than the last, so that close lines keep theirs apart.
        place = start * (end / start) ** (0.08 + 0.2 * (index % 4))
        panel.annotate(f"{ceiling.name} {rate_text(ceiling.value, ceiling.unit)}", (place, place * ceiling.value),
                       xytext=(-3, 3), textcoords="offset points", rotation=45, rotation_mode="anchor",
                       transform_rotates_text=True, fontsize=8, color="#333333",
                       bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.2})  # fmt: skip


def _flat(panel: Axes, flat: list[Ceiling], low: float, high: float, slopes: list[Ceiling]) -> None:
    fastest = max((c.value for c in slopes), default=math.inf)
    bottom, top = panel.get_ylim()
    least = (top / bottom) ** 0.05
    previous = 0.0
    for ceiling in flat:
        panel.plot([max(low, ceiling.value / fastest), high], [ceiling.value] * 2, color="black", linewidth=1.2)
        height = max(ceiling.value, previous * least)
        previous = height
        panel.annotate(f"{ceiling.name} {rate_text(ceiling.value, ceiling.unit)}", (1.0, ceiling.value),
                       xycoords=("axes fraction", "data"), xytext=(1.02, height), textcoords=("axes fraction", "data"),
                       va="center", fontsize=8, color="#333333", annotation_clip=False,
                       arrowprops={"arrowstyle": "-", "color": style.GREY, "linewidth": 0.6, "shrinkA": 0,
                                   "shrinkB": 0})  # fmt: skip


def ceiling_shares(group: Group) -> style.Plot | None:
    """The share of its nearest ceiling that each point reaches: a row a dtype and variant, the best named."""
    rows = group.best.where(np.isfinite(group.best["ceiling_fraction"]) & (group.best["ceiling_fraction"] > 0))
    if not len(rows):
        return None
    looks = style.variant_looks(group.variants)
    series = [(dtype, variant) for dtype in group.dtypes for variant in looks
              if len(rows.where(dtype=dtype, variant=variant))]  # fmt: skip
    with style.context():
        figure, (panel,) = style.grid(1, 1, 0.9 + 0.36 * len(series))
        figure.set_size_inches(9.0, 0.9 + 0.36 * len(series))
        for place, (dtype, variant) in enumerate(series):
            chosen = rows.where(dtype=dtype, variant=variant)
            shares = 100.0 * chosen["ceiling_fraction"]
            look = looks[variant]
            panel.plot([shares.min(), shares.max()], [place] * 2, color=look.colour, linewidth=1.2, alpha=0.6)
            panel.plot(shares, [place] * len(shares), **look.curve(linestyle=""))
            best = chosen.row(int(np.argmax(shares)))
            panel.annotate(f"{percent_text(best['ceiling_fraction'])} of {best['ceiling']}{group.where_text(best)}",
                           (shares.max(), place), xytext=(7, 0), textcoords="offset points", va="center",
                           fontsize=8.5)  # fmt: skip
        panel.set_yticks(range(len(series)), [f"{dtype} {variant}" for dtype, variant in series])
        panel.set_ylim(len(series) - 0.4, -0.6)
        highest = 100.0 * float(rows["ceiling_fraction"].max())
        panel.set_xlim(0, max(highest * 1.55, 10))
        if highest * 1.55 > 100:
            panel.axvline(100, color="black", linewidth=1.0)
        panel.set_xlabel("share of the nearest measured ceiling, %")
        panel.grid(axis="y", visible=False)
    return style.Plot(
        style.plot_name("ceiling", group),
        "Share of the ceiling",
        figure,
        "How much of the limit that binds it (arithmetic or bandwidth, measured in the same run) each point reaches; "
        "the best point of every row is named.",
        "Dot chart of the fraction of the measured ceiling by dtype and variant.",
    )
