"""experiments/calibration/run.py: repeats in one file, continued by the next call, and what the report makes of them."""

import os
import subprocess
import sys

import h5py
import pytest
from conftest import ROOT

pytest.importorskip("katt_report.published.machine", reason="katt-report is not installed in this Python")
SWEEP = 'op = "rmsnorm"\ntokens = 64\nhidden = 64\nrounds = 7\nthreads = 1\nvariant = ["naive", "fused"]\n'


def calibrate(katt, *arguments):
    return subprocess.run(
        [sys.executable, ROOT / "experiments" / "calibration" / "run.py", "--sweep", "sweep.toml", "--pause-s", "0", "-o",
         "out", *arguments], cwd=katt.folder, check=False, capture_output=True, text=True, timeout=300,
        env={**os.environ, "KATT": str(katt.quick())},
    )  # fmt: skip


def test_repeats_are_runs_of_one_file_and_go_on(katt):
    (katt.folder / "sweep.toml").write_text(SWEEP)
    first = calibrate(katt, "--repeats", "3", "--minutes", "1e-9")
    assert first.returncode == 0, first.stderr
    assert "out/calibration.h5: 1 repeats, 2 to come" in first.stdout
    assert [file.name for file in (katt.folder / "out").iterdir()] == ["calibration.h5"]
    done = calibrate(katt, "--repeats", "3")
    assert done.returncode == 0, done.stderr
    assert "repeat 2 of 3" in done.stderr and "duplicates" not in done.stderr
    with h5py.File(katt.folder / "out" / "calibration.h5") as file:
        assert len(file["runs"]) == 3 and len(file["points"]) == 6
    names = sorted(file.name for file in (katt.folder / "out").iterdir())
    assert names == ["alarms.csv", "calibration.h5", "coverage.png"], "README.md only below results/MACHINE"
    assert (katt.folder / "out" / "coverage.png").stat().st_size > 1000


def test_a_sweep_that_fails_leaves_the_file(katt):
    (katt.folder / "sweep.toml").write_text(SWEEP)
    assert calibrate(katt, "--repeats", "1").returncode == 0
    before = (katt.folder / "out" / "calibration.h5").read_bytes()
    (katt.folder / "sweep.toml").write_text(SWEEP.replace("rmsnorm", "rmsnorn"))
    done = calibrate(katt, "--repeats", "2")
    assert done.returncode == 2 and "did you mean rmsnorm" in done.stderr
    assert (katt.folder / "out" / "calibration.h5").read_bytes() == before
    assert [file.name for file in (katt.folder / "out").iterdir()] == ["calibration.h5"]
