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

    Order statistics: with n independent samples the k-th smallest and k-th largest enclose the
    median with probability 1 - 2 P(Bin(n, 1/2) < k); this uses the largest k that reaches `level`.
    Rounds of a busy machine are not independent: n is reduced by the lag-1 autocorrelation of the
    logarithms, n (1 - r) / (1 + r). If too few samples remain for the level even with k = 1, the
    interval is Student's for the mean of the logarithms, widened to hold every sample. One sample
    gives no bound at all.
    """
    samples = np.asarray(samples, np.float64)
    mid = float(np.median(samples))
    if samples.size < 2:
        return Interval(mid, 0.0, math.inf)
    ordered = np.sort(samples)
    count = effective_count(np.log(samples))
    rank = _median_rank(count, level)
    if rank:
        index = max(math.floor(rank * samples.size / count), 1)
        return Interval(mid, float(ordered[index - 1]), float(ordered[-index]))
    logs = np.log(samples)
    half = _student_quantile(max(count - 1, 1), level) * logs.std(ddof=1) / math.sqrt(count)
    half = min(half, 50.0)  # there is no bound beyond a factor of e^50, and exp would overflow
    centre = float(logs.mean())
    return Interval(
        mid,
        min(math.exp(centre - half), float(ordered[0])),
        max(math.exp(centre + half), float(ordered[-1])),
    )


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


def effective_count(series: np.ndarray) -> int:
    """The number of independent samples worth as much as this series (lag-1 autocorrelation)."""
    deviation = series - series.mean()
    variance = float(deviation @ deviation)
    if variance == 0.0:
        return series.size
    # The estimate from some ten samples is rough: it may remove three quarters of them, not more.
    correlation = min(max(float(deviation[1:] @ deviation[:-1]) / variance, 0.0), 0.6)
    return max(int(series.size * (1 - correlation) / (1 + correlation)), min(series.size, 3))


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
    return high


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
