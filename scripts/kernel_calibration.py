"""The cycle model on kernels whose speed is published: FlashAttention-3's. Imported by scripts/kernel_table.

The kernels come from two packages of PyPI, which pip puts into a cache folder (build/cuda_calibration); none of it
belongs to the project. Speeds are of an H100 SXM in bf16 or f16: "paper" is Shah et al. 2024, arXiv:2407.08608,
figures 5 and 6 (16k tokens) and table 2 (the ablation: head_dim 128, 8448 tokens, no mask); "backward" are the tables
of FlashAttention's pull request 1893 (8k tokens)."""

import re
from dataclasses import dataclass, replace

import kernel_cycles
import sass
from kernel_cycles import Attention

CACHE = sass.HERE.parent / "build" / "cuda_calibration"
PACKAGES = {"fa3_fwd": "fa3-fwd==0.0.3", "flash_attn3_jax_lib": "flash-attn3-jax==0.2.3"}


@dataclass
class Published:
    """A kernel of FlashAttention-3, the problem that was timed, and the speed."""
    rows: int
    keys: int
    problem: Attention
    tflops: float
    source: str
    package: str = "fa3_fwd"
    values_from_registers: bool = True  # P
    turns: bool = True  # warpgroups take turns
    overlap: bool = True  # of the products of two tiles: the loop is pipelined
    cluster: int = 1  # blocks that load K and V together
    fitted: bool = True  # UNHIDDEN is fitted to it

    @property
    def backward(self):
        return self.package == "flash_attn3_jax_lib"

    @property
    def name(self):
        parts = ["backward" if self.backward else "forward", f"D{self.problem.head_dim}",
                 "causal" if self.problem.causal else "full", f"{self.rows}×{self.keys}"]
        parts += ["without turns"] * (not self.turns and not self.backward)
        parts += ["not pipelined"] * (not self.overlap)
        return " ".join(parts)

    @property
    def pattern(self):
        """Text that the kernel's name contains: the tile, then causal, local, softcap, lengths, pages, …"""
        def flags(*values):
            return ", ".join("true" if value else "false" for value in values)
        head_dim, causal = self.problem.head_dim, self.problem.causal
        tile = ", ".join(f"cute::C<{extent}>" for extent in (self.rows, self.keys, head_dim))
        types = "cutlass::bfloat16_t, float, cutlass::arch::Sm90"
        if self.backward:
            return (f"cute::tuple<{tile}>, {types}, {flags(causal, 0, 0, 0, 0, 1, 0)}, {flags(not causal)}, "
                    "2, 1, 2, 1, false>, flash::CollectiveEpilogueBwd<")
        one = "cute::tuple<cute::C<1>, cute::C<1>, cute::C<1>>"
        return (f"CollectiveMainloopFwdSm90<2, {one}, cute::tuple<{tile}>, {head_dim}, {types}, "
                f"{flags(causal, 0, 0, 0, 0, 0, 0, self.values_from_registers, 1, 0, 0, 0)}>")


def attention(head_dim, tokens, causal, heads=0):
    """As in the figures: 16k tokens in all, a hidden size of 2048."""
    return Attention(tokens, tokens, head_dim, max(1, 16384 // tokens), heads or 2048 // head_dim, causal=causal)


ABLATION = Attention(8448, 8448, 128, 4, 16)
PUBLISHED = [
    Published(128, 176, attention(128, 16384, False), 648, "paper", cluster=2),
    Published(128, 128, attention(128, 8192, True), 660, "pull request 1893"),
    Published(192, 192, attention(64, 16384, False), 497, "paper", values_from_registers=False),
    Published(192, 128, attention(64, 16384, True), 473, "paper"),
    Published(128, 80, attention(256, 16384, False), 756, "paper", cluster=2),
    Published(128, 80, attention(256, 16384, True), 642, "paper"),
    Published(128, 176, ABLATION, 661, "paper, table 2"),
    Published(128, 176, ABLATION, 582, "paper, table 2", overlap=False),
    Published(128, 176, ABLATION, 570, "paper, table 2", turns=False),
    Published(64, 128, attention(128, 8192, True), 575, "pull request 1893", "flash_attn3_jax_lib", turns=False,
              fitted=False),
    Published(80, 128, attention(128, 16384, False), 561, "paper", "flash_attn3_jax_lib", turns=False, fitted=False),
]


def library(package):
    """The shared library of a package in the cache folder, fetched by pip; None where that fails."""
    target = CACHE / PACKAGES[package]
    if not list(target.glob(f"{package}/*.so")) and not sass.pip_install(target, "--only-binary", ":all:",
                                                                         PACKAGES[package]):
        return None
    return next(target.glob(f"{package}/*.so"), None)


def names_in(tools, file):
    """Demangled -> mangled name of every kernel of a library, with templates closed by >>."""
    mangled = [match[1] for line in sass.lines_of(tools, file, "-res-usage")
               if (match := re.match(r"\s*Function (\S+):$", line))]
    return {name.replace(" >", ">").replace(" >", ">"): key for name, key in zip(sass.demangle(mangled), mangled)}


def cycles_of(tools, point, names, file):
    """The cycles of the kernel of a published point, or None where the library has no such kernel."""
    mangled = next((key for name, key in names.items() if point.pattern in name), None)
    if mangled is None:
        return None
    listing = sass.lines_of(tools, file, "-sass", "-fun", mangled)
    instructions = next(sass.parse_kernels(listing)).instructions
    groups = 3 if point.rows == 192 else 2
    # Backward: five products, of whose right sides Q and dO are loaded, K stays.
    cycles = kernel_cycles.count(instructions, 128 * (groups + 1), 128, turns=point.turns and not point.backward,
                                 persistent=True, fill=(.4 if point.backward else 1.) / point.cluster)
    if not point.overlap:
        cycles.loop = replace(cycles.loop, phases=2)
    return cycles


def predicted(cycles, point):
    over = "queries" if point.backward else "keys"
    block, tile = (point.keys, point.rows) if point.backward else (point.rows, point.keys)
    time = kernel_cycles.attention_time(cycles, point.problem, block, tile, over)
    return (2.5 if point.backward else 1) * point.problem.flop / time / 1e12


def calibrate(tools):
    """Yields every published point with its cycles and the prediction, or None, None where it cannot be had."""
    libraries = {package: library(package) for package in PACKAGES}
    names = {package: names_in(tools, file) if file else {} for package, file in libraries.items()}
    for point in PUBLISHED:
        cycles = None
        if libraries[point.package]:
            cycles = cycles_of(tools, point, names[point.package], libraries[point.package])
        yield point, cycles, predicted(cycles, point) if cycles else None


def fit(points):
    """The value of UNHIDDEN with the least sum of squared relative residuals, to the hundredth."""
    def residuals(unhidden):
        return sum((predicted(replace(cycles, unhidden=unhidden), point) / point.tflops - 1) ** 2
                   for point, cycles, _ in points if cycles and point.fitted)
    return min((percent / 100 for percent in range(40, 101)), key=residuals)


def print_table(tools):
    print("FlashAttention-3 by the same model (TFLOP/s; H100 SXM):")
    print(f"{'kernel':44}  instr  HGMMA  MUFU   ALU   FMA  shared  beside  {'cycles of an iteration':>30}  predicted"
          "  published  residual")
    points = list(calibrate(tools))
    for point, cycles, value in points:
        if cycles is None:
            print(f"{point.name:44}  not fetched from PyPI ({PACKAGES[point.package]})")
            continue
        loop = cycles.loop
        print(f"{point.name:44}  {loop.instructions:5}  {loop.hgmma:5.0f}  {loop.mufu:4}  {loop.alu:4}  {loop.fma:4}"
              f"  {cycles.shared:6.0f}  {100 * loop.beside_products:4.0f} %  {cycles.formula():>30}  {value:9.0f}"
              f"  {point.tflops:9.0f}  {100 * (value / point.tflops - 1):+6.0f} %  {point.source}")
    if any(cycles for point, cycles, _ in points):
        print(f"-- UNHIDDEN is {kernel_cycles.UNHIDDEN}; fitted to these points it is {fit(points)}")
