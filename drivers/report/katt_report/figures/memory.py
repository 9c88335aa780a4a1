"""Peak memory over the x axis with the fitted exponents."""

from matplotlib.axes import Axes

from katt_report.figures import style
from katt_report.groups import Group, one_tile
from katt_report.points import Points
from katt_report.statistics import PowerFit, fit_power
from katt_report.text import bytes_text


def memory(group: Group) -> style.Plot | None:
    """Measured workspace and total peak by variant, both axes logarithmic, exponents in the legend."""
    if not len(group.best.with_memory):
        return None
    looks = style.variant_looks(group.variants)
    panels = style.dtype_panels(group)
    with style.context():
        figure, axes = style.grid(len(panels), style.columns_of(group, panels), 3.6, sharey=True)
        for panel, (title, _, values) in zip(axes, panels, strict=True):
            rows = group.points.with_memory.match([*group.facets, "dtype"], values)
            for variant, look in looks.items():
                chosen = rows.where(variant=variant)
                if len(chosen):
                    _draw(panel, group, one_tile(chosen, group.x).sorted_by(group.x), look, variant)
            panel.set_title(title)
            style.x_axis(panel, rows[group.x], group.x_title)
            style.legend_below(panel, 1)
        for panel in axes:
            style.byte_axis(panel)
            if panel.get_subplotspec().is_first_col():
                panel.set_ylabel("peak memory")
    return style.Plot(
        style.plot_name("memory", group),
        f"Memory over {group.symbol}",
        figure,
        "Measured peaks of the allocation tracker: workspace (heavy line) is what a call takes beyond its inputs and "
        f"outputs, total (thin line, hollow markers) is everything. The exponent p of workspace ∝ {group.symbol}^p is "
        f"fitted to the upper half of the {group.symbol} measured, at least three of them, where fixed costs no longer "
        "count; a workspace that is the same at all of them has none, and one of zero cannot be drawn on this axis. "
        "What another program takes is what its own allocator says; without a line it says nothing."
        + style.panels_note(len(panels), group),
        f"Log-log charts of workspace and total memory by variant against {group.x_title}.",
    )


def exponents(group: Group) -> dict[tuple, PowerFit | None]:
    """The fit of workspace over x for every (facet values…, dtype, variant)."""
    fits = {}
    columns = [*group.facets, "dtype", "variant"]
    rows = group.points.with_memory
    for key in rows.combinations(columns) if group.x else []:
        chosen = one_tile(rows.match(columns, key), group.x)
        fits[key] = fit_power(chosen[group.x], chosen["workspace_bytes"])
    return fits


def growth_text(fit: PowerFit, symbol: str) -> str:
    """How a workspace grows: `none`, `576 KiB at every N` or `N^2.00`."""
    if fit.exponent:
        return f"{symbol}^{fit.exponent:.2f}"
    return f"{bytes_text(fit.factor)} at every {symbol}" if fit.factor else "none"


def _draw(panel: Axes, group: Group, rows: Points, look: style.Look, variant: str) -> None:
    x, workspace = rows[group.x], rows["workspace_bytes"]
    fit = fit_power(x, workspace)
    name = style.label(style.formula(variant))
    label = f"{name} workspace"
    if not workspace.any():
        label += ": none"
    elif fit and not fit.exponent:
        label += f": {style.formula(growth_text(fit, group.symbol))}"
    elif fit:
        label += f" ∝ {style.formula(group.symbol)}$^{{{fit.exponent:.2f}}}$"
    drawn = workspace > 0
    panel.plot(x[drawn], workspace[drawn], label=label, **look.curve())
    thin = look.curve(linewidth=0.9, markerfacecolor="white", markeredgecolor=look.colour, markersize=4.5)
    panel.plot(x, rows["total_bytes"], label=f"{name} total", **thin)
