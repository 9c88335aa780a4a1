"""Published training steps of LLaMAs on A100s and H100s, and the clusters that they ran on, for step_model.py.

Rates of kernels alone: library products of bf16 reach 790 TFLOP/s on an H200, which has the multiprocessors of an
H100; 0.87 of the nominal rate on an A100 and 0.66 of it in 8 bits on an H100 are assumed. Attention: 640 and 540
TFLOP/s, forward and backward, on Hopper (cuDNN 9.19, 8192 keys, causal), there 320 and 300 with FlashAttention-2 (Shah
et al. 2024, arXiv:2407.08608), 190 and 170 with it on an A100 (Dao 2023, arXiv:2307.08691). Kernels bound by memory:
0.77 of its nominal bandwidth (RMSNorm, 3.7 of 4.8 TB/s). Links: NVLink 4 and 3 at 0.8 of 450 and 300 GB/s, adapters of
400 and 200 Gbit/s at 0.9, all assumed.

The share of these rates that kernels sustain in a model, at the power limit of a GPU, is one number
a device: it is fitted to one row (`fitted`), and the others are predicted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from step_model import MODELS, Cluster, Device, Layout, Link, Prediction, Step, predict

H100 = Device(
    product={"bf16": 790e12, "fp8": 1300e12},
    attention_forward=640e12,
    attention_backward=540e12,
    memory=0.77 * 3.35e12,
    peak=989e12,
)
A100 = Device(
    product={"bf16": 270e12},
    attention_forward=190e12,
    attention_backward=170e12,
    memory=0.77 * 2.04e12,
    peak=312e12,
)
NVLINK_4 = Link(2e-6, 0.8 * 450e9)
NVLINK_3 = Link(2e-6, 0.8 * 300e9)
ADAPTER_400 = Link(5e-6, 0.9 * 50e9)
ADAPTER_200 = Link(5e-6, 0.9 * 25e9)

CLUSTERS = {
    # DGX H100, or Meta's hosts at 700 W
    "h100": Cluster(H100, NVLINK_4, ADAPTER_400),
    # torchtitan's: HBM2e, 500 W, FlashAttention-2
    "h100-500w": Cluster(
        replace(H100, memory=0.77 * 2.4e12, attention_forward=320e12, attention_backward=300e12), NVLINK_4, ADAPTER_400
    ),
    "a100": Cluster(A100, NVLINK_3, ADAPTER_200),
}


@dataclass(frozen=True)
class Published:
    """A measured step: tokens a second and GPU, or model TFLOP/s a GPU when the source gives only
    these."""

    source: str
    model: str
    cluster: str
    layout: Layout
    step: Step
    tokens_per_s: float = 0.0
    tflops: float = 0.0
    fitted: bool = False

    def rate(self) -> float:
        """Tokens a second and GPU."""
        return self.tokens_per_s or self.tflops * 1e12 / MODELS[self.model].step_flops(self.step.seq)


TORCHTITAN_A100 = "torchtitan, docs/performance.md, 2024-04"
TORCHTITAN_H100 = "torchtitan, benchmarks/llama3_h100_202412_torchtitan.md"
MEGATRON = "Megatron Bridge, performance summary, container 26.02"
MEGATRON_8B = "Megatron Bridge, performance summary, container 25.11"
LLAMA_3 = "Llama team 2024, arXiv:2407.21783, table 4"

FSDP = {"sharding": "fsdp"}

PUBLISHED = [
    Published(TORCHTITAN_A100, "llama-3-8b", "a100",
              Layout(data=64, **FSDP), Step(8192, 64, 1, "selective"), 2973, fitted=True),
    Published(TORCHTITAN_A100, "llama-3-70b", "a100", Layout(data=64, **FSDP), Step(8192, 64, 1, "full"), 331),
    Published(TORCHTITAN_A100, "llama-2-13b", "a100", Layout(data=64, **FSDP), Step(4096, 128, 2, "none"), 2162),
    Published(TORCHTITAN_A100, "llama-2-13b", "a100", Layout(data=64, **FSDP), Step(4096, 128, 2, "selective"), 1904),
    Published(TORCHTITAN_A100, "llama-2-70b", "a100", Layout(data=64, **FSDP), Step(4096, 128, 2, "full"), 353),
    Published(TORCHTITAN_H100 + ", table 1", "llama-3-8b", "h100-500w",
              Layout(data=8, **FSDP), Step(8192, 16, 2, "selective"), 6667, fitted=True),
    Published(TORCHTITAN_H100 + ", table 3", "llama-3-8b", "h100-500w",
              Layout(data=128, **FSDP), Step(8192, 256, 2, "selective"), 6514),
    Published(TORCHTITAN_H100 + ", table 1", "llama-3-8b", "h100-500w",
              Layout(data=8, **FSDP), Step(8192, 16, 2, "selective", "fp8"), 8532),
    Published(TORCHTITAN_H100 + ", table 3", "llama-3-8b", "h100-500w",
              Layout(data=128, **FSDP), Step(8192, 256, 2, "selective", "fp8"), 8380),
    Published(TORCHTITAN_H100 + ", table 2", "llama-3-8b", "h100-500w",
              Layout(context=8, **FSDP), Step(262144, 1, 1, "full", "fp8"), 548),
    Published(TORCHTITAN_H100 + ", table 4", "llama-3-70b", "h100-500w",
              Layout(tensor=8, data=32, **FSDP), Step(8192, 512, 16, "full", "fp8"), 829),
    Published(TORCHTITAN_H100 + ", table 4", "llama-3-70b", "h100-500w",
              Layout(tensor=8, data=32, overlap_tensor=True, **FSDP), Step(8192, 512, 16, "full", "fp8"), 876),
    # as many microbatches as stages
    Published(TORCHTITAN_H100 + ", table 5", "llama-3-405b", "h100-500w",
              Layout(tensor=8, pipeline=8, data=8, overlap_tensor=True), Step(8192, 256, 4, "full", "fp8"), 100),
    Published(MEGATRON_8B, "llama-3-8b", "h100", Layout(data=8, **FSDP), Step(8192, 128, 1, "none", "fp8"), 14451),
    Published(MEGATRON, "llama-3-70b", "h100", Layout(tensor=4, pipeline=8, data=2, virtual=5, overlap_tensor=True),
              Step(8192, 256, 1, "none", "fp8"), 1621),
    Published(MEGATRON, "llama-3-405b", "h100", Layout(tensor=8, pipeline=8, context=2, data=8, virtual=8,
              overlap_tensor=True), Step(8192, 1536, 1, "none", "fp8"), 311),
    # 16 x 8 stages of a block each, the embedding and the head among them
    Published(LLAMA_3, "llama-3-405b", "h100",
              Layout(tensor=8, pipeline=16, data=64, virtual=8), Step(8192, 2048), tflops=430, fitted=True),
    Published(LLAMA_3, "llama-3-405b", "h100",
              Layout(tensor=8, pipeline=16, data=128, virtual=8), Step(8192, 2048), tflops=400),
    Published(LLAMA_3, "llama-3-405b", "h100",
              Layout(tensor=8, pipeline=16, context=16, data=8, virtual=8), Step(131072, 128), tflops=380),
]


def with_sustained(cluster: Cluster, sustained: float) -> Cluster:
    return replace(cluster, device=replace(cluster.device, sustained=sustained))


def fitted_clusters() -> dict[str, Cluster]:
    """The clusters with the share of kernels' rates that matches their fitted row, by bisection."""
    clusters = dict(CLUSTERS)
    for row in PUBLISHED:
        if not row.fitted:
            continue
        low, high = 0.2, 1.5
        for _ in range(40):
            middle = (low + high) / 2
            got = predict(MODELS[row.model], with_sustained(CLUSTERS[row.cluster], middle), row.layout, row.step)
            low, high = (middle, high) if got.tokens_per_s_per_gpu < row.rate() else (low, middle)
        clusters[row.cluster] = with_sustained(CLUSTERS[row.cluster], (low + high) / 2)
    return clusters


def check(clusters: dict[str, Cluster] | None = None) -> list[tuple[Published, Prediction, float]]:
    """Every published row, the prediction, and the relative error of the tokens a second."""
    clusters = clusters or fitted_clusters()
    rows = []
    for row in PUBLISHED:
        got = predict(MODELS[row.model], clusters[row.cluster], row.layout, row.step)
        rows.append((row, got, got.tokens_per_s_per_gpu / row.rate() - 1))
    return rows
