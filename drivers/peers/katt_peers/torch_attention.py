"""torch.nn.functional.scaled_dot_product_attention with a given backend."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from .refusal import Refusal
from .torch_case import TorchCase, gradients_of, inputs_of


def open_flash(case):
    return open_attention(case, SDPBackend.FLASH_ATTENTION)


def open_math(case):
    return open_attention(case, SDPBackend.MATH)


def refuse_masks(axes):
    """What scaled_dot_product_attention has no argument for."""
    if axes["window_left"] >= 0 or axes["window_right"] >= 0:
        raise Refusal("PyTorch SDPA has no sliding window")
    if axes["softcap"] != 0:
        raise Refusal("PyTorch SDPA has no softcap")
    if axes["kv_len_min"] >= 0:
        raise Refusal("PyTorch SDPA has no key lengths")
    if axes["causal"] and axes["seq_q"] != axes["seq_kv"]:
        raise Refusal("PyTorch SDPA aligns its causal mask to the upper left corner: seq_q must be seq_kv")
    if axes["causal"] and axes["bias"]:
        raise Refusal("PyTorch SDPA takes a causal mask or an additive one, not both")


def open_attention(case, backend):
    if case.op != "attention":
        raise Refusal(f"this peer computes attention, not {case.op}")
    axes = case.axes
    refuse_masks(axes)
    inputs = inputs_of(case)

    def attention(tensors):
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(
                tensors["q"],
                tensors["k"],
                tensors["v"],
                attn_mask=tensors.get("bias"),
                is_causal=bool(axes["causal"]),
                scale=case.parameters["scale"],
                enable_gqa=axes["kv_heads"] != axes["heads"],
            )

    try:
        if case.backward:
            return TorchCase(case, gradients_of(attention, inputs, ["q", "k", "v"], inputs.pop("dout")))
        return TorchCase(case, forward(attention, inputs))
    except RuntimeError as error:
        if "No available kernel" in str(error):
            raise Refusal(f"PyTorch has no {backend.name} kernel for this case") from error
        raise


def forward(attention, inputs):
    """The forward pass as a function without arguments, tried once."""

    def run():
        with torch.no_grad():
            return [attention(inputs)]

    run()
    return run
