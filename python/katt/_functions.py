"""The functions NAME and NAME_backward of every operator, made from its schema (_schema.py). Modules beside this one
have those that want more than a schema says."""

import math
import sys
from collections.abc import Sequence

import numpy

from . import _katt
from ._arrays import Array, Library, NumPyLibrary, Shape, call, library, natural, shape_of
from ._schema import Plan, chosen, compiled, plans, signature

PLANS = plans(_katt.passes())
MOST_KEPT = 256  # shapes of calls, each pass
Result = tuple[Shape, str | None]
NUMPY = {numpy.ndarray}
NUMPY_OR_NONE = {numpy.ndarray, type(None)}


def sizes(plan: Plan, arrays: Sequence[Array | None]) -> tuple[Shape, dict[str, int]]:
    """The axes before the last one of rows, and the extents of the other axes by name."""
    lead: Shape | None = None
    extents: dict[str, int] = {}
    for tensor, array in zip(plan.inputs, arrays, strict=True):
        if array is None:
            continue
        axes = tensor.axes
        shape = tuple(array.shape)
        if axes[0] == "tokens":
            if len(axes) == 2:
                if not shape:
                    raise ValueError(f"{plan.op}: {tensor.name}: holds no axes, expected (…, {axes[1]})")
                extents.setdefault(axes[1], shape[-1])
                shape = shape[:-1]
            if lead is None:
                lead, first = shape, tensor.name
            elif shape != lead and not tensor.is_hidden:
                wanted = str((*lead, *axes[1:])).replace("'", "")
                raise ValueError(
                    f"{plan.op}: {tensor.name}: holds shape {tuple(array.shape)}, expected {wanted}, as {first} has"
                )
        else:
            shape = shape_of(plan.op, tensor.name, array, len(axes))
            wanted = tuple([extents.setdefault(axis, extent) for axis, extent in zip(axes, shape, strict=True)])
            if tensor.is_dense and shape != wanted:
                raise ValueError(f"{plan.op}: {tensor.name}: holds shape {shape}, expected {wanted}")
    return lead or (), extents


def shape_in(tensor, lead: Shape, extents: dict[str, int], scalar: Shape = (1,)) -> Shape:
    """The shape of an output; of what is for the backward pass alone with all rows in one axis."""
    shape = []
    for axis in tensor.axes:
        if axis != "tokens":
            shape.append(int(axis) if axis.isdigit() else extents[axis])
        elif tensor.is_hidden:
            shape.append(math.prod(lead))
        else:
            shape.extend(lead)
    return tuple(shape) if tensor.axes else scalar


def launch(plan: Plan, inputs: Sequence, outputs: Sequence, numbers: Sequence, choice: tuple) -> None:
    """Runs a pass on arrays in the order of the plan; None where one is missing."""
    _katt.run(plan.number, plan.ordered((*inputs, *outputs)), tuple(numbers), choice)


def results(plan: Plan, inputs: Sequence, extents: Sequence[int], flags: Sequence) -> list[Result | None]:
    """Shape and dtype of each output, None where it does not exist. They are kept by the shapes of the inputs, for the
    next call."""
    key = (*[None if array is None else tuple(array.shape) for array in inputs], *extents, *map(bool, flags))
    known = plan.results.get(key)
    if known is None:
        lead, sized = sizes(plan, inputs)
        sized.update(zip(plan.extents, extents, strict=True))
        present = tuple([array is not None for array in inputs])
        wanted = plan.wanted(present, tuple(map(bool, flags))) if plan.is_conditional else plan.outputs
        known = [
            None if tensor is None else (shape_in(tensor, lead, sized), tensor.element or None) for tensor in wanted
        ]
        if len(plan.results) >= MOST_KEPT:
            plan.results.clear()
        plan.results[key] = known
    return known


def library_of(plan: Plan, inputs: Sequence, given: Sequence) -> Library:
    """The library of the arrays. Where all are plain arrays of NumPy, their types alone tell it."""
    required = len(plan.required)
    if {*map(type, inputs[:required]), *map(type, given)} == NUMPY and {*map(type, inputs[required:])} <= NUMPY_OR_NONE:
        return NumPyLibrary(inputs[plan.like])
    arrays = {plan.names[plan.like]: inputs[plan.like]}
    for tensor, array in zip(plan.inputs, inputs, strict=True):
        if array is not None or not tensor.when:
            arrays[tensor.name] = array
    arrays.update(zip(plan.given, given, strict=True))
    return library(plan.op, **arrays)


def written(given: Sequence[Array]) -> None:
    """Tells PyTorch's autograd of arrays of the caller that have other values now."""
    torch = sys.modules.get("torch")
    for array in given:
        if torch is not None and isinstance(array, torch.Tensor) and not array.is_inference():
            torch.autograd.graph.increment_version(array)


def run(plan: Plan, inputs, given, extents, numbers, flags, variant, tile):
    """The body of every function: allocates the results, runs the pass and returns them."""
    lib = library_of(plan, inputs, given)
    choice = call(variant, tile)
    if given:
        for name, array in zip(plan.given, given, strict=True):
            if not getattr(getattr(array, "flags", None), "writeable", True):
                raise ValueError(f"{plan.op}: {name}: holds a read-only array, expected one to write to")
        lead, known = sizes(plan, inputs)
        for tensor, array in zip(plan.outputs, given, strict=True):
            wanted = shape_in(tensor, lead, known)
            if tuple(array.shape) != wanted:
                raise ValueError(
                    f"{plan.op}: {tensor.name}: holds shape {tuple(array.shape)}, expected {wanted}, "
                    f"as {plan.names[0]} has"
                )
        launch(plan, inputs, given, numbers, choice)
        written(given)
        return given[0] if len(given) == 1 else given
    counts = [natural(plan.op, name, extent) for name, extent in zip(plan.extents, extents, strict=True)]
    wanted = results(plan, inputs, counts, flags)
    outputs = [None if result is None else lib.empty(*result) for result in wanted]
    launch(plan, inputs, outputs, numbers, choice)
    return lib.give(*[output for output in outputs if output is not None])


def made(plan: Plan):
    """The function of a pass."""

    def listed(names):
        return "(" + "".join(f"{name}, " for name in names) + ")"

    tile = "tile" if plan.has_tiles else "None"
    source = (
        f"def {plan.name}({signature(plan)}):\n"
        f"    return _run(_plan, {listed(plan.names)}, {listed(plan.given)}, {listed(plan.extents)}, "
        f"{listed(name for name, _ in plan.numbers)}, {listed(plan.flags)}, variant, {tile})\n"
    )
    function = compiled(source, plan.name, plan.documentation(), {"_run": run, "_plan": plan})
    function.__module__ = "katt"
    return function


FUNCTIONS = {plan.name: made(plan) for plan in chosen(PLANS)}
globals().update(FUNCTIONS)
__all__ = list(FUNCTIONS)
