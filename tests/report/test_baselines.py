"""`katt-report baselines`: naive held against another library, case by case."""

import numpy as np
import pytest
import synthetic
from test_cli import run

EXPLAINED = '[[explained]]\nop = "attention"\ndtype = "bf16"\nseq_kv = 1024\nreason = "its library rounds later"\n'


def a_file(path, ratios: dict, **row) -> str:
    """A result in which naive takes so many times as long as torch_eager, by (dtype, N); `row` replaces the peer."""
    machine = synthetic.Machine(np.random.default_rng(3))
    file = synthetic.File(runs={"run-0001": synthetic.run_attributes()})
    for (dtype, seq), ratio in ratios.items():
        case = synthetic.attention_case(seq, dtype)
        naive = synthetic.naive_variant(case)
        peer = {**naive, "time": naive["time"] / ratio, "workspace": 0, "total": 0}
        synthetic.case_rows(case, {"naive": naive, "torch_eager": peer}, machine, 15, file)
        if row:
            file.rows[-1] |= row
    return synthetic.write(path, file)


@pytest.fixture
def slow(tmp_path):
    return a_file(tmp_path / "slow.h5", {("f32", 512): 0.9, ("f32", 1024): 1.3, ("bf16", 512): 1.0, ("bf16", 1024): 2})


def test_honest_baselines_pass(tmp_path, capsys):
    status, out, err = run(capsys, "baselines", a_file(tmp_path / "a.h5", {("f32", 512): 1.4, ("bf16", 512): 0.5}))
    assert (status, err) == (0, "")
    assert out.splitlines()[-1].startswith("no unexplained cases above 1.5: 2 cases, 0 explained")


def test_a_slow_one_is_named(slow, capsys):
    status, out, _ = run(capsys, "baselines", slow)
    assert status == 1
    lines = out.splitlines()
    assert lines[1].startswith("attention forward bf16") and "seq_kv = 1024" in lines[1]
    assert lines[1].endswith("unexplained") and "2.0" in lines[1]
    assert sum(line.endswith("unexplained") for line in lines) == 1
    assert lines[-1].startswith("1 unexplained case above 1.5: 4 cases")


def test_the_limit_can_be_chosen(slow, capsys):
    assert run(capsys, "baselines", slow, "--limit", "2.5")[0] == 0
    status, out, _ = run(capsys, "baselines", slow, "--limit", "1.2")
    assert status == 1 and out.splitlines()[-1].startswith("2 unexplained cases above 1.2")


def test_an_explanation_is_printed_and_suffices(slow, tmp_path, capsys):
    (tmp_path / "why.toml").write_text(EXPLAINED)
    status, out, _ = run(capsys, "baselines", slow, "--explained", tmp_path / "why.toml")
    assert status == 0
    assert out.splitlines()[1].endswith("its library rounds later")
    assert "1 explained" in out.splitlines()[-1]


def test_a_file_without_explanations_explains_nothing(slow, tmp_path, capsys):
    (tmp_path / "why.toml").write_text("# nothing yet\n")
    assert run(capsys, "baselines", slow, "--explained", tmp_path / "why.toml")[0] == 1


def test_an_explanation_of_other_rows_does_not(slow, tmp_path, capsys):
    (tmp_path / "why.toml").write_text(EXPLAINED.replace("1024", "512"))
    status, out, _ = run(capsys, "baselines", slow, "--explained", tmp_path / "why.toml")
    assert status == 1
    assert "note: nothing needs the explanation of op = attention, dtype = bf16, seq_kv = 512" in out


def test_a_case_that_was_not_compared_is_no_pass(tmp_path, capsys):
    path = a_file(tmp_path / "a.h5", {("f32", 512): 1.0, ("f32", 1024): 1.0})
    refused = a_file(tmp_path / "b.h5", {("f32", 512): 1.0}, status="skipped", reason="not installed")
    assert run(capsys, "baselines", path)[0] == 0
    status, _, err = run(capsys, "baselines", refused)
    assert status == 2 and "no case with naive and torch_eager" in err and len(err.splitlines()) == 1


def test_a_failed_peer_is_listed(tmp_path, capsys):
    machine = synthetic.Machine(np.random.default_rng(3))
    file = synthetic.File(runs={"run-0001": synthetic.run_attributes()})
    for seq in (512, 1024):
        case = synthetic.attention_case(seq, "f32")
        naive = synthetic.naive_variant(case)
        synthetic.case_rows(case, {"naive": naive, "torch_eager": naive}, machine, 9, file)
    file.rows[-1] |= {"status": "failed", "reason": "out of memory"}
    status, out, _ = run(capsys, "baselines", synthetic.write(tmp_path / "a.h5", file))
    assert status == 1 and "torch_eager failed: out of memory; unexplained" in out


@pytest.mark.parametrize(("text", "expected"), [
    ("explained = 3", "holds the keys explained, expected tables"),
    ('[[explained]]\nop = "attention"', "number 1 without a reason, expected a text"),
    ('[[explained]]\nreason = "so"', "number 1 with no column, expected columns"),
    ('[[explained]]\ncolour = 1\nreason = "so"', "number 1 with colour, expected columns"),
    ("[[explained", "holds no TOML"),
    pytest.param("x = " + "[" * 100_000, "holds no TOML", id="deep"),
])
def test_a_bad_explanation_is_refused(slow, tmp_path, capsys, text, expected):
    (tmp_path / "why.toml").write_text(text)
    status, out, err = run(capsys, "baselines", slow, "--explained", tmp_path / "why.toml")
    assert (status, out) == (2, "") and len(err.splitlines()) == 1
    assert "why.toml" in err and expected in err


def test_a_missing_explanation_is_refused(slow, tmp_path, capsys):
    status, _, err = run(capsys, "baselines", slow, "--explained", tmp_path / "none.toml")
    assert status == 2 and "none.toml: holds nothing (no such file)" in err


def test_the_limit_is_a_positive_number(slow, capsys):
    assert run(capsys, "baselines", slow, "--limit", "0")[0] == 2
