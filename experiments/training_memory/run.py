"""Memory and speed of training: plain, checkpointed, mixed precision, both, and a budget, over sequence length."""

import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from model_runs import MODEL, figure, katt, parser_of, save  # noqa: E402

TEXT = "/usr/share/common-licenses/GPL-3"
BATCH, ROUNDS, STEPS = 2, 3, 3  # the first step of a run does not count
RUNS = {
    "f32": [],
    "f32, budget": [],  # half of what checkpointing saves
    "f32, checkpointed": ["--checkpoint"],
    "bf16": ["--dtype", "bf16"],
    "bf16, budget": ["--dtype", "bf16"],
    "bf16, checkpointed": ["--dtype", "bf16", "--checkpoint"],
}


def arguments_of(name, common):
    """The options of a run; a budget lies halfway between everything kept and nothing."""
    if not name.endswith("budget"):
        return common + RUNS[name]
    totals = [katt("memory", *common, *RUNS[name], *more)["training"]["total_bytes"] for more in [[], ["--checkpoint"]]]
    return [*common, *RUNS[name], "--checkpoint-blocks", f"budget:{sum(totals) // 2}"]


def train(arguments, scratch):
    log = Path(scratch) / "log.h5"
    made = katt("train", *arguments, "--text", TEXT, "--steps", STEPS, "--log", log, "--overwrite")
    with h5py.File(log) as file:
        return made, file["time_s"][1:], file["loss"][...]


parser = parser_of(__doc__)
parser.add_argument("--seq", default="256,512,1024,2048", help="tokens of a row")
options = parser.parse_args()
SEQ, folder = [int(seq) for seq in options.seq.split(",")], options.output
rows = []
with tempfile.TemporaryDirectory() as scratch:
    for seq in SEQ:
        common = ["--model", MODEL, "--batch", BATCH, "--seq", seq]
        times, made, losses = {name: [] for name in RUNS}, {}, {}
        for _ in range(ROUNDS):
            for name in RUNS:
                made[name], step_times, losses[name] = train(arguments_of(name, common), scratch)
                times[name] += list(step_times)
        for name in RUNS:
            plain = name.split(",")[0]
            assert (losses[name] == losses[plain]).all(), f"{name}: other losses than {plain}"
            forecast = katt("memory", *common, *RUNS[name], "--checkpoint-blocks",
                            made[name]["checkpoint_blocks"])["training"]
            rows.append({"run": name, "seq": seq, "peak_bytes": made[name]["peak_bytes"],
                         "forecast_bytes": forecast["total_bytes"], "activation_bytes": forecast["activations_bytes"],
                         "step_time_s": float(np.median(times[name])), "checkpoint_blocks": made[name]["checkpoint_blocks"]})


def value(name, seq, key):
    return next(row[key] for row in rows if row["run"] == name and row["seq"] == seq)


for seq in SEQ:
    for name, base in [(name, name.split(",")[0]) for name in RUNS if "," in name] + [("bf16", "f32")]:
        print(f"{seq:5d} {name:19s} against {base}: activations {value(name, seq, 'activation_bytes') / value(base, seq, 'activation_bytes') - 1:+.0%}, "
              f"peak {value(name, seq, 'peak_bytes') / value(base, seq, 'peak_bytes') - 1:+.0%}, "
              f"time {value(name, seq, 'step_time_s') / value(base, seq, 'step_time_s') - 1:+.0%}; "
              f"{value(name, seq, 'checkpoint_blocks')}")
save(folder / "training_memory.h5", rows, settings={"batch": BATCH, "rounds": ROUNDS, "steps": STEPS})
TITLE = f"Training a model of 10 million parameters, batch {BATCH}"
figure(folder, "memory", TITLE, "tokens of a row", "measured peak, MB",
       {name: (SEQ, [value(name, seq, "peak_bytes") / 1e6 for seq in SEQ]) for name in RUNS}, logx=True)
figure(folder, "speed", TITLE, "tokens of a row", "tokens/s",
       {name: (SEQ, [BATCH * seq / value(name, seq, "step_time_s") for seq in SEQ]) for name in RUNS}, logx=True)
