"""Points of paired axes: the rate of every point relative to the reference point of the same rounds."""

import numpy as np

from katt_report import schema
from katt_report.groups import Group, sort_dtypes
from katt_report.points import Points
from katt_report.text import list_text, ratio_text, value_text


def relative_rates(group: Group) -> Points:
    """The measured rows with a ratio to the reference point of their rounds, which stand for itself at 1.

    `rate`, `rate_lo`, `rate_hi`: useful work per second (FLOPs, or bytes where the group is bound by memory) over
    that of the reference, which is `paired_ratio` times the work over the reference's work. Without counted work
    it is the ratio of the times alone.
    """
    points = group.best.where(np.isfinite(group.best["paired_ratio"]) & (group.best["paired_to"] != ""))
    if not len(points):
        return points
    axes = paired_axes(points)
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


def paired_axes(points: Points) -> set[str]:
    """The columns that `paired_to` names."""
    return {part.partition("=")[0] for to in points.values("paired_to") for part in to.split(",")} & set(points.columns)


def _is_reference(points: Points) -> np.ndarray:
    """The rows at the values that `paired_to` names."""
    return np.array([
        all(_same(row.get(name), value)
            for name, _, value in (part.partition("=") for part in row["paired_to"].split(",")))
        for row in points.rows()
    ], bool)  # fmt: skip


def _same(held, text: str) -> bool:
    try:
        return held == text if isinstance(held, str) else float(held) == float(text)
    except (TypeError, ValueError):  # no column of the file, or no value of its kind
        return False


def along_one_axis(group: Group) -> tuple[str | None, Points]:
    """The axis with the most values of those that rows were paired along, None without one, and its rows."""
    points = relative_rates(group)
    axis = max(sorted(paired_axes(points)), key=lambda name: len(points.values(name)), default=None)
    if axis is not None:
        along = [axis in (part.partition("=")[0] for part in to.split(",")) for to in points["paired_to"].tolist()]
        points = points.where(np.array(along, bool))
    return axis, points


def paired_lines(group: Group) -> list[str]:
    """A sentence a dtype: the range of the rates away from the reference."""
    axis, points = along_one_axis(group)
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
