"""Score rules as the kernels take them."""

import sys

import numpy

from .. import _katt
from .._arrays import shape_of
from .compact import compact
from .differentiate import slope
from .program import RuleError

HELD = {"f": numpy.float32, "V": numpy.float32, "i": numpy.int32, "u": numpy.int32, "b": numpy.bool_}


class Rule:
    """A score rule, traced once: a function (score, batch, head, query, key) -> score of NumPy's or PyTorch's
    operations, where query and key count from 0. RuleError, with the line of the rule, for what is no rule."""

    def __init__(self, function, for_torch=False):
        if not callable(function):
            raise RuleError(f"holds a {type(function).__name__}, expected a function")
        if for_torch:
            from .torch_trace import trace
        else:
            from .array_trace import trace
        self._set(*trace(function))

    @classmethod
    def of(cls, program, captured):
        """The rule of a program that is traced already."""
        rule = cls.__new__(cls)
        rule._set(program, captured)
        return rule

    def _set(self, program, captured):
        self.program, self.captured, self._slope = program, captured, slope(program)

    def programs(self, batch, heads, seq_q, seq_kv):
        """The programs of _katt for these extents: the score, and the score with its derivative."""
        extents = {"batch": batch, "head": heads, "query": seq_q, "key": seq_kv}
        arrays = [held(tensor) for tensor in self.captured]
        return tuple(native(program, extents, arrays) for program in (self.program, self._slope))


def held(tensor):
    """A captured tensor as the kernels read it: float32, int32 or bool, without a copy where it is that already."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        tensor = tensor.detach()
        tensor = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
    wanted = HELD[tensor.dtype.kind]
    if wanted == numpy.int32 and tensor.size and not -(2**31) <= tensor.min() <= tensor.max() < 2**31:
        raise RuleError(f"captures integers {tensor.min()} … {tensor.max()}, expected 32 bits")
    return tensor.astype(wanted, copy=False)


def native(program, extents, arrays):
    made = compact(program, extents, arrays)
    numbers = (made.code.ravel(), made.indices.ravel(), made.constants, made.results, made.registers)
    return _katt.Program(*([int(number) for number in part] for part in numbers), arrays)


def rule_of(op, function, like):
    """The rule of a call whose arrays are like this one. ValueError for what is none."""
    if isinstance(function, Rule):
        return function
    torch = sys.modules.get("torch")
    try:
        return Rule(function, torch is not None and isinstance(like, torch.Tensor))
    except RuleError as error:
        raise ValueError(f"{op}: score_rule: {error}") from None


def launch(plan, function, inputs, outputs, numbers, choice):
    """Runs a pass of attention with a rule, as _functions.launch() without one."""
    arrays = dict(zip((tensor.name for tensor in plan.inputs), inputs, strict=True))
    q, k = (arrays[name] for name in ("q", "k"))
    rule = rule_of(plan.op, function, q)
    (batch, heads, seq_q, _), seq_kv = shape_of(plan.op, "q", q, 4), shape_of(plan.op, "k", k, 4)[2]
    try:
        programs = rule.programs(batch, heads, seq_q, seq_kv)
    except RuleError as error:
        raise ValueError(f"{plan.op}: score_rule: {error}") from None
    arrays = (*inputs, *outputs)
    run = _katt.attention_backward if plan.name.endswith("_backward") else _katt.attention_forward
    run(*programs, tuple([arrays[place] for place in plan.order]), tuple(numbers), choice)
