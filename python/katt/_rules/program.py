"""Score rules and mask rules as straight-line programs: values, how they are simplified, and the compact form that C++
runs.

A program has no jumps. A value is real (f32), an index (int32) or a truth, and depends on the place of a score in one
of four ways, its level: on neither query nor key (BLOCK), on head and query (ROW), on the key (KEY), or on the score or
on query and key (SCORE). The interpreter computes the values of a level once per block, row, key or score.
"""

import math
from dataclasses import dataclass, field

REAL, INDEX, TRUTH = "real", "index", "truth"
BLOCK, ROW, KEY, SCORE = 0, 1, 2, 3  # a value has the level of the bits of its operands
INPUTS = {"score": (REAL, SCORE), "batch": (INDEX, BLOCK), "head": (INDEX, ROW), "query": (INDEX, ROW),
          "key": (INDEX, KEY), "gradient": (REAL, SCORE)}  # fmt: skip

# The order is that of the opcodes in src/ops/attention/rules/program.hpp.
OPERATIONS = (
    "score", "batch", "head", "query", "key", "gradient", "constant",
    "add", "subtract", "multiply", "negative", "absolute", "minimum", "maximum",  # real or index
    "divide", "fma", "exp", "log", "tanh", "sigmoid", "sqrt", "floor",  # real
    "floor_divide", "remainder",  # index
    "equal", "not_equal", "less", "less_equal", "and", "or", "not",
    "where", "to_real", "to_index", "gather", "scatter",
)  # fmt: skip
COMPARISONS = {"equal", "not_equal", "less", "less_equal"}
COMMUTATIVE = {"add", "multiply", "minimum", "maximum", "equal", "not_equal", "and", "or"}
INDEX_LIMIT = 2**31


class RuleError(ValueError):
    """A rule that is no program."""


@dataclass(frozen=True)
class Captured:
    """A tensor that a rule reads: its extents and what it holds, REAL, INDEX or TRUTH."""

    shape: tuple[int, ...]
    type: str


@dataclass(frozen=True)
class Value:
    """The result of an operation. `item` is a constant, or the number of the tensor that is read or added to."""

    operation: str
    type: str
    level: int
    operands: tuple[int, ...] = ()
    item: float | int | bool | None = None


def floor_divide(a, b):
    return a // b if b else 0


def remainder(a, b):
    return a % b if b else 0


def real_or(function):
    """function with the limits that f32 arithmetic has where Python raises."""

    def call(*operands):
        try:
            return function(*operands)
        except (OverflowError, ZeroDivisionError, ValueError):
            return None

    return call


FOLDED = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "negative": lambda a: -a,
    "absolute": abs,
    "minimum": min,
    "maximum": max,
    "divide": real_or(lambda a, b: a / b),
    "exp": real_or(math.exp),
    "log": real_or(math.log),
    "tanh": math.tanh,
    "sigmoid": real_or(lambda a: 1 / (1 + math.exp(-a))),
    "sqrt": real_or(math.sqrt),
    "floor": real_or(lambda a: float(math.floor(a))),
    "floor_divide": floor_divide,
    "remainder": remainder,
    "equal": lambda a, b: a == b,
    "not_equal": lambda a, b: a != b,
    "less": lambda a, b: a < b,
    "less_equal": lambda a, b: a <= b,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "not": lambda a: not a,
    "to_real": float,
    "to_index": int,
}


@dataclass
class Program:
    """Values in the order in which they are made, each after its operands; equal values are one. A method makes a value
    and returns its number, perhaps that of a simpler value that is equal to it."""

    tensors: list[Captured] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    added: list[int] = field(default_factory=list)  # the values that scatter
    _known: dict[tuple, int] = field(default_factory=dict)

    def make(self, operation, type, operands=(), item=None, level=None):
        if operation in COMMUTATIVE:
            operands = tuple(sorted(operands))
        value = Value(operation, type, self._level(operands) if level is None else level, tuple(operands), item)
        # 0.0 and -0.0 are equal, and so are 1, 1.0 and True.
        key = (operation, type, value.operands, repr(item))
        if key not in self._known:
            self._known[key] = len(self.values)
            self.values.append(value)
        return self._known[key]

    def _level(self, operands):
        level = BLOCK
        for operand in operands:
            level |= self.values[operand].level
        return level

    def type(self, number):
        return self.values[number].type

    def input(self, name):
        type, level = INPUTS[name]
        return self.make(name, type, level=level)

    def constant(self, item, type=None):
        if type is None:
            type = TRUTH if isinstance(item, bool) else INDEX if isinstance(item, int) else REAL
        item = {REAL: float, INDEX: int, TRUTH: bool}[type](item)
        if type == INDEX and not -INDEX_LIMIT <= item < INDEX_LIMIT:
            raise RuleError(f"holds the integer {item}, expected one of 32 bits")
        return self.make("constant", type, item=item)

    def item(self, number):
        """The value of a constant, else None."""
        value = self.values[number]
        return value.item if value.operation == "constant" else None

    def convert(self, number, type):
        own = self.type(number)
        item = self.item(number)
        if own == type:
            return number
        if type == TRUTH:
            return self.apply("not_equal", number, self.constant(0, own))
        if item is not None and (type == REAL or math.isfinite(item)):
            return self.constant(item, type)
        return self.make("to_real" if type == REAL else "to_index", type, (number,))

    def apply(self, operation, *operands):
        """An operation of operands that have one type already."""
        items = [self.item(operand) for operand in operands]
        type = TRUTH if operation in COMPARISONS else self.type(operands[0])
        if None not in items:
            folded = FOLDED[operation](*items)
            if folded is not None:
                return self.constant(folded, type)
        simple = self._simpler(operation, operands, items)
        return self.make(operation, type, operands) if simple is None else simple

    def _simpler(self, operation, operands, items):
        """A value that is there already, or one operation less, for what is equal to it for every number."""
        if len(operands) == 1:
            inner = self.values[operands[0]]
            if inner.operation == operation and operation in ("negative", "not"):
                return inner.operands[0]
            return operands[0] if operation == "absolute" and inner.operation == operation else None
        (a, b), (x, y) = operands, items
        if operation in COMMUTATIVE and x is not None:
            (a, b), (x, y) = (b, a), (y, x)
        neutral = {"add": 0, "subtract": 0, "multiply": 1, "divide": 1, "floor_divide": 1, "and": True, "or": False}
        if y is not None and operation in neutral and y == neutral[operation]:
            return a
        if operation in ("and", "or") and (a == b or y is not None):
            return a if a == b else b
        if operation in ("minimum", "maximum") and a == b:
            return a
        if operation == "multiply" and y == -1:
            return self.apply("negative", a)
        if operation == "subtract" and x == 0 and self.type(a) == INDEX:
            return self.apply("negative", b)
        if operation in ("add", "subtract") and self.values[b].operation == "negative":
            return self.apply("subtract" if operation == "add" else "add", a, self.values[b].operands[0])
        if operation == "add" and self.values[a].operation == "negative":
            return self.apply("subtract", b, self.values[a].operands[0])
        if operation in ("add", "subtract") and self.type(a) == INDEX:
            return self._regrouped(operation, a, b)
        if operation == "subtract" and self.values[b].operation == "multiply":
            return self._added(a, *self.values[b].operands)
        if operation == "divide" and y and math.isfinite(y) and math.frexp(y)[0] in (0.5, -0.5):
            return self.apply("multiply", a, self.constant(1 / y))  # exact: a power of two
        return None

    def _regrouped(self, operation, a, b):
        """a ± b with (x ± y) as one of them and the other, computed less often than once a score, joined to x or y,
        where that is, too. Each of the three numbers keeps its sign."""
        if self.values[b].level == SCORE:
            inner, outer, swapped = self.values[b], a, True
        else:
            inner, outer, swapped = self.values[a], b, False
        lower = self.values[outer].level
        if inner.operation not in ("add", "subtract") or inner.level != SCORE or lower == SCORE:
            return None
        x, y = inner.operands
        minus = operation == "subtract"
        signs = [minus and swapped, (inner.operation == "subtract") != (minus and swapped), minus and not swapped]
        for joined, left in (((0, 2), 1), ((1, 2), 0)):
            numbers = (x, y, outer)
            if self.values[numbers[joined[0]]].level | lower != SCORE:
                together, negated = self._sum([(numbers[n], signs[n]) for n in joined])
                made, negated = self._sum([(together, negated), (numbers[left], signs[left])])
                return None if negated else made
        return None

    def _sum(self, terms):
        """The sum of two numbers with signs, and whether it is negated."""
        (a, minus_a), (b, minus_b) = terms
        if minus_a == minus_b:
            return self.apply("add", a, b), minus_a
        return self.apply("subtract", *((b, a) if minus_a else (a, b))), False

    def _added(self, a, x, y):
        """a - x · y as a + (-x) · y, one instruction, where -x is computed less often than once a score."""
        if self.values[x].level == SCORE:
            x, y = y, x
        if self.values[x].level == SCORE or self.values[y].level != SCORE:
            return None
        return self.apply("add", a, self.apply("multiply", self.apply("negative", x), y))

    def where(self, condition, then, other):
        """A choice between two operands of one type by a truth value."""
        item = self.item(condition)
        if item is not None or then == other:
            return then if item or then == other else other
        value = self.values[condition]
        if value.operation == "not":
            return self.where(value.operands[0], other, then)
        return self.make("where", self.type(then), (condition, then, other))

    def gather(self, tensor, indices):
        """An element of a captured tensor."""
        captured = self.tensors[tensor]
        if len(indices) != len(captured.shape):
            raise RuleError(f"takes {len(indices)} indices of a tensor of shape {captured.shape}, expected one an axis")
        return self.make("gather", captured.type, indices, tensor)

    def scatter(self, tensor, indices, number):
        """Adds a value to an element of the gradient of a captured tensor."""
        self.added.append(self.make("scatter", REAL, (*indices, number), tensor))

    def live(self):
        """The numbers of the values that results and gradients need, in order."""
        needed, left = set(), [*self.results, *self.added]
        while left:
            number = left.pop()
            if number not in needed:
                needed.add(number)
                left.extend(self.values[number].operands)
        return sorted(needed)

    def text(self):
        """The program for people, an instruction a line."""
        lines = []
        for number in self.live():
            value = self.values[number]
            operands = " ".join(f"%{operand}" for operand in value.operands)
            item = (
                "" if value.item is None else f" {'#' if value.operation in ('gather', 'scatter') else ''}{value.item}"
            )
            level = ("block", "row", "key", "score")[value.level]
            lines.append(f"%{number} = {value.operation}{item} {operands}".rstrip() + f"  # {value.type}, {level}")
        return "\n".join([*lines, "return " + " ".join(f"%{number}" for number in self.results)])
