"""The report page: the result in words, the figures, every point, and the provenance of the
numbers."""

import json
import math

import numpy as np

from katt_report import schema
from katt_report.figures import draw_all
from katt_report.figures.shares import TITLE as SHARES
from katt_report.figures.style import Plot
from katt_report.groups import Group, groups, sort_dtypes, sort_variants
from katt_report.headline import cautions, headline
from katt_report.load import Results
from katt_report.pages.machines import TITLE as MACHINES
from katt_report.pages.machines import machines_section
from katt_report.pages.markup import bullets, escape, figure, page, small, status, table
from katt_report.pages.output import render
from katt_report.pages.shares_table import shares_table
from katt_report.text import (
    bytes_text,
    error_text,
    list_text,
    percent_text,
    rate_text,
    ratio_text,
    seconds_text,
    significant,
    value_text,
)  # fmt: skip

HOW_TO_READ = [
    "A point is one value for every axis; each variant and tile at it is a row. Outputs are checked against a "
    "float64 reference before and after the timing; what fails the check, or is refused, is a row with its reason.",
    "The variants and tiles of a point are timed in interleaved rounds, each once a round in random order. A "
    "disturbance of the machine that lasts longer than a round hits all of them.",
    "Times are medians. Intervals are 95 % intervals of the median from order statistics: they assume nothing about "
    "the distribution of the noise.",
    f"The speedup is paired: the median of the ratios to {schema.BASELINE} round by round, with its own interval. "
    "It is steadier than the quotient of two medians, and it is what to compare between runs. Times are not.",
    "Workspace and total memory are measured peaks of the allocation tracker, not formulas; of another program what "
    "its own allocator says, or a dash where it says nothing.",
    "Throughput counts useful work: the FLOPs of the visible scores, or the least traffic in bytes. Ceilings are "
    "measured in the same run with the same threads.",
]


def report(results: Results) -> dict[str, bytes]:
    """The files of a report by name: report.html and every figure as SVG and PNG."""
    parts = [(group, draw_all(group)) for group in groups(results)]
    files, body = {}, []
    lines = headline(results)
    compared = machines_section(results)
    body.append(_navigation(parts, bool(compared)))
    body.append('<section id="short">')
    for title, sentence in lines:
        body.append(f"<h3>{escape(title)}</h3>" if len(lines) > 1 else "")
        body.append(bullets(sentence, "headline"))
    doubts = cautions(results)
    body.append((bullets(doubts, "caution") if doubts else "") + "</section>")
    for group, plots in parts:
        body.append(f'<section id="{_anchor(group)}"><h2>{escape(_capital(group.title))}</h2>')
        body.append(f"<p>{escape(_constants(group))}</p>")
        if not plots:
            body.append("<p>No point of this group was measured, so there is nothing to draw; the table says why.</p>")
        for plot in plots:
            body.append(f"<h3>{escape(plot.title)}</h3>")
            body.append(_add(plot, files))
            if plot.title == SHARES:
                body.append(shares_table(group))
        body.append(f"<h3>All points</h3>{points_table(group)}</section>")
    body += [compared, _ceilings(results), _provenance(results), _how_to_read(results)]
    title, under = _title(results, parts)
    files["report.html"] = page(title, under, "\n".join(part for part in body if part)).encode()
    return files


def _add(plot: Plot, files: dict[str, bytes]) -> str:
    svg, png = render(plot.figure)
    files |= {f"{plot.name}.svg": svg, f"{plot.name}.png": png}
    return figure(svg, plot.caption, plot.alt, plot.name, plot.figure.get_figwidth())


def _anchor(group: Group) -> str:
    return "group_" + "".join(c if c.isalnum() else "-" for c in group.title)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _navigation(parts, machines: bool) -> str:
    links = [("#" + _anchor(group), _capital(group.title)) for group, _ in parts]
    links += [("#machines", MACHINES)] if machines else []
    links += [("#ceilings", "Ceilings"), ("#provenance", "Provenance"), ("#reading", "How to read it")]
    return "<nav>" + " ".join(f'<a href="{escape(link)}">{escape(text)}</a>' for link, text in links) + "</nav>"


def _title(results: Results, parts) -> tuple[str, str]:
    titles = dict.fromkeys(str(about["title"]) for about in results.runs.values() if about.get("title"))
    operators = dict.fromkeys(f"{group.key[0]} {group.key[1]}" for group, _ in parts)
    title = list_text(list(titles or operators))
    devices = dict.fromkeys(str(a["device"]) for a in results.runs.values() if a.get("device"))
    commits = dict.fromkeys(
        str(a["commit"])[:12] + (" (modified)" if a.get("dirty") else "")
        for a in results.runs.values() if a.get("commit")
    )  # fmt: skip
    days = sorted({str(a["started_at"])[:10] for a in results.runs.values() if a.get("started_at")})
    under = [list_text(list(devices))] if devices else []
    under += [f"{list_text(days[:1] + days[-1:]) if len(days) > 1 else days[0]}"] if days else []
    under += [f"commit {list_text(list(commits))}"] if commits else []
    under += [", ".join(results.points.values("source"))]
    return f"Katt: {title[:1].lower() + title[1:] if title[1:2].islower() else title}", " · ".join(under)


def _constants(group: Group) -> str:
    """The axes that are the same for every point: the page names them once instead of in every
    row."""
    points = group.points
    same = [name for name in points.identity if len(points.values(name)) == 1 and name not in _SPOKEN]
    values = {name: points.values(name)[0] for name in same}
    parts = [f"{name} {value_text(value)}" for name, value in values.items() if value not in ("", 0, -1)]
    off = [name for name in ("causal", "cold") if values.get(name) == 0]
    text = f"At every point: {', '.join(parts)}." if parts else ""
    if "cold" in off:
        text += " Caches are warm: each sample finds what the one before left."
    elif "cold" in same:
        text += " Caches are cold: they are flushed before each sample."
    return text + (" Not causal." if "causal" in off and group.key[0] == "attention" else "")


_SPOKEN = {"op", "pass", "backend", "variant"}
_HEADS = ["time (95 %)", "throughput", "of ceiling", "speedup (95 %)", "workspace", "total", "max error (mean)",
          "samples"]  # fmt: skip


def points_table(group: Group) -> str:
    """Every row of the group: the axes that vary, then the results, or the reason why there are none."""
    points = group.points
    # seq_kv beside an equal seq_q would be a column that says nothing.
    hidden = {*_SPOKEN, *group.x_also, *schema.TILES}
    axes = [name for name in points.identity if len(points.values(name)) > 1 and name not in hidden]
    axes.sort(key=lambda name: ("label", "dtype").index(name) if name in ("label", "dtype") else 2)
    tiled = bool(np.any(points["tile_q"] > 0) or np.any(points["tile_kv"] > 0))
    dtypes, variants = sort_dtypes(points.values("dtype")), sort_variants(points.values("variant"))

    def place(row: dict) -> tuple:
        along = (dtypes.index(row[name]) if name == "dtype" else row[name] for name in axes)
        return (*along, variants.index(row["variant"]), row["tile_q"], row["tile_kv"])

    heads = [("N" if name == group.x and group.symbol == "N" else name, "" if points[name].dtype.kind == "U" else "n")
             for name in axes]  # fmt: skip
    heads += [("variant", "")] + [("tile", "n")] * tiled + [("status", "")] + [(text, "n") for text in _HEADS]
    paired = bool(np.any(np.isfinite(points["paired_ratio"])))
    heads += [("paired ratio (95 %)", "n")] * paired
    shared = bool(np.nansum(points["sent_bytes"]) > 0)  # by ranks
    heads += [(text, "n") for text in _EXCHANGED] * shared
    cells, apart, before = [], set(), None
    for index, row in enumerate(sorted(points.rows(), key=place)):
        key = tuple(row[name] for name in axes)
        if before is not None and key != before:
            apart.add(index)
        before = key
        line = [escape(value_text(row[name])) for name in axes]
        line += [escape(row["variant"]) + small(row["engine"])]
        line += [f"{row['tile_q']}&nbsp;×&nbsp;{row['tile_kv']}" if row["tile_q"] or row["tile_kv"] else ""] * tiled
        line += [status(row["status"])] + _results(row, group)
        measured = row["status"] == "ok"
        cells.append(line + _paired(row) * (paired and measured) + _exchanged(row) * (shared and measured))
    return table(heads, cells, apart)


def _results(row: dict, group: Group) -> list[str]:
    if row["status"] != "ok":
        return [escape(row["reason"] or "no reason given")]
    rate = row[group.rate] * (1e12 if group.rate == "tflops" else 1e9)
    known = math.isfinite(row["speedup"]) and row["variant"] != schema.BASELINE
    speedup = f"{ratio_text(row['speedup'])}×" if known else ""
    # The bytes of the host and of the device, when both hold memory.
    parts = [f"{bytes_text(row[name + '_bytes'])} {name}" for name in ("host", "device") if row[name + "_bytes"] > 0]
    peaks = [
        "none" if row["workspace_bytes"] == 0 else bytes_text(row["workspace_bytes"]),
        escape(bytes_text(row["total_bytes"])) + small(" + ".join(parts) if len(parts) > 1 else ""),
    ]
    return [
        escape(seconds_text(row["time_s"])) + small(_range(row["time_lo_s"], row["time_hi_s"], seconds_text)),
        escape(rate_text(rate, group.rate_unit)),
        escape(f"{percent_text(row['ceiling_fraction'])} {row['ceiling']}" if row["ceiling"] else "–"),
        escape(speedup) + small(_range(row["speedup_lo"], row["speedup_hi"], ratio_text) if speedup else ""),
        *peaks,
        escape(error_text(row["max_abs_err"])) + small(error_text(row["mean_abs_err"])),
        str(row["samples"]),
    ]


def _paired(row: dict) -> list[str]:
    """The speed relative to the reference point of the same rounds."""
    if not math.isfinite(row["paired_ratio"]):
        return ["–"]
    ends = _range(row["paired_ratio_lo"], row["paired_ratio_hi"], ratio_text)
    return [escape(f"{ratio_text(row['paired_ratio'])}× {row['paired_to']}") + small(ends)]


_EXCHANGED = ["bus bandwidth", "sent by a rank", "messages", "communicating", "overlapped"]


def _exchanged(row: dict) -> list[str]:
    """The bytes that ranks sent each other in a run, and the seconds that it took."""
    busbw, sent, messages, inside, hidden = (row[name] for name in schema.EXCHANGE)
    if not math.isfinite(sent):  # MPI by itself
        return [escape(rate_text(busbw * 1e9, "B/s")) if busbw > 0 else "–", *["–"] * 4]
    return [
        escape(rate_text(busbw * 1e9, "B/s")) if busbw > 0 else "–",
        escape(bytes_text(sent)),
        significant(messages),
        escape(percent_text(inside)),
        escape(percent_text(hidden)),
    ]


def _range(low: float, high: float, text) -> str:
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    # Both ends in the unit of the upper end, so that the unit stands once.
    first, last = text(low), text(high)
    same = first.partition(" ")[2] == last.partition(" ")[2]
    return f"{first.partition(' ')[0] if same else first}–{last.partition(' ')[0] if same else last}"


def _ceilings(results: Results) -> str:
    head = '<section id="ceilings"><h2>Measured ceilings</h2>'
    if not results.ceilings:
        return head + "<p>The file holds none: the run measured no ceilings.</p></section>"
    many = len({(c.source, c.run) for c in results.ceilings}) > 1
    rows = []
    for c in results.ceilings:
        row = [c.name, rate_text(c.value, c.unit), str(c.threads), bytes_text(c.bytes) if c.bytes else "–"]
        rows.append([escape(text) for text in row + ([c.source, c.run] if many else [])])
    heads = [("ceiling", ""), ("value", "n"), ("threads", "n"), ("working set", "n")]
    return head + table(heads + ([("file", ""), ("run", "")] if many else []), rows) + "</section>"


_FIRST = (
    "title", "command", "started_at", "finished_at", "status", "device", "backend", "cores", "isa", "l1d_bytes",
    "l2_bytes", "l3_bytes", "memory_bytes", "os", "load_average", "katt_version", "commit", "dirty", "build_type",
    "compiler", "peers",
)  # fmt: skip
_LONG = ("compile_flags", "environment", "settings", "kokkos_config", "sweep")
_BYTES = ("l1d_bytes", "l2_bytes", "l3_bytes", "memory_bytes")


def _provenance(results: Results) -> str:
    head = '<section id="provenance"><h2>Provenance</h2>'
    if not results.runs:
        return head + "<p>The file does not say where its numbers come from: /runs is missing.</p></section>"
    names = dict.fromkeys(name for about in results.runs.values() for name in about)
    others = [name for name in names if name not in (*_FIRST, *_LONG)]
    names = [name for name in (*_FIRST, *others, *_LONG) if name in names]
    runs = list(results.runs.items())
    rows = []
    for name in names:
        values = [_attribute(name, about.get(name, "")) for _, about in runs]
        # Facts common to all runs stand once.
        same = len(set(values)) == 1
        who = [""] if same else [f"{key[1]}: " if len(results.points.values("source")) == 1 else f"{key[0]} {key[1]}: "
                                 for key, _ in runs]  # fmt: skip
        shown = values[:1] if same else values
        text = "<br>".join(f"<b>{escape(w)}</b>{v}" if w else v for w, v in zip(who, shown, strict=True))
        rows.append(f'<tr><th scope="row">{escape(name)}</th><td>{text}</td></tr>')
    listed = ", ".join(f"{source}: {run}" for source, run in results.runs)
    return f'{head}<p>{escape(listed)}</p><table class="about"><tbody>{"".join(rows)}</tbody></table></section>'


def _attribute(name: str, value) -> str:
    if name in _BYTES and isinstance(value, int):
        return escape(bytes_text(value))
    if name == "dirty":
        return "yes: uncommitted changes" if value else "no"
    if name in ("environment", "settings") and isinstance(value, str):
        try:
            pairs = json.loads(value)
            return escape(", ".join(f"{k} = {v}" for k, v in pairs.items())) if pairs else "–"
        except (ValueError, AttributeError, RecursionError):
            pass
    if name in ("sweep", "kokkos_config") and value:
        return f"<pre>{escape(str(value).strip())}</pre>"
    return escape(significant(value) if isinstance(value, float) else value)


def _how_to_read(results: Results) -> str:
    cold = set(results.points["cold"].tolist())
    if cold == {1}:
        caches = "Caches are flushed before each sample (cold = 1)."
    elif cold == {0}:
        caches = "Caches are warm: buffers are reused from sample to sample, so small problems run from cache."
    else:
        caches = "Points with cold = 1 had the caches flushed before each sample; the others ran with warm caches."
    lines = [*HOW_TO_READ, caches]
    return f'<section id="reading"><h2>How to read it</h2>{bullets(lines, "plain")}</section>'
