"""Throughput of prefill, and of decoding with and without a KV cache, over the length of the prompt."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from model_runs import MODEL, figure, katt, parser_of, save  # noqa: E402

PROMPTS = [64, 256, 1024]
NEW_TOKENS = 9

folder = parser_of(__doc__).parse_args().output
rows = []
for dtype in ["f32", "bf16"]:
    for prompt in PROMPTS:
        for cached, arguments in [(1, []), (0, ["--no-cache"])]:
            made = katt("generate", "--model", MODEL, "--tokens", ",".join(str(i * 7 % 256) for i in range(prompt)),
                        "--max-new-tokens", NEW_TOKENS, "--dtype", dtype, *arguments)
            rows.append({"dtype": dtype, "prompt": prompt, "cached": cached,
                         **{key: made[key] for key in ["prefill_tokens_s", "decode_tokens_s", "cache_bytes", "peak_bytes"]}})
save(folder / "inference.h5", rows)


def line(dtype, cached, key):
    chosen = [row for row in rows if row["dtype"] == dtype and row["cached"] == cached]
    return [row["prompt"] for row in chosen], [row[key] for row in chosen]


figure(folder, "throughput", "A model of 10 million parameters", "tokens of the prompt", "tokens/s",
       {f"{dtype} {label}": line(dtype, cached, key) for dtype in ["f32", "bf16"]
        for label, cached, key in [("prefill", 1, "prefill_tokens_s"), ("decode, cached", 1, "decode_tokens_s"),
                                   ("decode, no cache", 0, "decode_tokens_s")]}, logx=True, logy=True)
