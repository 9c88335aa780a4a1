"""Fixtures of the command-line tests: the program named by the variable KATT, run in a folder of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# The cases of the tree, and those beside it where there are some.
CASES = ROOT / "tests" / "cases"
CASES_BESIDE = ROOT.parent / "shared" / "cases"
sys.path.insert(0, str(CASES))  # the checker

TINY = CASES / "llama_tiny"


def skipped_where_missing(path):
    """The path as a parameter of a test; one that is not there is reported as skipped."""
    missing = pytest.mark.skipif(not path.exists(), reason=f"no {os.path.relpath(path, ROOT)}")
    return pytest.param(path, id=os.path.relpath(path, ROOT), marks=missing)


class Program:
    """The built program, started in a folder of its own."""

    def __init__(self, path, folder):
        self.path = path
        self.folder = folder

    def __call__(self, *arguments, env=None, timeout=120):
        return subprocess.run(
            [self.path, *map(str, arguments)],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, **(env or {})},
        )

    def start(self, *arguments):
        return subprocess.Popen(
            [self.path, *map(str, arguments)],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def refuses(self, *arguments):
        """The one line of stderr with which the program refuses; checks status 2 and no new file."""
        before = {path: path.stat().st_mtime_ns for path in self.folder.rglob("*")}
        done = self(*arguments)
        assert done.returncode == 2, (arguments, done.returncode, done.stderr)
        assert done.stdout == ""
        lines = done.stderr.splitlines()
        assert len(lines) == 1, (arguments, done.stderr)
        assert lines[0].startswith("katt: ")
        after = {path: path.stat().st_mtime_ns for path in self.folder.rglob("*")}
        assert after == before, "a refused command leaves nothing behind"
        return lines[0]


@pytest.fixture
def katt(tmp_path):
    path = os.environ.get("KATT")
    if not path:
        pytest.skip("KATT does not name the program")
    return Program(path, tmp_path)
