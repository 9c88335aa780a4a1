"""The page and the table of a history."""

from katt_report.figures.history import panels
from katt_report.pages.markup import bullets, escape, page, table
from katt_report.pages.output import add_figure
from katt_report.published.history import Change, History, Series
from katt_report.text import columns_text, ratio_text

_RULES = (
    "A point is the paired speedup over naive in one run, so the machine's own speed cancels. Runs are sorted by the date "
    "of their commit where the source tree's history holds it, else by their own; runs of one commit by their time.",
    "Change points: the partition of the logarithms into segments of one level, their median, with the least "
    "weighted squares and 3 ln N a change, N the measurements of the machine (optimal partitioning, Jackson et al. 2005).",
    "A measurement's variance is that of its own interval and one between runs, which the differences of neighbouring "
    "runs of all rows of the machine tell. One disturbed run between others is no change (squares are cut off: Fearnhead & "
    "Rigaill, JASA 114, 2019); at the end one run is shown as a change that one run alone shows: measure again.",
)


def summary(found: History) -> list[str]:
    """A sentence a machine."""
    lines = []
    for machine in found.machines:
        own = [series for series in found.series if series.machine == machine]
        runs = sorted({(m.order, m.commit) for series in own for m in series.measurements})
        changed = [series for series in own if series.changes]
        slower = sum(series.levels[-1] < series.levels[0] for series in changed)
        verdict = (f"{len(changed)} changed ({slower} slower at the end than at the beginning)" if changed
                   else "none changed")  # fmt: skip
        lines.append(
            f"{machine}: {len(own)} rows over {len(runs)} runs, {runs[0][1][:7]} to {runs[-1][1][:7]}: {verdict}."
        )
    if found.single:
        lines.append(f"{found.single} rows are in one run alone and have no history.")
    return lines


def _change_cells(series: Series, change: Change) -> list[str]:
    at = series.measurements[change.index]
    return [f"{100 * (change.factor - 1):+.1f} %", f"{ratio_text(change.before)}× → {ratio_text(change.after)}×",
            at.commit[:7], at.started_at[:10], str(change.runs), series.name]  # fmt: skip


_CHANGE_HEADS = ["change", "speedup", "commit", "measured", "runs", "row"]


def table_text(found: History) -> str:
    """The changes by machine, the largest rows first, then a sentence a machine."""
    text = []
    for machine in found.machines:
        changes = [
            (series, change) for series in found.series if series.machine == machine for change in series.changes
        ]
        if changes:
            lines = columns_text([_CHANGE_HEADS, *(_change_cells(*each) for each in changes)])
            text += [f"{machine}:", *(f"  {line}" for line in lines)]
            text.append("")
    return "\n".join([*text, *summary(found)])


def history_report(found: History) -> dict[str, bytes]:
    """history.html and a figure a machine as SVG and PNG."""
    files, body = {}, [bullets(summary(found), "headline")]
    for machine in found.machines:
        own = [series for series in found.series if series.machine == machine]
        plot = panels(found, machine)
        body.append(f"<h2>{escape(machine)}</h2>")
        changes = [_change_cells(series, change) for series in own for change in series.changes]
        if changes:
            heads = [(text, "n" if index < 2 else "") for index, text in enumerate(_CHANGE_HEADS)]
            body.append(table(heads, [[escape(cell) for cell in cells] for cells in changes]))
        body.append(add_figure(plot, files))
        heads = [("row", ""), ("runs", "n"), ("first", "n"), ("last", "n"), ("level", "n"), ("changes", "n")]
        rows = [[escape(s.name), str(len(s.measurements)), *(f"{ratio_text(value)}×" for value in (
            s.measurements[0].ratio.mid, s.measurements[-1].ratio.mid, s.levels[-1])), str(len(s.changes) or "")]
            for s in own]  # fmt: skip
        body.append(f"<details><summary>All {len(own)} rows</summary>{table(heads, rows)}</details>")
    body.append(f"<h2>How it is computed</h2>{bullets(list(_RULES), 'plain')}")
    files["history.html"] = page("Katt: speedups over commits", ", ".join(found.machines), "\n".join(body)).encode()
    return files
