"""Worth of one run's intervals for the next run: coverage, the between-runs term, and false alarms.

The input is a file with the same sweep many times, a run each (experiments/calibration).
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from katt_report import schema
from katt_report.errors import InputError
from katt_report.load import Results, moment
from katt_report.points import Points
from katt_report.statistics import Interval, between_runs, coverage, coverage_left_out

METRICS = {
    "speedup": ("speedup", "speedup_lo", "speedup_hi"),
    "time": ("time_s", "time_lo_s", "time_hi_s"),
    "paired ratio": ("paired_ratio", "paired_ratio_lo", "paired_ratio_hi"),
}
"""The medians whose coverage is judged, with the columns of their intervals."""
FEWEST_RUNS = 3
SLOWDOWNS = (0.02, 0.05, 0.10, 0.30)
_MOST_BASES = 4
_TRIES = 3
"""Sweeps in a row that scripts/check_regression asks for."""


@dataclass(frozen=True)
class Term:
    """An operator and metric: the rows and pairs of runs behind it, the term, and the coverage.

    `between` is relative, as `statistics.between_runs` defines it. `before` is the share of later medians in an
    earlier 95 % interval, `after` that in the interval of a repeat with the term, which was fitted without the run
    that is judged.
    """

    op: str
    metric: str
    rows: int
    pairs: int
    between: float
    before: float
    after: float


@dataclass(frozen=True)
class Calibration:
    """The terms of one machine. `minutes` are those from the first run's start to the last's."""

    machine: str
    commits: list[str]
    runs: int
    minutes: float
    terms: list[Term]

    def between(self, op: str, metric: str) -> float | None:
        """The term of an operator, or None when it was not calibrated."""
        return next((term.between for term in self.terms if (term.op, term.metric) == (op, metric)), None)


@dataclass(frozen=True)
class Alarm:
    """How often a rule says that a program is slower, which is so by `slowdown` (0: it is the same program).

    `any_row`: the share of comparisons that end with an alarm when all rows but naive's are slower. `one_row`: the
    share of slower rows that are called a regression. `untold`: comparisons that cannot tell.
    """

    rule: str
    calibrated: bool
    slowdown: float
    comparisons: int
    any_row: float
    untold: float
    one_row: float


def runs_of(results: Results, file: Path) -> list[Results]:
    """The runs of a file that holds every row, in the order of their starts. Throws InputError for too few, for runs of
    several machines, and where no row has intervals to compare."""
    keys = sorted(set(results.points.tuples(["source", "run"])), key=lambda key: (_start(results, key) or 0.0, key))
    machines = {results.machine_of(*key) for key in keys}
    if len(machines) > 1:
        raise InputError(file, f"runs of {len(machines)} machines", "repeats on one")
    if len(keys) < FEWEST_RUNS:
        raise InputError(file, f"{len(keys)} run{'s'[: len(keys) != 1]}", f"the same sweep at least {FEWEST_RUNS} times")
    runs = [
        replace(
            results,
            points=results.points.match(["source", "run"], key),
            samples={name: value for name, value in results.samples.items() if name[:2] == key},
            runs={name: value for name, value in results.runs.items() if name == key},
            ceilings=[ceiling for ceiling in results.ceilings if (ceiling.source, ceiling.run) == key],
            profiles={},
        )
        for key in keys
    ]
    if all(len(row) - row.count(None) < 2 for rows in _series(runs).values() for row in rows):
        raise InputError(file, "no row with an interval in two runs", "repeats of one sweep of several rounds")
    return runs


def calibrate(runs: list[Results]) -> Calibration:
    """The terms and coverages of repeated runs of one sweep."""
    series = _series(runs)
    terms = []
    for metric in METRICS:
        for op in sorted({op for op, name in series if name == metric}):
            rows = series[op, metric]
            pairs = sum(count * (count - 1) // 2 for count in (sum(one is not None for one in row) for row in rows))
            if pairs:
                terms.append(Term(op, metric, len(rows), pairs, between_runs(rows), coverage(rows),
                                  coverage_left_out(rows)))  # fmt: skip
    about = [about for one in runs for about in one.runs.values()]
    starts = [start for one in runs for key in one.runs if (start := _start(one, key)) is not None]
    return Calibration(
        _machine(runs),
        list(dict.fromkeys(str(one["commit"])[:12] for one in about if one.get("commit"))),
        len(runs),
        (max(starts) - min(starts)) / 60 if starts else math.nan,
        terms,
    )


def alarms(runs: list[Results]) -> list[Alarm]:
    """False alarms and detections of `compare` and of scripts/check_regression between runs of equal programs.

    A few runs, evenly spread, are the old file, and each later run is the new one. A slowdown multiplies the samples,
    cycles and times of all variants but naive in the new file. The between-runs terms are fitted without the two runs.
    """
    from katt_report.compare import REGRESSION, compare

    bases = sorted({round(index) for index in np.linspace(0, len(runs) - 2, min(_MOST_BASES, len(runs) - 1))})
    terms = {(base, new): calibrate_terms([run for at, run in enumerate(runs) if at not in (base, new)])
             for base in bases for new in range(base + 1, len(runs))}  # fmt: skip
    rules = (("compare", 0.05, 1), ("compare --tolerance 0.02", 0.02, 1), ("check_regression", 0.25, _TRIES))
    found = []
    for slowdown in (0.0, *SLOWDOWNS):
        slower = [slowed(run, 1.0 + slowdown) for run in runs]
        for rule, tolerance, tries in rules:
            for calibrated in (False, True):
                status, rows = {}, []
                for (base, new), fitted in terms.items():
                    judged = compare(runs[base], slower[new], tolerance, calibration=fitted if calibrated else None)
                    status[base, new] = 1 if judged.worse else 3 if judged.untold else 0
                    rows += [row.verdict == REGRESSION for row in judged.rows if row.metric == "speedup"]
                rounds = [[status[base, new + step] for step in range(tries)]
                          for base in bases for new in range(base + 1, len(runs) - tries + 1)]  # fmt: skip
                if rounds:
                    worse = [all(one == 1 for one in tried) for tried in rounds]
                    untold = [3 in tried and 0 not in tried for tried in rounds]
                    found.append(Alarm(rule, calibrated, slowdown, len(rounds), _share(worse), _share(untold),
                                       _share(rows) if tries == 1 else math.nan))  # fmt: skip
    return found


def calibrate_terms(runs: list[Results]) -> Calibration | None:
    """The terms alone, without coverages; None when there are too few runs for one."""
    if len(runs) < 2:
        return None
    terms = [Term(op, metric, len(rows), 0, between_runs(rows), math.nan, math.nan)
             for (op, metric), rows in _series(runs).items()]  # fmt: skip
    return Calibration(_machine(runs), [], len(runs), math.nan, [term for term in terms if math.isfinite(term.between)])


def with_between_runs(results: Results, calibration: Calibration) -> Results:
    """A copy whose intervals are `Interval.widened` by the terms of their operators; `note` of such a row says so.

    Ratios to peers, and those to a baseline of the reader's choice, which come from samples, stay as they are.
    """
    machine = calibration.machine or "a machine without a name"
    chosen = results.baseline != schema.BASELINE
    others = results.baseline if chosen else "peers" if results.peers else ""
    without = f"; those of ratios to {others} do not" if others else ""
    metrics = {name: columns for name, columns in METRICS.items() if name != "speedup" or not chosen}
    points = {name: column.copy() for name, column in results.points.columns.items()}
    notes = points["note"].astype(object)
    for index, op in enumerate(points["op"].tolist()):
        known = []
        for metric, (mid, lo, hi) in metrics.items():
            term = calibration.between(op, metric)
            interval = Interval(points[mid][index], points[lo][index], points[hi][index])
            if term is None or not 0 < interval.lo <= interval.mid <= interval.hi < math.inf or interval.lo == interval.hi:
                continue  # no term, no measurement, or the row that the others are compared with
            wide = interval.widened(term)
            points[lo][index], points[hi][index] = wide.lo, wide.hi
            known.append(f"{metric} {100 * term:.1f} %")
        if known:
            said = (f"intervals of {op} hold the differences between {calibration.runs} runs on {machine}: "
                    f"{', '.join(known)}{without}")  # fmt: skip
            notes[index] = "; ".join(part for part in (notes[index], said) if part)
    return replace(results, points=Points({**points, "note": notes.astype(np.str_)}))


def slowed(results: Results, factor: float) -> Results:
    """A copy in which every variant but naive takes `factor` times as long."""
    points = dict(results.points.columns)
    ours = points["variant"] != schema.BASELINE
    for name in ("time_s", "time_lo_s", "time_hi_s"):
        points[name] = np.where(ours, points[name] * factor, points[name])
    for name in ("tflops", "gbytes_s", "speedup", "speedup_lo", "speedup_hi"):
        points[name] = np.where(ours, points[name] / factor, points[name])
    keys = set(results.points.where(ours).tuples(["source", "run", "point"]))
    samples, cycles = (
        {key: value * factor if key in keys else value for key, value in held.items()}
        for held in (results.samples, results.cycles)
    )
    return replace(results, points=Points(points), samples=samples, cycles=cycles)


def _machine(runs: list[Results]) -> str:
    return next((one.machine_of(*key) for one in runs for key in one.runs), "")


def _share(flags: list[bool]) -> float:
    return sum(flags) / len(flags) if flags else math.nan


def _start(results: Results, key: tuple) -> float | None:
    started = moment(results.runs.get(key, {}).get("started_at"))
    return started.timestamp() if started else None


def _series(runs: list[Results]) -> dict[tuple[str, str], list[list[Interval | None]]]:
    """By operator and metric: for every row its intervals, run by run."""
    names = runs[0].points.identity
    places: dict[tuple, list] = {}
    for index, run in enumerate(runs):
        points = run.points.where(status="ok")
        for key, row in zip(points.tuples(names), points.rows(), strict=True):
            for metric, columns in METRICS.items():
                interval = Interval(*(row[name] for name in columns))
                if not (0 < interval.lo and interval.hi < math.inf) or interval.lo == interval.hi == 1.0:
                    continue  # not measured, or the row that the others are compared with
                series = places.setdefault((row["op"], metric, key), [None] * len(runs))
                series[index] = interval
    found: dict[tuple[str, str], list] = {}
    for (op, metric, _), series in places.items():
        found.setdefault((op, metric), []).append(series)
    return found
