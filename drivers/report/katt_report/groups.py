"""Groups of points that share a figure, with the x axis and the facets of the panels.

Nothing here knows an operator: the axes are all integer columns that vary.
"""

import json
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from katt_report import schema
from katt_report.limits import checked
from katt_report.load import Ceiling, Profile, Results
from katt_report.points import Points
from katt_report.ratios import against_peers, believable
from katt_report.text import list_text, names_text, usual_value

_GROUP_COLUMNS = ("op", "pass", "backend")
# The last among equals: the choice that a reader expects least.
_LATE_X = ("batch", "heads", "kv_heads", "head_dim", "threads")
_FEWEST_CURVE_POINTS = 4
MOST_PANELS = 18
"""Panels that a figure holds at most."""


@dataclass(frozen=True)
class Group:
    """The points of one operator, pass and backend; only some labels when the labels differ in
    kind.

    `points` holds every row, `best` the measured rows with the fastest tile of each point. `x` is
    the integer axis of the figures (None when no axis has two measured values), `x_also` the axes
    that always equal it. `facets` are the other axes that vary, dtype apart: each combination is a
    panel. `baseline` is the variant that speedups refer to, `peers` the variants that are other programs, with their
    versions; `against` holds the ratios to them (`against_peers`), and `page_variants` every measured variant of the
    page, so that each looks the same in all figures. `paired_goals` are the rates relative to the reference of paired
    points that the sweeps expect.
    """

    key: tuple
    name: str
    title: str
    points: Points
    best: Points
    x: str | None
    x_also: list[str]
    facets: list[str]
    rate: str
    ceilings: list[Ceiling]
    profiles: dict[tuple, Profile]
    baseline: str = schema.BASELINE
    peers: dict[str, str] = field(default_factory=dict)
    against: Points | None = None
    page_variants: list[str] = field(default_factory=list)
    paired_goals: list[float] = field(default_factory=list)

    @property
    def symbol(self) -> str:
        """The name of the x axis in a sentence: N for the length of self-attention."""
        return "N" if self.x == "seq_q" and "seq_kv" in self.x_also else str(self.x)

    @property
    def x_title(self) -> str:
        """The label of the x axis."""
        if self.symbol == "N":
            return "sequence length N"
        return " = ".join([str(self.x), *self.x_also])

    @property
    def rate_unit(self) -> str:
        """The unit of the throughput: "FLOP/s", or "B/s" for an operator bound by memory."""
        return "FLOP/s" if self.rate == "tflops" else "B/s"

    def rates(self, points: Points) -> np.ndarray:
        """Throughput of points in `rate_unit`."""
        return points[self.rate] * (1e12 if self.rate == "tflops" else 1e9)

    def profile_of(self, row: dict) -> Profile | None:
        """The profile of a row, if it was recorded."""
        return self.profiles.get((row["source"], row["run"], row["point"]))

    @property
    def dtypes(self) -> list[str]:
        """The dtypes that were measured, widest first."""
        return sort_dtypes(self.best.values("dtype"))

    @property
    def variants(self) -> list[str]:
        """The variants that were measured: the baseline, those of Katt, the peers."""
        return sort_variants(self.best.values("variant"), self.baseline, self.peers)

    @property
    def compared(self) -> list[str]:
        """The variants that have a speedup over the baseline."""
        return [name for name in self.variants if name != self.baseline]

    def panels(self, points: Points | None = None) -> list[tuple[tuple, Points]]:
        """The facet values and rows of each panel, in order."""
        points = self.best if points is None else points
        return [(values, points.match(self.facets, values)) for values in points.combinations(self.facets)]

    def facet_text(self, values: tuple) -> str:
        """The name of a panel; empty when there is only one."""
        return names_text(self._facet_names, values)

    def short_text(self, values: tuple) -> str:
        """A panel's name without the switches that are off and the values that nearly all points have."""
        shown = [index for index, value in enumerate(values) if value != self._usual[index]]
        return names_text([self._facet_names[index] for index in shown], [values[index] for index in shown])

    def where_text(self, row: dict) -> str:
        """The place of a row in the figures: ` at N = 4096, causal = 1`; empty for a single
        point."""
        short = self.short_text(tuple(row[name] for name in self.facets))
        parts = [f"{self.symbol} = {row[self.x]}"] if self.x else []
        parts += [short] if short else []
        return f" at {', '.join(parts)}" if parts else ""

    @cached_property
    def _usual(self) -> list:
        """The value of each facet that needs no mention."""
        panels = self.panels() or self.panels(self.points)
        columns = zip(*(panel for panel, _ in panels), strict=True)
        return [None if name == "label" else usual_value(list(column)) for name, column in
                zip(self.facets, columns, strict=True)]  # fmt: skip

    @cached_property
    def _facet_names(self) -> list[str]:
        square = np.array_equal(self.points["seq_q"], self.points["seq_kv"])
        return ["N" if name == "seq_q" and square else name for name in self.facets]


def groups(results: Results) -> list[Group]:
    """Splits the points by operator, pass and backend; by file too when two files hold the same
    point, or come from different machines.

    A file may hold a sweep over N under one label and a tile grid under another: labels with curves
    and labels without are separate groups, and so is every label with curves when they are too many
    to draw together.
    """
    results = believable(results)
    points = results.points
    identity = points.tuples(points.identity)
    machines = {results.machine_of(*key) for key in points.tuples(["source", "run"])} - {""}
    together = len(set(identity)) == len(identity) and len(machines) < 2
    columns = _GROUP_COLUMNS if together else (*_GROUP_COLUMNS, "source")
    keys = points.combinations(columns)
    changing = [name for index, name in enumerate(columns) if len({key[index] for key in keys}) > 1]
    found = []
    for key in keys:
        rows = points.match(columns, key)
        parts = _label_parts(rows)
        for labels in parts:
            group = _of_labels(results, rows, labels, key, changing, columns, len(parts) > 1)
            if group.x and len(labels) > 1 and len(group.best.combinations([*group.facets, "dtype"])) > MOST_PANELS:
                found += [_of_labels(results, rows, [label], key, changing, columns, True) for label in labels]
            else:
                found.append(group)
    # In an order that the baseline does not change: a variant looks the same beside any of them.
    named = (sort_variants(group.best.values("variant"), peers=group.peers) for group in found)
    everywhere = list(dict.fromkeys(variant for names in named for variant in names))
    return [replace(group, page_variants=everywhere) for group in found]


def _of_labels(results: Results, rows: Points, labels, key, changing, columns, several: bool) -> Group:
    """The group of the rows with these labels; `several`: the name and title name the labels."""
    words = [str(key[columns.index(name)]) for name in changing] + (labels[:2] if several else [])
    title = f"{key[0]} {key[1]} on {key[2]}" + (f", {key[3]}" if len(key) > 3 else "")
    title += f": {list_text(labels)}" if several and any(labels) else ""
    return _group(results, rows.where(np.isin(rows["label"], labels)), key, _file_stem(words), title)


def _file_stem(words: list[str]) -> str:
    return "_".join("".join(c if c.isalnum() else "_" for c in word).strip("_") for word in words if word)


def _label_parts(points: Points) -> list[list[str]]:
    """Labels by the x axis of their curves, in file order; labels without a curve together."""
    parts: dict[str | None, list[str]] = {}
    for label in dict.fromkeys(points["label"].tolist()):
        rows = points.where(label=label)
        parts.setdefault(_x_axis(rows.ok if len(rows.ok) else rows, _FEWEST_CURVE_POINTS), []).append(label)
    return list(parts.values())


def _group(results: Results, points: Points, key: tuple, name: str, title: str) -> Group:
    measured = points.ok
    best = fastest_tiles(measured)
    # The axes come from the measured rows; when none ran, from all rows, so that the table still
    # has a shape.
    varying = best if len(best) else points
    x = _x_axis(varying, 2 if len(points.values("label")) == 1 else _FEWEST_CURVE_POINTS)
    facets = _facets(varying, x)
    also = [
        name
        for name in varying.identity
        if x and name != x and varying[name].dtype.kind == "i" and np.array_equal(varying[name], varying[x])
    ]
    backend = key[2]
    # A run without a backend's name counts as fitting: an old file should not lose its ceilings.
    used = set(points.tuples(["source", "run"]))
    fits = {run for run, about in results.runs.items() if backend in str(about.get("backend", backend)).split(",")}
    wanted = used & fits if results.runs else used
    ceilings = [c for c in checked(results.ceilings) if (c.source, c.run) in wanted]
    bandwidths = {ceiling.name for ceiling in ceilings if ceiling.unit == "B/s"}
    bound = [ceiling in bandwidths for ceiling in best["ceiling"].tolist()]
    by_bytes = len(best) > 0 and (not np.any(best["flops"] > 0) or sum(bound) > len(bound) / 2)
    rate = "gbytes_s" if by_bytes else "tflops"
    return Group(key, name, title, points, best, x, also, facets, rate, ceilings, results.profiles, results.baseline,
                 results.peers, against_peers(results, best),
                 paired_goals=sorted({goal for run in used if (goal := _paired_goal(results.runs.get(run, {}))) > 0}))  # fmt: skip


def _paired_goal(about: dict) -> float:
    """The setting `paired_goal` of a run; 0 without one."""
    try:
        return float(json.loads(str(about.get("settings", "{}"))).get("paired_goal", 0))
    except (ValueError, AttributeError, TypeError, RecursionError):
        return 0.0


def fastest_tiles(points: Points) -> Points:
    """The row with the least median time among rows that differ only in their tile, one with a speedup before others: a
    run that adds a tile may lack the baseline."""
    names = [name for name in [*points.identity, "source"] if name not in schema.TILES]
    best: dict[tuple, int] = {}
    ranks = list(zip((~np.isfinite(points["speedup"])).tolist(), points["time_s"].tolist(), strict=True))
    for index, key in enumerate(points.tuples(names)):
        if key not in best or ranks[index] < ranks[best[key]]:
            best[key] = index
    return points.where(np.array(sorted(best.values()), int))


def one_tile(points: Points, x: str) -> Points:
    """Rows of one variant with the same tile at every x, when one tile covers as many x as any mix.

    Memory depends on the tile, so a fitted exponent over changing tiles would measure the tiles.
    """
    every = fastest_tiles(points)
    at_end = points.where(points[x] == points[x].max())
    fastest_at_end = fastest_tiles(at_end).tuples(schema.EXTENTS)[0]
    for tile in [fastest_at_end, *points.combinations(schema.EXTENTS)]:
        chosen = fastest_tiles(points.match(schema.EXTENTS, tile))
        if len(chosen.values(x)) == len(every.values(x)):
            return chosen
    return every


def _x_axis(points: Points, fewest: int) -> str | None:
    """The integer axis with the most values under any one label, if it has at least `fewest`."""
    # A length is positive throughout: 0 and -1 mean "off", so such an axis is a switch.
    names = [n for n in points.identity if points[n].dtype.kind == "i" and points[n].min() > 0]
    names = sorted(names, key=lambda name: _LATE_X.index(name) if name in _LATE_X else -1)
    labels = points.values("label")

    def spread(name: str) -> int:
        return max(len(points.where(label=label).values(name)) for label in labels)

    most = max(names, key=spread, default=None)
    return most if most and spread(most) >= fewest else None


def _facets(points: Points, x: str | None) -> list[str]:
    """The fewest axes that, with x, dtype, variant and tile, still distinguish the points."""
    fixed = [name for name in ("dtype", "variant", *schema.TILES, x) if name]
    candidates = [
        name
        for name in ["label", *(n for n in points.identity if n != "label")]
        if name not in fixed and name not in _GROUP_COLUMNS and len(points.values(name)) > 1
    ]
    count = len(points.combinations(fixed + candidates))
    for name in reversed(list(candidates)):
        fewer = [other for other in candidates if other != name]
        if len(points.combinations(fixed + fewer)) == count:
            candidates = fewer
    return candidates


_DTYPES = ("f64", "f32", "tf32", "bf16", "f16")


def sort_dtypes(dtypes) -> list[str]:
    """Dtypes from wide to narrow."""
    return sorted(dtypes, key=lambda name: (_DTYPES.index(name) if name in _DTYPES else len(_DTYPES), name))


def sort_variants(variants, baseline: str = schema.BASELINE, peers=()) -> list[str]:
    """Variants by name: the baseline and naive first, peers last."""
    return sorted(variants, key=lambda name: (name != baseline, name != schema.BASELINE, name in peers, name))
