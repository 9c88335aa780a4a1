"""Losses with gradients."""

import torch
from torch import Tensor

from .. import _katt
from ._operator import call, dense_last, new_rows, operator, rows


def _new_loss(x):
    """The loss, and the statistics (tokens, 2) for the backward pass."""
    tokens = 1
    for extent in x.shape[:-1]:
        tokens = tokens * extent
    return x.new_empty((), dtype=torch.float32), x.new_empty((tokens, 2), dtype=torch.float32)


@operator("linear_cross_entropy", lambda hidden, weight, targets, ignore_index: _new_loss(hidden))
def _linear_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    loss, statistics = _new_loss(hidden)
    _katt.linear_cross_entropy_forward(
        rows(hidden), dense_last(weight), targets.contiguous(), loss[None], statistics, None, ignore_index,
        call("fused"),
    )  # fmt: skip
    return loss, statistics


def _new_linear_gradients(dloss, hidden, weight, targets, statistics, ignore_index):
    return new_rows(hidden), new_rows(weight)


@operator("linear_cross_entropy_backward", _new_linear_gradients)
def _linear_cross_entropy_backward(
    dloss: Tensor, hidden: Tensor, weight: Tensor, targets: Tensor, statistics: Tensor, ignore_index: int
) -> tuple[Tensor, Tensor]:
    dhidden, dweight = new_rows(hidden), new_rows(weight)
    _katt.linear_cross_entropy_backward(
        rows(hidden), dense_last(weight), targets.contiguous(), statistics, None, rows(dhidden), dweight,
        dloss.item(), ignore_index, call("fused"),
    )  # fmt: skip
    return dhidden, dweight


def _save_linear_cross_entropy(ctx, inputs, output):
    hidden, weight, targets, ctx.ignore_index = inputs
    ctx.save_for_backward(hidden, weight, targets, output[1])
    ctx.mark_non_differentiable(output[1])


def _linear_cross_entropy_gradients(ctx, dloss, _):
    return (*_linear_cross_entropy_backward(dloss, *ctx.saved_tensors, ctx.ignore_index), None, None)


_linear_cross_entropy.register_autograd(_linear_cross_entropy_gradients, setup_context=_save_linear_cross_entropy)


def linear_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor, *, ignore_index: int = -100) -> Tensor:
    """The loss of katt.linear_cross_entropy, a float32 scalar, with gradients of hidden and weight; the logits are
    never stored, in either pass."""
    return _linear_cross_entropy(hidden, weight, targets, ignore_index)[0]
