"""Layers with gradients that want more than a schema says: a dtype, a packed weight."""

import torch
from torch import Tensor

from .. import _katt
from .._functions import PLANS, launch
from ._operator import call, dense_last, new_rows, operator, rows


def new_linear(x, weight):
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


@operator("convert_dtype", lambda x, dtype: x.new_empty(x.shape, dtype=dtype))
def _convert_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    out = x.new_empty(x.shape, dtype=dtype)
    launch(PLANS["convert_dtype"][0], (rows(x),), (rows(out),), (), call("auto"))
    return out


def _save_dtype(ctx, inputs, output):
    ctx.dtype = inputs[0].dtype


_convert_dtype.register_autograd(lambda ctx, dout: (_convert_dtype(dout, ctx.dtype), None), setup_context=_save_dtype)


def convert_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x rounded to float32, float16 or bfloat16, with its gradient in the dtype of x."""
    return _convert_dtype(x, dtype)


@operator("ternary_linear", lambda x, weight: new_linear(x, weight))
def _ternary_linear(x: Tensor, weight: Tensor) -> Tensor:
    out = new_linear(x, weight)
    packed = _packed(weight)
    _katt.ternary_linear_forward(rows(x), packed, None, rows(out), 4, call("packed2"))
    return out


@operator("ternary_linear_backward", lambda dout, x, weight: (new_rows(x), new_rows(weight)))
def _ternary_linear_backward(dout: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    dx, dweight = new_rows(x), x.new_empty(weight.shape)
    _katt.ternary_linear_backward(rows(dout), rows(x), _packed(weight), None, rows(dx), dweight, 4, call("packed2"))
    return dx, dweight.to(weight.dtype)


def _packed(weight):
    packed = torch.empty(_katt.ternary_packed_bytes(4, *weight.shape), dtype=torch.uint8, device=weight.device)
    _katt.ternary_pack(dense_last(weight), packed, 4, call("auto")[2])
    return packed


_ternary_linear.register_autograd(
    lambda ctx, dout: _ternary_linear_backward(dout, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


def ternary_linear(x: Tensor, weight: Tensor) -> Tensor:
    """The ternary linear layer of katt.ternary_linear on x (…, in_features) and a weight (out_features, in_features)
    that is quantised at every call, for training: gradients through the straight-through estimator.
    katt.ternary_linear takes a weight that is packed once."""
    return _ternary_linear(x, weight)
