"""torch.nn.functional.scaled_dot_product_attention with a given backend, and attention step by step."""

from pathlib import Path

import torch
import torch._dynamo
import torch._inductor.exc
from katt_peers.operators import load
from katt_peers.refusal import Refusal
from katt_peers.server import first_line
from katt_peers.torch_case import DTYPES, TorchCase, gradients_of, inputs_of
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

rule_of = load(Path(__file__).with_name("torch_rule.py")).rule_of


def open_flash(case):
    return open_attention(case, SDPBackend.FLASH_ATTENTION)


def open_math(case):
    return open_attention(case, SDPBackend.MATH)


def open_efficient(case):
    return open_attention(case, SDPBackend.EFFICIENT_ATTENTION)


def open_cudnn(case):
    return open_attention(case, SDPBackend.CUDNN_ATTENTION)


def open_flex(case):
    """flex_attention, compiled: on a GPU a flash kernel in Triton, on a CPU one in C++, without gradients."""
    return open_flexible(case, lambda function: torch.compile(function, dynamic=False))


def open_flex_eager(case):
    """flex_attention step by step, the scores stored. It, too, traces its rule; on a CPU it has no gradients either."""
    return open_flexible(case, lambda function: function)


def open_flexible(case, transform):
    """flex_attention. Softcap, ALiBi, a score rule of the sweep and an additive mask are its score rule, a causal
    mask and a window skip whole blocks. PyTorch's own alignment of queries and keys is made ours."""
    axes = case.axes
    if axes["block_density"] != 1:
        raise Refusal("this peer does not take our block masks")
    if axes["kv_len_min"] >= 0:
        raise Refusal("this peer does not take key lengths")
    torch._dynamo.reset()  # a case is compiled for its own shapes
    function = transform(flex_attention)
    inputs, rule = inputs_of(case), rule_of(case)
    slopes, softcap = inputs.pop("alibi_slopes", None), axes["softcap"]
    bias = inputs["mask"][0, 0] if "mask" in inputs else None  # of the memory where its changes come
    left, right = axes["window_left"], 0 if axes["causal"] else axes["window_right"]
    offset = axes["seq_kv"] - axes["seq_q"]

    def score(s, batch, head, i, j):
        if softcap:
            s = torch.tanh(s / softcap) * softcap
        if slopes is not None:
            s = s - slopes[head] * (j - i - offset).abs()
        if rule is not None:
            s = rule(s, batch, head, i, j)
        return s if bias is None else s + bias[i, j]

    def visible(batch, head, i, j):
        seen = j >= 0
        if right >= 0:
            seen = seen & (j - i - offset <= right)
        return seen & (i + offset - j <= left) if left >= 0 else seen

    mask = None
    if left >= 0 or right >= 0:
        mask = create_block_mask(visible, None, None, axes["seq_q"], axes["seq_kv"], device=case.device)
    is_plain = not softcap and slopes is None and rule is None and bias is None

    def attention(tensors):
        return function(tensors["q"], tensors["k"], tensors["v"], score_mod=None if is_plain else score,
                        block_mask=mask, scale=case.parameters["scale"],
                        enable_gqa=axes["kv_heads"] != axes["heads"])  # fmt: skip

    try:
        return opened(case, attention, inputs)
    except (NotImplementedError, torch._dynamo.exc.TorchDynamoException, torch._inductor.exc.CppCompileError) as error:
        raise Refusal(f"flex_attention: {first_line(error)}") from error


def refuse_masks(axes):
    """Refuses options for which scaled_dot_product_attention has no argument."""
    if axes["window_left"] >= 0 or axes["window_right"] >= 0:
        raise Refusal("PyTorch SDPA has no sliding window")
    if axes["softcap"] != 0:
        raise Refusal("PyTorch SDPA has no softcap")
    if axes["alibi"]:
        raise Refusal("PyTorch SDPA has no ALiBi")
    if axes["score_rule"] != "none":
        raise Refusal("PyTorch SDPA has no score rule")
    if axes["kv_len_min"] >= 0:
        raise Refusal("PyTorch SDPA has no key lengths")
    if axes["causal"] and axes["seq_q"] != axes["seq_kv"]:
        raise Refusal("PyTorch SDPA aligns its causal mask to the upper left corner: seq_q must be seq_kv")
    if axes["causal"] and axes["bias"]:
        raise Refusal("PyTorch SDPA takes a causal mask or an additive one, not both")


def open_zentorch(case, transform):
    return open_attention(case, SDPBackend.FLASH_ATTENTION, transform)


def open_attention(case, backend, transform=lambda function: function):
    axes = case.axes
    refuse_masks(axes)
    inputs = inputs_of(case)

    def attention(tensors):
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(
                tensors["q"],
                tensors["k"],
                tensors["v"],
                attn_mask=tensors.get("mask"),
                is_causal=bool(axes["causal"]),
                scale=case.parameters["scale"],
                enable_gqa=axes["kv_heads"] != axes["heads"],
            )

    try:
        return opened(case, transform(attention), inputs)
    except RuntimeError as error:
        if "No available kernel" in str(error) or "No viable backend" in str(error):
            raise Refusal(f"PyTorch has no {backend.name} kernel for this case") from error
        raise


def open_eager(case, transform):
    """Scale, matrix product, softcap, score rule, mask, softmax, matrix product, as models write them: one operator
    after the other, K and V repeated for the heads that share them, the mask an additive one that is made beforehand.
    The scale is that of q, fewer numbers than the scores, which are so rounded once."""
    inputs, rule = inputs_of(case), rule_of(case)
    group = case.axes["heads"] // case.axes["kv_heads"]
    softcap = case.axes["softcap"]
    kv_len = inputs.pop("kv_len", None)
    hidden, bias = additive_mask(case, kv_len), inputs.pop("mask", None)
    distance = alibi(case, inputs.pop("alibi_slopes", None), kv_len)
    before_rule = None if rule is None else distance
    added = [term for term in (hidden, distance if rule is None else None, bias) if term is not None]
    mask = sum(added[1:], added[0]) if added else None
    places = indices_of_scores(case)

    def attention(tensors):
        k, v = tensors["k"], tensors["v"]
        if group > 1:
            k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
        scores = torch.matmul(tensors["q"] * case.parameters["scale"], k.transpose(2, 3))
        if softcap != 0:
            scores = torch.tanh(scores / softcap) * softcap
        if before_rule is not None:
            scores = scores + before_rule
        if rule is not None:
            scores = torch.broadcast_to(rule(scores, *places), scores.shape)
        if mask is not None:
            scores = scores + mask
        return torch.matmul(torch.softmax(scores, dim=-1).to(v.dtype), v)

    return opened(case, transform(attention), inputs)


def indices_of_scores(case):
    """batch, head, query and key of every score, each along its own axis of four."""
    extents = (case.axes[name] for name in ("batch", "heads", "seq_q", "seq_kv"))
    return [
        torch.arange(extent, device=case.device).view([-1 if axis == own else 1 for axis in range(4)])
        for own, extent in enumerate(extents)
    ]


def key_counts(case, kv_len):
    """Keys of every sequence, (1 or B, 1, 1, 1)."""
    keys = torch.full((1,), case.axes["seq_kv"]) if kv_len is None else kv_len
    return keys.view(-1, 1, 1, 1).to(case.device)


def distances(case, keys):
    """j − (i + o), (1 or B, 1, seq_q, seq_kv)."""
    j = torch.arange(case.axes["seq_kv"], device=case.device)
    return j - torch.arange(case.axes["seq_q"], device=case.device).view(-1, 1) - (keys - case.axes["seq_q"])


def alibi(case, slopes, kv_len):
    """−slope · |distance|, (1 or B, H, seq_q, seq_kv), made beforehand like a mask; None without slopes."""
    if slopes is None:
        return None
    return -slopes.view(1, -1, 1, 1) * distances(case, key_counts(case, kv_len)).abs()


def additive_mask(case, kv_len):
    """0 where query i sees key j and −∞ elsewhere, (1 or B, 1, seq_q, seq_kv); None where every query sees all keys."""
    axes = case.axes
    right = 0 if axes["causal"] else axes["window_right"]
    if right < 0 and axes["window_left"] < 0 and kv_len is None:
        return None
    keys = key_counts(case, kv_len)
    distance = distances(case, keys)
    seen = torch.arange(axes["seq_kv"], device=case.device) < keys
    if right >= 0:
        seen = seen & (distance <= right)
    if axes["window_left"] >= 0:
        seen = seen & (distance >= -axes["window_left"])
    if not seen.any(dim=-1).all():
        raise Refusal("a query sees no key, which softmax over -inf makes NaN")
    return torch.zeros(seen.shape, dtype=DTYPES[case.dtype], device=case.device).masked_fill(~seen, float("-inf"))


def opened(case, attention, inputs):
    """A pass of `attention`, tried once."""
    if case.backward:
        read = {"dout": inputs.pop("dout")}
        run = gradients_of(attention, inputs, ["q", "k", "v"], read["dout"])
    else:
        read = inputs

        def run():
            with torch.no_grad():
                return [attention(inputs)]

    run()
    return TorchCase(case, run, read)
