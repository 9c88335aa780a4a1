"""torch.nn.functional.scaled_dot_product_attention on Katt's kernels."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from ._attention import attention
from ._operator import DEVICES, refuse_tensors

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LARGEST_HEAD_DIM = 256


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    softcap: float = 0.0,
) -> Tensor:
    """As torch.nn.functional.scaled_dot_product_attention: query (…, heads, L, E), key (…, heads, S, E), value (…,
    heads, S, Ev) → (…, heads, L, Ev), leading axes broadcast. `softcap` is ours.

    is_causal: PyTorch's rule, aligned to the top left corner: key j is visible to query i if j <= i. (Ours in
        katt.torch.attention is aligned to the bottom right; where L = S they are the same.)
    attn_mask: bool, True where a key takes part, or float32 or query's dtype, added to the scores; broadcast to
        (…, heads, L, S); or PyTorch's CausalBias. float32 is rounded to query's dtype, in which finite numbers stay
        finite: only -inf hides a key. A query that sees no key gives 0.
    scale: of the scores; 1 / sqrt(E) if None.
    enable_gqa: key and value may have fewer heads, which divide those of the query.

    ValueError for shapes and dtypes that do not fit together, and for what Katt does not compute: a dropout_p but 0, other
    dtypes than float32, float16 and bfloat16, E or Ev above 256.
    """
    refuse_tensors("scaled_dot_product_attention", scale=scale, softcap=softcap)
    check(query, key, value, attn_mask, dropout_p, is_causal)
    device = query.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        query, key, value = (x.to(dtype) for x in (query, key, value))
    if scale is None:
        scale = max(query.shape[-1], 1) ** -0.5
    head_dim = value.shape[-1]
    query, key, value, lead = heads_of(query, key, value, enable_gqa)
    length, keys = query.shape[-2], key.shape[-2]
    window = (-1, -1)
    if is_causal and length < keys:
        key, value = key[:, :, :length], value[:, :, :length]  # no query sees the others
    if is_causal and length > keys:
        window, is_causal = (-1, length - keys), False  # j <= i + (keys - length) + (length - keys)
    bias = None
    if attn_mask is not None:
        if type(attn_mask).__name__ == "CausalBias":  # PyTorch's, whose own memory nobody has written
            attn_mask = attn_mask._materialize(query.device)
        bias = bias_of(attn_mask, query.dtype, lead, (length, keys))
    out = attention(
        padded(query, head_dim), padded(key, head_dim), padded(value, query.shape[-1]),
        causal=is_causal, window=window, bias=bias, scale=scale, softcap=softcap,
    )  # fmt: skip
    return out[..., :head_dim].reshape(*lead, length, head_dim)


def refuse(name, holds, expected):
    raise ValueError(f"scaled_dot_product_attention: {name}: holds {holds}, expected {expected}")


def check(query, key, value, attn_mask, dropout_p, is_causal):
    if not dropout_p == 0:
        refuse("dropout_p", dropout_p, "0: katt has no dropout")
    if attn_mask is not None and is_causal:
        refuse("attn_mask", "a mask beside is_causal=True", "one of them")
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.dtype not in DTYPES:
            refuse(name, x.dtype, "float32, float16 or bfloat16")
        if x.device.type not in DEVICES:
            refuse(name, f"a tensor on {x.device}", f"one on {' or '.join(DEVICES)}")
        if x.device != query.device:
            refuse(name, f"a tensor on {x.device}", f"one on {query.device}, as query is")
        if x.dim() < 2:
            refuse(name, f"shape {tuple(x.shape)}", "at least 2 axes")
        if x.shape[-1] > LARGEST_HEAD_DIM:
            refuse(name, f"head_dim {x.shape[-1]}", f"at most {LARGEST_HEAD_DIM}")
    if key.shape[-1] != query.shape[-1]:
        refuse("key", f"head_dim {key.shape[-1]}", f"{query.shape[-1]}, as query has")
    if value.shape[-2] != key.shape[-2]:
        refuse("value", f"{value.shape[-2]} positions", f"{key.shape[-2]}, as key has")


def heads_of(query, key, value, enable_gqa):
    """query, key and value as (batch, heads, positions, head_dim), and the leading axes of the result."""
    leads = [x.shape[:-2] for x in (query, key, value)]
    if enable_gqa and all(leads):
        batch = broadcast(*(lead[:-1] for lead in leads))
        leads = [(*batch, lead[-1]) for lead in leads]
    else:
        leads = [broadcast(*leads)] * 3
    return *(four_axes(x, lead) for x, lead in zip((query, key, value), leads, strict=True)), leads[0]


def broadcast(query, key, value):
    """The axes to which leading axes broadcast."""
    for name, lead, other in (("key", key, query), ("value", value, query), ("value", value, key)):
        if any(a != b and 1 not in (a, b) for a, b in zip(reversed(lead), reversed(other))):
            refuse(name, f"leading axes {tuple(lead)}", f"axes that broadcast with {tuple(other)}")
    return torch.broadcast_shapes(query, key, value)


def four_axes(x, lead):
    x = x.expand(*lead, *x.shape[-2:])
    if len(lead) > 2:
        return x.flatten(0, -4)
    return x[(None,) * (2 - len(lead))]


def rounded(mask, dtype):
    """The mask in another dtype, in which its finite numbers stay finite."""
    limit = torch.finfo(dtype).max
    return torch.where(mask.isinf(), mask, mask.float().clamp(-limit, limit)).to(dtype)


class Rounded(torch.autograd.Function):
    """rounded(), with the gradient of a rounding: that of the result, also where the number was too large."""

    @staticmethod
    def forward(ctx, mask, dtype):
        ctx.dtype = mask.dtype
        return rounded(mask, dtype)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.to(ctx.dtype), None


def bias_of(mask, dtype, lead, scores):
    """The term added to the scores, (batch or 1, heads or 1, L, S)."""
    is_cast = torch.is_autocast_enabled(mask.device.type) and mask.dtype in DTYPES  # as PyTorch's
    if mask.dtype not in (torch.bool, torch.float32, dtype) and not is_cast:
        refuse("attn_mask", mask.dtype, f"bool, float32 or {dtype}")
    whole = (*lead, *scores)
    if mask.dim() > len(whole) or any(a not in (1, b) for a, b in zip(reversed(mask.shape), reversed(whole))):
        refuse("attn_mask", f"shape {tuple(mask.shape)}", f"one that broadcasts to {whole}")
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, float("-inf"))
    if mask.dtype != dtype:
        mask = Rounded.apply(mask, dtype) if mask.requires_grad else rounded(mask, dtype)
    if len(lead) > 2:
        return mask.expand(whole).flatten(0, -4)
    mask = mask[(None,) * (4 - mask.dim())]
    return mask.expand(*mask.shape[:2], *scores)


def padded(x, other):
    """x with zeros up to a head_dim that Katt takes, a multiple of 8: they change neither scores nor results."""
    missing = -max(x.shape[-1], other) % 8 + max(0, other - x.shape[-1])
    return pad(x, (0, missing)) if missing else x
