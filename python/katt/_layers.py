"""Layers on rows: the last axis of x, with any axes before it."""

from . import _katt
from ._arrays import Array, call, library, natural, shape_of


def linear(x: Array, weight: Array, bias: Array | None = None, *, variant: str = "auto") -> Array:
    """x · weightᵀ + bias: x (…, in_features), weight (out_features, in_features), bias (out_features,), of one
    dtype; sums in float32. Returns out (…, out_features)."""
    lib = library("linear", x=x, weight=weight, **({} if bias is None else {"bias": bias}))
    out = lib.empty((*x.shape[:-1], shape_of("linear", "weight", weight, 2)[0]))
    _katt.linear_forward(x, weight, bias, out, call(variant))
    return lib.give(out)


def linear_backward(
    dout: Array, x: Array, weight: Array, *, bias: bool = False, variant: str = "auto"
) -> tuple[Array, ...]:
    """Gradients (dx, dweight) of linear, and dbias (out_features,) if `bias`."""
    lib = library("linear", x=x, weight=weight, dout=dout)
    dx, dweight = lib.empty(tuple(x.shape)), lib.empty(tuple(weight.shape))
    dbias = lib.empty(shape_of("linear", "weight", weight, 2)[:1]) if bias else None
    _katt.linear_backward(dout, x, weight, dx, dweight, dbias, call(variant))
    return lib.give(dx, dweight, dbias) if bias else lib.give(dx, dweight)


def swiglu(gate: Array, up: Array, *, variant: str = "auto") -> Array:
    """silu(gate) · up, silu(g) = g / (1 + e^-g), element by element; gate and up (…, intermediate)."""
    lib = library("swiglu", gate=gate, up=up)
    out = lib.empty(tuple(gate.shape))
    _katt.swiglu_forward(gate, up, out, call(variant))
    return lib.give(out)


def swiglu_backward(dout: Array, gate: Array, up: Array, *, variant: str = "auto") -> tuple[Array, Array]:
    """Gradients (dgate, dup) of swiglu."""
    lib = library("swiglu", gate=gate, up=up, dout=dout)
    dgate, dup = lib.empty(tuple(gate.shape)), lib.empty(tuple(up.shape))
    _katt.swiglu_backward(dout, gate, up, dgate, dup, call(variant))
    return lib.give(dgate, dup)


def swiglu_mlp(
    x: Array, w_gate: Array, w_up: Array, w_down: Array, *, variant: str = "auto", tile: tuple[int, int] | None = None
) -> Array:
    """The MLP of LLaMA, (silu(x · w_gateᵀ) · (x · w_upᵀ)) · w_downᵀ: x (…, hidden), w_gate and w_up (intermediate,
    hidden), w_down (hidden, intermediate). Returns out (…, hidden)."""
    lib = library("swiglu_mlp", x=x, w_gate=w_gate, w_up=w_up, w_down=w_down)
    out = lib.empty(tuple(x.shape))
    _katt.swiglu_mlp_forward(x, w_gate, w_up, w_down, out, call(variant, tile))
    return lib.give(out)


def swiglu_mlp_backward(
    dout: Array,
    x: Array,
    w_gate: Array,
    w_up: Array,
    w_down: Array,
    *,
    variant: str = "auto",
    tile: tuple[int, int] | None = None,
) -> tuple[Array, Array, Array, Array]:
    """Gradients (dx, dw_gate, dw_up, dw_down) of swiglu_mlp, of the shapes of x and the weights."""
    lib = library("swiglu_mlp", x=x, w_gate=w_gate, w_up=w_up, w_down=w_down, dout=dout)
    gradients = [lib.empty(tuple(y.shape)) for y in (x, w_gate, w_up, w_down)]
    _katt.swiglu_mlp_backward(dout, x, w_gate, w_up, w_down, *gradients, call(variant, tile))
    return lib.give(*gradients)


def embedding(ids: Array, weight: Array, *, variant: str = "auto") -> Array:
    """Rows of weight (vocab, hidden) by ids (…) int64. An id outside gives NaN. Returns out (…, hidden)."""
    lib = library("embedding", weight=weight, ids=ids)
    out = lib.empty((*ids.shape, shape_of("embedding", "weight", weight, 2)[1]))
    _katt.embedding_forward(ids, weight, out, call(variant))
    return lib.give(out)


def embedding_backward(dout: Array, ids: Array, vocab: int, *, variant: str = "auto") -> Array:
    """Gradient dweight (vocab, hidden) of embedding: the rows of dout (…, hidden), summed by id."""
    lib = library("embedding", dout=dout, ids=ids)
    if not dout.shape:
        raise ValueError("embedding: dout: holds no axes, expected (…, hidden)")
    dweight = lib.empty((natural("embedding", "vocab", vocab), dout.shape[-1]))
    _katt.embedding_backward(dout, ids, dweight, call(variant))
    return lib.give(dweight)


def convert_dtype(x: Array, out: Array, *, variant: str = "auto") -> Array:
    """Fills out (…, columns), an array of float32, float16 or bfloat16 and of the shape of x, with x rounded to
    nearest even. Returns out."""
    library("convert_dtype", x=x, out=out)
    _katt.convert_dtype(x, out, call(variant))
    return out
