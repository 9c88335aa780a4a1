"""The statistics of the report: intervals of medians, paired ratios, fitted powers."""

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Interval:
    """A median and the interval that holds the true one at the requested level."""

    mid: float
    lo: float
    hi: float

    def overlaps(self, other: "Interval") -> bool:
        """True when the two intervals share a value."""
        return self.lo <= other.hi and other.lo <= self.hi


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
    ratios = np.asarray(numerator[:rounds]) / np.asarray(denominator[:rounds])
    ratios = ratios[np.isfinite(ratios) & (ratios > 0)]
    return median_interval(ratios, level) if ratios.size else None


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
    """y = factor · x^exponent, fitted over the `used` points whose x runs from `first` to `last`.

    When y does not change with x, the exponent is 0 and `factor` is y.
    """

    exponent: float
    factor: float
    first: float
    last: float
    used: int


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
    first, last = float(x.min()), float(x.max())
    if y.max() <= _CONSTANT * y.min():
        return PowerFit(0.0, float(y.max()), first, last, x.size)
    if not y.all():
        return None
    exponent, constant = np.polyfit(np.log(x), np.log(y), 1)
    return PowerFit(float(exponent), float(math.exp(constant)), first, last, x.size)
