"""The roofline with measured ceilings, and the share of the ceiling that every variant reaches."""

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter

from katt_report.figures import style
from katt_report.figures.marks import rows_words
from katt_report.groups import Group
from katt_report.limits import believed
from katt_report.load import Ceiling
from katt_report.points import Points
from katt_report.text import percent_text, rate_text, significant


def usable_ceilings(group: Group, threads: int) -> list[Ceiling]:
    """One ceiling a name at this thread count, the median over the runs."""
    chosen = []
    known = [c for c in group.ceilings if c.threads == threads and c.value > 0 and math.isfinite(c.value)]
    for name in dict.fromkeys(ceiling.name for ceiling in known):
        same = [ceiling for ceiling in known if ceiling.name == name]
        chosen.append(sorted(same, key=lambda ceiling: ceiling.value)[len(same) // 2])
    return chosen


def roofline(group: Group) -> style.Plot | None:
    """Work rate over arithmetic intensity under the measured ceilings, both axes logarithmic, a panel a dtype.

    The points of one thread count, which most of those with ceilings have, of equals the largest.
    """
    rows = group.best.where((group.best["flops"] > 0) & (group.best["bytes"] > 0) & (group.best["tflops"] > 0))
    under = np.isin(rows["threads"], [ceiling.threads for ceiling in group.ceilings if ceiling.value > 0])
    counts = rows["threads"][under].tolist()
    if not counts:
        return None
    threads = max(set(counts), key=lambda count: (counts.count(count), count))
    rows, ceilings = rows.where(threads=threads), usable_ceilings(group, threads)
    several = len(group.best.values("threads")) > 1
    alone = f" Only points of {threads} thread{'s'[: threads != 1]} are drawn." if several else ""
    dtypes = [dtype for dtype in group.dtypes if len(rows.where(dtype=dtype))]
    with style.context():
        figure, axes = style.grid(len(dtypes), len(dtypes), 3.7 if len(dtypes) > 1 else 4.4)
        for panel, dtype in zip(axes, dtypes, strict=True):
            _roof(panel, group, rows.where(dtype=dtype), ceilings)
            panel.set_title(dtype)
            if panel.get_subplotspec().is_first_col():
                panel.set_ylabel("throughput")
        style.legend_of_figure(figure, axes, group.variants)
    return style.Plot(
        style.plot_name("roofline", group),
        "Roofline",
        figure,
        "Each marker is a point (fastest tile): work per second over work per byte of the least traffic that the "
        "operator needs. Horizontal lines are arithmetic ceilings, sloped lines bandwidths, all measured in "
        "the same run. A variant that moves more than the least traffic, as naive does, lies further below its roof."
        + alone,
        "Roofline charts: points by variant under measured arithmetic and bandwidth ceilings, a panel a dtype.",
    )


def _roof(panel: Axes, group: Group, rows: Points, ceilings: list[Ceiling]) -> None:
    named = set(rows.values("ceiling"))
    flat = [c for c in ceilings if c.unit == "FLOP/s"]
    # The units of another dtype are no limit here.
    flat = [c for c in flat if c.name in named] or flat[:1]
    slopes = [c for c in ceilings if c.unit == "B/s" and (c.name in named or c.name == "read_dram")]
    intensity, rates = rows["flops"] / rows["bytes"], rows["tflops"] * 1e12
    top = max([c.value for c in flat] + [float(rates.max())])
    low = min([float(intensity.min()) / 2, *(top / c.value / 8 for c in slopes)])
    high = max([float(intensity.max()) * 2, *(top / c.value * 1.5 for c in slopes)])
    bottom = min(float(rates.min()) / 2, top / 200)
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xlim(low, high)
    panel.set_ylim(bottom, top * 2.2)
    for index, ceiling in enumerate(sorted(slopes, key=lambda c: -c.value)):
        start, end = max(low, bottom / ceiling.value), top / ceiling.value
        panel.plot([start, end], [start * ceiling.value, top], color=style.GREY, linewidth=1.0)
        # The label follows the line, each further up than the last, so that close lines keep theirs apart.
        place = start * (end / start) ** (0.12 + 0.28 * (index % 3))
        panel.annotate(f"{ceiling.name} {rate_text(ceiling.value, ceiling.unit)}", (place, place * ceiling.value),
                       xytext=(-2, 2), textcoords="offset points", rotation=45, rotation_mode="anchor",
                       transform_rotates_text=True, fontsize=7.5, color="#333333",
                       bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.2})  # fmt: skip
    fastest = max((c.value for c in slopes), default=math.inf)
    for ceiling in flat:
        panel.plot([max(low, ceiling.value / fastest), high], [ceiling.value] * 2, color="black", linewidth=1.2)
        panel.annotate(f"{ceiling.name} {rate_text(ceiling.value, ceiling.unit)}", (high, ceiling.value), xytext=(-2, 3),
                       textcoords="offset points", ha="right", fontsize=7.5, color="#333333")  # fmt: skip
    for variant, look in style.group_looks(group).items():
        chosen = rows["variant"] == variant
        if chosen.any():
            how = look.curve(linestyle="", label=style.label(variant), zorder=3)
            panel.figure.add_series(variant, look.colour, *panel.plot(intensity[chosen], rates[chosen], **how))
            said = [f"{rate_text(rate, 'FLOP/s')} at {significant(least)} FLOP/B"
                    for rate, least in zip(rates[chosen], intensity[chosen], strict=True)]  # fmt: skip
            panel.figure.add_marks(panel, variant, zip(intensity[chosen], rates[chosen], strict=True),
                                   rows_words(group, rows.where(chosen), said))  # fmt: skip
    panel.set_xlabel("FLOP per byte of least traffic")
    panel.xaxis.set_major_locator(LogLocator(base=10, numticks=6))
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    panel.yaxis.set_major_formatter(lambda value, _: rate_text(value, "FLOP/s", 0))
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_minor_formatter(NullFormatter())


def ceiling_shares(group: Group) -> style.Plot | None:
    """The share of its nearest ceiling that each point reaches: a row a dtype and variant, the best named."""
    shares = believed(group.best, group.ceilings)
    rows = group.best.where(np.isfinite(shares) & (shares > 0))
    if not len(rows):
        return None
    looks = style.group_looks(group)
    series = [(dtype, variant) for dtype in group.dtypes for variant in looks
              if len(rows.where(dtype=dtype, variant=variant))]  # fmt: skip
    with style.context():
        figure, (panel,) = style.grid(1, 1, 0.9 + 0.36 * len(series))
        figure.set_size_inches(9.0, 0.9 + 0.36 * len(series))
        for place, (dtype, variant) in enumerate(series):
            chosen = rows.where(dtype=dtype, variant=variant)
            shares = 100.0 * chosen["ceiling_fraction"]
            look = looks[variant]
            parts = panel.plot([shares.min(), shares.max()], [place] * 2, color=look.colour, linewidth=1.2, alpha=0.6)
            parts += panel.plot(shares, [place] * len(shares), **look.curve(linestyle=""))
            said = [f"{percent_text(row['ceiling_fraction'])} of {row['ceiling']}" for row in chosen.rows()]
            figure.add_marks(panel, variant, ((share, place) for share in shares), rows_words(group, chosen, said))
            best = chosen.row(int(np.argmax(shares)))
            text = f"{percent_text(best['ceiling_fraction'])} of {best['ceiling']}{group.where_text(best)}"
            parts.append(
                panel.text(1.01, place, text, transform=panel.get_yaxis_transform(), va="center", fontsize=8.5)
            )
            figure.add_series(variant, look.colour, *parts)
        panel.set_yticks(range(len(series)), [f"{dtype} {variant}" for dtype, variant in series])
        panel.set_ylim(len(series) - 0.4, -0.6)
        highest = 100.0 * float(rows["ceiling_fraction"].max())
        panel.set_xlim(0, max(highest * 1.08, 10))
        if highest * 1.08 > 100:
            panel.axvline(100, color="black", linewidth=1.0)
        panel.set_xlabel("share of the nearest measured ceiling, %")
        panel.grid(axis="y", visible=False)
    return style.Plot(
        style.plot_name("ceiling", group),
        "Share of the ceiling",
        figure,
        "How much of the limit that binds it (arithmetic or bandwidth, measured in the same run) each point reaches; "
        "the best point of every row is named. Points above their ceiling, which something else limits, are left out.",
        "Dot chart of the fraction of the measured ceiling by dtype and variant.",
    )
