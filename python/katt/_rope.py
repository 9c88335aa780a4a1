"""The angles of rotary position embedding."""

from collections.abc import Mapping

import numpy

from . import _katt
from ._arrays import Array, library, natural, refused


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

    ValueError for rows and head_dim that are no numbers of elements, an odd head_dim, a theta or a scaling that is not
    finite and positive, another rope_type, other `angles`.
    """
    if angles not in ("f32", "f64"):
        raise ValueError(f"rope_cache: angles: holds {angles}, expected f32 or f64")
    lib = library("rope_cache", like=numpy.empty(0, numpy.float32) if like is None else like)
    cache = lib.empty((natural("rope_cache", "rows", rows), natural("rope_cache", "head_dim", head_dim)), "f32")
    llama3 = None
    if scaling is not None:
        if not isinstance(scaling, Mapping):
            raise refused("rope_cache", "scaling", scaling, "a mapping")
        kind = scaling.get("rope_type", scaling.get("type", "llama3"))
        if kind != "llama3":
            raise ValueError(f"rope_cache: scaling: holds rope_type {kind!r}, expected llama3 or none at all")
        keys = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        missing = [key for key in keys if key not in scaling]
        if missing:
            raise ValueError(f"rope_cache: scaling: lacks {', '.join(missing)}, expected {', '.join(keys)}")
        llama3 = tuple(scaling[key] for key in keys)
    _katt.rope_cache(cache, theta, llama3, angles == "f32")
    return lib.give(cache)
