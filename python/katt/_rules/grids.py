"""Arrays of a traced rule. A rule sees numbers, but its captured tensors have axes until it indexes them, and an
operation of whole tensors, as exp(slopes)[head], is one of the elements that are read in the end."""

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass

from .program import COMPARISONS, INDEX, REAL, TRUTH, Program, RuleError

RANK = (TRUTH, INDEX, REAL)
PARAMETERS = {"score": ("score", "batch", "head", "query", "key"), "mask": ("batch", "head", "query", "key")}


@dataclass
class Grid:
    """An array of values of a program: `at(indices)` makes the number of an element. Without axes it is a number."""

    program: Program
    shape: tuple[int, ...]
    type: str
    at: Callable[[tuple[int, ...]], int]

    @property
    def number(self):
        if self.shape:
            raise RuleError(f"holds shape {self.shape}, expected one number; index the tensor by head, query or key")
        return self.at(())


def number(program, value):
    """A value of the program, or a Python number, as a grid without axes."""
    return Grid(program, (), program.type(value), lambda _: value)


def constant(program, item):
    return number(program, program.constant(item))


def captured(program, shape, type, tensor):
    """A captured tensor, whose number is `tensor`."""
    return Grid(program, tuple(shape), type, lambda indices: program.gather(tensor, indices))


def elementwise(program, make, type, grids):
    """The grid of make(values of the operands), of the shape to which they broadcast."""
    axes = max(len(grid.shape) for grid in grids)
    shapes = [(1,) * (axes - len(grid.shape)) + grid.shape for grid in grids]
    shape = []
    for extents in zip(*shapes):
        wanted = {extent for extent in extents if extent != 1}
        if len(wanted) > 1:
            raise RuleError(
                f"holds shapes {', '.join(str(grid.shape) for grid in grids)}, expected shapes that broadcast"
            )
        shape.append(wanted.pop() if wanted else 1)

    def at(indices):
        zero = program.constant(0)
        elements = []
        for grid in grids:
            own = indices[axes - len(grid.shape) :]
            elements.append(grid.at(tuple(zero if extent == 1 else i for i, extent in zip(own, grid.shape))))
        return make(*elements)

    return Grid(program, tuple(shape), type, at)


def index(grid, indices):
    """grid[indices], where each index is a grid without axes, a Python integer, None for a new axis, or the slice of
    a whole axis."""
    program = grid.program
    own = sum(item is not None for item in indices)
    if own > len(grid.shape):
        raise RuleError(f"takes {own} indices of a tensor of shape {grid.shape}")
    indices = (*indices, *(slice(None),) * (len(grid.shape) - own))
    shape, fixed, extents = [], [], iter(grid.shape)
    for item in indices:
        extent = next(extents) if item is not None else 1
        if item is None or isinstance(item, slice):
            if item not in (None, slice(None)):
                raise RuleError("takes a slice of a tensor, expected an index or a whole axis")
            shape.append(extent)
            fixed.append(item)
            continue
        if not isinstance(item, Grid):
            item = constant(program, operator.index(item))
        if item.shape:
            raise RuleError(f"takes an index of shape {item.shape}, expected one number")
        if item.type != INDEX:
            raise RuleError(f"takes an index that is {item.type}, expected an integer")
        fixed.append(wrapped(program, item.number, extent))

    def at(places):
        left = iter(places)
        elements = []
        for item in fixed:
            if item is None:
                next(left)
            else:
                elements.append(next(left) if isinstance(item, slice) else item)
        return grid.at(tuple(elements))

    return Grid(program, tuple(shape), grid.type, at)


def wrapped(program, value, extent):
    """An index that is constant, counted from the start."""
    item = program.item(value)
    if item is None:
        return value
    if not -extent <= item < extent:
        raise RuleError(f"takes index {item} of an axis of {extent} elements")
    return program.constant(item % extent)


def promoted(program, operation, grids, type=None):
    """An operation of the program, after the operands have become the same type: `type`, or the largest of them."""
    if type is None:
        type = max((grid.type for grid in grids), key=RANK.index)

    def make(*elements):
        return program.apply(operation, *(program.convert(element, type) for element in elements))

    return elementwise(program, make, TRUTH if operation in COMPARISONS else type, grids)


def converted(grid, type):
    program = grid.program
    return grid if grid.type == type else elementwise(program, lambda a: program.convert(a, type), type, [grid])


def logical(operation, grids):
    program = grids[0].program
    return promoted(program, operation, [converted(grid, TRUTH) for grid in grids], TRUTH)


def where(condition, then, other):
    program = condition.program
    type = max((then.type, other.type), key=RANK.index)

    def make(c, a, b):
        return program.where(program.convert(c, TRUTH), program.convert(a, type), program.convert(b, type))

    return elementwise(program, make, type, [condition, then, other])


def clamped(x, low, high):
    """min(max(x, low), high), with PyTorch's gradient: that of x where low <= x <= high. A bound may be None."""
    for bound, below in ((low, True), (high, False)):
        if bound is not None:
            x = where(promoted(x.program, "less", [x, bound] if below else [bound, x]), bound, x)
    return x


def real(operation, grids):
    """An operation of reals."""
    return promoted(grids[0].program, operation, grids, REAL)


def power(grid, exponent):
    """grid ** exponent for an exponent that is a number: by multiplications where it is an integer, by exp and log
    where it is neither that nor 0.5."""
    program = grid.program
    if not math.isfinite(exponent):
        raise RuleError(f"raises to the power {exponent}, expected a finite one")
    if exponent == 0.5:
        return real("sqrt", [grid])
    if exponent == int(exponent):
        if exponent < 0:
            return real("divide", [constant(program, 1.0), power(grid, -exponent)])
        result, left = constant(program, 1.0 if grid.type == REAL else 1), int(exponent)
        grid = converted(grid, INDEX) if grid.type == TRUTH else grid
        while left:
            if left & 1:
                result = promoted(program, "multiply", [result, grid])
            left >>= 1
            grid = promoted(program, "multiply", [grid, grid]) if left else grid
        return result
    if exponent < 0 or grid.type != REAL:
        return power_by_log(grid, exponent)
    # At 0 the derivative of exp(e · log x) is 0 · inf. PyTorch's is 0 for e > 1, and infinite, as that of sqrt, below.
    zero = constant(program, 0.0)
    is_zero = promoted(program, "equal", [grid, zero])
    made = power_by_log(where(is_zero, constant(program, 1.0), grid), exponent)
    return where(is_zero, zero if exponent > 1 else real("sqrt", [grid]), made)


def power_by_log(grid, exponent):
    return real("exp", [real("multiply", [constant(grid.program, float(exponent)), real("log", [grid])])])


def integer_divide(a, b):
    """a // b as in Python."""
    if REAL in (a.type, b.type):
        return real("floor", [real("divide", [a, b])])
    return promoted(a.program, "floor_divide", [a, b], INDEX)


def remainder(a, b):
    """a % b as in Python."""
    if REAL in (a.type, b.type):
        return real("subtract", [a, real("multiply", [integer_divide(a, b), b])])
    return promoted(a.program, "remainder", [a, b], INDEX)


def result(grid, kind):
    """Makes a grid the result of its program: one number, REAL for a score and TRUTH for a mask."""
    wanted = TRUTH if kind == "mask" else REAL
    if grid.shape or grid.type != wanted:
        what = f"a result of shape {grid.shape}" if grid.shape else f"{grid.type} result"
        raise RuleError(f"returns {what}, expected one number of type {'bool' if kind == 'mask' else 'float32'}")
    grid.program.results = [grid.number]


LN2 = math.log(2.0)


def nearby(a, limit, factors, far):
    """a · factors[0] + a² · factors[1] + … where |a| < limit, else `far`."""
    program = a.program
    a = converted(a, REAL)
    is_near = promoted(program, "less", [promoted(program, "absolute", [a]), constant(program, limit)], REAL)
    x = where(is_near, a, constant(program, 0.0))
    sum = constant(program, factors[-1])
    for factor in factors[-2::-1]:
        sum = real("add", [real("multiply", [sum, x]), constant(program, factor)])
    return where(is_near, real("multiply", [sum, x]), far)


def one_operand(name, a):
    """Functions of reals that NumPy and PyTorch have by these names, made of the program's."""
    program = a.program
    one = constant(program, 1.0)
    match name:
        case "exp" | "log" | "tanh" | "sigmoid" | "sqrt" | "floor":
            return real(name, [a])
        case "exp2":
            return real("exp", [real("multiply", [a, constant(program, LN2)])])
        case "log2":
            return real("multiply", [real("log", [a]), constant(program, 1 / LN2)])
        case "log1p":  # near 0 a series: 1 + a would lose the digits of a
            far = real("log", [real("add", [one, a])])
            return nearby(a, 0.1, [(-1) ** (n + 1) / n for n in range(1, 9)], far)
        case "expm1":
            far = real("subtract", [real("exp", [a]), one])
            return nearby(a, 0.25, [1 / math.factorial(n) for n in range(1, 8)], far)
        case "rsqrt":
            return real("divide", [one, real("sqrt", [a])])
        case "reciprocal":
            return real("divide", [one, a])
        case "relu":
            zero = constant(program, 0.0 if a.type == REAL else 0)
            return where(promoted(program, "less_equal", [a, zero]), zero, a)
        case "ceil":
            return real("negative", [real("floor", [real("negative", [a])])])
    raise RuleError(f"calls {name}, which rules do not have")
