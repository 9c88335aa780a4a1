"""Peak memory over the x axis with the fitted exponents."""

from matplotlib.axes import Axes
from matplotlib.offsetbox import AnchoredOffsetbox, TextArea, VPacker

from katt_report.derived.growth import growth_text
from katt_report.figures import style
from katt_report.figures.marks import rows_words
from katt_report.groups import Group, one_tile
from katt_report.points import Points
from katt_report.statistics import fit_power
from katt_report.text import bytes_text


def memory(group: Group) -> style.Plot | None:
    """Measured workspace and total peak by variant, both axes logarithmic, exponents in the legend."""
    if not len(group.best.with_memory):
        return None
    looks = style.group_looks(group)
    panels = style.dtype_panels(group, group.best.with_memory)
    with style.context():
        figure, axes = style.grid(len(panels), style.columns_of(group, panels), 3.1, sharey=True)
        for panel, (title, _, values) in zip(axes, panels, strict=True):
            rows = group.points.with_memory.match([*group.facets, "dtype"], values)
            style.x_axis(panel, rows[group.x], group.x_title)
            grown = []
            for variant, look in looks.items():
                chosen = rows.where(variant=variant)
                if len(chosen):
                    grown += _draw(panel, group, one_tile(chosen, group.x).sorted_by(group.x), look, variant)
            panel.set_title(title)
            # Where curves that rise leave room.
            lines = [TextArea(text, textprops={"color": look.colour, "fontsize": 8, "fontweight": "bold"})
                     for text, look in grown]  # fmt: skip
            if lines:
                panel.add_artist(AnchoredOffsetbox("upper left", child=VPacker(children=lines, pad=0, sep=2), pad=0.2,
                                                   frameon=False))  # fmt: skip
        axes[0].set_yscale("log", base=2)
        low, high = axes[0].get_ylim()  # of all panels
        axes[0].set_ylim(low, high * (high / low) ** 0.08)
        for panel in axes:
            style.byte_axis(panel)
            if panel.get_subplotspec().is_first_col():
                panel.set_ylabel("peak memory")
        style.legend_of_figure(figure, axes, looks)
    return style.Plot(
        style.plot_name("memory", group),
        f"Memory over {group.symbol}",
        figure,
        "Measured peaks of the allocation tracker: workspace (heavy line) is what a call takes beyond its inputs and "
        "outputs, total (thin line, hollow markers) is everything. In the corner, how workspace grows with "
        f"{group.symbol}: the exponent is fitted to the upper half of the "
        f"{group.symbol} measured, at least three of them, where fixed "
        "costs no longer count. A workspace of zero cannot be drawn on this axis. "
        "What another program takes is what its own allocator says; without a line it says nothing."
        + style.panels_note(group, group.best.with_memory),
        f"Log-log charts of workspace and total memory by variant against {group.x_title}.",
    )


def power(text: str) -> str:
    """N^2.00 with the exponent raised."""
    raised = str.maketrans("0123456789.-", "⁰¹²³⁴⁵⁶⁷⁸⁹·⁻")
    base, found, exponent = text.partition("^")
    return base + exponent.translate(raised) if found else text


def _draw(panel: Axes, group: Group, rows: Points, look: style.Look, variant: str) -> list[tuple[str, style.Look]]:
    """Draws a variant; returns how its workspace grows, if that is known."""
    x, workspace = rows[group.x], rows["workspace_bytes"]
    drawn = workspace > 0
    parts = panel.plot(x[drawn], workspace[drawn], label=style.label(variant), **look.curve())
    parts += panel.plot(x, rows["total_bytes"], **look.curve(linewidth=0.8, markerfacecolor="white",
                                                            markeredgecolor=look.colour, markersize=4.0))  # fmt: skip
    panel.figure.add_series(variant, look.colour, *parts)
    for name, chosen in (("workspace_bytes", rows.where(drawn)), ("total_bytes", rows)):
        said = [f"{name.removesuffix('_bytes')} {bytes_text(value)}" for value in chosen[name]]
        places = zip(chosen[group.x], chosen[name], strict=True)
        panel.figure.add_marks(panel, variant, places, rows_words(group, chosen, said))
    fit = fit_power(x, workspace)
    return [(f"{variant}: {power(growth_text(fit, group.symbol))}", look)] if fit else []
