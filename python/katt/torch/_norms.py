"""Normalisations and softmax with gradients."""

from typing import Optional

from torch import Tensor

from .. import _katt
from ._operator import call, new_rows, operator, rows


@operator("rmsnorm", lambda x, weight, eps, variant: new_rows(x))
def _rmsnorm(x: Tensor, weight: Tensor, eps: float, variant: str) -> Tensor:
    out = new_rows(x)
    _katt.rmsnorm_forward(rows(x), weight.contiguous(), None, rows(out), None, None, None, eps, call(variant))
    return out


@operator("add_rmsnorm", lambda x, residual, weight, eps, variant: (new_rows(x), new_rows(x)))
def _add_rmsnorm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, variant: str) -> tuple[Tensor, Tensor]:
    out, h = new_rows(x), new_rows(x)
    _katt.rmsnorm_forward(
        rows(x), weight.contiguous(), rows(residual), rows(out), rows(h), None, None, eps, call(variant)
    )
    return out, h


@operator("rmsnorm_backward", lambda dout, x, weight, dresidual_out, eps: (new_rows(x), new_rows(weight)))
def _rmsnorm_backward(
    dout: Tensor, x: Tensor, weight: Tensor, dresidual_out: Optional[Tensor], eps: float
) -> tuple[Tensor, Tensor]:
    dx, dweight = new_rows(x), new_rows(weight)
    more = None if dresidual_out is None else rows(dresidual_out)
    _katt.rmsnorm_backward(rows(dout), rows(x), weight.contiguous(), more, rows(dx), dweight, eps, call("auto"))
    return dx, dweight


def _save_rmsnorm(ctx, inputs, output):
    x, weight, ctx.eps, _ = inputs
    ctx.save_for_backward(x, weight)


def _rmsnorm_gradients(ctx, dout):
    x, weight = ctx.saved_tensors
    return (*_rmsnorm_backward(dout, x, weight, None, ctx.eps), None, None)


def _save_add_rmsnorm(ctx, inputs, output):
    _, _, weight, ctx.eps, _ = inputs
    ctx.save_for_backward(output[1], weight)


def _add_rmsnorm_gradients(ctx, dout, dh):
    h, weight = ctx.saved_tensors
    dx, dweight = _rmsnorm_backward(dout, h, weight, dh, ctx.eps)
    return dx, dx, dweight, None, None


_rmsnorm.register_autograd(_rmsnorm_gradients, setup_context=_save_rmsnorm)
_add_rmsnorm.register_autograd(_add_rmsnorm_gradients, setup_context=_save_add_rmsnorm)


def rmsnorm(
    x: Tensor, weight: Tensor, residual: Optional[Tensor] = None, *, eps: float = 1e-5, variant: str = "auto"
) -> Tensor | tuple[Tensor, Tensor]:
    """katt.rmsnorm with gradients of x, weight and residual: out, or (out, h) with a residual."""
    if residual is None:
        return _rmsnorm(x, weight, eps, variant)
    return _add_rmsnorm(x, residual, weight, eps, variant)


@operator("layernorm", lambda x, weight, bias, eps, variant: new_rows(x))
def _layernorm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, variant: str) -> Tensor:
    out = new_rows(x)
    _katt.layernorm_forward(rows(x), weight.contiguous(), bias.contiguous(), rows(out), eps, call(variant))
    return out


@operator("layernorm_backward", lambda dout, x, weight, eps: (new_rows(x), new_rows(weight), new_rows(weight)))
def _layernorm_backward(dout: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    dx, dweight, dbias = new_rows(x), new_rows(weight), new_rows(weight)
    _katt.layernorm_backward(rows(dout), rows(x), weight.contiguous(), rows(dx), dweight, dbias, eps, call("auto"))
    return dx, dweight, dbias


def _save_layernorm(ctx, inputs, output):
    x, weight, _, ctx.eps, _ = inputs
    ctx.save_for_backward(x, weight)


def _layernorm_gradients(ctx, dout):
    x, weight = ctx.saved_tensors
    return (*_layernorm_backward(dout, x, weight, ctx.eps), None, None)


_layernorm.register_autograd(_layernorm_gradients, setup_context=_save_layernorm)


def layernorm(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float = 1e-5, variant: str = "auto") -> Tensor:
    """katt.layernorm with gradients of x, weight and bias."""
    return _layernorm(x, weight, bias, eps, variant)


@operator("softmax", lambda x, variant: new_rows(x))
def _softmax(x: Tensor, variant: str) -> Tensor:
    out = new_rows(x)
    _katt.softmax_forward(rows(x), rows(out), call(variant))
    return out


@operator("softmax_backward", lambda dout, x: new_rows(x))
def _softmax_backward(dout: Tensor, x: Tensor) -> Tensor:
    dx = new_rows(x)
    _katt.softmax_backward(rows(dout), rows(x), rows(dx), call("auto"))
    return dx


_softmax.register_autograd(
    lambda ctx, dout: (_softmax_backward(dout, *ctx.saved_tensors), None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


def softmax(x: Tensor, *, variant: str = "auto") -> Tensor:
    """katt.softmax along the last axis, with the gradient of x."""
    return _softmax(x, variant)
