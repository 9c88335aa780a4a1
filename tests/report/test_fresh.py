"""Fresh or not: rows held against a source tree, as text, as JSON and from Python."""

import json
import subprocess
from datetime import UTC, datetime, timedelta

import h5py
import numpy as np
import pytest
import synthetic
from katt_report import InputError, load
from katt_report.published.cpp_tokens import code_digest, token_hash
from katt_report.published.fresh import (
    FRESH,
    NONE,
    STALE,
    UNKNOWN,
    Freshness,
    Share,
    freshness,
    parts,
    share,
    source_tree,
)
from test_cli import run

SOURCES = {
    "src/op/variants.hpp": "struct Variant { int rank; };\n",
    "src/ops/softmax/fused.cpp": "float fused(float x) { return x + 1; }\n",
    "src/ops/softmax/naive.cpp": "float naive(float x) { return x + 2; }\n",
}
NAIVE = ("src/op/variants.hpp", "src/ops/softmax/naive.cpp")
FUSED = (*NAIVE, "src/ops/softmax/fused.cpp")


@pytest.fixture
def tree(tmp_path):
    folder = tmp_path / "tree"
    for name, text in SOURCES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def code_of(files) -> tuple[str, dict]:
    held = {name: token_hash(SOURCES[name]) for name in files}
    return code_digest(held), held


def file_of(*rows, **attributes) -> synthetic.File:
    """A file of rows (variant, code): the files of the code, "" without one, None without the column."""
    about = {"started_at": (datetime.now(UTC) - timedelta(days=12, hours=1)).isoformat(), "commit": "unknown",
             "peers": '{"torch_eager": "torch 2.15.0"}', "device": "AMD EPYC", "isa": "avx2", "cores": 2}  # fmt: skip
    file = synthetic.File(runs={"run-0001": synthetic.run_attributes(**about | attributes)})
    for index, (variant, files) in enumerate(rows):
        name, held = code_of(files) if files else ("", {})
        code = {} if files is None else {"code": name}
        file.rows.append(
            synthetic.row(
                op="softmax", variant=variant, point=f"p{index}", batch=index, commit="unknown", dtype="f32", **code
            )
        )
        if held:
            file.code[name] = held
    return file


ROWS = (("naive", NAIVE), ("fused", FUSED), ("torch_eager", ""))


def states(path, tree):
    return [one.state for one in freshness(load(path), source_tree(tree))]


def test_an_edit_makes_the_rows_stale_that_it_is_in(tmp_path, tree):
    path = synthetic.write(tmp_path / "a.h5", file_of(*ROWS))
    assert states(path, tree) == [FRESH, FRESH, NONE]
    fused, naive = tree / FUSED[-1], tree / NAIVE[-1]
    fused.write_text("// a comment\nfloat fused( float x )\n{ return x+1; }")
    assert states(path, tree) == [FRESH, FRESH, NONE]
    fused.write_text(SOURCES[FUSED[-1]].replace("1", "3"))
    assert freshness(load(path), source_tree(tree)) == [
        Freshness(FRESH), Freshness(STALE, ("src/ops/softmax/fused.cpp",)), Freshness(NONE)]  # fmt: skip
    naive.unlink()
    assert states(path, tree) == [STALE, STALE, NONE], "naive is the other half of every ratio"
    fused.write_text(SOURCES[FUSED[-1]])
    naive.write_text(SOURCES[NAIVE[-1]])
    assert states(path, tree) == [FRESH, FRESH, NONE], "an edit that was taken back"


def test_rows_that_name_no_code_are_unknown(tmp_path, tree):
    old = synthetic.write(tmp_path / "old.h5", file_of(("naive", None), ("fused", None), ("torch_eager", None)))
    assert states(old, tree) == [UNKNOWN, UNKNOWN, NONE]
    file = file_of(*ROWS)  # an old file that this version went on with, and a table without its files
    file.runs["run-0002"] = file.runs["run-0001"]
    file.rows += [row | {"run": "run-0002", "batch": 9 + index, "code": ""} for index, row in enumerate(file.rows)]
    file.code.pop(code_of(FUSED)[0])
    path = synthetic.write(tmp_path / "resumed.h5", file)
    assert states(path, tree) == [FRESH, UNKNOWN, NONE, UNKNOWN, UNKNOWN, NONE]


def test_shares_and_ages(tmp_path, tree):
    tell = source_tree(tree)
    path = synthetic.write(tmp_path / "a.h5", file_of(*ROWS))
    everything = share(load(path), tell)
    assert everything == Share(fresh=2) and everything.is_fresh and everything.rows == 2 and str(everything) == "fresh"
    (tree / FUSED[-1]).write_text("")
    stale = share(load(path), source_tree(tree))
    assert stale == Share(1, 1, 0, 12, None, ("src/ops/softmax/fused.cpp",))
    assert (stale.stale_share, stale.is_fresh, str(stale)) == (0.5, False, "50 % stale (12 days)")
    assert share(load(path), source_tree(tree), [0]) == Share(fresh=1)
    assert str(share(load(path), source_tree(tree), [1])) == "stale (12 days)"
    assert str(Share(unknown=3, days=1, commits=1)) == "unknown (1 day, 1 commit)"
    assert Share().is_fresh and Share().stale_share == 0


def git(tree, *arguments):
    about = ["-c", "user.name=n", "-c", "user.email=n@example", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", tree, *about, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_commits_since(tmp_path, tree):
    git(tree, "init", "-q")
    git(tree, "add", ".")
    git(tree, "commit", "-qm", "first", "--date", "2024-01-02T00:00:00Z")
    commit = git(tree, "rev-parse", "HEAD")
    for number in range(3):
        git(tree, "commit", "-q", "--allow-empty", "-m", str(number))
    file = file_of(("fused", FUSED), ("fused", FUSED), started_at="")
    file.rows[0]["commit"], file.rows[1]["commit"] = commit, "0" * 40  # one that another history has
    (tree / FUSED[-1]).write_text("")
    found = share(load(synthetic.write(tmp_path / "a.h5", file)), source_tree(tree))
    assert (found.commits, found.days) == (3, 0), "without a time, days since the commit"
    assert str(found) == "stale (0 days, 3 commits)"


def test_the_command_lists_by_machine_and_experiment(tmp_path, tree, capsys):
    folder = tmp_path / "results"
    for place in ("amd-avx2-2c/softmax/a.h5", "amd-avx2-2c/softmax/b.h5", "other.h5"):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        synthetic.write(folder / place, file_of(*ROWS))
    with h5py.File(folder / "log.h5", "w") as log:
        log["loss"] = np.zeros(3)
    with h5py.File(folder / "model.h5", "w") as runs:
        runs.attrs.update({"generator": "katt experiments", "build": '{"commit": ""}',
                           "machine": '{"cpu": "AMD EPYC", "isa": ["avx512f"], "cores": 2}'})  # fmt: skip
        runs["dtype"] = np.zeros(5)
    for name, path in (("named", NAIVE[0]), ("old", FUSED[-1])):
        with h5py.File(folder / f"{name}.h5", "w") as runs:
            runs.attrs.update({"generator": "katt experiments", "machine": '{"cpu": "AMD EPYC", "isa": ["avx512f"], "cores": 2}',
                               "code": json.dumps({path: token_hash((tree / path).read_text())})})  # fmt: skip
            runs["dtype"] = np.zeros(2)
    (tree / FUSED[-1]).write_text("")
    status, out, err = run(capsys, "fresh", folder, "--source", tree)
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        "amd-avx2-2c     other        2 rows  50 % stale (12 days)",
        "    softmax forward fused f32: 1, src/ops/softmax/fused.cpp",
        "amd-avx2-2c     softmax      4 rows  50 % stale (12 days)",
        "    softmax forward fused f32: 2, src/ops/softmax/fused.cpp",
        "zen4-avx512-2c  model        5 rows  unknown",
        "zen4-avx512-2c  named        2 rows  fresh",
        "zen4-avx512-2c  old          2 rows  stale",
        "5 of 15 rows are fresh",
    ]
    status, out, _ = run(capsys, "fresh", folder / "other.h5", "--source", tree, "--json")
    assert status == 0
    assert json.loads(out) == [{
        "machine": "amd-avx2-2c", "experiment": "other", "rows": 2, "fresh": 1, "stale": 1, "unknown": 0, "stale_share": 0.5,
        "days": 12, "commits": None, "changed": ["src/ops/softmax/fused.cpp"],
        "stale_rows": [{"op": "softmax", "pass": "forward", "variant": "fused", "dtype": "f32", "rows": 1, "state": "stale",
                        "changed": ["src/ops/softmax/fused.cpp"]}],
    }]  # fmt: skip


def test_a_variant_without_code_is_unknown_beside_others_and_a_skipped_one_is_not(tmp_path, tree):
    file = file_of(*ROWS, ("fused", ""), ("onednn", ""))
    file.rows[-1] |= {"status": "skipped", "reason": "cannot be loaded"}
    assert states(synthetic.write(tmp_path / "a.h5", file), tree) == [FRESH, FRESH, NONE, UNKNOWN, NONE]


def test_json_names_its_code(tmp_path, tree, capsys):
    folder = tmp_path / "results" / "zen4-avx512-2c" / "calls"
    folder.mkdir(parents=True)
    about = {"machine": {"cpu": "AMD EPYC", "isa": ["avx512f"], "cores": 2}, "rows": [{"op": "a"}, {"op": "b"}]}
    code = {FUSED[-1]: token_hash(SOURCES[FUSED[-1]])}
    (folder / "calls.json").write_text(json.dumps({**about, "code": code}))
    (folder / "foreign.json").write_text("[1]")
    (folder / "summary.json").write_text('{"loss": 1}')
    (told,) = parts([tmp_path / "results"], source_tree(tree))
    assert (told.machine, told.experiment, told.share) == ("zen4-avx512-2c", "calls", Share(fresh=2))
    (tree / FUSED[-1]).write_text("")
    status, out, _ = run(capsys, "fresh", folder / "calls.json", "--source", tree)
    assert status == 0 and out.endswith("0 of 2 rows are fresh\n")


def test_bad_input(tmp_path, tree, capsys, files):
    for arguments, expected in (
        ((tmp_path / "none.h5",), "none.h5: holds nothing (no such file), expected "),
        ((tree,), "tree: holds no *.h5 or *.json, expected result files"),
        (
            (files["seqlen"], "--source", tmp_path),
            f"{tmp_path}: holds no folder src/ops, expected a source tree of Katt",
        ),
        ((files["seqlen"], "--source", tmp_path / "none"), "none: holds nothing, expected a source tree of Katt"),
        ((files["seqlen"], "--sauce", "x"), "--sauce: unknown option, did you mean --source?"),
    ):
        status, out, err = run(capsys, "fresh", *arguments)
        assert (status, out) == (2, "") and expected in err and err.count("\n") == 1, err


def test_files_outside_of_the_tree_are_not_read(tmp_path, tree):
    (tmp_path / "secret.hpp").write_text("int a;")
    name = "../secret.hpp"
    assert source_tree(tree).changed({name: token_hash("int a;")}) == (name,)


def test_the_tree_of_the_program_is_the_default(repository, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert source_tree().root == repository
    with pytest.raises(InputError, match="expected a source tree"):
        source_tree(tmp_path)
