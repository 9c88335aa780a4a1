"""The feed-forward layer of LLaMA by oneDNN: three products, swish and the product of the halves inside them."""

from katt_peers.onednn import Matrix, following, product
from katt_peers.refusal import Refusal


def steps(library, case, t):
    """down(silu(gate(x)) · up(x))"""
    if case.backward:
        raise Refusal("this peer computes the forward pass")
    inner = t["x"].shape[0], t["w_gate"].shape[0]
    t["gate"], t["hidden"] = (Matrix(library, case.dtype, *inner) for _ in range(2))
    x, gate, hidden = (t[name].view() for name in ("x", "gate", "hidden"))
    w_gate, w_up, w_down = (t[name].view(transposed=True) for name in ("w_gate", "w_up", "w_down"))
    return [product(library, gate, x, w_gate, then=following(library)),
            product(library, hidden, x, w_up, then=following(library, gate)),
            product(library, t["out"].view(), hidden, w_down)]  # fmt: skip
