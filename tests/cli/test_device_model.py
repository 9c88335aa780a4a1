"""LLaMA on `--backend cuda`: logits, greedy tokens and training as PyTorch's in f32, as on the host in 16 bits."""

import h5py
import numpy as np
import pytest
from models import ids, log_of, training


def logits(katt, checkpoint, prompt, *arguments):
    katt.runs("logits", "--model", checkpoint, "--tokens", ids(prompt), "--out", "out.h5", "--overwrite", *arguments)
    with h5py.File(katt.folder / "out.h5") as file:
        return file["logits"][...]


def test_logits(katt, checkpoint, expected):
    made = logits(katt, checkpoint, expected["prompt"], "--backend", "cuda")
    np.testing.assert_allclose(made, expected["logits"], atol=2e-5, rtol=0)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_logits_in_16_bits(katt, checkpoint, expected, dtype):
    """As far from PyTorch's in f32 as the host's are."""
    error = {}
    for backend in ("openmp", "cuda"):
        made = logits(katt, checkpoint, expected["prompt"], "--backend", backend, "--dtype", dtype)
        error[backend] = np.abs(made - expected["logits"]).max()
    assert 0 < error["cuda"] <= 2 * error["openmp"]


@pytest.mark.parametrize("arguments", [[], ["--chunk", "7"], ["--dtype", "bf16"], ["--dtype", "f16"]])
def test_greedy_continuation(katt, checkpoint, expected, arguments):
    command = ("generate", "--model", checkpoint, "--tokens", ids(expected["prompt"]), "--max-new-tokens",
               len(expected["greedy"]), *arguments)  # fmt: skip
    made = katt.runs(*command, "--backend", "cuda").stdout.splitlines()[-1]
    if "--dtype" in arguments:
        assert made == katt.runs(*command, "--backend", "openmp").stdout.splitlines()[-1]
    else:
        assert made == ids(expected["greedy"])


def test_launches_without_a_graph_decode_the_same(katt, checkpoint, expected):
    command = ("generate", "--model", checkpoint, "--tokens", ids(expected["prompt"]), "--max-new-tokens",
               len(expected["greedy"]), "--backend", "cuda", "--no-graph", "--warm-up", 1)  # fmt: skip
    lines = katt.runs(*command).stdout.splitlines()
    assert "token    submitted as launches: no graph was asked for" in lines
    assert lines[-1] == ids(expected["greedy"])


def train(katt, words, *arguments):
    katt.runs(*words, "--log", "log.h5", "--overwrite", *arguments)
    log = log_of(katt.folder / "log.h5")
    return log["loss"], log["grad_norm"]


@pytest.mark.parametrize("arguments", [[], ["--checkpoint"]])
def test_trains_as_pytorch(katt, checkpoint, expected, arguments):
    steps = int(expected["options"]["steps"]) if not arguments else 3
    loss, norm = train(katt, training(checkpoint, expected, steps=steps), "--backend", "cuda", *arguments)
    np.testing.assert_allclose(loss, expected["train/losses"][:steps], rtol=1e-4)
    np.testing.assert_allclose(norm, expected["train/grad_norms"][:steps], rtol=1e-3)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_trains_in_16_bits_as_the_host(katt, checkpoint, expected, dtype):
    words = training(checkpoint, expected, steps=4)
    loss, norm = train(katt, words, "--backend", "cuda", "--dtype", dtype)
    host_loss, host_norm = train(katt, words, "--backend", "openmp", "--dtype", dtype)
    step = {"bf16": 2.0**-8, "f16": 2.0**-11}[dtype]
    np.testing.assert_allclose(loss, host_loss, rtol=step)
    np.testing.assert_allclose(norm, host_norm, rtol=8 * step)
    np.testing.assert_allclose(loss, expected["train/losses"][:4], rtol=4 * step)
