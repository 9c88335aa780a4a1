"""An environment with which a library would abort, crash or hang gives one line and status 2;
stdout stays ours."""

import json
import os
import resource
import subprocess

import h5py
import numpy as np
import pytest


def refused(done, *words):
    lines = done.stderr.splitlines()
    assert (done.returncode, done.stdout, len(lines)) == (2, "", 1), (done.returncode, done.stderr)
    assert lines[0].startswith("katt: ")
    for word in words:
        assert word in lines[0]


@pytest.mark.parametrize(("name", "value", "expected"), [
    ("KOKKOS_NUM_THREADS", "abc", "an integer from 1"),
    ("KOKKOS_NUM_THREADS", "0", "an integer from 1"),
    ("KOKKOS_NUM_THREADS", "99999999999999999999", "an integer from 1"),
    ("KOKKOS_DEVICE_ID", "first", "an integer from 0"),
    ("KOKKOS_DISABLE_WARNINGS", "maybe", "true or false"),
    ("KOKKOS_PRINT_CONFIGURATION", "\x1b[2J", "true or false"),
    ("KOKKOS_TUNE_INTERNALS", "2", "true or false"),
    ("KOKKOS_MAP_DEVICE_ID_BY", "foo", "random or mpi_rank"),
    ("OMP_NUM_THREADS", "100000", "an integer from 1 to 512"),
    ("OMP_NUM_THREADS", "abc", "an integer from 1 to 512"),
    ("OMP_NUM_THREADS", "0", "an integer from 1 to 512"),
    ("OMP_NUM_THREADS", "2,,2", "an integer from 1 to 512"),
    ("OMP_NUM_THREADS", "\x1b[2J\n", "an integer from 1 to 512"),
])
def test_variables(katt, name, value, expected):
    done = katt("info", env={name: value})
    refused(done, name, expected)
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize("environment", [
    {"OMP_NUM_THREADS": "2"},
    {"OMP_NUM_THREADS": " 2 , 1 "},
    {"OMP_NUM_THREADS": ""},
    {"KOKKOS_NUM_THREADS": "3"},
    {"KOKKOS_DISABLE_WARNINGS": "Yes"},
])
def test_good_variables(katt, environment):
    done = katt.runs("info", "--json", env=environment)
    assert json.loads(done.stdout)["version"]


def test_kokkos_describes_itself_on_stderr(katt):
    done = katt.runs("info", "--json", env={"KOKKOS_PRINT_CONFIGURATION": "1"})
    assert json.loads(done.stdout)["version"]
    assert "Kokkos Version" in done.stderr


def limited(katt, megabytes, *arguments):
    """The program with so much address space (ulimit -v)."""
    limit = megabytes << 20
    return subprocess.run([katt.path, *arguments], check=False, cwd=katt.folder, capture_output=True, text=True,
                          timeout=100, env={**os.environ, "OMP_NUM_THREADS": "1"},
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))  # fmt: skip


def test_little_address_space(katt):
    """OpenBLAS waits for ever for memory that it does not get; ceilings that have no room are NaN, and the rows are
    measured all the same."""
    if "address" in os.environ.get("KATT_SANITIZE", ""):
        pytest.skip("skipped: the address sanitizer reserves 16 TiB")
    if "openblas" not in katt("info").stdout.lower():
        pytest.skip("skipped: the BLAS is not OpenBLAS")
    done = limited(katt, 200, "--version")
    refused(done, "the address space is limited to 200 MiB (ulimit -v), expected at least ")
    enough = int(done.stderr.split("at least ")[1])
    assert limited(katt, enough, "--version").returncode == 0
    done = limited(katt, enough + 60, "sweep", "softmax", "--tokens", "4", "--vocab", "64", "--rounds", "1", "--threads",
                   "1", "-o", "out.h5")  # fmt: skip
    assert done.returncode == 0, done.stderr
    with h5py.File(katt.folder / "out.h5") as file:
        ceilings = {row["name"].decode(): row["value"] for row in file["ceilings/run-0001"][:]}
        assert set(file["points"]["status"]) == {b"ok"}
    assert ceilings["fma_f32"] > 0 and np.isnan(ceilings["read_dram"])
