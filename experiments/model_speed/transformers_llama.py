"""Greedy generation with transformers' LLaMA and its cache, attention "sdpa": the requests of torch_llama.py."""

import time

import torch
import transformers
from katt_peers.server import keep_freed_memory
from torch_llama import DTYPES, model_options, serve


@torch.inference_mode()
def generate(model, ids, new):
    times, tokens, given = [time.perf_counter()], [], torch.tensor([ids])
    cache = transformers.DynamicCache(config=model.config)
    for _ in range(new):
        given = model(given, past_key_values=cache, use_cache=True, logits_to_keep=1).logits.argmax(-1)
        tokens.append(int(given))
        times.append(time.perf_counter())
    return {"tokens": tokens, "prefill_s": times[1] - times[0], "decode_s": times[-1] - times[1]}


def main():
    options = model_options().parse_args()
    keep_freed_memory()
    torch.set_num_threads(options.threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        options.model, dtype=DTYPES[options.dtype], attn_implementation="sdpa").eval()
    serve(lambda request: generate(model, request["tokens"], request["new"]))


if __name__ == "__main__":
    main()
