"""Judges the baselines: is `naive` the code that a careful user writes?

The rule of docs/measuring.md: in every case `naive` takes at most `LIMIT` times as long as the same
unfused steps in PyTorch eager, measured in the same rounds. Cases above the limit, and cases
without a comparison, need an explanation.
"""

import math
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from katt_report import schema
from katt_report.errors import InputError
from katt_report.load import Results, text_of
from katt_report.ratios import ratio_of
from katt_report.statistics import Interval, geometric_mean
from katt_report.text import columns_text, list_text, names_text, ratio_text, seconds_text, usual_value

LIMIT = 1.5
PEER = "torch_eager"
_NOT_SHOWN = ("op", "pass", "dtype", "variant", "run", "commit", "backend", "threads", *schema.TILES)


@dataclass(frozen=True)
class Explanation:
    """The reason why rows may be above the limit: the rows whose columns hold the values of
    `rows`."""

    rows: dict
    reason: str

    def covers(self, row: dict) -> bool:
        """True when the row is one of them."""
        return all(row.get(name) == value for name, value in self.rows.items())


@dataclass
class Case:
    """One case: naive's time over the peer's, or the reason why there is no ratio."""

    row: dict  # of the baseline
    peer_time_s: float = math.nan
    ratio: Interval | None = None
    missing: str = ""
    explanation: Explanation | None = None

    def above(self, limit: float) -> bool:
        """True when the median of the paired ratios is above the limit, or there is none."""
        return self.ratio is None or self.ratio.mid > limit


@dataclass
class Verdict:
    """The cases of a file, worst first; cases without a ratio come before all others."""

    cases: list[Case]
    limit: float
    peer: str
    idle: list[Explanation]  # that cover no case above the limit

    @property
    def unexplained(self) -> list[Case]:
        """The cases that break the rule: the exit status is 1 if there are any."""
        return [case for case in self.cases if case.above(self.limit) and case.explanation is None]


def judge(results: Results, explanations: list[Explanation], limit: float = LIMIT, peer: str = PEER) -> Verdict:
    """Compares naive with the peer in every case with a baseline.

    The ratio is the median over the rounds of naive's sample divided by the peer's sample of the
    same round, the quotient of the two medians when the file has no samples.
    """
    points = results.points
    names = ["run", *(name for name in points.identity if name not in ("variant", "run", *schema.TILES))]
    keys = points.tuples(names)
    peers = {key: row for key, row in zip(keys, points.rows(), strict=True) if row["variant"] == peer}
    cases = []
    for key, row in zip(keys, points.rows(), strict=True):
        if row["variant"] == schema.BASELINE:
            cases.append(_case(results, row, peers.get(key), peer))
    if not any(case.ratio for case in cases):
        raise InputError(list_text(points.values("source")), f"no case with {schema.BASELINE} and {peer}",
                         "the result of a sweep with both")  # fmt: skip
    for case in cases:
        case.explanation = next((e for e in explanations if e.covers(case.row)), None)
    used = [case.explanation for case in cases if case.above(limit)]
    cases.sort(key=lambda case: -case.ratio.mid if case.ratio else -math.inf)
    return Verdict(cases, limit, peer, [e for e in explanations if e not in used])


def _case(results: Results, row: dict, other: dict | None, peer: str) -> Case:
    for measured, name in ((row, schema.BASELINE), (other, peer)):
        if measured is None:
            return Case(row, missing=f"no row of {name}")
        if measured["status"] != "ok":
            return Case(row, missing=f"{name} {measured['status']}: {measured['reason']}")
    ratio = ratio_of(results, row, other)
    if ratio is None:
        quotient = row["time_s"] / other["time_s"] if other["time_s"] > 0 else math.nan
        ratio = Interval(quotient, quotient, quotient) if math.isfinite(quotient) and quotient > 0 else None
    return Case(row, other["time_s"], ratio, "" if ratio else "no valid times")


def read_explanations(path: Path, columns: list[str]) -> list[Explanation]:
    """The tables [[explained]] of a TOML file, if any: columns and their values, and `reason`, which is not empty."""
    kind = "tables [[explained]] of columns and a reason"
    try:
        document = tomllib.loads(text_of(path, kind))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(path, f"no TOML ({error})", kind) from error
    tables = document.get("explained", [])
    if set(document) - {"explained"} or not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        raise InputError(path, f"the keys {', '.join(document)}", kind)
    explanations = []
    for number, table in enumerate(tables, 1):
        reason = table.pop("reason", "")
        if not isinstance(reason, str) or not reason.strip():
            raise InputError(path, f"[[explained]] number {number} without a reason", "a text as its reason")
        unknown = [name for name in table if name not in columns]
        if unknown or not table:
            raise InputError(path, f"[[explained]] number {number} with {', '.join(unknown) or 'no column'}",
                             "columns of the result file")  # fmt: skip
        explanations.append(Explanation(table, reason.strip()))
    return explanations


def table_text(verdict: Verdict) -> str:
    """The rows above the limit with their explanations, the nearest below it, and the verdict as the last line."""
    above = [case for case in verdict.cases if case.above(verdict.limit)]
    below = [case for case in verdict.cases if not case.above(verdict.limit)]
    lines = [("case", schema.BASELINE, verdict.peer, "ratio", "interval", "")]
    lines += _lines(verdict, above + below[:5])
    text = columns_text(lines)
    if below[5:]:
        text.append(f"({len(below) - 5} more at most {ratio_text(below[5].ratio.mid)})")
    for explanation in verdict.idle:
        text.append(f"note: nothing needs the explanation of {names_text(*zip(*explanation.rows.items()))}")
    broken = len(verdict.unexplained)
    mean = geometric_mean([case.ratio.mid for case in verdict.cases if case.ratio])
    text.append(
        f"{broken or 'no'} unexplained case{'s'[: broken != 1]} above {verdict.limit:g}: {len(verdict.cases)} cases, "
        f"{len(above) - broken} explained, geometric mean {ratio_text(mean)}"
    )
    return "\n".join(text)


def _lines(verdict: Verdict, cases: list[Case]) -> Iterator[tuple]:
    axes = [name for name in verdict.cases[0].row if schema.is_identity(name) and name not in _NOT_SHOWN]
    for case in cases:
        op = [other.row for other in verdict.cases if other.row["op"] == case.row["op"]]
        shown = [n for n in axes if len({row[n] for row in op}) > 1 and case.row[n] != usual_value([r[n] for r in op])]
        words = [case.row["op"], case.row["pass"], case.row["dtype"]]
        name = " ".join(words) + (f" {names_text(shown, [case.row[n] for n in shown])}" if shown else "")
        why = "unexplained" if case.above(verdict.limit) else ""
        if why and case.explanation:
            why = case.explanation.reason
        if case.ratio is None:
            yield (name, "", "", "", "", f"{case.missing}; {why}")
            continue
        interval = f"{ratio_text(case.ratio.lo)}–{ratio_text(case.ratio.hi)}"
        yield (name, seconds_text(case.row["time_s"]), seconds_text(case.peer_time_s), ratio_text(case.ratio.mid),
               interval, why)  # fmt: skip
