"""Heat map of the speed of every tile."""

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from katt_report import schema
from katt_report.figures import style
from katt_report.groups import Group, sort_dtypes
from katt_report.points import Points
from katt_report.text import significant

_MOST_PANELS = 12


def tiles(group: Group) -> style.Plot | None:
    """Throughput over tile_q × tile_kv: a panel a variant, dtype, facet and x."""
    panels = _panels(group)
    if not panels:
        return None
    total = len(panels)
    panels = panels[:_MOST_PANELS]
    rates = np.concatenate([group.rates(rows.ok) for _, rows in panels])
    scale, unit = style.rate_scale(rates, group.rate_unit)
    largest = max(len(rows.values("tile_q")) for _, rows in panels)
    with style.context():
        figure, axes = style.grid(len(panels), len(panels), 1.25 + 0.42 * largest)
        for panel, (title, rows) in zip(axes, panels, strict=True):
            image = _draw(panel, rows, group.rates(rows) / scale)
            panel.set_title(title)
            bar = figure.colorbar(image, ax=panel, shrink=0.9, pad=0.02)
            bar.outline.set_visible(False)
            bar.ax.set_ylabel(unit, fontsize=8.5)
    more = f" The first {len(panels)} of {total} panels are drawn." if total > len(panels) else ""
    return style.Plot(
        style.plot_name("tiles", group),
        "Tiles",
        figure,
        f"Throughput in {unit} for every tile (median time), brighter is faster, the framed cell is the fastest. "
        "Hatched: refused or failed, with the reason in the table; empty: not asked for. Every panel has its own "
        "colour scale." + more,
        "Heat maps of throughput over tile_q and tile_kv.",
    )


def _panels(group: Group) -> list[tuple[str, Points]]:
    """Panels of every x where they fit, else of the x with the most tiles, the largest of equals."""
    tiled = group.points.where((group.points["tile_q"] > 0) | (group.points["tile_kv"] > 0))
    along = [group.x] if group.x else []
    columns = [*group.facets, "variant", "dtype", *along]
    found: dict[tuple, dict] = {}
    dtypes, place = sort_dtypes(tiled.values("dtype")), columns.index("dtype")
    for key in sorted(tiled.combinations(columns), key=lambda key: (dtypes.index(key[place]), key)):
        rows = tiled.match(columns, key)
        if len(rows.combinations(schema.EXTENTS)) > 1 and len(rows.ok):
            split = len(columns) - len(along)
            found.setdefault(key[:split], {})[key[split:]] = rows
    every = sum(len(panels) for panels in found.values()) <= _MOST_PANELS
    titled = []
    for key, panels in found.items():
        best = max(panels, key=lambda x: (len(panels[x].ok), x))
        for x, rows in panels.items():
            if every or x == best:
                where = f"{group.symbol} = {x[0]}" if x else ""
                parts = (*key[len(group.facets) :], group.facet_text(key[: len(group.facets)]), where)
                titled.append((" · ".join(part for part in parts if part), rows))
    return titled


def _draw(panel: Axes, rows: Points, rates: np.ndarray):
    tile_q, tile_kv = rows.values("tile_q"), rows.values("tile_kv")
    cells = np.full((len(tile_q), len(tile_kv)), math.nan)
    statuses = {}
    for index, row in enumerate(rows.rows()):
        place = tile_q.index(row["tile_q"]), tile_kv.index(row["tile_kv"])
        statuses[place] = row["status"]
        if row["status"] == "ok":
            cells[place] = rates[index]
    image = panel.imshow(cells, cmap="cividis", aspect="auto", origin="lower")
    low, high = np.nanmin(cells), np.nanmax(cells)
    for (i, j), status in statuses.items():
        value = cells[i, j]
        if math.isnan(value):
            panel.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, facecolor="#eeeeee", edgecolor="#999999",
                                      hatch="////", linewidth=0))  # fmt: skip
            text, colour = {"skipped": "refused"}.get(status, status), "#222222"
        else:
            text = significant(value)
            colour = "white" if high > low and (value - low) / (high - low) < 0.55 else "black"
        back = {"facecolor": "#eeeeee", "edgecolor": "none", "pad": 1.0} if math.isnan(value) else None
        panel.text(j, i, text, ha="center", va="center", color=colour, fontsize=8, bbox=back)
    best = np.unravel_index(np.nanargmax(cells), cells.shape)
    panel.add_patch(Rectangle((best[1] - 0.47, best[0] - 0.47), 0.94, 0.94, fill=False, edgecolor="#D55E00",
                              linewidth=2.2))  # fmt: skip
    panel.set_xticks(range(len(tile_kv)), tile_kv)
    panel.set_yticks(range(len(tile_q)), tile_q)
    panel.set_xlabel("tile_kv")
    panel.set_ylabel("tile_q")
    panel.grid(False)
    panel.tick_params(length=0)
    for spine in panel.spines.values():
        spine.set_visible(False)
    return image
