"""The statistics of the report: intervals of medians, paired ratios, fitted powers."""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np


@dataclass(frozen=True)
class Interval:
    """A median and the interval that holds the true one at the requested level."""

    mid: float
    lo: float
    hi: float

    def widened(self, between: float, level: float = 0.95) -> "Interval":
        """The interval of the median over all runs of the program, of which this run is one.

        `between` is the standard deviation of the logarithm of a run's true median from run to run. Both half-widths
        grow in quadrature, in logarithms: h → √(h² + z² between²), with the normal quantile z of the level.
        """
        return self._grown(1.0, between, level)

    def repeated(self, between: float = 0.0, level: float = 0.95) -> "Interval":
        """The interval of a later run's median, as precise as this one: `widened`, and √2 as wide.

        Both medians err, so even without a difference between runs a 95 % interval for the true median holds
        only 83 % of later medians.
        """
        return self._grown(2.0, between, level)

    def _grown(self, medians: float, between: float, level: float) -> "Interval":
        if not 0 < self.lo <= self.mid <= self.hi < math.inf:
            return self
        more = NormalDist().inv_cdf((1.0 + level) / 2.0) * between
        low, high = (math.sqrt(medians * (math.log(end / self.mid) ** 2 + more**2)) for end in (self.lo, self.hi))
        return Interval(self.mid, self.mid * math.exp(-low), self.mid * math.exp(high))


def geometric_mean(values) -> float:
    """Geometric mean of positive numbers."""
    return float(np.exp(np.mean(np.log(values))))


def median_interval(samples, level: float = 0.95) -> Interval:
    """Median of positive samples with an interval that assumes nothing of their distribution.

    Order statistics: with n independent samples the k-th smallest and k-th largest enclose the median
    with probability 1 - 2 P(Bin(n, 1/2) < k); the largest k that reaches `level` is taken. Rounds of a
    busy machine are not independent: n is reduced, see `effective_count`. Where too few samples are left
    for the level even with k = 1, the interval is Student's for the mean of the logarithms, widened to
    hold every sample. One sample: no bound at all.

    src/measure/statistics.cpp computes the same at 95 % for result files, to the last bit; so sums are
    taken one by one, and logarithms are those of the C library.
    """
    ordered = sorted(float(sample) for sample in samples)
    size = len(ordered)
    mid = (ordered[(size - 1) // 2] + ordered[size // 2]) / 2
    if size < 2:
        return Interval(mid, 0.0, math.inf)
    count = effective_count(samples)
    rank = _median_rank(count, level)
    if rank:
        index = max(rank * size // count, 1)
        return Interval(mid, ordered[index - 1], ordered[-index])
    logs = [math.log(sample) for sample in ordered]
    centre = _sum(logs) / size
    away = [value - centre for value in logs]
    deviation = math.sqrt(_sum(value * value for value in away) / (size - 1))
    half = _student_quantile(count - 1, level) * deviation / math.sqrt(count)
    half = min(half, 50.0)  # beyond a factor of e^50 nothing is bounded, and exp would overflow
    return Interval(mid, min(math.exp(centre - half), ordered[0]), max(math.exp(centre + half), ordered[-1]))


def _sum(values) -> float:
    """One addition after the other; sum() corrects its roundings."""
    total = 0.0
    for value in values:
        total += value
    return total


def paired_ratio(numerator, denominator, level: float = 0.95) -> Interval | None:
    """Median of the ratios of each round, with its interval; None without a common round.

    Both series come from interleaved rounds, so a disturbance that lasts longer than a round hits both
    and cancels.
    """
    rounds = min(len(numerator), len(denominator))
    if rounds == 0:
        return None
    with np.errstate(all="ignore"):  # a file may hold 0, or what is no time
        ratios = np.asarray(numerator[:rounds]) / np.asarray(denominator[:rounds])
    ratios = ratios[np.isfinite(ratios) & (ratios > 0)]
    return median_interval(ratios, level) if ratios.size else None


def between_runs(series, level: float = 0.95) -> float:
    """The smallest `between` for which intervals `repeated(between)` hold `level` of the later medians.

    `series` holds a list for each row: its interval in each run, in the order of the runs (None: not measured). An
    earlier median m with the half-width h on the side of the later median m' needs z² between² = ln(m'/m)²/2 − h²;
    the quantile over all rows and pairs of runs is the answer. So the term is exactly what the coverage of such
    intervals needs, whatever the distribution between runs; for a normal one it is its standard deviation. NaN
    without a pair.
    """
    z = NormalDist().inv_cdf((1.0 + level) / 2.0)
    needed = sorted(max(0.0, (distance**2 / 2.0 - half**2) / z**2) for distance, half in _later(series))
    if not needed:
        return math.nan
    # As many as the level asks of a sample of this size, so that a later pair is held with this probability.
    index = min(math.ceil(level * (len(needed) + 1)), len(needed)) - 1
    return math.sqrt(needed[index])


def coverage(series, between: float | None = None) -> float:
    """The share of later medians inside an earlier interval: as it is, or `repeated(between)`; NaN without a pair."""
    held, total = _held(series, between)
    return held / total if total else math.nan


def coverage_left_out(series) -> float:
    """`coverage` with the term fitted without the runs that are judged; NaN with fewer than three runs.

    Each run in turn: `between_runs` of all pairs of the others, judged by the pairs with this one.
    """
    held = total = 0
    for run in range(max((len(row) for row in series), default=0)):
        between = between_runs([[*row[:run], *row[run + 1 :]] for row in series])
        if math.isnan(between):
            continue
        pairs = [[row[min(other, run)], row[max(other, run)]]
                 for row in series if run < len(row) for other in range(len(row)) if other != run]  # fmt: skip
        inside, count = _held(pairs, between)
        held, total = held + inside, total + count
    return held / total if total else math.nan


def _held(series, between: float | None) -> tuple[int, int]:
    """How many later medians an earlier interval holds, and how many there are."""
    factor, more = (1.0, 0.0) if between is None else (2.0, NormalDist().inv_cdf(0.975) * between)
    inside = [distance**2 <= factor * (half**2 + more**2) for distance, half in _later(series)]
    return sum(inside), len(inside)


def _later(series):
    """For each row and pair of runs: |ln(later median / earlier median)|, and the earlier half-width on that side."""
    for row in series:
        known = [one for one in row if one is not None and 0 < one.lo <= one.mid <= one.hi < math.inf]
        for index, earlier in enumerate(known):
            for later in known[index + 1 :]:
                end = earlier.hi if later.mid > earlier.mid else earlier.lo
                yield abs(math.log(later.mid / earlier.mid)), abs(math.log(end / earlier.mid))


def effective_count(samples) -> int:
    """The number of independent samples worth as much as these: n (1 - r) / (1 + r).

    r is the lag-1 correlation of the sides of the median on which samples lie, which is what the variance
    of a median depends on. The estimate from some ten samples is rough itself: it may take three quarters
    of them, not more.
    """
    sides = np.sign(np.asarray(samples, np.float64) - np.median(samples)).astype(int)
    size, every, alike = sides.size, int(sides @ sides), int(sides[1:] @ sides[:-1])
    count = size * (every - alike) // (every + alike) if alike > 0 else size
    return max(count, size // 4, min(size, 3))


def _median_rank(count: int, level: float) -> int:
    """The largest k with 1 - 2 P(Bin(count, 1/2) < k) >= level; 0 if even k = 1 misses it."""
    allowed = (1.0 - level) / 2.0
    below, rank = 0.0, 0
    while rank < count // 2:
        below += math.exp(_log_choose(count, rank) - count * math.log(2.0))
        if below > allowed:
            break
        rank += 1
    return rank


def _log_choose(count: int, taken: int) -> float:
    return math.lgamma(count + 1) - math.lgamma(taken + 1) - math.lgamma(count - taken + 1)


def _student_quantile(freedom: int, level: float) -> float:
    """t with P(|T| < t) = level, by bisection of the exact sum (Abramowitz & Stegun 26.7.3, 26.7.4)."""
    low, high = 0.0, 1.0
    while _student_inside(high, freedom) < level and high < 1e9:
        high *= 2.0
    for _ in range(100):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _student_inside(middle, freedom) < level else (low, middle)
    return round(high, 6)


def _student_inside(t: float, freedom: int) -> float:
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for index in range(freedom // 2):
        total += term
        term *= cosine * cosine * (2 * index + 1 + odd) / (2 * index + 2 + odd)
    return 2.0 / math.pi * (angle + sine * total) if odd else sine * total


@dataclass(frozen=True)
class PowerFit:
    """y = factor · x^exponent. When y does not change with x, the exponent is 0 and `factor` is y."""

    exponent: float
    factor: float


_CONSTANT = 1.01
_FEWEST_SIZES = 3


def fit_power(x, y) -> PowerFit | None:
    """Least squares of log y on log x over the upper half of x, at least the three largest.

    Small x are left out because fixed costs dominate there. A y that is constant within a
    hundredth, or zero throughout, has exponent 0. None with fewer than three different x, or when y
    is zero at only some of the points used (no power describes that).
    """
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    usable = np.isfinite(x) & np.isfinite(y) & (x > 0) & (y >= 0)
    x, y = x[usable], y[usable]
    different = np.unique(x)
    if different.size < _FEWEST_SIZES:
        return None
    keep = x >= different[-max(_FEWEST_SIZES, (different.size + 1) // 2)]
    x, y = x[keep], y[keep]
    if y.max() <= _CONSTANT * y.min():
        return PowerFit(0.0, float(y.max()))
    if not y.all():
        return None
    exponent, constant = np.polyfit(np.log(x), np.log(y), 1)
    return PowerFit(float(exponent), float(math.exp(constant)))
