"""`katt referee`: a task in JSON, a verdict in JSON. tests/referee has the kernels that cheat."""

import json
import shutil
import subprocess

import pytest
from conftest import ROOT

EXAMPLES = ROOT / "examples" / "referee"
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="skipped: no C compiler")


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """A folder with the example's kernels, compiled as its comment says."""
    folder = tmp_path_factory.mktemp("kernels")
    for name in ("swiglu", "keeps_answer"):
        subprocess.run(
            ["cc", "-O3", "-ffast-math", "-fopenmp", "-shared", "-fPIC", f"-I{ROOT}/src/candidate",
             str(EXAMPLES / f"{name}.c"), "-o", str(folder / f"{name}.so"), "-lm"], check=True)  # fmt: skip
    return folder


def write_task(katt, kernels, name="swiglu", **keys):
    task = {
        "candidate": str(kernels / f"{name}.so"),
        "operator": "swiglu",
        "axes": {"tokens": [1, 61], "intermediate": 40, "dtype": ["f32"], "threads": 1},
        "measuring": {"rounds": 8},
    } | keys
    (katt.folder / "task.json").write_text(json.dumps(task))


def judge(katt, *arguments, **keys):
    """Status of the program, and the verdict."""
    write_task(katt, *arguments, **keys)
    done = katt("referee", "task.json", "-o", "verdict.json", "--overwrite")
    assert done.returncode in (0, 1, 3), done.stderr
    return done.returncode, json.loads((katt.folder / "verdict.json").read_text())


# Every verdict takes the seconds of the ceilings: a test asks one for all that it can tell.
def test_an_honest_kernel_within_its_limits_is_accepted(katt, kernels):
    limits = {"ratio": 1e-9, "memory_bytes": 1e12, "max_abs_err": 1}
    status, verdict = judge(katt, kernels, limits=limits)
    assert (status, verdict["status"], verdict["reasons"]) == (0, "accepted", [])
    assert verdict["candidate"]["about"] == "swiglu of examples/referee"
    assert len(verdict["candidate"]["sha256"]) == 64 and verdict["candidate"]["untrusted"]
    assert verdict["limits"] | limits == verdict["limits"] and verdict["limits"]["timeout_s"] == 20
    assert [point["axes"]["tokens"] for point in verdict["points"]] == [1, 61]
    for point in verdict["points"]:
        assert (point["status"], point["reason"], point["samples"]) == ("ok", "", 8)
        assert 0 < point["time_s"]["lo"] <= point["time_s"]["median"] <= point["time_s"]["hi"]
        assert 0 <= point["mean_abs_err"] <= point["max_abs_err"] < 1e-5
        assert point["ratio"]["to"] == "naive" and point["ratio"]["median"] > 0
        assert point["ratio_to_best"]["to"] in ("naive", "fused")
        assert point["memory_bytes"] >= 3 * 4 * 40 * point["axes"]["tokens"]
    assert verdict["geometric_mean"]["ratio"] > 0


def test_one_that_keeps_its_answer_is_rejected(katt, kernels):
    status, verdict = judge(katt, kernels, "keeps_answer")
    assert (status, verdict["status"]) == (1, "rejected")
    assert len(verdict["reasons"]) == 2 and all("other inputs: " in reason for reason in verdict["reasons"])
    assert all(point["status"] == "failed" and point["time_s"]["median"] is None for point in verdict["points"])


def test_a_kernel_that_supports_no_point(katt, kernels):
    status, verdict = judge(katt, kernels, axes={"tokens": 2, "intermediate": 8, "dtype": "bf16"})
    assert (status, verdict["status"]) == (1, "unsupported")
    assert verdict["points"][0]["reason"] == "only f32"


def test_without_an_output_the_verdict_is_printed(katt, kernels):
    """Here that of a kernel beyond its limits."""
    limits = {"ratio": 1e6, "memory_bytes": 10, "max_abs_err": 1e-12}
    write_task(katt, kernels, limits=limits, variants=["fused"], baseline="fused")
    done = katt("referee", "task.json", "--results", "rows.h5")
    verdict = json.loads(done.stdout)
    assert (done.returncode, verdict["status"]) == (1, "rejected")
    for reason in ("expected at least 1e+06", "expected at most 10 B", "max_abs_err"):
        assert any(reason in line for line in verdict["reasons"]), verdict["reasons"]
    assert verdict["limits"] | limits == verdict["limits"]
    assert verdict["baseline"] == "fused" == verdict["points"][0]["ratio"]["to"]
    assert (katt.folder / "rows.h5").exists()
    refused = katt("referee", "task.json", "--results", "rows.h5")
    assert refused.returncode == 2 and "rows.h5: exists" in refused.stderr


@pytest.mark.parametrize(("change", "message"), [
    ({"candidate": "nowhere.so"}, "nowhere.so"),
    ({"candidate": None}, "candidate: holds null, expected a string"),
    ({"operator": "swigluu"}, "did you mean swiglu?"),
    ({"axes": {"tokns": 3}}, "axes: tokns: is no axis of swiglu; did you mean tokens?"),
    ({"axes": {"tokens": 0}}, "axes: tokens"),
    ({"axes": {"tokens": {"a": 1}}}, "expected a number, a string, true, false, or a list of them"),
    ({"axes": []}, "axes: expected an object"),
    ({"limit": {}}, 'key "limit" is unknown; did you mean limits?'),
    ({"limits": {"ratio": -1}}, "limits: ratio: holds -1, expected a number above 0"),
    ({"limits": {"ratios": 1}}, "did you mean ratio?"),
    ({"measuring": {"untrusted": False}}, "measuring: untrusted: is no setting"),
    ({"measuring": {"rounds": "many"}}, "measuring: rounds"),
    ({"untrusted": "no"}, 'untrusted: holds "no", expected true or false'),
    ({"baseline": "fussed"}, "baseline fussed: is not measured; did you mean fused?"),
    ({"name": "naive"}, "naive is a variant of swiglu"),
    ({"name": " mine"}, 'name: " mine" is no name for its rows'),
    ({"peers": ["onednnn"]}, "did you mean onednn?"),
])
def test_tasks_that_make_no_sense(katt, kernels, change, message):
    task = {"candidate": str(kernels / "swiglu.so"), "operator": "swiglu"} | change
    (katt.folder / "task.json").write_text(json.dumps(task))
    line = katt.refuses("referee", "task.json", "-o", "verdict.json")
    assert message in line
    assert not (katt.folder / "verdict.json").exists()


@pytest.mark.parametrize("text", ["", "[]", '{"operator": "swiglu", "operator": "rope"}', "{" * 10])
def test_files_that_are_no_task(katt, text):
    (katt.folder / "task.json").write_text(text)
    assert "task.json" in katt.refuses("referee", "task.json", "-o", "verdict.json")


@pytest.mark.parametrize("key", ["peer_program", "candidate_program"])
@pytest.mark.parametrize("option", ["-o", "--results"])
def test_a_program_of_the_task_is_never_replaced(katt, kernels, key, option):
    (katt.folder / "prog.sh").write_text("exit 1")
    write_task(katt, kernels, measuring={key: "prog.sh"})
    line = katt.refuses("referee", "task.json", option, "prog.sh", "--overwrite")
    assert f"{option} prog.sh: is the file of a program of the task prog.sh, which is read" in line


def test_the_verdict_is_never_the_task(katt, kernels):
    write_task(katt, kernels)
    line = katt.refuses("referee", "task.json", "-o", "task.json", "--overwrite")
    assert "task.json" in line
    assert json.loads((katt.folder / "task.json").read_text())["operator"] == "swiglu"
