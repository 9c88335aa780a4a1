"""The operators beside attention as a user of PyTorch writes them, run one by one or through torch.compile. The
16-bit forms compute in f32 where LLaMA's modules of Hugging Face transformers do."""

import torch
import torch._dynamo
import torch._inductor.config
from torch.nn import functional

from .refusal import Refusal
from .server import first_line
from .torch_case import TorchCase, gradients_of, inputs_of


def rmsnorm(case, t):
    """x / sqrt(mean(x²) + eps) · weight, with residual: of x + residual, which is an output too."""
    x = t["x"] + t["residual"] if "residual" in t else t["x"]
    out = functional.rms_norm(x, x.shape[-1:], t["weight"], case.parameters["eps"])
    return (out, x) if "residual" in t else (out,)


def rope(case, t):
    """Turns the pairs of q and k by the angles of the table, of which a row holds cosines, then sines."""
    if case.axes["interleaved"]:
        raise Refusal("this peer turns halves, not interleaved pairs")
    # The table's rows are positions, or (batch, seq) where these are explicit: (1 or B, 1, S, D/2) each.
    cos, sin = t["cache"].view(-1, 1, t["x"].shape[2], t["x"].shape[3]).chunk(2, dim=-1)

    def turned(x):
        a, b = x.float().chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)

    return turned(t["x"]), turned(t["x2"])


def swiglu(_case, t):
    """silu(gate) · up"""
    return (functional.silu(t["gate"]) * t["up"],)


def swiglu_mlp(_case, t):
    """down(silu(gate(x)) · up(x))"""
    hidden = functional.silu(functional.linear(t["x"], t["w_gate"])) * functional.linear(t["x"], t["w_up"])
    return (functional.linear(hidden, t["w_down"]),)


def linear(_case, t):
    """x · weightᵀ + bias"""
    return (functional.linear(t["x"], t["weight"], t.get("bias")),)


def softmax(_case, t):
    """softmax over rows"""
    return (functional.softmax(t["x"], dim=-1),)


def cross_entropy(_case, t):
    """The mean over tokens of log(sum(exp(logits))) − logits[target]"""
    return (functional.cross_entropy(t["logits"].float(), t["targets"]),)


FUNCTIONS = {
    function.__name__: function for function in (rmsnorm, rope, swiglu, swiglu_mlp, linear, softmax, cross_entropy)
}


def open_eager(case):
    return open_function(case, lambda function: function)


def open_compiled(case):
    torch._dynamo.reset()  # a case is compiled for its own shapes and threads
    torch._inductor.config.compile_threads = 1  # no pool of compiling processes beside the measurement
    try:
        return open_function(case, lambda function: torch.compile(function, dynamic=False))
    except torch._dynamo.exc.TorchDynamoException as error:
        raise Refusal(f"torch.compile: {first_line(error)}") from error


def open_function(case, transform):
    if case.op not in FUNCTIONS:
        raise Refusal(f"this peer computes {', '.join(FUNCTIONS)}, not {case.op}")
    inputs = inputs_of(case)
    compute = transform(lambda tensors: FUNCTIONS[case.op](case, tensors))
    if case.backward:
        return TorchCase(case, backward(case, compute, inputs))

    def run():
        with torch.no_grad():
            return compute(inputs)

    run()  # compiles
    return TorchCase(case, run)


def backward(case, compute, inputs):
    if "residual" in inputs or "dresidual_out" in inputs or "x2" in inputs:
        raise Refusal("this peer computes the gradients of one output only")
    dout = inputs.pop("dout", None)
    names = [spec.name.removeprefix("d") for spec in case.outputs]
    run = gradients_of(lambda tensors: compute(tensors)[0], inputs, names, dout)
    run()
    return run
