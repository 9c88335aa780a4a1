"""Fixtures of the command-line tests: the program named by the variable KATT, run in a folder of its own.

KATT_BACKEND is "cuda" if the build has that backend; the tests of test_device_*.py need it."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import h5py
import pytest
from models import CONFIG, results_of, write_safetensors

ROOT = Path(__file__).resolve().parents[2]
# The cases of the tree, and those beside it where there are some.
CASES = ROOT / "tests" / "cases"
CASES_BESIDE = ROOT.parent / "shared" / "cases"
FAULTS_BESIDE = ROOT.parent / "shared" / "faults"  # inputs that once had a wrong answer
sys.path.insert(0, str(CASES))  # the checker

TINY = CASES / "llama_tiny"

# All cases (`scripts/soak all`); else tests that take minutes run some of each kind.
ALL_CASES = "KATT_ALL_CASES" in os.environ

BACKEND = os.environ.get("KATT_BACKEND", "openmp")
collect_ignore_glob = [] if BACKEND == "cuda" else ["test_device_*.py"]


def pytest_addoption(parser):
    """Options of scripts/soak beyond the suite."""
    parser.addoption("--all-faults", action="store_true", help="test_file_faults.py: every call of every command")
    parser.addoption("--kills", type=int, default=8, help="test_kills.py: how many of sweeps, and of training")


def skipped_where_missing(path):
    """The path as a parameter of a test; a missing path counts as skipped."""
    missing = pytest.mark.skipif(not path.exists(), reason=f"no {os.path.relpath(path, ROOT)}")
    return pytest.param(path, id=os.path.relpath(path, ROOT), marks=missing)


RACE = re.compile(r"^softcuda: .*: race on ")


def own_words(stderr):
    """A program's stderr, without the lines that a device in software adds for tests/with_device:
    the kernels that ran, whose names go to its list, and races, which must not occur."""
    lines = stderr.splitlines(keepends=True)
    assert [line for line in lines if RACE.match(line)] == []
    traced = [line for line in lines if line.startswith("softcuda: trace: ")]
    if "KATT_KERNEL_LOG" in os.environ:
        names = {line.split(": kernel ")[1].split()[0] for line in traced if ": kernel " in line}
        with open(Path(os.environ["KATT_KERNEL_LOG"]) / f"{os.getpid()}.pytest", "a", encoding="utf-8") as log:
            log.writelines(f"{name}\n" for name in sorted(names))
    return "".join(line for line in lines if not line.startswith("softcuda: trace: "))


def said_by_katt(done):
    """The lines of the program among those of others, of mpirun or of a device."""
    return [line for line in done.stderr.splitlines() if line.startswith("katt: ")]


def refusal_of(done):
    """The one line with which ranks end in status 2."""
    lines = said_by_katt(done)
    assert (done.returncode, done.stdout, len(lines)) == (2, "", 1), (done.returncode, done.stdout, done.stderr)
    return lines[0]


def ended(pid, zombies=True):
    """True once a process has ended, within half a minute. Whoever inherits the children of a killed one may leave them
    as zombies: the first process of a container does."""
    for _ in range(300):
        try:
            state = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if zombies and state == "Z":
            return True
        time.sleep(0.1)
    return False


class Runs:
    def runs(self, *arguments, **options):
        """The end of a call; checks status 0."""
        done = self(*arguments, **options)
        assert done.returncode == 0, (arguments, done.stderr)
        return done


class Program(Runs):
    """The built program, started in a folder of its own. Sweeps begin without the seconds that the ceilings take,
    unless a test asks for them."""

    def __init__(self, path, folder):
        self.path = path
        self.folder = folder

    def command(self, arguments, ceilings):
        words = [str(self.path), *map(str, arguments)]
        if words[1:2] != ["sweep"] or ceilings:
            return words
        return [*words, "--no-ceilings", *([] if "--bind" in words else ["--bind", "0"])]

    def __call__(self, *arguments, env=None, timeout=120, ceilings=False):
        done = subprocess.run(self.command(arguments, ceilings), cwd=self.folder, capture_output=True, text=True,
                              timeout=timeout if BACKEND == "openmp" else 600, env={**os.environ, **(env or {})})
        done.stderr = own_words(done.stderr)
        return done

    def start(self, *arguments):
        return subprocess.Popen(self.command(arguments, ceilings=False), cwd=self.folder, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def quick(self):
        """The path of a script that starts the program, and leaves the ceilings out of sweeps: for scripts that name it."""
        path = self.folder / "quick"
        path.write_text(f'#!/bin/sh\n[ "$1" != sweep ] || set -- "$@" --no-ceilings\nexec "{self.path}" "$@"\n')
        path.chmod(0o755)
        return path

    def refuses(self, *arguments):
        """The one line of stderr with which the program refuses; checks status 2 and no new or changed file."""
        before = self.files()
        done = self(*arguments, ceilings=True)
        assert done.returncode == 2, (arguments, done.returncode, done.stderr)
        assert done.stdout == ""
        lines = done.stderr.splitlines()
        assert len(lines) == 1, (arguments, done.stderr)
        assert lines[0].startswith("katt: ")
        assert self.files() == before, "a refused command leaves nothing behind"
        return lines[0]

    def rows(self, name="out.h5"):
        """The table of a result file."""
        with h5py.File(self.folder / name) as file:
            return file["points"][:]

    def variants(self, name="out.h5"):
        """The last row of each variant."""
        return {row["variant"].decode(): row for row in self.rows(name)}

    def files(self):
        """The time of the last change of each file, without folders: a lock comes and goes in
        them."""
        return {path: 0 if path.is_dir() else path.lstat().st_mtime_ns for path in self.folder.rglob("*")}


def program_in(folder):
    """The program that KATT names, to run in a folder."""
    return Program(os.environ.get("KATT") or pytest.skip("KATT does not name the program"), folder)


@pytest.fixture
def katt(tmp_path):
    return program_in(tmp_path)


@pytest.fixture(scope="session")
def with_mpi(tmp_path_factory):
    """Skips what needs several ranks where there is no mpirun, or the program was built without MPI."""
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun")
    done = program_in(tmp_path_factory.mktemp("info")).runs("info", "--json")
    if json.loads(done.stdout)["build"]["mpi"].startswith("none"):
        pytest.skip("built without MPI")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASAN_OPTIONS", "detect_leaks=0")  # MPI keeps memory that it allocates at its start
        yield


@pytest.fixture
def faulty(tmp_path):
    """The program with a variant of softmax that faults (tests/cli/faulty)."""
    path = Path(os.environ.get("KATT_BUILD_DIR", "")) / "tests" / "katt_faulty"
    if not path.is_file():
        pytest.skip("KATT_BUILD_DIR does not hold tests/katt_faulty")
    return Program(path, tmp_path)


@pytest.fixture(params=map(skipped_where_missing, [TINY, CASES_BESIDE / "llama_tiny"]))
def checkpoint(request):
    """A checkpoint's folder: that of the tree, and another one where it is there."""
    return request.param


@pytest.fixture
def expected(checkpoint):
    return results_of(checkpoint)


@pytest.fixture
def random_model(tmp_path):
    """A folder that holds config.json alone: a model with random parameters."""
    folder = tmp_path / "random"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("the quick brown fox jumps over the lazy dog. " * 40)
    return path


@pytest.fixture
def model(tmp_path):
    """Writes a model's folder from tensors."""
    def write(tensors, **changes):
        folder = tmp_path / "model"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
        write_safetensors(folder / "model.safetensors", tensors)
        return folder

    return write
