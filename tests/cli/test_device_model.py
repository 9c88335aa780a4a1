"""LLaMA on `--backend cuda`: logits, greedy tokens and training as PyTorch's in f32, as on the host in 16 bits."""

import h5py
import numpy as np
import pytest


def ids(tokens):
    return ",".join(str(token) for token in tokens)


def run(katt, *arguments):
    done = katt(*arguments)
    assert done.returncode == 0, (arguments, done.stderr)
    return done


def logits(katt, checkpoint, prompt, *arguments):
    run(katt, "logits", "--model", checkpoint, "--tokens", ids(prompt), "--out", "out.h5", "--overwrite", *arguments)
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
    made = run(katt, *command, "--backend", "cuda").stdout.splitlines()[-1]
    if "--dtype" in arguments:
        assert made == run(katt, *command, "--backend", "openmp").stdout.splitlines()[-1]
    else:
        assert made == ids(expected["greedy"])


def test_launches_without_a_graph_decode_the_same(katt, checkpoint, expected):
    command = ("generate", "--model", checkpoint, "--tokens", ids(expected["prompt"]), "--max-new-tokens",
               len(expected["greedy"]), "--backend", "cuda", "--no-graph", "--warm-up", 1)  # fmt: skip
    lines = run(katt, *command).stdout.splitlines()
    assert "token    submitted as launches: no graph was asked for" in lines
    assert lines[-1] == ids(expected["greedy"])


def train(katt, checkpoint, options, *arguments):
    numbers = [part for name, value in options.items() for part in ("--" + name, value)]
    run(katt, "train", "--model", checkpoint, "--data", checkpoint / "expected.h5", "--log", "log.h5", "--overwrite",
        *numbers, *arguments)  # fmt: skip
    with h5py.File(katt.folder / "log.h5") as file:
        return file["loss"][...], file["grad_norm"][...]


def options_of(expected, **changed):
    return {name: expected["options"][name] for name in ["steps", "batch", "seq", "accumulation", "lr"]} | changed


@pytest.mark.parametrize("arguments", [[], ["--checkpoint"]])
def test_trains_as_pytorch(katt, checkpoint, expected, arguments):
    steps = int(expected["options"]["steps"]) if not arguments else 3
    options = options_of(expected, steps=steps)
    loss, norm = train(katt, checkpoint, options, "--backend", "cuda", *arguments)
    np.testing.assert_allclose(loss, expected["train/losses"][:steps], rtol=1e-4)
    np.testing.assert_allclose(norm, expected["train/grad_norms"][:steps], rtol=1e-3)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_trains_in_16_bits_as_the_host(katt, checkpoint, expected, dtype):
    options = options_of(expected, steps=4)
    loss, norm = train(katt, checkpoint, options, "--backend", "cuda", "--dtype", dtype)
    host_loss, host_norm = train(katt, checkpoint, options, "--backend", "openmp", "--dtype", dtype)
    step = {"bf16": 2.0**-8, "f16": 2.0**-11}[dtype]
    np.testing.assert_allclose(loss, host_loss, rtol=step)
    np.testing.assert_allclose(norm, host_norm, rtol=8 * step)
    np.testing.assert_allclose(loss, expected["train/losses"][:4], rtol=4 * step)
