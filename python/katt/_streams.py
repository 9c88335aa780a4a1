"""The streams of a GPU on which operators run."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from . import _katt


@contextmanager
def stream(handle) -> Iterator[None]:
    """Operators called by this thread in a `with` block run on this stream of their arrays' device, in place of the one
    on which the arrays' library works. The caller orders other work on the arrays.

    handle: an integer, the cudaStream_t (0: the legacy default stream), or an object with `__cuda_stream__`, or a
        stream of PyTorch or CuPy. ValueError for anything else.
    """
    before = _katt.exchange_stream(_handle(handle))
    try:
        yield
    finally:
        _katt.exchange_stream(before)


def _handle(stream) -> int:
    if hasattr(stream, "__cuda_stream__"):  # NVIDIA's protocol: (version, handle)
        return int(stream.__cuda_stream__()[1])
    for name in ("cuda_stream", "ptr"):  # PyTorch, CuPy
        if hasattr(stream, name):
            return int(getattr(stream, name))
    if isinstance(stream, int) and stream >= 0:
        return stream
    raise ValueError(f"stream: holds {stream!r}, expected the number of a CUDA stream, or a stream of PyTorch or CuPy")


def current(array, device: int) -> int | None:
    """The stream on which the library of an array works on a device; None where it does not say. For _katt, of arrays
    whose type has no table of C functions that says so."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and isinstance(array, torch.Tensor):
        return torch.cuda.current_stream(device).cuda_stream
    if cupy is not None and isinstance(array, cupy.ndarray):
        with cupy.cuda.Device(device):
            return cupy.cuda.get_current_stream().ptr
    return None
