"""Bad usage and bad input: exit status 2, one line on stderr that names the culprit, no output file."""

import os
import shutil

import h5py
import numpy as np
import pytest
from conftest import ROOT, skipped_where_missing

SWEEP = ("sweep", "attention", "-o", "out.h5", "--seq", "64", "--heads", "2")


@pytest.mark.parametrize(("arguments", "expected"), [
    ((), ["command is missing"]),
    (("swep",), ["swep", "sweep"]),
    (("sweep",), ["operator"]),
    (("sweep", "atention", "-o", "x.h5"), ["atention", "attention"]),
    (("sweep", "none.toml", "-o", "x.h5"), ["none.toml", "no such file"]),
    (("sweep", "attention"), ["-o"]),
    ((*SWEEP, "--tile-q", "0"), ["--tile-q 0", "from 1"]),
    ((*SWEEP, "--tile-q", "nan"), ["--tile-q nan", "integer"]),
    ((*SWEEP, "--tile_kv", "32,nan"), ["--tile-kv 32,nan", "integer"]),
    ((*SWEEP, "--tile-q", ""), ["--tile-q"]),
    ((*SWEEP, "--tile", "nanxnan"), ["--tile nanxnan", "tile"]),
    ((*SWEEP, "--tile", "auto", "--tile-q", "32"), ["--tile-q 32", "--tile auto"]),
    ((*SWEEP, "--head-dim", "300"), ["head-dim 300", "256"]),
    ((*SWEEP, "--head-dim", "12"), ["head_dim 12", "multiple of 8"]),
    ((*SWEEP, "--kv-heads", "3"), ["kv_heads 3", "heads 2"]),
    ((*SWEEP, "--batch", "-1"), ["--batch -1"]),
    ((*SWEEP, "--batch", "99999999999999999999"), ["--batch 99999999999999999999", "64 bits"]),
    ((*SWEEP, "--batch", "512:1024:x1"), ["--batch", "never ends"]),
    ((*SWEEP, "--batch", "1,,2"), ["--batch 1,,2", "empty"]),
    ((*SWEEP, "--dtype", "f64"), ["--dtype f64", "bf16"]),
    ((*SWEEP, "--variant", "turbo"), ["--variant turbo", "naive"]),
    ((*SWEEP, "--backend", "abacus"), ["--backend abacus", "serial"]),
    ((*SWEEP, "--device", "0", "--backend", "openmp"), ["--device 0", "openmp has no devices", "--backend cuda"]),
    (("run", "attention", "--in", "none.h5", "--out", "out.h5", "--device", "1"), ["--device 1", "no devices"]),
    (("info", "--device", "1"), ["--device 1"]),
    ((*SWEEP, "--threads", "0"), ["--threads 0"]),
    ((*SWEEP, "--threads", "513"), ["--threads 513", "512"]),
    ((*SWEEP, "--pass", "sideways"), ["--pass sideways", "forward"]),
    ((*SWEEP, "--rounds", "0"), ["--rounds 0"]),
    ((*SWEEP, "--budget-s", "nan"), ["--budget-s nan"]),
    ((*SWEEP, "--sqe", "64"), ["--sqe", "did you mean"]),
    ((*SWEEP, "--seq-kv"), ["--seq-kv", "value is missing"]),
    ((*SWEEP, "--heads", "4"), ["--heads", "more than once"]),
    (("run", "attention", "--in", "none.h5", "--out"), ["--out", "value is missing"]),
    ((*SWEEP, "extra"), ["extra"]),
    ((*SWEEP, "--resume", "--overwrite"), ["--resume", "--overwrite"]),
    (("sweep", "attention", "-o", "/proc/none/out.h5", "--seq", "64"), ["/proc/none"]),
    # 2^31 queries of 2^10 heads: far more than any machine has.
    (("sweep", "attention", "-o", "out.h5", "--seq", "2147483648", "--heads", "1024"), ["memory"]),
    (("run", "attention", "--in", "none.h5", "--out", "out.h5"), ["none.h5"]),
    (("run", "attention", "--out", "out.h5"), ["--in"]),
    (("run", "attention", "--in", "none.h5"), ["--out"]),
    (("run", "atention", "--in", "none.h5", "--out", "out.h5"), ["atention"]),
    (("run", "attention", "--in", "none.h5", "--out", "out.h5", "--tile-q", "0"), ["--tile-q 0"]),
    ((*SWEEP, "--tuning", ""), ["--tuning: is empty"]),
    ((*SWEEP, "--tuning", "t" * 300), ["--tuning ttt", "cannot be read: File name too long"]),
    (("referee", ""), ["task: is empty, expected a value"]),
    (("generate", "--model", "m", "--prompts", ""), ["--prompts: is empty, expected a value"]),
    (("generate", "--model", "m", "--tokens", "1", "--temperature", "1", "--top-p", "0"), ["--top-p: holds 0"]),
    (("merge", "", "-o", "out.h5"), ["the part: is empty, expected the name of a file"]),
    (("info", "--jsn"), ["--jsn", "--json"]),
    (("info", "--measure", "--threads", "0"), ["--threads 0"]),
    (("info", "--measure", "--threads", "600"), ["--threads 600", "512"]),
])
def test_arguments(katt, arguments, expected):
    line = katt.refuses(*arguments)
    for text in expected:
        assert text in line


@pytest.mark.parametrize(("text", "expected"), [
    ('op = "attention"\nsqe = 64\n', ["sweep.toml:2", "sqe", "seq"]),
    ('[[sweep]]\nop = "attention"\nhead_dims = 64\n', ["sweep.toml:3", "head_dims", "head_dim"]),
    ('op = "attention"\ntile_q = 0\n', ["sweep.toml:2", "tile_q 0"]),
    ('op = "attention"\ntile_q = [32, nan]\n', ["sweep.toml:2", "tile_q", "nan"]),
    ('op = "attention"\nhead_dim = 300\n', ["sweep.toml:2", "300", "256"]),
    ('op = "attention"\nheads = 8\nkv_heads = 3\n', ["sweep.toml", "kv_heads 3", "heads 8"]),
    ('op = "atention"\n', ["sweep.toml:1", "atention", "attention"]),
    ("seq = 64\n", ["sweep.toml", "op"]),
    ('op = "attention"\nseq = [64\n', ["sweep.toml", "TOML"]),
    ('op = "attention"\nseq = "64:32:x2"\n', ["sweep.toml:2", "64:32:x2"]),
])
def test_sweep_files(katt, text, expected):
    (katt.folder / "sweep.toml").write_text(text)
    line = katt.refuses("sweep", "sweep.toml", "-o", "out.h5")
    for part in expected:
        assert part in line


def test_a_memory_hungry_sweep_is_refused_before_allocating(katt):
    line = katt.refuses("sweep", "attention", "-o", "out.h5", "--seq", "8388608", "--heads", "1024",
                        "--variant", "naive")
    assert "available" in line


def test_existing_output(katt):
    (katt.folder / "out.h5").write_text("precious")
    assert "out.h5" in katt.refuses(*SWEEP)
    assert "out.h5" in katt.refuses(*SWEEP, "--resume")
    assert (katt.folder / "out.h5").read_text() == "precious"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folder_that_cannot_be_written(katt):
    folder = katt.folder / "locked"
    folder.mkdir(mode=0o500)
    assert "locked" in katt.refuses("sweep", "attention", "-o", "locked/out.h5", "--seq", "64")


@pytest.mark.parametrize(("name", "value", "words"), [
    ("scale", np.nan, "holds a value that is not finite"),
    ("softcap", -1.0, "holds -1"),
    ("block_size", -8, "holds -8"),
    ("window_left", -2, "holds -2, expected at least -1"),
    ("window_right", -(2**40), "holds -1099511627776, expected at least -1"),
    ("op", "linear", 'holds "linear", expected attention'),
    ("op", 3, "holds 3, expected text"),
])
def test_an_attribute_of_a_case_is_called_one(katt, name, value, words):
    shutil.copy(ROOT / "tests" / "cases" / "attention_f32_causal_gqa.h5", katt.folder / "case.h5")
    with h5py.File(katt.folder / "case.h5", "r+") as file:
        file.attrs[name] = value
        if name == "block_size":
            file["block_mask"] = np.ones((1, 1), np.int64)
    line = katt.refuses("run", "attention", "--in", "case.h5", "--out", "out.h5")
    assert line.startswith(f"katt: case.h5: attribute {name}: {words}"), line


@pytest.mark.parametrize(("schema", "held"), [(2, "holds 2"), ("one", 'holds text "one"'), (None, "is missing")])
def test_the_schema_of_a_result_file(katt, schema, held):
    with h5py.File(katt.folder / "part.h5", "w") as file:
        file.attrs["generator"] = "katt"
        if schema is not None:
            file.attrs["schema"] = schema
    line = katt.refuses("merge", "part.h5", "-o", "out.h5")
    assert f"part.h5: attribute schema: {held}, expected 1" in line


def test_a_tuning_file_is_not_begun_for_nothing(katt):
    (katt.folder / "out.h5").write_text("precious")
    line = katt.refuses("tune", "attention", "--seq", "64", "-o", "tiles.json", "--results", "out.h5")
    assert "--results out.h5: exists" in line


def test_folder_that_is_a_file(katt):
    (katt.folder / "file").write_text("")
    assert "file" in katt.refuses("sweep", "attention", "-o", "file/out.h5", "--seq", "64")
    write_case(katt.folder / "case.h5")
    assert "file" in katt.refuses("run", "attention", "--in", "case.h5", "--out", "file/out.h5")


def write_case(path, **changes):
    """A small attention case; `changes` replace datasets (None removes) and attributes."""
    datasets = {name: np.ones((1, 2, 4, 8), np.float32) for name in ("q", "k", "v")}
    attributes = {"dtype": "f32", "causal": 0, "scale": 0.5}
    for name, value in changes.items():
        (attributes if name in ("dtype", "causal", "scale", "softcap") else datasets)[name] = value
    with h5py.File(path, "w") as file:
        for name, value in datasets.items():
            if value is not None:
                file[name] = value
        for name, value in attributes.items():
            if value is not None:
                file.attrs[name] = value


def test_a_good_case_runs(katt):
    write_case(katt.folder / "case.h5")
    done = katt("run", "attention", "--in", "case.h5", "--out", "out.h5")
    assert (done.returncode, done.stderr) == (0, "")
    with h5py.File(katt.folder / "out.h5") as file:
        assert np.allclose(file["out"][()], 1)


def test_an_output_that_is_no_regular_file_stays(katt):
    """A device or a pipe would be replaced, by root."""
    write_case(katt.folder / "case.h5")
    os.mkfifo(katt.folder / "pipe")
    for name in ("a", "b"):
        (katt.folder / name).symlink_to("b" if name == "a" else "a")
    for output in ("pipe", "a", "."):
        assert output in katt.refuses("run", "attention", "--in", "case.h5", "--out", output)
    assert "regular file" in katt.refuses("sweep", "attention", "--seq", "64", "-o", "pipe", "--overwrite")
    assert "a" in katt.refuses("sweep", "attention", "--seq", "64", "-o", "a")
    assert (katt.folder / "pipe").is_fifo() and (katt.folder / "a").is_symlink()


@pytest.mark.parametrize(("changes", "expected"), [
    ({"v": None}, ["case.h5", "v"]),
    ({"q": np.ones((2, 4, 8), np.float32)}, ["case.h5", "q"]),
    ({"k": np.ones((1, 2, 4, 16), np.float32)}, ["case.h5", "k"]),
    ({"v": np.ones((1, 2, 5, 8), np.float32)}, ["case.h5", "v"]),
    ({"k": np.ones((1, 3, 4, 8), np.float32), "v": np.ones((1, 3, 4, 8), np.float32)}, ["case.h5", "k"]),
    ({name: np.ones((1, 2, 4, 12), np.float32) for name in "qkv"}, ["case.h5", "head_dim 12"]),
    ({"kv_len": np.array([-1], np.int64)}, ["case.h5", "kv_len"]),
    ({"kv_len": np.array([5], np.int64)}, ["case.h5", "kv_len", "holds 5"]),
    ({"mask": np.ones((1, 1, 4, 3), np.float32)}, ["case.h5", "mask"]),
    ({"scale": 1e300}, ["scale", "finite"]),
    ({"dtype": "f64"}, ["case.h5", "dtype"]),
    ({"dtype": None}, ["case.h5", "dtype"]),
])
def test_cases(katt, changes, expected):
    write_case(katt.folder / "case.h5", **changes)
    line = katt.refuses("run", "attention", "--in", "case.h5", "--out", "out.h5")
    for text in expected:
        assert text in line


def test_truncated_case(katt):
    write_case(katt.folder / "case.h5")
    whole = (katt.folder / "case.h5").read_bytes()
    for size in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        (katt.folder / "case.h5").write_bytes(whole[:size])
        assert "case.h5" in katt.refuses("run", "attention", "--in", "case.h5", "--out", "out.h5")


def test_addresses_that_crash_hdf5(katt):
    """HDF5 1.10 copies from a null pointer where a file has its undefined address, all ones."""
    write_case(katt.folder / "case.h5")
    whole = (katt.folder / "case.h5").read_bytes()
    for block in (b"TREE", b"HEAP"):  # of the root group
        address = whole.index(block).to_bytes(8, "little")
        (katt.folder / "case.h5").write_bytes(whole.replace(address, b"\xff" * 8))
        assert "case.h5" in katt.refuses("run", "attention", "--in", "case.h5", "--out", "out.h5")


HOSTILE = ROOT.parent / "shared" / "hostile"


@pytest.mark.parametrize("path", map(skipped_where_missing, sorted(HOSTILE.glob("*.h5")) or [HOSTILE / "*.h5"]))
def test_hostile_cases(katt, path):
    assert path.name in katt.refuses("run", path.stem.split("_")[0], "--in", path, "--out", "out.h5")


def test_refused_tile_and_variant(katt):
    write_case(katt.folder / "case.h5")
    run = ("run", "attention", "--in", "case.h5", "--out", "out.h5")
    assert "turbo" in katt.refuses(*run, "--variant", "turbo")
    assert "48" in katt.refuses(*run, "--variant", "flash", "--tile-q", "48", "--tile-kv", "48")
    assert "--backend cuda" in katt.refuses(*run, "--backend", "cuda")
