"""Rotary embedding in PyTorch."""

import torch
from katt_peers.refusal import Refusal


def compute(case, t):
    """Turns the pairs of q and k by the angles of the table, of which a row holds cosines, then sines."""
    if case.axes["interleaved"]:
        raise Refusal("this peer turns halves, not interleaved pairs")
    # The table's rows are positions, or (batch, seq) where these are explicit: (1 or B, 1, S, D/2) each.
    cos, sin = t["cache"].view(-1, 1, t["x"].shape[2], t["x"].shape[3]).chunk(2, dim=-1)

    def turned(x):
        a, b = x.float().chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)

    return turned(t["x"]), turned(t["x2"])


def prepare(_case, t, given):
    """It is linear: its gradient does not depend on where it is taken."""
    t |= {name: torch.zeros_like(dout) for name, dout in zip(("x", "x2"), given, strict=True)}
