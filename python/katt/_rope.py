"""Rotary position embedding."""

from collections.abc import Mapping

import numpy

from . import _katt
from ._arrays import Array, call, library, natural, refused


def rope_cache(
    rows: int,
    head_dim: int,
    *,
    theta: float = 10000.0,
    scaling: Mapping[str, float] | None = None,
    angles: str = "f64",
    like: Array | None = None,
) -> Array:
    """Cosines and sines of positions 0 … rows - 1: (rows, head_dim) float32, cos and then sin of the head_dim / 2
    angles position · theta^(-2i / head_dim).

    scaling: LLaMA 3.1's, a mapping with factor, low_freq_factor, high_freq_factor and
        original_max_position_embeddings, named as in a `config.json`.
    angles: "f64", exact; or "f32", rounded step by step as Hugging Face's LLaMA does.
    like: an array of the library that the result is to be of; NumPy if None.
    """
    if angles not in ("f32", "f64"):
        raise ValueError(f"rope_cache: angles: holds {angles}, expected f32 or f64")
    lib = library("rope_cache", like=numpy.empty(0, numpy.float32) if like is None else like)
    cache = lib.empty((natural("rope_cache", "rows", rows), natural("rope_cache", "head_dim", head_dim)), "f32")
    llama3 = None
    if scaling is not None:
        if not isinstance(scaling, Mapping):
            raise refused("rope_cache", "scaling", scaling, "a mapping")
        keys = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        missing = [key for key in keys if key not in scaling]
        if missing:
            raise ValueError(f"rope_cache: scaling: lacks {', '.join(missing)}, expected {', '.join(keys)}")
        llama3 = tuple(scaling[key] for key in keys)
    _katt.rope_cache(cache, theta, llama3, angles == "f32")
    return lib.give(cache)


def rope(
    x: Array,
    cache: Array,
    x2: Array | None = None,
    *,
    positions: Array | None = None,
    first_position: int = 0,
    interleaved: bool = False,
    variant: str = "auto",
) -> Array | tuple[Array, Array]:
    """Turns each pair (a, b) of elements by its angle: (x[a]·cos - x[b]·sin, x[b]·cos + x[a]·sin).

    x (batch, heads, seq, head_dim), and x2 (batch, kv_heads, seq, head_dim) in the same pass, e.g. q and k;
    cache (rows, head_dim) float32 of rope_cache. Pairs are (i, i + head_dim / 2), or with `interleaved`
    (2i, 2i + 1). positions (batch, seq) int64 say the row of the cache, else first_position, first_position + 1, …
    A row that the cache lacks gives NaN. Returns out, or (out, out2), of the shapes of x and x2.
    """
    lib = library("rope", x=x, cache=cache, **({} if x2 is None else {"x2": x2}))
    out = lib.empty(tuple(x.shape))
    out2 = None if x2 is None else lib.empty(tuple(x2.shape))
    _katt.rope_forward(x, x2, cache, positions, out, out2, first_position, interleaved, call(variant))
    return lib.give(out) if x2 is None else lib.give(out, out2)


def rope_backward(
    dout: Array,
    cache: Array,
    dout2: Array | None = None,
    *,
    positions: Array | None = None,
    first_position: int = 0,
    interleaved: bool = False,
    variant: str = "auto",
) -> Array | tuple[Array, Array]:
    """Gradient dx, or (dx, dx2), of rope: the gradients of its results turned by the negative angles."""
    lib = library("rope", dout=dout, cache=cache, **({} if dout2 is None else {"dout2": dout2}))
    dx = lib.empty(tuple(dout.shape))
    dx2 = None if dout2 is None else lib.empty(tuple(dout2.shape))
    _katt.rope_backward(dout, dout2, cache, positions, dx, dx2, first_position, interleaved, call(variant))
    return lib.give(dx) if dout2 is None else lib.give(dx, dx2)
