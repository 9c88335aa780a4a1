"""Decoding of a LLaMA of 0.77 G parameters with ternary projections against the same one in bf16, in turns."""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from model_runs import katt, save  # noqa: E402

# The blocks of TinyLlama 1.1B (arXiv:2401.02385), sixteen of them, with tied embeddings.
CONFIG = {"model_type": "llama", "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632,
          "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 64,
          "rms_norm_eps": 1e-5, "max_position_embeddings": 2048, "tie_word_embeddings": True}
BITNET = {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"}
PROMPT, NEW_TOKENS = 16, 32
SEQUENCES = [int(number) for number in (sys.argv[1] if len(sys.argv) > 1 else "1,2,4,8").split(",")]
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 3


def shapes():
    """(name, shape) of the tensors of the checkpoint."""
    hidden, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    rows, kv = CONFIG["num_attention_heads"] * CONFIG["head_dim"], CONFIG["num_key_value_heads"] * CONFIG["head_dim"]
    yield "model.embed_tokens.weight", (CONFIG["vocab_size"], hidden)
    for layer in range(CONFIG["num_hidden_layers"]):
        for name, shape in [("input_layernorm", (hidden,)), ("post_attention_layernorm", (hidden,)),
                            ("self_attn.q_proj", (rows, hidden)), ("self_attn.k_proj", (kv, hidden)),
                            ("self_attn.v_proj", (kv, hidden)), ("self_attn.o_proj", (hidden, rows)),
                            ("mlp.gate_proj", (inner, hidden)), ("mlp.up_proj", (inner, hidden)),
                            ("mlp.down_proj", (hidden, inner))]:
            yield f"model.layers.{layer}.{name}.weight", shape
    yield "model.norm.weight", (hidden,)


def write_checkpoint(path):
    """Random parameters in bf16, so that opening the model takes seconds."""
    header, offset = {}, 0
    for name, shape in shapes():
        end = offset + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    random = np.random.default_rng(1)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, shape in shapes():
            values = np.ones(shape, np.float32)
            if len(shape) == 2:
                values = random.standard_normal(shape, np.float32) * 0.02
            (values.view(np.uint32) >> 16).astype(np.uint16).tofile(file)


def run(folder, sequences, prompts):
    made = katt("generate", "--model", folder, "--prompts", prompts, "--batch", sequences,
                "--max-new-tokens", NEW_TOKENS, "--dtype", "bf16")
    return {key: made[key] for key in ["decode_tokens_s", "prefill_tokens_s", "weight_bytes", "peak_bytes"]}


rows = []
with tempfile.TemporaryDirectory() as top:
    top = Path(sys.argv[3]) if len(sys.argv) > 3 else Path(top)  # a folder that keeps the checkpoint
    for name, extra in [("bf16", {}), ("ternary", {"quantization_config": BITNET})]:
        (top / name).mkdir(parents=True, exist_ok=True)
        (top / name / "config.json").write_text(json.dumps(CONFIG | extra))
    weights = top / "bf16" / "model.safetensors"
    if not weights.exists():
        write_checkpoint(weights)
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
save("ternary", rows, summary, {"config": json.dumps(CONFIG), "prompt": PROMPT, "new_tokens": NEW_TOKENS}, "model")
