"""Normalisation with rounded results."""

from ._arrays import Array
from ._functions import FUNCTIONS


def rmsnorm_quantized(x: Array, weight: Array, *, eps: float = 1e-5, variant: str = "auto") -> tuple[Array, Array]:
    """rmsnorm rounded to 8 bits: (q, s) with out ≈ q / s, q (…, hidden) int8 = clamp(round(out · s), -128, 127),
    s (…) float32 = 127 / max(max |out|, 1e-5) of the row.

    x: (…, hidden), float32, float16 or bfloat16. weight: (hidden,) of the same dtype.
    eps: added to the mean of squares.
    variant: the fastest that accepts the arguments ("auto"), or one that `katt info` lists. ValueError as in rmsnorm.
    """
    return FUNCTIONS["rmsnorm"](x, weight, eps=eps, quantise=True, variant=variant)
