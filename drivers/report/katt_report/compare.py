"""Judges one result file against another.

Machines are noisy, and differently in two runs. So the comparison trusts ratios of interleaved
rounds first, which noise cannot move, and times only beyond the drift that the files themselves
show.
"""

import math
from dataclasses import asdict, dataclass, field, replace
from statistics import NormalDist

import numpy as np

from katt_report import schema
from katt_report.calibration import Calibration
from katt_report.errors import InputError
from katt_report.load import Results
from katt_report.points import Points
from katt_report.ratios import believable
from katt_report.statistics import Interval, geometric_mean, median_interval, paired_ratio
from katt_report.text import bytes_text, error_text, significant, usual_value, value_text

LEVEL = 0.95
COMPARABLE = 1.5
"""If the baseline of a case ran so many times faster or slower, the machine was not the same machine."""
ERROR_GROWTH = 2.0
MEMORY_GROWTH = 1.10
REGRESSION, IMPROVED, SAME, UNCLEAR, BASELINE = "regression", "improved", "same", "unclear", "baseline"
LOST, NEW = "lost", "new"
_LOSES = {schema.SKIPPED: "refused", schema.SUSPECT: "suspect"}
"""How a row that is no longer measured is lost; one that fails is a regression."""
_ENVIRONMENT = (
    "device", "backend", "cores", "build_type", "compiler", "compile_flags", "kokkos_version", "blas", "isa", "seed",
)  # fmt: skip


@dataclass
class Row:
    """One matched row.

    `ratio` is new over old in the sense that more is faster; `lo`, `hi` bound it (quotients of the
    ends of the two intervals). `metric` names the compared quantity, `reasons` say why the verdict
    is not `same`.
    """

    name: str
    identity: dict
    verdict: str
    metric: str = ""
    old: float | None = None
    new: float | None = None
    ratio: float | None = None
    lo: float | None = None
    hi: float | None = None
    reasons: list[str] = field(default_factory=list)


@dataclass
class Comparison:
    """All rows, the drift of the machine, and the verdict. `allow_lost`: rows that the new file
    lacks, refuses or doubts are not a regression."""

    rows: list[Row]
    tolerance: float
    metric: str
    level: float
    drift: tuple[float, float]
    notes: list[str]
    allow_lost: bool = False

    def count(self, verdict: str) -> int:
        """Number of rows with this verdict."""
        return sum(row.verdict == verdict for row in self.rows)

    @property
    def regressions(self) -> int:
        """Number of rows that became worse."""
        return self.count(REGRESSION)

    @property
    def worse(self) -> bool:
        """True when a row became worse or was lost: the exit status is 1."""
        return self.regressions > 0 or (self.count(LOST) > 0 and not self.allow_lost)

    @property
    def untold(self) -> bool:
        """True when nothing became worse but the files tell too little: more rows are unclear than
        are judged, or none is judged. The exit status is 3."""
        judged = self.count(SAME) + self.count(IMPROVED)
        return not self.worse and (judged == 0 or self.count(UNCLEAR) > judged)

    @property
    def mean_ratio(self) -> float | None:
        """The geometric mean of the ratios of the judged rows."""
        ratios = [row.ratio for row in self.rows if row.ratio and math.isfinite(row.ratio) and row.verdict != BASELINE]
        return geometric_mean(ratios) if ratios else None

    @property
    def verdict(self) -> str:
        """One line for people and logs."""
        compared = sum(row.verdict not in (LOST, NEW) for row in self.rows)
        word = "cannot tell" if self.untold else "no regression"
        if self.worse:
            counts = {"REGRESSION": self.regressions, "LOST ROW": 0 if self.allow_lost else self.count(LOST)}
            word = " and ".join(f"{n} {name}{'S'[: n != 1]}" for name, n in counts.items() if n)
        parts = [f"{compared} rows compared"]
        parts += [f"{self.count(v)} {v}" for v in (IMPROVED, UNCLEAR, LOST, NEW) if self.count(v)]
        mean = f", geometric mean of the ratios {self.mean_ratio:.3f}" if self.mean_ratio else ""
        how = f"tolerance {100 * self.tolerance:g} %, joint level {100 * LEVEL:g} %"
        return f"{word}: {', '.join(parts)}{mean} ({how})"

    def as_dict(self) -> dict:
        """Plain values for JSON."""
        counts = {v: self.count(v) for v in (REGRESSION, IMPROVED, SAME, UNCLEAR, BASELINE, LOST, NEW)}
        return {
            "verdict": self.verdict, "regression": self.worse, "cannot_tell": self.untold, "counts": counts,
            "tolerance": self.tolerance, "metric": self.metric, "level_per_row": self.level,
            "drift": list(self.drift), "geometric_mean_ratio": self.mean_ratio, "notes": self.notes,
            "rows": [asdict(row) for row in self.rows],
        }  # fmt: skip


@dataclass
class _Side:
    """One file: its rows by identity, its baselines by case."""

    results: Results
    rows: dict[tuple, dict]
    baselines: dict[tuple, dict]
    case: list[str]

    def baseline(self, row: dict) -> dict | None:
        """The baseline row that was interleaved with this one."""
        return self.baselines.get((row["run"], *(row[name] for name in self.case)))


def compare(
    old: Results, new: Results, tolerance: float = 0.05, metric: str = "auto", allow_lost: bool = False,
    calibration: Calibration | None = None,
) -> Comparison:
    """Matches the rows of two files by their identity columns and judges each one.

    A row is slower if the intervals of old and new do not overlap (see `interval_level`) and the
    change exceeds `tolerance`. Errors may double and memory may grow by a tenth; an ok row that now
    fails is a regression. A row that is now missing, refused or suspect is lost, which is as bad
    unless `allow_lost`.

    Metric `speedup`: the paired speedup over the baseline. `time`: the plain median time. `auto`:
    the speedup; it is unclear when the baseline of the case itself moved by more than `COMPARABLE`,
    or became faster while the row did not become slower (both by `tolerance`). For a row without a
    speedup `auto` takes the time, which must leave the range in which the baseline's times and the
    measured ceilings moved between the two files; it is unclear inside a range wider than
    `COMPARABLE`. The baseline's own times are shown, not judged.

    Where both files counted cycles, a row that became slower or faster must have done so in cycles, too, by the same
    rule (the paired ratio to the baseline's cycles, or the cycles themselves): else it is unclear, as the clock or the
    machine's other work has made the difference.

    Where a file holds runs of several machines, rows match those of the same machine.

    `calibration` widens every interval by the between-runs term of its operator and metric on that machine.
    """
    old, new = believable(old), believable(new)
    if any(len(set(_machines(one))) > 1 for one in (old, new)):
        old, new = (_apart(one) for one in (old, new))
    names, notes = _identity(old.points, new.points)
    sides = [_side(results, names) for results in (old, new)]
    common = [key for key in sides[0].rows if key in sides[1].rows]
    if not common:
        raise InputError(_source(new.points), f"no row in common with {_source(old.points)}", "rows with the same axes")
    notes += _environment_notes(old, new)
    judged = [key for key in common if sides[0].rows[key]["status"] == sides[1].rows[key]["status"] == "ok"]
    level = interval_level(len(judged))
    drift = _drift(sides, judged)
    between = Between(calibration)
    if metric == "auto" and drift[1] / drift[0] > 1.25:
        span = f"{significant(drift[0], 2)}× to {significant(drift[1], 2)}×"
        notes.append(f"between the files the speed of the machine itself moved by {span}")
    every = list(dict.fromkeys([*sides[0].rows, *sides[1].rows]))
    usual = {name: usual_value(list(column)) for name, column in zip(names, zip(*every, strict=True), strict=True)}
    rows = []
    for key in every:
        before, after = (side.rows.get(key) for side in sides)
        row = Row(_name(before or after, usual), dict(zip(names, key, strict=True)), SAME)
        if not before or not after or before["status"] != "ok" or after["status"] != "ok":
            _judge_status(row, before, after)
        else:
            _judge_speed(row, sides, before, after, level, tolerance, metric, drift, between)
            if row.verdict in (REGRESSION, IMPROVED):
                _confirm_in_cycles(row, sides, before, after, level, tolerance)
            _judge_error(row, before, after)
            _judge_memory(row, before, after)
            tiles = [tuple(r[name] for name in schema.EXTENTS) for r in (before, after)]
            if tiles[0] != tiles[1]:
                row.reasons.append(f"tile {tiles[0][0]}x{tiles[0][1]} → {tiles[1][0]}x{tiles[1][1]}")
        if row.verdict:
            rows.append(row)
    notes += between.notes()
    return Comparison(rows, tolerance, metric, level, drift, notes, allow_lost)


class Between:
    """The between-runs terms of a calibration; remembers the operators that it lacks."""

    def __init__(self, calibration: Calibration | None):
        self.calibration = calibration
        self.lacking: list[str] = []

    def widened(self, interval: Interval, op: str, metric: str, level: float) -> Interval:
        """The interval with the term, if there is one."""
        term = self.calibration.between(op, metric) if self.calibration else 0.0
        if term is None and op not in self.lacking:
            self.lacking.append(op)
        return interval.widened(term, level) if term else interval

    def notes(self) -> list[str]:
        """Notes that a reader of the comparison must know."""
        if not self.calibration:
            return []
        machine = self.calibration.machine or "a machine without a name"
        lines = [f"the intervals hold the differences between runs, from {self.calibration.runs} repeats on {machine}"]
        if self.lacking:
            lines.append(f"without a between-runs term: {', '.join(self.lacking)}")
        return lines


def interval_level(rows: int) -> float:
    """The level of each interval that makes all rows together raise a false alarm in 5 % of comparisons.

    Each row may err with probability 0.05 / rows. Two intervals of z standard errors each part only when
    the medians differ by 2 z of them, which is 2 z / sqrt(2) of their difference: so z may be smaller by
    sqrt(2) than for a single interval. Never below 95 %.
    """
    normal = NormalDist()
    z = normal.inv_cdf(1.0 - (1.0 - LEVEL) / (2.0 * max(rows, 1)))
    return max(LEVEL, 2.0 * normal.cdf(z / math.sqrt(2.0)) - 1.0)


def _machines(results: Results) -> list[str]:
    return [results.machine_of(*key) for key in results.points.tuples(["source", "run"])]


def _apart(results: Results) -> Results:
    """The same with the machine as an axis of every row."""
    return replace(results, points=Points({**results.points.columns, "machine": np.array(_machines(results), np.str_)}))


def _source(points: Points) -> str:
    return ", ".join(points.values("source"))


def _identity(old: Points, new: Points) -> tuple[list[str], list[str]]:
    """The identity columns that both files have; a note where one has an axis that the other lacks."""
    names = [name for name in old.identity if name in new]
    notes = []
    for here, there, which in ((old, new, "new"), (new, old, "old")):
        # For a text, "" is the value of operators without this axis.
        held = {
            name: [value for value in here.values(name) if value != ""] for name in here.identity if name not in there
        }
        lacking = [name for name, values in held.items() if len(values) > 1]
        if lacking:
            raise InputError(_source(there), f"no column {', '.join(lacking)}", f"the axes of {_source(here)}")
        fixed = [f"{name} = {values[0]}" for name, values in held.items() if values]
        if fixed:
            notes.append(f"the {which} file has no axis {', '.join(fixed)}: taken to be the same")
    return names, notes


def _side(results: Results, names: list[str]) -> _Side:
    case = [name for name in names if name not in ("variant", *schema.TILES)]
    rows = dict(zip(results.points.tuples(names), results.points.rows(), strict=True))
    baselines = {
        (row["run"], *(row[name] for name in case)): row
        for row in rows.values()
        if row["variant"] == schema.BASELINE and row["status"] == "ok"
    }
    return _Side(results, rows, baselines, case)


def _environment_notes(old: Results, new: Results) -> list[str]:
    notes = []
    for name in _ENVIRONMENT:
        values = [sorted({str(a[name]) for a in r.runs.values() if name in a}) for r in (old, new)]
        if all(values) and values[0] != values[1]:
            notes.append(f"{name} differs: {', '.join(values[0])} → {', '.join(values[1])}")
    return notes


def _name(row: dict, usual: dict) -> str:
    """The distinguishing values of a row, in words: leaves out axes that are off or the same nearly
    everywhere."""
    shown = [name for name, value in usual.items() if row[name] != value]
    words = [str(row[name]) for name in ("label", "op", "pass", "variant", "dtype", "backend")
             if row[name] and (name in shown or name in ("variant", "dtype"))]  # fmt: skip
    axes = [n for n in shown if n not in ("label", "op", "pass", "variant", "dtype", "backend", *schema.TILES)]
    if "seq_q" in axes and "seq_kv" in axes and row["seq_q"] == row["seq_kv"]:
        axes = ["N" if name == "seq_q" else name for name in axes if name != "seq_kv"]
    words += [f"{name}={value_text(row['seq_q' if name == 'N' else name])}" for name in axes]
    words += [f"tile={row['tile_q']}x{row['tile_kv']}"] if row["tile_q"] or row["tile_kv"] else []
    return " ".join(words)


def _judge_status(row: Row, before: dict | None, after: dict | None) -> None:
    if before and before["status"] == "ok":
        if not after:
            row.verdict, row.reasons = LOST, ["missing in the new file"]
        elif after["status"] in _LOSES:
            row.verdict, row.reasons = LOST, [f"now {_LOSES[after['status']]}: {after['reason']}"]
        else:
            row.verdict, row.reasons = REGRESSION, [f"was ok, now {after['status']}: {after['reason']}"]
    elif after and after["status"] == "ok":
        row.verdict, row.reasons = NEW, [f"was {before['status']}" if before else "not in the old file"]
    else:
        # Neither file measured it: nothing to compare and nothing lost.
        row.verdict = ""


def _judge_speed(row: Row, sides, before: dict, after: dict, level, tolerance, metric, drift, between) -> None:
    pair = None if metric == "time" else [_speedup(s, r, level) for s, r in zip(sides, (before, after), strict=True)]
    margin = (1.0, 1.0)
    paired = bool(pair and all(pair))
    if paired:
        row.metric = "speedup"
    elif metric == "speedup":
        row.metric, row.verdict = "", BASELINE if before["variant"] == schema.BASELINE else UNCLEAR
        row.reasons += [] if row.verdict == BASELINE else ["no paired speedup in both files"]
        return
    else:
        row.metric = "time"
        # Faster is more, as for speedups: compare rates, 1 / time.
        pair = [_inverse(_time(s, r, level)) for s, r in zip(sides, (before, after), strict=True)]
        margin = drift if metric == "auto" else margin
    old, new = (between.widened(interval, before["op"], row.metric, level) for interval in pair)
    if not (old.mid > 0 and new.mid > 0 and math.isfinite(old.mid) and math.isfinite(new.mid)):
        row.verdict, row.reasons = UNCLEAR, ["no valid time in both files"]
        return
    values = (old.mid, new.mid) if row.metric == "speedup" else (1 / old.mid, 1 / new.mid)
    row.old, row.new, row.ratio = *values, new.mid / old.mid
    row.lo = new.lo / old.hi if math.isfinite(old.hi) else 0.0
    row.hi = new.hi / old.lo if old.lo > 0 and math.isfinite(new.hi) else None
    if metric == "auto" and before["variant"] == schema.BASELINE and row.metric == "time":
        row.verdict = BASELINE
        return
    moved = _baseline_ratio(sides, before, after) if paired and metric == "auto" else 1.0
    own = before["time_s"] / after["time_s"] if after["time_s"] > 0 else math.nan
    floor, roof = min(margin[0], 1.0), max(margin[1], 1.0)
    upper = math.inf if row.hi is None else row.hi
    if (1.0 - tolerance) * floor <= row.ratio <= (1.0 + tolerance) * roof:
        row.verdict = SAME
        if roof > COMPARABLE * floor:
            row.verdict = UNCLEAR
            row.reasons = [f"the machine itself moved by {significant(floor, 2)}× to {significant(roof, 2)}×"]
    elif not 1.0 / COMPARABLE <= moved <= COMPARABLE:
        row.verdict = UNCLEAR
        row.reasons = [f"{schema.BASELINE} ran at {significant(moved, 2)}× its old speed: not the same conditions"]
    elif paired and row.ratio < 1.0 and moved > 1.0 + tolerance and own >= 1.0 - tolerance:
        row.verdict = UNCLEAR
        row.reasons = [f"{schema.BASELINE} ran at {moved:.2f}× its old speed, it itself at {own:.2f}×: it lost nothing"]
    elif row.ratio < 1.0 and upper < floor:
        row.verdict, row.reasons = REGRESSION, [f"{row.ratio:.2f}× the old {'speedup' if paired else 'speed'}"]
        if paired:
            base = _baseline_ratio(sides, before, after)
            row.reasons.append(f"its own speed {own:.2f}×, {schema.BASELINE}'s {base:.2f}×")
    elif row.ratio > 1.0 and row.lo > roof:
        row.verdict = IMPROVED
    else:
        row.verdict, row.reasons = UNCLEAR, ["the intervals overlap"]


def _confirm_in_cycles(row: Row, sides, before: dict, after: dict, level, tolerance) -> None:
    """Takes back the verdict on a row whose cycles do not bear it out. Without cycles in both files it stands."""
    old, new = (_cycle_rate(s, r, level, row.metric) for s, r in zip(sides, (before, after), strict=True))
    if not old or not new:
        return
    ratio = new.mid / old.mid
    worse = ratio < 1.0 - tolerance and new.hi < old.lo
    better = ratio > 1.0 + tolerance and new.lo > old.hi
    if worse if row.verdict == REGRESSION else better:
        row.reasons.append(f"confirmed in cycles: {ratio:.2f}×")
        return
    row.verdict = UNCLEAR
    row.reasons = [f"{row.ratio:.2f}× the old {'speedup' if row.metric == 'speedup' else 'speed'}, "
                   f"not confirmed in cycles: {ratio:.2f}×"]  # fmt: skip
    if all(math.isfinite(r["ghz"]) for r in (before, after)):
        row.reasons.append(f"clock {before['ghz']:.2f} → {after['ghz']:.2f} GHz")


def _cycle_rate(side: _Side, row: dict, level: float, metric: str) -> Interval | None:
    """The speed of a row in cycles, more is faster: the baseline's cycles by its own for the metric `speedup`, else
    one by its own. None where they were not counted."""
    own = side.results.cycles_of(row)
    if own is None:
        return None
    base = side.baseline(row) if metric == "speedup" else None
    over = np.ones_like(own) if metric != "speedup" else side.results.cycles_of(base) if base else None
    return paired_ratio(over, own, level) if over is not None else None


def _baseline_ratio(sides, before: dict, after: dict) -> float:
    """Factor by which the baseline of the case became faster; 1 when a file has none."""
    bases = [side.baseline(row) for side, row in zip(sides, (before, after), strict=True)]
    return bases[0]["time_s"] / bases[1]["time_s"] if all(bases) and bases[1]["time_s"] > 0 else 1.0


def _speedup(side: _Side, row: dict, level: float) -> Interval | None:
    """The paired speedup at `level` from the samples; the file's own 95 % interval when it kept
    none."""
    base = side.baseline(row)
    if row["variant"] == schema.BASELINE:
        return None
    if base:
        pair = [side.results.samples_of(r) for r in (base, row)]
        if all(samples is not None and len(samples) for samples in pair):
            return paired_ratio(*pair, level)
    values = [row[name] for name in ("speedup", "speedup_lo", "speedup_hi")]
    return Interval(*values) if np.all(np.isfinite(values)) and min(values[0], values[2]) > 0 else None


def _time(side: _Side, row: dict, level: float) -> Interval:
    samples = side.results.samples_of(row)
    samples = samples[samples > 0] if samples is not None else ()
    if len(samples):
        return median_interval(samples, level)
    return Interval(row["time_s"], row["time_lo_s"], row["time_hi_s"])


def _inverse(time: Interval) -> Interval:
    def over(value: float) -> float:
        return 1.0 / value if value > 0 else math.inf

    return Interval(over(time.mid), over(time.hi), over(time.lo))


def _drift(sides: list[_Side], judged: list[tuple]) -> tuple[float, float]:
    """The range of factors by which the speed of the machine itself moved from old to new.

    It comes from numbers that no change of a kernel moves: the baseline's times and the ceilings. 1
    belongs to the range.
    """
    moved = [1.0]
    for key in judged:
        before, after = (side.rows[key] for side in sides)
        if before["variant"] == schema.BASELINE and before["time_s"] > 0 and after["time_s"] > 0:
            moved.append(before["time_s"] / after["time_s"])
    apart = "machine" in sides[0].results.points
    ceilings = [
        {(c.name, c.threads, apart and side.results.machine_of(c.source, c.run)): c.value
         for c in side.results.ceilings if c.value > 0}
        for side in sides
    ]  # fmt: skip
    moved += [ceilings[1][name] / value for name, value in ceilings[0].items() if name in ceilings[1]]
    moved = [factor for factor in moved if 0 < factor < math.inf]
    return min(moved), max(moved)


def _judge_error(row: Row, before: dict, after: dict) -> None:
    for name in ("max_abs_err", "mean_abs_err"):
        old, new = before[name], after[name]
        if math.isfinite(old) and not new <= ERROR_GROWTH * old:
            row.verdict = REGRESSION
            row.reasons.append(f"{name} {error_text(old)} → {error_text(new)}")


def _judge_memory(row: Row, before: dict, after: dict) -> None:
    for name in ("workspace_bytes", "total_bytes"):
        if after[name] > MEMORY_GROWTH * before[name]:
            row.verdict = REGRESSION
            row.reasons.append(f"{name} {bytes_text(before[name])} → {bytes_text(after[name])}")
