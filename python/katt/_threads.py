"""How many threads operators use."""

from collections.abc import Iterator
from contextlib import contextmanager

from . import _katt
from ._arrays import natural


def get_num_threads() -> int:
    """Threads that an operator uses: at first OpenMP's number, that is what OMP_NUM_THREADS says or was set in this
    thread, by torch.set_num_threads too, else every processor. The functions of katt.torch use PyTorch's number."""
    return _katt.threads()


def set_num_threads(threads: int) -> None:
    """Sets the number of threads of later calls; ValueError for `threads` outside of 1 to the number of processors."""
    _katt.set_threads(min(natural("set_num_threads", "threads", threads), 2**31 - 1))


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Sets the number of threads to `count` for a `with` block, as set_num_threads."""
    before = _katt.threads()
    set_num_threads(count)
    try:
        yield
    finally:
        _katt.set_threads(before)
