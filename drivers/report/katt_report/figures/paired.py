"""The figure of points of paired axes."""

import numpy as np

from katt_report.derived.paired import along_one_axis, paired_axes
from katt_report.figures import style
from katt_report.figures.marks import measured_words
from katt_report.groups import Group, sort_dtypes
from katt_report.text import list_text, ratio_text, value_text


def paired(group: Group) -> style.Plot | None:
    """Rate relative to the reference over the paired axis: a panel a dtype, a line for the rest, with intervals."""
    axis, points = along_one_axis(group)
    if axis is None or len(points.values(axis)) < 2:
        return None
    named = [name for name in ("variant", group.x, *group.facets) if name and name not in paired_axes(points)]
    named = [name for name in dict.fromkeys(named) if len(points.values(name)) > 1]
    dtypes = sort_dtypes(points.values("dtype")) if axis != "dtype" else [None]
    categories = points.values(axis) if points[axis].dtype.kind == "U" else None
    lines = points.combinations(named)
    looks = list(style.variant_looks([f"{index:03}" for index in range(len(lines))]).values())
    if named == ["variant"]:
        looks = [style.group_looks(group)[name] for name, in lines]
    with style.context():
        figure, axes = style.grid(len(dtypes), len(dtypes), 3.4, sharey=True)
        for panel, dtype in zip(axes, dtypes, strict=True):
            rows = points if dtype is None else points.where(dtype=dtype)
            for look, values in zip(looks, lines, strict=True):
                line = rows.match(named, values).sorted_by(axis)
                if not len(line):
                    continue
                x = [categories.index(value) for value in line[axis]] if categories else line[axis]
                ends = np.array([line["rate"] - line["rate_lo"], line["rate_hi"] - line["rate"]])
                ends = np.where(np.isfinite(ends), np.maximum(ends, 0.0), 0.0)
                name = _name(group, named, values)
                drawn = panel.errorbar(x, line["rate"], ends, label=style.label(name), capsize=2.5, **look.curve())
                figure.add_series(name, look.colour, *drawn.get_children())
                words = measured_words(group, line, line["rate"], (line["rate_lo"], line["rate_hi"]),
                                       lambda value: f"{ratio_text(value)}×")  # fmt: skip
                figure.add_marks(panel, name, zip(x, line["rate"], strict=True), words)
            panel.axhline(1.0, color=style.GREY, linewidth=1.0, zorder=1, label="as at the reference")
            for goal in group.paired_goals:
                panel.axhline(goal, color="#D55E00", linewidth=1.2, linestyle="--", zorder=1,
                              label=f"expected: {goal:g}")  # fmt: skip
            panel.set_title(dtype or "")
            if categories:
                panel.set_xticks(range(len(categories)), categories)
                panel.set_xlabel(axis)
            else:
                _number_axis(panel, rows[axis], axis)
        axes[0].set_ylim(bottom=0.0, top=max(axes[0].get_ylim()[1], 1.15))
        axes[0].set_ylabel("rate relative to the reference")
        style.legend_of_figure(figure, axes)
    to = list_text(points.values("paired_to"))
    return style.Plot(
        style.plot_name("paired", group),
        f"Rate over {axis}, paired with {to}",
        figure,
        f"Useful work per second relative to the point {to}, whose samples were taken in the same rounds: the median "
        "of the ratios round by round, bars are its 95 % interval. At 1 the time follows the work.",
        f"Line chart of the rate relative to {to} against {axis}, a panel a dtype.",
    )


def _name(group: Group, named: list[str], values: tuple) -> str:
    parts = [str(value) if name == "variant" else f"{group.symbol if name == group.x else name} = {value_text(value)}"
             for name, value in zip(named, values, strict=True)]  # fmt: skip
    return ", ".join(parts) or "all points"


def _number_axis(panel, values, title: str) -> None:
    """Ticks at the values themselves, which may be fractions; logarithmic beyond a factor of four."""
    ticks = sorted(set(np.asarray(values, float).tolist()))
    if ticks[0] > 0 and ticks[-1] / ticks[0] > 4:
        panel.set_xscale("log", base=2)
    panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.minorticks_off()
    panel.set_xlabel(title)
