"""Score rules of Python in PyTorch's peers: the function that a peer makes of a rule's file, and sweeps with peers."""

import functools
from pathlib import Path

import numpy
import pytest
from conftest import ROOT
from random_rules import EXTENTS, RandomRule, captured

katt = pytest.importorskip("katt")
from katt._rules import interpret  # noqa: E402
from katt._rules.file import write  # noqa: E402

PEERS = ROOT / "build" / "peers" / "bin" / "katt-peers"
needs_peers = pytest.mark.skipif(not (PEERS.exists() and katt._sweep.PROGRAM.exists()),
                                 reason="no build/peers (scripts/peers makes it), or no program")

HEADS, LENGTH = 4, 80
SLOPES = numpy.array([0.5, 0.02, 0.1, 0.25], "float32")
TABLE = numpy.random.default_rng(3).standard_normal((HEADS, 2 * LENGTH)).astype("float32")
DOCUMENTS = (numpy.arange(LENGTH, dtype="int32") // 23)[None]
QUIET = numpy.arange(LENGTH) % 7 == 3


def alibi(score, b, h, q, k):
    return score - SLOPES[h] * abs(q - k)


def documents(score, b, h, q, k):
    return numpy.where((DOCUMENTS[0, q] == DOCUMENTS[0, k]) & (q >= k), score, -numpy.inf)


def relative(score, b, h, q, k):
    return 2 * numpy.tanh(score / 2) + TABLE[h, q - k + LENGTH]


def everything(score, b, h, q, k):
    """Numbers beside tensors in every operation, quotients by 0, tensors of bools, negative indices."""
    near = numpy.minimum(abs(q - k) // 3, 9) + q % 5 - (q // numpy.maximum(k - 5, 0)) % 3 + 7 % (k + 1)
    soft = numpy.log(1.5 + numpy.exp(-abs(score))) + numpy.sqrt(near + 20.0) * 0.1 + 1 / (1 + numpy.exp(-score))
    held = numpy.clip(score, -1.5, 2.5) + numpy.maximum(0.25, TABLE[h, -1 - near % 11]) + numpy.floor(q / 4) * 0.01
    shown = ~QUIET[k] | (q == k)
    return numpy.where(shown & (k <= q + 60), soft + held + DOCUMENTS[0, k] * 0.125, numpy.minimum(score - 3.0, 5))


def constant(score, b, h, q, k):
    return score * 0 + TABLE[1, 2] + numpy.log(numpy.float32(0.5))


RULES = (alibi, documents, relative, everything, constant)


def score_mod_of(rule, folder):
    """What a peer makes of the file of a rule."""
    from katt_peers.operators import load

    peer = load(ROOT / "src" / "ops" / "attention" / "bench" / "torch_rule.py")
    path = Path(folder) / "rule.safetensors"
    write(path, "rule", rule)
    program, tensors = peer.read(path, "cpu")
    return peer.score_mod_of(program, tensors, "cpu")


@pytest.mark.parametrize("depth", range(1, 7))
def test_the_function_of_a_file_is_the_program(depth, tmp_path):
    torch = pytest.importorskip("torch")
    for seed in range(20):
        arrays = captured(numpy.random.default_rng(seed))
        rule = katt.Rule(functools.partial(RandomRule(7000 * depth + seed, depth), numpy, arrays))
        score = (numpy.random.default_rng(seed).standard_normal(EXTENTS) * 2).astype("float32")
        places = [axis.astype(numpy.int64) for axis in numpy.indices(EXTENTS, sparse=True)]
        named = dict(zip(("batch", "head", "query", "key"), places, strict=True))
        (expected,) = interpret.run(rule.programs.score, rule.captured, numpy.float32, score=score, **named)
        found = score_mod_of(rule, tmp_path)(torch.from_numpy(score), *(torch.from_numpy(place) for place in places))
        assert found.dtype == torch.float32
        near = numpy.isclose(found.numpy(), expected, rtol=1e-4, atol=1e-4, equal_nan=True)
        assert near.mean() > 0.99, rule.programs.score.text()  # rounding may decide a comparison


@pytest.mark.parametrize("rule", RULES)
def test_pytorchs_flex_attention_takes_the_function(rule, tmp_path):
    torch = pytest.importorskip("torch")
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    torch._dynamo.reset()  # else numbers that differ from those of the rule before become symbols
    q, k, v = torch.randn(3, 1, HEADS, LENGTH, 16, generator=torch.Generator().manual_seed(2))
    found = flex.flex_attention(q, k, v, score_mod_of(katt.Rule(rule), tmp_path))
    expected = katt.attention(q, k, v, score_rule=katt.Rule(rule))
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)


def sweep(rule, peers, **axes):
    """Status and reason of the rows of Katt's flash and of peers, by variant, rule, dtype and pass."""
    shape = {"heads": HEADS, "kv_heads": 2, "seq": LENGTH, "head_dim": 32, "dtype": ["f32", "bf16"]}
    frame = katt.sweep("attention", score_rule=rule, peers=peers, peer_program=PEERS, variant="flash", threads=1, rounds=2,
                       no_ceilings=True, progress=False, **(shape | axes)).frame  # fmt: skip
    return {(row["variant"], row["score_rule"], row["dtype"], row["pass"]): (row["status"], row["reason"])
            for row in frame.to_dict("records")}  # fmt: skip


@needs_peers
def test_peers_compute_the_rule():
    rows = sweep(list(RULES), ["torch_flex_eager", "torch_eager"], pass_=["forward", "backward"])
    assert len(rows) == 3 * len(RULES) * 2 * 2
    for (variant, *_, pass_), (status, reason) in rows.items():
        if (variant, pass_) == ("torch_flex_eager", "backward"):
            assert status == "skipped" and "backward on CPU" in reason
        else:
            assert status == "ok", rows


@needs_peers
def test_the_compiled_peer_computes_the_rule():
    rows = sweep(everything, ["torch_flex"])
    compiled = [rows["torch_flex", "everything", dtype, "forward"] for dtype in ("f32", "bf16")]
    if "needs a C++ compiler" in compiled[0][1]:
        pytest.skip(compiled[0][1])
    assert [status for status, _ in compiled] == ["ok", "ok"], compiled


@needs_peers
def test_rules_go_with_softcap_alibi_masks_and_bias():
    rows = sweep(relative, ["torch_flex_eager", "torch_eager"], softcap=5, alibi=1, causal=1, window=30, bias=1)
    assert all(status == "ok" for status, _ in rows.values()), rows


@needs_peers
def test_peers_without_rules_say_so():
    rows = sweep(alibi, ["torch_flash", "onednn"], dtype="f32")
    assert rows["torch_flash", "alibi", "f32", "forward"] == ("skipped", "PyTorch SDPA has no score rule")
    status, reason = rows["onednn", "alibi", "f32", "forward"]
    assert status == "skipped" and ("has no score rule" in reason or "not installed" in reason or "finds no" in reason)


@pytest.mark.skipif(not katt._sweep.PROGRAM.exists(), reason="this package has no program")
def test_a_function_computes_the_rule_by_itself():
    def by_hand(q, k, v, scale, score_rule):
        places = numpy.indices((1, HEADS, LENGTH, LENGTH), sparse=True)
        score = alibi(scale * q @ k.swapaxes(-1, -2), *places)
        weights = numpy.exp(score - score.max(-1, keepdims=True))
        return (weights / weights.sum(-1, keepdims=True) @ v).astype("float32")

    frame = katt.sweep("attention", score_rule=alibi, peers={"mine": by_hand}, heads=HEADS, seq=LENGTH, head_dim=16,
                       variant="flash", threads=1, rounds=2, no_ceilings=True, progress=False).frame.set_index("variant")  # fmt: skip
    assert frame.loc["mine", "status"] == "ok", frame.loc["mine", "reason"]
    assert frame.loc["mine", "score_rule"] == "alibi"
