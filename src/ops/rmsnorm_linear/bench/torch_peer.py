"""RMSNorm and a projection in PyTorch."""

import torch
from torch.nn import functional


def compute(case, t):
    """rms_norm(x) · weightᵀ, with residual: of x + residual, which is an output too."""
    x = t["x"] + t["residual"] if "residual" in t else t["x"]
    normal = functional.rms_norm(x, x.shape[-1:], t["norm_weight"], case.parameters["eps"])
    out = functional.linear(normal, t["weight"])
    return (out, x) if "residual" in t else (out,)


def prepare(_case, t, given):
    """x is the sum already: the gradients of both outputs meet in it."""
    if len(given) == 2:
        t["residual"] = torch.zeros_like(t["x"])
