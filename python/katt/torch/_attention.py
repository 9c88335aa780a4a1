"""Attention with gradients."""

from typing import Optional

import torch
from torch import Tensor

from .._attention import options
from .._functions import PLANS, launch
from .._rules.run import UNCHANGED
from .._rules.run import launch as launch_rule
from ._operator import call, dense_last, new_heads, new_rows, operator, refuse_tensors

FORWARD, BACKWARD = PLANS["attention"]


def _fake_attention(q, k, v, bias, alibi_slopes, kv_lengths, block_mask, block_size, scale, causal, window_left,
                    window_right, softcap, for_backward, variant):  # fmt: skip
    return new_heads(q), q.new_empty(q.shape[:3], dtype=torch.float32)


@operator("attention", _fake_attention)
def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Optional[Tensor],
    alibi_slopes: Optional[Tensor],
    kv_lengths: Optional[Tensor],
    block_mask: Optional[Tensor],
    block_size: int,
    scale: float,
    causal: bool,
    window_left: int,
    window_right: int,
    softcap: float,
    for_backward: bool,
    variant: str,
) -> tuple[Tensor, Tensor]:
    out, lse = new_heads(q), q.new_empty(q.shape[:3], dtype=torch.float32)
    inputs = (*(dense_last(x) for x in (q, k, v, bias)), alibi_slopes, kv_lengths, block_mask)
    numbers = (scale, for_backward, softcap, causal, window_left, window_right, block_size)
    launch(FORWARD, inputs, (out, lse), numbers, call(variant))
    return out, lse


def _fake_backward(dout, dlse, q, k, v, out, lse, bias, *options):
    *_, with_bias = options
    return new_heads(q), new_heads(k), new_heads(v), [new_rows(bias)] if with_bias else []


@operator("attention_backward", _fake_backward)
def _attention_backward(
    dout: Tensor,
    dlse: Optional[Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    bias: Optional[Tensor],
    alibi_slopes: Optional[Tensor],
    kv_lengths: Optional[Tensor],
    block_mask: Optional[Tensor],
    block_size: int,
    scale: float,
    causal: bool,
    window_left: int,
    window_right: int,
    softcap: float,
    with_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """dq, dk, dv of the gradient of out and, if there is one, of lse; and the gradient of the bias with with_bias."""
    made = new_heads(q), new_heads(k), new_heads(v)
    dbias = new_rows(bias) if with_bias else None
    outputs = (*made, dbias)
    inputs = (*(dense_last(x) for x in (dout, q, k, v, out)), lse, dense_last(bias), alibi_slopes, kv_lengths,
              block_mask)  # fmt: skip
    numbers = (scale, softcap, causal, window_left, window_right, block_size)
    if dlse is None:
        launch(BACKWARD, inputs, outputs, numbers, call("auto"))
    else:
        launch_rule(BACKWARD, UNCHANGED, inputs, outputs, numbers, call("auto"), dense_last(dlse))
    return *made, [dbias] if with_bias else []


def _save(ctx, inputs, output):
    q, k, v, bias, alibi_slopes, kv_lengths, block_mask, *ctx.numbers = inputs
    out, lse = output
    ctx.save_for_backward(q, k, v, out, lse, bias, alibi_slopes, kv_lengths, block_mask)
    if not _has_full_backward(q):
        ctx.mark_non_differentiable(lse)
    ctx.set_materialize_grads(False)


def _has_full_backward(q):
    """Gradients of lse and of the bias are computed on the CPU alone."""
    return q.device.type == "cpu"


def _gradients(ctx, dout, dlse):
    q, k, v, out, lse, bias, *masks = ctx.saved_tensors
    if dout is None and dlse is None:
        return (None,) * 15
    dout = torch.zeros_like(out) if dout is None else dout
    *numbers, _for_backward, variant = ctx.numbers
    if variant == "naive" and q.dtype != torch.float32:  # its lse belongs to scores rounded to the dtype
        out, lse = _attention(q, k, v, bias, *masks, *numbers, True, "auto")
    with_bias, full = ctx.needs_input_grad[3], _has_full_backward(q)
    dq, dk, dv, made = _attention_backward(dout, dlse if full else None, q, k, v, out, lse, bias, *masks, *numbers,
                                           with_bias and full)  # fmt: skip
    dbias = None
    if with_bias:
        dbias = made[0] if full else bias_gradient(dout, q, k, v, bias, *masks, *numbers)
    return (dq, dk, dv, dbias, *(None,) * 11)


_attention.register_autograd(_gradients, setup_context=_save)


def bias_gradient(dout, q, k, v, bias, alibi_slopes, kv_lengths, block_mask, block_size, scale, causal,
                  window_left, window_right, softcap):  # fmt: skip
    """Gradient of the bias, P ∘ (dP - Σ P·dP) with dP = dout·vᵀ, summed over what the bias was broadcast to. Kernels
    of a GPU do not compute it; like the bias it is of the size of the scores, and is made of PyTorch's operators in
    float32."""
    group = q.shape[1] // k.shape[1]
    q, k, v, dout = (x.float() for x in (q, k, v, dout))
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    seq_q, seq_kv = q.shape[2], k.shape[2]
    scores = q @ k.transpose(2, 3) * scale
    if softcap > 0:
        scores = torch.tanh(scores / softcap) * softcap
    keys = torch.full((1, 1, 1, 1), seq_kv, device=q.device) if kv_lengths is None else kv_lengths.view(-1, 1, 1, 1)
    j = torch.arange(seq_kv, device=q.device)
    distance = j - torch.arange(seq_q, device=q.device).view(-1, 1) - (keys - seq_q)
    if alibi_slopes is not None:
        scores = scores - alibi_slopes.view(1, -1, 1, 1) * distance.abs()
    right = 0 if causal else window_right
    seen = j < keys
    if right >= 0:
        seen = seen & (distance <= right)
    if window_left >= 0:
        seen = seen & (distance >= -window_left)
    if block_mask is not None:
        blocks = block_mask.bool().repeat_interleave(block_size, 0).repeat_interleave(block_size, 1)
        seen = seen & blocks[:seq_q, :seq_kv]
    scores = torch.where(seen, scores + bias.float(), float("-inf"))
    p = torch.softmax(scores, -1).nan_to_num(0.0)  # where a query sees no key
    dp = torch.where(seen, dout @ v.transpose(2, 3), 0.0)  # values that no query sees may be NaN
    d = p * (dp - (p * dp).sum(-1, keepdim=True))
    return d.sum_to_size(bias.shape).to(bias.dtype)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    bias: Optional[Tensor] = None,
    softcap: float = 0.0,
    scale: Optional[float] = None,
    alibi_slopes: Optional[Tensor] = None,
    kv_lengths: Optional[Tensor] = None,
    block_mask: Optional[tuple[Tensor, int]] = None,
    variant: str = "auto",
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """katt.attention with gradients of q, k, v and bias: q (batch, heads, seq_q, head_dim), k and v (batch, kv_heads,
    seq_kv, head_dim) → out (batch, heads, seq_q, head_dim), or (out, lse) with return_lse. The gradient of lse is
    computed on the CPU alone.

    causal, window, bias, softcap, scale, alibi_slopes, kv_lengths, block_mask: as in katt.attention.
    variant: of the forward pass; the backward pass takes its fastest one. After "naive" in 16 bits, whose lse belongs to
    rounded scores, that repeats the forward pass.

    ValueError as in katt.attention, and for a scale or softcap that is a tensor.
    """
    refuse_tensors("attention", scale=scale, softcap=softcap)
    scale, blocks, (_, _, left, right, size) = options(q, k, causal, window, softcap, scale, block_mask)
    if torch.is_grad_enabled() and alibi_slopes is not None and alibi_slopes.requires_grad:
        raise ValueError("attention: alibi_slopes: holds a tensor that requires a gradient, expected one without")
    differentiated = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, bias))
    out, lse = _attention(q, k, v, bias, alibi_slopes, kv_lengths, blocks, size, scale, causal, left, right,
                          softcap, differentiated, variant)  # fmt: skip
    return (out, lse) if return_lse else out
