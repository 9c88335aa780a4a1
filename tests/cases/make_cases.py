#!/usr/bin/env python3
"""Makes the *.h5 of this folder: small operator cases for `katt run`, with PyTorch's results in float64.

Run once, with torch 2.15 and h5py (of which the tests need h5py alone):

    python tests/cases/make_cases.py

A case holds the inputs of an operator, rounded to its dtype, its parameters as attributes, and in the group `expected`
the outputs; with `dout` also the gradients, `d` and an input's name. References are computed in float64 from the
rounded inputs. The attribute `budget` of an expected dataset is the largest error of the same formulas in the case's
dtype, every step rounded (but angles, and lse of 16-bit scores), and half as much again for gradients of attention whose heads share keys or whose
scores are capped: what check_case.py measures an output by.
"""

from pathlib import Path

import h5py
import numpy as np
import torch

FOLDER = Path(__file__).resolve().parent
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def attention(at, t):
    q, k, v = t["q"], t["k"], t["v"]
    batch, heads, seq_q, _ = q.shape
    group, seq_kv = heads // k.shape[1], k.shape[2]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = (q @ k.transpose(-1, -2)) * at["scale"]
    if at["softcap"]:
        scores = torch.tanh(scores / at["softcap"]) * at["softcap"]
    length = t["kv_len"].view(batch, 1, 1, 1) if "kv_len" in t else torch.full((batch, 1, 1, 1), seq_kv)
    i, j = torch.arange(seq_q).view(1, 1, -1, 1) + length - seq_q, torch.arange(seq_kv)
    if "alibi_slopes" in t:
        scores = scores - t["alibi_slopes"].view(1, heads, 1, 1) * (i - j).abs()
    if "mask" in t:
        scores = scores + t["mask"]
    visible = j < length
    if at["window_left"] >= 0:
        visible = visible & (j >= i - at["window_left"])
    right = 0 if at["causal"] else at["window_right"]
    if right >= 0:
        visible = visible & (j <= i + right)
    scores = scores.masked_fill(~visible, -torch.inf)
    # rows without a key: no probability, and no NaN that a gradient could meet
    dead = (scores == -torch.inf).all(-1, keepdim=True)
    p = torch.softmax(scores.masked_fill(dead, 0.0), -1).masked_fill(dead, 0.0)
    wide = scores.detach().to(torch.float64 if scores.dtype == torch.float64 else torch.float32)
    return {"out": p @ v, "lse": torch.logsumexp(wide, -1)}


def rope(at, t):
    x = t["x"]
    half = x.shape[-1] // 2
    frequency = at["theta"] ** (-torch.arange(half, dtype=torch.float64) / half)
    if at.get("rope_scaling") == "llama3":
        wavelength = 2 * torch.pi / frequency
        original, low, high = at["original_max_position"], at["low_freq_factor"], at["high_freq_factor"]
        share = ((original / wavelength - low) / (high - low)).clamp(0, 1)
        frequency = (1 - share) * frequency / at["rope_factor"] + share * frequency
    positions = t["positions"] if "positions" in t else torch.arange(x.shape[2])[None]
    angles = positions[:, None, :, None] * frequency
    cos, sin = torch.cos(angles).to(x.dtype), torch.sin(angles).to(x.dtype)
    if at["interleaved"]:
        a, b = x[..., 0::2], x[..., 1::2]
        return {"out": torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)}
    a, b = x[..., :half], x[..., half:]
    return {"out": torch.cat([a * cos - b * sin, b * cos + a * sin], -1)}


def rmsnorm(at, t):
    h = t["x"] + t["residual"]
    return {"out": h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + at["eps"]) * t["weight"],
            "residual_out": h.detach()}


def rmsnorm_linear(at, t):
    h = t["x"] + t["residual"]
    return {"out": (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + at["eps"]) * t["norm_weight"]) @ t["weight"].T,
            "residual_out": h.detach()}


def swiglu(_, t):
    return {"out": torch.nn.functional.silu(t["gate"]) * t["up"]}


def swiglu_mlp(_, t):
    return {"out": (torch.nn.functional.silu(t["x"] @ t["w_gate"].T) * (t["x"] @ t["w_up"].T)) @ t["w_down"].T}


def linear(_, t):
    return {"out": t["x"] @ t["weight"].T + t["bias"]}


def cross_entropy(_, t):
    return {"loss": torch.nn.functional.cross_entropy(t["logits"], t["targets"])}


def linear_cross_entropy(_, t):
    return {"loss": torch.nn.functional.cross_entropy(t["hidden"] @ t["weight"].T, t["targets"])}


def ternary_linear(_, t):
    x, weight = t["x"], t["weight"]
    s_w = weight.abs().mean().clamp(min=1e-5)
    s_x = 127 / x.abs().amax(-1, keepdim=True).clamp(min=1e-5)
    quantised = (x * s_x).round().clamp(-128, 127) @ (weight / s_w).round().clamp(-1, 1).T
    return {"out": quantised * s_w / s_x}


def computed(operator, attributes, inputs, dtype, gradients):
    """Outputs of the formulas in a dtype and, where asked for, gradients; all in float64."""
    tensors = {name: value.to(dtype) if value.is_floating_point() else value for name, value in inputs.items()}
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in tensors.items()
              if gradients and tensor.is_floating_point() and name not in ("dout", "mask", "residual", "alibi_slopes")}
    tensors.update(leaves)
    made = operator(attributes, tensors)
    if gradients:
        first = next(iter(made.values()))
        first.backward(tensors["dout"] if "dout" in tensors else None)
        made.update({"d" + name: leaf.grad for name, leaf in leaves.items()})
    return {name: value.detach().to(torch.float64) for name, value in made.items()}


def is_summed_or_capped(attributes, inputs):
    """True when the tests of FlashAttention-3 allow gradients three times the plain error instead
    of twice."""
    return attributes["softcap"] > 0 or inputs["q"].shape[1] != inputs["k"].shape[1]


def write(name, operator, dtype, inputs, gradients=True, **attributes):
    """One case. `inputs` maps names to shapes, of which normal numbers are drawn, or to tensors."""
    inputs = {key: value if torch.is_tensor(value) else torch.randn(value) for key, value in inputs.items()}
    inputs = {key: value.to(DTYPES[dtype]).to(torch.float64) if value.is_floating_point() else value
              for key, value in inputs.items()}
    reference = computed(operator, attributes, inputs, torch.float64, gradients)
    plain = computed(operator, attributes, inputs, DTYPES[dtype], gradients)
    with h5py.File(FOLDER / f"{name}.h5", "w", libver="latest") as file:
        file.attrs.update({"op": operator.__name__, "dtype": dtype, **attributes})
        for key, value in inputs.items():
            file[key] = value.numpy().astype(np.float32) if value.is_floating_point() else value.numpy()
        for key, value in reference.items():
            finite = torch.isfinite(value)
            assert torch.equal(finite, torch.isfinite(plain[key]))
            budget = (plain[key] - value)[finite].abs().max().item()
            if key in ("dq", "dk", "dv") and is_summed_or_capped(attributes, inputs):
                budget *= 1.5
            stored = value.numpy().astype(np.float64 if dtype == "f32" else np.float32)
            file.create_dataset(f"expected/{key}", data=stored).attrs["budget"] = budget


def main():
    torch.manual_seed(7)
    plain = {"causal": 0, "window_left": -1, "window_right": -1, "softcap": 0.0}
    q, kv = (1, 3, 19, 16), (1, 1, 27, 16)
    write("attention_f32_causal_gqa", attention, "f32", {"q": q, "k": kv, "v": kv, "dout": q},
          **{**plain, "causal": 1, "scale": 0.25})
    # some keys left out, all of one query, and a shorter second sequence
    q, kv = (2, 2, 13, 16), (2, 1, 24, 16)
    mask = torch.randn(2, 1, 13, 24).masked_fill(torch.rand(2, 1, 13, 24) < 0.2, -torch.inf)
    mask[1, 0, 5] = -torch.inf
    write("attention_bf16_mask_kv_len", attention, "bf16",
          {"q": q, "k": kv, "v": kv, "dout": q, "mask": mask, "kv_len": torch.tensor([24, 17])},
          **{**plain, "scale": 0.25})
    q = (1, 1, 29, 24)
    write("attention_f16_window_softcap", attention, "f16", {"q": q, "k": q, "v": q, "dout": q},
          **{**plain, "causal": 1, "window_left": 7, "softcap": 3.0, "scale": 0.2})
    write("rope_f32_interleaved_positions", rope, "f32",
          {"x": (2, 2, 9, 16), "dout": (2, 2, 9, 16), "positions": torch.randint(1000, (2, 9))},
          theta=10000.0, interleaved=1)
    write("rope_bf16_llama3", rope, "bf16", {"x": (1, 2, 13, 32), "dout": (1, 2, 13, 32)}, theta=10000.0,
          interleaved=0, rope_scaling="llama3", rope_factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
          original_max_position=64)
    write("rmsnorm_bf16_residual", rmsnorm, "bf16",
          {"x": (7, 72), "residual": (7, 72), "weight": 72, "dout": (7, 72)}, eps=1e-6)
    write("swiglu_f16", swiglu, "f16", {"gate": (5, 37), "up": (5, 37), "dout": (5, 37)})
    write("swiglu_mlp_f32", swiglu_mlp, "f32",
          {"x": (7, 16), "w_gate": torch.randn(24, 16) / 4, "w_up": torch.randn(24, 16) / 4,
           "w_down": torch.randn(16, 24) / 5, "dout": (7, 16)})
    write("linear_bf16_bias", linear, "bf16", {"x": (9, 40), "weight": (24, 40), "bias": 24, "dout": (9, 24)})
    targets = torch.randint(61, (7,))
    targets[4] = -100
    write("cross_entropy_f32", cross_entropy, "f32", {"logits": (7, 101), "targets": targets})
    write("linear_cross_entropy_f32", linear_cross_entropy, "f32",
          {"hidden": (7, 24), "weight": (61, 24), "targets": targets})
    write("ternary_linear_f32", ternary_linear, "f32", {"x": (5, 75), "weight": (17, 75)}, gradients=False)
    # three heads: slopes of four, of which every other one (ALiBi's paper), and a shorter second sequence
    q, kv = (2, 3, 17, 16), (2, 3, 23, 16)
    for dtype in ("f32", "bf16"):
        write(f"attention_{dtype}_alibi", attention, dtype,
              {"q": q, "k": kv, "v": kv, "dout": q, "alibi_slopes": torch.tensor([2.0**-4, 2.0**-8, 2.0**-2]),
               "kv_len": torch.tensor([23, 14])}, **{**plain, "causal": 1, "scale": 0.25})
    write("rmsnorm_linear_bf16_residual", rmsnorm_linear, "bf16",
          {"x": (71, 40), "residual": (71, 40), "norm_weight": 40, "weight": (24, 40), "dout": (71, 24)}, eps=1e-6)


if __name__ == "__main__":
    main()
