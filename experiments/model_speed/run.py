"""A training step of the whole model in Katt and in PyTorch, in turns; the losses must agree first."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from model_runs import MODEL, ROOT, figure, katt, save  # noqa: E402

TEXT = "/usr/share/common-licenses/GPL-3"
BATCH, SEQ, THREADS, RATE = 4, 256, 2, "1e-3"
ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 12
WARM_UP, STEPS = 2, 4  # of a round
CHECKED = 5  # steps whose losses are compared
# dtype of the computation → peers: name → dtype of the parameters
PEERS = {"f32": {"PyTorch": "f32"}, "bf16": {"PyTorch, autocast": "f32", "PyTorch, bf16 parameters": "bf16"}}
TOLERANCE = {"f32": 1e-3, "bf16": 2e-2}  # relative, of a loss


class Katt:
    """Steps from the start, in a process of their own."""

    def __init__(self, start, dtype, scratch):
        self.arguments = ["--model", start, "--text", TEXT, "--batch", BATCH, "--seq", SEQ, "--threads", THREADS,
                          "--lr", RATE, "--dtype", dtype]
        self.log = scratch / "log.h5"

    def steps(self, count):
        katt("train", *self.arguments, "--steps", count, "--log", self.log)
        with h5py.File(self.log) as file:
            return file["loss"][...], file["time_s"][...]


class Peer:
    """A process that takes steps when it is asked to."""

    def __init__(self, start, dtype, weights):
        self.process = subprocess.Popen(
            [ROOT / "build" / "peers" / "bin" / "python", Path(__file__).with_name("torch_llama.py"), "--model", start,
             "--text", TEXT, "--batch", str(BATCH), "--seq", str(SEQ), "--threads", str(THREADS), "--lr", RATE,
             "--dtype", dtype, "--weights", weights],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def steps(self, count):
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        return np.array(answer["loss"]), np.array(answer["time_s"])

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def check(name, dtype, losses, expected):
    worst = np.max(np.abs(losses / expected - 1))
    print(f"{dtype} {name}: losses {losses.round(4)}, relative difference {worst:.1e}", file=sys.stderr)
    if not worst <= TOLERANCE[dtype]:
        sys.exit(f"{dtype} {name}: another model: losses {losses}, expected {expected}")


def interval(ratios):
    """The median of the rounds' ratios and its 95 % interval (bootstrap)."""
    draws = np.random.default_rng(0).choice(ratios, (10000, len(ratios)))
    return np.median(ratios), *np.quantile(np.median(draws, axis=1), [0.025, 0.975])


samples, summary, lines = [], [], {}
with tempfile.TemporaryDirectory() as folder:
    scratch = Path(folder)
    start = scratch / "start"
    katt("train", "--model", MODEL, "--text", TEXT, "--steps", 1, "--lr", 0, "--out", start)
    for dtype, peers in PEERS.items():
        sides = {"Katt": Katt(start, dtype, scratch), **{name: Peer(start, dtype, w) for name, w in peers.items()}}
        expected, _ = sides["Katt"].steps(CHECKED)
        for name in peers:
            check(name, dtype, sides[name].steps(CHECKED)[0], expected)
        medians = {name: [] for name in sides}
        for turn in range(ROUNDS):
            order = list(sides)
            for name in order[turn % len(order):] + order[:turn % len(order)]:
                times = sides[name].steps(WARM_UP + STEPS)[1][WARM_UP:]
                medians[name].append(np.median(times))
                samples += [{"dtype": dtype, "side": name, "round": turn, "time_s": float(t)} for t in times]
        for name in peers:
            sides[name].close()
            ratio, low, high = interval(np.array(medians[name]) / np.array(medians["Katt"]))
            summary.append({"dtype": dtype, "peer": name, "katt_time_s": np.median(medians["Katt"]),
                            "peer_time_s": np.median(medians[name]), "speedup": ratio, "speedup_lo": low,
                            "speedup_hi": high})
            print(f"{dtype}: Katt is {ratio:.2f} ({low:.2f} to {high:.2f}) times as fast as {name}")
        lines |= {f"{dtype} {name}": (range(ROUNDS), np.array(times) * 1e3) for name, times in medians.items()}
version = subprocess.run([ROOT / "build" / "peers" / "bin" / "python", "-c", "import torch; print(torch.__version__)"],
                         check=True, capture_output=True, text=True).stdout.strip()
folder = save("training_step", samples, summary=summary,
              settings={"batch": BATCH, "seq": SEQ, "threads": THREADS, "pytorch": version})
figure(folder, "step", f"A model of 10 million parameters, {BATCH} rows of {SEQ} tokens", "round",
       "median time of a step, ms", lines)
