"""`katt sweep --peer` with the libraries of build/peers: PyTorch, oneDNN, zentorch."""

import ctypes.util
import subprocess

import pytest
from conftest import ROOT

PROGRAM = ROOT / "build" / "peers" / "bin" / "katt-peers"

needs_libraries = pytest.mark.skipif(not PROGRAM.exists(), reason="no build/peers (scripts/peers makes it)")

FUNCTIONS = """
dtype = ["f32", "bf16"]
pass = ["forward", "backward"]
variant = ["naive"]
peer = ["torch_eager"]
sweep = [
  {op = "rmsnorm", tokens = 5, hidden = 33, residual = [0, 1]},
  {op = "rmsnorm_linear", tokens = 5, hidden = 33, out_features = 7, residual = [0, 1]},
  {op = "layernorm", tokens = 5, hidden = 33},
  {op = "swiglu", tokens = 5, intermediate = 33},
  {op = "linear", tokens = 5, in_features = 33, out_features = 7, bias = [0, 1]},
  {op = "softmax", tokens = 5, vocab = 33},
  {op = "cross_entropy", tokens = 5, vocab = 33},
  {op = "swiglu_mlp", tokens = 5, hidden = 33, intermediate = 40},
  {op = "ternary_linear", tokens = [1, 5], in_features = 33, out_features = 7},
  {op = "linear_cross_entropy", tokens = 5, hidden = 20, vocab = 33},
  {op = "embedding", tokens = 5, vocab = 33, hidden = 20},
  {op = "convert", tokens = 5, hidden = 33, to = ["f32", "f16"]},
  {op = "rope", batch = 2, kv_heads = 2, seq = 37, head_dim = 32, positions = ["sequence", "random"], layout = ["bhsd", "bshd"]},
]
"""


def sweep_libraries(katt, *arguments):
    done = katt("sweep", *map(str, arguments), "--peer-program", PROGRAM, "--rounds", 1, "--threads", 1,
                "-o", "out.h5", timeout=600)  # fmt: skip
    rows = katt.rows()
    report = [(row["variant"], row["dtype"], row["pass"], row["status"], row["reason"]) for row in rows]
    assert done.returncode == 0, report
    return rows, report


CLOSED = """
import weakref
import torch
from katt_peers.torch_case import gradients_of
made = []
def softmax(inputs):
    made.append(torch.softmax(inputs["x"], -1))
    return made[0]
inputs = {"x": torch.ones(2, 3)}
gradients = gradients_of(softmax, inputs, ["x"], torch.ones(2, 3))
assert gradients()[0].shape == (2, 3) and gradients.kept_bytes == 24
output = weakref.ref(made.pop())
del gradients, inputs
assert output() is None
"""


@needs_libraries
def test_a_closed_case_of_pytorch_is_freed():
    subprocess.run([PROGRAM.parent / "python", "-c", CLOSED], check=True)


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
def test_torch_runs_in_the_cage(katt):
    rows, report = sweep_libraries(
        katt, "attention", "--seq", 37, "--head-dim", 32, "--heads", 2, "--pass", "forward,backward", "--variant",
        "naive", "--peer", "torch_flash,torch_eager,torch_compile", "--untrusted")  # fmt: skip
    for row in rows:
        if row["variant"] == b"torch_compile":
            assert row["status"] == b"skipped" and b"starts a compiler" in row["reason"], report
        else:
            assert row["status"] == b"ok", report


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
sweep = [
  {op = "linear", tokens = [1, 5], in_features = 33, out_features = 7, bias = [0, 1]},
  {op = "softmax", tokens = 5, vocab = 33},
  {op = "layernorm", tokens = 5, hidden = 33},
  {op = "rmsnorm", tokens = 5, hidden = 33, residual = [0, 1]},
  {op = "rmsnorm_linear", tokens = 5, hidden = 33, out_features = 7, residual = [0, 1]},
  {op = "swiglu", tokens = 5, intermediate = 33},
  {op = "swiglu_mlp", tokens = 5, hidden = 33, intermediate = 40},
  {op = "convert", tokens = 5, hidden = 33, to = "f32"},
]
""")
    rows, report = sweep_libraries(katt, "sweep.toml")
    ours = onednn_rows(rows, report)
    for row in ours:
        assert row["status"] == b"ok" or (row["status"] == b"skipped" and row["reason"]), report
    whole = {b"linear", b"softmax", b"layernorm", b"convert"}
    for row in ours:
        if row["dtype"] == b"f32" and (row["pass"] == b"forward" or row["op"] in whole):
            assert row["status"] == b"ok" or lacks_kernel(row), report


def lacks_kernel(row):
    """Of a processor, or of a version."""
    return any(why in row["reason"] for why in (b"oneDNN has no kernel", b"an operation without a kernel"))


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
        assert row["status"] == b"ok" or lacks_kernel(row), report
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


@needs_libraries
def test_the_list_names_operators():
    done = subprocess.run([PROGRAM, "--check", "torch_flash", "torch_eager", "nobody"], capture_output=True, text=True,
                          check=False)  # fmt: skip
    flash, eager, nobody = done.stdout.splitlines()
    assert done.returncode == 1
    assert flash == "runs attention"
    assert {"attention", "rope", "ternary_linear", "rmsnorm_linear"} <= set(eager.removeprefix("runs ").split(", "))
    assert nobody.startswith("not here: peer nobody is unknown; there are torch_flash, ")


@needs_libraries
@pytest.mark.skipif(ctypes.util.find_library("dnnl") is not None, reason="the system has oneDNN")
def test_onednn_that_is_missing_is_named(katt):
    program = katt.folder / "katt-peers"
    program.write_text(f'#!/bin/sh\nexec "{PROGRAM.parent}/python" -c "import sys; sys.prefix = \'/nowhere\'; '
                       'from katt_peers.__main__ import main; sys.exit(main())" "$@"\n')  # fmt: skip
    program.chmod(0o755)
    katt.runs("sweep", "softmax", "--tokens", 3, "--vocab", 5, "--variant", "naive", "--rounds", 1, "--peer", "onednn",
              "--peer-program", program, "-o", "out.h5")
    row = katt.variants()["onednn"]
    assert row["status"] == b"skipped"
    assert b"oneDNN is not installed" in row["reason"] and b"scripts/peers" in row["reason"]


@needs_libraries
def test_torch_compile_is_verified(katt):
    rows, report = sweep_libraries(katt, "rmsnorm", "--tokens", 5, "--hidden", 33, "--variant", "naive",
                                   "--peer", "torch_compile")  # fmt: skip
    assert [row["status"] for row in rows] == [b"ok", b"ok"], report
