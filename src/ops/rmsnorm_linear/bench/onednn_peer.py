"""RMSNorm and a projection by oneDNN, one primitive after the other."""

from katt_peers.onednn import ADD, Matrix, combined, normalisation, product
from katt_peers.refusal import Refusal


def steps(library, case, t):
    """rms_norm(x) · weightᵀ, with residual: of x + residual"""
    if case.backward:
        raise Refusal("this peer computes the forward pass")
    addition = []
    x = t["x"]
    if "residual" in t:
        x = t["residual_out"]
        addition = [combined(library, ADD, x.view(), t["x"].view(), t["residual"].view())]
    t["normal"] = Matrix(library, case.dtype, *x.shape)
    norm = normalisation(library, case, {"x": x, "weight": t["norm_weight"], "out": t["normal"]}, rms=True)
    return [*addition, *norm, product(library, t["out"].view(), t["normal"].view(), t["weight"].view(transposed=True))]
