"""New arrays of the caller's library."""

import sys
from typing import Any, Protocol

import numpy

from . import _katt

Array = Any  # what speaks DLPack: numpy.ndarray, torch.Tensor, …
Shape = tuple[int, ...]


class Library(Protocol):
    """Makes arrays that an operator writes to, and hands them to the caller."""

    def empty(self, shape: Shape, dtype: str | None = None) -> Array:
        """Of the dtype of the first argument, or of f32, i8 or u8."""

    def give(self, *arrays: Array) -> Array:
        """The arrays as results of an operator: one as it is, several as a tuple."""


def several(arrays: tuple) -> Array:
    return arrays[0] if len(arrays) == 1 else arrays


class NumPyLibrary:
    DTYPES = {"f32": numpy.float32, "i8": numpy.int8, "u8": numpy.uint8}

    def __init__(self, like: numpy.ndarray):
        self._dtype = like.dtype

    def empty(self, shape: Shape, dtype: str | None = None) -> numpy.ndarray:
        return numpy.empty(shape, self.DTYPES[dtype] if dtype else self._dtype)

    def give(self, *arrays):
        return several(arrays)


class TorchLibrary:
    def __init__(self, torch, like):
        self._like = like
        self._dtypes = {"f32": torch.float32, "i8": torch.int8, "u8": torch.uint8}

    def empty(self, shape: Shape, dtype: str | None = None):
        return self._like.new_empty(shape, dtype=self._dtypes[dtype] if dtype else None)

    def give(self, *arrays):
        return several(arrays)


class OtherLibrary:
    """Memory of ours, which the library takes by its from_dlpack()."""

    def __init__(self, like, namespace):
        self._like = like
        self._take = namespace.from_dlpack

    def empty(self, shape: Shape, dtype: str | None = None):
        return _katt.new_array(self._like, list(shape), dtype or "")

    def give(self, *arrays):
        return several(tuple(self._take(array) if array is not None else None for array in arrays))


def namespace(array: Array) -> Any:
    """What has the from_dlpack() of an array's library: its namespace by the array API standard, else its module, as
    CuPy's; None where there is neither."""
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__()
    module = sys.modules.get(type(array).__module__.partition(".")[0])
    return module if hasattr(module, "from_dlpack") and hasattr(array, "__dlpack__") else None


def library(op: str, **arrays: Array) -> Library:
    """The library of the first array. ValueError where PyTorch would want a gradient that nobody computes."""
    like = next(iter(arrays.values()))
    if isinstance(like, numpy.ndarray):
        return NumPyLibrary(like)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(like, torch.Tensor):
        if torch.is_grad_enabled():
            for name, array in arrays.items():
                if getattr(array, "requires_grad", False):
                    raise ValueError(
                        f"{op}: {name}: holds a tensor that requires a gradient, expected one without; "
                        f"katt.torch.{op} computes gradients"
                    )
        return TorchLibrary(torch, like)
    made_by = namespace(like)
    if made_by is None:
        name = next(iter(arrays))
        raise ValueError(
            f"{op}: {name}: holds a {type(like).__name__}, expected an array of NumPy, PyTorch or the array API"
        )
    return OtherLibrary(like, made_by)


def call(variant: str, tile: tuple[int, ...] | int | None = None) -> tuple[str, tuple[int, ...], int]:
    """The last argument of the functions of _katt: variant, values of its parameters, threads (0: as set)."""
    return (variant, () if tile is None else (tile,) if isinstance(tile, int) else tuple(tile), 0)
