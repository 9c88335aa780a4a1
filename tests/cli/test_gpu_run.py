"""`scripts/gpu_run`: its division of time, its state between calls, its answers to failures. The
program is a fake of this file, which records its calls."""

import importlib.machinery
import importlib.util
import json
import subprocess
import sys
import tarfile

import pytest

from conftest import ROOT

SCRIPT = ROOT / "scripts" / "gpu_run"


def load():
    sys.path.insert(0, str(SCRIPT.parent))
    loader = importlib.machinery.SourceFileLoader("gpu_run", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_run", loader))
    sys.modules["gpu_run"] = module
    loader.exec_module(module)
    return module


gpu_run = load()


def test_all_stages_fit_into_25_minutes():
    planned = gpu_run.plan(gpu_run.STAGES, set(), gpu_run.TOTAL_S)
    assert gpu_run.TOTAL_S == 1500
    assert [seconds for _, seconds in planned] == pytest.approx([stage.share_s for stage in gpu_run.STAGES])
    assert {stage.name for stage in gpu_run.STAGES} == set(gpu_run.gpu_stages.ALL)


@pytest.mark.parametrize("total", [7, 60, 300, 1499, 4000])
def test_a_plan_never_takes_more_than_there_is_and_the_first_come_first(total):
    seconds = [seconds for _, seconds in gpu_run.plan(gpu_run.STAGES, set(), total)]
    assert sum(seconds) <= total + 1e-6
    for stage, given in zip(gpu_run.STAGES, seconds):
        assert given == 0 or given >= stage.least_s
    assert seconds[0] > 0


def test_what_is_done_leaves_its_time_to_the_others():
    alone = dict((stage.name, seconds) for stage, seconds in gpu_run.plan(gpu_run.STAGES, {"tests", "ncu"}, 1500))
    assert "tests" not in alone and alone["verify"] > 120
    assert sum(alone.values()) == pytest.approx(1500)


def row(fraction, variant="flash", op="attention", status="ok"):
    return {"op": op, "pass": "forward", "variant": variant, "status": status, "ceiling_fraction": fraction}


def test_the_furthest_rows_are_ours_measured_and_of_different_kinds():
    rows = [row(0.5), row(0.1), row(0.01, "naive"), row(0.02, "torch_flash"), row(0.03, status="failed"),
            row(float("nan"), "decode"), row(0.3, op="rope"), row(0.9, op="swiglu"), row(0.4, op="softmax")]  # fmt: skip
    assert [(r["op"], r["ceiling_fraction"]) for r in gpu_run.gpu_stages.furthest_rows(rows)] == [
        ("attention", 0.1), ("rope", 0.3), ("softmax", 0.4)]  # fmt: skip


def test_a_row_becomes_the_sweep_that_runs_it_again():
    measured = row(0.1) | {"tile_q": 128, "tile_kv": 64, "seq_q": 512, "causal": 1, "threads": 0, "dtype": "bf16"}
    text = " ".join(gpu_run.gpu_stages.sweep_arguments(measured, ["pass", "threads", "dtype", "seq_q", "causal", "to"]))
    assert text == ("attention --variant flash --rounds 1 --budget-s 0 --tile-q 128 --tile-kv 64 --pass forward "
                    "--dtype bf16 --seq-q 512 --causal 1")  # fmt: skip


@pytest.mark.parametrize("case, op", [("attention_f32_sharp", "attention"), ("real_bf16", "attention"),
                                      ("linear_cross_entropy_f32", "linear_cross_entropy"),
                                      ("ternary_linear_f32", "ternary_linear")])  # fmt: skip
def test_the_operator_of_a_case(case, op, tmp_path):
    assert gpu_run.gpu_stages.operator_of(tmp_path / f"{case}.h5") == op


@pytest.fixture
def call(tmp_path):
    """Calls the script with a program that does what `body`, a text of shell, says."""
    program = tmp_path / "katt"
    cases = tmp_path / "cases"
    cases.mkdir()
    (cases / "rope_f32.h5").touch()
    (cases / "check_case.py").touch()

    def run(body, *arguments):
        program.write_text(f'#!/bin/sh\necho "$@" >>"{tmp_path}/calls"\n{body}\n')
        program.chmod(0o755)
        done = subprocess.run([SCRIPT, "-p", program, "-o", tmp_path / "out", "-c", cases, *map(str, arguments)],
                              capture_output=True, text=True, timeout=60)  # fmt: skip
        state = tmp_path / "out" / "gpu_run.json"
        return done, json.loads(state.read_text())["stages"] if state.exists() else {}

    run.folder = tmp_path
    return run


def test_done_stages_are_left_out_and_failed_ones_run_again(call):
    done, stages = call('case "$*" in *cuda_verify*) echo "3 rows failed"; exit 1;; *) echo "{}";; esac',
                        "--device", 1, "info", "cases", "verify", "operators", "report")  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert {name: about["status"] for name, about in stages.items()} == {
        "info": "done", "cases": "done", "verify": "failed", "operators": "done", "report": "left out"}  # fmt: skip
    assert stages["verify"]["said"] == "katt sweep cuda_verify: exit status 1: 3 rows failed"
    calls = (call.folder / "calls").read_text()
    assert "run rope --in" in calls and "--backend cuda --device 1 --resume -o" in calls
    (call.folder / "calls").unlink()
    done, stages = call("echo 4 rows", "info", "cases", "verify", "operators", "report")
    assert done.returncode == 0, done.stdout
    assert stages["verify"] == stages["verify"] | {"status": "done", "said": "4 rows"}
    assert [line.split()[0] for line in (call.folder / "calls").read_text().splitlines()] == ["sweep"]
    with tarfile.open(call.folder / "out" / "gpu_run.tar.gz") as archive:
        assert {"gpu_run/gpu_run.json", "gpu_run/verify.log"} <= set(archive.getnames())


def test_a_stage_that_takes_too_long_is_stopped_and_said(call):
    done, stages = call("sleep 30", "-t", 6, "info", "verify")
    assert done.returncode == 3, done.stderr
    assert stages["info"] == stages["info"] | {"status": "unfinished", "said": "its time ran out"}
    assert stages["verify"]["status"] == "not begun" and "again" in done.stdout
    assert 4 < stages["info"]["seconds"] < 20


def test_what_the_machine_lacks_is_said(call):
    done, stages = call("echo {}", "tests")
    assert (done.returncode, stages["tests"]["status"]) == (0, "left out")
    assert stages["tests"]["said"] == "the bundle has no tests, or -p was given"


def test_tests_that_passed_are_not_run_again(call):
    (call.folder / "bin").mkdir()
    tests = call.folder / "bin" / "test_device"
    (call.folder / "tests.tsv").write_text("ops.rope\tRope.*\nops.linear\tLinear.*:Gemm.*\n")
    note = f'#!/bin/sh\necho "$2" >>"{call.folder}/tested"\n'
    tests.write_text(note + 'case "$2" in *Linear*) echo "[  FAILED  ] Linear.Bits"; exit 1;; esac\n')
    tests.chmod(0o755)
    done, stages = call("", "tests")
    assert (done.returncode, stages["tests"]["status"]) == (1, "failed")
    assert stages["tests"]["said"] == "1 of 2 tests: ops.linear: exit status 1: [  FAILED  ] Linear.Bits"
    tests.write_text(note)
    done, stages = call("", "tests")
    assert (done.returncode, stages["tests"]["said"]) == (0, "2 tests passed")
    tested = (call.folder / "tested").read_text().split()
    assert tested == ["--gtest_filter=Rope.*"] + 2 * ["--gtest_filter=Linear.*:Gemm.*"]


@pytest.fixture
def sanitizer(call, monkeypatch):
    """The sanitizer's stage, with a tool that notes its check and what it is to run, and runs it."""
    folder = call.folder / "tools"
    folder.mkdir()
    tool = folder / "compute-sanitizer"
    tool.write_text(f'#!/bin/sh\n[ "$1 $3 $5" = "--tool --target-processes --error-exitcode" ] || exit 3\n'
                    f'check=$2; shift 6\necho "$check $(basename $1) $2 $3" >>"{call.folder}/checked"\nexec "$@"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    (call.folder / "bin").mkdir()
    (call.folder / "tests.tsv").write_text("ops.rope\tRope.*\nops.linear\tLinear.*\n")

    def run(body, *arguments):
        tests = call.folder / "bin" / "test_device"
        tests.write_text(f"#!/bin/sh\n{body}\n")
        tests.chmod(0o755)
        checked = call.folder / "checked"
        checked.unlink(missing_ok=True)
        done, stages = call("echo 5 rows", "sanitizer", *arguments)
        return done, stages["sanitizer"], checked.read_text().splitlines() if checked.exists() else []

    return run


def test_the_sanitizer_runs_the_sweep_and_the_tests_under_every_check(sanitizer):
    done, stage, checked = sanitizer("exit 0")
    assert (done.returncode, stage["status"]) == (0, "done"), stage
    assert stage["said"].endswith("in the sweep and 2 tests")
    assert [line for check in ("memcheck", "racecheck", "synccheck") for line in (
        f"{check} katt sweep experiments/cuda_sanitizer/sweep.toml",
        f"{check} test_device --gtest_brief=1 --gtest_filter=Rope.*",
        f"{check} test_device --gtest_brief=1 --gtest_filter=Linear.*")] == checked  # fmt: skip


def test_what_the_sanitizer_finds_is_said_and_run_again_alone(sanitizer):
    done, stage, checked = sanitizer('case "$2" in *Rope*) echo "1 hazard"; exit 9;; esac')
    assert (done.returncode, stage["status"], len(checked)) == (1, "failed", 9)
    assert stage["said"].startswith("memcheck: ops.rope: exit status 9: 1 hazard; racecheck: ops.rope")
    done, stage, checked = sanitizer("exit 0")
    assert (done.returncode, stage["status"]) == (0, "done")
    assert checked == [f"{check} test_device --gtest_brief=1 --gtest_filter=Rope.*"
                       for check in ("memcheck", "racecheck", "synccheck")]  # fmt: skip


def test_a_check_that_takes_long_leaves_the_others_their_share(sanitizer, monkeypatch):
    stages, now, shares = gpu_run.gpu_stages, [100.0], {}

    class Clocked:
        deadline = 130.0
        part = staticmethod(lambda name: True)
        say = staticmethod(print)

    def spend(run, stage, prefix):
        shares[prefix[2]] = run.deadline - now[0]
        now[0] += {"memcheck": shares[prefix[2]], "racecheck": 2, "synccheck": 1}[prefix[2]]
        if prefix[2] == "memcheck":
            raise stages.OutOfTime
        return []

    monkeypatch.setattr(stages.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(stages, "tests_of", lambda run: [("ops.rope", "Rope.*")])
    monkeypatch.setattr(stages, "run_tests", spend)
    with pytest.raises(stages.OutOfTime):
        stages.stage_sanitizer(Clocked)
    assert shares == {"memcheck": 10, "racecheck": 10, "synccheck": 18} and Clocked.deadline == 130


@pytest.mark.parametrize("arguments, words", [
    (("nothing",), "stage nothing: unknown; expected info, tests,"),
    (("-t", "never"), "invalid positive value: 'never'"),
    (("-p", "/nowhere/katt"), "/nowhere/katt is no program"),
    (("-p", "", "-b", "/nowhere/bundle.tar.gz"), "/nowhere/bundle.tar.gz is missing"),
])  # fmt: skip
def test_bad_usage_is_one_line(call, arguments, words):
    done, stages = call("echo", *arguments)
    assert (done.returncode, stages) == (2, {})
    assert done.stderr.startswith("katt: ") and len(done.stderr.splitlines()) == 1 and words in done.stderr
