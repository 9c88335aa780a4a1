"""scripts/check_regression: what it compares, and the sweeps that it keeps, with programs that only copy files."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
MACHINE = "zen4-avx512bf16-2c"
INFO = '{"machine": {"cpu": "AMD EPYC", "cores": 2, "cpu_id": "AuthenticAMD 25 17", "isa": ["avx512f", "avx512_bf16"]}}'
PROGRAMS = {
    "build/openmp/katt": f"""
if [ "$1" = info ]; then echo '{INFO}'; else
  while [ "$1" != -o ]; do shift; done
  echo sweep >"$2"
  [ ! -f sweep_status ] || exit "$(cat sweep_status)"
fi""",
    "build/openmp/katt-report": 'echo "$@" >>calls; read -r status rest <answers; echo "$rest" >answers; exit "$status"',
    "build/venv/bin/python": f"cat >/dev/null; echo {MACHINE}",
}
NAMES_MACHINE = f'#!/bin/sh\nPYTHONPATH={REPOSITORY}/drivers/report exec {sys.executable} "$@"\n'


@pytest.fixture
def tree(tmp_path):
    for name in ("scripts/check_regression", "scripts/common.sh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    for name, text in PROGRAMS.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/usr/bin/env bash\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return tmp_path


def check(tree, *arguments, answers=""):
    (tree / "answers").write_text(answers + "\n")
    done = subprocess.run([tree / "scripts/check_regression", *arguments], capture_output=True, text=True, check=False,
                          env={**os.environ, "CI": ""})  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def kept(tree):
    return sorted(path.name for path in (tree / "build/regression/history" / MACHINE).iterdir())


def test_without_a_file_for_this_machine(tree):
    (tree / "build/venv/bin/python").write_text(NAMES_MACHINE)  # names it as the report does; elsewhere MACHINE is typed
    status, out = check(tree)
    assert status == 0
    assert f"no results/{MACHINE}/regression/regression.h5" in out
    assert kept(tree) == []


def test_update_keeps_the_file_that_it_replaces(tree):
    status, out = check(tree, "--update")
    assert status == 0
    baseline = tree / f"results/{MACHINE}/regression/regression.h5"
    assert baseline.read_text() == "sweep\n" and "scripts/measure --redraw regression" in out
    assert kept(tree) == []
    baseline.write_text("old\n")
    assert check(tree, "--update")[0] == 0
    (name,) = kept(tree)
    assert name.endswith("-replaced.h5")
    assert (tree / "build/regression/history" / MACHINE / name).read_text() == "old\n"
    assert f"katt-report history results/{MACHINE}/regression build/regression/history/{MACHINE} -o " in out


@pytest.mark.parametrize("status", [1, 130])
def test_a_failed_or_interrupted_sweep_is_said_and_replaces_nothing(tree, status):
    check(tree, "--update")
    baseline = tree / f"results/{MACHINE}/regression/regression.h5"
    baseline.write_text("old\n")
    (tree / "sweep_status").write_text(str(status))
    for arguments in (["--update"], []):
        ended, out = check(tree, *arguments)
        assert ended == status and f"exit status {status}; see build/regression/" in out
    assert baseline.read_text() == "old\n"


def test_every_sweep_is_kept(tree):
    check(tree, "--update")
    status, out = check(tree, answers="0")
    assert (status, len(kept(tree))) == (0, 1)
    assert "its history: " in out
    assert (
        f"compare results/{MACHINE}/regression/regression.h5 build/regression/history/{MACHINE}/"
        in (tree / "calls").read_text()
    )


@pytest.mark.parametrize(
    ("answers", "status", "sweeps"), [("1 1 1", 1, 3), ("1 3 1", 0, 3), ("1 0", 0, 2), ("2", 2, 1)]
)
def test_three_worse_sweeps_are_a_regression(tree, answers, status, sweeps):
    check(tree, "--update")
    assert check(tree, answers=answers)[0] == status
    assert len(kept(tree)) == sweeps
