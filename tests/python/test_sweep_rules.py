"""katt.sweep with score rules of Python: rows, verification against float64, and what is refused."""

import numpy
import pytest

katt = pytest.importorskip("katt")
if not katt._sweep.PROGRAM.exists():
    pytest.skip("this package has no program", allow_module_level=True)

SLOPES = numpy.array([0.5, 0.02, 0.1, 0.25], "float32")
TABLE = numpy.random.default_rng(3).standard_normal((4, 256)).astype("float32")
DOCUMENTS = (numpy.arange(256, dtype="int32") // 40)[None]


def biased(score, b, h, q, k):
    return score - SLOPES[h] * abs(q - k) + TABLE[h, q - k + 128]


def softcap(score, b, h, q, k):
    return 2 * numpy.tanh(score / 2)


def documents(score, b, h, q, k):
    return numpy.where((DOCUMENTS[0, q] == DOCUMENTS[0, k]) & (q >= k), score, -numpy.inf)


def sweep(rule, **axes):
    shape = {"batch": 1, "heads": 4, "kv_heads": 2, "seq": 100, "head_dim": 32}
    return katt.sweep("attention", score_rule=rule, budget_s=0.02, min_rounds=3, no_ceilings=True, progress=False, **(shape | axes))


@pytest.mark.parametrize("rule", [biased, softcap, documents])
@pytest.mark.parametrize("pass_", ["forward", "backward"])
def test_every_variant_is_verified(rule, pass_):
    rows = sweep(
        rule, pass_=pass_, dtype=["f32", "f16", "bf16"], seq_kv=[100, 61] if rule is softcap else 100
    ).frame.to_dict("records")
    measured = [row for row in rows if row["status"] == "ok"]
    assert {row["dtype"] for row in measured} == {"f32", "f16", "bf16"}
    assert {"naive", "flash"} <= {row["variant"] for row in measured}
    assert {row["score_rule"] for row in rows} == {rule.__name__}
    assert all(row["status"] in ("ok", "skipped") for row in rows), [row["reason"] for row in rows]


def test_a_rule_may_capture_a_number():
    torch = pytest.importorskip("torch")
    gain = torch.tensor(0.5)

    def scaled(score, b, h, q, k):
        return score * gain

    rule = katt.Rule(scaled, for_torch=True)
    rows = sweep(rule, variant="flash", dtype="f32", pass_=["forward", "backward"]).frame.to_dict("records")
    assert [row["status"] for row in rows] == ["ok", "ok"]


def test_a_wrong_slope_is_seen(monkeypatch):
    """The reference differentiates by itself: with another slope the gradients of the kernels are wrong."""
    from katt._rules import run

    rule = katt.Rule(lambda score, b, h, q, k: 3 * numpy.tanh(score / 2))  # no softcap, whose slope is the kernels' own
    monkeypatch.setattr(rule, "programs", run.Programs(rule.programs.score))
    rule.programs.slope.results[1] = rule.programs.slope.constant(1.0)
    with pytest.warns(UserWarning, match="rows have failed"):
        rows = sweep(rule, pass_="backward", dtype="f32").frame.to_dict("records")
    assert all(row["status"] != "ok" for row in rows)


def test_what_is_no_rule_is_refused():
    with pytest.raises(ValueError, match=r"score_rule: test_sweep_rules.py:\d+: calls sin"):
        sweep(lambda s, b, h, q, k: numpy.sin(s))
    with pytest.raises(ValueError, match="expected no rule, which rmsnorm does not have"):
        katt.sweep("rmsnorm", score_rule=softcap, progress=False)


@pytest.mark.parametrize("as_list", [True, False])
def test_several_rules_share_the_rounds(as_list):
    rules = ["none", softcap, documents] if as_list else {"capped": softcap, "mask": documents}
    rows = sweep(rules, paired="score_rule", variant="flash", dtype="f32").frame.to_dict("records")
    names = ["none", "softcap", "documents"] if as_list else ["capped", "mask"]
    assert [row["score_rule"] for row in rows] == names
    assert {row["status"] for row in rows} == {"ok"}
    assert {row["paired_to"] for row in rows} == {f"score_rule={names[0]}"}
    assert rows[0]["paired_ratio"] == 1 and all(0 < row["paired_ratio"] < 100 for row in rows)


def test_entries_of_a_file_name_their_rules(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text(
        'op = "attention"\nheads = 4\nseq = 50\nhead_dim = 16\nvariant = "flash"\nrounds = 2\n'
        '[[sweep]]\nscore_rule = ["none", "capped"]\npaired = ["score_rule"]\n'
        '[[sweep]]\nsoftcap = [0, 2]\npaired = ["softcap"]\n'
        '[[sweep]]\nlabel = "apart"\nscore_rule = "mask"\n'
    )
    rules = {"capped": softcap, "mask": documents}
    rows = katt.sweep(path, score_rule=rules, no_ceilings=True, progress=False).frame.to_dict("records")
    found = {(row["label"], row["score_rule"], row["softcap"], row["paired_to"]) for row in rows}
    assert found == {
        ("", "none", 0, "score_rule=none"),
        ("", "capped", 0, "score_rule=none"),
        ("", "none", 2, "softcap=0"),
        ("apart", "mask", 0, ""),
    }
    assert {row["status"] for row in rows} == {"ok"} and all(
        row["paired_ratio"] > 0 for row in rows if row["paired_to"]
    )


def test_resume_knows_another_rule_of_the_same_name(tmp_path):
    def capped(limit):
        return lambda score, b, h, q, k: limit * numpy.tanh(score / limit)

    output, more = tmp_path / "out.h5", {"variant": "flash", "dtype": "f32"}
    sweep({"capped": capped(2)}, output=output, **more)
    assert len(sweep({"capped": capped(2)}, output=output, resume=True, **more).frame) == 1
    message = "--score-rule-file of capped: .*out.h5 holds rows of another file .SHA-256 .*expected that one, or a new output"
    with pytest.raises(ValueError, match=message):
        sweep({"capped": capped(3)}, output=output, resume=True, **more)
    assert len(sweep({"other": capped(3)}, output=output, resume=True, **more).frame) == 2


@pytest.mark.parametrize(("rules", "message"), [
    ([softcap, softcap], "score_rule: holds two rules of the name softcap, expected a dict with a name for each"),
    ({"a b": softcap}, "score_rule: holds the name 'a b', expected letters, digits and _, and not none"),
    ({"none": softcap}, "score_rule: holds the name 'none', expected letters"),
    ([], "score_rule: holds an empty list, expected rules"),
    (["softcapp"], "score.rule softcapp"),
])
def test_what_names_no_rules_is_refused(rules, message):
    with pytest.raises(ValueError, match=message):
        sweep(rules)
