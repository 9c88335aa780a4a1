"""torch.nn.attention.flex_attention on Katt's kernels of the CPU, with gradients."""

import itertools
import math
import weakref
from collections.abc import Callable
from typing import Any, Optional

import torch
from torch import Tensor
from torch._compile import _disable_dynamo  # torch.compiler.disable, which imports the compiler at its first call

from .._rules import Rule, RuleError, cache
from .._rules.run import Programs, launch
from ._attention import BACKWARD, FORWARD
from ._operator import call, dense_last, new_heads, operator, refuse_tensors
from ._sdpa import DTYPES, LARGEST_HEAD_DIM, padded

# The rules of calls that are running, and of results whose gradients may be asked for, by number: operators take
# tensors and numbers alone.
RULES: weakref.WeakValueDictionary[int, Rule] = weakref.WeakValueDictionary()
NUMBERS = itertools.count()
EVERYTHING = 2**30  # both block sizes of PyTorch's empty mask


def _fake_flex(q, k, v, captured, rule, blocks, block_size, scale, for_backward):
    return new_heads(q), q.new_empty(q.shape[:3], dtype=torch.float32)


@operator("flex_attention", _fake_flex)
def _flex(
    q: Tensor, k: Tensor, v: Tensor, captured: list[Tensor], rule: int, blocks: Optional[Tensor], block_size: int,
    scale: float, for_backward: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    out, lse = new_heads(q), q.new_empty(q.shape[:3], dtype=torch.float32)
    inputs = (*(dense_last(x) for x in (q, k, v)), None, None, None, blocks)
    numbers = (scale, for_backward, 0.0, False, -1, -1, block_size)
    launch(FORWARD, RULES[rule], inputs, (out, lse), numbers, call("auto"), strides=strides_of(blocks))
    return out, lse


def _fake_flex_backward(dout, dlse, q, k, v, out, lse, captured, wanted, *options):
    return new_heads(q), new_heads(k), new_heads(v), _gradients_of(captured, wanted)


def _gradients_of(captured, wanted):
    return [captured[n].new_empty(captured[n].shape, dtype=torch.float32) for n in wanted]


@operator("flex_attention_backward", _fake_flex_backward)
def _flex_backward(
    dout: Tensor, dlse: Optional[Tensor], q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
    captured: list[Tensor], wanted: list[int], rule: int, blocks: Optional[Tensor], block_size: int, scale: float,
) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:  # fmt: skip
    made, gradients = (new_heads(q), new_heads(k), new_heads(v)), _gradients_of(captured, wanted)
    inputs = (*(dense_last(x) for x in (dout, q, k, v, out)), lse, None, None, None, blocks)
    numbers = (scale, 0.0, False, -1, -1, block_size)
    by_number = dict(zip(wanted, gradients, strict=True))
    launch(BACKWARD, RULES[rule], inputs, (*made, None), numbers, call("auto"), dense_last(dlse), by_number,
           strides_of(blocks))  # fmt: skip
    return *made, gradients


def _save(ctx, inputs, output):
    q, k, v, captured, rule, blocks, *numbers, _ = inputs
    ctx.save_for_backward(q, k, v, *output, blocks, *captured)
    ctx.rule, ctx.held, ctx.numbers = rule, RULES[rule], numbers
    ctx.set_materialize_grads(False)


def _gradients(ctx, dout, dlse):
    q, k, v, out, lse, blocks, *captured = ctx.saved_tensors
    given = [None] * len(captured)
    if dout is None and dlse is None:
        return (*(None,) * 3, given, *(None,) * 5)
    dout = torch.zeros_like(out) if dout is None else dout
    wanted = [n for n, is_wanted in enumerate(ctx.needs_input_grad[3]) if is_wanted]
    *made, gradients = _flex_backward(dout, dlse, q, k, v, out, lse, captured, wanted, ctx.rule, blocks, *ctx.numbers)
    for n, gradient in zip(wanted, gradients, strict=True):
        given[n] = gradient.to(captured[n].dtype)
    return (*made, given, *(None,) * 5)


_flex.register_autograd(_gradients, setup_context=_save)


@_disable_dynamo
def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable | None = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: dict | None = None,
    *,
    return_aux: Any = None,
) -> Tensor | tuple[Tensor, Any]:
    """As torch.nn.attention.flex_attention.flex_attention, on the CPU and with gradients of query, key, value and of
    the tensors that the rule captures: query (batch, heads, L, E), key (batch, kv_heads, S, E), value (batch, kv_heads,
    S, Ev), float32, float16 or bfloat16 → (batch, heads, L, Ev) of their dtype:
    softmax(score_mod(scale · query·keyᵀ)) · value over the keys that block_mask shows.

    score_mod: a function (score, batch, head, q_idx, kv_idx) -> score of tensors without axes.
    block_mask: of PyTorch's create_block_mask. Blocks that no query sees cost nothing, and the mask's function is asked
        in partial blocks alone.
    scale: of the scores; 1 / sqrt(E) if None.
    enable_gqa: key and value may have fewer heads, which divide those of the query.
    return_lse: also the natural log-sum-exp of the scores, (batch, heads, L) float32.
    kernel_options: is not read; it is for PyTorch's compiler, whose graphs break at this function: it traces rules
        itself.
    return_aux: PyTorch's AuxRequest: returns (out, AuxOutput), with lse if it asks for it; it may not ask for
        max_scores.

    A query that sees no key gives 0. ValueError for shapes and dtypes that do not fit together, and for a rule with
    other operations than those in docs/python.md.
    """
    refuse_tensors("flex_attention", scale=scale)
    check(query, key, value, enable_gqa)
    if return_aux is not None and (return_lse or return_aux.max_scores):
        holds = "an AuxRequest beside return_lse=True" if return_lse else "max_scores=True"
        raise refused("return_aux", f"holds {holds}, expected AuxRequest(lse=True) alone")
    try:
        block_mask = None if shows_all(block_mask) else block_mask
        rule = rule_of(score_mod, block_mask)
    except RuleError as error:
        raise refused("score_mod", error) from None
    if torch.is_autocast_enabled("cpu"):
        query, key, value = (x.to(torch.get_autocast_dtype("cpu")) for x in (query, key, value))
    scale = max(query.shape[-1], 1) ** -0.5 if scale is None else scale
    number = next(NUMBERS)
    RULES[number] = rule
    states, size = block_states(block_mask, *query.shape[:2], query.shape[2], key.shape[2])
    blocks = of_groups(states, key.shape[1])
    if states is not None and blocks is None:  # the heads of a group see other keys: each gets its own
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
        blocks = states
    needed = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value, *rule.captured))
    width = value.shape[-1]
    q, k, v = padded(query, width), padded(key, width), padded(value, query.shape[-1])
    out, lse = _flex(q, k, v, rule.captured, number, blocks, size, scale, needed)
    out = out[..., :width]
    if return_aux is not None:
        from torch.nn.attention.flex_attention import AuxOutput

        return out, AuxOutput(lse=lse if return_aux.lse else None)
    return (out, lse) if return_lse else out


def refused(name, why):
    return ValueError(f"flex_attention: {name}: {why}")


def check(query, key, value, enable_gqa):
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.dim() != 4:
            raise refused(name, f"holds shape {tuple(x.shape)}, expected 4 axes")
        if x.dtype not in DTYPES:
            raise refused(name, f"holds {x.dtype}, expected float32, float16 or bfloat16")
        if x.device.type != "cpu":
            raise refused(name, f"holds a tensor on {x.device}, expected one on the CPU")
        if x.shape[-1] > LARGEST_HEAD_DIM:
            raise refused(name, f"holds head_dim {x.shape[-1]}, expected at most {LARGEST_HEAD_DIM}")
    if key.shape[-1] != query.shape[-1]:
        raise refused("key", f"holds head_dim {key.shape[-1]}, expected {query.shape[-1]}, as query has")
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise refused("key", f"holds {key.shape[1]} heads, expected {query.shape[1]}, or enable_gqa=True")
    if query.shape[1] != key.shape[1] and (key.shape[1] == 0 or query.shape[1] % key.shape[1]):
        raise refused("key", f"holds {key.shape[1]} heads, expected a divisor of {query.shape[1]}, the heads of query")


def rule_of(score_mod, block_mask):
    from .._rules.torch_trace import trace_masked

    mask_mod = None if block_mask is None else block_mask.mask_mod

    def made():
        program, masked, tensors = trace_masked(score_mod, mask_mod)
        return Programs(program, masked), tensors

    return Rule.of(*cache.traced((score_mod, mask_mod), made))


def shows_all(block_mask):
    """True of PyTorch's empty mask: one block larger than any sequence, whatever it is made for."""
    return block_mask is not None and min(block_mask.BLOCK_SIZE) >= EVERYTHING


def block_states(block_mask, batch, heads, length, keys):
    """The blocks as the kernels take them, (batch or 1, heads or 1, rows, columns): 0 where no query sees a key, 1
    where all see all, 2 where the mask's rule says it; and their size. (None, 0) without a mask."""
    if block_mask is None:
        return None, 0
    mask_batch, mask_heads = block_mask.kv_num_blocks.shape[:2]
    if mask_batch not in (1, batch) or mask_heads not in (1, heads):
        raise refused(
            "block_mask", f"is of batch {mask_batch} and {mask_heads} heads, expected {batch} and {heads}, or 1"
        )
    rows, columns = block_mask.BLOCK_SIZE
    held = block_mask.seq_lengths
    if held[0] < length or held[1] < keys:
        raise refused("block_mask", f"is of {held[0]} queries and {held[1]} keys, expected {length} and {keys}")
    whole = -(-held[1] // columns)
    states = 2 * dense(block_mask.kv_num_blocks, block_mask.kv_indices, whole)
    if block_mask.full_kv_num_blocks is not None:
        states += dense(block_mask.full_kv_num_blocks, block_mask.full_kv_indices, whole)
    size = math.gcd(rows, columns)
    states = states.repeat_interleave(rows // size, 2).repeat_interleave(columns // size, 3)
    states = states[:, :, : -(-length // size), : -(-keys // size)]
    if states.shape[2] * size < length:
        raise refused("block_mask", f"lists the blocks of {states.shape[2] * size} queries, expected {length}")
    return states.to(torch.uint8).contiguous(), size


def of_groups(states, kv_heads):
    """The blocks of heads that share their keys, (…, kv_heads or 1, …); None where they differ in what none sees."""
    if states is None or states.shape[1] == 1:
        return states
    states = states.unflatten(1, (kv_heads, -1))
    least, most = states.amin(2), states.amax(2)
    if ((least == 0) != (most == 0)).any():
        return None
    return torch.where(least == most, most, 2).to(torch.uint8).contiguous()


def dense(counts, indices, columns):
    """1 for the columns that are among the first `counts` of a row's indices, else 0. A row may list fewer than all."""
    listed = torch.arange(indices.shape[-1]) < counts[..., None]
    if (listed & ((indices < 0) | (indices >= columns))).any():
        raise refused("block_mask", f"lists a block outside of its keys, expected 0 to {columns - 1}")
    made = torch.zeros(*indices.shape[:-1], columns + 1, dtype=torch.int64)
    made.scatter_(-1, torch.where(listed, indices, columns).long(), 1)
    return made[..., :columns]


def strides_of(blocks):
    """Elements from the blocks of a batch entry and of a head to the next one's; 0 where they have the same."""
    if blocks is None:
        return ()
    return tuple(blocks.stride(axis) if blocks.shape[axis] > 1 else 0 for axis in (0, 1))
