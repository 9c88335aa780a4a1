"""katt.sweep, its results, and functions of Python as peers."""

import numpy
import pytest

katt = pytest.importorskip("katt")

QUICK = {"budget_s": 0.02, "min_rounds": 3, "progress": False}


@pytest.fixture(scope="module")
def result():
    return katt.sweep("softmax", tokens=[8, 16, 32], vocab=64, dtype=["f32", "bf16"], threads=1, **QUICK)


def test_frame(result):
    frame = result.frame
    assert set(frame["variant"]) == {"naive", "fused"} and set(frame["dtype"]) == {"f32", "bf16"}
    assert len(frame) == 12 and (frame["status"] == "ok").all() and (frame["time_s"] > 0).all()
    assert "softmax" in repr(result)


def test_figures_and_report(result, tmp_path):
    assert "speedup" in result.figures
    assert result.plot().axes
    assert result.plot("time").axes
    with pytest.raises(ValueError, match="plot: nothing: no such figure, expected one of"):
        result.plot("nothing")
    page = result.report(tmp_path / "report")
    assert page.read_text().startswith("<!") and (tmp_path / "report" / "speedup.svg").exists()


def test_files(result, tmp_path):
    path = result.save(tmp_path / "kept.h5")
    assert (katt.open(path).frame["time_s"] == result.frame["time_s"]).all()
    with pytest.raises(ValueError, match="exists, expected a new file"):
        result.save(path)
    with pytest.raises(ValueError, match="none.h5: holds nothing"):
        katt.open(tmp_path / "none.h5")
    again = katt.sweep("softmax", tokens=8, vocab=64, output=tmp_path / "named.h5", **QUICK)
    assert again.paths == (tmp_path / "named.h5",)
    with pytest.raises(ValueError, match="named.h5"):
        katt.sweep("softmax", tokens=8, vocab=64, output=tmp_path / "named.h5", **QUICK)


def test_refusals():
    with pytest.raises(ValueError, match="--tokens"):
        katt.sweep("softmax", tokens="many", **QUICK)
    with pytest.raises(ValueError, match="nonsense"):
        katt.sweep("nonsense", **QUICK)
    with pytest.raises(ValueError, match="peers: mine: holds a int, expected a function"):
        katt.sweep("softmax", peers={"mine": 3}, **QUICK)
    with pytest.raises(ValueError, match="arrays: holds lists, expected numpy or torch"):
        katt.sweep("softmax", peers={"mine": abs}, arrays="lists", **QUICK)


def rows(result, peer):
    frame = result.frame
    return frame[frame["variant"] == peer].set_index("dtype")


def test_functions_are_peers():
    pytest.importorskip("ml_dtypes")
    seen = []

    def right(x, tokens):
        seen.append((x.dtype, tokens))
        e = numpy.exp(x.astype(numpy.float32) - x.max(axis=-1, keepdims=True).astype(numpy.float32))
        return e / e.sum(axis=-1, keepdims=True)

    def wrong(**known):
        out = right(known["x"], known["tokens"])
        out[0, 0] += 0.5
        return out

    def narrow(x):
        return x[:, :-1]

    def absent(x, y):
        return x

    def fails(x):
        raise RuntimeError("it broke")

    def refuses(x):
        raise katt.Refusal("not today")

    peers = {"right": right, "wrong": wrong, "narrow": narrow, "absent": absent, "fails": fails, "refuses": refuses}
    with pytest.warns(UserWarning, match="rows have failed"):
        result = katt.sweep("softmax", peers=peers, tokens=8, vocab=32, dtype=["f32", "bf16"], **QUICK)
    good = rows(result, "right")
    assert (good["status"] == "ok").all() and (good["samples"] >= 3).all() and (good["speedup"] > 0).all()
    assert {(str(dtype), tokens) for dtype, tokens in seen} == {("float32", 8), ("bfloat16", 8)}
    for peer, status, reason in (
        ("wrong", "failed", "out"),
        ("narrow", "failed", "out: holds shape (8, 31), expected (8, 32)"),
        ("absent", "failed", "the function asks for y, expected names among"),
        ("fails", "failed", "RuntimeError: it broke"),
        ("refuses", "skipped", "not today"),
    ):
        found = rows(result, peer)
        assert (found["status"] == status).all()
        assert found["reason"].str.contains(reason, regex=False).all(), found["reason"].tolist()


def test_gradients_of_peers():
    def mine(dout, x):
        e = numpy.exp(x - x.max(axis=-1, keepdims=True))
        out = e / e.sum(axis=-1, keepdims=True)
        return out * (dout - (dout * out).sum(axis=-1, keepdims=True))

    result = katt.sweep("softmax", peers={"mine": mine}, pass_="backward", tokens=8, vocab=32, dtype="f32", **QUICK)
    assert rows(result, "mine")["status"].tolist() == ["ok"]


def test_peers_of_pytorch():
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()

    def sdpa(q, k, v, causal, scale):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=bool(causal), scale=scale)

    result = katt.sweep("attention", peers={"sdpa": sdpa}, arrays="torch", seq=64, heads=2, head_dim=32, threads=1,
                        causal=[0, 1], dtype=["f32", "bf16"], variant=["naive", "flash"], **QUICK)  # fmt: skip
    assert len(rows(result, "sdpa")) == 4 and (rows(result, "sdpa")["status"] == "ok").all()
    assert torch.get_num_threads() == threads
