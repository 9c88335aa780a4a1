#!/usr/bin/env python3
"""Makes llama_tiny/: a small LLaMA as Hugging Face stores it, and what transformers and PyTorch compute from it.

Run once, with transformers 5.23, torch 2.15, h5py and safetensors (none of which the tests need but h5py):

    python tests/cases/make_llama_tiny.py

The model has what easily goes unnoticed in a round one: an odd vocabulary, three query heads to a K/V head, heads
whose sum is not the hidden size, tied embeddings, LLaMA 3.1's frequencies with wavelengths in each of its three
ranges, norm weights that are not 1, and parameters stored in bf16. expected.h5 holds

    prompt (P)  greedy (N)  int64    some tokens, and the most likely token after each prefix
    logits (P, V)           float64  of the prompt
    train/tokens            int32    microbatch m of step s takes the next batch rows of seq tokens; the target of
                                     a token is the next one
    train/losses, train/grad_norms (steps)  float64  mean over the microbatches of a step; global norm before clipping

and the options of the training as attributes of /train: AdamW as PyTorch has it, with decay on tensors of rank 2
and more. Everything is computed in float64, but for the norms and the angles, which transformers computes in float32
whatever the dtype.
"""

from pathlib import Path

import h5py
import numpy as np
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

FOLDER = Path(__file__).resolve().parent / "llama_tiny"
PROMPT, GREEDY = 40, 32
TRAIN = {"steps": 15, "batch": 3, "seq": 40, "accumulation": 2, "lr": 4e-3, "beta1": 0.9, "beta2": 0.95,
         "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0}


def make_model():
    """The model with random parameters that are numbers of bf16, in float32."""
    config = LlamaConfig(
        vocab_size=257, hidden_size=48, intermediate_size=104, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=256, rms_norm_eps=1e-5, initializer_range=0.1,
        tie_word_embeddings=True, bos_token_id=256, eos_token_id=10,
        rope_parameters={"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 64})
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                values = 1 + 0.2 * torch.randn(parameter.shape)
            elif name == "model.embed_tokens.weight":
                values = 0.3 * torch.randn(parameter.shape)
            else:
                values = 1.5 * torch.randn(parameter.shape) / parameter.shape[1] ** 0.5
            parameter.copy_(values.to(torch.bfloat16))
    return model


def chain(count, vocab):
    """Tokens of a chain in which four tokens may follow each one, unevenly: something that can be learnt."""
    following = torch.randint(vocab, (vocab, 4))
    steps = torch.multinomial(torch.tensor([0.6, 0.2, 0.1, 0.1]), count, replacement=True)
    tokens = [0]
    for step in steps[1:]:
        tokens.append(int(following[tokens[-1], step]))
    return torch.tensor(tokens)


def continue_greedily(model, prompt):
    """The next tokens, and the least lead of one over the second best."""
    text, lead = prompt.clone(), float("inf")
    for _ in range(GREEDY):
        best = torch.topk(model(text[None]).logits[0, -1], 2)
        lead = min(lead, float(best.values[0] - best.values[1]))
        text = torch.cat([text, best.indices[:1]])
    return text[len(prompt):], lead


def train(model, tokens):
    """(losses, grad_norms) of the steps; the model changes."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": TRAIN["weight_decay"]}, {"params": vectors, "weight_decay": 0.0}],
        lr=TRAIN["lr"], betas=(TRAIN["beta1"], TRAIN["beta2"]), eps=TRAIN["eps"])
    batch, seq, accumulation = TRAIN["batch"], TRAIN["seq"], TRAIN["accumulation"]
    at, losses, norms = 0, [], []
    for _ in range(TRAIN["steps"]):
        optimizer.zero_grad()
        loss = 0.0
        for _ in range(accumulation):
            rows = tokens[at:at + batch * seq].view(batch, seq)
            targets = tokens[at + 1:at + batch * seq + 1]
            at += batch * seq
            logits = model(rows).logits.view(batch * seq, -1)
            part = torch.nn.functional.cross_entropy(logits, targets) / accumulation
            part.backward()
            loss += part.item()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), TRAIN["clip"])))
        optimizer.step()
        losses.append(loss)
    return losses, norms


def main():
    torch.manual_seed(11)
    model = make_model()
    model.generation_config = GenerationConfig(bos_token_id=256, eos_token_id=10)
    model.to(torch.bfloat16).save_pretrained(FOLDER)
    model = LlamaForCausalLM.from_pretrained(FOLDER, dtype=torch.float64)
    vocab = model.config.vocab_size
    prompt = torch.randint(vocab, (PROMPT,))
    with torch.no_grad():
        logits = model(prompt[None]).logits[0]
        greedy, lead = continue_greedily(model, prompt)
    print(f"greedy {greedy.tolist()}, least lead {lead:.3g}, logits to {float(logits.abs().max()):.3g}")
    assert lead > 1e-3 and len(set(greedy.tolist())) > GREEDY // 2, "another seed: the greedy tokens must be clear"
    tokens = chain(TRAIN["steps"] * TRAIN["accumulation"] * TRAIN["batch"] * TRAIN["seq"] + 1, vocab)
    losses, norms = train(model, tokens)
    print("losses", *(f"{loss:.4f}" for loss in losses), "\nnorms ", *(f"{norm:.4f}" for norm in norms))
    with h5py.File(FOLDER / "expected.h5", "w") as file:
        file["prompt"] = prompt.numpy()
        file["greedy"] = greedy.numpy()
        file["logits"] = logits.numpy()
        group = file.create_group("train")
        group["tokens"] = tokens.numpy().astype(np.int32)
        group["losses"] = np.array(losses)
        group["grad_norms"] = np.array(norms)
        group.attrs.update(TRAIN)


if __name__ == "__main__":
    main()
