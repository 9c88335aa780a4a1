"""Answers of a figure to a reader: its series, and for each mark the place and the words.

A figure is an image. The page embeds the answers beside it, and pages/figures.js gives them to the pointer.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from katt_report import schema
from katt_report.groups import Group
from katt_report.points import Points
from katt_report.text import interval_text

SCALE = 10_000
"""Places are whole numbers of this part of the figure's width and height, from the upper left corner."""

Words = tuple[str, str, str]
"""Three lines: what the mark is, its value with the interval, and where that comes from."""


@dataclass(frozen=True)
class Mark:
    """A point (x, y) or a rectangle (x0, y0, x1, y1) in the data coordinates of a panel; `series` None: always there."""

    panel: Axes
    series: str | None
    place: tuple[float, ...]
    words: Words


class Drawing(Figure):
    """A figure that remembers which artists are a series, and its marks."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.colours: dict[str, str] = {}
        self.marks: list[Mark] = []
        self._parts = 0

    def add_series(self, name: str, colour: str, *artists: Artist) -> None:
        """The artists are a part of a series. In an SVG their ids begin with `series-`, the number of the series, `-`."""
        self.colours.setdefault(name, colour)
        number = list(self.colours).index(name)
        for artist in artists:
            artist.set_gid(f"series-{number}-{self._parts}")
            self._parts += 1

    def add_marks(self, panel: Axes, series: str | None, places: Iterable[tuple], words: Iterable[Words]) -> None:
        """A mark for each place, with its words."""
        self.marks += [Mark(panel, series, tuple(map(float, place)), said)
                       for place, said in zip(places, words, strict=True)]  # fmt: skip

    def answers(self) -> dict | None:
        """Series and marks as plain values for JSON, places as in the image; None for a figure without marks.

        `series`: name and colour of each. `texts`: every different line once. `marks`: the number of the series (-1:
        none), two or four coordinates, and the numbers of the three lines. The layout must be settled: render first.
        """
        if not self.marks:
            return None
        names, texts, marks = list(self.colours), {}, []
        for mark in self.marks:
            place = self._place(mark)
            if place:
                lines = [texts.setdefault(line, len(texts)) for line in mark.words]
                marks.append([names.index(mark.series) if mark.series in names else -1, *place, *lines])
        series = [[name, colour] for name, colour in self.colours.items()]
        return {"series": series, "texts": list(texts), "marks": marks}

    def _place(self, mark: Mark) -> list[int] | None:
        """The place in the image, inside of the panel: what lies beyond its limits is at its edge."""
        ends = mark.panel.transData.transform(np.reshape(mark.place, (-1, 2)))
        box = mark.panel.get_window_extent()
        if not np.all(np.isfinite(ends)):
            return None
        x = np.clip(ends[:, 0], box.x0, box.x1) / self.bbox.width
        y = 1.0 - np.clip(ends[:, 1], box.y0, box.y1) / self.bbox.height
        found = np.rint(SCALE * np.stack([x, y], axis=1)).astype(int)
        if len(found) == 2:
            found = np.sort(found, axis=0)
        return found.ravel().tolist()


def rows_words(group: Group, points: Points, values: Iterable[str]) -> list[Words]:
    """The words of rows of a result file: the row, its value, its samples and commit."""
    return [(_title(group, row), value, _origin(row)) for row, value in zip(points.rows(), values, strict=True)]


def measured_words(group: Group, points: Points, middle, ends, say: Callable[[float], str]) -> list[Words]:
    """The same for values with 95 % intervals."""
    low, high = (middle, middle) if ends is None else ends
    return rows_words(group, points, [interval_text(*three, say) for three in zip(middle, low, high, strict=True)])


def _title(group: Group, row: dict) -> str:
    tile = f"tile {row['tile_q']}\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}{row['tile_kv']}" if any(
        row[name] for name in schema.EXTENTS) else ""  # fmt: skip
    where = group.where_text(row).removeprefix(" at ")
    return " · ".join(part for part in (row["variant"], row["dtype"], where, tile) if part)


def _origin(row: dict) -> str:
    count = row["samples"]
    samples = f"{count} sample{'s'[: count != 1]}" if count else ""
    commit = f"commit {row['commit'][:12]}" if row["commit"] else ""
    return " · ".join(part for part in (samples, commit) if part)
