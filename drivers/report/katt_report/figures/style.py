"""The look of figures: one colour, marker and line style a variant and a dtype, for screen, print
and colour-blind readers (the palette is Okabe and Ito's; no two series differ by colour alone)."""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator
from matplotlib.transforms import ScaledTranslation

from katt_report import schema
from katt_report.groups import MOST_PANELS, Group, sort_dtypes, sort_variants
from katt_report.points import Points
from katt_report.text import bytes_text, power_text, seconds_text

PAGE_WIDTH = 10.8
GREY = "#555555"
MISSING = ": no result"


@dataclass(frozen=True)
class Plot:
    """A finished figure: `name` is its file stem, `caption` says how to read it, `alt` what it shows."""

    name: str
    title: str
    figure: Figure
    caption: str
    alt: str


@dataclass(frozen=True)
class Look:
    """Colour, marker, line style and hatch of one series."""

    colour: str
    marker: str
    line: str | tuple
    hatch: str

    def curve(self, **changes) -> dict:
        """Keyword arguments of `plot` and `errorbar`."""
        return {
            "color": self.colour, "marker": self.marker, "linestyle": self.line, "linewidth": 1.6,
            "markersize": 5.5, "markeredgecolor": "white", "markeredgewidth": 0.6, **changes,
        }  # fmt: skip

    def bar(self) -> dict:
        """Keyword arguments of `barh`."""
        return {"color": self.colour, "hatch": self.hatch, "edgecolor": "white", "linewidth": 0.5}


_BASELINE = Look("#D55E00", "s", "--", "")
_VARIANTS = [
    Look("#0072B2", "o", "-", "////"),
    Look("#56B4E9", "^", "-.", "...."),
    Look("#E69F00", "D", ":", "xxxx"),
    Look("#009E73", "v", (0, (5, 1, 1, 1, 1, 1)), "----"),
    Look("#CC79A7", "P", (0, (1, 2)), "++++"),
    Look("#000000", "X", (0, (8, 2)), "oo"),
]
_DTYPES = [
    Look("#333333", "o", "-", ""),
    Look("#009E73", "s", "--", "////"),
    Look("#CC79A7", "^", "-.", "...."),
    Look("#E69F00", "D", ":", "xxxx"),
]


def variant_looks(variants) -> dict[str, Look]:
    """The look of every variant: the baseline's is fixed, the others take theirs in order."""
    looks = iter(_VARIANTS * (1 + len(variants) // len(_VARIANTS)))
    return {name: _BASELINE if name == schema.BASELINE else next(looks) for name in sort_variants(variants)}


def dtype_looks(dtypes) -> dict[str, Look]:
    """The look of every dtype; the three common ones keep theirs whatever else was measured."""
    order = ["f32", "bf16", "f16"] + [d for d in sort_dtypes(dtypes) if d not in ("f32", "bf16", "f16")]
    return {name: replace(_DTYPES[min(index, len(_DTYPES) - 1)]) for index, name in enumerate(order)}


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


def formula(name: str) -> str:
    """A name as a part of a label with a formula."""
    return name.replace("$", r"\$")


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


def grid(count: int, columns: int, height: float = 3.0, **share) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels in rows of at most three (four make a square), the empty places removed."""
    columns = 2 if columns == count == 4 else max(1, min(columns, 3, count))
    rows = math.ceil(count / columns)
    width = {1: 7.0, 2: 9.6, 3: PAGE_WIDTH}[columns]
    figure = Figure(figsize=(width, height * rows), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08, hspace=0.04, wspace=0.04)
    axes = figure.subplots(rows, columns, squeeze=False, **share).ravel().tolist()
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]


def columns_of(group: Group, panels: list) -> int:
    """As many columns as dtypes when facets make the rows, else as many panels as fit."""
    return len(group.dtypes) if group.facets and len(group.dtypes) > 1 else len(panels)


def panels_note(shown: int, group: Group) -> str:
    """A sentence for the caption when not all panels fit."""
    total = sum(len(rows.values("dtype")) for _, rows in group.panels())
    return f" The first {shown} of {total} combinations are drawn; the table has all." if total > shown else ""


def legend_below(axes: Axes, columns: int = 2) -> None:
    """A legend under the x label, where no data can be; its labels may hold formulas."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        below = axes.transAxes + ScaledTranslation(0, -0.5, axes.figure.dpi_scale_trans)
        legend = axes.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, 0.0), bbox_transform=below,
                             ncols=columns, borderaxespad=0.0, columnspacing=1.2)  # fmt: skip
        for text in legend.get_texts():
            text.set_parse_math(True)


def legend_of_figure(figure: Figure, axes: list[Axes]) -> None:
    """One legend for all panels, above them."""
    entries = {}
    for panel in axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    labels = sorted(entries, key=lambda label: label.endswith(MISSING))
    legend_above(figure, [entries[label] for label in labels], labels)


def legend_above(figure: Figure, handles: list, labels: list[str]) -> None:
    """A legend above all panels, in as many columns (six at most) as the figure is wide for."""
    for columns in range(min(len(labels), 6), 0, -1):
        legend = figure.legend(handles, labels, loc="outside upper left", ncols=columns)
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


def x_axis(axes: Axes, values, title: str) -> None:
    """Ticks at the measured values; logarithmic when they span more than a factor of four."""
    values = np.unique(np.asarray(values))
    if values.size and values[0] > 0 and values[-1] / values[0] > 4:
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


def bars_of(points: Points, mid: str, low: str, high: str, scale=1.0) -> np.ndarray:
    """Distances from the middle to both interval ends for `errorbar`; 0 when the file has none."""
    centre = points[mid]
    ends = np.array([centre - points[low], points[high] - centre])
    return np.where(np.isfinite(ends), np.maximum(ends, 0.0), 0.0) / scale
