"""The time of a run: stacked bars of its regions and kernels, from the profiles of the rows."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from katt_report import schema
from katt_report.figures import style
from katt_report.groups import Group
from katt_report.load import Part, Profile
from katt_report.points import Points
from katt_report.text import percent_text, seconds_text

TITLE = "Where the time goes"
REST = "rest"
_MOST_PARTS = 7
_MOST_BARS = 60
REST_IS = f"parts beyond the {_MOST_PARTS} largest, and time that no region or kernel holds, are the {REST}"
_LOOKS = [
    ("#0072B2", ""), ("#E69F00", "////"), ("#009E73", "...."), ("#CC79A7", "xxxx"), ("#56B4E9", "----"),
    ("#F0E442", "++++"), ("#D55E00", "\\\\\\\\"),
]  # fmt: skip
_REST_LOOK = ("#BBBBBB", "")


def shares(group: Group) -> style.Plot | None:
    """Bars of the profiled time by point and variant, relative to the baseline's, or to the slowest where
    the baseline has no profile, a panel a dtype."""
    rows = profiled(group)
    if not len(rows):
        return None
    base = base_name(group, rows)
    looks = looks_of([group.profile_of(row) for row in rows.rows()])
    dtypes = [dtype for dtype in group.dtypes if len(rows.where(dtype=dtype))]
    panels = {dtype: _bars(group, rows, dtype) for dtype in dtypes}
    tallest = max(len(bars) for bars in panels.values())
    known = {baseline_of(group, rows, row) is not None for row in rows.rows()}
    whole = " or ".join([f"{base}'s"] * (True in known) + ["the slowest variant's"] * (False in known))
    lacks = f" Where {base} has no profile, the slowest profiled variant stands for it." if False in known else ""
    most = max(len(rows.where(dtype=dtype)) for dtype in dtypes)
    with style.context():
        # A row of panels names the points once when all panels have the same.
        same = len({tuple((point, variant) for point, variant, *_ in bars) for bars in panels.values()}) == 1
        figure, axes = style.grid(len(panels), 3 if same else 2, 1.0 + 0.27 * tallest)
        for panel, (dtype, bars) in zip(axes, panels.items(), strict=True):
            draw_bars(panel, bars, looks)
            if same and not panel.get_subplotspec().is_first_col():
                panel.tick_params(labelleft=False)
            panel.set_title(dtype)
            panel.set_xlabel(f"time / {whole} time")
        style.legend_of_figure(figure, axes)
    return style.Plot(
        style.plot_name("shares", group),
        TITLE,
        figure,
        f"Time of the operators inside one run, each bar in parts of {whole} whole time at that point, so "
        f"that a shorter bar is faster.{lacks} The percentages are shares of the bar's own time, which stands at its "
        f"end. From further runs with Kokkos' profiling callbacks, not from the samples; {REST_IS}."
        + style.first_note(_MOST_BARS, most, "bars of a panel"),
        "Stacked bar charts of the time of each operator by point and variant, a panel a dtype.",
    )


def profiled(group: Group) -> Points:
    """The rows with a profile, in the order of their points and dtypes, the baseline first at each."""
    rows = group.best
    rows = rows.where(np.array([group.profile_of(row) is not None for row in rows.rows()], bool))
    points = rows.tuples(_columns(group))
    places = {key: index for index, key in enumerate(dict.fromkeys(points))}
    dtypes, variants = group.dtypes, group.variants

    def place(i: int) -> tuple:
        return places[points[i]], dtypes.index(rows["dtype"][i]), variants.index(rows["variant"][i])

    order = sorted(range(len(rows)), key=place)
    return rows.where(np.array(order, int))


def point_text(group: Group, row: dict) -> str:
    """The point of a row among those of its dtype."""
    text = group.short_text(tuple(row[name] for name in group.facets))
    along = f"{group.symbol} = {row[group.x]}" if group.x else ""
    return ", ".join(part for part in (text, along) if part) or group.key[0]


def short_name(name: str, outer: str = "katt") -> str:
    """`rope` for `katt::rope`; inside `katt::rope`, `turn` for `katt::rope::turn`."""
    return name.removeprefix(f"{outer}::").removeprefix("katt::")


def rest_of(profile: Profile) -> Part:
    """The time that no region or kernel holds."""
    return Part(REST, 0, 0.0, max(0.0, profile.time_s - sum(part.time_s for part in profile.outermost)))


def baseline_of(group: Group, rows: Points, row: dict) -> Profile | None:
    """The baseline's profile at the point of a row."""
    base = _beside(group, rows, row).where(variant=base_name(group, rows))
    return group.profile_of(base.row(0)) if len(base) else None


def _beside(group: Group, rows: Points, row: dict) -> Points:
    """The rows at the point and dtype of a row."""
    columns = [*_columns(group), "dtype"]
    return rows.match(columns, [row[name] for name in columns])


def base_name(group: Group, rows: Points) -> str:
    """The variant whose time the bars are parts of: the baseline; naive when that has no profile, as a peer."""
    return group.baseline if group.baseline in rows["variant"] else schema.BASELINE


def _columns(group: Group) -> list[str]:
    return [*group.facets, *([group.x] if group.x else [])]


def looks_of(profiles: list[Profile]) -> dict[str, tuple[str, str]]:
    """Colour and hatch of the parts with the largest shares of any bar; the others are part of the rest."""
    largest: dict[str, float] = {}
    for profile in profiles:
        for part in profile.outermost:
            largest[part.name] = max(largest.get(part.name, 0.0), part.time_s / profile.time_s)
    names = sorted(largest, key=lambda name: -largest[name])[:_MOST_PARTS]
    return dict(zip(names, _LOOKS, strict=False)) | {REST: _REST_LOOK}


def _bars(group: Group, rows: Points, dtype: str) -> list[tuple[str, str, Profile, float]]:
    """(point, variant, profile, whole length) of the bars of a panel; the point is said once."""
    bars = []
    said = None
    for row in list(rows.where(dtype=dtype).rows())[:_MOST_BARS]:
        profile, point = group.profile_of(row), point_text(group, row)
        slowest = (group.profile_of(one) for one in _beside(group, rows, row).rows())
        whole = baseline_of(group, rows, row) or max(slowest, key=lambda one: one.time_s)
        bars.append(("" if point == said else point, row["variant"], profile, profile.time_s / whole.time_s))
        said = point
    return bars


def draw_bars(panel: Axes, bars, looks: dict) -> None:
    places, place = [], -0.35
    for point, _, _, _ in bars:
        place += 1.0 + (0.35 if point else 0.0)
        places.append(place)
    longest = max(length for *_, length in bars)
    named_point = ""
    for where, (point, variant, profile, length) in zip(places, bars, strict=True):
        named_point, left = point or named_point, 0.0
        named = {name: 0.0 for name in looks}
        for part in [*profile.outermost, rest_of(profile)]:
            named[part.name if part.name in looks else REST] += part.time_s / profile.time_s
        for name, share in named.items():
            colour, hatch = looks[name]
            width = share * length
            part = short_name(name)
            drawn = [*panel.barh(where, width, 0.86, left=left, color=colour, hatch=hatch, edgecolor="white",
                                 linewidth=0.5, label=style.label(part))]  # fmt: skip
            if width > 0.1 * longest:
                drawn.append(panel.text(
                    left + width / 2, where, percent_text(share), ha="center", va="center", fontsize=7,
                    bbox={"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 0.8}))  # fmt: skip
            panel.figure.add_series(part, colour, *drawn)
            said = f"{seconds_text(share * profile.time_s)}, {percent_text(share)} of {seconds_text(profile.time_s)}"
            runs = f"mean of {profile.runs} profiled run{'s'[: profile.runs != 1]}"
            title = " · ".join(text for text in (part, variant, named_point) if text)
            panel.figure.add_marks(panel, part, [(left, where - 0.43, left + width, where + 0.43)],
                                   [(title, said, runs)])  # fmt: skip
            left += width
        panel.annotate(seconds_text(profile.time_s), (left, where), xytext=(4, 0), textcoords="offset points",
                       va="center", fontsize=7.5)  # fmt: skip
    panel.set_yticks(places, [f"{point}  {variant}" if point else variant for point, variant, _, _ in bars])
    panel.set_ylim(places[-1] + 0.7, places[0] - 0.7)
    panel.set_xlim(0, longest * 1.17)
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.grid(axis="y", visible=False)
