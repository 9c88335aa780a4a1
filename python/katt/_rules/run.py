"""Score rules as the kernels take them."""

import copy
from collections.abc import Sequence

import numpy

from .. import _katt
from .._arrays import shape_of
from . import cache
from .compact import compact
from .differentiate import captured_gradients, slope
from .program import REAL, Program, RuleError
from .softcap import without_softcap

HELD = {"f": numpy.float32, "V": numpy.float32, "i": numpy.int32, "u": numpy.int32, "b": numpy.bool_}


class Programs:
    """The programs of a rule. `masked` is the number of the value that is the score, or -inf where a mask hides it.

    capped: the softcap that a rule begins with and the programs of what follows, or None."""

    def __init__(self, program, masked=None):
        self.score, self.slope = program, slope(program)
        self.masked_score, self.masked_slope = self.score, self.slope
        if masked is not None:
            self.masked_score = copy.deepcopy(program)
            self.masked_score.results = [masked]
            self.masked_slope = slope(self.masked_score)
        self._captured = {}
        begun = without_softcap(program, masked)
        self.capped = begun and (begun[0], Programs(*begun[1:]))

    def captured(self, tensors):
        """The program that adds up the gradients of these tensors. A score that is hidden has none."""
        wanted = frozenset(tensors)
        if wanted not in self._captured:
            self._captured[wanted] = captured_gradients(self.score, wanted)
        return self._captured[wanted]

    def native(self, extents, arrays):
        """(score, slope, masked score, masked slope) for _katt."""
        made = native(self.score, extents, arrays), native(self.slope, extents, arrays)
        if self.masked_score is self.score:
            return made * 2
        return *made, native(self.masked_score, extents, arrays), native(self.masked_slope, extents, arrays)


def unchanged():
    program = Program()
    program.results = [program.input("score")]
    return Programs(program)


class Rule:
    """A score rule, traced once: what katt.attention calls on every score.

    function: (score, batch, head, query, key) -> score, a float32 number and four integers that count from 0, of the
        operations in docs/python.md.
    for_torch: True for a rule of PyTorch's functions and tensors, False for one of NumPy's.

    RuleError, a ValueError, with the line of the rule, for what is no rule.

    captured: the arrays that the rule reads."""

    def __init__(self, function, for_torch=False):
        if not callable(function):
            raise RuleError(f"holds a {type(function).__name__}, expected a function")
        if for_torch:
            from .torch_trace import trace
        else:
            from .array_trace import trace

        def made():
            program, arrays = trace(function)
            return Programs(program), arrays

        self.name = getattr(function, "__name__", "rule")
        self.programs, self.captured = cache.traced((function, for_torch), made)

    @classmethod
    def of(cls, programs, captured):
        """The rule of programs that are made already, with the arrays `captured`."""
        rule = cls.__new__(cls)
        rule.name, rule.programs, rule.captured = "rule", programs, captured
        return rule


UNCHANGED = Rule.of(unchanged(), [])  # the rule that changes nothing


def held(tensor):
    """A captured tensor as the kernels read it: float32, int32 or bool, without a copy where it is that already, with
    strides of whole elements that are not negative."""
    if cache.is_torch_tensor(tensor):
        tensor = tensor.detach()
        tensor = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
    wanted = HELD[tensor.dtype.kind]
    if wanted == numpy.int32 and tensor.size and not -(2**31) <= tensor.min() <= tensor.max() < 2**31:
        raise RuleError(f"captures integers {tensor.min()} … {tensor.max()}, expected 32 bits")
    is_strided = all(stride >= 0 and stride % tensor.itemsize == 0 for stride in tensor.strides)
    return tensor.astype(wanted, copy=not is_strided)


def native(program, extents, arrays):
    made = compact(program, extents, arrays)
    numbers = (made.code.ravel(), made.indices.ravel(), made.constants, made.results, made.registers)
    return _katt.Program(*([int(number) for number in part] for part in numbers), arrays)


def rule_of(op, function, like):
    """The rule of a call whose arrays are like this one. ValueError for what is none."""
    if isinstance(function, Rule):
        return function
    try:
        return Rule(function, cache.is_torch_tensor(like))
    except RuleError as error:
        raise ValueError(f"{op}: score_rule: {error}") from None


def captured_numbers(op, rule, arrays: Sequence):
    """The numbers in a rule of arrays that it captures. ValueError for others, and for integers."""
    numbers = []
    for array in arrays:
        found = [n for n, known in enumerate(rule.captured) if known is array]
        if not found or rule.programs.score.tensors[found[0]].type != REAL:
            what = "an array of integers" if found else "an array that score_rule does not read"
            raise ValueError(f"{op}: captured: holds {what}, expected arrays of reals that it captures")
        numbers.append(found[0])
    return numbers


def launch(plan, function, inputs, outputs, numbers, choice, dlse=None, gradients=None, strides=()):
    """Runs a pass of attention with a rule, as _functions.launch() without one. gradients: dense float32 arrays for
    the gradients of captured tensors, by their number in the rule. strides: elements between the block masks of batch
    entries and of K/V heads, where blocks that hold 2 are visible in part."""
    named = dict(zip((tensor.name for tensor in plan.inputs), inputs, strict=True))
    q, k = named["q"], named["k"]
    rule = rule_of(plan.op, function, q)
    (batch, heads, seq_q, _), seq_kv = shape_of(plan.op, "q", q, 4), shape_of(plan.op, "k", k, 4)[2]
    extents = {"batch": batch, "head": heads, "query": seq_q, "key": seq_kv}
    ordered = plan.ordered((*inputs, *outputs))
    programs, numbers = rule.programs, list(numbers)
    softcap = [name for name, _ in plan.numbers].index("softcap")
    if programs.capped and not numbers[softcap] and named.get("alibi_slopes") is None:
        numbers[softcap], programs = programs.capped
    try:
        read = [held(tensor) for tensor in rule.captured]
        made = programs.native(extents, read)
        if not plan.name.endswith("_backward"):
            _katt.attention_forward(made, list(strides), ordered, tuple(numbers), choice)
            return
        adder = native(programs.captured(gradients), extents, read) if gradients else None
    except RuleError as error:
        raise ValueError(f"{plan.op}: score_rule: {error}") from None
    targets = tuple(gradients.get(n) for n in range(len(read))) if gradients else ()
    _katt.attention_backward(made, list(strides), adder, targets, dlse, ordered, tuple(numbers), choice)
