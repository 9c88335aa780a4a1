"""Which measured ceilings to believe: a disturbance only makes a measurement lower, so one that is below what it cannot
be below was disturbed."""

import math
from dataclasses import replace

import numpy as np

from katt_report.load import Ceiling
from katt_report.points import Points

HIGHEST = 1.05
"""A row above this share of its ceiling was not limited by it."""

ARITHMETIC = ("fma_f32", "avx512_bf16", "amx_bf16", "mma_bf16")
# Two measurements of one limit differ by less.
_NOISE = 0.9
_LEVELS = ("dram", "l4", "l3", "l2", "l1")


def checked(ceilings: list[Ceiling]) -> list[Ceiling]:
    """The ceilings, those that contradict another of their run NaN.

    A cache is at least as fast as what lies behind it, for reads and for copies, and a matrix unit as the vectors.
    src/measure/ceilings.cpp measures again by the same rule.
    """
    held = {(c.source, c.run, c.threads, c.name): c.value for c in ceilings}

    def least(ceiling: Ceiling) -> float:
        kind, _, level = ceiling.name.partition("_")
        below = []
        if kind in ("read", "copy") and level in _LEVELS:
            below = [f"{kind}_{other}" for other in _LEVELS[: _LEVELS.index(level)]]
        elif ceiling.name in ARITHMETIC[1:]:
            below = ARITHMETIC[:1]
        values = [held.get((ceiling.source, ceiling.run, ceiling.threads, name), math.nan) for name in below]
        return max((value for value in values if math.isfinite(value)), default=0.0)

    return [replace(c, value=math.nan) if c.value < _NOISE * least(c) else c for c in ceilings]


def believed(points: Points, ceilings: list[Ceiling]) -> np.ndarray:
    """`ceiling_fraction` of every row; NaN where the row is above its ceiling, or the ceiling was disturbed.

    A bandwidth is measured in the rounds of the row itself, so it does not depend on the ceilings of the run.
    """
    disturbed = {(c.source, c.run, c.name, c.threads) for c in ceilings if c.name in ARITHMETIC and math.isnan(c.value)}
    wrong = np.array([key in disturbed for key in points.tuples(["source", "run", "ceiling", "threads"])], bool)
    shares = points["ceiling_fraction"]
    return np.where(wrong | ~(shares <= HIGHEST), math.nan, shares)
