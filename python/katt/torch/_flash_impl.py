"""Katt as PyTorch's flash attention on CPUs: torch.nn.attention.activate_flash_attention_impl("katt"), after an import
of katt.torch, puts it under torch.nn.functional.scaled_dot_product_attention, forward and backward;
restore_flash_attention_impl() takes it away. Calls that Katt does not compute stay with PyTorch's kernels."""

import torch
from torch.nn.functional import pad

from .._functions import launch
from ._attention import BACKWARD, FORWARD
from ._operator import call, dense_last, new_heads
from ._sdpa import DTYPES, LARGEST_HEAD_DIM, padded

FORWARD_NAME = "_scaled_dot_product_flash_attention_for_cpu"
BACKWARD_NAME = FORWARD_NAME + "_backward"


class Handle:
    """Katt's kernels in the place of PyTorch's, as long as it lives."""

    def __init__(self):
        self._library = torch.library.Library("aten", "IMPL")
        for name, make in ((FORWARD_NAME, forward_after), (BACKWARD_NAME, backward_after)):
            own = torch.library.get_kernel(f"aten::{name}", "CPU")
            self._library.impl(name, make(own.call_boxed), "CPU", with_keyset=True)

    def remove(self):
        if self._library is not None:
            self._library._destroy()
        self._library = None


def register():
    """Adds "katt" to PyTorch's registry, where it has one."""
    registry = getattr(torch.nn.attention, "register_flash_attention_impl", None)
    if registry is not None:
        registry("katt", register_fn=Handle)


def takes(query, key, value, dropout_p, attn_mask):
    """True for arguments that Katt computes."""
    return (
        dropout_p == 0.0
        and query.dtype in DTYPES
        and query.dtype == key.dtype == value.dtype
        and query.shape[-1] == key.shape[-1] == value.shape[-1] <= LARGEST_HEAD_DIM
        and query.shape[1] % max(key.shape[1], 1) == 0
        and (attn_mask is None or attn_mask.dtype == query.dtype)
    )


class Problem:
    """The arguments of both passes as Katt's kernels take them. Causality is aligned to the top left corner."""

    def __init__(self, query, key, value, is_causal, attn_mask, scale):
        self.scale = max(query.shape[-1], 1) ** -0.5 if scale is None else scale
        self.length, keys = query.shape[2], key.shape[2]
        self.hidden_keys = max(0, keys - self.length) if is_causal else 0  # no query sees them
        seen = keys - self.hidden_keys
        self.q = dense_last(padded(query, 0))
        self.k, self.v = (dense_last(padded(x[:, :, :seen], 0)) for x in (key, value))
        self.window_right = max(0, self.length - seen) if is_causal else -1
        self.bias = None
        if attn_mask is not None:
            mask = attn_mask[(None,) * (4 - attn_mask.dim())]
            self.bias = dense_last(mask.expand(*mask.shape[:2], self.length, keys)[..., :seen])
        self.options = (0.0, False, -1, self.window_right, 0)  # softcap, causal, window, block size
        self.masks = (self.bias, None, None, None)


def forward_after(otherwise):
    def forward(keys, query, key, value, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None):
        if not takes(query, key, value, dropout_p, attn_mask):
            return otherwise(keys, query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)
        problem = Problem(query, key, value, is_causal, attn_mask, scale)
        out = new_heads(problem.q)
        lse = query.new_empty(query.shape[:3], dtype=torch.float32)
        inputs = (problem.q, problem.k, problem.v, *problem.masks)
        # Under torch.compile no tensor says here that it requires a gradient.
        for_backward = any(x.requires_grad for x in (query, key, value)) or (
            problem.length > 1 and not torch.is_inference_mode_enabled()
        )
        launch(FORWARD, inputs, (out, lse), (problem.scale, for_backward, *problem.options), call("auto"))
        made = torch.empty_like(query)
        made.copy_(out[..., : query.shape[-1]])
        return made, by_position(lse)

    return forward


def backward_after(otherwise):
    def backward(
        keys, grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, *, attn_mask=None, scale=None
    ):
        if not takes(query, key, value, dropout_p, attn_mask):
            return otherwise(keys, grad_out, query, key, value, out, logsumexp, dropout_p, is_causal,
                             attn_mask=attn_mask, scale=scale)  # fmt: skip
        problem = Problem(query, key, value, is_causal, attn_mask, scale)
        dq, dk, dv = (new_heads(x) for x in (problem.q, problem.k, problem.v))
        dout, out = (dense_last(padded(x, 0)) for x in (grad_out, out))
        inputs = (dout, problem.q, problem.k, problem.v, out, logsumexp.contiguous(), *problem.masks)
        launch(BACKWARD, inputs, (dq, dk, dv, None), (problem.scale, *problem.options), call("auto"))
        width = query.shape[-1]
        dk, dv = (pad(x[..., :width], (0, 0, 0, problem.hidden_keys)) for x in (dk, dv))
        return tuple(by_position(x[..., :width]) for x in (dq, dk, dv))

    return backward


def by_position(x):
    """lse, or a gradient, as PyTorch's kernel lays it: position by position; copied only where x does not."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)
