"""`katt sweep --peer`: other programs measured in the same run, with a toy in the place of a library."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from conftest import ROOT, ended
from toy_peer import SECONDS

TOY = Path(__file__).with_name("toy_peer.py")


def sweep(katt, peers, tokens="3", program=TOY):
    done = katt("sweep", "swiglu", "--tokens", tokens, "--intermediate", 5, "--variant", "naive", "--threads", 1,
                "--rounds", 4, "--peer", peers, "--peer-program", program, "--peer-timeout-s", 4,
                "-o", "out.h5")  # fmt: skip
    return done, katt.variants()


def gone(katt, name):
    """True when the process of a toy is gone; a zombie is not gone."""
    return ended(int((katt.folder / f"{name}.pid").read_text()), zombies=False)


def test_a_peer_is_a_row_of_the_case(katt):
    done, rows = sweep(katt, "right")
    assert done.returncode == 0, done.stderr
    row, naive = rows["right"], rows["naive"]
    assert row["status"] == b"ok"
    assert (row["point"], row["tokens"], row["samples"]) == (b"000002", 3, 4)
    assert row["claimed_s"] >= SECONDS and row["time_s"] >= SECONDS
    assert row["time_s"] != row["claimed_s"], "the time is the sweep's own"
    assert np.isnan(naive["claimed_s"])
    assert row["engine"] == b"abacus"
    assert row["flops"] == naive["flops"]
    assert 0 <= row["max_abs_err"] < 1e-6
    with h5py.File(katt.folder / "out.h5") as file:
        run = row["run"].decode()
        assert json.loads(file["runs"][run].attrs["peers"]) == {"right": "toy 1"}
        samples = file["samples"][run]
        assert row["time_s"] == pytest.approx(np.median(samples["000002"][:]))
        assert row["speedup"] == pytest.approx(np.median(samples["000001"][:] / samples["000002"][:]))
    assert gone(katt, "right")


@pytest.mark.parametrize(("name", "reason"), [
    ("wrong", "out(0, 1) is"),
    ("lazy", "nan, expected"),
    ("dies", "the peer died: last words"),
    ("hangs", "the peer gave no answer within 4 s"),
    ("babbles", 'the peer answered "what?", expected a JSON object'),
    ("timeless", "expected the seconds of a run"),
    ("breaks", "it broke"),
    ("half", "expected host_bytes and device_bytes"),
    ("negative", "expected host_bytes and device_bytes"),
    ("boasts", "its clock says"),
    ("whines", "its clock says"),
    ("keeps", "out("),
])
def test_a_peer_that_misbehaves_fails_alone(katt, name, reason):
    done, rows = sweep(katt, f"{name},right", tokens="3,4")
    assert done.returncode == 1
    assert rows[name]["status"] == b"failed"
    assert reason in rows[name]["reason"].decode()
    assert rows["right"]["status"] == rows["naive"]["status"] == b"ok"
    assert rows[name]["tokens"] == 4, "the sweep went on"
    assert gone(katt, name)


def test_a_peer_is_told_which_inputs_have_changed(katt):
    done, rows = sweep(katt, "follows,right")
    assert done.returncode == 0, done.stderr
    assert rows["follows"]["status"] == rows["right"]["status"] == b"ok"
    changed = json.loads((katt.folder / "follows.inputs").read_text())["changed"]
    assert {one["name"] for one in changed} == {"gate", "up"}
    assert all(one["first"] + one["count"] <= 15 and one["count"] > 0 for one in changed)
    assert not (katt.folder / "right.inputs").exists(), "its case is opened again"


def test_the_memory_of_a_peer_is_what_it_says(katt):
    done, rows = sweep(katt, "remembers,right")
    assert done.returncode == 0, done.stderr
    said, tensors = rows["remembers"], 2 * 64 + 60  # gate and up, allocated in eights of bytes; out
    assert (said["host_bytes"], said["device_bytes"], said["total_bytes"]) == (1000, 24, 1024)
    assert said["workspace_bytes"] == 1024 - tensors
    for name in ("workspace_bytes", "total_bytes", "host_bytes", "device_bytes"):
        assert np.isnan(rows["right"][name]), "it says nothing"
        assert np.isfinite(rows["naive"][name])


needs_two_processors = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor")


@needs_two_processors
@pytest.mark.parametrize(("threads", "bind", "bound"), [(1, 1, 0), (2, 0, 0), (2, 1, 2)])
def test_a_peer_is_told_the_processors(katt, threads, bind, bound):
    katt.runs("sweep", "swiglu", "--tokens", 3, "--intermediate", 5, "--variant", "naive", "--rounds", 1, "--threads",
              threads, "--bind", bind, "--peer", "right", "--peer-program", TOY, "-o", "out.h5",
              env={"OMP_PROC_BIND": "true"})
    request = json.loads((katt.folder / "right.json").read_text())
    assert request["processors"] == sorted(os.sched_getaffinity(0))
    assert len(request["bound"]) == len(set(request["bound"])) == bound
    assert set(request["bound"]) <= set(request["processors"])
    with h5py.File(katt.folder / "out.h5") as file:
        assert json.loads(file["runs/run-0001"].attrs["settings"])["bind"] == bool(bind)


@needs_two_processors
def test_a_peer_binds_the_threads_of_openmp():
    script = """
import ctypes, os, sys
from katt_peers.processors import bind, openmp
assert openmp() is None
ctypes.CDLL("libgomp.so.1")
first, second = sorted(os.sched_getaffinity(0))[:2]
bind(openmp(), [second, first])
others = [int(thread) for thread in os.listdir("/proc/self/task") if int(thread) != os.getpid()]
assert os.sched_getaffinity(0) == {second}
assert [os.sched_getaffinity(thread) for thread in others] == [{first}]
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": str(ROOT / "drivers" / "peers")})  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_what_a_peer_cannot_do_is_skipped(katt):
    done, rows = sweep(katt, "refuses,right")
    assert done.returncode == 0, done.stderr
    assert (rows["refuses"]["status"], rows["refuses"]["reason"]) == (b"skipped", b"not today")
    assert rows["right"]["status"] == b"ok"


def test_a_missing_peer_is_named_and_the_sweep_goes_on(katt):
    done, rows = sweep(katt, "torch_flash", program="nowhere/katt-peers")
    assert done.returncode == 0, done.stderr
    assert rows["torch_flash"]["status"] == b"skipped"
    assert rows["torch_flash"]["reason"].startswith(b"peer torch_flash is not installed")
    assert b"scripts/peers" in rows["torch_flash"]["reason"]
    assert rows["naive"]["status"] == b"ok"


def test_what_an_operator_cannot_hand_over_is_skipped(katt):
    katt.runs("sweep", "attention", "--seq", 16, "--block-density", 0.5, "--block-size", 8, "--variant", "flash",
              "--peer", "right", "--peer-program", TOY, "--rounds", 2, "-o", "out.h5")
    assert b"attention cannot hand these inputs to a peer" == katt.variants()["right"]["reason"]


def test_a_sweep_file_names_peers_and_resume_knows_them(katt):
    (katt.folder / "sweep.toml").write_text(
        f'op = "swiglu"\ntokens = 3\nintermediate = 5\nvariant = "naive"\npeer = ["right", "refuses"]\n'
        f'rounds = 2\npeer_program = "{TOY}"\n'
    )
    katt.runs("sweep", "sweep.toml", "-o", "out.h5")
    assert set(katt.variants()) == {"naive", "right", "refuses"}
    again = katt("sweep", "sweep.toml", "-o", "out.h5", "--resume")
    assert "nothing left to do" in again.stderr


@pytest.mark.parametrize("name", ["naive", "a b", ",", "x" * 33, "../x"])
def test_what_is_no_name_of_a_peer_is_refused(katt, name):
    line = katt.refuses("sweep", "swiglu", "--peer", name, "-o", "out.h5")
    assert "--peer" in line and "expected the name of a peer" in line


def test_a_peer_named_as_a_variant_is_told_apart(katt):
    line = katt.refuses("sweep", "attention", "--variant", "torch_flash", "-o", "out.h5")
    assert "torch_flash" in line and line.endswith("another library is named by --peer")


def test_ctrl_c_ends_a_peer_that_hangs(katt):
    program = katt.start("sweep", "swiglu", "--tokens", 3, "--intermediate", 5, "--variant", "naive", "--peer", "hangs",
                         "--peer-program", TOY, "-o", "out.h5")  # fmt: skip
    while not (katt.folder / "hangs.pid").exists() or not (katt.folder / "hangs.pid").read_text():
        assert program.poll() is None
        time.sleep(0.05)
    program.send_signal(signal.SIGINT)
    _, errors = program.communicate(timeout=30)
    assert program.returncode == 130, errors
    assert gone(katt, "hangs")


def test_a_killed_sweep_leaves_no_peer(katt):
    program = katt.start("sweep", "swiglu", "--tokens", 3, "--intermediate", 5, "--variant", "naive", "--peer", "right",
                         "--peer-program", TOY, "--rounds", 1000000, "-o", "out.h5")  # fmt: skip
    while not (katt.folder / "right.pid").exists() or not (katt.folder / "right.pid").read_text():
        assert program.poll() is None
        time.sleep(0.05)
    os.kill(program.pid, signal.SIGKILL)
    program.communicate(timeout=30)
    assert ended(int((katt.folder / "right.pid").read_text()))


LISTED = ("torch_flash", "torch_flex", "torch_flex_eager", "torch_compile", "zentorch", "onednn", "onednn_training")


def list_peers(folder):
    """name → what `katt-peers --list` says of it, where Python finds the modules of a folder first."""
    done = subprocess.run([sys.executable, "-m", "katt_peers", "--list"], capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": f"{folder}:{ROOT / 'drivers' / 'peers'}"})  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    return {name.split()[0]: said.strip() for name, said in zip(lines[::2], lines[1::2], strict=True)}


def test_the_list_says_what_runs_here(tmp_path):
    (tmp_path / "torch.py").write_text('raise ImportError("for another\\nmachine")')
    (tmp_path / "zentorch.py").write_text("import os\nos.abort()")
    said = list_peers(tmp_path)
    assert set(LISTED) <= set(said)
    assert said["torch_flash"] == said["torch_compile"] == "not here: torch cannot be loaded: for another machine"
    assert said["zentorch"] == "not here: a library ended with status -6"
    assert said["onednn"].startswith(("not here: ", "runs attention, convert, "))


def test_the_list_names_what_is_not_installed(tmp_path):
    (tmp_path / "torch.py").write_text("import no_such_module")
    said = list_peers(tmp_path)
    assert said["torch_eager"].startswith("not here: peer torch is not installed: scripts/peers installs it (No module")


@pytest.mark.parametrize(
    ("wrong", "near"), [("zentorh", "zentorch"), ("torch_flexx", "torch_flex"), ("one_dnn", "onednn")]
)
def test_a_peer_is_suggested(katt, wrong, near):
    line = katt.refuses("sweep", "swiglu", "--peer", wrong, "-o", "out.h5")
    assert f"did you mean {near}?" in line
