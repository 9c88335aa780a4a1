"""The comparison for people: a table for the terminal, a page with a forest plot."""

import math
import textwrap

from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from katt_report.compare import (
    BASELINE,
    COMPARABLE,
    ERROR_GROWTH,
    IMPROVED,
    LEVEL,
    LOST,
    MEMORY_GROWTH,
    NEW,
    REGRESSION,
    SAME,
    UNCLEAR,
    Comparison,
    Row,
)  # fmt: skip
from katt_report.figures import style
from katt_report.pages.markup import bullets, escape, page, status, table
from katt_report.pages.output import add_figure
from katt_report.text import columns_text, ratio_text, seconds_text, significant

_ORDER = (REGRESSION, LOST, UNCLEAR, IMPROVED, SAME, BASELINE, NEW)
_LOOKS = {
    REGRESSION: ("#D55E00", "v"), IMPROVED: ("#009E73", "^"), SAME: ("#0072B2", "o"), UNCLEAR: ("#777777", "D"),
    BASELINE: ("#333333", "s"),
}  # fmt: skip
_MOST_ROWS = 80


def table_text(found: Comparison) -> str:
    """The rows that changed, worst first, then the notes and the verdict as the last line."""
    rows = [row for row in _sorted(found.rows) if row.verdict != BASELINE] or _sorted(found.rows)
    shown = [row for row in rows if row.verdict != SAME] or rows
    lines = [("", "row", "metric", "old", "new", "new/old", "interval", "why")]
    lines += [(row.verdict, row.name, row.metric, *_values(row), "; ".join(row.reasons)) for row in shown]
    text = columns_text(lines)
    hidden = len(found.rows) - len(shown)
    if hidden:
        text.append(f"({hidden} more rows without a change)")
    text += [f"note: {note}" for note in found.notes]
    return "\n".join([*text, found.verdict])


def compare_report(found: Comparison, old: str, new: str) -> dict[str, bytes]:
    """compare.html and its figure as SVG and PNG."""
    files, body = {}, [bullets([found.verdict, *found.notes], "caution" if found.worse or found.untold else "headline")]
    plot = forest(found)
    if plot:
        body.append(f"<h2>{escape(plot.title)}</h2>")
        body.append(add_figure(plot, files))
    heads = [("verdict", ""), ("row", ""), ("metric", ""), ("old", "n"), ("new", "n"), ("new / old", "n"),
             ("interval", "n"), ("why", "")]  # fmt: skip
    cells = [
        [status(row.verdict), escape(row.name), escape(row.metric), *(escape(text) for text in _values(row)),
         escape("; ".join(row.reasons))]
        for row in _sorted(found.rows)
    ]  # fmt: skip
    body.append(f"<h2>All rows</h2>{table(heads, cells)}<h2>How it is judged</h2>{bullets(_rules(found), 'plain')}")
    files["compare.html"] = page("Katt: comparison", f"{old} → {new}", "\n".join(body)).encode()
    return files


def _rules(found: Comparison) -> list[str]:
    drift = f"{significant(found.drift[0], 2)}× to {significant(found.drift[1], 2)}×"
    return [
        "The ratio is new over old, more is faster: of the paired speedups over the baseline where both files have "
        "them (interleaved rounds of one run, so the machine's own speed cancels), else of the speeds.",
        "A regression needs both: intervals of old and new that do not overlap, and a change of more than "
        f"{100 * found.tolerance:g} %. The intervals are of level {100 * found.level:.4g} %, so that all rows "
        f"together raise a false alarm in at most {100 * (1 - LEVEL):g} % of comparisons of equal programs.",
        "Unclear: the change is larger than the tolerance, but the intervals overlap (more rounds would decide) or the "
        f"baseline itself ran more than {COMPARABLE:g} times faster or slower than before (repeat the run).",
        "Rows without a paired speedup must also leave the range in which the baseline's times and the ceilings moved "
        f"between the files, here {drift}; where that is wider than {COMPARABLE:g}, rows within it are unclear. The "
        "baseline's own rows are shown only.",
        "Where more rows are unclear than are judged, or none is, the comparison cannot tell.",
        f"Also a regression: a row that was ok and now fails, an error more than {ERROR_GROWTH:g} times as large, "
        f"memory more than {100 * (MEMORY_GROWTH - 1):.0f} % larger. Lost: measured before, now missing, "
        f"refused or suspect, {'which was allowed here' if found.allow_lost else 'which counts as a regression'}.",
    ]


def _sorted(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (_ORDER.index(row.verdict), row.ratio or math.inf))


def _values(row: Row) -> tuple[str, str, str, str]:
    if row.ratio is None:
        return "", "", "", ""
    text = seconds_text if row.metric == "time" else lambda value: f"{ratio_text(value)}×"
    high = f"{row.hi:.3f}" if row.hi is not None and row.hi < 100 else "∞"
    return text(row.old), text(row.new), f"{row.ratio:.3f}", f"{row.lo:.3f}–{high}"


def forest(found: Comparison) -> style.Plot | None:
    """Every ratio with its interval around the line at 1 and the tolerance band."""
    rows = [row for row in _sorted(found.rows) if row.ratio]
    if not rows:
        return None
    hidden = len(rows) - _MOST_ROWS
    rows = rows[:_MOST_ROWS]
    ratios = [row.ratio for row in rows]
    # Intervals of few samples may be huge: the axis follows the ratios, arrows of lines leave it.
    low = min(0.8, min(ratios) / 1.15, *(max(row.lo, min(ratios) / 1.6) for row in rows))
    high = max(1.25, max(ratios) * 1.15, *(min(row.hi or math.inf, max(ratios) * 1.6) for row in rows))
    with style.context():
        figure_, (panel,) = style.grid(1, 1)
        figure_.set_size_inches(9.6, 1.1 + 0.23 * len(rows))
        panel.axvspan(1 - found.tolerance, 1 + found.tolerance, color="#e4e4e4", linewidth=0, zorder=0)
        panel.axvline(1.0, color="black", linewidth=1.0)
        seen = set()
        for place, row in enumerate(rows):
            colour, marker = _LOOKS[row.verdict]
            ends = max(row.lo, low / 2), min(row.hi or math.inf, high * 2)
            parts = panel.plot(ends, [place, place], color=colour, linewidth=1.5)
            parts += panel.plot(row.ratio, place, marker, color=colour, markersize=6, markeredgecolor="white",
                                markeredgewidth=0.5, label=None if row.verdict in seen else row.verdict)  # fmt: skip
            before, after, ratio, between = _values(row)
            words = row.name, f"{ratio} ({between}): {row.metric} {before} → {after}", "; ".join([row.verdict, *row.reasons])
            figure_.add_series(row.verdict, colour, *parts)
            figure_.add_marks(panel, row.verdict, [(row.ratio, place)], [words])
            seen.add(row.verdict)
        panel.set_xscale("log")
        panel.set_xlim(low, high)
        ticks = [t for t in (0.05, 0.1, 0.2, 0.25, 0.33, 0.5, 0.67, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 4, 5, 10, 20)
                 if low <= t <= high]  # fmt: skip
        if high / low > 6:
            ticks = [t for t in ticks if t not in (0.9, 1.1, 0.8, 1.25, 0.33, 3)]
        panel.xaxis.set_major_locator(FixedLocator(ticks))
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.set_yticks(
            range(len(rows)), [textwrap.shorten(row.name, 60, placeholder=" …") for row in rows], fontsize=8
        )
        panel.set_ylim(len(rows) - 0.4, -0.6)
        panel.grid(axis="y", visible=False)
        panel.set_xlabel("← slower      new / old      faster →")
        style.legend_of_figure(figure_, [panel])
    more = f" The first {_MOST_ROWS} rows are drawn, {hidden} follow in the table." if hidden > 0 else ""
    return style.Plot(
        "compare",
        "New over old",
        figure_,
        "Ratio of new to old speed with its interval, worst first; right of 1 is faster. The grey band is the "
        "tolerance. Only a marker outside the band whose line does not reach 1 is a regression or an improvement."
        + more,
        "Forest plot of the ratio of new to old speed of every row.",
    )
