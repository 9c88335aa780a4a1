"""Operators that several ranks compute together: sweeps of them, and attention over a ring on the cases of attention."""

import math
import os

import h5py
import numpy as np
import pytest
from check_case import wrong_datasets
from conftest import ALL_CASES, CASES, CASES_BESIDE, refusal_of, skipped_where_missing
from test_ranks import MPIRUN, ranks  # noqa: F401
from test_sweep import table

pytestmark = pytest.mark.skipif(MPIRUN is None, reason="no mpirun")

ATTENTION = [*sorted(CASES.glob("attention*.h5")), *(sorted(CASES_BESIDE.glob("attention*.h5")) or [CASES_BESIDE])]


def sweep(ranks, count, *arguments):  # noqa: F811
    ranks.runs(count, "sweep", *arguments, "--rounds", 2, "-o", "out.h5", "--overwrite")
    rows = table(ranks.folder / "out.h5")
    assert set(rows["status"]) <= {"ok", "skipped"}, set(rows["reason"])
    return rows


# Bytes that a rank sends of n, and its bus bandwidth's: of R ranks.
SENT = {
    "all_reduce": (lambda r: 2 * (r - 1) / r, lambda r: 2 * (r - 1) / r),
    "all_gather": (lambda r: (r - 1) / r, lambda r: (r - 1) / r),
    "reduce_scatter": (lambda r: (r - 1) / r, lambda r: (r - 1) / r),
    "send_recv": (lambda r: 1, lambda r: 1),
}


@pytest.mark.parametrize("op", SENT)
def test_collectives(ranks, op):  # noqa: F811
    """The sent bytes are the necessary ones, and a plain call of MPI is the ceiling."""
    dtypes, counts = (["f32", "f16", "bf16"], [2, 3, 4]) if ALL_CASES else (["f32", "bf16"], [3, 4])
    rows = sweep(ranks, 4, op, "--bytes", "48,196608", "--dtype", ",".join(dtypes), "--ranks", ",".join(map(str, counts)))
    assert len(rows["op"]) == 2 * len(dtypes) * len(counts) * 2
    assert np.all(rows["max_abs_err"] == 0)
    own = rows["variant"] == "rounds"
    sent, bus = SENT[op]
    for r, n, bytes_sent, messages, busbw, time in zip(*(rows[name][own] for name in [
            "ranks", "message_size", "sent_bytes", "messages", "busbw_gbytes_s", "time_s"]), strict=True):
        assert bytes_sent == pytest.approx(sent(r) * n)
        assert messages == (1 if op == "send_recv" else (r - 1) * (2 if op == "all_reduce" else 1))
        assert busbw * 1e9 * time == pytest.approx(bus(r) * n)
    assert np.all(np.isnan(rows["sent_bytes"][~own])), "MPI does not tell"
    assert set(rows["ceiling"]) == {"mpi"}
    assert np.allclose(rows["ceiling_fraction"], rows["speedup"]) and np.all(rows["ceiling_fraction"][~own] == 1)


def test_resume_and_refusals(katt, ranks):  # noqa: F811
    sweep(ranks, 2, "all_reduce", "--bytes", "64,128")
    ranks.runs(2, "sweep", "all_reduce", "--bytes", "64,128,256", "--rounds", 2, "-o", "out.h5", "--resume")
    rows = table(ranks.folder / "out.h5")
    assert sorted(rows["message_size"]) == [64, 64, 128, 128, 256, 256]
    sizes = {path.name: path.stat().st_size for path in ranks.folder.iterdir()}
    for count, arguments, message in [
        (2, ["all_reduce", "--ranks", 3], "--ranks 3"),
        (2, ["all_gather", "--bytes", 6], "message_size 6: expected a multiple of 4"),
        (2, ["tensor_parallel_block", "--heads", 3], "heads 3: expected a multiple of the 2 ranks"),
        (4, ["training_step", "--tensor", 3], "expected a divisor of the 4 ranks"),
        (2, ["ring_attention", "--alibi", 1, "--causal", 0], "alibi 1 causal 0"),
    ]:
        done = ranks(count, "sweep", *arguments, "-o", "bad.h5")
        assert message in refusal_of(done)
    (ranks.folder / "both.toml").write_text('[[sweep]]\nop = "all_reduce"\n[[sweep]]\nop = "softmax"\n')
    done = ranks(2, "sweep", "both.toml", "-o", "bad.h5")
    assert done.returncode == 2 and "expected a sweep for each" in done.stderr
    (ranks.folder / "both.toml").unlink()
    assert {path.name: path.stat().st_size for path in ranks.folder.iterdir()} == sizes
    assert "ranks 2" in katt.refuses("sweep", "all_reduce", "--ranks", 2, "-o", "bad.h5")


def test_one_rank_by_itself(katt):
    katt.runs("sweep", "all_reduce", "--bytes", 64, "--rounds", 2, "-o", "out.h5")
    rows = table(katt.folder / "out.h5")
    assert set(rows["ranks"]) == {1} and set(rows["note"]) == {""}
    # nothing to do is not 3000 times as fast as MPI
    assert dict(zip(rows["variant"], rows["status"], strict=True)) == {"mpi": "ok", "rounds": "skipped"}


def counts(number):
    """The ranks that the number-th case and variant is run on: KATT_RANKS asks for "1 2 3 4 8"."""
    asked = os.environ.get("KATT_RANKS", "2 8" if ALL_CASES else "24"[number % 2])
    return map(int, asked.split())


@pytest.mark.parametrize("case, variant, count", [
    pytest.param(*case.values, variant, count, id=f"{case.id}-{variant}-{count}", marks=case.marks)
    for i, case in enumerate(map(skipped_where_missing, ATTENTION))
    for j, variant in enumerate(["ring", "ulysses"]) for count in counts(i + j)])
def test_ring_attention_on_the_cases(ranks, case, variant, count):  # noqa: F811
    """Within the limits of one rank, forward and backward; what cannot be shared is refused by its name."""
    with h5py.File(case) as file:
        heads = math.gcd(file["q"].shape[1], file["k"].shape[1])
    if variant == "ulysses" and count > 2 and heads % count != 0:
        count = heads  # as many as can share them; of eight one refusal tells, below
    done = ranks(count, "run", "ring_attention", "--in", case, "--out", "out.h5", "--variant", variant)
    if done.returncode == 2:
        with h5py.File(case) as file:
            behind = not file.attrs.get("causal", 0) and file.attrs.get("window_right", -1) != 0
            hidden = behind and ("kv_len" in file or "alibi_slopes" in file)
            assert hidden if variant == "ring" else heads % count != 0
        assert "ring_attention: " in refusal_of(done)
        return
    assert done.returncode == 0, done.stderr
    wrong, _ = wrong_datasets(case, ranks.folder / "out.h5")
    assert wrong == []


def test_heads_that_ranks_cannot_share(ranks):  # noqa: F811
    case = CASES / "attention_f32_causal_gqa.h5"
    done = ranks(8, "run", "ring_attention", "--in", case, "--out", "out.h5", "--variant", "ulysses")
    line = refusal_of(done)
    assert "8 ranks cannot share" in line and "expected a divisor of both: 1" in line
    assert not (ranks.folder / "out.h5").exists()


def test_ring_attention_over_ranks(ranks):  # noqa: F811
    """Against the float64 reference; K/V and activations of a rank fall as 1/ranks."""
    counts, few = ("1,3,4", "f32,bf16") if ALL_CASES else ("3,4", "f32")
    for dtypes, arguments in (("f32,bf16", ["--window", 40]), (few, ["--softcap", 5, "--kv-heads", 2]),
                              (few, ["--alibi", 1]), (few, ["--causal", 0])):  # fmt: skip
        rows = sweep(ranks, 4, "ring_attention", "--seq", 130, "--heads", 4, "--head-dim", 16, "--batch", 2, "--ranks",
                     counts, "--pass", "forward,backward", "--dtype", dtypes, *arguments)
        assert {"gathered", "ring"} <= set(rows["variant"][rows["status"] == "ok"])
    seq = 640  # a rank's part is large beside what does not shrink with it
    rows = sweep(ranks, 8, "ring_attention", "--seq", seq, "--heads", 2, "--head-dim", 64, "--ranks", "1,2,4,8", "--pass",
                 "forward,backward")
    assert set(rows["variant"][rows["status"] == "ok"]) == {"gathered", "ring", "ulysses"}
    by_heads = rows["variant"] == "ulysses"
    assert set(rows["ranks"][by_heads & (rows["status"] == "skipped")]) == {4, 8}, "two heads"
    for one in ("forward", "backward"):
        # A rank's part of each of q, k, v and out goes to the other rank; in the backward pass also
        # parts of dout, dq, dk and dv.
        sent = rows["sent_bytes"][by_heads & (rows["pass"] == one) & (rows["ranks"] == 2)]
        assert list(sent) == [(4 if one == "forward" else 8) * seq * 2 * 64 * 4 / 4]
    for one in ("forward", "backward"):
        of_pass = (rows["pass"] == one) & (rows["variant"] == "ring")
        total = dict(zip(rows["ranks"][of_pass], rows["total_bytes"][of_pass], strict=True))
        for r in (2, 4, 8):
            assert total[r] < 1.15 * total[1] / r, (one, total)
        sent = dict(zip(rows["ranks"][of_pass], rows["sent_bytes"][of_pass], strict=True))
        block = 2 * seq * 2 * 64 * 4  # K and V in f32, of which a rank sends its part on R − 1 times
        for r in (2, 4, 8):
            gradients = block if one == "backward" else 0  # come home: R times
            assert sent[r] == (r - 1) * block / r + gradients


def test_blocks_and_steps(ranks):  # noqa: F811
    blocks = sweep(ranks, 4, "tensor_parallel_block", "--hidden", 64, "--intermediate", 96, "--heads", 4, "--head-dim", 16,
                   "--seq", 21, "--pass", "forward,backward", "--ranks", "1,2,4")
    for one in ("forward", "backward"):
        memory = {(variant, r): total for variant, r, total, which in zip(
            blocks["variant"], blocks["ranks"], blocks["total_bytes"], blocks["pass"], strict=True) if which == one}
        assert memory["sequence_parallel", 4] < memory["fused", 4], "rows of the stream are shared"
    small = ["training_step", "--hidden", 32, "--intermediate", 64, "--layers", 4, "--heads", 4, "--head-dim", 8, "--vocab",
             64, "--seq", 32]
    state = {}
    for layout in ([], ["--zero", 1], ["--tensor", 2, "--sequence-parallel", "0,1"],
                   ["--pipeline", 2, "--virtual-stages", "1,2"], ["--context", 2, "--ulysses", "0,1"],
                   ["--tensor", 2, "--pipeline", 2]):
        rows = sweep(ranks, 4, *small, *layout)
        assert rows["sent_bytes"][0] > 0 and rows["messages"][0] > 0
        staged = "--pipeline" in layout
        assert np.all((0 < rows["pipeline_idle_fraction"]) == staged) and np.all(rows["pipeline_idle_fraction"] < 1)
        assert 0 < rows["communication_fraction"][0] <= 1 and 0 <= rows["overlap_fraction"][0] <= 1
        state[tuple(layout)] = rows["total_bytes"][0]
    assert state["--zero", 1] < state[()], "moments are shared"
