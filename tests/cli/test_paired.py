"""`katt sweep --paired`: the points along an axis in the same rounds, in one file, in parts, on ranks and with peers."""

import numpy as np
from conftest import ROOT
from test_peers import TOY
from test_shards import rows
from test_sweep import table
from test_sweep_ranks import ranks  # noqa: F401

SWEEP = ("sweep", "attention", "--seq", "64,128", "--heads", "1,2", "--head-dim", "16", "--block-size", "32",
         "--block-density", "1,0.5", "--variant", "auto,naive", "--rounds", "5", "--threads", "1",
         "--paired", "block_density")  # fmt: skip


def check(frame, size=16):
    """Ratios of every row to that of the reference, and the same order of a group's points."""
    assert len(frame) == size and (frame.status == "ok").all() and (frame.paired_to == "block_density=1").all()
    reference = frame[frame.block_density == 1]
    assert (reference[["paired_ratio", "paired_ratio_lo", "paired_ratio_hi"]] == 1).all(axis=None)
    other = frame[frame.block_density == 0.5]
    assert ((other.paired_ratio_lo <= other.paired_ratio) & (other.paired_ratio <= other.paired_ratio_hi)).all()
    densities = frame.block_density.to_numpy().reshape(-1, 4)
    assert (densities == [1, 1, 0.5, 0.5]).all(), "the points of a group follow each other"


def test_parts_and_ranks_keep_groups_together(katt, ranks):  # noqa: F811
    katt.runs(*SWEEP, "-o", "one.h5")
    check(table(katt.folder / "one.h5"))
    for part in (1, 2):
        done = katt.runs(*SWEEP, "--shard", f"{part}/2", "-o", f"part_{part}.h5")
        check(table(katt.folder / f"part_{part}.h5"), 8)
    katt.runs("merge", "part_2.h5", "part_1.h5", "-o", "both.h5")
    ranks.runs(3, *SWEEP, "-o", "three.h5")
    for name in ("both.h5", "three.h5"):
        check(table(katt.folder / name))
        assert rows(katt.folder / name) == rows(katt.folder / "one.h5")
    done = katt(*SWEEP, "--shard", "5/5", "-o", "no.h5")
    assert done.returncode == 2 and "has 4 groups of paired points" in done.stderr
    done = katt(*SWEEP, "--resume", "-o", "three.h5")
    assert done.returncode == 0 and "nothing left to do" in done.stderr
    assert katt.refuses(*SWEEP[:-2], "--resume", "-o", "one.h5") == (
        "katt: --paired: one.h5 holds rows paired with block_density=1, expected rows of no pair, or a new output")
    for other in ("block_density=0.5", "block_density,heads"):
        line = katt.refuses(*SWEEP[:-1], other, "--resume", "-o", "one.h5")
        assert line.startswith("katt: --paired: one.h5 holds rows paired with block_density=1, expected rows paired with ")


def test_a_sweep_of_all_ranks_is_paired(katt, ranks):  # noqa: F811
    sweep = ("sweep", "all_reduce", "--ranks", "2", "--variant", "rounds", "--rounds", "3", "-o", "out.h5")
    ranks.runs(2, *sweep, "--bytes", "64,4096", "--paired", "bytes")
    frame = table(katt.folder / "out.h5")
    assert len(frame) == 2 and (frame.paired_to == "message_size=64").all() and np.isfinite(frame.paired_ratio).all()
    done = ranks(2, *sweep, "--overwrite", "--paired", "ranks")
    assert done.returncode == 2 and "ranks: cannot change from round to round" in done.stderr


def test_a_peer_holds_every_point(katt):
    katt.runs("sweep", "swiglu", "--tokens", "3,5", "--intermediate", 5, "--variant", "naive", "--threads", 1,
              "--rounds", 4, "--peer", "right", "--peer-program", TOY, "--peer-timeout-s", 20, "--paired", "tokens=5",
              "-o", "out.h5")
    frame = table(katt.folder / "out.h5")
    assert len(frame) == 4 and (frame.status == "ok").all()
    peer = frame[frame.variant == "right"]
    assert peer.paired_ratio.between(0.2, 5).all(), "the toy takes the same time at every point"
    assert frame[frame.tokens == 5].paired_ratio.tolist() == [1, 1]


def test_the_experiment_of_block_masks_is_paired(katt):
    done = katt.runs("sweep", ROOT / "experiments" / "block_sparse" / "sweep.toml", "--seq", 128, "--dry-run")
    lines = done.stdout.splitlines()
    assert all("paired with block_density=1" in line for line in lines[:-1]) and len(lines) > 4
