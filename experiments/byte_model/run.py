"""A byte-level model trained from a random start in bf16 and in f16: curves, seconds, and a text that it writes."""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from model_runs import MODEL, figure, katt, parser_of  # noqa: E402

TEXT = "/usr/share/common-licenses/GPL-3"

parser = parser_of(__doc__)
parser.add_argument("--steps", type=int, default=300)
options = parser.parse_args()
STEPS, folder = options.steps, options.output
curves, report = {}, {}
with tempfile.TemporaryDirectory() as scratch:
    for dtype in ["bf16", "f16"]:
        log, trained = Path(scratch) / f"{dtype}.h5", Path(scratch) / dtype
        katt("train", "--model", MODEL, "--text", TEXT, "--steps", STEPS, "--batch", 8, "--seq", 256, "--lr", "1e-3",
             "--warmup", 20, "--schedule", "cosine", "--dtype", dtype, "--out", trained, "--log", log)
        shutil.copyfile(log, folder / f"{dtype}.h5")
        with h5py.File(log) as file:
            loss, seconds, skipped = (file[key][:].astype(float) for key in ["loss", "time_s", "skipped"])
        curves[dtype] = (np.arange(STEPS), loss)
        below = np.flatnonzero(loss < 2.0)
        generated = katt("generate", "--model", trained, "--text", "The licenses for most software",
                         "--max-new-tokens", 300, "--temperature", 0.5, "--dtype", dtype)
        report[dtype] = {
            "first_loss": round(loss[0], 3), "last_loss": round(loss[-1], 3),
            "first_step_below_2": int(below[0]) if below.size else None,
            "seconds_to_below_2": round(seconds[: below[0] + 1].sum(), 1) if below.size else None,
            "seconds": round(seconds.sum(), 1), "skipped_steps": int(skipped.sum()),
            "text": bytes(generated["tokens"]).decode(errors="replace"),
        }
(folder / "summary.json").write_text(json.dumps(report, indent=2) + "\n")
figure(folder, "loss", "A byte-level model of 10 million parameters on the GPL 3", "step", "loss (nats)", curves)
