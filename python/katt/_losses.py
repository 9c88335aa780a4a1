"""The last layer of a language model and its loss."""

from . import _katt
from ._arrays import Array, call, library


def linear_cross_entropy(
    hidden: Array, weight: Array, targets: Array, *, ignore_index: int = -100, variant: str = "auto"
) -> tuple[Array, Array]:
    """cross_entropy of the logits hidden · weightᵀ, which "fused" never stores: hidden (…, hidden), weight (vocab,
    hidden), of one dtype, targets (…) int64. Returns (loss, statistics) as cross_entropy does."""
    lib = library("linear_cross_entropy", hidden=hidden, weight=weight, targets=targets)
    loss, statistics = lib.empty((1,), "f32"), lib.empty((tokens_of(hidden), 2), "f32")
    _katt.linear_cross_entropy_forward(hidden, weight, targets, loss, statistics, None, ignore_index, call(variant))
    return lib.give(loss, statistics)


def linear_cross_entropy_backward(
    hidden: Array,
    weight: Array,
    targets: Array,
    statistics: Array,
    *,
    dloss: float = 1.0,
    ignore_index: int = -100,
    variant: str = "auto",
) -> tuple[Array, Array]:
    """Gradients (dhidden, dweight) of linear_cross_entropy; "fused" computes the logits again, "naive" would need
    them stored and is refused."""
    lib = library("linear_cross_entropy", hidden=hidden, weight=weight, targets=targets, statistics=statistics)
    dhidden, dweight = lib.empty(tuple(hidden.shape)), lib.empty(tuple(weight.shape))
    _katt.linear_cross_entropy_backward(
        hidden, weight, targets, statistics, None, dhidden, dweight, dloss, ignore_index, call(variant)
    )
    return lib.give(dhidden, dweight)


def tokens_of(x: Array) -> int:
    tokens = 1
    for extent in x.shape[:-1]:
        tokens *= extent
    return tokens
