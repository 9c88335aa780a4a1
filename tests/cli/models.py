"""Models of Hugging Face's format for the tests: small, random, written and trained."""

import json

import h5py
import numpy as np

CONFIG = {"model_type": "llama", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
          "num_attention_heads": 4, "num_key_value_heads": 2}


def last_ids(done):
    assert done.returncode == 0, done.stderr
    return [int(token) for token in done.stdout.splitlines()[-1].split(",")]


def ids(tokens):
    return ",".join(map(str, tokens))


def results_of(checkpoint):
    """The results of transformers and PyTorch from a checkpoint, and the options of the training."""
    with h5py.File(checkpoint / "expected.h5") as file:
        names = ["prompt", "greedy", "logits", "train/losses", "train/grad_norms"]
        return {**{name: file[name][...] for name in names}, "options": dict(file["train"].attrs)}


def training(checkpoint, expected, **changes):
    """The words of the training of these results."""
    options = {name: expected["options"][name] for name in ["steps", "batch", "seq", "accumulation", "lr"]} | changes
    return ["train", "--model", checkpoint, "--data", checkpoint / "expected.h5",
            *[part for name, value in options.items() for part in ["--" + name, value]]]


def log_of(path):
    with h5py.File(path) as file:
        return {name: file[name][...] for name in ["loss", "grad_norm", "lr", "time_s"]}


def train(katt, model, text, steps, *arguments):
    return katt.runs("train", "--model", model, "--text", text, "--steps", steps, "--batch", 2, "--seq", 16,
                     "--lr", "3e-3", "--threads", 1, *arguments)


def shapes_of(config):
    """Names and shapes of a checkpoint's tensors."""
    hidden, kv = config["hidden_size"], config["hidden_size"] // config["num_attention_heads"] * config[
        "num_key_value_heads"]
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,),
              "lm_head.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        for name, rows, columns in [("q", hidden, hidden), ("k", kv, hidden), ("v", kv, hidden), ("o", hidden, hidden)]:
            shapes[f"model.layers.{layer}.self_attn.{name}_proj.weight"] = (rows, columns)
        for name, rows, columns in [("gate", config["intermediate_size"], hidden),
                                    ("up", config["intermediate_size"], hidden),
                                    ("down", hidden, config["intermediate_size"])]:
            shapes[f"model.layers.{layer}.mlp.{name}_proj.weight"] = (rows, columns)
        for name in ["input_layernorm", "post_attention_layernorm"]:
            shapes[f"model.layers.{layer}.{name}.weight"] = (hidden,)
    return shapes


def random_tensors(seed=0):
    generator = np.random.default_rng(seed)
    return {name: generator.normal(0, 0.2, shape).astype(np.float32) if len(shape) == 2 else np.ones(shape, np.float32)
            for name, shape in shapes_of(CONFIG).items()}


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(map(np.ndarray.tobytes, tensors.values())))
