"""A variant that ends the process is one failed row of a sweep, and the sweep continues."""

import json
import os
import signal
import time
from pathlib import Path

import h5py
from conftest import BACKEND, ended

SWEEP = ("sweep", "softmax", "--tokens", "3,5", "--vocab", "16", "--dtype", "f32", "--backend", BACKEND, "--isolate",
         "--rounds", "2", "--threads", "1", "-o", "out.h5")  # fmt: skip
LONG = ("sweep", "attention", "--seq", "16:320:+16", "--heads", "2", "--head-dim", "32", "--rounds", "20", "--variant",
        "naive,flash", "--backend", BACKEND, "--isolate", "--threads", "1", "-o", "out.h5")  # fmt: skip


def test_a_fault_is_a_failed_row(faulty):
    arguments = (*SWEEP, "--variant", "naive,faulty,fused")
    done = faulty(*arguments)
    assert done.returncode == 1, done.stderr
    table = faulty.rows()
    assert [(row["tokens"], row["variant"].decode(), row["status"].decode()) for row in table] == [
        (tokens, variant, "failed" if variant == "faulty" else "ok")
        for tokens in (3, 5) for variant in ("naive", "faulty", "fused")]
    for row in table:
        if row["variant"] == b"faulty":
            assert b"the process that ran it ended with SIG" in row["reason"] and row["samples"] == 0
            if BACKEND == "cuda":
                assert row["reason"].startswith(b"cudaErrorIllegalAddress"), row["reason"]
        else:  # the others were compared with each other
            assert row["samples"] == 2 and row["speedup"] > 0
    assert "another one goes on" in done.stderr
    again = faulty(*arguments, "--resume", "--json")
    assert again.returncode == 1 and "nothing left to do" in again.stderr, again.stderr
    assert "6 rows, 2 failed" in again.stderr
    summary = json.loads(again.stdout)
    assert (summary["already_present"], summary["failed"], summary["ok"]) == (6, 2, 0)
    # rows of another sweep in the same file do not count
    other = faulty(*SWEEP, "--variant", "naive,fused", "--resume")
    assert other.returncode == 0 and "4 rows" in other.stderr and "failed" not in other.stderr, other.stderr
    with h5py.File(faulty.folder / "out.h5") as file:
        command = file["runs/run-0001"].attrs["command"]
        assert command == " ".join(["katt", *faulty.command(arguments, ceilings=False)[1:]])


def test_a_variant_that_hangs_is_a_failed_row(faulty):
    arguments = (*SWEEP, "--variant", "naive,endless,fused", "--limit-s", "1.5")
    start = time.monotonic()
    done = faulty(*(part for part in arguments if part != "--isolate"))
    assert done.returncode == 1, done.stderr
    assert time.monotonic() - start > 3  # two points
    for row in faulty.rows():
        if row["variant"] == b"endless":
            assert (row["status"], row["samples"]) == (b"failed", 0)
            assert row["reason"] == b"did not end within 1.5 s, the limit of --limit-s"
        else:
            assert row["status"] == b"ok" and row["speedup"] > 0
    again = faulty(*arguments, "--resume")
    assert again.returncode == 1 and "nothing left to do" in again.stderr, again.stderr


def test_a_limit_leaves_alone_what_ends_in_time(faulty):
    faulty.runs(*SWEEP, "--variant", "naive,fused", "--limit-s", "20")
    for value, words in (("0", "from 0.1"), ("soon", "expected")):
        (faulty.folder / "out.h5").unlink(missing_ok=True)
        assert words in faulty.refuses(*SWEEP, "--variant", "fused", "--limit-s", value)


def test_a_variant_that_takes_another_dtype_is_a_failed_row(faulty):
    done = faulty("sweep", "softmax", "--tokens", "5", "--vocab", "16", "--dtype", "f16,bf16", "--backend", BACKEND,
                  "--variant", "naive,f32_alone", "--rounds", "2", "--threads", "1", "-o", "out.h5")  # fmt: skip
    assert done.returncode == 1, done.stderr
    table = faulty.rows()
    assert [row["status"] for row in table] == [b"ok", b"failed"] * 2
    for row, dtype in zip(table[1::2], (b"f16", b"bf16"), strict=True):
        assert row["reason"] == b"a view of f32 was asked of a tensor that holds " + dtype + b", expected its own dtype"


def test_overwrite_is_for_the_first_process_alone(faulty):
    (faulty.folder / "out.h5").write_bytes(b"something else")
    done = faulty(*SWEEP, "--variant", "faulty,fused", "--overwrite")
    assert done.returncode == 1, done.stderr
    assert len(faulty.rows()) == 4


def test_refusals_are_those_of_any_sweep(faulty):
    assert "expected auto, naive, fused, faulty" in faulty.refuses(*SWEEP, "--variant", "turbo")
    (faulty.folder / "out.h5").write_bytes(b"something else")
    assert "-o out.h5: exists" in faulty.refuses(*SWEEP)


def children_of(process):
    return Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()


def test_a_signal_is_handed_on(katt):
    process = katt.start(*LONG)
    while process.poll() is None and not (katt.folder / "out.h5").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 130, stderr
    with h5py.File(katt.folder / "out.h5") as file:
        assert file["runs/run-0001"].attrs["status"] == "interrupted"


def test_no_process_is_left_behind(katt):
    process = katt.start(*LONG)
    while process.poll() is None and not (katt.folder / "out.h5").exists():
        time.sleep(0.01)
    children = children_of(process)
    assert len(children) == 1
    process.kill()
    process.communicate(timeout=60)
    if not ended(children[0]):
        os.kill(int(children[0]), signal.SIGKILL)
        raise AssertionError("the child outlives the process that was killed")
