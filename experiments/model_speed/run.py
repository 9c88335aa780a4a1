#!/usr/bin/env python3
"""A training step, prefill and decoding of whole models in Katt, in PyTorch and in transformers, in turns; what they compute
must agree first."""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import matplotlib.pyplot as plt
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from model_runs import KATT, ROOT, parser_of, save  # noqa: E402
from random_llama import MODELS, write_checkpoint  # noqa: E402

TEXT = "/usr/share/common-licenses/GPL-3"
PYTHON = ROOT / "build" / "peers" / "bin" / "python"
RATE = "1e-3"
# model, rows, tokens of a row, rounds, steps of a round after one to warm up
TRAINING = [("10 M", 4, 256, 8, 4), ("10 M", 8, 1024, 4, 2), ("100 M", 4, 256, 4, 2), ("100 M", 8, 1024, 2, 1)]
PEERS = {"f32": {"PyTorch": "f32"}, "bf16": {"PyTorch, autocast": "f32", "PyTorch, bf16 parameters": "bf16"}}
CHECKED = {"10 M": 5, "100 M": 2}  # steps whose losses are compared
TOLERANCE = {"f32": 1e-3, "bf16": 2e-2}  # relative, of a loss
# model, tokens of the prompt, new tokens, rounds
INFERENCE = [("10 M", 512, 65, 6), ("100 M", 512, 33, 5), ("0.77 G", 512, 17, 3)]
INFERENCE_PEERS = {"PyTorch": "torch_llama.py", "transformers": "transformers_llama.py", "llama.cpp": "llama_cpp_llama.py",
                   "mistral.rs": "mistral_rs_llama.py"}
LIBRARIES = {"PyTorch": "torch", "transformers": "transformers", "llama.cpp": "llama_cpp", "mistral.rs": "mistralrs"}
DISTRIBUTIONS = {"llama_cpp": "llama-cpp-python"}  # of modules with another name
BENCHES = {"llama_cpp": "llama.cpp", "bitnet_cpp": "bitnet.cpp"}  # programs that take a GGUF file
EQUAL_TOKENS = 4  # of greedy continuations, in f32


def resident_peak(pid):
    """The largest resident set of a process so far. (What wait4() tells of one that has ended counts the process that it was
    forked from, too: this one.)"""
    try:
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    except FileNotFoundError:
        return 0
    return int(fields.get("VmHWM", "0 kB").split()[0]) * 1024


class Katt:
    """The program, in a process of its own for every request."""

    def __init__(self, model, dtype, options, scratch):
        self.model, self.dtype, self.options, self.scratch = model, dtype, options, scratch
        self.training = []
        self.peak_bytes = 0

    def run(self, command, *arguments):
        """(answer, what it says on stderr)"""
        command = [KATT, command, "--model", self.model, "--dtype", self.dtype, "--threads", self.options.threads, "--json",
                   *arguments]
        with open(self.scratch / "stdout", "w+") as out, open(self.scratch / "stderr", "w+") as err:
            child = subprocess.Popen([str(part) for part in command], stdout=out, stderr=err)
            peak, status = 0, None
            while status is None:
                peak = max(peak, resident_peak(child.pid))
                try:
                    status = child.wait(0.02)
                except subprocess.TimeoutExpired:
                    pass
            out.seek(0)
            err.seek(0)
            if status != 0:
                sys.exit(f"{' '.join(map(str, command))}: {err.read()}")
            if "--profile" not in arguments:  # which measures ceilings, in memory several times the last cache
                self.peak_bytes = max(self.peak_bytes, peak)
            return json.loads(out.read().splitlines()[-1]), err.read()

    def steps(self, count, *more):
        log = self.scratch / "log.h5"
        _, told = self.run("train", *self.training, "--steps", count, "--log", log, "--overwrite", *more)
        with h5py.File(log) as file:
            return {"loss": file["loss"][...], "time_s": file["time_s"][...], "told": told}

    def generate(self, tokens, new, *more):
        made, told = self.run("generate", "--tokens", ",".join(map(str, tokens)), "--max-new-tokens", new, *more)
        return made | {"told": told}


class Peer:
    """A process that answers requests (torch_llama.py)."""

    def __init__(self, script, model, dtype, options, *arguments):
        command = [PYTHON, Path(__file__).with_name(script), "--model", model, "--dtype", dtype, "--threads",
                   options.threads, *arguments]
        self.process = subprocess.Popen([str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def steps(self, count):
        answer = self.ask(steps=count)
        return {key: np.array(values) for key, values in answer.items()}

    def generate(self, tokens, new):
        return self.ask(tokens=tokens, new=new)

    def close(self):
        """The most memory that it had."""
        peak = self.ask()["peak_bytes"]
        self.process.stdin.close()
        self.process.wait()
        return peak


def interval(ratios):
    """The median of the rounds' ratios and its 95 % interval (bootstrap)."""
    draws = np.random.default_rng(0).choice(ratios, (10000, len(ratios)))
    return np.median(ratios), *np.quantile(np.median(draws, axis=1), [0.025, 0.975])


def in_turns(sides, rounds, measure):
    """name → measure(side) of every round, in an order that rotates."""
    found = {name: [] for name in sides}
    order = list(sides)
    for turn in range(rounds):
        first = turn % len(order)
        for name in order[first:] + order[:first]:
            found[name].append(measure(sides[name]))
    return found


def compared(point, quantity, times, peaks):
    """A line of the summary for each peer; of `times`, a value for every round."""
    for name, peer in times.items():
        if name == "Katt":
            continue
        ratio, low, high = interval(np.array(peer) / np.array(times["Katt"]))
        print(f"{quantity} {point}: Katt is {ratio:.2f} ({low:.2f} to {high:.2f}) times as fast as {name}; "
              f"peak {peaks['Katt'] / 2**20:.0f} MiB, {peaks[name] / 2**20:.0f} MiB", flush=True)  # fmt: skip
        yield {**point, "quantity": quantity, "peer": name, "katt_time_s": np.median(times["Katt"]),
               "peer_time_s": np.median(peer), "speedup": ratio, "speedup_lo": low, "speedup_hi": high,
               "katt_peak_bytes": peaks["Katt"], "peer_peak_bytes": peaks[name]}


def expect_same_losses(what, dtype, losses, expected):
    worst = np.max(np.abs(losses / expected - 1))
    if not worst <= TOLERANCE[dtype]:
        sys.exit(f"{what}: another model: losses {losses}, expected {expected}")


def training(options, folder, scratch, model, rows, seq, rounds, steps, dtype):
    """Rows and summary of a training step."""
    point = {"model": model, "dtype": dtype, "rows": rows, "tokens": seq}
    shape = ["--text", TEXT, "--batch", rows, "--seq", seq, "--lr", RATE]
    katt = Katt(folder, dtype, options, scratch)
    katt.training = shape
    told = katt.steps(CHECKED[model], "--profile")
    sides = {"Katt": katt}
    for name, weights in PEERS[dtype].items():
        sides[name] = Peer("torch_llama.py", folder, dtype, options, *shape, "--weights", weights)
        expect_same_losses(f"{point} {name}", dtype, sides[name].steps(CHECKED[model])["loss"], told["loss"])
    times = in_turns(sides, rounds, lambda side: side.steps(1 + steps)["time_s"][1:])
    peaks = {name: side.peak_bytes if name == "Katt" else side.close() for name, side in sides.items()}
    saving = Katt(folder, dtype, options, scratch)  # the same with checkpointing
    saving.training = shape
    again = saving.steps(1 + steps, "--checkpoint")["time_s"][1:]
    samples = [{**point, "quantity": "step", "side": name, "round": turn, "time_s": float(t)}
               for name, of_rounds in times.items() for turn, of_round in enumerate(of_rounds) for t in of_round]
    samples += [{**point, "quantity": "step", "side": "Katt, checkpointed", "round": rounds, "time_s": float(t)} for t in again]
    medians = {name: [np.median(of_round) for of_round in of_rounds] for name, of_rounds in times.items()}
    summary = [line | {"checkpointed_peak_bytes": saving.peak_bytes, "checkpointed_time_s": float(np.median(again))}
               for line in compared(point, "step", medians, peaks)]
    return samples, summary, told["told"]


def inference(options, folder, scratch, model, prompt, new, rounds, dtype):
    """Rows and summary of prefill, whose time is that of the first token, and of a token after it."""
    point = {"model": model, "dtype": dtype, "rows": 1, "tokens": prompt}
    tokens = [i * 7 % 251 for i in range(prompt)]
    sides = {"Katt": Katt(folder, dtype, options, scratch)}
    for name in options.peers:
        sides[name] = Peer(INFERENCE_PEERS[name], folder, dtype, options, "--seq", prompt + new)
    made = {name: side.generate(tokens, new) for name, side in sides.items()}
    for name in sides:
        if dtype == "f32" and made[name]["tokens"][:EQUAL_TOKENS] != made["Katt"]["tokens"][:EQUAL_TOKENS]:
            sys.exit(f"{point} {name}: another model: tokens {made[name]['tokens']}, expected {made['Katt']['tokens']}")
    found = in_turns(sides, rounds, lambda side: side.generate(tokens, new))
    told = sides["Katt"].generate(tokens, new, "--profile")["told"]
    peaks = {name: side.peak_bytes if name == "Katt" else side.close() for name, side in sides.items()}
    samples, summary = [], []
    for quantity, key, count in [("prefill", "prefill_s", 1), ("decode", "decode_s", new - 1)]:
        times = {name: [run[key] / count for run in runs] for name, runs in found.items()}
        samples += [{**point, "quantity": quantity, "side": name, "round": turn, "time_s": t}
                    for name, of_rounds in times.items() for turn, t in enumerate(of_rounds)]
        for line in compared(point, quantity, times, peaks):
            summary.append(line | {"weight_bytes": made["Katt"]["weight_bytes"]})
    return samples, summary, told


def bench_program(name, command, threads, gguf):
    """Prefill and decoding of a GGUF file by the bench program of llama.cpp, or of bitnet.cpp, which is made from it:
    tokens a second."""
    command = [*shlex.split(command), "-m", str(gguf), "-t", str(threads), "-p", "512", "-n", "32", "-o", "json"]
    try:
        made = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    except (OSError, subprocess.CalledProcessError, json.JSONDecodeError) as error:
        sys.exit(f"{' '.join(command)}: expected the bench program of {name} ({error})")
    for row in made:
        quantity = "decode" if row["n_gen"] else "prefill"
        print(f"{name} {row['model_type']}: {quantity} {row['avg_ts']:.1f} tokens/s", flush=True)
        yield {"model": row["model_type"], "quantity": quantity, "tokens_s": row["avg_ts"], "tokens_s_deviation": row["stddev_ts"]}


def versions():
    """(module → version of each library of the peers that loads, module → why another does not)"""
    code = """
import importlib, importlib.metadata, json, sys
name, distribution = sys.argv[1:]
try:
    importlib.import_module(name)
    print(json.dumps([importlib.metadata.version(distribution), ""]))
except Exception as error:
    print(json.dumps(["", " ".join(str(error).split())]))
"""
    found, reasons = {}, {}
    for module in LIBRARIES.values():  # each in a process that it may end
        done = subprocess.run([PYTHON, "-c", code, module, DISTRIBUTIONS.get(module, module)], capture_output=True, text=True,
                              check=False)  # fmt: skip
        lines = done.stdout.splitlines()
        version, reason = json.loads(lines[-1]) if lines else ("", f"ended with status {done.returncode}")
        (found if version else reasons)[module] = version or reason
    return found, reasons


def ceilings(threads, scratch):
    """name → value of what the machine can do, as a sweep measures it."""
    target = scratch / "ceilings.h5"
    subprocess.run([KATT, "sweep", "rmsnorm", "--tokens", "16", "--hidden", "64", "--variant", "naive", "--threads", str(threads),
                    "--budget-s", "0.1", "-o", target, "--overwrite"], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)  # fmt: skip
    with h5py.File(target) as file:
        return {row["name"].decode(): float(row["value"]) for row in file["ceilings/run-0001"][...]}


TITLES = {"step": "A training step", "prefill": "Prefill", "decode": "A decoded token"}


def draw(path):
    """How many times the peers' time is Katt's, a figure for every quantity of a result file."""
    with h5py.File(path) as file:
        columns = {name: data.asstr()[...] if data.dtype.kind == "O" else data[...] for name, data in file["summary"].items()}
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    colors = {peer: f"C{n}" for n, peer in enumerate(dict.fromkeys(columns["peer"]))}
    for quantity in dict.fromkeys(columns["quantity"]):
        points = {}
        for row in rows:
            if row["quantity"] == quantity:
                points.setdefault(f"{row['model']}, {row['dtype']}\n{row['rows']} × {row['tokens']}", []).append(row)
        plt.figure(figsize=(max(6, 1.3 * len(points)), 4))
        for at, bars in enumerate(points.values()):
            for n, row in enumerate(bars):
                middle = row["speedup"]
                plt.bar(at + 0.32 * (n - (len(bars) - 1) / 2), middle, 0.3, color=colors[row["peer"]],
                        yerr=[[middle - row["speedup_lo"]], [row["speedup_hi"] - middle]], capsize=2)
        plt.axhline(1, color="black", linewidth=0.8)
        plt.xticks(range(len(points)), points, fontsize=8)
        plt.ylabel("time of the peer / Katt's")
        plt.title(TITLES[quantity])
        for peer, color in colors.items():
            plt.bar(0, 0, color=color, label=peer)
        plt.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)  # never on a bar
        plt.tight_layout()
        plt.savefig(path.with_name(f"{quantity}.png"), dpi=120)
        plt.close()


def main():
    parser = parser_of(__doc__)
    parser.add_argument("what", nargs="*", metavar="training|inference|llama_cpp|bitnet_cpp|draw", help="default: training inference; draw: the figures again")
    parser.add_argument("--models", default=",".join(MODELS), help="of " + ", ".join(MODELS))
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--most-tokens", type=int, default=8192, help="of a training step")
    parser.add_argument("--llama-bench", metavar="COMMAND", help="llama.cpp's bench program, and its options")
    parser.add_argument("--bitnet-bench", metavar="COMMAND", help="bitnet.cpp's bench program, and its options")
    parser.add_argument("--gguf", type=Path, action="append", default=[], help="a model for these; may be repeated")
    options = parser.parse_args()
    wanted = options.what or ["training", "inference"]
    for what in wanted:
        if what not in ("training", "inference", *BENCHES, "draw"):
            parser.error(f"{what}: expected training, inference, {', '.join(BENCHES)} or draw")
    if wanted == ["draw"]:
        for name in ("training", "inference"):
            draw(options.output / f"{name}.h5")
        return
    for what, command in [("llama_cpp", options.llama_bench), ("bitnet_cpp", options.bitnet_bench)]:
        if what not in wanted:
            continue
        if not (command and options.gguf):
            parser.error(f"{what}: expected --{what.replace('_cpp', '-bench')} and --gguf")
        rows = [row for gguf in options.gguf for row in bench_program(BENCHES[what], command, options.threads, gguf)]
        save(options.output / f"{what}.h5", rows, settings={"threads": options.threads})
        wanted.remove(what)
    if not wanted:
        return
    models, dtypes = options.models.split(","), options.dtypes.split(",")
    if not PYTHON.exists():
        parser.error(f"{PYTHON} is missing: scripts/peers makes it")
    found, reasons = versions()
    if "torch" not in found:
        parser.error(f"PyTorch, which every peer needs, cannot be loaded: {reasons['torch']}")
    settings = {"threads": options.threads} | found | {f"without_{module}": reason for module, reason in reasons.items()}
    options.peers = [name for name in INFERENCE_PEERS if LIBRARIES[name] in found]
    for name, module in LIBRARIES.items():
        if module in reasons:
            print(f"{name} is left out: {reasons[module]}", flush=True)
    plan = {"training": (training, [point for point in TRAINING if point[1] * point[2] <= options.most_tokens]),
            "inference": (inference, INFERENCE)}
    with tempfile.TemporaryDirectory() as top:
        top = Path(top)
        for what in wanted:
            measure, points = plan[what]
            samples, summary, told = [], [], []
            settings |= {f"ceiling_{name}": value for name, value in ceilings(options.threads, top).items()}
            for model, *shape in points:
                if model not in models:
                    continue
                if not (top / model).exists():
                    write_checkpoint(top / model, MODELS[model])
                for dtype in dtypes:
                    more, lines, profile = measure(options, top / model, top, model, *shape, dtype)
                    samples, summary = samples + more, summary + lines
                    told.append(f"{what}, {model}, {dtype}, {shape}\n{profile}")
                    save(options.output / f"{what}.h5", samples, summary, settings)
                    (options.output / f"{what}_profiles.txt").write_text("\n".join(told))
            draw(options.output / f"{what}.h5")


if __name__ == "__main__":
    main()
