"""The look of figures: one colour, marker and hatch a variant, for screen, print and colour-blind readers (the palette
begins with that of Okabe and Ito; no two series differ by colour alone)."""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.markers import CARETDOWNBASE, CARETUPBASE
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from katt_report import schema
from katt_report.figures.marks import Drawing, Words
from katt_report.groups import MOST_PANELS, Group, sort_dtypes
from katt_report.points import Points
from katt_report.text import bytes_text, power_text, seconds_text

PAGE_WIDTH = 10.8
GREY = "#555555"


@dataclass(frozen=True)
class Plot:
    """A finished figure: `name` is its file stem, `caption` says how to read it, `alt` what it shows."""

    name: str
    title: str
    figure: Drawing
    caption: str
    alt: str


@dataclass(frozen=True)
class Look:
    """Colour, marker and hatch of one variant."""

    colour: str
    marker: str
    hatch: str

    def curve(self, **changes) -> dict:
        """Keyword arguments of `plot`."""
        return {
            "color": self.colour, "marker": self.marker, "linestyle": "-", "linewidth": 1.5,
            "markersize": 6.0, "markeredgecolor": "white", "markeredgewidth": 0.6, **changes,
        }  # fmt: skip

    def bar(self) -> dict:
        """Keyword arguments of `barh`."""
        return {"color": self.colour, "hatch": self.hatch, "edgecolor": "white", "linewidth": 0.5}


_BASELINE = Look("#D55E00", "s", "")
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#6A3D9A", "#56B4E9", "#8C510A", "#999933", "#7F7F7F")
# As many colours, markers and hatches as have no divisor in common: many variants differ in two of them.
_MARKERS = ("o", "^", "D", "v", "P", "X", "<", "p", ">", "h")
_HATCHES = ("////", "....", "xxxx", "----", "++++", "oo", "\\\\\\\\")


def variant_looks(variants) -> dict[str, Look]:
    """The look of every variant: naive's is fixed, the others take theirs in the order given."""
    others = [name for name in variants if name != schema.BASELINE]
    looks = {
        name: Look(_COLOURS[i % len(_COLOURS)], _MARKERS[i % len(_MARKERS)], _HATCHES[i % len(_HATCHES)])
        for i, name in enumerate(others)
    }
    return {name: looks.get(name, _BASELINE) for name in variants}


def group_looks(group: Group) -> dict[str, Look]:
    """The looks of the variants of a group, in its order; each has the same look on the whole page."""
    looks = variant_looks(group.page_variants or group.variants)
    return {name: looks[name] for name in group.variants}


@contextmanager
def context() -> Iterator[None]:
    """The settings for making and saving figures. Names of files are text: a `$` begins no
    formula."""
    with warnings.catch_warnings(), matplotlib.rc_context(
        {
            "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "font.size": 9.0,
            "axes.titlesize": 9.5, "axes.titleweight": "bold", "axes.labelsize": 9.0, "legend.fontsize": 8.5,
            "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": GREY,
            "axes.grid": True, "axes.axisbelow": True, "grid.color": "#dddddd", "grid.linewidth": 0.6,
            "xtick.color": "#333333", "ytick.color": "#333333", "xtick.labelsize": 8.5, "ytick.labelsize": 8.5,
            "legend.frameon": False, "legend.handlelength": 3.0, "hatch.linewidth": 0.6,
            "figure.facecolor": "white", "savefig.facecolor": "white", "savefig.dpi": 160,
            "svg.fonttype": "path", "svg.hashsalt": "katt", "text.parse_math": False,
        }
    ):  # fmt: skip
        # Names in a script that the font lacks, or too long for the page, are no news on stderr.
        warnings.filterwarnings("ignore", "Glyph .* missing|.*layout not applied|Tight layout", UserWarning)
        yield


def label(name: str) -> str:
    """A name for a legend; a legend leaves out names that begin with an underscore."""
    return f" {name}" if name.startswith("_") else name


def plot_name(kind: str, group: Group) -> str:
    """The file stem of a figure: only the kind when the report has one group."""
    return f"{kind}_{group.name}" if group.name else kind


def dtype_panels(group: Group, points: Points | None = None) -> list[tuple[str, Points, tuple]]:
    """One panel a facet and dtype: (title, rows, facet values), facets from top to bottom."""
    panels = []
    for values, rows in group.panels(points):
        for dtype in sort_dtypes(rows.values("dtype")):
            title = " · ".join(text for text in (dtype, group.facet_text(values)) if text)
            panels.append((title, rows.where(dtype=dtype), (*values, dtype)))
    return panels[:MOST_PANELS]


def grid(count: int, columns: int, height: float = 3.0, **share) -> tuple[Drawing, list[Axes]]:
    """A figure of `count` panels in rows of at most three (four make a square), the empty places removed."""
    columns = 2 if columns == count == 4 else max(1, min(columns, 3, count))
    rows = math.ceil(count / columns)
    width = {1: 7.0, 2: 9.6, 3: PAGE_WIDTH}[columns]
    figure = Drawing(figsize=(width, height * rows), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08, hspace=0.04, wspace=0.04)
    axes = figure.subplots(rows, columns, squeeze=False, **share).ravel().tolist()
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]


def columns_of(group: Group, panels: list) -> int:
    """As many columns as dtypes when facets make the rows, else as many panels as fit."""
    return len(group.dtypes) if group.facets and len(group.dtypes) > 1 else len(panels)


def first_note(most: int, total: int, what: str) -> str:
    """A sentence for the caption when not all `total` fit."""
    return f" The first {most} of {total} {what} are drawn; the table has all." if total > most else ""


def panels_note(group: Group, points: Points) -> str:
    """The same for the panels of `points`."""
    return first_note(MOST_PANELS, len(points.combinations([*group.facets, "dtype"])), "combinations")


def legend_of_figure(figure: Figure, axes: list[Axes], order=()) -> None:
    """One legend for all panels, above them; the names of `order` in that order, others before them."""
    entries = {}
    for panel in axes:
        for handle, name in zip(*panel.get_legend_handles_labels(), strict=True):
            entries.setdefault(name, handle)
    places = {label(name): place for place, name in enumerate(order)}
    names = sorted(entries, key=lambda name: places.get(name, -1))
    legend_above(figure, [entries[name] for name in names], names)


def legend_above(figure: Figure, handles: list, labels: list[str]) -> None:
    """A legend above all panels, in as many columns (six at most) as the figure is wide for."""
    for columns in range(min(len(labels), 6), 0, -1):
        legend = figure.legend(handles, labels, loc="outside upper left", ncols=columns)
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


def x_axis(axes: Axes, values, title: str) -> None:
    """Ticks at the measured values; logarithmic when they span a factor of four."""
    values = np.unique(np.asarray(values))
    if values.size and values[0] > 0 and values[-1] / values[0] >= 4:
        axes.set_xscale("log", base=2)
        step = math.ceil(values.size / 7)
        axes.set_xlim(values[0] / 1.25, values[-1] * 1.25)
        values = values[::-1][::step][::-1]
    elif values.size > 8:
        values = values[:: math.ceil(values.size / 8)]
    axes.xaxis.set_major_locator(FixedLocator(values.tolist()))
    binary = all(value % 1024 == 0 for value in values if value >= 1024)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _count_text(value, binary)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(title)


def _count_text(value: float, binary: bool) -> str:
    value = round(value)
    return f"{value // 1024}k" if binary and value >= 1024 else f"{value}"


def byte_axis(axes: Axes) -> None:
    """A logarithmic axis labelled in KiB, MiB, GiB."""
    axes.set_yscale("log", base=2)
    low, high = (math.log2(limit) for limit in axes.get_ylim())
    step = max(1, math.ceil((high - low) / 6))
    ticks = [2.0**power for power in range(math.ceil(low / step) * step, math.floor(high) + 1, step)]
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: bytes_text(value, 0)))
    axes.yaxis.set_minor_locator(NullLocator())


def log_axis(axes: Axes, text=power_text) -> None:
    """A logarithmic y axis with decimal ticks, labelled by `text`."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(base=10, numticks=8))
    low, high = axes.get_ylim()
    if high / low < 30:
        axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5), numticks=8))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())


def time_axis(axes: Axes) -> None:
    """A logarithmic axis labelled in µs, ms, s."""
    log_axis(axes, lambda value: seconds_text(value, 0))


def rate_scale(rates, unit: str) -> tuple[float, str]:
    """The divisor and unit in which the largest rate is a number below about a thousand."""
    largest = max((rate for rate in rates if math.isfinite(rate)), default=0.0)
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if largest >= size:
            return size, f"{prefix}{unit}"
    return 1.0, unit


def top_of(values) -> float:
    """The upper end of an axis for these medians: the largest that is no outlier (beyond three times the range of the
    middle half, and more than twice as large as three quarters of them)."""
    values = np.asarray(values, np.float64)
    values = np.sort(values[np.isfinite(values) & (values > 0)])
    if not values.size:
        return 1.0
    first, third = np.quantile(np.log(values), [0.25, 0.75])
    fence = math.exp(third + max(3.0 * (third - first), math.log(2.0)))
    return float(values[values <= fence].max())


def ends_of(points: Points, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper end of the interval of a column; the middle where the file has none."""
    stem = name.removesuffix("_s")
    unit = name.removeprefix(stem)
    middle = points[name]
    ends = [points[f"{stem}_{side}{unit}"] for side in ("lo", "hi")]
    low, high = (np.where(np.isnan(end), middle, end) for end in ends)
    return np.minimum(low, middle), np.maximum(high, middle)


def rate_ends(points: Points, rates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper end of the interval of rates, from that of the times."""
    low, high = ends_of(points, "time_s")
    with np.errstate(divide="ignore", invalid="ignore"):
        ends = rates * points["time_s"] / high, rates * points["time_s"] / low
    return tuple(np.where(np.isnan(end), rates, end) for end in ends)


def limits(panel: Axes, values, others=()) -> None:
    """Limits of the y axis by medians: from zero, or logarithmic where they span a factor of twelve. `others` are in
    the range as well."""
    values = np.asarray([*values, *others], np.float64)
    values = values[np.isfinite(values) & (values > 0)]
    top = max([top_of(values), *others])
    if values.size and top / values.min() >= 12:
        panel.set_yscale("log", base=2)
        panel.set_ylim(values.min() / 1.4, top * 1.25)
        panel.yaxis.set_major_locator(LogLocator(base=2 if top / values.min() < 64 else 4, numticks=12))
        panel.yaxis.set_minor_locator(NullLocator())
    else:
        panel.set_ylim(0.0, top * 1.12)


def curve(panel: Axes, x, y, ends, look: Look, name: str, words: list[Words]) -> None:
    """Medians with the bars of their intervals inside the limits of the panel, which are set before; `words` of each.

    A bar that goes on ends in an arrow; a median outside is an arrow with its value.
    """
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    bottom, top = panel.get_ylim()
    low, high = (np.asarray(end, np.float64) for end in ends)
    inside = y <= top
    parts = panel.plot(x, np.minimum(y, 2 * top), label=label(name), **look.curve())
    parts.append(panel.vlines(x[inside], np.maximum(low, bottom)[inside], np.minimum(high, top)[inside],
                              color=look.colour, linewidth=1.1, alpha=0.8))  # fmt: skip
    arrows = (inside & (high > top), top, CARETUPBASE), (inside & (low < bottom), bottom, CARETDOWNBASE)
    for gone, edge, marker in arrows:
        for at in x[gone]:
            (arrow,) = panel.plot([at], [edge], marker=marker, color=look.colour, markersize=5, clip_on=False)
            arrow.set_in_layout(False)
            parts.append(arrow)
    for at, middle in zip(x[~inside], y[~inside], strict=True):
        parts.append(panel.annotate(
            f"↑ {middle:.3g}", (at, top), xytext=(0, 1), textcoords="offset points", ha="center", va="top",
            fontsize=7.5, color=look.colour, fontweight="bold", zorder=5,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5}))  # fmt: skip
    panel.figure.add_series(name, look.colour, *parts)
    panel.figure.add_marks(panel, name, zip(x, y, strict=True), words)


def ratio_axis(panel: Axes, text: str) -> None:
    """Ticks of a ratio, and the line at 1."""
    panel.axhline(1.0, color="black", linewidth=1.0, zorder=1, label=text)
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
