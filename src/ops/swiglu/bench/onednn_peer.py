"""SwiGLU by oneDNN: swish, then a product. (With the product inside the first primitive it has only its reference.)"""

import ctypes

from katt_peers.onednn import DST, FORWARD_INFERENCE, MULTIPLY, SRC, SWISH, Matrix, Pointer, Primitive, combined
from katt_peers.refusal import Refusal


def steps(library, case, t):
    """silu(gate) · up"""
    if case.backward:
        raise Refusal("this peer computes the forward pass")
    t["swish"] = Matrix(library, case.dtype, *t["gate"].shape)
    gate, swish, up, out = (t[name].view() for name in ("gate", "swish", "up", "out"))
    description = library.make("eltwise_forward_primitive_desc_create", library.engine, ctypes.c_int(FORWARD_INFERENCE),
                               ctypes.c_int(SWISH), gate[0], swish[0], ctypes.c_float(1), ctypes.c_float(0),
                               Pointer())  # fmt: skip
    return [Primitive(library, description, {SRC: gate[1], DST: swish[1]}),
            combined(library, MULTIPLY, out, swish, up)]  # fmt: skip
