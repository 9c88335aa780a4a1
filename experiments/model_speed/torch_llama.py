"""A LLaMA and its training step as a user of PyTorch writes them, eager: reads how many steps to take from a line of
standard input and answers with a line of JSON, losses and seconds of each."""

import argparse
import json
import sys
import time
from pathlib import Path

import torch
from katt_peers.server import keep_freed_memory
from torch.nn import functional

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def read_safetensors(path):
    """The f32 tensors of a file, by name."""
    data = bytearray(path.read_bytes())
    begin = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:begin]).items():
        if name != "__metadata__":
            first, end = entry["data_offsets"]
            flat = torch.frombuffer(data, dtype=torch.float32, count=(end - first) // 4, offset=begin + first)
            tensors[name] = flat.view(entry["shape"]).clone()
    return tensors


class Llama:
    """The parameters of a Hugging Face checkpoint and the loss of a batch."""

    def __init__(self, folder, dtype, seq):
        self.config = json.loads((folder / "config.json").read_text())
        self.weights = {name: tensor.to(dtype).requires_grad_()
                        for name, tensor in read_safetensors(folder / "model.safetensors").items()}
        head_dim = self.config["head_dim"]
        frequencies = self.config["rope_theta"] ** (-torch.arange(0, head_dim, 2) / head_dim)
        angles = torch.arange(seq)[:, None] * torch.cat((frequencies, frequencies))
        self.cos, self.sin = angles.cos(), angles.sin()

    def norm(self, x, name):
        return functional.rms_norm(x, x.shape[-1:], self.weights[name + ".weight"], self.config["rms_norm_eps"])

    def linear(self, x, name):
        return functional.linear(x, self.weights[name + ".weight"])

    def heads(self, x, name, count):
        return self.linear(x, name).view(*x.shape[:2], count, self.config["head_dim"]).transpose(1, 2)

    def rope(self, x):
        a, b = x.chunk(2, dim=-1)
        return x * self.cos.to(x.dtype) + torch.cat((-b, a), dim=-1) * self.sin.to(x.dtype)

    def block(self, x, prefix):
        heads, kv_heads = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        n = self.norm(x, prefix + "input_layernorm")
        attention = prefix + "self_attn."
        out = functional.scaled_dot_product_attention(
            self.rope(self.heads(n, attention + "q_proj", heads)),
            self.rope(self.heads(n, attention + "k_proj", kv_heads)),
            self.heads(n, attention + "v_proj", kv_heads), is_causal=True, enable_gqa=heads != kv_heads)
        x = x + self.linear(out.transpose(1, 2).flatten(2), attention + "o_proj")
        n = self.norm(x, prefix + "post_attention_layernorm")
        gate = functional.silu(self.linear(n, prefix + "mlp.gate_proj"))
        return x + self.linear(gate * self.linear(n, prefix + "mlp.up_proj"), prefix + "mlp.down_proj")

    def loss(self, ids, targets):
        x = functional.embedding(ids, self.weights["model.embed_tokens.weight"])
        for layer in range(self.config["num_hidden_layers"]):
            x = self.block(x, f"model.layers.{layer}.")
        logits = self.linear(self.norm(x, "model.norm"), "lm_head")
        return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


class Trainer:
    """Steps over a text, a token a byte: row r begins at token r · seq, and its targets are shifted by one."""

    def __init__(self, options):
        keeps_masters = options.weights == "f32"
        self.model = Llama(options.model, DTYPES[options.weights], options.seq)
        self.autocast = torch.autocast("cpu", torch.bfloat16, enabled=keeps_masters and options.dtype == "bf16")
        self.text = torch.frombuffer(bytearray(options.text.read_bytes()), dtype=torch.uint8).long()
        self.batch, self.seq = options.batch, options.seq
        weights = list(self.model.weights.values())
        self.optimizer = torch.optim.AdamW(
            [{"params": [w for w in weights if w.dim() >= 2], "weight_decay": 0.1},
             {"params": [w for w in weights if w.dim() < 2], "weight_decay": 0.0}],
            lr=options.lr, betas=(0.9, 0.95), eps=1e-8, fused=True)
        self.row = 0

    def rows(self):
        whole = (len(self.text) - 1) // self.seq
        starts = [(self.row + r) % whole * self.seq for r in range(self.batch)]
        self.row += self.batch
        return [torch.stack([self.text[s + shift:s + shift + self.seq] for s in starts]) for shift in (0, 1)]

    def step(self):
        start = time.perf_counter()
        ids, targets = self.rows()
        self.optimizer.zero_grad(set_to_none=True)
        with self.autocast:
            loss = self.model.loss(ids, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.weights.values(), 1.0)
        self.optimizer.step()
        return loss.item(), time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--dtype", choices=DTYPES, required=True)
    parser.add_argument("--weights", choices=DTYPES, required=True, help="f32: masters, with autocast in bf16")
    for name in ["--batch", "--seq", "--threads"]:
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--lr", type=float, required=True)
    options = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(options.threads)
    trainer = Trainer(options)
    for line in sys.stdin:
        losses, times = zip(*(trainer.step() for _ in range(int(line))))
        print(json.dumps({"loss": losses, "time_s": times}), flush=True)


if __name__ == "__main__":
    main()
