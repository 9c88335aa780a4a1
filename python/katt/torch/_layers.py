"""Layers with gradients."""

from typing import Optional

import torch
from torch import Tensor

from .. import _katt
from ._operator import call, dense_last, new_heads, new_rows, operator, rows


def _new_linear(x, weight):
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


@operator("linear", lambda x, weight, bias, variant: _new_linear(x, weight))
def _linear(x: Tensor, weight: Tensor, bias: Optional[Tensor], variant: str) -> Tensor:
    out = _new_linear(x, weight)
    _katt.linear_forward(rows(x), dense_last(weight), dense_last(bias), rows(out), call(variant))
    return out


def _new_linear_gradients(dout, x, weight, dx, dweight, dbias):
    return (
        x.new_empty(x.shape if dx else (0,)),
        weight.new_empty(weight.shape if dweight else (0,)),
        weight.new_empty(weight.shape[:1] if dbias else (0,)),
    )


@operator("linear_backward", _new_linear_gradients)
def _linear_backward(
    dout: Tensor, x: Tensor, weight: Tensor, dx: bool, dweight: bool, dbias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    made = _new_linear_gradients(dout, x, weight, dx, dweight, dbias)
    to_x, to_weight, to_bias = made
    _katt.linear_backward(
        rows(dout), rows(x), dense_last(weight),
        rows(to_x) if dx else None, to_weight if dweight else None, to_bias if dbias else None, call("auto"),
    )  # fmt: skip
    return made


def _save_linear(ctx, inputs, output):
    x, weight, bias, _ = inputs
    ctx.save_for_backward(x, weight)


def _linear_gradients(ctx, dout):
    needed = ctx.needs_input_grad[:3]
    made = _linear_backward(dout, *ctx.saved_tensors, *needed)
    return (*(gradient if need else None for gradient, need in zip(made, needed, strict=True)), None)


_linear.register_autograd(_linear_gradients, setup_context=_save_linear)


def linear(x: Tensor, weight: Tensor, bias: Optional[Tensor] = None, *, variant: str = "auto") -> Tensor:
    """katt.linear with gradients of x, weight and bias."""
    return _linear(x, weight, bias, variant)


@operator("swiglu", lambda gate, up, variant: new_rows(gate))
def _swiglu(gate: Tensor, up: Tensor, variant: str) -> Tensor:
    out = new_rows(gate)
    _katt.swiglu_forward(rows(gate), rows(up), rows(out), call(variant))
    return out


@operator("swiglu_backward", lambda dout, gate, up: (new_rows(gate), new_rows(up)))
def _swiglu_backward(dout: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    dgate, dup = new_rows(gate), new_rows(up)
    _katt.swiglu_backward(rows(dout), rows(gate), rows(up), rows(dgate), rows(dup), call("auto"))
    return dgate, dup


_swiglu.register_autograd(
    lambda ctx, dout: (*_swiglu_backward(dout, *ctx.saved_tensors), None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs[:2]),
)


def swiglu(gate: Tensor, up: Tensor, *, variant: str = "auto") -> Tensor:
    """katt.swiglu with gradients of gate and up."""
    return _swiglu(gate, up, variant)


@operator("swiglu_mlp", lambda x, w_gate, w_up, w_down, variant: new_rows(x))
def _swiglu_mlp(x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, variant: str) -> Tensor:
    out = new_rows(x)
    weights = (dense_last(w) for w in (w_gate, w_up, w_down))
    _katt.swiglu_mlp_forward(rows(x), *weights, rows(out), call(variant))
    return out


def _new_mlp_gradients(dout, x, w_gate, w_up, w_down):
    return new_rows(x), new_rows(w_gate), new_rows(w_up), new_rows(w_down)


@operator("swiglu_mlp_backward", _new_mlp_gradients)
def _swiglu_mlp_backward(
    dout: Tensor, x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dx, *dweights = _new_mlp_gradients(dout, x, w_gate, w_up, w_down)
    weights = (dense_last(w) for w in (w_gate, w_up, w_down))
    _katt.swiglu_mlp_backward(rows(dout), rows(x), *weights, rows(dx), *dweights, call("auto"))
    return dx, *dweights


_swiglu_mlp.register_autograd(
    lambda ctx, dout: (*_swiglu_mlp_backward(dout, *ctx.saved_tensors), None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs[:4]),
)


def swiglu_mlp(x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, *, variant: str = "auto") -> Tensor:
    """katt.swiglu_mlp with gradients of x and the weights."""
    return _swiglu_mlp(x, w_gate, w_up, w_down, variant)


def _new_embedding(ids, weight, variant):
    return weight.new_empty((*ids.shape, weight.shape[1]))


@operator("embedding", _new_embedding)
def _embedding(ids: Tensor, weight: Tensor, variant: str) -> Tensor:
    out = _new_embedding(ids, weight, variant)
    _katt.embedding_forward(ids.contiguous(), dense_last(weight), rows(out), call(variant))
    return out


@operator("embedding_backward", lambda dout, ids, vocab: dout.new_empty((vocab, dout.shape[-1])))
def _embedding_backward(dout: Tensor, ids: Tensor, vocab: int) -> Tensor:
    dweight = dout.new_empty((vocab, dout.shape[-1]))
    _katt.embedding_backward(rows(dout), ids.contiguous(), dweight, call("auto"))
    return dweight


def _save_embedding(ctx, inputs, output):
    ids, weight, _ = inputs
    ctx.save_for_backward(ids)
    ctx.vocab = weight.shape[0]


_embedding.register_autograd(
    lambda ctx, dout: (None, _embedding_backward(dout, *ctx.saved_tensors, ctx.vocab), None),
    setup_context=_save_embedding,
)


def embedding(ids: Tensor, weight: Tensor, *, variant: str = "auto") -> Tensor:
    """katt.embedding with the gradient of weight."""
    return _embedding(ids, weight, variant)


@operator("convert_dtype", lambda x, dtype: x.new_empty(x.shape, dtype=dtype))
def _convert_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    out = x.new_empty(x.shape, dtype=dtype)
    _katt.convert_dtype(rows(x), rows(out), call("auto"))
    return out


def _save_dtype(ctx, inputs, output):
    ctx.dtype = inputs[0].dtype


_convert_dtype.register_autograd(lambda ctx, dout: (_convert_dtype(dout, ctx.dtype), None), setup_context=_save_dtype)


def convert_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x rounded to float32, float16 or bfloat16, with its gradient in the dtype of x."""
    return _convert_dtype(x, dtype)


@operator("ternary_linear", lambda x, weight: _new_linear(x, weight))
def _ternary_linear(x: Tensor, weight: Tensor) -> Tensor:
    out = _new_linear(x, weight)
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
    """The ternary linear layer of katt.ternary_linear on a weight (out_features, in_features) that is quantised at
    every call, for training: gradients through the straight-through estimator. katt.ternary_linear takes a weight
    that is packed once."""
    return _ternary_linear(x, weight)


@operator("rope", lambda x, cache, positions, first_position, interleaved, variant: new_heads(x))
def _rope(
    x: Tensor, cache: Tensor, positions: Optional[Tensor], first_position: int, interleaved: bool, variant: str
) -> Tensor:
    out = new_heads(x)
    _katt.rope_forward(dense_last(x), None, cache, positions, out, None, first_position, interleaved, call(variant))
    return out


@operator("rope_backward", lambda dout, cache, positions, first_position, interleaved: new_heads(dout))
def _rope_backward(
    dout: Tensor, cache: Tensor, positions: Optional[Tensor], first_position: int, interleaved: bool
) -> Tensor:
    dx = new_heads(dout)
    _katt.rope_backward(dense_last(dout), None, cache, positions, dx, None, first_position, interleaved, call("auto"))
    return dx


def _save_rope(ctx, inputs, output):
    _, cache, positions, ctx.first_position, ctx.interleaved, _ = inputs
    ctx.save_for_backward(cache, positions)


def _rope_gradients(ctx, dout):
    cache, positions = ctx.saved_tensors
    dx = _rope_backward(dout, cache, positions, ctx.first_position, ctx.interleaved)
    return dx, None, None, None, None, None


_rope.register_autograd(_rope_gradients, setup_context=_save_rope)


def rope(
    x: Tensor,
    cache: Tensor,
    *,
    positions: Optional[Tensor] = None,
    first_position: int = 0,
    interleaved: bool = False,
    variant: str = "auto",
) -> Tensor:
    """katt.rope of one tensor with its gradient; cache: katt.rope_cache(rows, head_dim, like=x)."""
    return _rope(x, cache, positions, first_position, interleaved, variant)
