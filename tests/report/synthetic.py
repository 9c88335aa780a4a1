"""Result files made up for the tests: schema 1 to the letter, numbers as a two-core machine gives them."""

import json
import math
from dataclasses import dataclass, field

import h5py
import numpy as np

STRINGS = {"op": 32, "pass": 16, "variant": 32, "backend": 16, "dtype": 8, "status": 16, "reason": 256, "ceiling": 32,
           "commit": 48, "run": 16, "point": 96, "label": 64, "layout": 8, "tile": 16, "engine": 16, "code": 16,
           "paired_to": 96, "score_rule": 16}
INTEGERS = {"batch", "heads", "kv_heads", "seq_q", "seq_kv", "head_dim", "causal", "tile_q", "tile_kv", "threads",
            "samples", "workspace_bytes", "total_bytes", "inner", "cold", "window_left", "window_right", "bias",
            "kv_len_min", "block_size"}
COLUMNS = [
    "op", "pass", "variant", "backend", "dtype", "batch", "heads", "kv_heads", "seq_q", "seq_kv", "head_dim", "causal",
    "tile_q", "tile_kv", "threads", "status", "reason", "samples", "time_s", "time_lo_s", "time_hi_s", "flops", "bytes",
    "tflops", "gbytes_s", "ceiling", "ceiling_fraction", "speedup", "workspace_bytes", "total_bytes", "max_abs_err",
    "mean_abs_err", "commit", "run", "point", "label", "speedup_lo", "speedup_hi", "tile", "inner", "cold",
    "engine", "window_left", "window_right", "softcap", "bias", "kv_len_min", "block_size", "block_density", "layout",
]  # fmt: skip

BYTES = {"f32": 4, "f16": 2, "bf16": 2}
PEAK = {"f32": ("fma_f32", 470e9), "f16": ("fma_f32", 470e9), "bf16": ("amx_bf16", 7.0e12)}
ERROR = {"f32": 2.4e-7, "f16": 2.2e-4, "bf16": 1.8e-3}
CEILINGS = [
    ("fma_f32", 470e9, "FLOP/s", 0), ("amx_bf16", 7.0e12, "FLOP/s", 0), ("read_l1", 610e9, "B/s", 32 << 10),
    ("read_l2", 240e9, "B/s", 1 << 20), ("read_dram", 44e9, "B/s", 1 << 28), ("copy_l2", 180e9, "B/s", 1 << 20),
    ("copy_dram", 40e9, "B/s", 1 << 28),
]  # fmt: skip
SWEEP = 'op = "attention"\nseq = "512:16384:x2"\ndtype = ["f32", "bf16", "f16"]\nvariant = ["flash", "naive"]\n'


@dataclass
class File:
    """The content of one result file."""

    rows: list[dict] = field(default_factory=list)
    samples: dict = field(default_factory=dict)
    runs: dict = field(default_factory=dict)
    ceilings: dict = field(default_factory=dict)
    profiles: dict = field(default_factory=dict)
    code: dict = field(default_factory=dict)
    cycles: dict = field(default_factory=dict)


@dataclass
class Machine:
    """Noise: every round shares one drift (a neighbour), every sample has its own, spikes hit single samples."""

    random: np.random.Generator
    own: float = 0.02
    shared: float = 0.15
    spikes: float = 0.03

    def times(self, medians: list[float], rounds: int) -> list[np.ndarray]:
        """Interleaved samples of several variants."""
        drift = np.zeros(rounds)
        for index in range(1, rounds):
            drift[index] = 0.8 * drift[index - 1] + self.random.normal(0.0, self.shared * 0.6)
        common = np.exp(np.abs(drift)) * math.exp(abs(self.random.normal(0.0, self.shared)))
        result = []
        for median in medians:
            own = np.exp(self.random.normal(0.0, self.own, rounds))
            spike = np.where(self.random.random(rounds) < self.spikes, self.random.uniform(1.3, 3.0, rounds), 1.0)
            result.append(median * common * own * spike)
        return result


def row(**values) -> dict:
    """A row with the schema's default in every column not given."""
    empty = {name: "" if name in STRINGS else 0 if name in INTEGERS else math.nan for name in COLUMNS}
    empty |= {"op": "attention", "pass": "forward", "backend": "openmp", "batch": 1, "heads": 8, "kv_heads": 8,
              "head_dim": 64, "threads": 2, "status": "ok", "flops": 0.0, "bytes": 0.0, "window_left": -1,
              "window_right": -1, "softcap": 0.0, "block_density": 1.0, "layout": "bhsd", "run": "run-0001",
              "commit": "9f1c2ab"}  # fmt: skip
    return empty | values


def run_attributes(**changes) -> dict:
    """The provenance of a run."""
    return {
        "command": "katt sweep experiments/attention_seqlen/sweep.toml -o results/attention_seqlen.h5",
        "started_at": "2025-03-04T09:12:31Z", "finished_at": "2025-03-04T09:19:02Z", "status": "done",
        "peers": "{}",
        "katt_version": "0.1.0", "commit": "9f1c2ab7d0e4c1", "dirty": 0, "build_type": "Release",
        "compiler": "GNU 12.2.0", "compile_flags": "-O3 -march=native -fopenmp", "kokkos_version": "4.5.1",
        "kokkos_config": "OpenMP;Serial;AVX512", "kokkos_kernels_version": "4.5.1", "blas": "OpenBLAS 0.3.21",
        "hdf5_version": "1.10.8", "backend": "openmp", "device": "Intel Xeon (Sapphire Rapids)", "cores": 2,
        "isa": "avx512 amx", "l1d_bytes": 48 << 10, "l2_bytes": 2 << 20, "l3_bytes": 105 << 20,
        "memory_bytes": 16 << 30, "os": "Debian GNU/Linux 12", "load_average": 0.4,
        "environment": json.dumps({"OMP_NUM_THREADS": "2", "OMP_PROC_BIND": "spread"}), "seed": 1,
        "settings": json.dumps({"rounds_min": 10, "time_limit_s": 20, "warm_up": 2}), "sweep": SWEEP,
        "title": "Attention over sequence length", **changes,
    }  # fmt: skip


def order_rank(count: int) -> int:
    """The k whose k-th smallest and largest enclose the median with at least 95 %; 1 if none does."""
    below = np.cumsum([math.comb(count, k) / 2**count for k in range(count)])
    return max(int(np.sum(below <= 0.025)), 1)


def tile_text(about: dict) -> str:
    """The requested tile: "auto" for a variant without tiles."""
    return f"{about['tile_q']}x{about['tile_kv']}" if about.get("tile_q") else "auto"


def case_rows(case: dict, variants: dict[str, dict], machine: Machine, rounds: int, file: File) -> None:
    """Appends the rows of one case: `variants` maps a name to median time, memory, error and tile.

    Speedups are paired with the variant "naive", their intervals taken from order statistics as katt does.
    """
    run = case.get("run", "run-0001")
    times = dict(zip(variants, machine.times([v["time"] for v in variants.values()], rounds), strict=True))
    rank = order_rank(rounds)
    for name, about in variants.items():
        measured = np.sort(times[name])
        values = {
            "variant": about.get("variant", name), "samples": rounds, "time_s": float(np.median(measured)),
            "time_lo_s": float(measured[rank - 1]), "time_hi_s": float(measured[-rank]),
            "workspace_bytes": about["workspace"], "total_bytes": about["total"],
            "max_abs_err": about["error"], "mean_abs_err": about["error"] / 14, "tile_q": about.get("tile_q", 0),
            "tile_kv": about.get("tile_kv", 0), "inner": 1, "tile": tile_text(about), "run": run,
            "point": f"p{len(file.rows):04d}",
        }  # fmt: skip
        full = row(**case | values)
        full["tflops"] = full["flops"] / full["time_s"] / 1e12
        full["gbytes_s"] = full["bytes"] / full["time_s"] / 1e9
        full["ceiling"], peak = PEAK[full["dtype"]]
        full["ceiling_fraction"] = full["tflops"] * 1e12 / peak
        if "naive" in times:
            ratios = np.sort(times["naive"] / times[name])
            full |= {"speedup": float(np.median(ratios)), "speedup_lo": float(ratios[rank - 1]),
                     "speedup_hi": float(ratios[-rank])}  # fmt: skip
        file.rows.append(full)
        file.samples[run, full["point"]] = times[name]


def attention_case(seq: int, dtype: str, **axes) -> dict:
    """The axes and work of one self-attention case."""
    case = {"batch": 1, "heads": 8, "kv_heads": 8, "head_dim": 64, "causal": 0, **axes}
    work = 4.0 * case["batch"] * case["heads"] * seq * seq * case["head_dim"] * (0.5 if case["causal"] else 1.0)
    tokens = case["batch"] * seq * case["head_dim"] * BYTES[dtype]
    return {**case, "seq_q": seq, "seq_kv": seq, "dtype": dtype, "flops": work,
            "bytes": float(2 * tokens * (case["heads"] + case["kv_heads"]))}  # fmt: skip


def naive_variant(case: dict) -> dict:
    """Time, memory and error of a naive attention: stored scores, GEMMs at a share of the peak."""
    scores = case["batch"] * case["heads"] * case["seq_q"] ** 2 * 4
    speed = {"f32": 92e9, "f16": 60e9, "bf16": 130e9}[case["dtype"]] * (0.55 if case["causal"] else 1.0)
    time = case["flops"] / speed * (1.0 + 0.08 * math.log2(case["seq_q"] / 512 + 1)) + 4e-5
    return {"time": time, "workspace": scores, "total": int(case["bytes"]) + scores, "error": ERROR[case["dtype"]]}


def flash_variant(case: dict, tile_q: int = 64, tile_kv: int = 128) -> dict:
    """Time, memory and error of a flash attention whose workspace grows with the rows."""
    workspace = case["batch"] * case["heads"] * case["seq_q"] * 8 + 2 * tile_q * tile_kv * 4
    best = 1.0 - 0.06 * abs(math.log2(tile_q / 64)) - 0.05 * abs(math.log2(tile_kv / 128))
    speed = {"f32": 285e9, "f16": 190e9, "bf16": 610e9}[case["dtype"]] * best
    time = case["flops"] / speed * (1.0 + 300.0 / case["seq_q"]) + 3e-5
    error = ERROR[case["dtype"]] * (0.8 + 40.0 / case["seq_q"])
    return {"time": time, "workspace": workspace, "total": int(case["bytes"]) + workspace, "error": error,
            "tile_q": tile_q, "tile_kv": tile_kv}  # fmt: skip


def attention_seqlen(seed: int = 0, sizes=(512, 1024, 2048, 4096, 8192, 16384), dtypes=("f32", "bf16", "f16"),
                     rounds: int = 15, naive_limit: int = 8192, slow: dict | None = None, **axes) -> File:  # fmt: skip
    """A sweep over N with naive refused beyond `naive_limit`; `slow` maps (N, dtype) to a factor on flash."""
    machine = Machine(np.random.default_rng(seed))
    file = File(runs={"run-0001": run_attributes()}, ceilings={"run-0001": list(CEILINGS)})
    for dtype in dtypes:
        for seq in sizes:
            case = attention_case(seq, dtype, **axes)
            flash = flash_variant(case)
            flash["time"] *= (slow or {}).get((seq, dtype), 1.0)
            if seq <= naive_limit:
                case_rows(case, {"flash": flash, "naive": naive_variant(case)}, machine, rounds, file)
                continue
            case_rows(case, {"flash": flash}, machine, rounds, file)
            file.rows.append(row(**case, variant="naive", status="skipped", point=f"p{len(file.rows):04d}",
                                 reason="needs 17.2 GB for the scores, the machine has 15.6 GB free"))  # fmt: skip
    return file


def attention_tiling(seed: int = 0) -> File:
    """A tile grid at one N, with tiles refused and one failed."""
    machine = Machine(np.random.default_rng(seed))
    file = File(runs={"run-0001": run_attributes(title="Tiles of flash attention")}, ceilings={"run-0001": CEILINGS})
    for dtype in ("f32", "bf16"):
        case = attention_case(2048, dtype)
        variants = {"naive": naive_variant(case)}
        for tile_q in (16, 32, 64, 128):
            for tile_kv in (32, 64, 128, 256):
                if tile_q * tile_kv <= 128 * 128:
                    variants[f"{tile_q}x{tile_kv}"] = {"variant": "flash", **flash_variant(case, tile_q, tile_kv)}
                    continue
                file.rows.append(row(**case, variant="flash", tile_q=tile_q, tile_kv=tile_kv,
                                     tile=f"{tile_q}x{tile_kv}", point=f"p{len(file.rows):04d}", status="skipped",
                                     reason="tile needs 160 KiB of scratch, a core's L2 holds 128 KiB"))  # fmt: skip
        case_rows(case, variants, machine, 12, file)
    failed = next(r for r in file.rows if r["tile_q"] == 16 and r["tile_kv"] == 256)
    failed |= {"status": "failed", "time_s": math.nan, "tflops": math.nan, "speedup": math.nan,
               "reason": "verification: max error 3.1e-02 at (0, 3, 17, 5) exceeds 4.8e-07"}  # fmt: skip
    return file


MODELS = {
    "LLaMA 3 8B": (32, 8, 128, 1, {}), "Qwen 2.5 7B": (28, 4, 128, 1, {}),
    "Mistral 7B": (32, 8, 128, 1, {"window_left": 4095}), "Gemma 2 9B": (16, 8, 256, 1, {"softcap": 50.0}),
    "GPT-2": (12, 12, 64, 1, {}), "MiniLM L6": (12, 12, 32, 0, {}),
}  # fmt: skip


def attention_real_models(seed: int = 0) -> File:
    """One case a published model."""
    machine = Machine(np.random.default_rng(seed))
    file = File(runs={"run-0001": run_attributes(title="Head shapes of published models")},
                ceilings={"run-0001": CEILINGS})  # fmt: skip
    for label, (heads, kv_heads, head_dim, causal, more) in MODELS.items():
        for dtype in ("f32", "bf16"):
            seq = 512 if label == "MiniLM L6" else 2048
            case = attention_case(seq, dtype, heads=heads, kv_heads=kv_heads, head_dim=head_dim, causal=causal)
            case |= {"label": label, **more}
            case_rows(case, {"naive": naive_variant(case), "flash": flash_variant(case)}, machine, 12, file)
    return file


def rmsnorm(seed: int = 0) -> File:
    """A later operator: other axes (tokens, hidden), bound by memory, no FLOPs counted."""
    machine = Machine(np.random.default_rng(seed))
    file = File(runs={"run-0001": run_attributes(title="RMSNorm")}, ceilings={"run-0001": CEILINGS})
    for dtype in ("f32", "bf16"):
        for tokens in (256, 1024, 4096, 16384):
            for hidden in (2048, 4096):
                size = tokens * hidden * BYTES[dtype]
                case = {"op": "rmsnorm", "dtype": dtype, "tokens": tokens, "hidden": hidden, "heads": 0, "kv_heads": 0,
                        "head_dim": 0, "batch": 0, "bytes": 2.0 * size}  # fmt: skip
                variants = {
                    "naive": {"time": 4 * size / 38e9, "workspace": size, "total": 3 * size, "error": 3e-7},
                    "fused": {"time": 2 * size / 37e9, "workspace": 0, "total": 2 * size, "error": 2e-7},
                }
                case_rows(case, variants, machine, 12, file)
    for line in file.rows:
        line |= {"ceiling": "copy_dram", "ceiling_fraction": line["gbytes_s"] / 40.0}
    return file


def measured_by_space(file: File, device: float = 0.0) -> File:
    """The rows with memory by space, a share `device` of it on the device, and NaN where nothing was measured."""
    for line in file.rows:
        known = line["total_bytes"] > 0
        total = float(line["total_bytes"]) if known else math.nan
        line |= {"workspace_bytes": float(line["workspace_bytes"]) if known else math.nan, "total_bytes": total,
                 "host_bytes": total * (1 - device), "device_bytes": total * device}  # fmt: skip
    return file


BLOCKS = {"SmolLM2 135M": (576, 1536, 9, 3, 64, 7e-3), "LLaMA 3.2 1B": (2048, 8192, 32, 8, 64, 0.12)}


def llama_block(seed: int = 0) -> File:
    """A whole block by model and length, with the share of each operator and its phases."""
    machine = Machine(np.random.default_rng(seed))
    file = File(runs={"run-0001": run_attributes(title="A LLaMA block")}, ceilings={"run-0001": CEILINGS})
    for label, (hidden, intermediate, heads, kv_heads, head_dim, seconds) in BLOCKS.items():
        for seq in (512, 2048):
            for dtype in ("f32", "bf16"):
                case = {"op": "llama_block", "label": label, "dtype": dtype, "heads": heads, "kv_heads": kv_heads,
                        "head_dim": head_dim, "seq_q": seq, "hidden": hidden, "intermediate": intermediate,
                        "flops": seconds * 2e11}  # fmt: skip
                parts = {"rmsnorm": 0.04, "linear": 0.5, "rope": 0.06, "attention": 0.3 * seq / 512, "swiglu": 0.05}
                less = {"rmsnorm": 0.5, "linear": 0.9, "rope": 0.3, "attention": 0.3, "swiglu": 0.4}
                scale = seconds * seq / 512 * (0.5 if dtype == "bf16" else 1.0)
                naive = {f"katt::{name}": share * scale for name, share in parts.items()}
                fused = {name: time * less[name.removeprefix("katt::")] for name, time in naive.items()}
                first = len(file.rows)
                case_rows(case, {
                    name: {"time": sum(times.values()) * 1.02, "workspace": seq * size, "total": seq * size * 2,
                           "error": ERROR[dtype]}
                    for name, times, size in (("naive", naive, 900000), ("fused", fused, 200000))
                }, machine, 12, file)  # fmt: skip
                for line, times in zip(file.rows[first:], (naive, fused), strict=True):
                    file.profiles["run-0001", line["point"]] = profile(times)
    return file


def profile(times: dict[str, float]) -> tuple[int, float, list]:
    """Runs, their time and the rows of a profile whose parts have two phases each and leave 4 % to the rest."""
    rows = []
    for name, time in times.items():
        rows += [(name, 0, 1.0, time), (f"{name}::first", 1, 1.0, 0.7 * time), (f"{name}::second", 1, 2.0, 0.2 * time)]
    return 3, sum(times.values()) / 0.96, rows


def write(path, file: File, **attributes) -> str:
    """Writes the file; extra columns of the rows become columns of the table: reals where a row holds one, else integers.

    So does a count of bytes: `measured_by_space` makes the file as this version of katt writes it, the rest is the
    form of earlier ones.
    """
    names = [*COLUMNS, *dict.fromkeys(name for line in file.rows for name in line if name not in COLUMNS)]

    def real(name: str) -> bool:
        known = name in COLUMNS and name not in INTEGERS
        return known or any(isinstance(line.get(name), float) for line in file.rows)

    kinds = [f"S{STRINGS[n]}" if n in STRINGS else "<f8" if real(n) else "<i8" for n in names]
    table = np.zeros(len(file.rows), np.dtype(list(zip(names, kinds, strict=True))))
    for index, line in enumerate(file.rows):
        for name in names:
            value = line.get(name, 0)
            table[index][name] = value.encode() if isinstance(value, str) else value
    with h5py.File(path, "w") as out:
        out.attrs["schema"] = np.int64(1)
        out.attrs["generator"] = np.bytes_(b"katt")
        out.attrs.update(attributes)
        out["points"] = table
        for (run, point), seconds in file.samples.items():
            out[f"samples/{run}/{point}"] = seconds
        for (run, point), cycles in file.cycles.items():
            out[f"cycles/{run}/{point}"] = cycles
        for (run, point), (runs, seconds, rows) in file.profiles.items():
            kind = np.dtype([("name", "S96"), ("depth", "<i8"), ("calls", "<f8"), ("time_s", "<f8")])
            data = out.create_dataset(f"profile/{run}/{point}", data=np.array(rows, kind))
            data.attrs.update(runs=np.int64(runs), time_s=seconds)
        for run, about in file.runs.items():
            out.create_group(f"runs/{run}").attrs.update(
                {name: np.bytes_(value.encode()) if isinstance(value, str) else value for name, value in about.items()}
            )
        for run, lines in file.ceilings.items():
            out[f"ceilings/{run}"] = np.array(
                [(n.encode(), value, unit.encode(), *(threads or [2]), size)
                 for n, value, unit, size, *threads in lines],
                np.dtype([("name", "S32"), ("value", "<f8"), ("unit", "S8"), ("threads", "<i8"), ("bytes", "<i8")]),
            )
        for name, files in file.code.items():
            out[f"code/{name}"] = np.array([(path.encode(), tokens.encode()) for path, tokens in files.items()],
                                           np.dtype([("file", "S96"), ("tokens", "S16")]))
    return str(path)
