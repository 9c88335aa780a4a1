"""A LLaMA, its training step and its greedy generation as a user of PyTorch writes them, eager. Reads requests from standard
input, a line of JSON each, and answers in a line: {"steps": N} → loss, time_s of each; {"tokens": ids, "new": N} → tokens,
prefill_s, decode_s; {} → peak_bytes of the process."""

import argparse
import json
import resource
import sys
import time
from pathlib import Path

import torch
from katt_peers.server import keep_freed_memory
from torch.nn import functional

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
STORED = {"F32": torch.float32, "BF16": torch.bfloat16}  # of safetensors


def read_safetensors(path, dtype):
    """The tensors of a file, by name."""
    data = bytearray(path.read_bytes())
    begin = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:begin]).items():
        if name != "__metadata__":
            first, end = entry["data_offsets"]
            stored = STORED[entry["dtype"]]
            flat = torch.frombuffer(data, dtype=stored, count=(end - first) // stored.itemsize, offset=begin + first)
            tensors[name] = flat.view(entry["shape"]).to(dtype, copy=True)
    return tensors


class Cache:
    """Keys and values of every block, with room for all tokens."""

    def __init__(self, config, capacity, dtype):
        shape = (1, config["num_key_value_heads"], capacity, config["head_dim"])
        self.of_blocks = [(torch.empty(shape, dtype=dtype), torch.empty(shape, dtype=dtype))
                          for _ in range(config["num_hidden_layers"])]
        self.length = 0

    def append(self, layer, *new):
        """Keys and values of a block, with the new ones."""
        end = self.length + new[0].shape[2]
        for tensor, part in zip(self.of_blocks[layer], new, strict=True):
            tensor[:, :, self.length:end] = part
        return [tensor[:, :, :end] for tensor in self.of_blocks[layer]]


class Llama:
    """The parameters of a Hugging Face checkpoint."""

    def __init__(self, folder, dtype, seq):
        self.config = json.loads((folder / "config.json").read_text())
        self.weights = read_safetensors(folder / "model.safetensors", dtype)
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

    def rope(self, x, first):
        rows = slice(first, first + x.shape[2])
        a, b = x.chunk(2, dim=-1)
        return x * self.cos[rows].to(x.dtype) + torch.cat((-b, a), dim=-1) * self.sin[rows].to(x.dtype)

    def block(self, x, layer, cache):
        heads, kv_heads = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        prefix = f"model.layers.{layer}."
        n = self.norm(x, prefix + "input_layernorm")
        attention = prefix + "self_attn."
        first = cache.length if cache else 0
        q = self.rope(self.heads(n, attention + "q_proj", heads), first)
        k = self.rope(self.heads(n, attention + "k_proj", kv_heads), first)
        v = self.heads(n, attention + "v_proj", kv_heads)
        if cache:
            k, v = cache.append(layer, k, v)
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1, enable_gqa=heads != kv_heads)
        x = x + self.linear(out.transpose(1, 2).flatten(2), attention + "o_proj")
        n = self.norm(x, prefix + "post_attention_layernorm")
        gate = functional.silu(self.linear(n, prefix + "mlp.gate_proj"))
        return x + self.linear(gate * self.linear(n, prefix + "mlp.up_proj"), prefix + "mlp.down_proj")

    def hidden(self, ids, cache=None):
        x = functional.embedding(ids, self.weights["model.embed_tokens.weight"])
        for layer in range(self.config["num_hidden_layers"]):
            x = self.block(x, layer, cache)
        if cache:
            cache.length += ids.shape[1]
        return x

    def logits(self, x):
        head = "model.embed_tokens" if self.config["tie_word_embeddings"] else "lm_head"
        return self.linear(self.norm(x, "model.norm"), head)

    def loss(self, ids, targets):
        return functional.cross_entropy(self.logits(self.hidden(ids)).float().flatten(0, 1), targets.flatten())

    @torch.inference_mode()
    def generate(self, ids, new):
        """Greedy; the first token is part of prefill. It computes only the logits of a prompt's
        last token."""
        cache = Cache(self.config, len(ids) + new, self.weights["model.norm.weight"].dtype)
        times, tokens, given = [time.perf_counter()], [], torch.tensor([ids])
        for _ in range(new):
            given = self.logits(self.hidden(given, cache)[:, -1:]).argmax(-1)
            tokens.append(int(given))
            times.append(time.perf_counter())
        return {"tokens": tokens, "prefill_s": times[1] - times[0], "decode_s": times[-1] - times[1]}


class Trainer:
    """Steps over a text, a token a byte: row r begins at token r · seq, and its targets are shifted by one."""

    def __init__(self, options):
        keeps_masters = options.weights == "f32"
        self.model = Llama(options.model, DTYPES[options.weights], options.seq)
        self.autocast = torch.autocast("cpu", torch.bfloat16, enabled=keeps_masters and options.dtype == "bf16")
        self.text = torch.frombuffer(bytearray(options.text.read_bytes()), dtype=torch.uint8).long()
        self.batch, self.seq = options.batch, options.seq
        weights = [tensor.requires_grad_() for tensor in self.model.weights.values()]
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


def model_options():
    """A parser of what every peer is told."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--dtype", choices=DTYPES, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--seq", type=int, required=True, help="tokens of a row, or of a prompt and what follows it")
    return parser


def serve(answer, replies=None):
    """Answers the requests of standard input, to standard output or another file."""
    for line in sys.stdin:
        request = json.loads(line)
        peak = {"peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
        print(json.dumps(answer(request) if request else peak), file=replies, flush=True)


def main():
    parser = model_options()
    parser.add_argument("--text", type=Path, help="what to train on")
    parser.add_argument("--weights", choices=DTYPES, default="f32", help="of training; f32: masters, with autocast in bf16")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--lr", type=float)
    options = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(options.threads)
    if options.text:
        trainer = Trainer(options)

        def steps(request):
            losses, times = zip(*(trainer.step() for _ in range(request["steps"])), strict=True)
            return {"loss": losses, "time_s": times}

        serve(steps)
    else:
        model = Llama(options.model, DTYPES[options.dtype], options.seq)
        serve(lambda request: model.generate(request["tokens"], request["new"]))


if __name__ == "__main__":
    main()
