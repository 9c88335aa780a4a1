"""The table of profiles: the time of every region and kernel of a run."""

from katt_report.figures.shares import base_name, baseline_of, point_text, profiled, rest_of, short_name
from katt_report.groups import Group
from katt_report.load import Part, Profile
from katt_report.pages.markup import escape, small, table
from katt_report.text import bytes_text, percent_text, rate_text, seconds_text, significant

_MOST_PHASES = 4
_SAVING = "saves"
_HEADS = [("point", ""), ("dtype", ""), ("variant", ""), ("part", ""), ("calls", "n"), ("time", "n"), ("share", "n"),
          ("FLOPs", "n"), ("traffic", "n"), ("of ceiling", "n"), (_SAVING, "n"), ("phases", "")]  # fmt: skip


def shares_table(group: Group) -> str:
    """Regions and kernels of every profiled row, with their saving relative to the baseline's whole
    time."""
    rows = profiled(group)
    lines, apart = [], set()
    name = base_name(group, rows)
    heads = [(f"saves of {name}", "n") if head == _SAVING else (head, kind) for head, kind in _HEADS]
    for row in rows.rows():
        profile = group.profile_of(row)
        base = None if row["variant"] == name else baseline_of(group, rows, row)
        apart.add(len(lines))
        about = [point_text(group, row), row["dtype"], row["variant"]]
        for part in [*profile.outermost, rest_of(profile)]:
            lines.append([escape(text) for text in about] + _cells(part, profile, base))
            about = ["", "", ""]
        lines.append(["", "", "", "<b>all</b>", "", f"<b>{escape(seconds_text(profile.time_s))}</b>", "", "", "", "",
                      f"<b>{_saving(base, base.time_s, profile.time_s) if base else ''}</b>",
                      small(f"mean of {profile.runs} runs")])  # fmt: skip
    inside = table(heads, lines, apart, nested=True)
    return f"<details><summary>Calls, times and phases of every part</summary>{inside}</details>"


def _cells(part: Part, profile: Profile, base: Profile | None) -> list[str]:
    before = {one.name: one.time_s for one in [*base.outermost, rest_of(base)]} if base else {}
    inner = profile.inside(part) if part in profile.outermost else []
    inner = sorted(inner, key=lambda one: -one.time_s)[:_MOST_PHASES]
    phases = [f"{short_name(one.name, part.name)} {percent_text(one.time_s / part.time_s)}" for one in inner]
    return [
        escape(short_name(part.name)),
        significant(part.calls, 0) if part.calls else "",
        escape(seconds_text(part.time_s)),
        escape(percent_text(part.time_s / profile.time_s)),
        *work_cells(part),
        _saving(base, before.get(part.name, 0.0), part.time_s) if base else "",
        small(", ".join(phases)),
    ]


def work_cells(part: Part) -> list[str]:
    """FLOPs, traffic and share of the nearest ceiling of a part; empty when nobody counted."""
    return [
        escape(rate_text(part.flops, "FLOP")) if part.flops > 0 else "",
        escape(bytes_text(part.bytes)) if part.bytes > 0 else "",
        escape(f"{percent_text(part.ceiling_fraction)} {part.ceiling}") if part.ceiling else "",
    ]


def _saving(base: Profile, before: float, now: float) -> str:
    return escape(percent_text((before - now) / base.time_s)) if base.time_s > 0 else ""
