#!/usr/bin/env python3
"""drawings.py [--check]: writes the drawings of docs/how_it_works.md into docs/drawings. With --check it writes nothing and
ends with exit status 1 where a file is not what it would write."""

import random
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "drawings"
BLUE, ORANGE, GREEN, GREY = "#4a6fa5", "#d9822b", "#4c9a6a", "#7a8aa0"
PALE = {BLUE: "#e3ebf6", ORANGE: "#fbe6d0", GREEN: "#dcefe3", GREY: "#eceff3"}
STYLE = (
    "text { font: 14px sans-serif; fill: #222 } .small { font-size: 12px; fill: #555 } .middle { text-anchor: middle } "
    ".end { text-anchor: end } .line { stroke: #7a8aa0; fill: none; marker-end: url(#tip) } .plain { stroke: #7a8aa0; fill: none }"
)


class Drawing:
    def __init__(self, width, height, title):
        self.width, self.height, self.title, self.parts = width, height, title, []

    def text(self, x, y, words, kind=""):
        self.parts.append(f'<text x="{x:g}" y="{y:g}" class="{kind}">{words}</text>')

    def rect(self, x, y, width, height, fill="#ffffff", stroke=GREY, radius=0):
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}" fill="{fill}" stroke="{stroke}"/>'
        )

    def box(self, x, y, width, height, lines, colour=BLUE):
        """A box with lines of text in its middle; the first is the name."""
        self.rect(x, y, width, height, PALE[colour], colour, 6)
        top = y + height / 2 - 8 * (len(lines) - 1) + 5
        for index, line in enumerate(lines):
            self.text(x + width / 2, top + 16 * index, line, "middle" if index == 0 else "middle small")

    def path(self, points, kind="line"):
        self.parts.append(f'<path d="M{" L".join(f"{x:g} {y:g}" for x, y in points)}" class="{kind}"/>')

    def svg(self):
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" role="img" aria-label="{self.title}">',
            f"<title>{self.title}</title><style>{STYLE}</style>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<polygon points="0,0 8,4 0,8" fill="#7a8aa0"/></marker></defs>',
            f'<rect width="{self.width}" height="{self.height}" fill="white"/>',
            *self.parts, "</svg>",
        ]) + "\n"  # fmt: skip


def sweep():
    """From the command to the report."""
    d = Drawing(720, 330, "The way of a sweep, from the command to the report")
    d.box(10, 20, 130, 60, ["katt sweep", "axes of the reader"], GREY)
    d.box(190, 20, 150, 60, ["plan", "points, memory, time"])
    d.box(390, 20, 150, 60, ["case", "inputs from the seed"])
    d.path([(140, 50), (188, 50)])
    d.path([(340, 50), (388, 50)])
    steps = [
        ("verify", "against float64"), ("memory", "peaks, alone"), ("warm up", "not timed"),
        ("rounds", "all variants, random order"), ("verify again", "the same rule"),
    ]  # fmt: skip
    d.path([(465, 80), (465, 110), (80, 110), (80, 138)])
    for index, (name, what) in enumerate(steps):
        x = 10 + 142 * index
        d.box(x, 140, 130, 60, [name, *([what] if len(what) < 22 else ["all variants,", "random order"])], ORANGE)
        if index:
            d.path([(x - 12, 170), (x - 2, 170)])
    d.path([(643, 200), (643, 230), (115, 230), (115, 252)])
    d.box(10, 254, 210, 60, ["rows in the file", "medians, intervals, all samples"], GREEN)
    d.box(270, 254, 180, 60, ["next case", "the file is complete here"], GREY)
    d.box(500, 254, 210, 60, ["katt-report", "ratios, figures, compare"], GREEN)
    d.path([(220, 284), (268, 284)])
    d.path([(450, 284), (498, 284)])
    return d


def rounds():
    """Why rounds: a machine whose speed changes."""
    d = Drawing(720, 300, "Variants one after the other, and in rounds, while the speed of the machine changes")
    d.text(10, 24, "The machine slows down here, for another guest:")
    d.path([(10, 60), (340, 60), (350, 44), (520, 44), (530, 60), (710, 60)], "plain")
    d.text(355, 38, "half of the speed", "small")
    colours = {"A": BLUE, "B": ORANGE, "C": GREEN}

    def row(y, order):
        x = 10
        for name in order:
            width = 26 if not 340 < x < 520 else 52
            d.rect(x, y, width - 3, 34, PALE[colours[name]], colours[name])
            d.text(x + (width - 3) / 2, y + 22, name, "middle")
            x += width
        return x

    d.text(10, 96, "One after the other: B looks slower than it is.")
    row(106, ["A"] * 8 + ["B"] * 8 + ["C"] * 6)
    d.text(10, 176, "In rounds, in random order: each round gives ratios, and the slow rounds give the same ones.")
    draw = random.Random(7)
    order = []
    for _ in range(7):
        one = ["A", "B", "C"]
        draw.shuffle(one)
        order += one
    row(186, order)
    d.text(
        10,
        250,
        "Speedup of A over B: the median of the rounds' ratios. Its 95 % interval comes from the same ratios.",
        "small",
    )
    d.text(10, 272, "Times stay in the file, too, and so does the load of the machine.", "small")
    return d


def error_rule():
    """The allowed difference."""
    d = Drawing(
        720,
        230,
        "The error rule: twice what an unfused implementation in the dtype makes, and the rounding of the output",
    )
    middle, unit = 360, 60
    d.rect(middle - 4 * unit, 70, 8 * unit, 50, PALE[GREEN], GREEN)
    d.rect(middle - 1.5 * unit, 70, 3 * unit, 50, PALE[BLUE], BLUE)
    d.path([(30, 95), (700, 95)])
    d.path([(middle, 60), (middle, 130)], "plain")
    d.text(middle, 50, "exact: float64, from the definition", "middle")
    d.text(middle + 0.75 * unit, 90, "unfused", "middle small")
    d.text(middle - 3 * unit, 90, "ok", "middle small")
    d.text(middle + 3 * unit, 90, "ok", "middle small")
    d.text(60, 90, "failed", "middle small")
    d.text(660, 90, "failed", "middle small")
    d.path([(middle + 1.5 * unit, 140), (middle + 1.5 * unit, 124)])
    d.text(middle + 1.5 * unit, 156, "largest error of an unfused one", "middle small")
    d.path([(middle + 4 * unit, 180), (middle + 4 * unit, 124)])
    d.text(middle + 4 * unit + 50, 196, "limit: twice that, and twice the rounding", "end small")
    d.text(
        20,
        220,
        "The yardstick is made on the same inputs and in the same dtype, so the rule is strict in f32 and fair in bf16.",
        "small",
    )
    return d


def flash():
    """Flash attention: keys stream past a tile of queries."""
    d = Drawing(
        720, 340, "Flash attention: tiles of keys stream past a tile of queries, and only running sums are kept"
    )
    size, x0, y0 = 34, 70, 60
    d.text(x0 + 4 * size, 24, "keys, in tiles of tile_kv", "middle")
    d.path([(x0, 40), (x0 + 8 * size, 40)])
    for i in range(8):
        for j in range(8):
            seen = PALE[BLUE] if j < i else PALE[ORANGE] if j == i else "#ffffff"
            d.rect(x0 + j * size, y0 + i * size, size, size, seen, GREY)
    d.rect(x0, y0 + 5 * size, 6 * size, size, "none", BLUE)
    d.parts[-1] = d.parts[-1].replace("/>", ' stroke-width="3"/>')
    d.text(60, y0 + 5.65 * size, "tile_q", "end")
    d.text(60, y0 + 1.2 * size, "queries", "end")
    for colour, words, y in (
        (PALE[BLUE], "seen by all queries of the tile", 80), (PALE[ORANGE], "the mask cuts it: each score is asked", 108),
        ("#ffffff", "nobody sees it: never computed", 136),
    ):  # fmt: skip
        d.rect(380, y - 14, 20, 18, colour, GREY)
        d.text(410, y, words, "small")
    d.text(380, 180, "For each tile of keys:")
    for index, line in enumerate((
        "S = scale · Q · Kᵀ", "m′ = max(m, rowmax S)", "P = exp(S − m′)", "l = l · exp(m − m′) + rowsum P",
        "O = O · exp(m − m′) + P · V",
    )):  # fmt: skip
        d.text(400, 204 + 20 * index, line, "small")
    d.text(380, 312, "At the end: out = O / l, lse = m + log l.", "small")
    d.text(380, 330, "S and P never leave the tile.", "small")
    return d


DRAWINGS = {"sweep": sweep, "rounds": rounds, "error_rule": error_rule, "flash": flash}


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    stale = []
    for name, draw in DRAWINGS.items():
        path, text = FOLDER / f"{name}.svg", draw().svg()
        if "--check" not in sys.argv:
            FOLDER.mkdir(exist_ok=True)
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(f"docs/drawings/{name}.svg: is not today's; docs/site/drawings.py writes it")
    print(*stale, sep="\n", end="\n" if stale else "")
    sys.exit(bool(stale))


if __name__ == "__main__":
    main()
