"""LLaMAs of random parameters for the experiments that ask for speed alone."""

import json
from pathlib import Path

import numpy as np

BYTE_MODEL = json.loads((Path(__file__).parent / "byte_model" / "config.json").read_text())
COMMON = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "head_dim": 64, "hidden_act": "silu",
          "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 2048, "tie_word_embeddings": True}
MODELS = {
    "10 M": BYTE_MODEL,
    # The width and depth of GPT-2 small, 98 million parameters.
    "100 M": COMMON | {"vocab_size": 16384, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12,
                       "num_attention_heads": 12, "num_key_value_heads": 12},
    # The blocks of TinyLlama 1.1B (arXiv:2401.02385), sixteen of them.
    "0.77 G": COMMON | {"vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 16,
                        "num_attention_heads": 32, "num_key_value_heads": 4},
}


def shapes(config):
    """(name, shape) of the tensors of the checkpoint."""
    hidden, inner, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    rows, kv = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        for name, shape in [("input_layernorm", (hidden,)), ("post_attention_layernorm", (hidden,)),
                            ("self_attn.q_proj", (rows, hidden)), ("self_attn.k_proj", (kv, hidden)),
                            ("self_attn.v_proj", (kv, hidden)), ("self_attn.o_proj", (hidden, rows)),
                            ("mlp.gate_proj", (inner, hidden)), ("mlp.up_proj", (inner, hidden)),
                            ("mlp.down_proj", (hidden, inner))]:
            yield f"model.layers.{layer}.{name}.weight", shape
    yield "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (config["vocab_size"], hidden)


def write_checkpoint(folder, config):
    """A Hugging Face folder with random parameters in bf16, so that opening it takes seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    header, offset = {}, 0
    for name, shape in shapes(config):
        end = offset + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    header["__metadata__"] = {"format": "pt"}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    random = np.random.default_rng(1)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, shape in shapes(config):
            values = np.ones(shape, np.float32)
            if len(shape) == 2:
                values = random.standard_normal(shape, np.float32) * 0.02
            (values.view(np.uint32) >> 16).astype(np.uint16).tofile(file)
