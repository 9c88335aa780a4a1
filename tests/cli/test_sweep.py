"""A small sweep: its table, its bookkeeping, and that a kill at any instant loses nothing finished."""

import json
import signal
import time

import h5py
import numpy as np
import pandas
import pytest

COLUMNS = """op pass variant backend dtype batch heads kv_heads seq_q seq_kv head_dim causal tile_q tile_kv
threads status reason samples time_s time_lo_s time_hi_s flops bytes tflops gbytes_s ceiling
ceiling_fraction speedup workspace_bytes total_bytes max_abs_err mean_abs_err commit run point label
speedup_lo speedup_hi tile inner cold engine window_left window_right softcap bias kv_len_min block_size
block_density layout""".split()

# One thread: on a busy machine threads that wait for each other make a small sweep last minutes.
SMALL = ("sweep", "attention", "--seq", "32,64", "--heads", "2", "--head-dim", "32", "--dtype", "f32,bf16",
         "--rounds", "3", "--threads", "1")


def table(path):
    """The flat table of a result file, as a user loads it."""
    with h5py.File(path) as file:
        frame = pandas.DataFrame(file["points"][:])
    for name in frame:
        if frame[name].dtype == object:
            frame[name] = frame[name].str.decode("utf-8")
    return frame


def identities(frame):
    """The columns that identify a row's measurement."""
    columns = ["op", "pass", "backend", "dtype", "threads", "heads", "seq_q", "causal", "variant", "tile"]
    return sorted("|".join(map(str, row)) for row in frame[columns].itertuples(index=False))


def test_min_rounds_beyond_the_usual_most(katt):
    katt.runs("sweep", "softmax", "--tokens", 1, "--vocab", 8, "--variant", "naive", "--threads", 1, "--no-ceilings",
              "--min-rounds", 1003, "--budget-s", 0.01, "-o", "out.h5")
    assert table(katt.folder / "out.h5")["samples"].tolist() == [1003]


def test_table(katt):
    done = katt.runs(*SMALL, "-o", "out.h5", "--variant", "naive,flash", "--json", ceilings=True)
    summary = json.loads(done.stdout)
    assert (summary["ok"], summary["failed"], summary["interrupted"]) == (8, 0, False)
    frame = table(katt.folder / "out.h5")
    assert [name for name in COLUMNS if name not in frame] == []
    assert list(frame)[: len(COLUMNS)] == COLUMNS
    assert len(frame) == 8
    assert set(frame["status"]) == {"ok"}
    assert (frame["time_lo_s"] <= frame["time_s"]).all() and (frame["time_s"] <= frame["time_hi_s"]).all()
    assert (frame["kv_heads"] == 2).all() and (frame["seq_kv"] == frame["seq_q"]).all()
    assert np.allclose(frame["tflops"], frame["flops"] / frame["time_s"] * 1e-12)
    assert (frame[frame["variant"] == "naive"]["speedup"] == 1).all()
    assert (frame["speedup"] > 0).all()
    assert (frame["ceiling_fraction"] > 0).all() and (frame["ceiling"] != "").all()
    assert (frame["total_bytes"] > 0).all()
    assert frame["host_s"].isna().all()  # of a device alone
    assert (frame["max_abs_err"] < 0.1).all()
    flash = frame[frame["variant"] == "flash"]
    assert (flash["tile_q"] > 0).all() and (flash["tile"] == "auto").all()
    with h5py.File(katt.folder / "out.h5") as file:
        assert file.attrs["schema"] == 1
        run = file["runs/run-0001"].attrs
        assert run["status"] == "done"
        assert run["command"] == "katt " + " ".join(SMALL) + " -o out.h5 --variant naive,flash --json"
        assert json.loads(run["settings"])["rounds"] == 3
        names = {row["name"].decode() for row in file["ceilings/run-0001"][:]}
        assert {"fma_f32", "read_dram", "copy_dram"} <= names
        for _, row in frame.iterrows():
            samples = file[f"samples/{row['run']}/{row['point']}"][:]
            assert len(samples) == row["samples"] == 3
            assert np.median(samples) == pytest.approx(row["time_s"])


def test_auto_is_a_row_of_the_variant_that_it_means(katt):
    arguments = ("sweep", "attention", "--seq", "1,64", "--seq-kv", "64", "--heads", "1", "--head-dim", "32",
                 "--rounds", "1", "--threads", "1", "-o", "out.h5", "--resume")  # fmt: skip
    katt.runs(*arguments, "--dtype", "f32,bf16", "--variant", "naive,auto")
    frame = table(katt.folder / "out.h5")
    chosen = {(row["seq_q"], row["dtype"]): row["variant"] for _, row in frame[frame["variant"] != "naive"].iterrows()}
    assert len(frame) == 8 and set(frame["status"]) == {"ok"}
    assert chosen[1, "f32"] == chosen[1, "bf16"] == "decode"
    assert chosen[64, "f32"] == "flash"
    assert chosen[64, "bf16"] in ("flash", "flash_amx", "flash_avx512_bf16")
    # named as well it is the same row
    again = katt(*arguments, "--dtype", "f32", "--variant", "auto,decode,flash,naive")
    assert again.returncode == 0 and len(table(katt.folder / "out.h5")) == 10, again.stderr
    line = katt.refuses("sweep", "attention", "--variant", "turbo", "-o", "other.h5")
    assert "auto, naive, flash" in line


def test_engines_are_compared_side_by_side(katt):
    variants = "naive,flash,flash_amx,flash_avx512_bf16"
    katt.runs("sweep", "attention", "--seq", "96", "--heads", "2", "--head-dim", "40", "--dtype", "bf16", "--pass",
              "forward,backward", "--rounds", "1", "--threads", "1", "-o", "out.h5", "--variant", variants)
    frame = table(katt.folder / "out.h5")
    assert list(frame["variant"]) == variants.split(",") * 2
    for _, row in frame.iterrows():
        unit = row["variant"].removeprefix("flash_")
        if row["status"] == "ok":
            assert row["max_abs_err"] > 0
            assert row["engine"] == unit or unit in ("naive", "flash")
        else:
            assert unit != row["variant"] and ("CPU" in row["reason"] or "build" in row["reason"]), row["reason"]
    katt.runs("sweep", "linear", "--tokens", "33", "--in-features", "40", "--out-features", "50", "--dtype", "bf16",
              "--pass", "forward,backward", "--rounds", "1", "--threads", "1", "-o", "linear.h5")
    frame = table(katt.folder / "linear.h5")
    everywhere = {"naive", "fused", "packed", "skinny", "library"}
    for _, rows in frame.groupby("pass"):
        assert everywhere | {"amx", "avx512_bf16"} <= set(rows["variant"])
        assert set(rows[rows["variant"].isin(everywhere)]["status"]) == {"ok"}


def test_refused_tile_is_a_row(katt):
    katt.runs("sweep", "attention", "-o", "out.h5", "--seq", "64", "--heads", "1", "--rounds", "1", "--threads", "1",
              "--variant", "flash", "--tile", "48x48,auto")
    frame = table(katt.folder / "out.h5").set_index("tile")
    assert frame.loc["48x48", "status"] == "skipped"
    assert "48x48" in frame.loc["48x48", "reason"]
    assert frame.loc["auto", "status"] == "ok"


def test_file_and_command_line(katt):
    (katt.folder / "sweep.toml").write_text(
        'title = "t"\nrounds = 2\nvariant = "flash"\n[[sweep]]\nop = "attention"\nlabel = "one"\nseq = [32, 64]\n'
        '[[sweep]]\nop = "attention"\nlabel = "two"\nseq = 16\n'
    )
    katt.runs("sweep", "sweep.toml", "-o", "a.h5", "--heads", "1", "--threads", "1")
    frame = table(katt.folder / "a.h5")
    assert list(frame["label"]) == ["one", "one", "two"]
    assert set(frame["heads"]) == {1}
    katt.runs("sweep", "--seq_q=16", "sweep.toml", "-o", "b.h5", "--heads", "1", "--threads", "1")
    assert list(table(katt.folder / "b.h5")["seq_q"]) == [16, 16]


def test_the_environment_changes_nothing(katt):
    katt.runs("sweep", "attention", "--seq", "16", "--heads", "1", "--rounds", "1", "-o", "out.h5",
              env={"KOKKOS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"})
    info = json.loads(katt("info", "--json").stdout)
    assert set(table(katt.folder / "out.h5")["threads"]) == {info["machine"]["cores"]}


LONG = ("sweep", "attention", "--seq", "16:160:+16", "--heads", "1,2", "--head-dim", "32", "--causal", "0,1",
        "--rounds", "5", "--variant", "naive,flash", "--threads", "1", "-o", "out.h5")


def test_interrupt_keeps_what_is_done(katt):
    process = katt.start(*LONG)
    while process.poll() is None and not (katt.folder / "out.h5").exists():
        time.sleep(0.01)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    with h5py.File(katt.folder / "out.h5") as file:
        assert file["runs/run-0001"].attrs["status"] == "interrupted"
    katt.runs(*LONG, "--resume")
    assert len(table(katt.folder / "out.h5")) == 80
    again = katt.runs(*LONG, "--resume")
    assert "nothing left to do" in again.stderr
    assert len(table(katt.folder / "out.h5")) == 80


def test_presets_of_tiles(katt):
    katt.runs("sweep", "attention", "--seq", "64", "--heads", "1", "--head-dim", "32", "--rounds", "2", "--threads",
              "1", "--dtype", "f32", "--variant", "naive,flash,flash_amx", "--tile", "avx2,amx,h200", "-o", "out.h5")
    frame = table(katt.folder / "out.h5")
    assert list(frame["variant"]) == ["naive", "flash", "flash", "flash", "flash_amx", "flash_amx"]
    flash = frame[frame["variant"] == "flash"]
    assert (flash["tile_q"] > 0).all()
    assert flash["status"].iloc[0] == "ok" or "preset avx2: vectors of 8" in flash["reason"].iloc[0]
    assert flash["status"].iloc[2] == "skipped" and "h200 is of a GPU" in flash["reason"].iloc[2]
    amx = frame[frame["variant"] == "flash_amx"]
    assert list(amx["reason"]) == ["takes bf16, not f32"] * 2
    assert list(amx["tile"]) == ["auto", "512x128"], "a preset of another device is the default"

    done = katt("sweep", "attention", "--seq", "64", "--tile", "h300", "-o", "other.h5")
    assert done.returncode == 2
    assert "h300" in done.stderr and "h200" in done.stderr and done.stderr.count("\n") == 1
