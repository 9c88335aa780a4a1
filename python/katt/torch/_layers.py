"""Layers with gradients that want more than a schema says: a dtype, a packed weight."""

import torch
from torch import Tensor

from .. import _katt
from .._arrays import shape_of
from .._functions import PLANS, launch
from .._ternary import check_width
from ._operator import call, dense_last, new_rows, operator, rows


def new_linear(x, weight):
    check_width(x, shape_of("ternary_linear", "weight", weight, 2)[1])
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
    """x (…), float32, float16 or bfloat16, rounded to one of these dtypes, half to even: a tensor of its shape. Its
    gradient is rounded to the dtype of x. ValueError for another dtype."""
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
    """The ternary linear layer of katt.ternary_linear for training: out (…, out_features) = (x_q · W_qᵀ) · s_w / s_x,
    with the weight quantised at every call (katt.ternary_pack) and x rounded to 8 bits.
    Gradients through the straight-through estimator: dx = dout · W_q · s_w, dweight = doutᵀ · x_q / s_x.

    x (…, in_features), weight (out_features, in_features): float32, float16 or bfloat16; out has the dtype of x.

    ValueError with one line that names the argument, what it holds and what was expected.
    Source: Ma et al. 2024, arXiv:2402.17764; Bengio et al. 2013, arXiv:1308.3432.
    """
    return _ternary_linear(x, weight)
