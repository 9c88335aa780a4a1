"""RMSNorm in PyTorch."""

import torch
from torch.nn import functional


def compute(case, t):
    """x / sqrt(mean(x²) + eps) · weight, with residual: of x + residual, which is an output too."""
    x = t["x"] + t["residual"] if "residual" in t else t["x"]
    out = functional.rms_norm(x, x.shape[-1:], t["weight"], case.parameters["eps"])
    return (out, x) if "residual" in t else (out,)


def prepare(_case, t, given):
    """x is the sum already: the gradients of both outputs meet in it."""
    if len(given) == 2:
        t["residual"] = torch.zeros_like(t["x"])
