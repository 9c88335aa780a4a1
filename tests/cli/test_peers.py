"""`katt sweep --peer`: other programs measured in the same run, with a toy in the place of a library."""

import ctypes.util
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
from conftest import ROOT
from toy_peer import SECONDS

TOY = Path(__file__).with_name("toy_peer.py")
PROGRAM = ROOT / "build" / "peers" / "bin" / "katt-peers"

needs_libraries = pytest.mark.skipif(not PROGRAM.exists(), reason="no build/peers (scripts/peers makes it)")


def rows_of(path):
    with h5py.File(path) as file:
        return {row["variant"].decode(): row for row in file["points"][:]}


def sweep(katt, peers, tokens="3", program=TOY):
    done = katt("sweep", "swiglu", "--tokens", tokens, "--intermediate", 5, "--variant", "naive", "--threads", 1,
                "--rounds", 4, "--peer", peers, "--peer-program", program, "--peer-timeout-s", 1.5,
                "-o", "out.h5")  # fmt: skip
    return done, rows_of(katt.folder / "out.h5")


def gone(katt, name):
    """True when the process of a toy is gone; a zombie is not gone."""
    pid = int((katt.folder / f"{name}.pid").read_text())
    for _ in range(50):
        if not Path(f"/proc/{pid}").exists():
            return True
        time.sleep(0.1)
    return False


def test_a_peer_is_a_row_of_the_case(katt):
    done, rows = sweep(katt, "right")
    assert done.returncode == 0, done.stderr
    row, naive = rows["right"], rows["naive"]
    assert row["status"] == b"ok"
    assert (row["point"], row["tokens"], row["samples"]) == (b"000002", 3, 4)
    assert row["time_s"] == SECONDS, "the time is the one taken inside the peer"
    assert row["engine"] == b"abacus"
    assert row["flops"] == naive["flops"]
    assert 0 <= row["max_abs_err"] < 1e-6
    with h5py.File(katt.folder / "out.h5") as file:
        run = row["run"].decode()
        assert json.loads(file["runs"][run].attrs["peers"]) == {"right": "toy 1"}
        samples = file["samples"][run]
        assert np.all(samples["000002"][:] == SECONDS)
        assert row["speedup"] == pytest.approx(np.median(samples["000001"][:] / SECONDS))
    assert gone(katt, "right")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("wrong", "out(0, 1) is"),
        ("lazy", "nan, expected"),
        ("dies", "the peer died: last words"),
        ("hangs", "the peer gave no answer within 1 s"),
        ("babbles", 'the peer answered "what?", expected a JSON object'),
        ("timeless", "expected the seconds of a run"),
        ("breaks", "it broke"),
        ("half", "expected host_bytes and device_bytes"),
        ("negative", "expected host_bytes and device_bytes"),
    ],
)
def test_a_peer_that_misbehaves_fails_alone(katt, name, reason):
    done, rows = sweep(katt, f"{name},right", tokens="3,4")
    assert done.returncode == 1
    assert rows[name]["status"] == b"failed"
    assert reason in rows[name]["reason"].decode()
    assert rows["right"]["status"] == rows["naive"]["status"] == b"ok"
    assert rows[name]["tokens"] == 4, "the sweep went on"
    assert gone(katt, name)


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
    done = katt("sweep", "swiglu", "--tokens", 3, "--intermediate", 5, "--variant", "naive", "--rounds", 1,
                "--threads", threads, "--bind", bind, "--peer", "right", "--peer-program", TOY,
                "-o", "out.h5", env={"OMP_PROC_BIND": "true"})  # fmt: skip
    assert done.returncode == 0, done.stderr
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
    done = katt("sweep", "attention", "--seq", 16, "--block-density", 0.5, "--block-size", 8, "--variant", "flash",
                "--peer", "right", "--peer-program", TOY, "--rounds", 2, "-o", "out.h5")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert b"attention cannot hand these inputs to a peer" == rows_of(katt.folder / "out.h5")["right"]["reason"]


def test_a_sweep_file_names_peers_and_resume_knows_them(katt):
    (katt.folder / "sweep.toml").write_text(
        f'op = "swiglu"\ntokens = 3\nintermediate = 5\nvariant = "naive"\npeer = ["right", "refuses"]\n'
        f'rounds = 2\npeer_program = "{TOY}"\n'
    )
    assert katt("sweep", "sweep.toml", "-o", "out.h5").returncode == 0
    assert set(rows_of(katt.folder / "out.h5")) == {"naive", "right", "refuses"}
    again = katt("sweep", "sweep.toml", "-o", "out.h5", "--resume")
    assert "nothing left to do" in again.stderr


@pytest.mark.parametrize("name", ["naive", "a b", "", "x" * 33, "../x"])
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
    assert gone(katt, "right")


FUNCTIONS = """
dtype = ["f32", "bf16"]
pass = ["forward", "backward"]
variant = ["naive"]
peer = ["torch_eager"]
[[sweep]]
op = "rmsnorm"
tokens = 5
hidden = 33
residual = [0, 1]
[[sweep]]
op = "rmsnorm_linear"
tokens = 5
hidden = 33
out_features = 7
residual = [0, 1]
[[sweep]]
op = "layernorm"
tokens = 5
hidden = 33
[[sweep]]
op = "swiglu"
tokens = 5
intermediate = 33
[[sweep]]
op = "linear"
tokens = 5
in_features = 33
out_features = 7
bias = [0, 1]
[[sweep]]
op = "softmax"
tokens = 5
vocab = 33
[[sweep]]
op = "cross_entropy"
tokens = 5
vocab = 33
[[sweep]]
op = "swiglu_mlp"
tokens = 5
hidden = 33
intermediate = 40
[[sweep]]
op = "ternary_linear"
tokens = [1, 5]
in_features = 33
out_features = 7
[[sweep]]
op = "linear_cross_entropy"
tokens = 5
hidden = 20
vocab = 33
[[sweep]]
op = "embedding"
tokens = 5
vocab = 33
hidden = 20
[[sweep]]
op = "convert"
tokens = 5
hidden = 33
to = ["f32", "f16"]
[[sweep]]
op = "rope"
batch = 2
kv_heads = 2
seq = 37
head_dim = 32
positions = ["sequence", "random"]
layout = ["bhsd", "bshd"]
"""


def sweep_libraries(katt, *arguments):
    done = katt("sweep", *map(str, arguments), "--peer-program", PROGRAM, "--rounds", 1, "--threads", 1,
                "-o", "out.h5", timeout=600)  # fmt: skip
    with h5py.File(katt.folder / "out.h5") as file:
        rows = file["points"][:]
    report = [(row["variant"], row["dtype"], row["pass"], row["status"], row["reason"]) for row in rows]
    assert done.returncode == 0, report
    return rows, report


@needs_libraries
def test_torch_attention_is_verified(katt):
    rows, report = sweep_libraries(
        katt, "attention", "--seq", 37, "--head-dim", 32, "--heads", 4, "--kv-heads", 2, "--dtype", "f32,bf16",
        "--causal", "0,1", "--layout", "bhsd,bshd", "--pass", "forward,backward", "--variant", "naive",
        "--peer", "torch_flash,torch_math")  # fmt: skip
    assert all(row["status"] == b"ok" for row in rows), report


@needs_libraries
def test_torch_tells_its_peak(katt):
    rows, report = sweep_libraries(
        katt, "attention", "--seq", 256, "--head-dim", 32, "--heads", 2, "--pass", "forward,backward",
        "--variant", "naive,flash", "--peer", "torch_flash,torch_math")  # fmt: skip
    scores, tensor = 2 * 256 * 256 * 4, 2 * 256 * 32 * 4
    for row in rows:
        assert row["status"] == b"ok", report
        assert row["host_bytes"] + row["device_bytes"] == row["total_bytes"]
        assert row["total_bytes"] >= (4 if row["pass"] == b"forward" else 7) * tensor, "inputs and outputs"
        unfused = row["variant"] in (b"naive", b"torch_math")
        assert (row["workspace_bytes"] >= scores) == unfused, report


@needs_libraries
def test_torch_attention_says_what_it_cannot_do(katt):
    rows, report = sweep_libraries(
        katt, "attention", "--seq", 33, "--seq-kv", 65, "--causal", "0,1", "--variant", "naive", "--peer", "torch_flash"
    )
    statuses = {int(row["causal"]): row["status"] for row in rows if row["variant"] == b"torch_flash"}
    assert statuses == {0: b"ok", 1: b"skipped"}, report


@needs_libraries
def test_torch_functions_are_verified(katt):
    (katt.folder / "sweep.toml").write_text(FUNCTIONS)
    rows, report = sweep_libraries(katt, "sweep.toml")
    assert all(row["status"] == b"ok" for row in rows), report
    assert {row["op"].decode() for row in rows} == {
        "rmsnorm", "layernorm", "swiglu", "linear", "softmax", "cross_entropy", "swiglu_mlp", "ternary_linear",
        "linear_cross_entropy", "embedding", "convert", "rope", "rmsnorm_linear",
    }  # fmt: skip


@needs_libraries
def test_torch_steps_of_attention_take_every_mask_but_blocks(katt):
    rows, report = sweep_libraries(
        katt, "attention", "--batch", 2, "--seq", 37, "--seq-kv", 61, "--head-dim", 32, "--heads", 4, "--kv-heads", 2,
        "--causal", "0,1", "--window-left", "-1,20", "--softcap", "0,5", "--bias", 1, "--kv-len-min", "-1,40",
        "--pass", "forward,backward", "--variant", "naive", "--peer", "torch_eager")  # fmt: skip
    assert all(row["status"] == b"ok" for row in rows), report


@needs_libraries
def test_torch_steps_of_attention_refuse_a_query_without_keys(katt):
    rows, report = sweep_libraries(katt, "attention", "--seq", 9, "--seq-kv", 5, "--causal", 1, "--variant", "naive",
                                   "--peer", "torch_eager")  # fmt: skip
    statuses = {row["variant"]: (row["status"], row["reason"]) for row in rows}
    assert statuses[b"naive"][0] == b"ok", report
    assert statuses[b"torch_eager"] == (b"skipped", b"a query sees no key, which softmax over -inf makes NaN")


@needs_libraries
def test_onednn_is_verified(katt):
    (katt.folder / "sweep.toml").write_text("""
dtype = ["f32", "bf16", "f16"]
pass = ["forward", "backward"]
variant = ["naive"]
peer = ["onednn"]
[[sweep]]
op = "linear"
tokens = [1, 5]
in_features = 33
out_features = 7
bias = [0, 1]
[[sweep]]
op = "softmax"
tokens = 5
vocab = 33
[[sweep]]
op = "layernorm"
tokens = 5
hidden = 33
[[sweep]]
op = "rmsnorm"
tokens = 5
hidden = 33
residual = [0, 1]
[[sweep]]
op = "rmsnorm_linear"
tokens = 5
hidden = 33
out_features = 7
residual = [0, 1]
[[sweep]]
op = "swiglu"
tokens = 5
intermediate = 33
[[sweep]]
op = "swiglu_mlp"
tokens = 5
hidden = 33
intermediate = 40
[[sweep]]
op = "convert"
tokens = 5
hidden = 33
to = "f32"
""")
    rows, report = sweep_libraries(katt, "sweep.toml")
    ours = onednn_rows(rows, report)
    for row in ours:
        assert row["status"] == b"ok" or (row["status"] == b"skipped" and row["reason"]), report
    whole = {b"linear", b"softmax", b"layernorm", b"convert"}
    for row in ours:
        if row["dtype"] == b"f32" and (row["pass"] == b"forward" or row["op"] in whole):
            assert row["status"] == b"ok", report


def onednn_rows(rows, report):
    """The rows of oneDNN's peers; skips the test where there is no oneDNN."""
    ours = [row for row in rows if row["variant"].startswith(b"onednn")]
    for said in (b"not installed", b"finds no CPU"):
        if said in ours[0]["reason"]:
            pytest.skip(ours[0]["reason"].decode())
    assert all(row["engine"] for row in ours if row["status"] == b"ok"), report
    return ours


@needs_libraries
def test_onednn_attention_is_verified(katt):
    (katt.folder / "sweep.toml").write_text("""
op = "attention"
dtype = ["f32", "bf16"]
heads = 4
kv_heads = [2, 4]
head_dim = 32
variant = ["naive"]
[[sweep]]
batch = 2
seq = 37
seq_kv = 61
causal = [0, 1]
bias = [0, 1]
peer = ["onednn", "onednn_training"]
[[sweep]]
dtype = "bf16"
seq = 37
causal = [0, 1]
pass = "backward"
peer = ["onednn"]
""")
    rows, report = sweep_libraries(katt, "sweep.toml")
    bf16 = [row for row in onednn_rows(rows, report) if row["dtype"] == b"bf16"]
    for row in onednn_rows(rows, report):
        assert row["status"] == b"ok" or b"oneDNN has no kernel" in row["reason"], report
    assert len(bf16) == 4 * 2 * 2 + 4


@needs_libraries
def test_onednn_says_what_its_graph_lacks(katt):
    rows, report = sweep_libraries(katt, "attention", "--seq", 9, "--window-left", 3, "--variant", "naive",
                                   "--peer", "onednn")  # fmt: skip
    assert onednn_rows(rows, report)[0]["reason"] == b"this peer of oneDNN's graph has no sliding window", report


@needs_libraries
def test_flex_attention_runs_on_a_cpu(katt):
    rows, report = sweep_libraries(
        katt, "attention", "--seq", 37, "--head-dim", 32, "--heads", 4, "--kv-heads", 2, "--causal", 1,
        "--window-left", 20, "--softcap", 5, "--pass", "forward,backward", "--variant", "naive",
        "--peer", "torch_flex_eager")  # fmt: skip
    ours = {row["pass"]: row for row in rows if row["variant"] == b"torch_flex_eager"}
    assert ours[b"forward"]["status"] == b"ok", report
    assert ours[b"backward"]["status"] == b"skipped" and b"backward on CPU" in ours[b"backward"]["reason"], report


@needs_libraries
def test_zentorch_runs_or_says_why_not(katt):
    rows, report = sweep_libraries(katt, "linear", "--tokens", 5, "--in-features", 33, "--out-features", 7,
                                   "--variant", "naive", "--peer", "zentorch")  # fmt: skip
    row = next(row for row in rows if row["variant"] == b"zentorch")
    assert row["status"] == b"ok" or b"zentorch" in row["reason"], report


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


@needs_libraries
def test_the_list_names_operators():
    done = subprocess.run([PROGRAM, "--check", "torch_flash", "torch_eager", "nobody"], capture_output=True, text=True,
                          check=False)  # fmt: skip
    flash, eager, nobody = done.stdout.splitlines()
    assert done.returncode == 1
    assert flash == "runs attention"
    assert {"attention", "rope", "ternary_linear", "rmsnorm_linear"} <= set(eager.removeprefix("runs ").split(", "))
    assert nobody.startswith("not here: peer nobody is unknown; there are torch_flash, ")


@pytest.mark.parametrize(
    ("wrong", "near"), [("zentorh", "zentorch"), ("torch_flexx", "torch_flex"), ("one_dnn", "onednn")]
)
def test_a_peer_is_suggested(katt, wrong, near):
    line = katt.refuses("sweep", "swiglu", "--peer", wrong, "-o", "out.h5")
    assert f"did you mean {near}?" in line


@needs_libraries
@pytest.mark.skipif(ctypes.util.find_library("dnnl") is not None, reason="the system has oneDNN")
def test_onednn_that_is_missing_is_named(katt):
    program = katt.folder / "katt-peers"
    program.write_text(f'#!/bin/sh\nexec "{PROGRAM.parent}/python" -c "import sys; sys.prefix = \'/nowhere\'; '
                       'from katt_peers.__main__ import main; sys.exit(main())" "$@"\n')  # fmt: skip
    program.chmod(0o755)
    done = katt("sweep", "softmax", "--tokens", 3, "--vocab", 5, "--variant", "naive", "--rounds", 1,
                "--peer", "onednn", "--peer-program", program, "-o", "out.h5")  # fmt: skip
    assert done.returncode == 0, done.stderr
    row = rows_of(katt.folder / "out.h5")["onednn"]
    assert row["status"] == b"skipped"
    assert b"oneDNN is not installed" in row["reason"] and b"scripts/peers" in row["reason"]


@needs_libraries
def test_torch_compile_is_verified(katt):
    rows, report = sweep_libraries(katt, "rmsnorm", "--tokens", 5, "--hidden", 33, "--variant", "naive",
                                   "--peer", "torch_compile")  # fmt: skip
    assert [row["status"] for row in rows] == [b"ok", b"ok"], report
