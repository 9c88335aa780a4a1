"""Decoding of a LLaMA of 0.77 G parameters with ternary projections against the same one in bf16, in turns."""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from model_runs import katt, parser_of, save  # noqa: E402
from random_llama import MODELS, write_checkpoint  # noqa: E402

CONFIG = MODELS["0.77 G"]
BITNET = {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"}
PROMPT, NEW_TOKENS = 16, 32
parser = parser_of(__doc__)
parser.add_argument("--sequences", default="1,2,4,8", help="of a batch")
parser.add_argument("--rounds", type=int, default=3, help="0: only writes the checkpoint")
parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="folder that keeps the checkpoint")
options = parser.parse_args()
SEQUENCES, ROUNDS = [int(number) for number in options.sequences.split(",")], options.rounds


def run(folder, sequences, prompts):
    made = katt("generate", "--model", folder, "--prompts", prompts, "--batch", sequences,
                "--max-new-tokens", NEW_TOKENS, "--dtype", "bf16")
    return {key: made[key] for key in ["decode_tokens_s", "prefill_tokens_s", "weight_bytes", "peak_bytes"]}


rows = []
with tempfile.TemporaryDirectory() as top:
    top = options.checkpoint or Path(top)
    for name, extra in [("bf16", {}), ("ternary", {"quantization_config": BITNET})]:
        (top / name).mkdir(parents=True, exist_ok=True)
        (top / name / "config.json").write_text(json.dumps(CONFIG | extra))
    weights = top / "bf16" / "model.safetensors"
    if not weights.exists():
        write_checkpoint(top / "bf16", CONFIG)
        (top / "ternary" / "model.safetensors").symlink_to(weights)
    if ROUNDS == 0:
        sys.exit()
    for sequences in SEQUENCES:
        prompts = top / f"prompts{sequences}.txt"
        prompts.write_text("".join(",".join(str((7 * i + s) % 32000) for i in range(PROMPT)) + "\n"
                                   for s in range(sequences)))
        for round_ in range(ROUNDS):
            for name in ["bf16", "ternary"]:
                rows.append({"model": name, "sequences": sequences, "round": round_,
                             **run(top / name, sequences, prompts)})
                print(rows[-1], file=sys.stderr)


def median(model, sequences, key):
    return float(np.median([row[key] for row in rows if (row["model"], row["sequences"]) == (model, sequences)]))


summary = [{"sequences": n, "bf16_tokens_s": median("bf16", n, "decode_tokens_s"),
            "ternary_tokens_s": median("ternary", n, "decode_tokens_s"),
            "speedup": float(np.median([t["decode_tokens_s"] / b["decode_tokens_s"]
                                        for b, t in zip(rows[::2], rows[1::2]) if b["sequences"] == n]))}
           for n in SEQUENCES]
print(json.dumps(summary, indent=1))
save(options.output / "model.h5", rows, summary, {"config": json.dumps(CONFIG), "prompt": PROMPT, "new_tokens": NEW_TOKENS})
