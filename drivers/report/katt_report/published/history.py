"""Ratios over commits: the paired speedup of every row in files of one machine, and where it changed.

Change points are the best partition of a row's logarithms of ratios into segments of one level, their median: the one of
least squares, weighted by the variances, plus a penalty a change. Optimal partitioning finds it (Jackson et al., *An
algorithm for optimal partitioning of data on an interval*, IEEE Signal Processing Letters 12, 2005; PELT by Killick,
Fearnhead & Eckley, JASA 107, 2012, prunes the same recursion, which histories of some hundred runs do not need). A square
counts as 1.5 penalties at most (Fearnhead & Rigaill, *Changepoint detection in the presence of outliers*, JASA 114, 2019),
less than the two changes that would set one disturbed run apart; at the end of the history one change does.

The variance of a ratio is that of its own interval plus one between runs, which all rows of the machine share: robustly
from the differences of neighbouring runs, so that changes do not count as noise. The penalty is 3 ln N, N the
measurements of the machine (docs/published_results.md says how often it is wrong).
"""

import math
from dataclasses import dataclass

import numpy as np

from katt_report import schema
from katt_report.errors import InputError
from katt_report.load import Results, moment
from katt_report.published.files import peers_of, plain_values, point_axes
from katt_report.published.fresh import SourceTree, machine_of
from katt_report.ratios import believable
from katt_report.statistics import Interval
from katt_report.text import usual_value, value_text

_QUANTILE = 1.96
_LEAST_DEVIATION = 0.005
"""Least deviation of the logarithm of a ratio: half a percent; no interval of a ratio is that reliable."""
_LOST = 1.5
"""Penalties that a measurement far from its segment's level costs."""


@dataclass(frozen=True)
class Measurement:
    """One ratio of a row; `order` sorts the runs of a machine."""

    order: tuple[str, str]
    commit: str
    started_at: str
    ratio: Interval


@dataclass(frozen=True)
class Change:
    """The row's ratio from measurement `index` on is another than before; `runs` measurements show it."""

    index: int
    before: float
    after: float
    runs: int

    @property
    def factor(self) -> float:
        return self.after / self.before


@dataclass(frozen=True)
class Series:
    """One row of a machine over its runs; `levels` are those of the segments between the changes, by measurement."""

    machine: str
    name: str
    measurements: list[Measurement]
    levels: list[float]
    changes: list[Change]


@dataclass(frozen=True)
class History:
    """All rows with two measurements or more, those with changes first, the largest first; `single` have only one."""

    series: list[Series]
    single: int

    @property
    def machines(self) -> list[str]:
        return sorted({series.machine for series in self.series})


def history(parts: list[Results], tree: SourceTree | None = None) -> History:
    """The histories of all rows with a paired speedup; peers, which change with their library, apart. A part may hold
    several runs of a row.

    Runs are sorted by the date of their commit, where the history of `tree` holds it, else by their own.
    """
    rows = _measurements(parts, tree)
    if not rows:
        raise InputError(", ".join(p.points["source"][0] for p in parts[:3]), "no row with a speedup",
                         f"rows measured beside {schema.BASELINE}")  # fmt: skip
    found = []
    for machine in sorted({key[0] for key in rows}):
        own = {key: each for key, each in rows.items() if key[0] == machine and len(each) > 1}
        between = _between_runs(list(own.values()))
        penalty = 3.0 * math.log(max(sum(map(len, own.values())), 2))
        found += [_series(machine, name, each, between, penalty) for (_, name), each in own.items()]
    size = {id(s): max((abs(math.log(change.factor)) for change in s.changes), default=0.0) for s in found}
    found.sort(key=lambda s: (not s.changes, -size[id(s)], s.machine, s.name))
    return History(found, sum(len(each) == 1 for each in rows.values()))


def _measurements(parts: list[Results], tree: SourceTree | None) -> dict[tuple[str, str], list[Measurement]]:
    """By machine and name of the row, in the order of the runs."""
    peers, axes = peers_of(parts), point_axes(parts)
    held: dict[tuple, dict[Measurement, None]] = {}
    for part in map(believable, parts):
        for row in part.points.rows():
            bounds = [row["speedup"], row["speedup_lo"], row["speedup_hi"]]
            if (
                row["status"] != "ok"
                or row["variant"] in (schema.BASELINE, *peers)
                or not all(map(_is_positive, bounds))
            ):
                continue
            about = part.runs.get((row["source"], row["run"]), {})
            started, commit = str(about.get("started_at", "")), str(row["commit"])
            date = (tree.commit_date(commit) if tree else None) or moment(started)
            order = (date.isoformat() if date else started, started)
            names = (*_WORDS, *_OTHERS, *axes[row["op"]])
            key = (machine_of(part, row), *zip(names, plain_values(row, names), strict=True))
            measurement = Measurement(order, commit, started, Interval(*bounds))
            held.setdefault(key, {})[measurement] = None  # once, whatever files hold copies of the run
    names = _names([dict(key[1:]) for key in held])
    return {
        (key[0], name): sorted(each, key=lambda m: m.order)
        for name, (key, each) in zip(names, held.items(), strict=True)
    }


_WORDS = ("label", "op", "pass", "variant", "dtype")
_OTHERS = ("backend", "threads", "tile")


def _names(rows: list[dict]) -> list[str]:
    """Names that tell the rows apart, without the values that nearly all rows of an operator have."""
    columns: dict[tuple[str, str], list] = {}
    for row in rows:
        for name, value in row.items():
            columns.setdefault((row["op"], name), []).append(0 if value is None else value)
    usual = {key: usual_value(values) for key, values in columns.items()}
    names = []
    for row in rows:
        axes = {n: v for n, v in row.items() if n not in _WORDS and (0 if v is None else v) != usual[row["op"], n]}
        if "seq_q" in axes and axes["seq_q"] == axes.get("seq_kv"):
            axes = {"N": axes.pop("seq_q"), **{n: v for n, v in axes.items() if n != "seq_kv"}}
        words = [row[name] for name in _WORDS if row[name]]
        names.append(" ".join([*words, *(f"{name}={value_text(value)}" for name, value in axes.items())]))
    return names


def _is_positive(value: float) -> bool:
    return value > 0 and math.isfinite(value)


def _between_runs(rows: list[list[Measurement]]) -> float:
    """The standard deviation of logarithms of a ratio between runs, beyond what their own intervals explain."""
    differences = [d for each in rows for d in np.diff([math.log(m.ratio.mid) for m in each])]
    if not differences:
        return _LEAST_DEVIATION
    total = (1.4826 * float(np.median(np.abs(differences)))) ** 2 / 2.0
    own = float(np.median([_deviation(m.ratio) ** 2 for each in rows for m in each]))
    return math.sqrt(max(total - own, _LEAST_DEVIATION**2))


def _deviation(ratio: Interval) -> float:
    return math.log(ratio.hi / ratio.lo) / (2.0 * _QUANTILE)


def _series(machine: str, name: str, each: list[Measurement], between: float, penalty: float) -> Series:
    logs = np.log([m.ratio.mid for m in each])
    weights = 1.0 / (between**2 + np.array([_deviation(m.ratio) for m in each]) ** 2)
    starts = segments(logs, weights, penalty)
    ends = [*starts[1:], len(each)]
    levels = [float(np.exp(np.median(logs[a:b]))) for a, b in zip(starts, ends, strict=True)]
    changes = [Change(starts[i], levels[i - 1], levels[i], ends[i] - starts[i]) for i in range(1, len(starts))]
    lengths = [b - a for a, b in zip(starts, ends, strict=True)]
    return Series(machine, name, each, np.repeat(levels, lengths).tolist(), changes)


def segments(values: np.ndarray, weights: np.ndarray, penalty: float) -> list[int]:
    """Where the segments of the best partition begin, the first at 0."""
    count = len(values)
    best, previous = np.full(count + 1, np.inf), np.zeros(count + 1, int)
    best[0] = -penalty
    for end in range(1, count + 1):
        for start in range(end):
            if best[start] + penalty < best[end]:
                squares = weights[start:end] * (values[start:end] - np.median(values[start:end])) ** 2
                total = best[start] + penalty + float(np.minimum(squares, _LOST * penalty).sum())
                if total < best[end]:
                    best[end], previous[end] = total, start
    found, end = [], count
    while end > 0:
        end = int(previous[end])
        found.append(end)
    return found[::-1]
