"""Layer normalisation in PyTorch."""

from torch.nn import functional


def compute(case, t):
    return (functional.layer_norm(t["x"], t["x"].shape[-1:], t["weight"], t["bias"], case.parameters["eps"]),)
