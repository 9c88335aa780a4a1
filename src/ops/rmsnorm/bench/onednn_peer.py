"""RMSNorm by oneDNN, the residual added by a primitive before it."""

from katt_peers.onednn import ADD, combined, normalisation
from katt_peers.refusal import Refusal


def steps(library, case, t):
    """The primitives of RMSNorm of x, or of x + residual where there is one."""
    if case.backward:  # its kernel subtracts the gradients' mean, as if the rows' mean had been subtracted
        raise Refusal("oneDNN's gradients of RMSNorm are those of layer normalisation")
    if "residual" not in t:
        return normalisation(library, case, t, rms=True)
    addition = combined(library, ADD, t["residual_out"].view(), t["x"].view(), t["residual"].view())
    return [addition, *normalisation(library, case, t | {"x": t["residual_out"]}, rms=True)]
