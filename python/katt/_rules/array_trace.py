"""Programs of rules that are written for NumPy: functions (score, batch, head, query, key) of numbers, with Python's
operators and NumPy's functions. Captured arrays are those in the function's closure, defaults and globals, and in those
of the functions that it calls by such names."""

import functools
import os
import sys
import types

import numpy

from . import grids
from .grids import PARAMETERS
from .program import INDEX, REAL, TRUTH, Captured, Program, RuleError

COMPARED = {"equal": ("equal", False), "not_equal": ("not_equal", False), "less": ("less", False),
            "less_equal": ("less_equal", False), "greater": ("less", True),
            "greater_equal": ("less_equal", True)}  # fmt: skip
BINARY = {"add": "add", "subtract": "subtract", "multiply": "multiply", "minimum": "minimum", "maximum": "maximum"}
LOGICAL = {"bitwise_and": "and", "logical_and": "and", "bitwise_or": "or", "logical_or": "or", "invert": "not",
           "logical_not": "not"}  # fmt: skip


class Traced(numpy.lib.mixins.NDArrayOperatorsMixin):
    """A number or an array in a rule that is traced."""

    def __init__(self, grid):
        self.grid = grid

    @property
    def shape(self):
        return self.grid.shape

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        if method != "__call__" or options:
            raise located(RuleError(f"calls numpy.{ufunc.__name__} with options, which rules do not have"))
        return self._call(ufunc.__name__, *inputs)

    def __array_function__(self, function, kinds, args, options):
        if options:
            raise located(RuleError(f"calls numpy.{function.__name__} with options, which rules do not have"))
        return self._call(function.__name__, *args)

    def _call(self, name, *args):
        try:
            grids_of = [None if item is None and name == "clip" else self._grid(item) for item in args]
            return Traced(operation(self.grid.program, name, grids_of))
        except RuleError as error:
            raise located(error) from None

    def _grid(self, item):
        if isinstance(item, Traced):
            return item.grid
        if isinstance(item, numpy.ndarray) and item.ndim:
            raise RuleError("holds an array that the rule does not name, expected a variable of the function")
        if not isinstance(item, (bool, int, float, numpy.generic, numpy.ndarray)):
            raise RuleError(f"holds a {type(item).__name__}, expected a number")
        return grids.constant(
            self.grid.program, item.item() if isinstance(item, (numpy.generic, numpy.ndarray)) else item
        )

    def __getitem__(self, indices):
        indices = indices if isinstance(indices, tuple) else (indices,)
        try:
            return Traced(grids.index(self.grid, [i.grid if isinstance(i, Traced) else i for i in indices]))
        except RuleError as error:
            raise located(error) from None

    def astype(self, dtype):
        kind = numpy.dtype(dtype).kind
        return Traced(grids.converted(self.grid, TRUTH if kind == "b" else INDEX if kind in "iu" else REAL))

    def clip(self, low=None, high=None):
        return numpy.clip(self, low, high)

    def __bool__(self):
        raise located(RuleError("asks for the value of a number, as `if query > key` does, expected numpy.where"))

    def __index__(self):
        raise located(RuleError("indexes an array that the rule does not name, expected a variable of the function"))

    __int__ = __float__ = __bool__


def located(error):
    """The error with the line of the rule before it."""
    frame = sys._getframe(1)
    while frame is not None and os.path.dirname(frame.f_code.co_filename) in (os.path.dirname(__file__), *NUMPY):
        frame = frame.f_back
    if frame is None or getattr(error, "located", False):
        return error
    error = RuleError(f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}: {error}")
    error.located = True
    return error


NUMPY = tuple(os.path.join(os.path.dirname(numpy.__file__), part) for part in ("lib", "_core", "core"))


def operation(program, name, args):
    """The grid of a function of NumPy."""
    if name in BINARY:
        if all(grid.type == TRUTH for grid in args):
            raise RuleError(f"calls {name} of bools, expected & or |")
        return grids.promoted(program, BINARY[name], args)
    if name in COMPARED:
        compared, swapped = COMPARED[name]
        widest = max((*(grid.type for grid in args), INDEX), key=grids.RANK.index)
        return grids.promoted(program, compared, args[::-1] if swapped else args, widest)
    if name in ("bitwise_xor", "logical_xor"):
        if name == "bitwise_xor" and any(grid.type != TRUTH for grid in args):
            raise RuleError(f"calls {name} of integers, expected bools")
        return grids.promoted(program, "not_equal", [grids.converted(grid, TRUTH) for grid in args], TRUTH)
    if name in LOGICAL:
        if not name.startswith("logical") and any(grid.type != TRUTH for grid in args):
            raise RuleError(f"calls {name} of integers, expected bools")
        return grids.logical(LOGICAL[name], args)
    match name, args:
        case "true_divide" | "divide", (a, b):
            return grids.real("divide", [a, b])
        case "floor_divide", (a, b):
            return grids.integer_divide(a, b)
        case "remainder" | "mod", (a, b):
            return grids.remainder(a, b)
        case "power" | "float_power", (a, b):
            exponent = program.item(b.number)
            if exponent is None:
                raise RuleError("raises to a power that is no constant")
            return grids.power(a, exponent)
        case "square", (a,):
            return grids.power(a, 2)
        case "negative", (a,):
            return grids.promoted(program, "negative", [a])
        case "positive", (a,):
            return a
        case "absolute" | "fabs", (a,):
            return grids.promoted(program, "absolute", [a])
        case "where", (condition, a, b):
            return grids.where(condition, a, b)
        case "clip", (a, low, high):
            return grids.clamped(a, low, high)
        case _, (a,):
            return grids.one_operand(name, a)
    raise RuleError(f"calls numpy.{name}, which rules do not have")


class Captures:
    """Puts traced arrays in the place of the arrays that a function names."""

    def __init__(self, program):
        self.program = program
        self.arrays = []
        self._made = {}

    def traced(self, item):
        """The stand-in that the rule gets for an object; the object itself where it holds no array."""
        if id(item) not in self._made:
            self._made[id(item)] = item  # a function that names itself
            self._made[id(item)] = self._traced(item)
        return self._made[id(item)]

    def _traced(self, item):
        if isinstance(item, numpy.ndarray) and item.ndim:
            return self._array(item)
        if isinstance(item, functools.partial):
            args = [self.traced(each) for each in item.args]
            return functools.partial(self.traced(item.func), *args, **self._all(item.keywords))
        if type(item) in (tuple, list):
            return type(item)(self.traced(each) for each in item)
        if type(item) is dict:
            return self._all(item)
        return self.function(item) if isinstance(item, types.FunctionType) else item

    def _all(self, named):
        return {name: self.traced(item) for name, item in named.items()}

    def _array(self, array):
        kind = array.dtype.kind
        if array.dtype == numpy.float64 or (kind not in "biuf" and array.dtype.name != "bfloat16"):
            raise RuleError(f"captures an array of {array.dtype}, expected float32, float16, bool or an integer")
        type = TRUTH if kind == "b" else INDEX if kind in "iu" else REAL
        self.arrays.append(array)
        self.program.tensors.append(Captured(array.shape, type))
        return Traced(grids.captured(self.program, array.shape, type, len(self.arrays) - 1))

    def function(self, function):
        code = function.__code__
        named = {name: function.__globals__[name] for name in names_in(code) if name in function.__globals__}
        replaced = {name: self.traced(item) for name, item in named.items() if not isinstance(item, types.ModuleType)}
        changed = {name: item for name, item in replaced.items() if item is not named[name]}
        cells = [self._cell(cell) for cell in function.__closure__ or ()]
        defaults = tuple(self.traced(item) for item in function.__defaults__ or ())
        named_defaults = self._all(function.__kwdefaults__ or {})
        same = not defaults and not named_defaults and all(a is b for a, b in zip(cells, function.__closure__ or ()))
        if not changed and same:
            return function
        made = types.FunctionType(
            code, {**function.__globals__, **changed}, function.__name__, defaults or None, tuple(cells) or None
        )
        made.__kwdefaults__ = named_defaults or None
        return made

    def _cell(self, cell):
        try:
            held = cell.cell_contents
        except ValueError:  # nothing yet
            return cell
        traced = self.traced(held)
        return cell if traced is held else types.CellType(traced)


def names_in(code):
    """Global names of a function's code and of the functions inside."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= names_in(constant)
    return names


def trace(rule, kind="score"):
    """The program of a rule, and the arrays that it captures, by their number in the program."""
    program = Program()
    captures = Captures(program)
    numbers = [Traced(grids.number(program, program.input(name))) for name in PARAMETERS[kind]]
    made = captures.traced(rule)(*numbers)
    try:
        if not isinstance(made, (Traced, int, float, numpy.generic)):
            raise RuleError(f"returns {type(made).__name__}, expected one number")
        grids.result(made.grid if isinstance(made, Traced) else grids.constant(program, made), kind)
    except RuleError as error:
        raise RuleError(f"{getattr(rule, '__name__', 'the rule')}: {error}") from None
    return program, captures.arrays
