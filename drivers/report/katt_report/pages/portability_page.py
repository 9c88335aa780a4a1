"""The page and the table of performance portability."""

import json

from katt_report.errors import InputError
from katt_report.figures import portability as figures
from katt_report.load import Results
from katt_report.pages.markup import bullets, escape, page, small, table
from katt_report.pages.output import add_figure, render
from katt_report.published.files import freshness_of_machines
from katt_report.published.fresh import Share, SourceTree
from katt_report.published.portability import LIMITS, OURS, PEERS, ZERO, Cell, Operation, Portability, lines_below
from katt_report.statistics import Interval
from katt_report.text import columns_text, percent_text, significant

_TITLES = {
    LIMITS: "Against each machine's measured limit",
    PEERS: "Against the best program on each machine",
}
_EXPLAINED = {
    LIMITS: "The share of the measured ceiling that binds a row (arithmetic or bandwidth), at most 1.",
    PEERS: "The time of the fastest program at a point over Katt's, at most 1, at the points that a peer ran, too.",
}
_RULES = (
    "Of every point Katt's fastest variant counts that ran, the naive ones apart: what auto takes. Of several "
    "measurements of a point on one machine the one with the most threads counts, of these the latest.",
    "An operation is an operator, pass and dtype. Its points are those that all of its machines have; where there are "
    "none, those of the most machines that have some in common. A dash: not measured at these points.",
    "The efficiency of a machine is the geometric mean over the points. P is the harmonic mean over the machines "
    "(Pennycook, Sewall & Lee, A metric for performance portability, PMBS 2016; Implications of a metric for "
    "performance portability, Future Generation Computer Systems 92, 2019). It is 0 where a machine refuses a point.",
    "Intervals: both means grow with each of their terms, so those of all lower and of all upper ends of the rows' "
    "95 % intervals bound them. Errors that a machine's rows share stay inside; independent ones would cancel in "
    "part, so the interval is wider than it need be.",
    "A row above its ceiling counts as 1: its data came from a nearer cache than the limit, or the limit was disturbed.",
)  # fmt: skip


def interval_text(value: Interval) -> str:
    """`0.56 (0.51–0.58)`."""
    return f"{_number(value.mid)} {_bounds(value)}"


def _number(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 or value == 0 else significant(value, 2)


def _bounds(value: Interval) -> str:
    return f"({_number(value.lo)}–{_number(value.hi)})"


def summary(found: Portability) -> list[str]:
    """P in the mean of all operations, a sentence a kind of efficiency, and the operations that a machine lacks."""
    lines = []
    for kind, words in ((LIMITS, "of the machines' measured limits"), (PEERS, "beside the best program there")):
        mean = found.mean(kind)
        if mean:
            value, count = mean
            over = sorted({len(p.cells) for p in found.operations[kind] if OURS in p.portability})
            ends = " to ".join(str(number) for number in dict.fromkeys([over[0], over[-1]]))
            lines.append(f"Katt's performance portability is {interval_text(value)} {words}: the geometric mean of "
                         f"{count} operation{'s'[: count != 1]}, each over the {ends} machines that have it.")  # fmt: skip
    for kind, operations in found.operations.items():
        for p in operations:
            lacking = [m for m, cells in p.cells.items() if cells[OURS].efficiency == ZERO]
            if lacking and kind == LIMITS:
                lines.append(f"{p.name} in {p.dtype} is not supported on {', '.join(lacking)}: P = 0.")
    if not lines:
        lines.append("The files have no operation in common between machines: P needs the same points on two or more.")
    return lines


def _heads(found: Portability) -> list[str]:
    return ["operator", "pass", "dtype", "points", "P", *found.machines]


def _cells(operation: Operation, machines: list[str], join=lambda value, more: f"{value} {more}".strip()) -> list[str]:
    p = operation.portability.get(OURS)
    return [operation.op, operation.pass_name, operation.dtype, str(operation.points),
            join(_number(p.mid) if p else "–", _bounds(p) if p else ""),
            *(_cell(operation.cells.get(machine, {}).get(OURS), operation.points, join) for machine in machines)]  # fmt: skip


def _cell(cell: Cell | None, points: int, join) -> str:
    if not cell:
        return "–"
    if cell.refused:
        return join("0", f"({cell.refused} of {points} not supported)")
    value = cell.efficiency
    return join(percent_text(value.mid), f"({significant(100 * value.lo, 2)}–{significant(100 * value.hi, 2)})")


def table_text(found: Portability) -> str:
    """Both tables for the terminal, then the summary."""
    text = []
    for kind, operations in found.operations.items():
        several = [p for p in operations if p.portability] or operations
        if operations:
            lines = columns_text([_heads(found), *(_cells(operation, found.machines) for operation in several)])
            text += [f"{_TITLES[kind]}:", *(f"  {line}" for line in lines)]
            if len(several) < len(operations):
                text.append(f"  ({len(operations) - len(several)} more operations that one machine has alone)")
            text.append("")
    return "\n".join([*text, *summary(found)])


def _dates(found: Portability, parts: list[Results]) -> dict[str, str]:
    """When the rows of each machine were measured: `2026-11-22 to 2026-11-26`."""
    days: dict[str, list[str]] = {}
    for machine, _, _, _, started in _runs(found, parts):
        days.setdefault(machine, []).append(started[:10])
    return {machine: " to ".join(sorted({min(each), max(each)})) for machine, each in days.items()}


def _notes(found: Portability, parts: list[Results], tree: SourceTree | None) -> dict[str, str]:
    """Text below the name of a machine: when it was measured, and with a source tree whether that still holds."""
    notes = _dates(found, parts)
    fresh = freshness_of_machines(parts, tree) if tree else {}
    return {m: f"{when}\n{_fresh_text(fresh[m])}" if m in fresh else when for m, when in notes.items()}


def figure_file(found: Portability, parts: list[Results], tree: SourceTree | None, suffix: str) -> bytes:
    """The shares of the limits as a file; throws InputError where there is nothing to draw."""
    plot = figures.limits(found, _notes(found, parts, tree))
    if not plot:
        raise InputError("--figure", "nothing to draw", "files with points that two machines have in common")
    svg, png = render(plot.figure)
    return svg if suffix == ".svg" else png


def _fresh_text(share: Share) -> str:
    return "fresh" if share.is_fresh else f"{percent_text(share.stale_share)} stale"


def portability_report(found: Portability, parts: list[Results], tree: SourceTree | None) -> dict[str, bytes]:
    """portability.html, portability.json and every figure as SVG and PNG; with a source tree also how fresh the rows of
    every machine are, and the navigation chart."""
    notes = _notes(found, parts, tree)
    plots = [figures.limits(found, notes), figures.limits(found, notes, every=True), *figures.cascades(found),
             figures.navigation(found, lines_below(tree.root)) if tree else None]  # fmt: skip
    files, drawn = {}, []
    for plot in plots:
        if plot:
            drawn.append(f"<h2>{escape(plot.title)}</h2>")
            drawn.append(add_figure(plot, files))
    body = [bullets(summary(found), "headline"), *drawn[:2]]
    heads = [(text, "" if index < 3 else "n") for index, text in enumerate(_heads(found))]
    for kind, operations in found.operations.items():
        if operations:
            several, alone = (
                table(heads, [[_html(cell) for cell in _cells(p, found.machines, _mark)] for p in chosen])
                for chosen in ([p for p in operations if p.portability], [p for p in operations if not p.portability])
            )
            body.append(f"<h2>{escape(_TITLES[kind])}</h2><p>{escape(_EXPLAINED[kind])}</p>{several}")
            count = sum(not p.portability for p in operations)
            if count:
                body.append(f"<details><summary>{count} operations of one machine</summary>{alone}</details>")
    body += drawn[2:]
    if "navigation.svg" not in files:
        body.append("<p>There is no navigation chart: it needs a source tree of Katt, and for one operation files of all "
                    "machines whose rows name their code.</p>")  # fmt: skip
    body.append(f"<h2>How it is computed</h2>{bullets(list(_RULES), 'plain')}")
    body.append(f"<h2>Files</h2>{_provenance(found, parts)}")
    title = "Katt: performance portability"
    files["portability.html"] = page(title, ", ".join(found.machines), "\n".join(body)).encode()
    files["portability.json"] = (json.dumps(as_dict(found), indent=1, allow_nan=False) + "\n").encode()
    return files


def _mark(value: str, more: str) -> str:
    return f"{value}\0{more}"


def _html(cell: str) -> str:
    value, _, more = cell.partition("\0")
    return escape(value) + small(more)


def _provenance(found: Portability, parts: list[Results]) -> str:
    heads = [("machine", ""), ("file", ""), ("run", ""), ("commit", ""), ("started", "")]
    return table(heads, [[escape(text) for text in row] for row in _runs(found, parts)])


def _runs(found: Portability, parts: list[Results]) -> list[list[str]]:
    machines = {(case.source, case.run): case.machine for case in found.cases}
    return sorted(
        [machines[key], *key, str(about.get("commit", ""))[:12] + (" (modified)" if about.get("dirty") else ""),
         str(about.get("started_at", ""))]
        for part in parts for key, about in part.runs.items() if key in machines
    )  # fmt: skip


def as_dict(found: Portability) -> dict:
    """Plain values for JSON."""

    def plain(value: Interval, **more) -> dict:
        return {"value": value.mid, "lo": value.lo, "hi": value.hi, **more}

    return {
        "machines": found.machines,
        "interval": "means of all lower and of all upper ends of the rows' 95 % intervals",
        "operations": [
            {
                "op": p.op, "pass": p.pass_name, "dtype": p.dtype, "against": kind, "points": p.points,
                "machines": {
                    machine: {name: plain(cell.efficiency, refused=cell.refused) for name, cell in cells.items()}
                    for machine, cells in p.cells.items()
                },
                "portability": {name: plain(value) for name, value in p.portability.items()},
            }
            for kind, operations in found.operations.items() for p in operations
        ],
    }  # fmt: skip
