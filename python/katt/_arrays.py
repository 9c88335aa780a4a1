"""New arrays of the caller's library, and the arguments beside arrays."""

import operator
import sys
from typing import Any, Protocol

import numpy

from . import _katt

Array = Any  # any array with DLPack: numpy.ndarray, torch.Tensor, …
Shape = tuple[int, ...]


class Library(Protocol):
    """Makes arrays that an operator writes to, and hands them to the caller."""

    def empty(self, shape: Shape, dtype: str | None = None) -> Array:
        """A new array with the dtype of the first argument, or f32, i8 or u8."""

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
    """The object with the from_dlpack() of an array's library: its namespace by the array API
    standard, else its module, as CuPy's; None without either."""
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__()
    module = sys.modules.get(type(array).__module__.partition(".")[0])
    return module if hasattr(module, "from_dlpack") and hasattr(array, "__dlpack__") else None


def refused(op: str, name: str, value: Any, expected: str) -> ValueError:
    """The error "OP: NAME: holds VALUE, expected EXPECTED"."""
    text = repr(value)
    return ValueError(
        f"{op}: {name}: holds {text if len(text) <= 60 else f'a {type(value).__name__}'}, expected {expected}"
    )


def library(op: str, **arrays: Array) -> Library:
    """The library of the first array. ValueError for a value that is not an array, and when PyTorch
    would want a gradient that nobody computes; not of an array `like`, of which only the library counts."""
    for name, array in arrays.items():
        if not hasattr(array, "shape"):
            raise ValueError(
                f"{op}: {name}: holds a {type(array).__name__}, expected an array of NumPy, PyTorch or the array API"
            )
    like = next(iter(arrays.values()))
    torch = sys.modules.get("torch")
    if torch is not None and torch.is_grad_enabled():
        for name, array in arrays.items():
            if name != "like" and getattr(array, "requires_grad", False):
                raise ValueError(
                    f"{op}: {name}: holds a tensor that requires a gradient, expected one without; "
                    "katt.torch computes gradients"
                )
    if isinstance(like, numpy.ndarray):
        return NumPyLibrary(like)
    if torch is not None and isinstance(like, torch.Tensor):
        return TorchLibrary(torch, like)
    made_by = namespace(like)
    if made_by is None:
        name = next(iter(arrays))
        raise ValueError(
            f"{op}: {name}: holds a {type(like).__name__}, expected an array of NumPy, PyTorch or the array API"
        )
    return OtherLibrary(like, made_by)


def shape_of(op: str, name: str, array: Array, axes: int) -> Shape:
    """The shape of an array with this many axes. ValueError for another number of axes, and for a
    value that is not an array."""
    shape = tuple(getattr(array, "shape", ()))
    if len(shape) != axes:
        what = f"shape {shape}" if hasattr(array, "shape") else f"a {type(array).__name__}"
        raise ValueError(f"{op}: {name}: holds {what}, expected {axes} axes")
    return shape


def natural(op: str, name: str, value: int, least: int = 0, limit: int = 2**48) -> int:
    """A number of items, or another from `least` to below `limit`. ValueError for a value that is not such a number."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if not least <= number < limit:
        raise refused(op, name, value, f"an integer of at least {least}" if number < least else f"at most {limit - 1}")
    return number


def real(op: str, name: str, value: float) -> float:
    """A number that may have a fraction. ValueError for a value that is not one."""
    try:
        return value.__float__()
    except (AttributeError, TypeError, ValueError, OverflowError):
        raise refused(op, name, value, "a number") from None


def pair(op: str, name: str, value: Any, expected: str) -> tuple:
    """Two values. ValueError for anything else."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise refused(op, name, value, expected)
    return tuple(value)


def call(variant: str, tile: tuple[int, ...] | int | None = None) -> tuple[str, tuple[int, ...], int]:
    """The last argument of the functions of _katt: variant, values of its parameters, threads (0: as set)."""
    if not isinstance(variant, str) or not variant or not variant.isprintable():
        raise ValueError(f"variant: holds {variant!r}, expected the name of a variant, or auto")
    if tile is None:
        return (variant, (), 0)
    try:
        extents = tuple(operator.index(extent) for extent in (tile if isinstance(tile, (tuple, list)) else (tile,)))
    except TypeError:
        extents = (-1,)
    if not all(0 <= extent < 2**31 for extent in extents):
        raise ValueError(f"tile: holds {tile!r}, expected integers, as (64, 128)")
    return (variant, extents, 0)
