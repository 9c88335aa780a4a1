"""Loss curves of one model in f32, bf16, and f16 with and without a loss scale."""

import sys
import tempfile
from pathlib import Path

import h5py

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from model_runs import MODEL, figure, katt, parser_of, save  # noqa: E402

TEXT = "/usr/share/common-licenses/GPL-3"
RUNS = {
    "f32": ["--dtype", "f32"],
    "bf16": ["--dtype", "bf16"],
    "f16, dynamic scale": ["--dtype", "f16"],
    "f16, no scale": ["--dtype", "f16", "--loss-scale", 1],
}

parser = parser_of(__doc__)
parser.add_argument("--steps", type=int, default=60)
options = parser.parse_args()
STEPS, folder = options.steps, options.output
rows = []
with tempfile.TemporaryDirectory() as scratch:
    for name, arguments in RUNS.items():
        log = Path(scratch) / "log.h5"
        katt("train", "--model", MODEL, "--text", TEXT, "--steps", STEPS, "--batch", 4, "--seq", 256, "--lr", "1e-3",
             "--warmup", 10, "--log", log, "--overwrite", *arguments)
        with h5py.File(log) as file:
            for step in range(STEPS):
                rows.append({"run": name, "step": step,
                             **{key: float(file[key][step]) for key in ["loss", "grad_norm", "loss_scale", "skipped"]}})
save(folder / "precision.h5", rows)
figure(folder, "loss", "Training a model of 10 million parameters", "step", "loss",
       {name: ([row["step"] for row in rows if row["run"] == name], [row["loss"] for row in rows if row["run"] == name])
        for name in RUNS})
