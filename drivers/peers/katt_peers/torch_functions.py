"""The operators beside attention as a user of PyTorch writes them, run one by one or through torch.compile. The
16-bit forms compute in f32 where LLaMA's modules of Hugging Face transformers do."""

import torch
import torch._dynamo
import torch._inductor.config
from torch.nn import functional

from . import torch_attention
from .refusal import Refusal
from .server import first_line
from .torch_case import DTYPES, TorchCase, gradients_of, inputs_of


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


class EightBits(torch.autograd.Function):
    """x quantised to 8 bits a token and back, in f32, as BitNet's modules of transformers do; the gradient is taken for
    that of x itself."""

    @staticmethod
    def forward(_context, x):
        scale = 127.0 / x.float().abs().amax(dim=-1, keepdim=True).clamp(min=1e-5)
        return ((x.float() * scale).round() / scale).to(x.dtype)

    @staticmethod
    def backward(_context, gradient):
        return gradient


def ternary_linear(_case, t):
    """8 bits of x · weightᵀ, the weight dequantised"""
    return (functional.linear(EightBits.apply(t["x"]), t["weight"]),)


def linear(_case, t):
    """x · weightᵀ + bias"""
    return (functional.linear(t["x"], t["weight"], t.get("bias")),)


def softmax(_case, t):
    """softmax over rows"""
    return (functional.softmax(t["x"], dim=-1),)


def cross_entropy(_case, t):
    """The mean over tokens of log(sum(exp(logits))) − logits[target]"""
    return (functional.cross_entropy(t["logits"].float(), t["targets"]),)


def linear_cross_entropy(case, t):
    """cross_entropy() of the logits hidden · weightᵀ, which are stored"""
    logits = functional.linear(t["hidden"], t["weight"])
    return cross_entropy(case, {"logits": logits, "targets": t["targets"]})


def embedding(case, t):
    """Rows of the table"""
    return (functional.embedding(t["ids"], t["weight"]),)


def convert(case, t):
    """x in the dtype of the output"""
    return (t["x"].to(DTYPES[case.outputs[0].dtype], copy=True),)


FUNCTIONS = {
    function.__name__: function
    for function in (
        rmsnorm,
        rope,
        swiglu,
        swiglu_mlp,
        linear,
        ternary_linear,
        softmax,
        cross_entropy,
        linear_cross_entropy,
        embedding,
        convert,
    )
}


def open_eager(case):
    if case.op == "attention":
        return torch_attention.open_eager(case)
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
    if case.backward and case.op != "convert":  # whose backward pass converts the other way, and keeps nothing
        return TorchCase(case, backward(case, compute, inputs))

    def run():
        with torch.no_grad():
            return compute(inputs)

    run()  # compiles
    return TorchCase(case, run)


def backward(case, compute, inputs):
    """The gradients with respect to what the outputs name, d…, from those of the function's outputs."""
    names = [spec.name.removeprefix("d") for spec in case.outputs]
    given = [inputs.pop(name) for name in ("dout", "dout2", "dresidual_out") if name in inputs]
    if case.op == "rope":  # linear: its gradient does not depend on where it is taken
        inputs |= {name: torch.zeros_like(dout) for name, dout in zip(names, given, strict=True)}
    elif case.op == "embedding":  # nor this one on the table
        inputs["weight"] = torch.zeros(case.outputs[0].shape, dtype=given[0].dtype, device=given[0].device)
    elif len(given) == 2:  # RMSNorm, whose x is the sum already: the gradients of both outputs meet in it
        inputs["residual"] = torch.zeros_like(inputs["x"])
    run = gradients_of(compute, inputs, names, given or None)
    run()
    return run
