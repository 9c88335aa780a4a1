"""Scaled dot-product attention."""

from collections.abc import Callable, Sequence

import numpy

from . import _katt
from ._arrays import Array, call, library, natural, pair, refused, shape_of
from ._functions import PLANS, launch
from ._rules.run import UNCHANGED, captured_numbers, rule_of
from ._rules.run import launch as launch_with_rule

FORWARD, BACKWARD = PLANS["attention"]


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    bias: Array | None = None,
    softcap: float = 0.0,
    scale: float | None = None,
    alibi_slopes: Array | None = None,
    kv_lengths: Array | None = None,
    block_mask: Array | None = None,
    score_rule: Callable | None = None,
    variant: str = "auto",
    tile: tuple[int, int] | None = None,
    return_lse: bool = False,
) -> Array | tuple[Array, Array]:
    """Attention: softmax(rule(scale · q·kᵀ) + bias) · v over the keys that each query sees.

    q (batch, heads, seq_q, head_dim); k, v (batch, kv_heads, seq_kv, head_dim), of one dtype (float32, float16,
    bfloat16) and of any strides with the last axis contiguous. kv_heads divides heads: query head h uses head
    h // (heads // kv_heads). head_dim is a multiple of 8 up to 256.

    causal: key j is visible to query i if j <= i + seq_kv - seq_q (the last query sees all keys).
    window: (left, right) keys beside that diagonal which stay visible; -1: all.
    bias: (batch or 1, heads or 1, seq_q, seq_kv) of q's dtype, added to the scores; may hold -inf.
    softcap: scores become softcap · tanh(scores / softcap); 0: none.
    scale: of the scores; 1 / sqrt(head_dim) if None.
    alibi_slopes: (heads,) float32; adds -slope · |i + seq_kv - seq_q - j|.
    kv_lengths: (batch,) int64; the keys of each entry, in place of seq_kv.
    block_mask: (blocks, size): blocks (ceil(seq_q / size), ceil(seq_kv / size)) uint8 or bool; keys of a block that
        is 0 are not visible to its queries.
    score_rule: a function (score, batch, head, query, key) -> score, called after softcap and ALiBi and before bias
        and mask; query and key count from 0. It is traced at a call, or once by katt.Rule(function), and may use
        Python's operators, functions of the arrays' library, and captured arrays indexed by numbers (docs/python.md).
        It runs on the CPU.
    variant, tile: which kernel, "auto" is the fastest that accepts the arguments; (tile_q, tile_kv).
    return_lse: also the (batch, heads, seq_q) float32 natural log-sum-exp of the scores, for attention_backward; "auto"
        is then a kernel that rounds scores as that one does, which for few queries is not the fastest, "decode".

    Returns out (batch, heads, seq_q, head_dim), or (out, lse). A query that sees no key gives 0 and -inf.
    ValueError with one line that names the argument, what it holds and what was expected: shapes and dtypes that do not
    fit together, numbers out of range, a variant that does not accept the arguments, a function that is no rule.
    Source: Vaswani et al. 2017, arXiv:1706.03762.
    """
    lib = library("attention", q=q, k=k, v=v, **present(bias=bias, alibi_slopes=alibi_slopes))
    out = lib.empty(tuple(q.shape))
    lse = lib.empty(shape_of("attention", "q", q, 4)[:3], "f32") if return_lse else None
    scale, blocks, numbers = options(q, k, causal, window, softcap, scale, block_mask)
    masks = (bias, alibi_slopes, kv_lengths, blocks)
    inputs, numbers = (q, k, v, *masks), (scale, bool(return_lse), *numbers)
    if score_rule is not None:
        score_rule = checked_rule(score_rule, q)
        launch_with_rule(FORWARD, score_rule, inputs, (out, lse), numbers, call(variant, tile))
    else:
        launch(FORWARD, inputs, (out, lse), numbers, call(variant, tile))
    return lib.give(out, lse) if return_lse else lib.give(out)


def attention_backward(
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    *,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    bias: Array | None = None,
    softcap: float = 0.0,
    scale: float | None = None,
    alibi_slopes: Array | None = None,
    kv_lengths: Array | None = None,
    block_mask: Array | None = None,
    score_rule: Callable | None = None,
    captured: Sequence[Array] = (),
    dlse: Array | None = None,
    bias_gradient: bool = False,
    variant: str = "auto",
    tile: tuple[int, int] | None = None,
) -> tuple[Array, ...]:
    """Gradients (dq, dk, dv) of attention, of the shapes of q, k and v; with bias_gradient (dq, dk, dv, dbias).

    With the probabilities P = exp(S - lse) of the scores S = rule(scale · q·kᵀ) + bias: dv = Pᵀ · dout,
    dS = P ∘ (dout·vᵀ - Σ dout∘out + dlse), dq = scale · (rule' ∘ dS) · k, dk = scale · (rule' ∘ dS)ᵀ · q, dbias = dS.

    dout (batch, heads, seq_q, head_dim): gradient of out. out and lse: results of `attention` with the same
    arguments and return_lse=True. dk and dv are summed over the query heads that share a head.
    causal, window, bias, softcap, scale, alibi_slopes, kv_lengths, block_mask, score_rule: those of `attention`.
    captured: arrays that score_rule reads; their gradients, float32 of their shapes, follow the others.
    dlse: (batch, heads, seq_q) float32, gradient of lse, if it has one; on the CPU.
    bias_gradient: True: also the gradient of bias, of its shape, summed over what bias is broadcast to; on the CPU.
    variant, tile: which kernel, as in `attention`.

    ValueError as in `attention`, and for `captured` that score_rule does not read or that is no float.
    """
    more = present(bias=bias, alibi_slopes=alibi_slopes, dlse=dlse)
    lib = library("attention", q=q, k=k, v=v, dout=dout, out=out, lse=lse, **more)
    if bias_gradient and bias is None:
        raise ValueError("attention: bias_gradient: holds True without a bias, expected a bias beside it")
    dq, dk, dv = (lib.empty(tuple(x.shape)) for x in (q, k, v))
    dbias = lib.empty(shape_of("attention", "bias", bias, 4)) if bias_gradient else None
    made = (dq, dk, dv, dbias)
    scale, blocks, numbers = options(q, k, causal, window, softcap, scale, block_mask)
    inputs = (dout, q, k, v, out, lse, bias, alibi_slopes, kv_lengths, blocks)
    if score_rule is not None or len(captured) or dlse is not None:
        score_rule = UNCHANGED if score_rule is None else checked_rule(score_rule, q)
        places = captured_numbers("attention", score_rule, captured)
        gradients = {n: lib.empty(tuple(array.shape), "f32") for n, array in zip(places, captured, strict=True)}
        launch_with_rule(BACKWARD, score_rule, inputs, made, (scale, *numbers), call(variant, tile), dlse, gradients)
        made += tuple(gradients[n] for n in places)
    else:
        launch(BACKWARD, inputs, made, (scale, *numbers), call(variant, tile))
    return lib.give(*(array for array in made if array is not None))


def checked_rule(function, like):
    """The rule of a call whose arrays are like this one. ValueError for what is none, and when PyTorch would want a
    gradient of a tensor that the rule captures."""
    rule = rule_of("attention", function, like)
    if any(getattr(array, "requires_grad", False) for array in rule.captured):
        import torch

        if torch.is_grad_enabled():
            raise ValueError("attention: score_rule: captures a tensor that requires a gradient, expected one without; "
                             "katt.torch.flex_attention computes gradients")  # fmt: skip
    return rule


def present(**arrays):
    """The arrays that are given, by name."""
    return {name: array for name, array in arrays.items() if array is not None}


def options(q, k, causal, window, softcap, scale, block_mask):
    """The scale, the block mask without its size, and the other numbers of both passes."""
    if scale is None:
        scale = max(shape_of("attention", "q", q, 4)[-1], 1) ** -0.5
    blocks, size = (None, 0) if block_mask is None else pair("attention", "block_mask", block_mask, "(blocks, size)")
    left, right = pair("attention", "window", window, "(left, right)")
    for keys in (left, right):
        if isinstance(keys, (int, numpy.integer)) and keys < -1:
            raise refused("attention", "window", window, "numbers of keys, or -1: all")
    if blocks is not None:
        if natural("attention", "block_mask: size", size) == 0:
            raise refused("attention", "block_mask: size", size, "an integer of at least 1")
        wanted = tuple(-(-shape_of("attention", name, array, 4)[2] // size) for name, array in (("q", q), ("k", k)))
        if tuple(getattr(blocks, "shape", wanted)) != wanted:
            raise ValueError(f"attention: block_mask: holds shape {tuple(blocks.shape)}, expected {wanted}")
    return scale, blocks, (softcap, causal, left, right, size)


def alibi_slopes(heads: int) -> list[float]:
    """The slopes of ALiBi (Press et al. 2022, arXiv:2108.12409) for so many heads: 2^(-8 (h + 1) / n) where n is a
    power of two, else those of the power below and every other one of the next. ValueError for what is no number of
    heads."""
    return _katt.alibi_slopes(natural("alibi_slopes", "heads", heads))
