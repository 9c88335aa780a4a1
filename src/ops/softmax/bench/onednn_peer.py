"""Softmax by oneDNN."""

import ctypes

from katt_peers.onednn import (
    DIFF_DST,
    DIFF_SRC,
    DST,
    FORWARD_TRAINING,
    SOFTMAX,
    SRC,
    Matrix,
    Pointer,
    Primitive,
)


def steps(library, case, t):
    """softmax over rows; its gradient starts from the forward pass's output, computed here once."""
    columns = ctypes.c_int(1)
    x = t["x"].view()
    if case.backward:
        t["out"] = Matrix(library, case.dtype, *t["x"].shape)
    out = t["out"].view()
    forward = library.make("softmax_forward_primitive_desc_create", library.engine, ctypes.c_int(FORWARD_TRAINING),
                           ctypes.c_int(SOFTMAX), x[0], out[0], columns, Pointer())  # fmt: skip
    step = Primitive(library, forward, {SRC: x[1], DST: out[1]})
    if not case.backward:
        return [step]
    library.run([step])
    dx, dout = t["dx"].view(), t["dout"].view()
    backward = library.make("softmax_backward_primitive_desc_create", library.engine, ctypes.c_int(SOFTMAX),
                            dx[0], dout[0], out[0], columns, forward, Pointer())  # fmt: skip
    return [Primitive(library, backward, {DST: out[1], DIFF_DST: dout[1], DIFF_SRC: dx[1]})]
