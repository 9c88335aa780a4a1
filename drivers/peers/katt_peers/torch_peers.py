"""The peers on PyTorch. The folders of the operators hold their computations, in
bench/torch_peer.py:

    compute(case, t)        the outputs of the forward pass, a tuple, from the tensors t by name, as a user writes it
    prepare(case, t, dout)  optional: adds to t what the gradients are taken at, where the backward pass does not read it
    backward(case, t)       optional: the backward pass, where it is not to be the gradient of compute()

or, in place of these, a function open_eager(case, transform), and open_flash(case), open_math(case),
open_efficient(case), open_cudnn(case), open_flex(case), open_flex_eager(case), open_zentorch(case, transform) for the
peers of that name, that makes the TorchCase itself; `transform` compiles a function, or returns it as it is. The 16-bit forms compute in f32 where LLaMA's modules of Hugging Face transformers do."""

import torch
import torch._dynamo
import torch._inductor.config
import torch._inductor.exc

from .operators import function_of, modules
from .refusal import Refusal
from .server import first_line
from .torch_case import TorchCase, gradients_of, inputs_of

# Gradients of the function's outputs, as cases name them, in the order of these.
GIVEN = ("dout", "dout2", "dresidual_out")


def opener(name):
    """Opens a case by the operator's function of that name."""
    return lambda case: function_of("torch", case.op, name)(case)


open_flash, open_math, open_efficient, open_cudnn, open_flex, open_flex_eager = map(opener, (
    "open_flash", "open_math", "open_efficient", "open_cudnn", "open_flex", "open_flex_eager"))  # fmt: skip


def open_eager(case):
    return open_function(case, "open_eager", lambda function: function)


def open_compiled(case):
    return compiled(case, "open_eager")


def open_zentorch(case):
    """zentorch replaces operators in the graph of torch.compile."""
    if case.device != "cpu" or case.backward:
        raise Refusal("zentorch computes the forward pass on a CPU")
    return compiled(case, "open_zentorch", backend="zentorch")


def compiled(case, name, **options):
    torch._dynamo.reset()  # a case is compiled for its own shapes and threads
    torch._inductor.config.compile_threads = 1  # no pool of compiling processes beside the measurement
    try:
        return open_function(case, name, lambda function: torch.compile(function, dynamic=False, **options))
    except (torch._dynamo.exc.TorchDynamoException, torch._inductor.exc.CppCompileError) as error:
        raise Refusal(f"torch.compile: {first_line(error)}") from error


def open_function(case, name, transform):
    """A case of the module's function of that name, or of its compute()."""
    module = modules("torch").get(case.op)
    if hasattr(module, name):
        return getattr(module, name)(case, transform)
    function = function_of("torch", case.op, "compute")
    inputs = inputs_of(case)
    if case.backward and hasattr(module, "backward"):
        function = module.backward
    compute = transform(lambda tensors: function(case, tensors))
    if case.backward and not hasattr(module, "backward"):
        names = set(inputs)
        given = [inputs.pop(name) for name in GIVEN if name in names]
        named = dict(zip((name for name in GIVEN if name in names), given, strict=True))
        return TorchCase(case, gradients(case, module, compute, inputs, given), named)

    def run():
        with torch.no_grad():
            return compute(inputs)

    run()  # compiles
    return TorchCase(case, run, inputs)


def gradients(case, module, compute, inputs, given):
    """The gradients with respect to the tensors that the outputs name, d…, from those of the
    function's outputs."""
    names = [spec.name.removeprefix("d") for spec in case.outputs]
    if hasattr(module, "prepare"):
        module.prepare(case, inputs, given)
    run = gradients_of(compute, inputs, names, given or None)
    run()
    return run
