"""katt.sweep, its results, and functions of Python as peers."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy
import pytest

katt = pytest.importorskip("katt")

QUICK = {"budget_s": 0.02, "min_rounds": 3, "no_ceilings": True, "progress": False}


@pytest.fixture(scope="module")
def result():
    with_ceilings = QUICK | {"no_ceilings": False}
    return katt.sweep("softmax", tokens=[8, 16, 32], vocab=64, dtype=["f32", "bf16"], threads=1, **with_ceilings)


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
    for place, message in ((tmp_path, "is a folder"), (tmp_path / "no/x.h5", "No such file"),
                           (path / "x.h5", "Not a directory")):
        with pytest.raises(ValueError, match=f"save: {place}: {message}"):
            result.save(place)
    assert [file.name for file in tmp_path.iterdir()] == ["kept.h5"]
    (tmp_path / "group.h5").write_bytes(b"\x89HDF\r\n\x1a\nand nothing more")
    with pytest.raises(ValueError, match="group.h5"):
        katt.open(tmp_path / "group.h5")
    with pytest.raises(ValueError, match="none.h5: holds nothing"):
        katt.open(tmp_path / "none.h5")
    again = katt.sweep("softmax", tokens=8, vocab=64, output=tmp_path / "named.h5", **QUICK)
    assert again.paths == (tmp_path / "named.h5",)
    with pytest.raises(ValueError, match="named.h5"):
        katt.sweep("softmax", tokens=8, vocab=64, output=tmp_path / "named.h5", **QUICK)


def test_refusals():
    with pytest.raises(ValueError, match="--tokens"):
        katt.sweep("softmax", tokens="many", **QUICK)
    with pytest.raises(ValueError, match="dry_run: .*expected katt sweep --dry-run"):
        katt.sweep("softmax", dry_run=True, **QUICK)
    with pytest.raises(ValueError, match="nonsense"):
        katt.sweep("nonsense", **QUICK)
    with pytest.raises(ValueError, match="peers: mine: holds a int, expected a function"):
        katt.sweep("softmax", peers={"mine": 3}, **QUICK)
    for name in ("a,b", "", 3):
        with pytest.raises(ValueError, match=f"peers: holds the name {name!r}, expected letters"):
            katt.sweep("softmax", peers={name: abs}, **QUICK)
    with pytest.raises(ValueError, match="arrays: holds lists, expected numpy or torch"):
        katt.sweep("softmax", peers={"mine": abs}, arrays="lists", **QUICK)


def test_more_than_a_pipe_holds():
    code = "import sys; print('[' + ' ' * 10**6 + ']', flush=True); print('done', file=sys.stderr)"
    assert katt._sweep.run([sys.executable, "-c", code], False) == (0, "done", [])


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Puts a script in the place of the program: the text after #!/bin/sh, where $KATT is the program itself."""

    def put(script):
        path = tmp_path / "program"
        monkeypatch.setenv("KATT", os.environ.get("KATT", str(katt._sweep.PROGRAM)))
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setattr(katt._sweep, "PROGRAM", path)

    return put


LINE = "katt: r.h5: cannot be written (No space left on device)"


@pytest.mark.parametrize(
    ("script", "status", "says"),
    [
        ("kill -9 $$", -9, "was ended by SIGKILL"),
        ("kill -11 $$", -11, "was ended by SIGSEGV"),
        (f"echo '{LINE}' >&2; exit 1", 1, "No space left on device"),
        ("echo 'katt: out of memory' >&2; exit 1", 1, "out of memory"),
        ("exit 0", 0, "ended with status 0"),
        ("exit 77", 77, "ended with status 77"),
        ("echo nonsense; exit 1", 1, "ended with status 1"),
        # It has crashed after its summary, or said what its status does not.
        ("""echo '{"failed": 0, "interrupted": false}'; kill -11 $$""", -11, "SIGSEGV"),
        ("""echo '{"failed": 0, "interrupted": false}'; exit 1""", 1, "ended with status 1"),
        ("""echo '{"failed": 0, "interrupted": true}'; echo 'interrupted' >&2; exit 130""", 130, "interrupted"),
        ("(sleep 0.3; kill -15 $$) & exec $KATT \"$@\" --budget-s 60", None, "ended"),
        ("ulimit -f 4; exec $KATT \"$@\"", None, "ended"),
    ],
)  # fmt: skip
def test_a_program_that_ends_early(program, tmp_path, script, status, says):
    program(script)
    for output in (None, tmp_path / "kept.h5"):
        with pytest.raises(katt.SweepError, match=says) as error:
            katt.sweep("softmax", tokens=[8, 1024], vocab=1024, min_rounds=3, no_ceilings=True, progress=False, output=output)
        assert "\n" not in str(error.value) and isinstance(error.value, RuntimeError)
        assert status is None or error.value.status == status


def test_what_was_finished_is_kept(program, tmp_path):
    path = tmp_path / "kept.h5"
    program('$KATT "$@" && kill -9 $$')
    with pytest.raises(katt.SweepError, match="kept.h5 keeps what is done, resume=True goes on"):
        katt.sweep("softmax", tokens=8, vocab=64, output=path, **QUICK)
    program('exec $KATT "$@"')
    assert len(katt.sweep("softmax", tokens=[8, 16], vocab=64, output=path, resume=True, **QUICK).frame) == 4


@pytest.mark.parametrize("script", ["exec sleep 600", "trap '' TERM INT; echo begun >&2; while :; do sleep 0.1; done"])
def test_an_interrupt_ends_the_program(program, tmp_path, monkeypatch, script):
    started = []
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[0])
    program(script)
    main = threading.main_thread().ident

    def interrupt():
        while not started:
            time.sleep(0.01)
        time.sleep(0.3)  # until it waits
        signal.pthread_kill(main, signal.SIGINT)  # Python alone gets it, as from a notebook

    threading.Timer(0.2, interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        katt.sweep("softmax", tokens=8, progress=False)
    assert started[0].poll() is not None


def test_dtypes_are_named_by_their_objects():
    from katt._sweep import axis_text

    assert axis_text("dtype", [numpy.float32, numpy.dtype("float16"), "bf16"]) == "f32,f16,bf16"
    assert axis_text("dtype", "bfloat16") == "bf16" and axis_text("dtype", ["float32"]) == "f32"
    assert axis_text("seq", numpy.array([8, 16])) == "8,16" and axis_text("causal", numpy.True_) == "1"
    assert axis_text("eps", numpy.float32(0.5)) == "0.5" and axis_text("seq", range(8, 10)) == "8,9"
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    result = katt.sweep("softmax", tokens=8, vocab=64, dtype=[numpy.float32, bfloat16], variant="fused", **QUICK)
    assert result.frame["dtype"].tolist() == ["f32", "bf16"]


def test_dtypes_of_pytorch():
    torch = pytest.importorskip("torch")
    from katt._sweep import axis_text

    assert axis_text("dtype", [torch.float32, torch.float16, torch.bfloat16]) == "f32,f16,bf16"


def test_a_child_of_fork_is_told(tmp_path):
    script = """if True:
        import os, numpy, katt
        x = numpy.zeros((4, 8), "f")
        def child(compute):
            if os.fork() == 0:
                try:
                    compute()
                    print("computed", flush=True)
                except RuntimeError as error:
                    print(error, flush=True)
                raise SystemExit
            os.wait()
        child(lambda: katt.softmax(x))    # nothing was computed before: a process like any other
        katt.softmax(x)
        child(lambda: katt.softmax(x))
        child(katt.get_num_threads)
        katt.softmax(x)
        print("parent goes on")
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "computed" and lines[3] == "parent goes on", lines
    for line in lines[1:3]:
        assert "Katt was used before fork()" in line and "spawn" in line


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
        x = x.astype(numpy.float64)  # in f32 one of 600 draws of the inputs is beyond the limit
        e = numpy.exp(x - x.max(axis=-1, keepdims=True))
        out = e / e.sum(axis=-1, keepdims=True)
        return out * (dout - (dout * out).sum(axis=-1, keepdims=True))

    result = katt.sweep("softmax", peers={"mine": mine}, pass_="backward", tokens=8, vocab=32, dtype="f32", **QUICK)
    (row,) = rows(result, "mine").to_dict("records")
    assert row["status"] == "ok", row["reason"]


def test_peers_of_pytorch():
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()

    def sdpa(q, k, v, causal, scale):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=bool(causal), scale=scale)

    result = katt.sweep("attention", peers={"sdpa": sdpa}, arrays="torch", seq=64, heads=2, head_dim=32, threads=1,
                        causal=[0, 1], dtype=["f32", "bf16"], variant=["naive", "flash"], **QUICK)  # fmt: skip
    assert len(rows(result, "sdpa")) == 4 and (rows(result, "sdpa")["status"] == "ok").all()
    assert torch.get_num_threads() == threads
