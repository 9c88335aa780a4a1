"""Heat map of the speed of every tile."""

import math
import textwrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter

from katt_report import schema
from katt_report.figures import style
from katt_report.figures.marks import measured_words, rows_words
from katt_report.groups import MOST_PANELS, Group, sort_dtypes
from katt_report.points import Points
from katt_report.text import percent_text, rate_text


def tiles(group: Group) -> style.Plot | None:
    """Share of the fastest tile's throughput over tile_q × tile_kv: a panel a variant, facet, x and dtype."""
    panels, total = _panels(group)
    if not panels:
        return None
    shares = [_share(rows) for _, rows in panels]
    colours = Normalize(min(0.9, math.floor(10 * min(map(np.nanmin, shares))) / 10), 1.0)
    dtypes = sort_dtypes({rows["dtype"][0] for _, rows in panels})
    columns = len(dtypes) if [rows["dtype"][0] for _, rows in panels] == dtypes * (len(panels) // len(dtypes)) else 3
    largest = max(len(_extents(rows)[0]) for _, rows in panels)
    with style.context():
        figure, axes = style.grid(len(panels), columns if len(dtypes) > 1 else len(panels), 1.35 + 0.36 * largest)
        for panel, (title, rows), share in zip(axes, panels, shares, strict=True):
            _draw(panel, rows, share, colours)
            _mark(panel, group, rows)
            best = rows.where(np.array([np.nanargmax(share)]))
            rate = rate_text(group.rates(best)[0], group.rate_unit)
            fastest = f"{best['tile_q'][0]} × {best['tile_kv'][0]}: {rate}"
            panel.set_title("\n".join([*textwrap.wrap(title, 42), fastest]), fontsize=9.0)
        bar = figure.colorbar(
            ScalarMappable(colours, "cividis"), ax=axes, location="top", shrink=0.5, aspect=45, pad=0.02
        )
        bar.outline.set_visible(False)
        bar.ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: percent_text(value)))
        bar.set_label("throughput, of the panel's fastest tile")
    more = f" {len(panels)} of {total} panels are drawn; the table has all." if total > len(panels) else ""
    return style.Plot(
        style.plot_name("tiles", group),
        "Tiles",
        figure,
        "What a tile loses against the fastest of its panel, which is framed and named above it with its throughput "
        "(median times; brighter is faster, one scale for all panels). Hatched: refused, failed or suspect, with the reason in "
        "the table; empty: not asked for. Extents with which nothing ran are left out." + more,
        "Heat maps of throughput over tile_q and tile_kv.",
    )


def _panels(group: Group) -> tuple[list[tuple[str, Points]], int]:
    """The panels, a row of dtypes for each variant, facet and x, and the number of all possible
    panels.

    When not every x fits, each row has the x with the most tiles, the largest of equals.
    """
    tiled = group.points.where((group.points["tile_q"] > 0) | (group.points["tile_kv"] > 0))
    along = [group.x] if group.x else []
    columns = [*group.facets, "variant", *along, "dtype"]
    dtypes = sort_dtypes(tiled.values("dtype"))
    found: dict[tuple, Points] = {}
    for key in sorted(tiled.combinations(columns), key=lambda key: (*key[:-1], dtypes.index(key[-1]))):
        rows = tiled.match(columns, key)
        if len(rows.ok.combinations(schema.EXTENTS)) > 1:
            found[key] = rows
    total, split = len(found), len(columns) - 1 - len(along)
    if along and total > MOST_PANELS:
        best: dict[tuple, tuple] = {}
        for key, rows in found.items():
            size = (len(rows.ok), key[split])
            best[key[:split]] = max(best.get(key[:split], size), size)
        found = {key: rows for key, rows in found.items() if best[key[:split]][1] == key[split]}
    titled = []
    for key, rows in list(found.items())[:MOST_PANELS]:
        where = f"{group.symbol} = {key[split]}" if along else ""
        parts = (key[-1], key[split - 1], group.facet_text(key[: split - 1]), where)
        titled.append((" · ".join(part for part in parts if part), rows))
    return titled, total


def _share(rows: Points) -> np.ndarray:
    """The speed of each row relative to the fastest; NaN when it did not run."""
    ran = rows["status"] == "ok"
    return np.where(ran, np.nanmin(rows["time_s"][ran]) / rows["time_s"], np.nan)


def _extents(rows: Points) -> tuple[list, list]:
    """The tile_q and the tile_kv of all rows that ran."""
    return rows.ok.values("tile_q"), rows.ok.values("tile_kv")


def _draw(panel: Axes, rows: Points, share: np.ndarray, colours: Normalize) -> None:
    tile_q, tile_kv = _extents(rows)
    cells = np.full((len(tile_q), len(tile_kv)), math.nan)
    statuses = {}
    for index, row in enumerate(rows.rows()):
        if row["tile_q"] in tile_q and row["tile_kv"] in tile_kv:
            place = tile_q.index(row["tile_q"]), tile_kv.index(row["tile_kv"])
            statuses[place] = row["status"]
            cells[place] = share[index]
    panel.imshow(cells, cmap="cividis", norm=colours, aspect="auto", origin="lower")
    for (i, j), status in statuses.items():
        value = cells[i, j]
        if math.isnan(value):
            panel.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, facecolor="#eeeeee", edgecolor="#999999",
                                      hatch="////", linewidth=0))  # fmt: skip
            text, colour = {"skipped": "refused"}.get(status, status), "#222222"
        else:
            text = "best" if value == 1 else f"−{100 * (1 - value):.{0 if value < 0.9005 else 1}f} %"
            colour = "white" if colours(value) < 0.55 else "black"
        back = {"facecolor": "#eeeeee", "edgecolor": "none", "pad": 1.0} if math.isnan(value) else None
        panel.text(j, i, text, ha="center", va="center", color=colour, fontsize=7.5, bbox=back)
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


def _mark(panel: Axes, group: Group, rows: Points) -> None:
    """A cell says its throughput, or why there is none."""
    tile_q, tile_kv = _extents(rows)
    rows = rows.where(np.isin(rows["tile_q"], tile_q) & np.isin(rows["tile_kv"], tile_kv))

    def cells(chosen: Points) -> list[tuple]:
        places = [(tile_kv.index(j), tile_q.index(i)) for i, j in chosen.tuples(schema.EXTENTS)]
        return [(x - 0.5, y - 0.5, x + 0.5, y + 0.5) for x, y in places]

    ran, others = rows.ok, rows.where(rows["status"] != schema.OK)
    rates = group.rates(ran)
    words = measured_words(group, ran, rates, style.rate_ends(ran, rates), lambda rate: rate_text(rate, group.rate_unit))
    panel.figure.add_marks(panel, None, cells(ran), words)
    reasons = [f"{row['status']}: {row['reason'] or 'no reason given'}" for row in others.rows()]
    panel.figure.add_marks(panel, None, cells(others), rows_words(group, others, reasons))
