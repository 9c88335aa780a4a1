"""Speedup, throughput and time over the x axis."""

import numpy as np
from matplotlib.axes import Axes

from katt_report import schema
from katt_report.figures import style
from katt_report.groups import MOST_PANELS, Group, sort_dtypes
from katt_report.points import Points
from katt_report.text import list_text


def speedup(group: Group) -> style.Plot | None:
    """Paired speedup over the baseline with its 95 % interval: a line a dtype and variant, a panel a facet."""
    points = group.best.where((group.best["variant"] != schema.BASELINE) & np.isfinite(group.best["speedup"]))
    if not len(points):
        return None
    variants = points.values("variant")
    dtypes = style.dtype_looks(points.values("dtype"))
    looks = style.variant_looks(group.variants)
    panels = group.panels(points)[:MOST_PANELS]
    with style.context():
        figure, axes = style.grid(len(panels), len(panels), 3.4, sharey=True)
        for panel, (values, rows) in zip(axes, panels, strict=True):
            series = [(v, d) for v in variants for d in sort_dtypes(rows.values("dtype"))]
            for index, (variant, dtype) in enumerate(series):
                line = rows.where(variant=variant, dtype=dtype).sorted_by(group.x)
                if not len(line):
                    continue
                look = dtypes[dtype]
                chosen = look.line if len(variants) == 1 else looks[variant].line
                panel.errorbar(
                    line[group.x] * 1.02 ** (index - (len(series) - 1) / 2),
                    line["speedup"],
                    style.bars_of(line, "speedup", "speedup_lo", "speedup_hi"),
                    label=style.label(dtype if len(variants) == 1 else f"{variant} {dtype}"),
                    capsize=2.5,
                    **look.curve(linestyle=chosen),
                )
            panel.axhline(1.0, color=style.GREY, linewidth=1.0, zorder=1, label=f"{schema.BASELINE} = 1×")
            panel.set_title(group.facet_text(values))
            panel.yaxis.set_major_formatter(lambda value, _: f"{value:g}×")
            style.x_axis(panel, points[group.x], group.x_title)
        # The panels share the y axis: its limits are known once all are drawn.
        axes[0].set_ylim(bottom=0.0, top=max(axes[0].get_ylim()[1], 1.3))
        _left_labels(axes, f"speedup over {schema.BASELINE}")
        style.legend_of_figure(figure, axes)
    names = list_text(variants)
    return style.Plot(
        style.plot_name("speedup", group),
        f"Speedup over {group.symbol}",
        figure,
        f"How many times faster {names} is than {schema.BASELINE} at the same point: median of the ratios round by "
        "round, bars are the 95 % interval. Above the grey line is faster. Fastest tile of each point.",
        f"Line chart of the speedup of {names} over {schema.BASELINE} against {group.x_title}.",
    )


def throughput(group: Group) -> style.Plot | None:
    """Throughput by variant with its interval and the measured ceiling: a panel a dtype and facet."""
    if not np.any(group.rates(group.best) > 0):
        return None
    scale, unit = style.rate_scale(group.rates(group.best), group.rate_unit)

    def draw(panel: Axes, rows: Points, look: style.Look, variant: str) -> None:
        rates = group.rates(rows) / scale
        with np.errstate(divide="ignore", invalid="ignore"):
            low = rates * (1 - rows["time_s"] / rows["time_hi_s"])
            high = rates * (rows["time_s"] / rows["time_lo_s"] - 1)
        ends = np.array([low, high])
        ends = np.where(np.isfinite(ends), np.maximum(ends, 0.0), 0.0)
        panel.errorbar(rows[group.x], rates, ends, label=style.label(variant), capsize=2.5, **look.curve())

    figure, axes, shown = _variant_panels(group, draw)
    for panel in axes:
        panel.set_ylim(bottom=0.0)
    _left_labels(axes, f"throughput, {unit}")
    return style.Plot(
        style.plot_name("throughput", group),
        f"Throughput over {group.symbol}",
        figure,
        "Useful work over median time, higher is better; bars are the 95 % interval. Every panel has its own "
        "scale from zero. Fastest tile of each point."
        + (" A cross on the axis: the point gave no result (see the table)." if _missing(group) else "")
        + style.panels_note(shown, group),
        f"Line charts of throughput by variant against {group.x_title}, a panel a dtype.",
    )


def time(group: Group) -> style.Plot | None:
    """Median time by variant with its interval, both axes logarithmic."""
    if not len(group.best):
        return None

    def draw(panel: Axes, rows: Points, look: style.Look, variant: str) -> None:
        bars = style.bars_of(rows, "time_s", "time_lo_s", "time_hi_s")
        panel.errorbar(rows[group.x], rows["time_s"], bars, label=style.label(variant), capsize=2.5, **look.curve())

    figure, axes, shown = _variant_panels(group, draw, sharey=True)
    for panel in axes:
        style.time_axis(panel)
    _left_labels(axes, "median time")
    return style.Plot(
        style.plot_name("time", group),
        f"Time over {group.symbol}",
        figure,
        "Median time of one call, lower is better; bars are the 95 % interval. Fastest tile of each point."
        + style.panels_note(shown, group),
        f"Line charts of median time by variant against {group.x_title}, a panel a dtype.",
    )


def _variant_panels(group: Group, draw, **share):
    """Panels by facet and dtype, a curve a variant, a cross for a missing result of a variant."""
    looks = style.variant_looks(group.points.values("variant"))
    panels = style.dtype_panels(group)
    with style.context():
        figure, axes = style.grid(len(panels), style.columns_of(group, panels), 2.9, **share)
        for panel, (title, rows, values) in zip(axes, panels, strict=True):
            for variant, look in looks.items():
                line = rows.where(variant=variant).sorted_by(group.x)
                if len(line):
                    draw(panel, line, look, variant)
            every = group.points.match([*group.facets, "dtype"], values)
            _mark_missing(panel, group, every, rows, looks)
            panel.set_title(title)
            style.x_axis(panel, every[group.x], group.x_title)
        style.legend_of_figure(figure, axes)
    return figure, axes, len(panels)


def _mark_missing(panel: Axes, group: Group, every: Points, measured: Points, looks: dict) -> None:
    for index, (variant, look) in enumerate(looks.items()):
        missing = set(every.where(variant=variant).values(group.x)) - set(
            measured.where(variant=variant).values(group.x)
        )
        if missing:
            panel.plot(sorted(missing), [0.035 + 0.05 * index] * len(missing), "x", color=look.colour, markersize=7,
                       markeredgewidth=2, transform=panel.get_xaxis_transform(), clip_on=False,
                       label=style.label(variant) + style.MISSING)  # fmt: skip


def _missing(group: Group) -> bool:
    return len(group.points) > len(group.points.ok)


def _left_labels(axes: list[Axes], text: str) -> None:
    for panel in axes:
        if panel.get_subplotspec().is_first_col():
            panel.set_ylabel(text)
