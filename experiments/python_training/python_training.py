#!/usr/bin/env python3
"""python_training: does a LLaMA of transformers train with Katt's attention as with PyTorch's, and what does it save?

Trains the same small LLaMA in mixed precision (f32 weights, bf16 by autocast), from the same weights and on the same tokens, with attn_implementation "sdpa" and
"katt", a step of each in turn, and times attention alone, forward and backward, on tensors of the model's shape, round by
round. Prints the losses and the median of the paired ratios; -o FILE.json keeps them.

Needs katt, PyTorch and transformers."""

import argparse
import json
import statistics
import time
from pathlib import Path

import katt.torch
import torch
import transformers

HEADS, HEAD_DIM = 8, 64


def model_of(implementation, seq):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=512, hidden_size=HEADS * HEAD_DIM, intermediate_size=1024, num_hidden_layers=2,
        num_attention_heads=HEADS, num_key_value_heads=HEADS // 2, max_position_embeddings=seq,
        attn_implementation=implementation,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def tokens_of(step, seq):
    """A text with something to learn: each token is the one before plus a small random step."""
    generator = torch.Generator().manual_seed(step)
    return torch.randint(0, 4, (1, seq), generator=generator).cumsum(1) % 512


def train(steps, seq):
    models = {name: model_of(name, seq) for name in ("sdpa", "katt")}
    optimizers = {name: torch.optim.AdamW(model.parameters(), lr=3e-4) for name, model in models.items()}
    losses = {name: [] for name in models}
    for step in range(steps):
        ids = tokens_of(step, seq)
        for name, model in models.items():
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(ids, labels=ids).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizers[name].step()
            optimizers[name].zero_grad()
            losses[name].append(loss.item())
    return losses


def attention_times(seq, rounds):
    """Seconds of forward and backward of causal attention by implementation, a run of each in every round."""
    q = torch.randn(1, HEADS, seq, HEAD_DIM, dtype=torch.bfloat16, requires_grad=True)
    k, v = (torch.randn(1, HEADS // 2, seq, HEAD_DIM, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    functions = {
        "sdpa": torch.nn.functional.scaled_dot_product_attention,
        "katt": katt.torch.scaled_dot_product_attention,
    }
    seconds = {name: [] for name in functions}
    for round_ in range(rounds + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            out = function(q, k, v, is_causal=True, enable_gqa=True)
            torch.autograd.grad(out, (q, k, v), out)
            if round_ > 0:  # the first is a warm-up
                seconds[name].append(time.perf_counter() - start)
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seq", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.json")
    options = parser.parse_args()
    katt.torch.register_transformers()
    seconds = attention_times(options.seq, options.rounds)
    ratios = [ours / theirs for ours, theirs in zip(seconds["katt"], seconds["sdpa"], strict=True)]
    medians = {name: statistics.median(values) * 1e3 for name, values in seconds.items()}
    print(
        f"attention, forward and backward, {options.seq} tokens, bf16, {torch.get_num_threads()} threads: "
        f"katt {medians['katt']:.1f} ms, sdpa {medians['sdpa']:.1f} ms, paired ratio {statistics.median(ratios):.2f}"
    )
    losses = train(options.steps, options.seq)
    for step, (ours, theirs) in enumerate(zip(losses["katt"], losses["sdpa"], strict=True)):
        print(f"step {step:3d}: loss katt {ours:.4f}, sdpa {theirs:.4f}")
    if options.output:
        result = {"seq": options.seq, "torch": torch.__version__, "commit": katt.__commit__,
                  "threads": torch.get_num_threads(), "attention_s": seconds, "ratio": statistics.median(ratios),
                  "losses": losses}  # fmt: skip
        options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
