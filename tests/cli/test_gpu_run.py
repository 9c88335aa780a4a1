"""`scripts/gpu_run`: its division of time, its state between calls, its answers to failures. The
program is a fake of this file, which records its calls. What `--first` brings home stays within its limits."""

import json
import subprocess
import sys
import tarfile

import pytest
from conftest import ROOT

SCRIPT = ROOT / "scripts" / "gpu_run"
sys.path.insert(0, str(SCRIPT.parent))
from gpu_stages import load_script  # noqa: E402

gpu_run = load_script("gpu_run")


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
    assert stages["info"]["seconds"] > 4


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
        lines = checked.read_text().splitlines() if checked.exists() else []
        assert lines[:1] == ["memcheck katt sweep softmax"], "a short kernel tells whether the tool works here"
        return done, stages["sanitizer"], lines[1:]

    run.tool = tool
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


def test_a_tool_that_does_not_work_here_is_left_out(sanitizer):
    sanitizer.tool.write_text(sanitizer.tool.read_text().replace('exec "$@"', "echo Device not supported; exit 1"))
    done, stage, checked = sanitizer("exit 0")
    assert (done.returncode, stage["status"], checked) == (0, "left out", [])
    assert stage["said"].startswith("compute-sanitizer does not work here: ")
    assert "Device not supported" in stage["said"]


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
    monkeypatch.setattr(stages, "find_tool", lambda name: name)
    monkeypatch.setattr(stages, "probe", lambda run, prefix: None)
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
    (("-o", __file__), "test_gpu_run.py: File exists, expected a folder to write to"),
])  # fmt: skip
def test_bad_usage_is_one_line(call, arguments, words):
    done, stages = call("echo", *arguments)
    assert (done.returncode, stages) == (2, {})
    assert done.stderr.startswith("katt: ") and len(done.stderr.splitlines()) == 1 and words in done.stderr


# Answers of a program with a device: its facts, a model's times, a sweep that writes its file and tells much.
INFO = {"devices": [{"name": "NVIDIA H100 80GB HBM3"}], "operators": [{"name": "attention", "variants": [
    {"backend": "cuda", "pass": "forward", "name": name, "tiles": tiles} for name, tiles in (
        ("naive", []), ("flash_wgmma", ["128x64", "128x128"]), ("flash_mma", ["64x64", "128x64"]),
        ("decode", ["64x256"]), ("decode_mma", ["16x64"]))]}]}  # fmt: skip
TIMES = {"tokens": [1], "prefill_s": 0.1, "decode_s": 0.5, "prefill_tokens_s": 9000, "decode_tokens_s": 700,
         "decode_submission": "graph", "peak_bytes": 5}  # fmt: skip
DEVICE = f"""case "$1" in
info) echo '{json.dumps(INFO)}';;
generate) echo "katt: parameters are random" >&2; echo '{json.dumps(TIMES)}';;
sweep) for last; do :; done
  while [ "$1" != -o ]; do shift; done
  head -c 3000000 /dev/zero | tr '\\0' x; echo; echo rows >>"$2"; echo "4 rows";;
esac"""
FILES = {"first.txt", "gpu_run.json", "gpu_run.log", "info.json", "cuda_attention.h5", "cuda_operators.h5",
         "cuda_verify.h5", "cuda_sanitizer_memcheck.h5"}  # fmt: skip


@pytest.fixture
def first(call, monkeypatch):
    """`gpu_run --first` on a program that answers as DEVICE does, where compute-sanitizer runs what it is told to."""
    folder = call.folder / "tools"
    folder.mkdir()
    (folder / "compute-sanitizer").write_text('#!/bin/sh\nshift 6\nexec "$@"\n')
    (folder / "compute-sanitizer").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def run(body, *arguments):
        done, _ = call(body, "--first", *arguments)
        return done, json.loads((call.folder / "out" / "gpu_run.json").read_text())

    run.folder = call.folder
    return run


def test_the_first_command_ends_within_nine_minutes():
    first, stop_s = gpu_run.gpu_first, 20  # of the last command of a stage
    assert sum(seconds for _, seconds in gpu_run.plan(first.STAGES, set(), first.TOTAL_S)) + stop_s < 540
    assert {stage.name for stage in first.STAGES} == set(first.ALL)


def test_the_tree_and_the_bundle_travel_together():
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False).stdout.split(b"\0")
    if not tracked[0]:
        pytest.skip("no git repository")
    tree = sum((ROOT / name.decode()).stat().st_size for name in tracked if name and (ROOT / name.decode()).is_file())
    bundle = ROOT / "build" / "cuda" / "katt-bundle.tar.xz"
    assert tree + (bundle.stat().st_size if bundle.exists() else 28 << 20) < 60 << 20


def test_what_the_first_command_brings_is_few_small_files_in_one_folder(first):
    done, state = first(DEVICE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {name: about["status"] for name, about in state["first"].items()} == {
        stage.name: "done" for stage in gpu_run.gpu_first.STAGES}  # fmt: skip
    files = list((first.folder / "out").rglob("*"))
    assert {path.name for path in files} == FILES and len(FILES) <= 8
    assert all(path.is_file() and path.stat().st_size <= 16 << 20 for path in files)
    calls = (first.folder / "calls").read_text()
    assert "--tile 128x64,128x128,64x64" in calls and "--variant decode,decode_mma" in calls
    assert calls.count("--limit-s") == 5, "a kernel that hangs costs a row of every sweep but that of the sanitizer"
    assert "--no-graph" in calls
    table = (first.folder / "out" / "first.txt").read_text().splitlines()
    assert len(table[1:11]) == 10 and table[10].startswith("LLaMA") and "700 by graph, 700 by graph" in table[10]


def test_the_whole_run_goes_on_with_what_the_first_command_brought(first, call):
    first(DEVICE, "attention", "operators")
    done, _ = first(DEVICE)
    assert done.returncode == 0 and done.stdout.count("done before") == 2, done.stdout
    assert (first.folder / "out" / "cuda_attention.h5").read_text() == "rows\n"
    done, stages = call(DEVICE, "info", "attention", "operators")
    assert done.returncode == 0 and "done before" not in done.stdout
    assert {about["status"] for about in stages.values()} == {"done"} and len(stages) == 3
    assert (first.folder / "out" / "cuda_attention.h5").read_text() == "rows\nrows\n"
    assert "cuda_attention/sweep.toml --backend cuda --resume" in (first.folder / "calls").read_text()


@pytest.mark.parametrize("experiment, file", [("cuda_attention", "first.toml"), ("cuda_operators", "first.toml"),
                                              ("cuda_operators", "decode.toml"), ("cuda_verify", "first.toml")])  # fmt: skip
def test_the_rows_of_the_first_command_are_rows_of_the_whole_run(katt, experiment, file):
    def points(name):
        done = katt.runs("sweep", ROOT / "experiments" / experiment / name, "--variant", "naive", "--dry-run")
        return {line.split(":")[0] for line in done.stdout.splitlines()[:-1]}

    assert len(points(file)) > 4 and points(file) <= points("sweep.toml")


def test_rows_that_failed_are_told_and_the_rest_goes_on(first):
    fails = f'case "$*" in *cuda_attention*) echo "1 failed"; exit 1;; esac\n{DEVICE}'
    done, state = first(fails, "attention", "model")
    assert done.returncode == 1 and state["first"]["attention"]["status"] == "failed"
    assert state["first"]["model"]["said"].endswith("decode 700 tokens/s, submitted as graph")


def test_a_line_of_the_table_takes_the_fastest_of_ours_and_of_the_peers():
    line = gpu_run.gpu_first.LINES[0]
    rows = [dict(line.where, variant=variant, status=status, tflops=tflops, tile_q=tile_q, tile_kv=64) for
            variant, status, tflops, tile_q in (("flash_wgmma", "ok", 400, 64), ("flash_wgmma", "ok", 500, 128),
            ("flash_mma", "failed", 900, 64), ("torch_cudnn", "ok", 600, 0), ("torch_flash", "ok", 300, 0))]  # fmt: skip
    rows.append(dict(rows[0], tflops=800, seq_q=4096))
    first = gpu_run.gpu_first
    ours = first.best(rows, line, lambda name: not first.is_peer(name))
    assert first.number(ours, "tflops") == "500 flash_wgmma 128x64"
    assert first.number(first.best(rows, line, first.is_peer), "tflops") == "600 torch_cudnn"
    assert first.number(first.best([], line, first.is_peer), "tflops") == "-"


def test_the_stages_of_the_first_command_are_its_own(call):
    done, _ = call("echo", "--first", "ncu")
    assert done.returncode == 2 and "stage ncu: unknown; expected info, attention," in done.stderr
