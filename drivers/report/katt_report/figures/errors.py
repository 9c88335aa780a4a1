"""Error against float64 per dtype and variant."""

import numpy as np
from matplotlib.lines import Line2D

from katt_report.figures import style
from katt_report.figures.marks import rows_words
from katt_report.groups import Group
from katt_report.text import error_text

_ROUNDOFF = {"f32": 2.0**-24, "tf32": 2.0**-11, "bf16": 2.0**-8, "f16": 2.0**-11}


def errors(group: Group) -> style.Plot | None:
    """Largest and mean absolute error of every measured row, in columns by dtype and variant."""
    rows = group.points.ok
    if not len(rows) or not np.any(np.isfinite(rows["max_abs_err"])):
        return None
    looks = style.group_looks(group)
    width = 0.8 / len(looks)
    with style.context():
        figure, (panel,) = style.grid(1, 1)
        figure.set_size_inches(9.6, 3.8)
        for place, dtype in enumerate(group.dtypes):
            for index, (variant, look) in enumerate(looks.items()):
                chosen = rows.where(dtype=dtype, variant=variant)
                centre = place + (index - (len(looks) - 1) / 2) * width
                _column(panel, group, chosen, centre, width, look, variant)
            if dtype in _ROUNDOFF:
                panel.plot([place - 0.42, place + 0.42], [_ROUNDOFF[dtype]] * 2, ":", color=style.GREY, linewidth=1.3)
        panel.set_xticks(range(len(group.dtypes)), group.dtypes)
        panel.set_xlim(-0.6, len(group.dtypes) - 0.4)
        panel.set_ylabel("absolute error against float64")
        panel.grid(axis="x", visible=False)
        style.log_axis(panel)
        low, high = panel.get_ylim()
        panel.set_ylim(low / 1.6, high * 1.6)
        handles = [Line2D([], [], **look.curve(linestyle=""), label=style.label(f"{variant}, largest"))
                   for variant, look in looks.items()]  # fmt: skip
        handles += [
            Line2D([], [], **_hollow(look), label=style.label(f"{variant}, mean")) for variant, look in looks.items()
        ]
        handles.append(Line2D([], [], linestyle=":", color=style.GREY, label="half a unit in the last place at 1"))
        panel.legend(handles=handles, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return style.Plot(
        style.plot_name("errors", group),
        "Accuracy",
        figure,
        "One marker a measured point: filled, the largest absolute error of its output against the float64 "
        "reference of the same (already rounded) inputs; hollow, the mean. The number is the worst of the column. "
        "The dotted line is the rounding of the output dtype for values near 1, for scale.",
        "Strip chart of the largest and mean absolute error by dtype and variant, logarithmic.",
    )


def _hollow(look: style.Look) -> dict:
    return look.curve(linestyle="", markerfacecolor="none", markeredgecolor=look.colour, markeredgewidth=1.0)


def _column(panel, group: Group, rows, centre: float, width: float, look: style.Look, variant: str) -> None:
    # A fixed spread instead of random jitter: the same file gives the same figure.
    kind = {"max_abs_err": "largest error", "mean_abs_err": "mean error"}
    spread = np.linspace(-0.3, 0.3, len(rows)) * width if len(rows) > 1 else np.zeros(len(rows))
    for name, how in (("max_abs_err", look.curve(linestyle="")), ("mean_abs_err", _hollow(look))):
        values = rows[name]
        # A logarithmic axis has no zero: exact rows are left to the table.
        shown = np.isfinite(values) & (values > 0)
        parts = panel.plot(centre + spread[shown], values[shown], alpha=0.85, **how)
        said = [f"{kind[name]} {error_text(value)}" for value in values[shown]]
        panel.figure.add_marks(panel, variant, zip(centre + spread[shown], values[shown], strict=True),
                               rows_words(group, rows.where(shown), said))  # fmt: skip
        if name == "max_abs_err" and shown.any():
            worst = values[shown].max()
            parts.append(panel.annotate(
                error_text(worst), (centre, worst), xytext=(0, 6), textcoords="offset points", ha="center", fontsize=8,
                zorder=4, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6}))  # fmt: skip
        panel.figure.add_series(variant, look.colour, *parts)
