"""Inputs beside the tree that once had a wrong answer; each is skipped if it is missing. The tests
of their kinds, with other numbers, stand beside the mended code."""

import shutil

import h5py
import numpy as np
import pytest
from conftest import FAULTS_BESIDE, skipped_where_missing


def fault(name):
    return pytest.mark.parametrize("fault", [skipped_where_missing(FAULTS_BESIDE / name)])


@fault("layernorm_f32_1e20.h5")
@pytest.mark.parametrize("variant", ["auto", "naive"])
def test_layernorm(katt, fault, variant):
    katt.runs("run", "layernorm", "--in", fault, "--out", "out.h5", "--variant", variant)
    with h5py.File(fault) as case, h5py.File(katt.folder / "out.h5") as file:
        x, weight, bias, dout = (case[name][...].astype(np.float64) for name in ["x", "weight", "bias", "dout"])
        made = {name: file[name][...] for name in file}
        eps = case.attrs["eps"]
    away = x - x.mean(axis=1, keepdims=True)
    rstd = 1 / np.sqrt((away**2).mean(axis=1, keepdims=True) + eps)
    hat, g = away * rstd, dout * weight
    dx = rstd * (g - g.mean(axis=1, keepdims=True) - hat * (g * hat).mean(axis=1, keepdims=True))
    expected = {"out": hat * weight + bias, "dx": dx, "dweight": (dout * hat).sum(axis=0), "dbias": dout.sum(axis=0)}
    assert made.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(made[name], values, rtol=0, atol=1e-5 * np.abs(values).max(), err_msg=name)


PROMPT = ["--tokens", "1,5,17,90,3,3,42,8,60,11", "--max-new-tokens", 24]


@fault("llama_eos_list")
def test_a_list_of_ends(katt, fault):
    done = katt("generate", "--model", fault, *PROMPT, "--stop-at-eos")
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "71,57,67,49,95", done


@fault("llama_nan_weight")
def test_a_weight_that_is_not_finite(katt, fault):
    for how in [[], ["--temperature", 1]]:
        done = katt("generate", "--model", fault, *PROMPT, *how)
        assert done.returncode == 1 and done.stdout == "", done
        assert done.stderr.startswith("katt: the logits are not finite at position 9: ")


@fault("llama_index_and_file")
def test_an_index_beside_a_file(katt, fault, tmp_path):
    done = katt("generate", "--model", fault, *PROMPT)
    assert done.returncode == 0 and "the first is read" in done.stderr, done
    for file in fault.iterdir():
        if "index" not in file.name and "-of-" not in file.name:
            shutil.copy(file, tmp_path)
    alone = katt("generate", "--model", tmp_path, *PROMPT)
    assert alone.stderr == "" and alone.stdout.splitlines()[-1] == done.stdout.splitlines()[-1]
