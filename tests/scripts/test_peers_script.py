"""scripts/peers goes on when a package cannot be had, and tries it again; the Python and the pip here are scripts."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PYTHON = """#!/bin/sh
[ "$1 $2" = "-m venv" ] || exit 0
mkdir -p "$3/bin"
cp "$0" "$3/bin/python"
cp {pip} "$3/bin/pip"
printf '#!/bin/sh\\necho listed\\n' >"$3/bin/katt-peers"
chmod +x "$3/bin/katt-peers"
"""
PIP = """#!/bin/sh
for package; do :; done
echo "$package" >>{log}
case $package in $(cat {missing})*) echo "no $package"; exit 1 ;; esac
"""


@pytest.fixture
def peers(tmp_path):
    """A function that runs scripts/peers where pip cannot have a package: the process, and what pip was asked for."""
    for name in ("scripts/peers", "scripts/common.sh", "drivers/peers/pyproject.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "scripts" / "peers_requirements.txt").write_text("# comment\nnumpy==1\ntorch==2\nzentorch==3\n")
    log, missing, commands = tmp_path / "log", tmp_path / "missing", tmp_path / "commands"
    commands.mkdir()
    (commands / "pip").write_text(PIP.format(log=log, missing=missing))
    (commands / "python3").write_text(PYTHON.format(pip=commands / "pip"))
    for command in commands.iterdir():
        command.chmod(0o755)

    def run(without):
        missing.write_text(without)
        log.write_text("")
        done = subprocess.run([tmp_path / "scripts" / "peers"], capture_output=True, text=True, check=False,
                              env={**os.environ, "PATH": f"{commands}:{os.environ['PATH']}"})  # fmt: skip
        return done, log.read_text().split()

    return run


def test_a_package_that_cannot_be_had_is_left_out_and_tried_again(peers):
    done, asked = peers(without="zentorch")
    assert done.returncode == 0, done.stderr
    assert asked == ["numpy==1", "torch==2", "zentorch==3", "drivers/peers"]
    assert "zentorch==3 cannot be had: its peers are skipped; see build/peers_zentorch.log" in done.stdout
    assert "listed" in done.stdout and done.stdout.endswith("not installed: zentorch==3\n")
    done, asked = peers(without="nothing")
    assert done.returncode == 0 and asked == ["zentorch==3"]
    assert "not installed" not in done.stdout
    assert peers(without="nothing")[1] == []


def test_without_what_it_needs_itself_it_stops(peers):
    done, asked = peers(without="numpy")
    assert done.returncode == 2 and asked == ["numpy==1"]
    assert done.stderr == "katt: cannot install numpy==1 (is there a network?); see build/peers_numpy.log\n"
