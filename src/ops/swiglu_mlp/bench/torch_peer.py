"""The feed-forward layer of LLaMA in PyTorch."""

from torch.nn import functional


def compute(_case, t):
    """down(silu(gate(x)) · up(x))"""
    hidden = functional.silu(functional.linear(t["x"], t["w_gate"])) * functional.linear(t["x"], t["w_up"])
    return (functional.linear(hidden, t["w_down"]),)
