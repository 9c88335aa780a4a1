"""HTML building blocks: the page shell, figures, tables. The page inlines everything and fetches
nothing."""

import base64
import html
import re
from pathlib import Path

from katt_report.pages import scripts
from katt_report.text import printable

STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0; background: #fff; color: #1d1d1f; font: 15px/1.5 system-ui, "Segoe UI", "Helvetica Neue", Arial,
  "Liberation Sans", "DejaVu Sans", sans-serif; }
main { padding: 28px 36px 60px; }
h1 { font-size: 27px; line-height: 1.2; margin: 0 0 4px; }
h2 { font-size: 20px; margin: 40px 0 10px; padding-top: 14px; border-top: 2px solid #1d1d1f; }
h3 { font-size: 16px; margin: 28px 0 6px; }
p { margin: 6px 0; max-width: 84ch; }
.under { color: #555; margin-bottom: 18px; }
nav { margin: 10px 0 4px; font-size: 14px; } nav a { margin-right: 14px; white-space: nowrap; }
a { color: #0050a0; }
ul { padding-left: 20px; margin: 6px 0; } li { margin: 3px 0; max-width: 100ch; }
.headline { background: #f3f6fa; border-left: 4px solid #0072b2; padding: 10px 18px 12px; margin: 14px 0; }
.headline li:first-child { font-weight: 600; }
.answer { font-size: 19px; line-height: 1.4; font-weight: 600; margin: 14px 0; max-width: none; }
.failed { background: #fbe9e7; border-left: 4px solid #a8200d; color: #8a1a0a; padding: 10px 18px; margin: 14px 0; }
.suspect { background: #fdf1dc; border-left: 4px solid #b35900; color: #6b3500; padding: 10px 18px; margin: 14px 0; }
.failed li:first-child, .suspect li:first-child { font-weight: 700; }
details { margin: 10px 0; } summary { cursor: pointer; color: #0050a0; }
.caution { background: #fdf4ea; border-left: 4px solid #d55e00; padding: 8px 18px; margin: 14px 0; }
figure { margin: 12px 0 26px; } figure img { max-width: 100%; height: auto; display: block; }
figcaption { color: #444; font-size: 13.5px; max-width: 100ch; margin-top: 6px; }
.scroll { overflow-x: auto; margin: 10px 0; }
table { border-collapse: collapse; font-size: 12px; font-variant-numeric: tabular-nums; }
th, td { padding: 3px 6px; border-bottom: 1px solid #eee; text-align: left; vertical-align: top; }
thead th { border-bottom: 2px solid #1d1d1f; background: #fff; vertical-align: bottom; }
td.n, th.n { text-align: right; white-space: nowrap; }
tr.apart td { border-top: 2px solid #bbb; }
td.wide { color: #444; } td small { color: #555; font-size: 10.5px; }
.status { font-weight: 600; white-space: nowrap; }
.good { color: #00684a; } .weak { color: #8a4b00; } .bad { color: #a8200d; } .plain { color: #333; }
.about th { white-space: nowrap; font-weight: 600; } .about td { overflow-wrap: anywhere; }
pre { background: #f6f6f6; padding: 8px 12px; font-size: 12px; white-space: pre-wrap; overflow-wrap: anywhere;
  margin: 0; }
button.sort { all: unset; cursor: pointer; } button.sort:hover { text-decoration: underline; }
button.sort:focus-visible { outline: 2px solid #0050a0; }
th[aria-sort=ascending] .sort::after { content: " ▲"; } th[aria-sort=descending] .sort::after { content: " ▼"; }
table.sorted tr.apart td { border-top: 0; }
.tools { display: flex; flex-wrap: wrap; gap: 6px 12px; align-items: center; margin: 10px 0 4px; font-size: 13px; }
.tools input { font: inherit; padding: 3px 8px; width: 260px; max-width: 100%; border: 1px solid #999;
  border-radius: 4px; }
.tools output { color: #555; }
.series button { font: inherit; border: 1px solid #bbb; border-radius: 4px; background: #fff;
  padding: 1px 8px; cursor: pointer; }
.series button span { display: inline-block; width: 10px; height: 10px; margin-right: 6px; border-radius: 2px; }
.series button[aria-pressed=false] { color: #777; text-decoration: line-through; }
.series button[aria-pressed=false] span { visibility: hidden; }
.frame { position: relative; width: fit-content; max-width: 100%; }
.spot { position: absolute; width: 14px; height: 14px; margin: -7px; border: 2px solid; border-radius: 50%;
  pointer-events: none; }
.tip { position: absolute; z-index: 2; max-width: min(360px, calc(100vw - 12px)); padding: 5px 9px; font-size: 12.5px;
  background: #fff; border: 1px solid; border-left-width: 4px; box-shadow: 0 2px 8px #0004; pointer-events: none; }
.spot[hidden], .tip[hidden] { display: none; }
@media screen { tr.off { display: none; } }
@media (max-width: 600px) { main { padding: 16px 14px 40px; } }
@media print {
  .tools, .tip, .spot { display: none !important; } th[aria-sort] .sort::after { content: none; }
  @page { size: A4; margin: 14mm; }
  body { font-size: 10.5pt; } main { max-width: none; padding: 0; } nav { display: none; }
  figure, .headline, .caution, .failed, .suspect { break-inside: avoid; } h2, h3 { break-after: avoid; }
  figure img { max-height: 230mm; }
  .scroll { overflow: visible; } table { font-size: 7pt; } th, td { padding: 1.5px 4px; } tr { break-inside: avoid; }
  thead { display: table-header-group; } a { color: inherit; text-decoration: none; }
  .headline, .caution, .failed, .suspect, pre { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""


def escape(text) -> str:
    """Text for HTML."""
    return html.escape(printable(str(text), keep="\t\n"))


def prose(text: str) -> str:
    """A sentence for HTML in which N^2.00 is a power and no unit is parted from its number."""
    text = re.sub(r"(\d) (%|[KMGT]?i?B\b|[GMT]?FLOP/s|[mµn]?s\b)", "\\1\N{NO-BREAK SPACE}\\2", escape(text))
    text = text.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")
    return re.sub(r"\^(-?\d[\d.]*\d|\w)", r"<sup>\1</sup>", text)


_BEGINNING = re.compile(rb'<!DOCTYPE html>\n.*\n<head>\n<meta charset="utf-8">\n<meta http-equiv=.*\n<title>Katt: ')


def is_page(path: Path) -> bool:
    """True for a document that `page` made."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return bool(_BEGINNING.match(file.read(1024)))


def page(title: str, under: str, body: str) -> str:
    """A whole document; the title begins with `Katt: `, which `is_page` looks for."""
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n{scripts.policy()}\n'
        f'<title>{escape(title)}</title>\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{STYLE}</style>\n</head>\n"
        f'<body>\n<main>\n<h1>{escape(title)}</h1>\n<p class="under">{escape(under)}</p>\n{body}\n</main>\n'
        f"{scripts.script()}\n</body>\n</html>\n"
    )


def figure(svg: bytes, plot) -> str:
    """A rendered figure (a `figures.style.Plot`) with its caption; the vector image, and what its marks say, travel inside
    the page."""
    data, answers = base64.b64encode(svg).decode(), plot.figure.answers()
    return (
        f'<figure id="{escape(plot.name)}"><img width="{round(plot.figure.get_figwidth() * 96)}" '
        f'alt="{escape(plot.alt)}" src="data:image/svg+xml;base64,{data}">\n<figcaption>{prose(plot.caption)}</figcaption>'
        f"{scripts.data('answers', answers) if answers else ''}</figure>"
    )


def bullets(lines: list[str], css: str) -> str:
    """A boxed list of sentences."""
    return f'<div class="{css}"><ul>' + "".join(f"<li>{prose(line)}</li>" for line in lines) + "</ul></div>"


def table(
    heads: list[tuple[str, str]], rows: list[list[str]], apart: set[int] = frozenset(), nested: bool = False
) -> str:
    """A table of cells that are HTML already; `heads` are (text, CSS class), `apart` rows get a rule above.

    A row with fewer cells ends in one that spans the rest. `nested`: a row says too little without the ones above it, so
    that readers can neither sort nor filter them.
    """
    head = "".join(f'<th class="{kind}" scope="col">{escape(text)}</th>' for text, kind in heads)
    lines = []
    for index, row in enumerate(rows):
        cells = [f'<td class="{kind}">{cell}</td>' for cell, (_, kind) in zip(row, heads, strict=False)]
        if len(row) < len(heads):
            cells[-1] = f'<td class="wide" colspan="{len(heads) - len(row) + 1}">{row[-1]}</td>'
        lines.append(f"<tr{' class=apart' if index in apart else ''}>{''.join(cells)}</tr>")
    body = "\n".join(lines)
    kind = ' class="nested"' if nested else ""
    return f'<div class="scroll"><table{kind}><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


def small(text: str) -> str:
    """A secondary number in a cell."""
    return f" <small>{escape(text)}</small>" if text else ""


_MARKS = {
    "ok": ("good", "✓"), "improved": ("good", "▲"), "same": ("plain", "="), "baseline": ("plain", "·"),
    "new": ("plain", "+"), "skipped": ("weak", "–"), "failed": ("bad", "✗"),
    "suspect": ("bad", "‼"),
    "regression": ("bad", "▼"),
}  # fmt: skip


def status(word: str) -> str:
    """A status or verdict with a mark and a colour: the colour alone never carries it."""
    css, mark = _MARKS.get(word, ("weak", "?"))
    return f'<span class="status {css}">{mark} {escape(word)}</span>'
