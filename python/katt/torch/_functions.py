"""The functions of every operator with gradients, made from its schema: an operator of torch.library for each pass,
with fake tensors, and autograd between them. Modules beside this one have those that want more than a schema says."""

from torch import Tensor

from .._functions import PLANS, launch, shape_in, sizes
from .._schema import Plan, chosen, compiled, signature
from ._operator import ELEMENTS, call, new_heads, operator, readable, refuse_tensors


class Pass:
    """A pass as an operator of torch.library. Its arguments are inputs, numbers, then the names of `wanted`, bool each,
    and the variant; a number that is the gradient of a result is a tensor. A result that does not exist, or is not
    wanted, is an empty tensor."""

    def __init__(self, plan: Plan, forward: "Pass | None" = None):
        self.plan = plan
        made = {"d" + output.name for output in forward.plan.outputs} if forward else set()
        self.gradients = [name for name, _ in plan.numbers if name in made]
        self.wanted = [
            output.name for output in plan.outputs if forward and (output.is_optional or output.when in plan.flags)
        ]
        # A four-axis result that has the axes of an input lies in memory as that does.
        self.twins = [
            next((i for i, tensor in enumerate(plan.inputs) if tensor.axes == output.axes), None)
            if len(output.axes) == 4
            else None
            for output in plan.outputs
        ]
        arguments = [f"Tensor{'?' if tensor.when else ''} {tensor.name}" for tensor in plan.inputs]
        arguments += [f"int {name}" for name in plan.extents]
        for name, default in plan.numbers:
            arguments.append(f"{'Tensor' if name in self.gradients else type(default).__name__} {name}")
        arguments += [f"bool {name}" for name in self.wanted]
        arguments.append("str variant")
        results = ", ".join(["Tensor"] * len(plan.outputs))
        schema = f"({', '.join(arguments)}) -> {results if len(plan.outputs) == 1 else f'({results})'}"
        self.operator = operator(plan.name, self.new, schema)(self.compute)

    def parts(self, arguments):
        """Inputs, extents, numbers, what is wanted by its name, variant."""
        plan = self.plan
        i = len(plan.inputs)
        j = i + len(plan.extents)
        k = j + len(plan.numbers)
        wanted = dict(zip(self.wanted, arguments[k:-1], strict=True))
        return arguments[:i], arguments[i:j], arguments[j:k], wanted, arguments[-1]

    def results(self, inputs, extents, wanted):
        """New tensors for the results, and whether each exists."""
        plan = self.plan
        lead, known = sizes(plan, inputs)
        known.update(zip(plan.extents, extents, strict=True))
        conditions = {tensor.when for tensor, x in zip(plan.inputs, inputs, strict=True) if x is not None}
        like = inputs[plan.like]
        made, exist = [], []
        for tensor, twin in zip(plan.outputs, self.twins, strict=True):
            flags = dict.fromkeys(plan.flags, wanted.get(tensor.name, False))
            exists = wanted.get(tensor.name, True) and plan.is_there(tensor, conditions, flags)
            exist.append(exists)
            if exists and twin is not None:
                made.append(new_heads(inputs[twin]))
            else:
                shape = shape_in(tensor, lead, known, ()) if exists else (0,)
                made.append(like.new_empty(shape, dtype=ELEMENTS[tensor.element]))
        return made, exist

    def new(self, *arguments):
        """The results without content."""
        inputs, extents, _, wanted, _ = self.parts(arguments)
        made, _ = self.results(inputs, extents, wanted)
        return made[0] if len(made) == 1 else tuple(made)

    def compute(self, *arguments):
        inputs, extents, numbers, wanted, variant = self.parts(arguments)
        made, exist = self.results(inputs, extents, wanted)
        outputs = [x if exists else None for x, exists in zip(made, exist, strict=True)]
        inputs = [readable(tensor, x) for tensor, x in zip(self.plan.inputs, inputs, strict=True)]
        numbers = [x.item() if isinstance(x, Tensor) else x for x in numbers]
        launch(self.plan, inputs, outputs, numbers, call(variant))
        return made[0] if len(made) == 1 else tuple(made)


class Differentiated:
    """Both passes of an operator, and which tensors of the one the other reads."""

    def __init__(self, forward: Plan, backward: Plan):
        self.forward = Pass(forward)
        self.backward = Pass(backward, self.forward)
        inputs = {tensor.name: i for i, tensor in enumerate(forward.inputs)}
        outputs = {tensor.name: i for i, tensor in enumerate(forward.outputs)}
        self.conditions = {tensor.when: i for i, tensor in enumerate(forward.inputs) if tensor.when}
        # Where each input of the backward pass comes from: (a result's gradient, an input, a result) by place.
        self.sources = [
            (
                outputs.get(tensor.name[1:]) if tensor.name[0] == "d" else None,
                inputs.get(tensor.name),
                outputs.get(tensor.reads or tensor.name),
            )
            for tensor in backward.inputs
        ]
        # The result of the backward pass for each input of the forward pass.
        self.gradients = [None] * len(forward.inputs)
        for i, tensor in enumerate(backward.outputs):
            for name in tensor.gradient_of.split() or [tensor.name[1:]]:
                self.gradients[inputs[name]] = i
        self.numbers = {name: i for i, (name, _) in enumerate(forward.numbers)}
        # A result whose gradient the backward pass does not read has none.
        read = {gradient for gradient, _, _ in self.sources} | {outputs[name[1:]] for name in self.backward.gradients}
        self.constants = [i for i in outputs.values() if i not in read]
        self.forward.operator.register_autograd(self.differentiate, setup_context=self.save)

    def save(self, ctx, inputs, output):
        tensors, _, numbers, _, _ = self.forward.parts(inputs)
        for tensor, gradient, is_wanted in zip(self.forward.plan.inputs, self.gradients, ctx.needs_input_grad, strict=False):
            if is_wanted and gradient is None:
                raise ValueError(
                    f"{self.forward.plan.op}: {tensor.name}: holds a tensor that requires a gradient, expected one "
                    "without: nobody computes it"
                )
        results = (output,) if isinstance(output, Tensor) else output
        present = {condition for condition, i in self.conditions.items() if tensors[i] is not None}
        saved = []
        for tensor, (gradient, x, result) in zip(self.backward.plan.inputs, self.sources, strict=True):
            if gradient is not None or (tensor.when and tensor.when not in present):
                saved.append(None)
            elif x is None or (result is not None and self.exists(result, present)):
                saved.append(results[result])
            else:
                saved.append(tensors[x])
        ctx.save_for_backward(*saved)
        ctx.mark_non_differentiable(*(results[i] for i in self.constants))
        ctx.numbers, ctx.present = numbers, present
        ctx.extents = self.extents(tensors)

    def exists(self, result, present):
        plan = self.forward.plan
        return plan.is_there(plan.outputs[result], present, dict.fromkeys(plan.flags, False))

    def extents(self, tensors):
        """Extents that the backward pass cannot tell from its own tensors."""
        if not self.backward.plan.extents:
            return ()
        _, known = sizes(self.forward.plan, tensors)
        return tuple(known[name] for name in self.backward.plan.extents)

    def differentiate(self, ctx, *douts):
        backward = self.backward
        saved = ctx.saved_tensors
        inputs = []
        for tensor, x, (gradient, _, _) in zip(backward.plan.inputs, saved, self.sources, strict=True):
            is_there = gradient is not None and (not tensor.when or tensor.when in ctx.present)
            inputs.append(douts[gradient] if is_there else x)
        outputs = {"d" + tensor.name: i for i, tensor in enumerate(self.forward.plan.outputs)}
        numbers = [
            douts[outputs[name]] if name in backward.gradients else ctx.numbers[self.numbers[name]]
            for name, _ in backward.plan.numbers
        ]
        needed = [ctx.needs_input_grad[i] for i in range(len(self.gradients))]
        wanted = [
            any(need and gradient == i for need, gradient in zip(needed, self.gradients, strict=True))
            for i, tensor in enumerate(backward.plan.outputs)
            if tensor.name in backward.wanted
        ]
        made = backward.operator(*inputs, *ctx.extents, *numbers, *wanted, "auto")
        made = (made,) if isinstance(made, Tensor) else made
        found = [
            made[gradient] if need and gradient is not None else None
            for need, gradient in zip(needed, self.gradients, strict=True)
        ]
        return (*found, *(None,) * (len(self.forward.plan.numbers) + 1))


def pick(results, exist):
    """The results that exist, one as it is."""
    found = tuple(x for x, exists in zip(results, exist, strict=True) if exists)
    return found[0] if len(found) == 1 else found


def made(differentiated: Differentiated):
    """The function of an operator: of its results those that are not for the backward pass alone."""
    plan = differentiated.forward.plan
    arguments = ", ".join([*plan.names, *(name for name, _ in plan.numbers), "variant"])
    if len(plan.outputs) == 1:
        body = f"_op({arguments})"
    else:
        exist = []
        for output in plan.outputs:
            given = next((tensor.name for tensor in plan.inputs if tensor.when == output.when and output.when), None)
            exist.append("False" if output not in plan.shown(True) else f"{given} is not None" if given else "True")
        body = f"_pick(_op({arguments}), ({', '.join(exist)},))"
    numbers = "".join(f", {name}={name}" for name, default in plan.numbers if isinstance(default, float))
    check = f"    _refuse_tensors({plan.op!r}{numbers})\n" if numbers else ""
    source = f"def {plan.name}({signature(plan, in_torch=True)}):\n{check}    return {body}\n"
    documentation = f"katt.{plan.name} with gradients.\n\n{plan.documentation(in_torch=True)}"
    names = {"_op": differentiated.forward.operator, "_pick": pick, "_refuse_tensors": refuse_tensors}
    function = compiled(source, plan.name, documentation, names)
    function.__module__ = "katt.torch"
    return function


OPERATORS = {plan.op: Differentiated(*PLANS[plan.op]) for plan in chosen(PLANS, in_torch=True)}
FUNCTIONS = {name: made(operator) for name, operator in OPERATORS.items()}
globals().update(FUNCTIONS)
__all__ = list(FUNCTIONS)
