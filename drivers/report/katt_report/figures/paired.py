"""Points of paired axes: the rate of every point relative to the reference point of the same rounds."""

import numpy as np

from katt_report import schema
from katt_report.figures import style
from katt_report.figures.marks import measured_words
from katt_report.groups import Group, sort_dtypes
from katt_report.points import Points
from katt_report.text import list_text, ratio_text, value_text


def paired_axis(points: Points) -> str | None:
    """The axis that the rows were paired along, the one with the most values of several; None without one."""
    return max(sorted(_axes(points)), key=lambda name: len(points.values(name)), default=None)


def relative_rates(group: Group) -> Points:
    """The measured rows with a ratio to the reference point of their rounds, which stand for itself at 1.

    `rate`, `rate_lo`, `rate_hi`: useful work per second (FLOPs, or bytes where the group is bound by memory) over
    that of the reference, which is `paired_ratio` times the work over the reference's work. Without counted work
    it is the ratio of the times alone.
    """
    points = group.best.where(np.isfinite(group.best["paired_ratio"]) & (group.best["paired_to"] != ""))
    if not len(points):
        return points
    axes = _axes(points)
    # An axis that follows a paired one is equal to it; variants and tiles of a point have the same work.
    followers = {name for name in points.identity for axis in axes if np.array_equal(points[name], points[axis])}
    key = [name for name in points.identity if name not in {*axes, *followers, "variant", *schema.TILES}]
    key += ["source", "run"]
    work = points["flops" if group.rate == "tflops" else "bytes"]
    reference = _is_reference(points)
    base = {place: amount for place, amount, is_it in zip(points.tuples(key), work, reference, strict=True) if is_it}
    share = [1.0 if amount == 0 else amount / base.get(place, np.nan)
             for place, amount in zip(points.tuples(key), work, strict=True)]  # fmt: skip
    rates = {f"rate{end}": points[f"paired_ratio{end}"] * share for end in ("", "_lo", "_hi")}
    rated = Points({**points.columns, **rates})
    return rated.where(np.isfinite(rated["rate"]))


def _axes(points: Points) -> set[str]:
    """The columns that `paired_to` names."""
    return {part.partition("=")[0] for to in points.values("paired_to") for part in to.split(",")} & set(points.columns)


def _is_reference(points: Points) -> np.ndarray:
    """The rows at the values that `paired_to` names."""
    return np.array([
        all(_same(row[name], value) for name, _, value in (part.partition("=") for part in row["paired_to"].split(",")))
        for row in points.rows()
    ], bool)  # fmt: skip


def _same(held, text: str) -> bool:
    return held == text if isinstance(held, str) else float(held) == float(text)


def _along_one_axis(group: Group) -> tuple[str | None, Points]:
    """The axis that most rows were paired along, and those rows."""
    points = relative_rates(group)
    axis = paired_axis(points)
    if axis is not None:
        along = [axis in (part.partition("=")[0] for part in to.split(",")) for to in points["paired_to"].tolist()]
        points = points.where(np.array(along, bool))
    return axis, points


def paired(group: Group) -> style.Plot | None:
    """Rate relative to the reference over the paired axis: a panel a dtype, a line for the rest, with intervals."""
    axis, points = _along_one_axis(group)
    if axis is None or len(points.values(axis)) < 2:
        return None
    named = [name for name in ("variant", group.x, *group.facets) if name and name not in _axes(points)]
    named = [name for name in dict.fromkeys(named) if len(points.values(name)) > 1]
    dtypes = sort_dtypes(points.values("dtype")) if axis != "dtype" else [None]
    categories = points.values(axis) if points[axis].dtype.kind == "U" else None
    looks = list(style.variant_looks([f"{index:03}" for index in range(len(points.combinations(named)))]).values())
    with style.context():
        figure, axes = style.grid(len(dtypes), len(dtypes), 3.4, sharey=True)
        for panel, dtype in zip(axes, dtypes, strict=True):
            rows = points if dtype is None else points.where(dtype=dtype)
            for look, values in zip(looks, points.combinations(named), strict=True):
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


def paired_lines(group: Group) -> list[str]:
    """A sentence a dtype: the range of the rates away from the reference."""
    axis, points = _along_one_axis(group)
    if axis is None:
        return []
    others = points.where(points["variant"] != schema.BASELINE)
    points = others if len(others) else points
    points = points.where(~_is_reference(points))
    lines = []
    for dtype in sort_dtypes(points.values("dtype")):
        rows = points.where(dtype=dtype)
        low, high = rows.row(int(np.argmin(rows["rate"]))), rows.row(int(np.argmax(rows["rate"])))
        ends = " to ".join(dict.fromkeys(
            f"{ratio_text(row['rate'])}× (95 % interval {ratio_text(row['rate_lo'])}–{ratio_text(row['rate_hi'])}, "
            f"{row['variant']} at {axis} = {value_text(row[axis])}"
            f"{', ' + group.symbol + ' = ' + str(row[group.x]) if group.x and group.x != axis else ''})"
            for row in (low, high)))  # fmt: skip
        lines.append(f"Paired with {list_text(rows.values('paired_to'))} in {dtype}, the rate of work is {ends}.")
    return lines


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
