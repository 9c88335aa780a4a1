"""SwiGLU in PyTorch."""

from torch.nn import functional


def compute(_case, t):
    """silu(gate) · up"""
    return (functional.silu(t["gate"]) * t["up"],)
