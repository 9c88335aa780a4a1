"""Memory and speed of training: plain, checkpointed, mixed precision, both, over sequence length."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from model_runs import MODEL, figure, katt, save  # noqa: E402

TEXT = "/usr/share/common-licenses/GPL-3"
SEQ = [256, 512, 1024, 2048]
RUNS = {
    "f32": [],
    "f32, checkpointed": ["--checkpoint"],
    "bf16": ["--dtype", "bf16"],
    "bf16, checkpointed": ["--dtype", "bf16", "--checkpoint"],
}

rows = []
for seq in SEQ:
    for name, arguments in RUNS.items():
        common = ["--model", MODEL, "--batch", 2, "--seq", seq, *arguments]
        forecast = katt("memory", *common)["training"]
        run = katt("train", *common, "--text", TEXT, "--steps", 3)
        rows.append({"run": name, "seq": seq, "peak_bytes": run["peak_bytes"], "tokens_s": run["tokens_s"],
                     "forecast_bytes": forecast["total_bytes"], "activation_bytes": forecast["activations_bytes"]})
folder = save("training_memory", rows)


def line(name, value):
    chosen = [row for row in rows if row["run"] == name]
    return [row["seq"] for row in chosen], [value(row) for row in chosen]


figure(folder, "memory", "Training a model of 10 million parameters, batch 2", "tokens of a row",
       "measured peak, MB", {name: line(name, lambda row: row["peak_bytes"] / 1e6) for name in RUNS}, logx=True)
figure(folder, "speed", "Training a model of 10 million parameters, batch 2", "tokens of a row", "tokens/s",
       {name: line(name, lambda row: row["tokens_s"]) for name in RUNS}, logx=True)
