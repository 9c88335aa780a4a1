"""scripts/gpu_run: a folder belongs to one bundle and its options, and Ctrl-C ends the call. (tests/cli/test_gpu_run.py
tests the rest.)"""

import json
import os
import signal
import subprocess
import tarfile
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "gpu_run"


@pytest.fixture
def call(tmp_path):
    """Starts the stage info, and others, with a bundle whose program prints a text."""

    def run(text, *arguments, stages=("info",), start=subprocess.run):
        program = tmp_path / "katt-bundle" / "katt"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
        os.utime(program, (0, 0))  # the same text makes the same bundle
        with tarfile.open(tmp_path / "bundle.tar", "w") as bundle:
            bundle.add(program, "katt-bundle/katt")
        return start([SCRIPT, "-b", tmp_path / "bundle.tar", "-o", tmp_path / "out", *arguments, *stages],
                     stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip

    run.out = tmp_path / "out"
    return run


def test_a_folder_of_another_bundle_or_of_other_options_is_refused(call):
    first, second = "echo '{}'", "echo '{\"rebuilt\": 1}'"
    assert call(first).returncode == 0
    for text, arguments, name in [(second, (), "bundle or program"), (first, ("--small",), "--small"),
                                  (first, ("--backend", "openmp"), "--backend")]:  # fmt: skip
        done = call(text, *arguments)
        assert done.returncode == 2 and done.stderr == (
            f"katt: -o {call.out}: was begun with another {name}, expected the same or a new folder\n")  # fmt: skip
    assert "info: done before" in call(first).stdout
    (call.out / "gpu_run.json").unlink()  # with the old program unpacked beside it
    assert call(second).returncode == 0 and "rebuilt" in (call.out / "info.json").read_text()


def test_ctrl_c_ends_the_call(call):
    running = call(f"touch {call.out}/waits; sleep 60", stages=("info", "verify"), start=subprocess.Popen)
    end = time.monotonic() + 60
    while not (call.out / "waits").exists() and running.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    told, error = running.communicate(timeout=30)
    assert running.returncode == 130 and error == "katt: interrupted; call gpu_run again to go on\n"
    assert "verify" not in told and not (call.out / "gpu_run.json").exists()
    assert call("echo '{}'").returncode == 0
    assert json.loads((call.out / "gpu_run.json").read_text())["stages"]["info"]["status"] == "done"
