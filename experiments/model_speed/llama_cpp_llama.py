"""Greedy generation with llama.cpp, its defaults but for the number of threads: the requests of torch_llama.py. Keys and
values are f16 then, also of a model in f32, which it is slower with if they are f32. The model is written as a GGUF file beside
its Hugging Face folder first."""

import ctypes
import json
import time

import gguf
import llama_cpp
import numpy as np
import torch
from torch_llama import DTYPES, model_options, read_safetensors, serve

STORED = {"f32": gguf.GGMLQuantizationType.F32, "bf16": gguf.GGMLQuantizationType.BF16}
NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
         "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
         "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}  # fmt: skip


def gguf_name(name):
    """The name of a tensor of Hugging Face's LLaMA in GGUF."""
    name, kind = name.rsplit(".", 1)
    if name.startswith("model.layers."):
        layer, name = name.removeprefix("model.layers.").split(".", 1)
        return f"blk.{layer}.{NAMES[name]}.{kind}"
    return f"{NAMES[name]}.{kind}"


def in_pairs(weight, heads):
    """Rows of a projection whose rotary pairs lie side by side, as llama.cpp rotates them, in place of half a head apart."""
    return weight.view(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def write_gguf(folder, dtype, path):
    """Matrices in the dtype, the weights of norms in f32, no vocabulary."""
    config = json.loads((folder / "config.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    for name, tensor in read_safetensors(folder / "model.safetensors", DTYPES[dtype]).items():
        if "q_proj" in name or "k_proj" in name:
            tensor = in_pairs(tensor, heads if "q_proj" in name else kv_heads)
        stored = STORED[dtype if tensor.dim() == 2 else "f32"]
        if stored == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(gguf_name(name), tensor.float().numpy())
        else:
            writer.add_tensor(gguf_name(name), tensor.view(torch.uint8).numpy(), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@llama_cpp.llama_log_callback
def ignore(_level, _text, _data):
    """llama.cpp's description of a model."""


class Model:
    """A GGUF file with a cache for `capacity` tokens."""

    def __init__(self, path, capacity, threads):
        llama_cpp.llama_log_set(ignore, None)
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = capacity
        settings.n_threads = settings.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, settings)
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def next_token(self, ids):
        given = (llama_cpp.llama_token * len(ids))(*ids)
        if llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(given, len(ids))) != 0:
            raise RuntimeError("llama_decode failed")
        logits = llama_cpp.llama_get_logits_ith(self.context, -1)
        return int(np.ctypeslib.as_array(ctypes.cast(logits, ctypes.POINTER(ctypes.c_float)), (self.vocabulary,)).argmax())

    def generate(self, ids, new):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        times, tokens = [time.perf_counter()], []
        for _ in range(new):
            tokens.append(self.next_token(tokens[-1:] or ids))
            times.append(time.perf_counter())
        return {"tokens": tokens, "prefill_s": times[1] - times[0], "decode_s": times[-1] - times[1]}


def main():
    options = model_options().parse_args()
    path = options.model / f"{options.dtype}.gguf"
    if not path.exists():
        write_gguf(options.model, options.dtype, path)
    model = Model(path, options.seq, options.threads)
    serve(lambda request: model.generate(request["tokens"], request["new"]))


if __name__ == "__main__":
    main()
