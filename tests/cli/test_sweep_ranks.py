"""A sweep on several ranks of mpirun: one file, the rows of one rank, one line for what is wrong."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from conftest import ALL_CASES, ROOT, Runs, refusal_of, said_by_katt
from test_shards import ORDER, SWEEP, rows
from test_sweep import LONG, identities, table

MPIRUN = shutil.which("mpirun")
FAULTS = Path(os.environ.get("KATT_BUILD_DIR", "")) / "tests" / "libkatt_faults.so"
COLLECTIVE = ["sweep", "all_reduce", "--bytes", "64,128,256", "--rounds", 2]


class Ranks(Runs):
    """Runs the program on several ranks: ranks(4, "sweep", …)."""

    def __init__(self, katt):
        self.katt = katt

    def __call__(self, count, *arguments, ceilings=False, environment=()):
        exports = [word for name in environment for word in ("-x", f"{name}={environment[name]}")]
        command = [MPIRUN, "--allow-run-as-root", "--oversubscribe", *exports, "-n", count,
                   *self.katt.command(arguments, ceilings)]
        return subprocess.run(list(map(str, command)), cwd=self.katt.folder, capture_output=True, text=True, timeout=300,
                              errors="replace",  # mpirun may cut a letter where it ends ranks
                              env={**os.environ, "OMP_NUM_THREADS": "1"})


@pytest.fixture
def ranks(katt, with_mpi):
    return Ranks(katt)


def test_four_ranks_make_the_file_of_one(katt, ranks):
    katt.runs(*SWEEP, "-o", "one.h5")
    done = ranks.runs(4, *SWEEP, "-o", "four.h5", ceilings=True)
    assert rows(katt.folder / "four.h5") == rows(katt.folder / "one.h5")
    one, four = table(katt.folder / "one.h5"), table(katt.folder / "four.h5")
    assert list(one) == list(four)
    for name in ("flops", "bytes", "tile_q", "max_abs_err", "total_bytes", "workspace_bytes", "threads", "seq_kv"):
        assert np.array_equal(one[name], four[name], equal_nan=True), name
    with h5py.File(katt.folder / "four.h5") as file:
        # The ranks are on one node, which makes one run and measures its ceilings once.
        assert list(file["runs"]) == ["run-0001"] and len(file["ceilings/run-0001"]) > 3
        assert file["runs/run-0001"].attrs["status"] == "done"
        for row in file["points"][:]:
            samples = file[f"samples/run-0001/{row['point'].decode()}"][:]
            assert len(samples) == 3 and np.median(samples) == row["time_s"]
    # One rank prints: every case has its line once.
    cases = [line for line in done.stderr.splitlines() if "/16] " in line]
    assert len(cases) == 16 and sum("done after" in line for line in done.stderr.splitlines()) == 1
    assert sorted(entry.name for entry in katt.folder.iterdir()) == ["four.h5", "one.h5"]


@pytest.mark.skipif(not FAULTS.is_file(), reason="KATT_BUILD_DIR does not hold tests/libkatt_faults.so")
@pytest.mark.parametrize(("sweep", "call"), [(SWEEP, 1), (SWEEP, 12), (SWEEP, 40), (COLLECTIVE, 12), (COLLECTIVE, 30)])
def test_a_full_disk_is_one_line_of_all_ranks(katt, ranks, sweep, call):
    fault = {"LD_PRELOAD": FAULTS, "KATT_FAULT_FOLDER": katt.folder.resolve(), "KATT_FAULT_AT": call,
             "KATT_FAULT_KIND": "ENOSPC", "KATT_FAULT_LASTS": 1}  # fmt: skip
    done = ranks(3, *sweep, "-o", "out.h5", environment=fault)
    lines = said_by_katt(done)
    assert done.returncode == 1 and "No space left on device" in lines[-1], done.stderr
    assert sum("No space left on device" in line for line in lines) == 1 and "MPI_ABORT" not in done.stderr
    assert ": rank " not in lines[-1]  # all ranks end, none ends the others


def test_a_part_and_the_rest_on_ranks(katt, ranks):
    katt.runs(*SWEEP, "-o", "one.h5")
    some = [argument.replace("16:128:x2", "16,64") for argument in SWEEP]
    ranks.runs(2, *some, "-o", "out.h5")
    ranks.runs(3, *SWEEP, "-o", "out.h5", "--resume")
    columns = [name for name in ORDER if name != "point"]
    both = [sorted(table(katt.folder / name)[columns].to_records(index=False).tolist()) for name in ("one.h5", "out.h5")]
    assert both[0] == both[1]
    done = ranks(3, *SWEEP, "-o", "out.h5", "--resume")
    assert done.returncode == 0 and "nothing left to do" in done.stderr


def test_a_refused_row_is_a_row(katt, ranks):
    ranks.runs(2, "sweep", "attention", "--seq", "64", "--heads", "1", "--rounds", "1", "--threads", "1", "--variant",
               "flash", "--tile", "48x48,auto", "-o", "out.h5")
    frame = table(katt.folder / "out.h5").set_index("tile")
    assert frame.loc["48x48", "status"] == "skipped" and frame.loc["auto", "status"] == "ok"


@pytest.mark.parametrize(("arguments", "says"), [
    ((*SWEEP, "--dtype", "f99", "-o", "out.h5"), "f99"),
    ((*SWEEP,), "-o is missing"),
    ((*SWEEP, "--shard", "9/8", "-o", "out.h5"), "--shard"),
    (("sweep", "none.toml", "-o", "out.h5"), "none.toml"),
    ((*SWEEP, "-o", "there.h5"), "there.h5: exists"),  # only rank 0 looks
    (("merge", "there.h5", "-o", "out.h5"), "ranks"),
])
def test_bad_input_is_one_line_of_one_rank(katt, ranks, arguments, says):
    (katt.folder / "there.h5").write_text("kept")
    assert says in refusal_of(ranks(3, *arguments))
    assert [entry.name for entry in katt.folder.iterdir()] == ["there.h5"]
    assert (katt.folder / "there.h5").read_text() == "kept"


def ranks_of(katt):
    """Process ids of the program's ranks that run in the folder of the test."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "exe").samefile(katt.path) and (entry / "cwd").samefile(katt.folder):
                found.append(int(entry.name))
        except OSError:  # it has ended, or is not ours
            continue
    return found


def test_a_killed_rank_loses_nothing_that_is_finished(katt, ranks):
    """kill −9 of any rank ends the job; the file opens each time, holds what it held, and is completed at last."""
    random.seed(3)
    katt.runs(*LONG[:-1], "whole.h5")
    expected = identities(table(katt.folder / "whole.h5"))
    path = katt.folder / "out.h5"
    finished = []
    for _ in range(5 if ALL_CASES else 2):
        command = [MPIRUN, "--allow-run-as-root", "--oversubscribe", "-n", "3", katt.path, *LONG, "--no-ceilings", "--resume"]
        job = subprocess.Popen(command, cwd=katt.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while len(ranks_of(katt)) < 3 and job.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(random.uniform(0, 1.5))
        if victims := ranks_of(katt):
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(random.choice(victims), signal.SIGKILL)
        job.wait(timeout=60)
        rows_now = identities(table(path)) if path.exists() else []
        assert set(finished) <= set(rows_now), "a finished row is missing"
        assert len(set(rows_now)) == len(rows_now), "a row is there twice"
        finished = rows_now
    ranks.runs(3, *LONG, "--resume")
    assert identities(table(path)) == expected


def test_the_slurm_script(katt, ranks):
    (katt.folder / "sweep.toml").write_text('op = "rmsnorm"\ntokens = "1:8:x2"\nhidden = 64\nrounds = 1\nthreads = 1\n')
    environment = {**os.environ, "KATT": str(katt.quick()), "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

    def script(**more):
        return subprocess.run(["bash", ROOT / "examples" / "slurm" / "sweep_mpi.sh", "sweep.toml", "out.h5"],
                              cwd=katt.folder, env={**environment, **more}, capture_output=True, text=True,
                              timeout=120)  # fmt: skip

    for _ in range(2):  # submitted again it finds nothing left to do
        done = script(SLURM_JOB_NUM_NODES="1")
        assert done.returncode == 0, done.stderr
    assert "nothing left to do" in done.stderr
    assert sorted(set(table(katt.folder / "out.h5")["tokens"])) == [1, 2, 4, 8]
    assert script().returncode == 2
