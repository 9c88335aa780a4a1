"""The column code: which code a row names, and which edits of the source tree make it stale."""

import shutil
import sys
from functools import cache

import h5py
import pytest
from conftest import ROOT, program_in
from test_peers import TOY
from test_sweep import table

sys.path.insert(0, str(ROOT / "drivers" / "report"))
from katt_report import load  # noqa: E402
from katt_report.published import fresh  # noqa: E402
from katt_report.published.cpp_tokens import code_digest, token_hash  # noqa: E402
from katt_report.published.fresh import FRESH, NONE, freshness, source_tree  # noqa: E402

QUICK = ("--threads", "1", "--rounds", "1", "--budget-s", "0.001")
SWEEPS = {
    "softmax": ("--tokens", "4", "--vocab", "32"),
    "rmsnorm": ("--tokens", "4", "--hidden", "32", "--pass", "forward,backward"),
    "rmsnorm_linear": ("--tokens", "4"),
    "attention": ("--seq", "16", "--heads", "1", "--head-dim", "16", "--dtype", "bf16", "--pass", "forward,backward"),
    "llama_block": ("--seq", "8", "--hidden", "64", "--heads", "2", "--kv-heads", "1", "--intermediate", "64"),
}


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A small sweep of some operators."""
    katt = program_in(tmp_path_factory.mktemp("swept"))
    for op, axes in SWEEPS.items():
        katt.runs("sweep", op, *axes, *QUICK, "-o", f"{op}.h5")
    return load(*(katt.folder / f"{op}.h5" for op in SWEEPS))


remembered = cache(token_hash)


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A copy of the source tree to edit. Every test reads the same text in nearly all of its files."""
    monkeypatch.setattr(fresh, "token_hash", remembered)
    shutil.copytree(ROOT / "src", tmp_path / "tree" / "src")
    return tmp_path / "tree"


def edited(tree, name, text):
    file = tree / name
    file.write_text(f"{file.read_text()}\n{text}\n")


def stale(swept, tree):
    """(op, pass, variant) of the rows that are not fresh."""
    keys = swept.points.tuples(["op", "pass", "variant"])
    return {key for key, one in zip(keys, freshness(swept, source_tree(tree)), strict=True) if one.state != FRESH}


def rows(swept, **equal):
    return set(swept.points.where(**equal).tuples(["op", "pass", "variant"]))


def test_every_row_names_its_code(swept, tree):
    assert stale(swept, tree) == set()
    for name, files in swept.code.items():
        assert code_digest(files) == name
    code = {
        key: swept.code[name] for *key, name in swept.points.tuples(["op", "variant", "code"]) for key in [tuple(key)]
    }
    assert "src/ops/softmax/softmax_kernels.hpp" in code["softmax", "fused"]
    assert not any("softmax/" in file for file in code["rmsnorm", "fused"])
    assert not any("_ref." in file or "/schema." in file or file.startswith(("drivers/", "src/sweep/", "src/measure/"))
                   for files in code.values() for file in files)  # fmt: skip
    assert any(file.endswith("linear/gemm/packed.cpp") for file in code["rmsnorm_linear", "fused"]), (
        "engines that it calls"
    )


EDITS = {
    "src/ops/softmax/softmax_kernels.hpp": ({"op": "softmax"},),
    "src/ops/rmsnorm/rmsnorm_forward_kernel.hpp": ({"op": "rmsnorm"}, {"op": "rmsnorm_linear"}, {"op": "llama_block"}),
    "src/ops/attention/portable/forward_kernel.hpp": (
        {"op": "attention", "pass": "forward", "variant": "flash"},
        {"op": "llama_block"},
    ),
    "src/ops/attention/bf16_panels/backward.cpp": (
        {"op": "attention", "pass": "backward", "variant": "flash_amx"},
        {"op": "attention", "pass": "backward", "variant": "flash_avx512_bf16"},
        {"op": "llama_block"},
    ),
    "src/ops/attention/decode/kernel.hpp": ({"op": "attention", "pass": "forward", "variant": "decode"},
                                            {"op": "llama_block"}),
    "src/ops/attention/naive/backward.cpp": ({"op": "attention", "pass": "backward"}, {"op": "llama_block"}),
    "src/ops/linear/gemm/packed.cpp": ({"op": "attention"}, {"op": "rmsnorm_linear"}, {"op": "llama_block"}),
    "src/nn/model/block.cpp": ({"op": "llama_block"},),
    "src/tile/vec/vec.hpp": ({},),
    "src/ops/softmax/softmax_ref.cpp": (),
    "src/ops/softmax/bench/operator.cpp": (),
    "src/measure/measure.cpp": (),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_makes_exactly_its_rows_stale(swept, tree, name):
    edited(tree, name, "// a comment")
    assert stale(swept, tree) == set()
    edited(tree, name, "inline int edited = 1;")
    expected = set().union(*(rows(swept, **equal) for equal in EDITS[name]))
    assert all(rows(swept, **equal) for equal in EDITS[name]), "a row of each"
    assert stale(swept, tree) == expected


def test_resumed_rows_keep_their_code(katt):
    sweep = ("sweep", "softmax", "--vocab", "32", *QUICK, "-o", "out.h5")
    katt.runs(*sweep, "--tokens", "4")
    with h5py.File(katt.folder / "out.h5", "r+") as file:  # as if another version of the code had measured it
        points = file["points"][:]
        (name,) = set(points["code"])
        points["code"] = b"0123456789abcdef"
        file["points"][:] = points
        file.move(f"code/{name.decode()}", "code/0123456789abcdef")
    katt.runs(*sweep, "--tokens", "4,8", "--resume")
    frame = table(katt.folder / "out.h5")
    assert set(frame[frame.tokens == 4].code) == {"0123456789abcdef"}
    assert set(frame[frame.tokens == 8].code) == {name.decode()}
    assert set(load(katt.folder / "out.h5").code) == {"0123456789abcdef", name.decode()}


def test_a_file_of_an_earlier_version_is_resumed(katt):
    sweep = ("sweep", "softmax", "--vocab", "32", *QUICK, "-o", "out.h5")
    katt.runs(*sweep, "--tokens", "4")
    with h5py.File(katt.folder / "out.h5", "r+") as file:
        points = file["points"][:]
        del file["points"], file["code"]
        file.create_dataset(
            "points", data=points[[n for n in points.dtype.names if n != "code"]].copy(), maxshape=(None,)
        )
    katt.runs(*sweep, "--tokens", "4,8", "--resume")
    frame = table(katt.folder / "out.h5")
    assert set(frame[frame.tokens == 4].code) == {""}
    assert set(frame[frame.tokens == 8].code) == set(load(katt.folder / "out.h5").code)


def test_merged_rows_keep_their_code(katt):
    for index, op in enumerate(("softmax", "rmsnorm"), 1):
        katt.runs("sweep", op, *SWEEPS[op], *QUICK, "-o", f"{index}.h5")
    katt.runs("merge", "1.h5", "2.h5", "-o", "out.h5")
    parts = [load(katt.folder / name) for name in ("1.h5", "2.h5", "out.h5")]
    assert parts[2].code == parts[0].code | parts[1].code
    assert {one.state for one in freshness(parts[2], source_tree(ROOT))} == {FRESH}


def test_a_peer_has_no_code(katt):
    katt.runs("sweep", "swiglu", "--tokens", "3", "--intermediate", 5, "--variant", "naive", *QUICK, "--peer", "right",
              "--peer-program", TOY, "-o", "out.h5")
    results = load(katt.folder / "out.h5")
    states = dict(zip(results.points["variant"].tolist(), freshness(results, source_tree(ROOT)), strict=True))
    assert states["right"].state == NONE and states["naive"].state == FRESH
