"""Performance portability: how near to each machine's limit, and to the best program there, one source comes.

For every operator, pass and dtype, an *operation*, and every machine the efficiency of Katt's fastest variant
(the naive ones apart) is

- architectural: the share of the measured ceiling that binds the row, `ceiling_fraction`, at most 1;
- of application: the time of the fastest program at the point / Katt's, paired by rounds, at most 1.

Over the points of an operation the efficiency is the geometric mean, over the machines H

    P(a, p, H) = |H| / sum over i in H of 1 / e_i(a, p),  0 where a machine of H does not support the operation

(Pennycook, Sewall & Lee, *Implications of a metric for performance portability*, Future Generation Computer Systems
92, 2019). Both means grow with each of their terms. So the means of all lower ends and of all upper ends of the rows'
95 % intervals bound them, also where the errors of a machine's rows have a common cause; where the errors are
independent, the interval is wider than it need be.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np

from katt_report import schema
from katt_report.groups import sort_dtypes
from katt_report.load import Results
from katt_report.published.files import peers_of, plain_values, point_axes
from katt_report.published.fresh import machine_of
from katt_report.ratios import ratio_of
from katt_report.statistics import Interval

OURS, BEST_PEER = "Katt", "best peer"
LIMITS, PEERS = "limits", "peers"
ZERO = Interval(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Case:
    """One point of an operation on one machine: what each program reached there.

    `ours` is Katt's variant and `row` its name in the run, both "" when it refused the point; `files` are the project's
    that the variant is made of, none in files older than the column `code`.
    """

    machine: str
    operation: tuple[str, str, str]
    point: tuple
    threads: int
    started_at: str
    source: str
    run: str
    row: str
    ours: str
    files: frozenset[str]
    shares: dict[str, Interval]
    efficiencies: dict[str, Interval]


@dataclass(frozen=True)
class Cell:
    """The efficiency of one program on one machine, over all points of the operation; `refused` of them were."""

    efficiency: Interval
    refused: int


@dataclass(frozen=True)
class Operation:
    """One operator, pass and dtype at the points that all of its machines have.

    `cells` maps a machine to its programs, `portability` a program to P over all of these machines, `files` a machine
    to those that Katt's variants there are made of.
    """

    op: str
    pass_name: str
    dtype: str
    points: int
    cells: dict[str, dict[str, Cell]]
    portability: dict[str, Interval]
    files: dict[str, frozenset[str]]

    @property
    def name(self) -> str:
        """Operator and pass."""
        return f"{self.op} {self.pass_name}"


@dataclass(frozen=True)
class Portability:
    """The operations by kind of efficiency, LIMITS or PEERS, the machines, and the cases that counted.

    `shares` holds the operations of PEERS with the shares of the limit at the points of that kind.
    """

    machines: list[str]
    operations: dict[str, list[Operation]]
    shares: list[Operation]
    cases: list[Case]

    def mean(self, kind: str) -> tuple[Interval, int] | None:
        """The geometric mean of Katt's P over the operations of several machines, and their number."""
        values = [p.portability[OURS] for p in self.operations[kind] if OURS in p.portability]
        return (geometric_mean(values), len(values)) if values else None


def portability(parts: list[Results]) -> Portability:
    """The efficiencies of all operations that the files hold; each file a `Results` of its own.

    The case with the most threads counts among several of one point on one machine, and the latest of these.
    """
    peers, axes = peers_of(parts), point_axes(parts)
    cases = [case for part in parts for case in _cases(part, axes, peers)]
    cases.sort(key=lambda case: (case.threads, case.started_at, case.source, case.run))
    limits = _operations(cases, lambda case: case.shares, (OURS,))
    compared = [case for case in cases if len(case.efficiencies) > 1]
    apps = sorted({name for case in compared for name in case.efficiencies})
    relative = _operations(compared, lambda case: case.efficiencies, apps)
    shares = _operations(compared, lambda case: case.shares, (OURS, BEST_PEER))
    machines = sorted({machine for operation in [*limits, *relative] for machine in operation.cells})
    return Portability(machines, {LIMITS: limits, PEERS: relative}, shares, cases)


def _cases(results: Results, axes: dict[str, list[str]], peers: set[str]) -> list[Case]:
    groups: dict[tuple, list[dict]] = {}
    names = [n for n in results.points.identity if n not in ("variant", *schema.TILES)]
    for row in results.points.rows():
        if not row.get("ranks"):  # what ranks exchange has no ceiling of the machine
            groups.setdefault((row["source"], row["run"], *plain_values(row, names)), []).append(row)
    cases = (_case(results, rows, axes, peers) for rows in groups.values())
    return [case for case in cases if case]


def _case(results: Results, rows: list[dict], axes: dict[str, list[str]], peers: set[str]) -> Case | None:
    own = [row for row in rows if row["variant"] not in peers and not row["variant"].startswith(schema.BASELINE)]
    measured = [row for row in own if row["status"] == "ok"]
    if not own or not measured and any(row["status"] == schema.SUSPECT for row in own):
        return None
    first = own[0]
    ours = min(measured, key=lambda row: row["time_s"], default=None)
    programs = {OURS: ours} if ours else {}
    for row in rows:
        if row["variant"] in peers and row["status"] == "ok":
            programs[row["variant"]] = row
    shares = {name: share for name, row in programs.items() if (share := _share(row))}
    efficiencies = _efficiencies(results, programs)
    if not ours and len(programs) == 1:  # the only one that ran is the fastest
        efficiencies = dict.fromkeys(programs, Interval(1.0, 1.0, 1.0))
    best = max((name for name in efficiencies if name != OURS), key=lambda n: efficiencies[n].mid, default="")
    for values in (shares, efficiencies):
        if best in values:
            values[BEST_PEER] = values[best]
    if not ours:
        shares[OURS] = efficiencies[OURS] = ZERO
    about = results.runs.get((first["source"], first["run"]), {})
    point = plain_values(first, axes[first["op"]])
    return Case(machine_of(results, first), (first["op"], first["pass"], first["dtype"]), point, first["threads"],
                str(about.get("started_at", "")), first["source"], first["run"], ours["point"] if ours else "",
                ours["variant"] if ours else "", frozenset(results.code.get(ours["code"], ()) if ours else ()),
                shares, efficiencies)  # fmt: skip


def _share(row: dict) -> Interval | None:
    """The share of the ceiling, in inverse proportion to the ends of the time; None without a ceiling or interval."""
    share, time, low, high = (row[name] for name in ("ceiling_fraction", "time_s", "time_lo_s", "time_hi_s"))
    if not (share > 0 and math.isfinite(share) and low > 0 and math.isfinite(high)):
        return None
    return _capped(Interval(share, share * time / high, share * time / low))


def _efficiencies(results: Results, programs: dict[str, dict]) -> dict[str, Interval]:
    """Efficiency of each program: the time of the fastest other one / its own, at most 1."""
    found = {}
    for name, row in programs.items():
        ratios = [ratio_of(results, other, row) for key, other in programs.items() if key != name]
        bounded = [ratio for ratio in ratios if ratio and ratio.lo > 0 and math.isfinite(ratio.hi)]
        if bounded:
            found[name] = _capped(min(bounded, key=lambda ratio: ratio.mid))
    return found


def _capped(value: Interval) -> Interval:
    return Interval(*(min(1.0, end) for end in (value.mid, value.lo, value.hi)))


def _operations(cases: list[Case], values, programs) -> list[Operation]:
    found = {}
    for case in cases:  # a later one replaces an earlier one, a refusal no measurement
        point = found.setdefault(case.operation, {}).setdefault(case.machine, {})
        if OURS in values(case) and (case.ours or case.point not in point):
            point[case.point] = case
    dtypes = sort_dtypes({key[2] for key in found})
    order = sorted(found, key=lambda key: (key[0], key[1] != "forward", key[1], dtypes.index(key[2])))
    operations = [_operation(key, found[key], values, programs) for key in order]
    return [operation for operation in operations if operation]


def _operation(key: tuple, machines: dict[str, dict[tuple, Case]], values, programs) -> Operation | None:
    points = _common(machines)
    if not any(case.ours for cases in machines.values() for point, case in cases.items() if point in points):
        return None  # a peer that nobody has, or a variant for other machines alone: no measurement of Katt
    cells, files = {}, {}
    for machine in sorted(machines):
        held = [machines[machine].get(point) for point in points]
        if None in held:
            continue
        reached = {
            name: [values(case)[name] for case in held]
            for name in programs
            if all(name in values(case) for case in held)
        }
        refused = sum(not case.ours for case in held)
        if all(case.files for case in held):
            files[machine] = frozenset().union(*(case.files for case in held))
        cells[machine] = {
            name: Cell(geometric_mean(each), refused if name == OURS else 0) for name, each in reached.items()
        }
    several = len(cells) > 1
    return Operation(*key, len(points), cells, {
        name: harmonic_mean([cell[name].efficiency for cell in cells.values()])
        for name in programs if several and all(name in cell for cell in cells.values())
    }, files)  # fmt: skip


def convergence(operation: Operation, size: Callable[[str], int]) -> float:
    """The share of Katt's code that the machines of an operation have in common; NaN where not all tell their files.

    One minus the mean over pairs of machines of the Jaccard distance of their code (Harrell & Kitson, *Effective
    performance portability*, P3HPC 2018). `size` says how many lines a file has.
    """
    if len(operation.files) < max(2, len(operation.cells)):
        return math.nan
    return float(np.mean([
        sum(map(size, one & two)) / max(sum(map(size, one | two)), 1)
        for one, two in combinations(operation.files.values(), 2)
    ]))  # fmt: skip


def _common(machines: dict[str, dict[tuple, Case]]) -> list[tuple]:
    """The points of the most machines that have any in common; of several sets of machines the one with most points."""
    holders: dict[tuple, set[str]] = {}
    for machine, points in machines.items():
        for point in points:
            holders.setdefault(point, set()).add(machine)
    counts = Counter(frozenset(names) for names in holders.values())
    chosen = max(counts, default=frozenset(), key=lambda names: (
        len(names), sum(count for others, count in counts.items() if others >= names), sorted(names)))  # fmt: skip
    return [point for point, names in holders.items() if names >= chosen]


def geometric_mean(values: list[Interval]) -> Interval:
    """Geometric mean of all middles, all lower ends and all upper ends; 0 where one is not positive."""
    return _each(values, lambda ends: 0.0 if min(ends) <= 0 else float(np.exp(np.mean(np.log(ends)))))


def harmonic_mean(values: list[Interval]) -> Interval:
    """Harmonic mean of all middles, all lower ends and all upper ends; 0 where one is not positive."""
    return _each(values, lambda ends: 0.0 if min(ends) <= 0 else len(ends) / math.fsum(1.0 / end for end in ends))


def _each(values: list[Interval], mean) -> Interval:
    return Interval(*(mean([getattr(value, end) for value in values]) for end in ("mid", "lo", "hi")))


def lines_below(root: Path) -> Callable[[str], int]:
    """The number of lines that are not blank in a file of a source tree; 0 for a file that it lacks."""

    @cache
    def lines(path: str) -> int:
        file = (root / path).resolve()
        if not file.is_relative_to(root.resolve()) or not file.is_file():  # a foreign file may name any path
            return 0
        return sum(bool(line.strip()) for line in file.read_text("utf-8", "replace").splitlines())

    return lines
