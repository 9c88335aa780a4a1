"""A pass of an operator as Python sees it: its arguments, its results and its documentation, made from the schema that
the operator declares in C++ (op/schema.hpp). Needs nothing but the standard library, since stubs are written with it
when the package is built."""

import re
from operator import itemgetter
from typing import Any, NamedTuple

# Operators whose functions have an argument that their schema lacks; those of katt.torch alone.
BY_HAND = ("attention", "ternary_linear")
BY_HAND_IN_TORCH = ("convert_dtype",)

# The numbers of all operators; the formula of a pass says what it does with them.
NUMBERS = {
    "dloss": "gradient of the loss",
    "eps": "added to the mean of squares, or to the variance",
    "first_position": "position of the first token, where there are no positions",
    "ignore_index": "target of a token that does not count",
    "interleaved": "True: pairs (2i, 2i + 1); False: pairs (i, i + head_dim / 2)",
}

ELEMENTS = {"": "", "f32": " float32", "i8": " int8", "u8": " uint8 or bool", "i64": " int64"}


class Tensor(NamedTuple):
    """TensorInfo of bindings/passes.hpp."""

    name: str
    axes: tuple[str, ...]
    element: str
    is_output: bool
    is_dense: bool
    when: str
    unless: str
    is_optional: bool
    is_hidden: bool
    dtype_axis: str
    reads: str
    gradient_of: str


class Plan:
    """The arguments of a pass in the order of its function, and its results.

    Inputs that always exist come first, the gradients of results at their head; then outputs that the caller gives;
    then extents that no input has; then inputs that may be missing. Numbers and flags have keywords. A flag is a
    condition that no input brings.
    """

    def __init__(self, number: int, described: dict[str, Any], forward: "Plan | None"):
        self.number = number
        self.op, self.formula, self.source = described["op"], described["formula"], described["source"]
        self.has_tiles = described["has_tiles"]
        self.name = self.op + ("_backward" if described["is_backward"] else "")
        tensors = [Tensor(*tensor) for tensor in described["tensors"]]
        inputs = [tensor for tensor in tensors if not tensor.is_output]
        self.outputs = [tensor for tensor in tensors if tensor.is_output]
        made = {"d" + output.name for output in forward.outputs} if forward else set()
        inputs.sort(key=lambda tensor: (bool(tensor.when), tensor.name not in made))
        self.inputs = inputs
        self.required = [tensor.name for tensor in inputs if not tensor.when]
        self.optional = [tensor.name for tensor in inputs if tensor.when]
        conditions = {tensor.when for tensor in inputs}
        self.flags = []
        for condition in (c for output in self.outputs for c in (output.when, output.unless)):
            if condition and condition not in conditions and condition not in self.flags:
                self.flags.append(condition)
        # Where a tensor has a dtype of its own, that of a result cannot be told.
        are_given = any(tensor.dtype_axis for tensor in tensors)
        self.given = [output.name for output in self.outputs] if are_given else []
        known = {axis for tensor in inputs for axis in tensor.axes}
        self.extents = []
        for axis in (axis for output in self.outputs if not are_given for axis in output.axes):
            if axis not in known and not axis.isdigit() and axis not in self.extents:
                self.extents.append(axis)
        self.numbers = described["numbers"]
        # The tensor whose dtype and library results have, before the others.
        like = next((i for i, tensor in enumerate(inputs) if not tensor.element), 0)
        self.like = like
        self.names = [tensor.name for tensor in inputs]
        place = {tensor.name: i for i, tensor in enumerate([*inputs, *self.outputs])}
        order = [place[tensor.name] for tensor in tensors]
        # Arrays in the order of _katt.run(), from inputs and outputs in the order of this plan.
        self.ordered = itemgetter(*order) if len(order) > 1 else tuple
        self.results: dict[tuple, list] = {}  # by the shapes of the inputs
        self._wanted: dict[tuple, list[Tensor | None]] = {}
        self.is_conditional = any(output.when or output.unless for output in self.outputs)

    def arguments(self) -> list[tuple[str, str, str | None]]:
        """(name, kind, default) of what has no keyword: "array", "int"; the default as source, None without one."""
        return [
            *((name, "array", None) for name in [*self.required, *self.given]),
            *((name, "int", None) for name in self.extents),
            *((name, "array", "None") for name in self.optional),
        ]

    def keywords(self, in_torch: bool) -> list[tuple[str, str, str]]:
        """(name, type, default as source) of what has a keyword; katt.torch has neither flags nor tiles."""
        made = [(name, type(default).__name__, repr(default)) for name, default in self.numbers]
        made += [(flag, "bool", "False") for flag in self.flags if not in_torch]
        made.append(("variant", "str", "'auto'"))
        if self.has_tiles and not in_torch:
            made.append(("tile", "tuple[int, ...] | int | None", "None"))
        return made

    def is_there(self, tensor: Tensor, given: set[str], flags: dict[str, bool]) -> bool:
        """True where an output exists, by the conditions that inputs bring and the flags."""

        def holds(condition):
            return flags.get(condition, condition in given)

        return (not tensor.when or holds(tensor.when)) and not (tensor.unless and holds(tensor.unless))

    def wanted(self, present: tuple[bool, ...], flags: tuple[bool, ...]) -> list[Tensor | None]:
        """The outputs that exist, by which inputs are there and by the flags; None in the place of another."""
        found = self._wanted.get((present, flags))
        if found is None:
            given = {tensor.when for tensor, is_there in zip(self.inputs, present, strict=True) if is_there}
            asked = dict(zip(self.flags, flags, strict=True))
            found = [tensor if self.is_there(tensor, given, asked) else None for tensor in self.outputs]
            self._wanted[(present, flags)] = found
        return found

    def shown(self, in_torch: bool) -> list[Tensor]:
        """The outputs that the function may return; that of katt.torch neither those for the backward pass nor those
        that a flag brings."""
        return [output for output in self.outputs if not (in_torch and (output.is_hidden or output.when in self.flags))]

    def returns(self, in_torch: bool = False) -> str:
        """The type of the result."""
        shown = self.shown(in_torch)
        array, several = ("Tensor", "tuple[Tensor, ...]") if in_torch else ("Array", "tuple[Array, ...]")
        if any(output.when or (output.unless and not in_torch) for output in shown):
            return f"{array} | {several}"
        return array if len(shown) == 1 else several

    def documentation(self, in_torch: bool = False) -> str:
        formula, shown = self.formula, self.shown(in_torch)
        for name in {*self.flags, *(output.name for output in self.outputs)} if in_torch else ():
            if name not in (output.name for output in shown):  # a formula explains these last
                formula = re.split(rf"\n{name}(?:: | are )", formula)[0]
        lines = [formula, ""]
        if any(not tensor.element for tensor in self.inputs):
            lines.append("Arrays are float32, float16 or bfloat16, all of one dtype but for those that name another:")
        for tensor in self.inputs:
            lines.append(f"    {tensor.name} {shape_text(tensor)}{', or None' if tensor.when else ''}")
        for name in self.extents:
            lines.append(f"    {name}: an extent of the result")
        made = []
        for output in shown:
            when = ""
            if output.when in self.flags:
                when = f" where {output.when} is true"
            elif output.when:
                inputs = [tensor.name for tensor in self.inputs if tensor.when == output.when]
                when = f" with {' and '.join(inputs)}"
            elif output.unless and not in_torch:
                when = f" unless {output.unless} is true"
            own = ", of any of these dtypes" if output.name in self.given else ""
            shape = shape_text(output) if output.axes or not in_torch else "()" + ELEMENTS[output.element]
            made.append(f"{output.name} {shape}{own}{when}")
        lines += ["", ("Fills and returns " if self.given else "Returns ") + ", ".join(made) + "."]
        lines += [f"{name}: {NUMBERS.get(name, 'a number of the formula')}" for name, _ in self.numbers]
        lines += [f"{name}: True for the results that say so" for name in self.flags if not in_torch]
        lines.append("variant: the fastest that accepts the arguments (auto), or one that `katt info` lists.")
        if self.has_tiles and not in_torch:
            lines.append("tile: values of the variant's parameters; None: its default.")
        lines.append("Raises ValueError with one line that names the argument, what it holds and what was expected.")
        if self.source:
            lines.append(f"Source: {self.source}.")
        return "\n".join(lines)


def shape_text(tensor: Tensor) -> str:
    """(…, hidden) of rows, (heads,), and the dtype where it is not the common one."""
    axes = ["…" if axis == "tokens" and not (tensor.is_hidden and tensor.is_output) else axis for axis in tensor.axes]
    text = ", ".join(axes) or "1"
    return f"({text}{',' if len(axes) <= 1 and text != '…' else ''}){ELEMENTS[tensor.element]}"


def plans(passes: list[dict[str, Any]]) -> dict[str, tuple[Plan, Plan]]:
    """The plans of both passes of every operator, by its name; a backward pass follows its forward pass."""
    made = {}
    for number in range(0, len(passes), 2):
        plan = Plan(number, passes[number], None)
        made[plan.op] = (plan, Plan(number + 1, passes[number + 1], plan))
    return made


def signature(plan: Plan, in_torch: bool = False, is_typed: bool = False) -> str:
    """The parameters of the function of a pass, in katt or in katt.torch, as source."""
    types = {"array": "Tensor" if in_torch else "Array", "int": "int"}
    parts = []
    for name, kind, default in plan.arguments():
        annotation = f": {types[kind]}{' | None' if default else ''}" if is_typed else ""
        parts.append(name + annotation + (f" = {default}" if default else ""))
    parts.append("*")
    for name, type_name, default in plan.keywords(in_torch):
        parts.append(f"{name}{f': {type_name}' if is_typed else ''} = {default}")
    return ", ".join(parts)


def compiled(source: str, name: str, documentation: str, names: dict) -> Any:
    """The function that this source defines, with its documentation."""
    space = dict(names)
    exec(compile(source, f"<katt: {name}>", "exec"), space)
    function = space[name]
    function.__doc__ = documentation
    return function


def chosen(made: dict[str, tuple[Plan, Plan]], in_torch: bool = False) -> list[Plan]:
    """The passes whose functions are made: both of each operator, in katt.torch the forward ones."""
    by_hand = BY_HAND + (BY_HAND_IN_TORCH if in_torch else ())
    return [plan for op, both in made.items() if op not in by_hand for plan in both[: 1 if in_torch else 2]]


def stub(made: dict[str, tuple[Plan, Plan]], in_torch: bool = False) -> str:
    """The text of a stub of the functions."""
    lines = ['"""Written by the build from the schemas of the operators."""', ""]
    lines += ["from torch import Tensor"] if in_torch else ["from typing import Any", "", "Array = Any"]
    for plan in chosen(made, in_torch):
        text = plan.documentation(in_torch).replace("\\", "\\\\").replace("\n", "\n    ")
        definition = f"def {plan.name}({signature(plan, in_torch, is_typed=True)}) -> {plan.returns(in_torch)}:"
        lines += ["", definition, f'    """{text}"""']
    return "\n".join(lines) + "\n"
