"""`katt info`, `sweep`, `tune`, `memory` and the other commands on `--backend cuda`."""

import json

import h5py
import numpy as np
import pytest
from conftest import CASES, TINY

# Every operator on a small problem that fits no vector.
OPERATORS = {
    "attention": ("--seq", 33, "--seq-kv", 41, "--heads", 2, "--kv-heads", 1, "--head-dim", 40, "--causal", "1"),
    "rope": ("--seq", 9, "--heads", 2, "--kv-heads", 1, "--head-dim", 24),
    "rmsnorm": ("--tokens", 5, "--hidden", 67),
    "rmsnorm_linear": ("--tokens", 5, "--hidden", 67, "--out-features", 33),
    "layernorm": ("--tokens", 5, "--hidden", 67),
    "softmax": ("--tokens", 5, "--vocab", 67),
    "swiglu": ("--tokens", 5, "--intermediate", 67),
    "swiglu_mlp": ("--tokens", 5, "--hidden", 24, "--intermediate", 40),
    "linear": ("--tokens", 5, "--in-features", 40, "--out-features", 33),
    "embedding": ("--tokens", 5, "--vocab", 19, "--hidden", 33),
    "cross_entropy": ("--tokens", 5, "--vocab", 67),
    "linear_cross_entropy": ("--tokens", 5, "--hidden", 24, "--vocab", 67),
    "ternary_linear": ("--tokens", 3, "--in-features", 72, "--out-features", 33),
    "convert": ("--tokens", 5, "--hidden", 67),
    "llama_block": ("--seq", 9, "--hidden", 32, "--intermediate", 48, "--heads", 4, "--kv-heads", 2, "--head-dim", 8),
}


@pytest.fixture
def info(katt):
    done = katt.runs("info", "--json", "--measure")
    return json.loads(done.stdout)


def is_emulated(info):
    device = next(backend["device"] for backend in info["backends"] if backend["name"] == "cuda")
    return "interpreter" in device


def test_info(info):
    assert all(backend["available"] for backend in info["backends"])
    together = {"all_gather", "all_reduce", "reduce_scatter", "send_recv", "ring_attention", "tensor_parallel_block",
                "training_step"}  # on several ranks alone: test_device_ranks.py
    assert {op["name"] for op in info["operators"]} == set(OPERATORS) | together
    ceilings = {row["name"]: row["value"] for row in info["ceilings"] if row["threads"] == 0}
    assert set(ceilings) == {"fma_f32", "mma_bf16", "read_dram", "copy_dram"}
    for value in ceilings.values():  # of an emulated device, speed means nothing
        assert value is None if is_emulated(info) else value > 1e9


def test_a_candidate_on_a_device_is_not_caged(katt):
    line = katt.refuses("sweep", "softmax", "--backend", "cuda", "--candidate", "x.so", "--untrusted", "-o", "out.h5")
    assert "--untrusted: what uses a GPU writes to its driver" in line


def test_devices(katt, info):
    """Each is listed, can be chosen, and one that is not there is refused."""
    devices = info["devices"]
    assert [device["device"] for device in devices] == list(range(len(devices))) != []
    assert all(device["capability"] >= 70 and 0 < device["available_bytes"] <= device["memory_bytes"]
               for device in devices)  # fmt: skip
    if is_emulated(info):  # which has as many as it is asked for
        listed = katt("info", env={"SOFTCUDA_DEVICES": "2"}).stdout
        assert "device 0 " in listed and "device 1 " in listed
        devices = devices * 2
    last = len(devices) - 1
    run = ("run", "rope", "--in", CASES / "rope_bf16_llama3.h5", "--backend", "cuda")
    chosen = {"SOFTCUDA_DEVICES": str(len(devices))}
    katt.runs(*run, "--out", "last.h5", "--device", last, env=chosen)
    katt.runs(*run, "--out", "first.h5", env=chosen)
    with h5py.File(katt.folder / "last.h5") as one, h5py.File(katt.folder / "first.h5") as other:
        assert np.array_equal(one["out"][:], other["out"][:])
    beyond = katt(*run, "--out", "none.h5", "--device", last + 1, env=chosen)
    assert beyond.returncode == 2 and f"--device {last + 1}: expected 0" in beyond.stderr
    assert not (katt.folder / "none.h5").exists()


@pytest.mark.parametrize("op", OPERATORS)
def test_sweep(katt, op):
    """Every variant, dtype and pass is verified; what does not run is refused, and says why."""
    described = json.loads(katt("info", "--json").stdout)["operators"]
    passes = next(entry["passes"] for entry in described if entry["name"] == op)
    katt.runs("sweep", op, "--backend", "cuda", "--dtype", "f32,f16,bf16", "--pass", ",".join(passes), "--rounds", 1,
              "--budget-s", 0, *OPERATORS[op], "-o", "out.h5")
    rows = katt.rows()
    assert {row["backend"] for row in rows} == {b"cuda"}
    assert {row["pass"].decode() for row in rows} == set(passes)
    for direction in passes:
        for dtype in (b"f32", b"f16", b"bf16"):
            of = [row for row in rows if row["pass"].decode() == direction and row["dtype"] == dtype]
            ran = [row["variant"] for row in of if row["status"] == b"ok"]
            assert len(ran) >= 1, (direction, dtype)
            assert all(row["reason"] for row in of if row["status"] == b"skipped")
    for row in rows[rows["status"] == b"ok"]:
        assert row["device_bytes"] > 0 and np.isfinite(row["max_abs_err"])
        assert row["time_s"] > 0 and row["host_s"] > 0


def test_tune(katt):
    done = katt.runs("tune", "attention", "--backend", "cuda", "--seq", "64,65", "--heads", 1, "--head-dim", 64, "--dtype",
                     "bf16", "--variant", "flash_mma", "--rounds", 1, "--budget-s", 0, "-o", "tiles.json")
    assert "flash_mma" in done.stdout and "flash_mma" in (katt.folder / "tiles.json").read_text()


def test_memory(katt):
    done = katt.runs("memory", "--model", TINY, "--batch", 2, "--seq", 24, "--backend", "cuda", "--measure", "--json")
    staging = 2 * (4 << 20)  # the pinned chunks of a transfer, which the forecast of a model leaves out
    for use in json.loads(done.stdout).values():
        assert use["total_bytes"] == pytest.approx(use["measured_bytes"] - staging, rel=0.1)


def test_profile(katt):
    katt.runs("sweep", "llama_block", *OPERATORS["llama_block"], "--backend", "cuda", "--variant", "fused", "--rounds",
              1, "--budget-s", 0, "--profile", "-o", "out.h5")
    with h5py.File(katt.folder / "out.h5") as file:
        assert "profile/run-0001/000001" in file
