"""How the memory of a variant grows over the x axis."""

from katt_report.groups import Group, one_tile
from katt_report.statistics import PowerFit, fit_power
from katt_report.text import bytes_text


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
