"""Ranks send device memory by NCCL between devices, by MPI if it takes device memory, else staged
through the hosts. On a device in software NCCL and such an MPI are our doubles (tests/ranks); NCCL
itself needs several GPUs."""

import json
import os
import re
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest
from conftest import own_words
from test_ranks import MPIRUN, expected, ranks, training  # noqa: F401

BUILD = Path(os.environ.get("KATT_BUILD_DIR", "")) / "tests"
STAGED = "MPI, staged through pinned host memory"
DIRECT = "MPI, from device memory"


@pytest.fixture
def build(katt):
    """The output of `katt info` on the build; the doubles are for a device in software."""
    info = json.loads(katt("info", "--json").stdout)
    if info["build"]["nccl"].startswith("none: built") or MPIRUN is None:
        pytest.skip("built without NCCL, or no mpirun")
    if "SOFTCUDA_LIBRARIES" not in os.environ:
        pytest.skip("real devices: scripts/gpu_run ranks tests NCCL where there are several")
    return info["build"]


def with_double(**more):
    """The environment of ranks with four devices each, of which a rank takes the one of its number."""
    return {"SOFTCUDA_DEVICES": "4", "LD_LIBRARY_PATH": f"{BUILD / 'nccl_double'}:{os.environ['LD_LIBRARY_PATH']}", **more}


def communicators(count, transport, env, tests="Communicator.*", *options):
    done = subprocess.run(
        [MPIRUN, "-q", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1",
         "-n", str(count), BUILD / "test_device", "--gtest_brief=1", f"--gtest_filter={tests}", "--transport",
         transport, *options],
        env={**os.environ, "OMP_NUM_THREADS": "1", **env}, capture_output=True, text=True, timeout=300)
    done.stderr = own_words(done.stderr)
    return done


def test_info_tells_the_library(build):
    """The library that the build found has every function that is called."""
    assert re.fullmatch(r"\d+\.\d+\.\d+", build["nccl"])
    assert build["mpi_takes_device_memory"] is False


@pytest.mark.parametrize("count", [2, 4])
def test_nccl(build, count):
    done = communicators(count, "NCCL", with_double())
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("transport, env", [
    (STAGED, {"SOFTCUDA_DEVICES": "1"}),  # NCCL does not take two ranks on a device
    (DIRECT, {"SOFTCUDA_DEVICES": "1", "LD_PRELOAD": str(BUILD / "libcuda_aware_mpi.so")}),
], ids=["staged", "direct"])
def test_mpi(build, transport, env):
    done = communicators(3, transport, {**with_double(), **env})
    assert done.returncode == 0, done.stdout + done.stderr


def test_training_over_nccl(build, ranks, expected, monkeypatch):  # noqa: F811
    for name, value in with_double().items():
        monkeypatch.setenv(name, value)
    steps = 2
    ranks.runs(2, *training(expected, steps=steps), "--tensor", 2, "--backend", "cuda", "--log", "log.h5", timeout=600)
    with h5py.File(ranks.folder / "log.h5") as log:
        assert log.attrs["transport"] == "NCCL"
        np.testing.assert_allclose(log["loss"][...], expected["train/losses"][:steps], rtol=2e-4)


@pytest.mark.parametrize("call", ["ncclGetUniqueId:0", "ncclCommInitRankConfig:1", "ncclAllReduce:1"])
def test_an_error_names_rank_and_host(build, call):
    done = communicators(2, "NCCL", with_double(KATT_NCCL_DOUBLE_FAIL=call), "Communicator.AllReduceIsInF32",
                         "--gtest_catch_exceptions=0")
    assert done.returncode != 0
    rank = call.split(":")[1]
    said = rf"rank {rank} of 2 on \S+: .*NCCL: unhandled system error: .*asked to fail"
    assert re.search(said, done.stderr), done.stderr
