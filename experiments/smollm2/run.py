#!/usr/bin/env python3
"""smollm2: katt.Llama beside transformers (attention "sdpa") on a folder of Hugging Face's: logits, greedy tokens and, a text
of each in turn, tokens a second of decoding, in f32 and bf16. Prints them; -o FILE.json keeps them."""

import argparse
import json
import statistics
import time
from pathlib import Path

import katt
import torch
import transformers

PROMPT = "Gravity is"
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


class Transformers:
    def __init__(self, folder, dtype):
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype]).eval()

    @torch.no_grad()
    def logits(self, ids):
        return self.model(torch.tensor([ids])).logits[0].float().numpy()

    @torch.no_grad()
    def generate(self, ids, count):
        out = self.model.generate(torch.tensor([ids]), max_new_tokens=count, min_new_tokens=count, do_sample=False)
        return out[0, len(ids) :].tolist()


class Katt:
    def __init__(self, folder, dtype):
        self.model = katt.Llama(folder, dtype=dtype, threads=torch.get_num_threads())

    def logits(self, ids):
        return self.model.logits(ids)

    def generate(self, ids, count):
        return self.model.generate(ids, count, stop_at_eos=False)


def seconds(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def rates(models, ids, tokens, rounds):
    """Tokens a second after the first one, by model and round: the time of 1 + tokens less that of one."""
    found = {name: [] for name in models}
    for round_ in range(rounds + 1):
        for name, model in models.items():
            first = seconds(lambda model=model: model.generate(ids, 1))
            all_ = seconds(lambda model=model: model.generate(ids, 1 + tokens))
            if round_ > 0:  # the first is a warm-up
                found[name].append(tokens / (all_ - first))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.json")
    options = parser.parse_args()
    result = {"model": options.folder.name, "prompt": PROMPT, "tokens": options.tokens, "commit": katt.__commit__,
              "torch": torch.__version__, "transformers": transformers.__version__,
              "threads": torch.get_num_threads(), "rows": []}  # fmt: skip
    exact = None  # logits of transformers in f32
    for dtype in DTYPES:
        models = {"katt": Katt(options.folder, dtype), "transformers": Transformers(options.folder, dtype)}
        tokenizer = models["katt"].model.tokenizer
        ids = tokenizer.encode(PROMPT).ids
        logits = {name: model.logits(ids) for name, model in models.items()}
        exact = logits["transformers"] if exact is None else exact
        errors = {name: float(abs(values - exact).max()) for name, values in logits.items()}
        texts = {name: model.generate(ids, options.tokens) for name, model in models.items()}
        speeds = rates(models, ids, options.tokens, options.rounds)
        same = next((n for n, (a, b) in enumerate(zip(*texts.values(), strict=True)) if a != b), options.tokens)
        row = {"dtype": dtype, "max_abs_logit": float(abs(exact).max()), "max_abs_logit_error": errors,
               "equal_greedy_tokens": same, "tokens_per_s": speeds, "text": tokenizer.decode(texts["katt"])}  # fmt: skip
        result["rows"].append(row)
        print(f"{dtype}: {same} of {options.tokens} greedy tokens are the same\n  {PROMPT}{row['text']}")
        for name, values in speeds.items():
            print(f"  {name}: logits up to {row['max_abs_logit']:.1f} within {errors[name]:.1e} of transformers' in f32, "
                  f"decoding {statistics.median(values):.0f} tokens/s")  # fmt: skip
    if options.output:
        options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
