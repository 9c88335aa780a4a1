"""The report page: the result in words, the figures, every point, and the provenance of the
numbers."""

import json
import math

from katt_report import schema
from katt_report.figures import draw_all
from katt_report.figures.shares import TITLE as SHARES
from katt_report.groups import Group, groups
from katt_report.headline import answer, cautions, details, overall, sentences, warnings
from katt_report.limits import checked
from katt_report.load import Results
from katt_report.pages.machines import TITLE as MACHINES
from katt_report.pages.machines import machines_section
from katt_report.pages.markup import bullets, escape, page, prose, table
from katt_report.pages.output import FORMATS, add_figure
from katt_report.pages.points_table import SPOKEN, points_table
from katt_report.pages.shares_table import shares_table
from katt_report.text import bytes_text, list_text, rate_text, significant, value_text

HOW_TO_READ = [
    "A point is one value for every axis; each variant and tile at it is a row. Outputs are checked against a "
    "float64 reference before and after the timing; what fails the check, is refused or is "
    "suspect, faster than the machine can be, is a row with its reason.",
    "The variants and tiles of a point are timed in interleaved rounds, each once a round in random order. A "
    "disturbance of the machine that lasts longer than a round hits all of them.",
    "Times are medians. Intervals are 95 % intervals of the median from order statistics: they assume nothing about "
    "the distribution of the noise.",
    f"The speedup is paired: the median of the ratios to {schema.BASELINE}, or to the variant of --baseline, round by "
    "round, with its own interval. It is steadier than the quotient of two medians, and it is what to compare between "
    "runs. Times are not.",
    "Workspace and total memory are measured peaks of the allocation tracker, not formulas; of another program what "
    "its own allocator says, or a dash where it says nothing.",
    "Throughput counts useful work: the FLOPs of the visible scores, or the least traffic in bytes. Ceilings are "
    "measured in the same run with the same threads.",
]


def report(results: Results, formats: tuple[str, ...] = FORMATS, tell=lambda done, total: None,
           found: list[Group] | None = None) -> dict[str, bytes]:  # fmt: skip
    """The files of a report by name: report.html, and every figure in each of the formats.

    `tell(done, total)` is called before each figure is rendered; `found` are the groups, where they are known.
    """
    parts = [(group, draw_all(group)) for group in found or groups(results)]
    files, body, total = {}, [], sum(len(plots) for _, plots in parts)
    compared = machines_section(results)
    body.append('<section id="short">' + _answers(results, [group for group, _ in parts]) + "</section>")
    body.append(_navigation(parts, bool(compared)))
    done = 0
    for group, plots in parts:
        body.append(f'<section id="{_anchor(group)}"><h2>{escape(group.title)}</h2>')
        body.append(bullets(sentences(group), "headline"))
        every = details(group)
        if len(every) > 1:
            body.append(f"<details><summary>Every variant in words</summary>{bullets(every, 'plain')}</details>")
        body.append(f"<p>{escape(_constants(group))}</p>")
        if not plots:
            body.append("<p>No point of this group was measured, so there is nothing to draw; the table says why.</p>")
        for plot in plots:
            tell(done, total)
            done += 1
            body.append(f"<h3>{escape(plot.title)}</h3>")
            body.append(add_figure(plot, files, formats))
            if plot.title == SHARES:
                body.append(shares_table(group))
        body.append(f"<h3>All points</h3>{points_table(group)}</section>")
    body += [compared, _ceilings(results), _provenance(results), _how_to_read(results)]
    title, under = _title(results, parts)
    files["report.html"] = page(title, under, "\n".join(part for part in body if part)).encode()
    return files


def _answers(results: Results, found: list[Group]) -> str:
    """The outcome, before everything else: failed and suspect rows, the answer, and what to know before believing
    it."""
    doubts = cautions(results)
    wrong = {status: lines for status in schema.WRONG if (lines := warnings(results, status))}
    body = "".join(bullets(lines, status) for status, lines in wrong.items())
    if len(found) == 1:
        body += f'<p class="answer">{prose(answer(found[0]))}</p>'
    else:
        counted = [schema.FAILED, *([schema.SUSPECT] if schema.SUSPECT in wrong else [])]
        rows = [[f'<a href="#{_anchor(group)}">{escape(group.title)}</a>', prose(answer(group)),
                 str(len(group.points.ok)), *(str(len(group.points.where(status=name)) or "") for name in counted)]
                for group in found]  # fmt: skip
        body += f'<p class="answer">{prose(overall(found))}</p>'
        body += table([("", ""), ("what came out", "wide"), ("measured", "n"), *((name, "n") for name in counted)], rows)
    return body + (bullets(doubts, "caution") if doubts else "")


def _anchor(group: Group) -> str:
    return "group_" + "".join(c if c.isalnum() else "-" for c in group.title)


def _navigation(parts, machines: bool) -> str:
    links = [("#" + _anchor(group), group.title) for group, _ in parts]
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
    same = [name for name in points.identity if len(points.values(name)) == 1 and name not in SPOKEN]
    values = {name: points.values(name)[0] for name in same}
    parts = [f"{name} {value_text(value)}" for name, value in values.items() if value not in ("", 0, -1)]
    off = [name for name in ("causal", "cold") if values.get(name) == 0]
    text = f"At every point: {', '.join(parts)}." if parts else ""
    if "cold" in off:
        text += " Caches are warm: each sample finds what the one before left."
    elif "cold" in same:
        text += " Caches are cold: they are flushed before each sample."
    return text + (" Not causal." if "causal" in off and group.key[0] == "attention" else "")


def _ceilings(results: Results) -> str:
    ceilings = checked(results.ceilings)
    head = '<section id="ceilings"><h2>Measured ceilings</h2>'
    if not results.ceilings:
        return head + "<p>The file holds none: the run measured no ceilings.</p></section>"
    many = len({(c.source, c.run) for c in ceilings}) > 1
    rows = []
    for c in ceilings:
        value = "– disturbed" if math.isnan(c.value) else rate_text(c.value, c.unit)
        row = [c.name, value, str(c.threads), bytes_text(c.bytes) if c.bytes else "–"]
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
