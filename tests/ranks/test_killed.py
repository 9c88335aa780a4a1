"""A rank that dies in the middle of an operation: the launcher ends the job within a minute and names it."""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

OPERATIONS = ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "barrier", "send_recv"]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_one_dies(operation):
    mpirun = shutil.which("mpirun")
    program = Path(os.environ.get("KATT_BUILD_DIR", "")) / "tests" / "test_ranks"
    if not mpirun:
        pytest.skip("no mpirun")
    start = time.monotonic()
    done = subprocess.run(
        [mpirun, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1",
         "-n", "3", program, "--gtest_also_run_disabled_tests",
         "--gtest_filter=*OneDies", "--operation", operation, "--victim", "1"],
        capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert re.search(r"rank 1\b.* on node \S+ exited on signal 9", done.stderr), done.stderr
    assert time.monotonic() - start < 60
