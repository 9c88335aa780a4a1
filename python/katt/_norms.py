"""Normalisations and softmax of rows: the last axis of x, with any axes before it."""

from . import _katt
from ._arrays import Array, call, library


def rmsnorm(
    x: Array, weight: Array, residual: Array | None = None, *, eps: float = 1e-5, variant: str = "auto"
) -> Array | tuple[Array, Array]:
    """Root mean square normalisation: h · weight / sqrt(mean(h²) + eps), h = x, or x + residual.

    x, residual (…, hidden); weight (hidden,), of one dtype. Returns out (…, hidden), and with a residual
    (out, h): h is rounded to the dtype, and what is normalised.
    """
    lib = library("rmsnorm", x=x, weight=weight, **({} if residual is None else {"residual": residual}))
    shape = tuple(x.shape)
    out = lib.empty(shape)
    residual_out = None if residual is None else lib.empty(shape)
    _katt.rmsnorm_forward(x, weight, residual, out, residual_out, None, None, eps, call(variant))
    return lib.give(out) if residual is None else lib.give(out, residual_out)


def rmsnorm_quantized(x: Array, weight: Array, *, eps: float = 1e-5, variant: str = "auto") -> tuple[Array, Array]:
    """rmsnorm rounded to 8 bits: (q, s) with out ≈ q / s, q (…, hidden) int8 = clamp(round(out · s), -128, 127),
    s (…) float32 = 127 / max(max |out|, 1e-5) of the row."""
    lib = library("rmsnorm", x=x, weight=weight)
    shape = tuple(x.shape)
    out, scale = lib.empty(shape, "i8"), lib.empty(shape[:-1], "f32")
    _katt.rmsnorm_forward(x, weight, None, None, None, out, scale, eps, call(variant))
    return lib.give(out, scale)


def rmsnorm_backward(
    dout: Array,
    x: Array,
    weight: Array,
    dresidual_out: Array | None = None,
    *,
    eps: float = 1e-5,
    variant: str = "auto",
) -> tuple[Array, Array]:
    """Gradients (dx, dweight) of rmsnorm. x: what was normalised, h where a residual was added; dresidual_out:
    gradient of h, added to dx, which is the gradient of x and of the residual."""
    lib = library("rmsnorm", x=x, weight=weight, dout=dout)
    dx, dweight = lib.empty(tuple(x.shape)), lib.empty(tuple(weight.shape))
    _katt.rmsnorm_backward(dout, x, weight, dresidual_out, dx, dweight, eps, call(variant))
    return lib.give(dx, dweight)


def layernorm(x: Array, weight: Array, bias: Array, *, eps: float = 1e-5, variant: str = "auto") -> Array:
    """Layer normalisation: (x - mean) / sqrt(variance + eps) · weight + bias; x (…, hidden), weight and bias
    (hidden,), of one dtype. Returns out (…, hidden)."""
    lib = library("layernorm", x=x, weight=weight, bias=bias)
    out = lib.empty(tuple(x.shape))
    _katt.layernorm_forward(x, weight, bias, out, eps, call(variant))
    return lib.give(out)


def layernorm_backward(
    dout: Array, x: Array, weight: Array, *, eps: float = 1e-5, variant: str = "auto"
) -> tuple[Array, Array, Array]:
    """Gradients (dx, dweight, dbias) of layernorm."""
    lib = library("layernorm", x=x, weight=weight, dout=dout)
    dx, dweight, dbias = (lib.empty(tuple(y.shape)) for y in (x, weight, weight))
    _katt.layernorm_backward(dout, x, weight, dx, dweight, dbias, eps, call(variant))
    return lib.give(dx, dweight, dbias)


def softmax(x: Array, *, variant: str = "auto") -> Array:
    """exp(x - log Σ exp x) along the last axis of x (…, vocab). Returns out of the shape of x."""
    lib = library("softmax", x=x)
    out = lib.empty(tuple(x.shape))
    _katt.softmax_forward(x, out, call(variant))
    return lib.give(out)


def softmax_backward(dout: Array, x: Array, *, variant: str = "auto") -> Array:
    """Gradient dx of softmax, from its input x: out ⊙ (dout - Σ dout·out)."""
    lib = library("softmax", x=x, dout=dout)
    dx = lib.empty(tuple(x.shape))
    _katt.softmax_backward(dout, x, dx, call(variant))
    return lib.give(dx)
