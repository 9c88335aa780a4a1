"""Ternary linear layers (BitNet b1.58, Ma et al. 2024, arXiv:2402.17764)."""

from dataclasses import dataclass

from . import _katt
from ._arrays import Array, call, library, natural, refused, shape_of


@dataclass(frozen=True, repr=False, eq=False)
class TernaryWeight:
    """The result of ternary_pack, in memory of the library and device of its argument: a weight
    (out_features, in_features) quantised to s_w · {-1, 0, 1} and packed 4 or 5 to a byte. It does
    not follow later changes of the original weight."""

    packed: Array
    weights_per_byte: int
    out_features: int
    in_features: int

    @property
    def nbytes(self) -> int:
        """Bytes of the packed form."""
        return self.packed.nbytes

    def __repr__(self) -> str:
        return (
            f"TernaryWeight({self.out_features} x {self.in_features}, {self.weights_per_byte} weights a byte, "
            f"{self.nbytes} bytes)"
        )

    def dequantise(self, like: Array) -> Array:
        """W_q · s_w (out_features, in_features) as an array of the library and dtype of `like`. ValueError for a
        `like` that is not float32, float16 or bfloat16, or lies on another device than the weight."""
        lib = library("ternary_linear", like=like)
        dense = lib.empty((self.out_features, self.in_features))
        _katt.ternary_dequantise(self.packed, dense, self.weights_per_byte, 0)
        return lib.give(dense)


def ternary_pack(weight: Array, *, weights_per_byte: int = 4) -> TernaryWeight:
    """Packs weight (out_features, in_features), float32, float16 or bfloat16: s_w = max(mean |W|, 1e-5),
    W_q = clamp(round(W / s_w), -1, 1), half to even.

    weights_per_byte: 4 (2 bits each, the faster) or 5 (1.6 bits each).

    ValueError with one line that names the argument, what it holds and what was expected.
    Source: Ma et al. 2024, arXiv:2402.17764.
    """
    lib = library("ternary_pack", weight=weight)
    rows, columns = shape_of("ternary_pack", "weight", weight, 2)
    weights_per_byte = natural("ternary_pack", "weights_per_byte", weights_per_byte)
    packed = lib.empty((_katt.ternary_packed_bytes(weights_per_byte, rows, columns),), "u8")
    _katt.ternary_pack(weight, packed, weights_per_byte, 0)
    return TernaryWeight(lib.give(packed), weights_per_byte, rows, columns)


def check_weight(x: Array, weight: TernaryWeight) -> None:
    if not isinstance(weight, TernaryWeight):
        raise refused("ternary_linear", "weight", weight, "the TernaryWeight of ternary_pack")
    check_width(x, weight.in_features)


def check_width(x: Array, in_features: int) -> None:
    if tuple(x.shape[-1:]) != (in_features,):
        raise ValueError(f"ternary_linear: x: holds shape {tuple(x.shape)}, expected (…, {in_features}), as weight has")


def ternary_linear(x: Array, weight: TernaryWeight, *, variant: str = "auto") -> Array:
    """(x_q · W_qᵀ) · s_w / s_x with x rounded to 8 bits, s_x = 127 / max(max |x|, 1e-5) of every row. Returns
    out (…, out_features).

    x: (…, in_features), float32, float16 or bfloat16. weight: of ternary_pack.
    variant: the fastest that accepts the arguments ("auto"), or one that `katt info` lists; "naive" multiplies by the
        dequantised weight.

    ValueError with one line that names the argument, what it holds and what was expected.
    Source: Ma et al. 2024, arXiv:2402.17764.
    """
    lib = library("ternary_linear", x=x)
    check_weight(x, weight)
    out = lib.empty((*x.shape[:-1], weight.out_features))
    dense = weight.dequantise(x) if variant == "naive" else None
    _katt.ternary_linear_forward(x, weight.packed, dense, out, weight.weights_per_byte, call(variant))
    return lib.give(out)


def ternary_linear_backward(
    dout: Array, x: Array, weight: TernaryWeight, *, variant: str = "auto"
) -> tuple[Array, Array]:
    """Gradients (dx, dweight) through the straight-through estimator: dx = dout · W_q · s_w (…, in_features),
    dweight = doutᵀ · x_q / s_x (out_features, in_features).

    dout: (…, out_features), gradient of out. x, weight, variant: as in ternary_linear, whose errors it has.
    """
    lib = library("ternary_linear", x=x, dout=dout)
    check_weight(x, weight)
    wanted = (*x.shape[:-1], weight.out_features)
    if tuple(dout.shape) != wanted:
        raise ValueError(f"ternary_linear: dout: holds shape {tuple(dout.shape)}, expected {wanted}")
    dx, dweight = lib.empty(tuple(x.shape)), lib.empty((weight.out_features, weight.in_features))
    dense = weight.dequantise(x) if variant == "naive" else None
    _katt.ternary_linear_backward(dout, x, weight.packed, dense, dx, dweight, weight.weights_per_byte, call(variant))
    return lib.give(dx, dweight)
