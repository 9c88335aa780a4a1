"""The stages of `gpu_run --first`: what a machine rented by the minute tells in its first nine minutes, and the ten
lines that it ends with."""

import json
from dataclasses import dataclass

from gpu_stages import MODEL, ROOT, Failed, Stage, find_tool, has, measured_rows, probe, stage_info, sweep

STAGES = (
    Stage("info", 25, 5),
    Stage("attention", 190, 20),
    Stage("decode", 50, 10),
    Stage("operators", 50, 10),
    Stage("model", 70, 20),
    Stage("verify", 60, 10),
    Stage("sanitizer", 45, 20),
)
TOTAL_S = sum(stage.share_s for stage in STAGES)
LIMIT_S = 30  # of a step of a variant: a kernel that hangs costs a row
PEER_LIMIT_S = 90  # of an answer of a peer, which may be compiling
MOST_FILES, MOST_BYTES = 8, 16 << 20
LOG_BYTES = 4 << 20
PREDICTIONS = ROOT / "results" / "gpu_predictions" / "h100.h5"
# The device's main memory, by the word in its name: GB/s.
MEMORY_GB_S = {"H100": 3350, "H200": 4800, "A100": 2039}


def variants_of(run, *names):
    """The variants of attention on the backend whose names begin so, of both passes."""
    if not (run.out / "info.json").is_file():
        stage_info(run)
    info = json.loads((run.out / "info.json").read_text())
    return [variant for op in info["operators"] if op["name"] == "attention" for variant in op["variants"]
            if variant["backend"] == run.options.backend and variant["name"].startswith(names)]  # fmt: skip


def listed(names):
    return ",".join(dict.fromkeys(names))


def first_sweep(run, experiment, name, *arguments, file="first.toml"):
    limits = ("--limit-s", LIMIT_S, "--peer-timeout-s", PEER_LIMIT_S)
    return sweep(run, experiment, *limits, *arguments, name=name, file=file)


def stage_attention(run):
    tiles = listed(tile for variant in variants_of(run, "flash_wgmma", "flash_mma") for tile in variant["tiles"])
    chosen = ("--tile", tiles) if tiles else ("--variant", "auto")
    return first_sweep(run, "cuda_attention", "cuda_attention", *chosen)


def stage_decode(run):
    names = listed(variant["name"] for variant in variants_of(run, "decode"))
    return first_sweep(run, "cuda_operators", "cuda_operators", "--variant", names, file="decode.toml")


def stage_operators(run):
    return first_sweep(run, "cuda_operators", "cuda_operators")


def stage_verify(run):
    """Odd shapes of attention, and every other operator once: rows compare with float64."""
    said, failed = [], []
    for experiment, file in (("cuda_verify", "first.toml"), ("cuda_sanitizer", "sweep.toml")):
        try:
            said.append(first_sweep(run, experiment, "cuda_verify", file=file))
        except Failed as error:
            failed.append(str(error))
    if failed:
        raise Failed("; ".join(failed))
    return "; ".join(said)


def stage_sanitizer(run):
    """Every operator once under memcheck, as far as time is left."""
    tool = find_tool("compute-sanitizer")
    prefix = [tool, "--tool", "memcheck", "--target-processes", "all", "--error-exitcode", "9"]
    probe(run, prefix)
    return sweep(run, "cuda_sanitizer", name="cuda_sanitizer_memcheck", prefix=prefix)


def stage_model(run):
    """Prefill and decoding of a random model of 0.97 G parameters, with a graph a token and launch by launch."""
    model, prompt, count = run.work / "model", 2048, 128
    if run.options.small:
        model, prompt, count = ROOT / "tests" / "cases" / "llama_tiny", 8, 4
    else:
        model.mkdir(exist_ok=True)
        (model / "config.json").write_text(json.dumps(MODEL))
    tokens = ",".join(str(1 + i % 200) for i in range(prompt))
    command = [run.program, "generate", "--model", model, "--dtype", "bf16", *run.on_device(), "--tokens", tokens,
               "--chunk", 1024, "--max-new-tokens", count, "--warm-up", 1, "--json"]  # fmt: skip
    measured = run.state.setdefault("model", {})
    for name, option in (("graph", ()), ("launches", ("--no-graph",))):
        if name not in measured:
            text = run.run([*command, *option], "katt generate")
            said = json.loads(next(line for line in text.splitlines() if line.startswith("{")))
            kept = ("prefill_s", "decode_s", "prefill_tokens_s", "decode_tokens_s", "decode_submission", "peak_bytes")
            measured[name] = {key: said[key] for key in kept}
            run.save()
    return "; ".join(
        f"{name}: prefill {one['prefill_tokens_s']:.0f} tokens/s, decode {one['decode_tokens_s']:.0f} tokens/s, "
        f"submitted as {one['decode_submission']}" for name, one in measured.items()
    )  # fmt: skip


ALL = {stage.name: stage_info if stage.name == "info" else globals()[f"stage_{stage.name}"] for stage in STAGES}


@dataclass(frozen=True)
class Line:
    """A line of the table: the rows it is about, and what others have published, in the same unit."""

    title: str
    column: str  # of the value: tflops, gbytes_s
    where: dict
    published: str = ""


def attention(**axes):
    return {"op": "attention", "dtype": "bf16", "pass": "forward", "head_dim": 128, "causal": 1} | axes


LINES = (
    Line("forward D128 causal 8k", "tflops", attention(seq_q=8192), "FA3 660, cuDNN 566 [1]"),
    Line("forward D128 causal 16k", "tflops", attention(seq_q=16384)),
    Line("forward D128 full 4k", "tflops", attention(seq_q=4096, causal=0), "FA3 628 [2]"),
    Line("forward D64 causal 8k", "tflops", attention(seq_q=8192, head_dim=64), "FA3 473 [3]"),
    Line("forward D256 causal 8k", "tflops", attention(seq_q=8192, head_dim=256), "FA3 642 [3]"),
    Line("backward D128 causal 8k", "tflops", attention(**{"pass": "backward"}, seq_q=8192),
         "FA3 575, in a fixed order 474, cuDNN 470 [1]"),
    Line("backward D128 causal 16k", "tflops", attention(**{"pass": "backward"}, seq_q=16384)),
    Line("decode D128 group 4, 32k keys", "gbytes_s",
         attention(seq_q=1, seq_kv=32768, heads=32, kv_heads=8, causal=0), "2100 to 2300 [4]"),
    Line("rmsnorm backward", "gbytes_s", {"op": "rmsnorm", "dtype": "bf16", "pass": "backward", "residual": 0},
         "cuDNN 3800 of 4800 (H200)"),
)  # fmt: skip
SOURCES = ("[1] github.com/Dao-AILab/flash-attention, pull request 1893; [2] github.com/meta-pytorch/tritonbench, pull",
           "request 1254; [3] FlashAttention-3, arXiv:2407.08608, figures 5 and 6, f16, 16k; [4] FlashInfer, FlashMLA")


def best(rows, line, of):
    """The row of the largest value among the measured ones of a line whose variant `of` accepts; None without one."""
    fitting = [row for row in rows if row["status"] == "ok" and of(row["variant"])
               and all(row.get(axis) == value for axis, value in line.where.items())]  # fmt: skip
    return max(fitting, key=lambda row: row[line.column], default=None)


def is_peer(variant):
    return variant.startswith("torch_")


def predicted_rows():
    """The rows of the predictions, their values those of the predicted time."""
    rows = measured_rows([PREDICTIONS])
    for row in rows:
        row["status"] = "ok"
        row["tflops"] = row["flops"] / row["predicted_time_s"] * 1e-12
        row["gbytes_s"] = row["bytes"] / row["predicted_time_s"] * 1e-9
    return rows


def number(row, column):
    if row is None:
        return "-"
    tile = f" {row['tile_q']}x{row['tile_kv']}" if row["tile_q"] else ""
    return f"{row[column]:.0f} {row['variant']}{tile}"


def table(run):
    """The ten lines, and what they are about."""
    files = [run.out / f"cuda_{name}.h5" for name in ("attention", "operators")]
    rows, predictions = (measured_rows(files), predicted_rows()) if has("h5py") else ([], [])
    cells = [("what, in bf16", "measured", "best of PyTorch", "predicted", "published")]
    for line in LINES:
        unit = {"tflops": "TFLOP/s", "gbytes_s": "GB/s"}[line.column]
        ours = best(rows, line, lambda name: not is_peer(name))
        peer, expected = best(rows, line, is_peer), best(predictions, line, lambda name: True)
        cells.append((f"{line.title}, {unit}", number(ours, line.column), number(peer, line.column),
                      number(expected, line.column), line.published or "-"))  # fmt: skip
    speeds = [f"{one['decode_tokens_s']:.0f} by {one['decode_submission'].split(':')[0]}"
              for one in run.state.get("model", {}).values()]  # fmt: skip
    bound = token_bound(run)
    cells.append(("LLaMA 0.97 G decode, tokens/s", ", ".join(speeds) or "-", "-",
                  f"at most {bound:.0f}" if bound else "-", "-"))  # fmt: skip
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip() for row in cells] + list(SOURCES)


def token_bound(run):
    """Tokens a second if a token only read every weight once at the memory's rate; 0 for an unknown device."""
    file = run.out / "info.json"
    devices = json.loads(file.read_text()).get("devices", []) if file.is_file() else []
    name = devices[run.options.device or 0]["name"] if devices else ""
    rate = next((rate for word, rate in MEMORY_GB_S.items() if word in name), 0)
    width, inner = MODEL["hidden_size"], MODEL["intermediate_size"]
    heads = (2 * MODEL["num_attention_heads"] + 2 * MODEL["num_key_value_heads"]) * MODEL["head_dim"]
    weights = MODEL["num_hidden_layers"] * width * (heads + 3 * inner)
    return rate * 1e9 / (2 * weights)


def failed_rows(run):
    """A line for each failed row of the files."""
    files = [run.out / f"cuda_{name}.h5" for name in ("attention", "operators", "verify")]
    rows = [row for row in (measured_rows(files) if has("h5py") else []) if row["status"] in ("failed", "suspect")]
    return [" ".join(str(row[name]) for name in ("op", "pass", "dtype", "variant", "seq_q", "seq_kv", "head_dim"))
            + f" {row['tile_q']}x{row['tile_kv']}: {row['reason']}" for row in rows]  # fmt: skip


def finish(run):
    """Prints the table, and keeps it with the failures in first.txt; checks the limits of what is brought home."""
    lines = table(run)
    stages = [f"{name:10s} {about['status']}: {about['said']}" for name, about in run.state["first"].items()]
    failures = failed_rows(run)
    text = [*lines, "", *stages, "", f"{len(failures)} failed rows", *failures]
    (run.out / "first.txt").write_text("\n".join(text) + "\n")
    print("\n".join(lines), flush=True)
    shorten(run.out / "gpu_run.log")
    files = [path for path in run.out.rglob("*") if path.is_file()]
    large = [path.name for path in files if path.stat().st_size > MOST_BYTES]
    if len(files) > MOST_FILES or large:
        print(f"-- {run.out} holds {len(files)} files, expected at most {MOST_FILES}, of at most {MOST_BYTES >> 20} MiB"
              + (f"; larger: {', '.join(large)}" if large else ""))  # fmt: skip
    print(f"-- to send: {run.out}, {len(files)} files, {sum(path.stat().st_size for path in files) >> 10} KiB")


def shorten(path):
    """Leaves the beginning and the end of a long log."""
    text = path.read_bytes()
    if len(text) > LOG_BYTES:
        half = LOG_BYTES // 2
        path.write_bytes(text[:half] + b"\n...\n" + text[-half:])
