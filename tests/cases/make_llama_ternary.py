#!/usr/bin/env python3
"""Makes llama_ternary/: a small LLaMA with ternary projections (BitNet b1.58), and what transformers and PyTorch
compute from it and from training it through the straight-through estimator.

Run once, with transformers 5.23, torch 2.15 and h5py:

    python tests/cases/make_llama_ternary.py

The projections of the blocks are transformers' AutoBitLinear with quantization_mode "online": weights are rounded to
{-1, 0, 1} times their mean magnitude and activations to 8 bits a token whenever they are used, and gradients pass
both roundings unchanged. Embedding, norms and head are not ternary. expected.h5 holds, beside what
make_llama_tiny.py says,

    train/gradients/NAME    float32  of the first step, before clipping

in float64 but for what transformers computes in float32 whatever the dtype: norms, angles and both roundings. A value
that falls beside a half in float32 and on the other side of it in another order of sums is rounded to another
number, so that logits and losses can be compared less closely than those of a model without roundings.
"""

import json
import os
from pathlib import Path

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # the roundings as they are written, not compiled
import h5py  # noqa: E402
import make_llama_tiny  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from make_llama_tiny import TRAIN, chain, continue_greedily, train  # noqa: E402
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM  # noqa: E402
from transformers.integrations.bitnet import AutoBitLinear  # noqa: E402

FOLDER = Path(__file__).resolve().parent / "llama_ternary"
PROMPT, GREEDY = 24, 16
QUANTIZATION = {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"}
GRADIENTS = ["layers.0.self_attn.k_proj", "layers.1.mlp.down_proj"]


def make_model():
    """The model with random parameters that are numbers of bf16, in float32."""
    config = LlamaConfig(
        vocab_size=67, hidden_size=32, intermediate_size=72, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=128, rms_norm_eps=1e-5, tie_word_embeddings=False,
        bos_token_id=66, eos_token_id=10)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                values = 1 + 0.2 * torch.randn(parameter.shape)
            elif "embed_tokens" in name or "lm_head" in name:
                values = 0.3 * torch.randn(parameter.shape)
            else:
                values = 1.5 * torch.randn(parameter.shape) / parameter.shape[1] ** 0.5
            parameter.copy_(values.to(torch.bfloat16))
    return model


def make_ternary(model):
    """Replaces the projections of the blocks."""
    for name, module in list(model.model.layers.named_modules()):
        if isinstance(module, torch.nn.Linear):
            ternary = AutoBitLinear(module.in_features, module.out_features, bias=False, dtype=module.weight.dtype,
                                    online_quant=True)
            ternary.weight = module.weight
            model.model.layers.set_submodule(name, ternary)


def first_gradients(model, tokens):
    """Gradients of the first step, by name."""
    rows = TRAIN["accumulation"] * TRAIN["batch"]
    logits = model(tokens[:rows * TRAIN["seq"]].view(rows, -1)).logits
    torch.nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), tokens[1:rows * TRAIN["seq"] + 1]).backward()
    gradients = {name: dict(model.named_parameters())[f"model.{name}.weight"].grad.clone() for name in GRADIENTS}
    model.zero_grad()
    return gradients


def main():
    torch.manual_seed(9)
    make_llama_tiny.GREEDY = GREEDY
    TRAIN.update(steps=12, batch=2, seq=32)
    model = make_model()
    model.generation_config = GenerationConfig(bos_token_id=66, eos_token_id=10)
    model.to(torch.bfloat16).save_pretrained(FOLDER)
    config = json.loads((FOLDER / "config.json").read_text())
    config["quantization_config"] = QUANTIZATION
    model = LlamaForCausalLM.from_pretrained(FOLDER, dtype=torch.float64)
    (FOLDER / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    make_ternary(model)
    vocab = model.config.vocab_size
    prompt = torch.randint(vocab, (PROMPT,))
    with torch.no_grad():
        logits = model(prompt[None]).logits[0]
        greedy, lead = continue_greedily(model, prompt)
    print(f"greedy {greedy.tolist()}, least lead {lead:.3g}, logits to {float(logits.abs().max()):.3g}")
    assert lead > 0.1 and len(set(greedy.tolist())) > GREEDY // 3, "another seed: the greedy tokens must be clear"
    tokens = chain(TRAIN["steps"] * TRAIN["accumulation"] * TRAIN["batch"] * TRAIN["seq"] + 1, vocab)
    gradients = first_gradients(model, tokens)
    losses, norms = train(model, tokens)
    print("losses", *(f"{loss:.4f}" for loss in losses), "\nnorms ", *(f"{norm:.4f}" for norm in norms))
    with h5py.File(FOLDER / "expected.h5", "w") as file:
        file["prompt"] = prompt.numpy()
        file["greedy"] = greedy.numpy()
        file["logits"] = logits.float().numpy()
        group = file.create_group("train")
        group["tokens"] = tokens.numpy().astype(np.int32)
        group["losses"] = np.array(losses)
        group["grad_norms"] = np.array(norms)
        for name, gradient in gradients.items():
            group[f"gradients/{name}"] = gradient.float().numpy()
        group.attrs.update(TRAIN)


if __name__ == "__main__":
    main()
