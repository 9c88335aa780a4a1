"""Greedy generation with mistral.rs, its defaults but for the number of threads and the cache of prompts: the requests of
torch_llama.py. It takes prompts as text, so a token is a word here: its number, with a letter for each digit. Its times
are its own, in milliseconds."""

import json
import os

from katt_peers.server import private_lines
from torch_llama import model_options, serve

LETTERS = "abcdefghij"


def word(number):
    return "".join(LETTERS[int(digit)] for digit in str(number))


def number(word):
    return int("".join(str(LETTERS.index(letter)) for letter in word))


def write_folder(folder, model):
    """The model with a tokenizer of such words."""
    folder.mkdir(exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        if not (folder / name).exists():
            (folder / name).symlink_to((model / name).resolve())
    count = json.loads((model / "config.json").read_text())["vocab_size"]
    spaced = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}  # a blank is a Ġ
    end = {"id": count, "content": "</s>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
           "special": True}  # fmt: skip
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [end], "normalizer": None,
                 "pre_tokenizer": spaced, "post_processor": None, "decoder": spaced,
                 "model": {"type": "WordLevel", "vocab": {f"Ġ{word(n)}": n for n in range(count)},
                           "unk_token": f"Ġ{word(0)}"}}  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))


class Model:
    def __init__(self, folder, dtype):
        import mistralrs  # after the number of threads is set

        self.request = mistralrs.CompletionRequest
        dtype = {"f32": mistralrs.ModelDType.F32, "bf16": mistralrs.ModelDType.BF16}[dtype]
        which = mistralrs.Which.Plain(model_id=str(folder), arch=mistralrs.Architecture.Llama, dtype=dtype)
        self.runner = mistralrs.Runner(which=which, prefix_cache_n=0)

    def generate(self, ids, new):
        request = self.request(" ".join(map(word, ids)), model="default", max_tokens=new, temperature=0.0,
                               top_k=1, ignore_eos=True)  # fmt: skip
        made = self.runner.send_completion_request(request)
        if (made.usage.prompt_tokens, made.usage.completion_tokens) != (len(ids), new):
            raise RuntimeError(f"mistral.rs counts {made.usage.prompt_tokens} tokens and {made.usage.completion_tokens} new")
        return {"tokens": [number(word) for word in made.choices[0].text.split()],
                "prefill_s": made.usage.total_prompt_time_sec, "decode_s": made.usage.total_completion_time_sec}  # fmt: skip


def main():
    options = model_options().parse_args()
    os.environ["RAYON_NUM_THREADS"] = str(options.threads)
    folder = options.model / "mistral_rs"
    write_folder(folder, options.model)
    _, replies = private_lines()  # it writes its messages to standard output
    model = Model(folder, options.dtype)
    serve(lambda request: model.generate(request["tokens"], request["new"]), replies)


if __name__ == "__main__":
    main()
