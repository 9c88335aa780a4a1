"""Kernels that cheat, compiled by the test, as candidates of the program that KATT names."""

import os
import shutil
import subprocess
from pathlib import Path

import h5py
import pytest

ROOT = Path(__file__).resolve().parents[2]
EXPLOITS = Path(__file__).with_name("exploits")


class Referee:
    """Sweeps a candidate beside naive."""

    def __init__(self, program, folder, libraries):
        self.program = program
        self.folder = folder
        self.libraries = libraries

    def library(self, name, source=None):
        """The shared library of an exploit, or of another source."""
        path = self.libraries / f"{name}.so"
        if not path.exists():
            command = ["cc", "-O2", "-shared", "-fPIC", "-I", ROOT / "src" / "candidate", "-I", EXPLOITS,
                       source or EXPLOITS / f"{name}.c", "-o", path, "-lm", "-lpthread", "-ldl"]  # fmt: skip
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
        return path

    def run(self, *arguments, env=None):
        done = subprocess.run([self.program, *map(str, arguments)], cwd=self.folder, capture_output=True, text=True,
                              timeout=300, env={**os.environ, **(env or {})}, check=False)  # fmt: skip
        return done

    def sweep(self, path, *more, op="swiglu", size=("--tokens", 67, "--intermediate", 128), rounds=10, env=None):
        """The end of a sweep, and its rows by variant. A row above the ceilings would be suspect; a sweep without them
        is seconds shorter, and tests/cli/test_referee.py has verdicts with them."""
        done = self.run("sweep", op, *size, "--variant", "naive", "--candidate", path, "--rounds", rounds, "--threads", 2,
                        "--peer-timeout-s", 3, "-o", "out.h5", "--overwrite", "--no-ceilings", *more, env=env)  # fmt: skip
        if done.returncode == 2:
            return done, {}
        with h5py.File(self.folder / "out.h5") as file:
            return done, {row["variant"].decode(): row for row in file["points"][:]}


@pytest.fixture(scope="session")
def libraries(tmp_path_factory):
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    return tmp_path_factory.mktemp("libraries")


@pytest.fixture
def referee(tmp_path, libraries):
    program = os.environ.get("KATT") or pytest.skip("KATT does not name the program")
    return Referee(program, tmp_path, libraries)


@pytest.fixture(scope="session")
def cage():
    """Skips where the system has no sandbox."""
    landlock = Path("/sys/kernel/security/lsm")
    if landlock.exists() and "landlock" not in landlock.read_text():
        pytest.skip("a system without landlock")
