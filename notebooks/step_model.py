"""Predicts a training step of a LLaMA over many GPUs.

Compute is flops over the rates of kernels and bytes over the rate of memory; a message of n bytes
takes α + n/β on a link (Hockney 1994). Collectives are rings (Thakur et al. 2005, section 4): over
g ranks an all_gather or reduce_scatter of n bytes takes (g − 1)·α + (g − 1)/g · n/β.
docs/distributed.md lists the messages of each layout. Nothing else is modelled: no stragglers, no
congestion, no data loading.

`katt memory` computes the memory of a rank: forecast_memory().
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path

from katt_report.points import Points

TWO_BYTES = 2  # bytes of an element of bf16


@dataclass(frozen=True)
class Model:
    """Sizes of a LLaMA, as its config.json names them."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    head_dim: int = 128

    @property
    def q_size(self) -> int:
        return self.num_attention_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_key_value_heads * self.head_dim

    @property
    def block_weights(self) -> int:
        """Elements of the matrices of a block."""
        attention = self.hidden_size * (2 * self.q_size + 2 * self.kv_size)
        return attention + 3 * self.hidden_size * self.intermediate_size

    @property
    def parameters(self) -> int:
        norms = (2 * self.num_hidden_layers + 1) * self.hidden_size
        return self.num_hidden_layers * self.block_weights + norms + 2 * self.vocab_size * self.hidden_size

    def step_flops(self, seq: int) -> float:
        """Flops of a token, forward and backward; causal attention counts visible pairs only."""
        products = self.num_hidden_layers * self.block_weights + self.vocab_size * self.hidden_size
        return 6.0 * products + 6.0 * self.num_hidden_layers * seq * self.q_size

    @classmethod
    def read_config(cls, folder: Path) -> Model:
        """Sizes from the config.json of a folder."""
        config = json.loads((folder / "config.json").read_text())
        sizes = {name: config[name] for name in cls.__dataclass_fields__ if name in config}
        sizes.setdefault("num_key_value_heads", config["num_attention_heads"])
        sizes.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
        return cls(**sizes)

    def write_config(self, folder: Path) -> None:
        """A config.json that `katt memory` reads."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps({"model_type": "llama", **asdict(self)}))


# Touvron et al. 2023 (arXiv:2307.09288) and Llama team 2024 (arXiv:2407.21783, table 3).
MODELS = {
    "llama-2-13b": Model(5120, 13824, 40, 40, 40, 32000),
    "llama-2-70b": Model(8192, 28672, 80, 64, 8, 32000),
    "llama-3-8b": Model(4096, 14336, 32, 32, 8, 128256),
    "llama-3-70b": Model(8192, 28672, 80, 64, 8, 128256),
    "llama-3-405b": Model(16384, 53248, 126, 128, 8, 128256),
}


@dataclass(frozen=True)
class Device:
    """Rates of a GPU's kernels: flops or bytes a second, as measured on kernels alone."""

    product: dict[str, float]  # by dtype of the products, "bf16" or "fp8"
    attention_forward: float
    attention_backward: float
    memory: float
    peak: float  # nominal, of bf16: the denominator of MFU
    sustained: float = 1.0  # share of these rates that a model sustains, step after step


@dataclass(frozen=True)
class Link:
    latency_s: float
    bytes_s: float


@dataclass(frozen=True)
class Cluster:
    device: Device
    inside: Link  # between the GPUs of a host
    between: Link  # from one GPU to other hosts
    gpus_per_host: int = 8

    def link(self, ranks: int, stride: int) -> Link:
        """The link of a ring of `ranks` ranks, `stride` apart. Ranks of one host share their links
        to others."""
        together = min(ranks, max(1, self.gpus_per_host // stride))
        if together == ranks:
            return self.inside
        return Link(self.between.latency_s, min(self.inside.bytes_s, together * self.between.bytes_s))


@dataclass(frozen=True)
class Layout:
    """tensor · context · data · pipeline GPUs; neighbours in that order, as katt places its ranks."""

    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    data: int = 1
    virtual: int = 1  # interleaved stages of a rank
    sharding: str = "zero1"  # "none", "zero1", or "fsdp": parameters gathered for every pass of a block
    overlap_tensor: bool = False  # products begin with the parts that have arrived
    gradient_bytes: int = 4  # bytes of an element in a reduction

    @property
    def gpus(self) -> int:
        return self.tensor * self.pipeline * self.context * self.data


@dataclass(frozen=True)
class Step:
    seq: int
    rows: int  # of all GPUs
    micro_rows: int = 1
    recompute: str = "none"  # "none", "selective" (half of the products), "full"
    products: str = "bf16"


@dataclass(frozen=True)
class Prediction:
    """Seconds of a step, by purpose."""

    parts: dict[str, float]
    tokens: int
    gpus: int
    model_flops: float
    peak: float
    step_s: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "step_s", sum(self.parts.values()))

    @property
    def tokens_per_s_per_gpu(self) -> float:
        return self.tokens / self.step_s / self.gpus

    @property
    def tflops_per_gpu(self) -> float:
        return self.model_flops / self.step_s / self.gpus / 1e12

    @property
    def mfu(self) -> float:
        return self.tflops_per_gpu * 1e12 / self.peak


def gather_time(link: Link, ranks: int, size: float) -> float:
    """Seconds of a ring all_gather or reduce_scatter of `size` bytes."""
    return (ranks - 1) * link.latency_s + (ranks - 1) / ranks * size / link.bytes_s


def _block_compute(model: Model, device: Device, layout: Layout, step: Step, tokens: float) -> dict[str, float]:
    """Seconds of the products, of attention and of the rest of a block, forward and backward, for tokens of a rank."""
    rate = device.sustained
    again = {"none": 0.0, "selective": 0.5, "full": 1.0}[step.recompute]
    products = 2.0 * model.block_weights * tokens / layout.tensor / (device.product[step.products] * rate)
    pairs = 2.0 * step.seq * model.q_size * tokens / layout.tensor  # 4·s/2·q: visible pairs
    forward = pairs / (device.attention_forward * rate)
    backward = 2.5 * pairs / (device.attention_backward * rate)
    full = 1.0 if step.recompute == "full" else 0.0
    # Norm and residual, RoPE, SwiGLU: bytes read and written, forward and backward.
    wide = 2 * (model.q_size + model.kv_size)
    forward_elements = 8 * model.hidden_size + wide + 3 * model.intermediate_size
    backward_elements = 8 * model.hidden_size + wide + 5 * model.intermediate_size
    elements = forward_elements * (1 + again) + backward_elements
    return {
        "products_forward": products,
        "products_backward": (2 + again) * products,
        "attention_forward": forward,
        "attention_backward": backward + full * forward,
        "elementwise": elements * TWO_BYTES * tokens / layout.tensor / (device.memory * rate),
    }


def predict(model: Model, cluster: Cluster, layout: Layout, step: Step) -> Prediction:
    """The time of a step. ValueError when the layout cannot share the rows or the blocks."""
    device = cluster.device
    own_rows, rest = divmod(step.rows, layout.data)
    microbatches, uneven = divmod(own_rows, step.micro_rows)
    if rest or uneven or not microbatches:
        raise ValueError(
            f"rows {step.rows}: expected a multiple of data {layout.data} times microbatches of {step.micro_rows} rows"
        )
    if layout.pipeline * layout.virtual > model.num_hidden_layers + 2:  # embedding and head may be stages
        raise ValueError(
            f"pipeline {layout.pipeline} x {layout.virtual}: the model has {model.num_hidden_layers} blocks"
        )
    tokens = step.micro_rows * step.seq / layout.context  # tokens of a microbatch, on a rank
    blocks = model.num_hidden_layers / layout.pipeline
    full = step.recompute == "full"

    block = _block_compute(model, device, layout, step, tokens)
    parts = dict.fromkeys(
        ["products", "attention", "elementwise", "head", "tensor", "context", "bubble", "send", "data", "optimizer"],
        0.0,
    )
    parts["products"] = blocks * (block["products_forward"] + block["products_backward"])
    parts["attention"] = blocks * (block["attention_forward"] + block["attention_backward"])
    parts["elementwise"] = blocks * block["elementwise"]
    # The last stage of a pipeline has the head; blocks are distributed so that stages are even.
    head = 6.0 * model.vocab_size * model.hidden_size * tokens / layout.tensor
    dtype = "bf16" if step.products == "fp8" else step.products  # the head is not in 8 bits
    parts["head"] = head / (device.product[dtype] * device.sustained) / layout.pipeline

    if layout.tensor > 1:
        # An all_reduce, or a reduce_scatter and an all_gather, twice forward and twice backward.
        link = cluster.link(layout.tensor, 1)
        sums = 4 + (2 if full else 0)
        one = 2 * gather_time(link, layout.tensor, tokens * model.hidden_size * TWO_BYTES)
        total = sums * one
        if layout.overlap_tensor:
            hidden = (block["products_forward"] + block["products_backward"]) * (1 - 1 / layout.tensor)
            total = max(total / layout.tensor, total - hidden)
        parts["tensor"] = blocks * total
    if layout.context > 1:
        # Keys and values travel around the ring forward, with their gradients backward; attention
        # hides them.
        link = cluster.link(layout.context, layout.tensor)
        size = 2 * model.kv_size / layout.tensor * tokens * TWO_BYTES
        round_s = (layout.context - 1) * (link.latency_s + size / link.bytes_s)
        forward = max(0.0, round_s - block["attention_forward"])
        backward = max(0.0, 2 * round_s - block["attention_backward"])
        parts["context"] = blocks * (forward + backward)

    micro = sum(parts.values())
    for name in parts:
        parts[name] *= microbatches
    if layout.pipeline > 1:
        # Narayanan et al. 2021 (arXiv:2104.04473), section 2.2; compute hides the messages, except
        # while the pipeline fills.
        stage = layout.tensor * layout.context * layout.data
        link = cluster.between if stage >= cluster.gpus_per_host else cluster.inside
        message = link.latency_s + tokens * model.hidden_size / layout.tensor * TWO_BYTES / link.bytes_s
        parts["bubble"] = (layout.pipeline - 1) / layout.virtual * micro
        parts["send"] = 2 * (layout.pipeline - 1) * message

    own = (model.parameters / layout.pipeline) / layout.tensor
    replicas = layout.data * layout.context
    if replicas > 1:
        link = cluster.link(replicas, layout.tensor)
        gather = gather_time(link, replicas, own * TWO_BYTES)
        reduce = gather_time(link, replicas, own * layout.gradient_bytes)
        pieces = max(1.0, blocks)  # nothing hides the first, or last, one
        forward = micro / (4.0 if full else 3.0)
        backward = micro - forward

        def exposed(message: float, compute: float) -> float:
            return max(message / pieces, message - compute)

        if layout.sharding == "fsdp":
            parts["data"] = microbatches * (exposed(gather, forward) + exposed(gather + reduce, backward))
        else:
            parts["data"] = exposed(reduce, backward) + exposed(gather, forward)
    shared = replicas if layout.sharding in ("zero1", "fsdp") else 1
    # AdamW reads and writes masters and moments, reads gradients twice and writes the copy.
    parts["optimizer"] = own / shared * (24 + 8 + TWO_BYTES) / device.memory
    return Prediction(
        parts=parts,
        tokens=step.rows * step.seq,
        gpus=layout.gpus,
        model_flops=model.step_flops(step.seq) * step.rows * step.seq,
        peak=device.peak,
    )


def forecast_memory(katt: str | Path, model: Model, layout: Layout, step: Step, folder: Path) -> list[int]:
    """Bytes that katt would need on each rank for a step in this layout, as `katt memory` says.

    Katt shares the optimizer's state (ZeRO-1) but no parameters, and has no interleaved stages:
    "fsdp" is forecast as "zero1". RuntimeError with katt's own line when it refuses.
    """
    model.write_config(folder)
    options = {
        "dtype": "bf16", "batch": step.micro_rows, "accumulation": step.rows // step.micro_rows, "seq": step.seq,
        "ranks": layout.gpus, "tensor": layout.tensor, "pipeline": layout.pipeline, "context": layout.context,
        "micro-batches": step.rows // layout.data // step.micro_rows, "zero": int(layout.sharding != "none"),
    }  # fmt: skip
    command = [str(katt), "memory", "--model", str(folder), "--json"]
    command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    if step.recompute != "none":
        command += ["--checkpoint-blocks", "all" if step.recompute == "full" else "cheap"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())
    forecast = json.loads(done.stdout)
    ranks = forecast.get("ranks", [forecast["training"]])
    return [rank["total_bytes"] for rank in ranks]


def measured_device(points: list[Points], dtype: str, peak: float = 0.0) -> Device:
    """A device from sweeps of Katt's own operators on it: the best rate of linear, of attention
    forward and backward, and of rmsnorm, over all variants except peers. `peak` is that of the
    rates' ceiling, for MFU.

    ValueError when an operator is missing.
    """

    def best(op: str, direction: str, column: str, scale: float) -> float:
        rates = []
        for table in points:
            rows = table.where(**{"op": op, "pass": direction, "dtype": dtype, "status": "ok"})
            own = [not str(variant).startswith("torch") for variant in rows["variant"]]
            rates += [float(rate) for rate, keep in zip(rows[column], own) if keep]
        if not rates:
            raise ValueError(f"{op} {direction} {dtype}: no row, expected a sweep of it")
        return max(rates) * scale

    product = best("linear", "forward", "tflops", 1e12)
    return Device(
        product={dtype: product},
        attention_forward=best("attention", "forward", "tflops", 1e12),
        attention_backward=best("attention", "backward", "tflops", 1e12),
        memory=best("rmsnorm", "forward", "gbytes_s", 1e9),
        peak=peak or product,
    )
