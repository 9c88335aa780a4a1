"""The command: exit status, one line for bad input, nothing half written."""

import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time

import pytest
import synthetic
from katt_report import cli
from katt_report.commands import NAMES
from katt_report.pages.output import write_folder
from test_load import DAMAGE, damage


def run(capsys, *arguments):
    """Exit status, standard output and standard error of the command."""
    try:
        status = cli.main([str(argument) for argument in arguments])
    except SystemExit as stop:
        status = stop.code
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.skipif("KATT_BUILD_DIR" not in os.environ, reason="KATT_BUILD_DIR does not name a build")
def test_lies_beside_the_program():
    done = subprocess.run([os.environ["KATT_BUILD_DIR"] + "/katt-report", "compare", "none.h5", "none.h5"],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("katt-report: none.h5: ")


def test_report(files, tmp_path, capsys):
    status, out, err = run(capsys, files["seqlen"], "-o", tmp_path / "deep" / "er" / "report")
    assert (status, err) == (0, "")
    assert "flash is " in out
    assert out.splitlines()[-1] == f"report: {tmp_path}/deep/er/report/report.html"
    assert {"report.html", "speedup.png", "speedup.svg", "memory.png"} <= set(os.listdir(tmp_path / "deep/er/report"))
    assert os.listdir(tmp_path / "deep/er") == ["report"]


def test_an_existing_folder_keeps_its_other_files(files, tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    for name in ("rmsnorm", "seqlen"):
        assert run(capsys, files[name], "-o", tmp_path)[0] == 0
        assert name in (tmp_path / "report.html").read_text()
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("name", ["report.html", "memory.svg"])
def test_files_of_another_origin_stay(name, files, tmp_path, capsys):
    (tmp_path / name).write_text("<!DOCTYPE html>\n<title>Katt: my own</title>")
    status, out, err = run(capsys, files["rmsnorm"], "-o", tmp_path)
    assert (status, out) == (2, "")
    assert err == f"katt-report: -o {tmp_path / name}: holds an existing file, expected a new one, or --overwrite\n"
    assert os.listdir(tmp_path) == [name] and "my own" in (tmp_path / name).read_text()
    assert run(capsys, files["rmsnorm"], "-o", tmp_path, "--overwrite")[0] == 0
    assert "my own" not in (tmp_path / name).read_text()


@pytest.mark.parametrize("command", ["compare", "history", "calibration"])
def test_every_folder_keeps_files_of_another_origin(command, tmp_path, capsys):
    made = []
    for number in range(3):
        file = synthetic.attention_seqlen(number, sizes=(512,), dtypes=("f32",))
        for line in file.rows:
            line["run"] = f"run-{number}"
        file.samples = {(f"run-{number}", point): times for (_, point), times in file.samples.items()}
        file.runs = {f"run-{number}": synthetic.run_attributes()}
        made.append(file)
    together = synthetic.File([line for one in made for line in one.rows],
                              *({key: value for one in made for key, value in getattr(one, name).items()}
                                for name in ("samples", "runs")))  # fmt: skip
    old, new, all_runs = (synthetic.write(tmp_path / f"{name}.h5", file)
                          for name, file in (("old", made[0]), ("new", made[1]), ("all", together)))  # fmt: skip
    inputs = {"compare": [old, new], "history": [old, new], "calibration": [all_runs, "--no-alarms"]}[command]
    assert run(capsys, command, *inputs, "-o", tmp_path / "out")[0] in (0, 3)
    figure = next((tmp_path / "out").glob("*.png"))
    for page in (tmp_path / "out").glob("*.html"):
        page.unlink()
    figure.write_text("mine")
    status, _, err = run(capsys, command, *inputs, "-o", tmp_path / "out")
    assert (status, err.count("\n")) == (2, 1) and "holds an existing file" in err and figure.read_text() == "mine"
    assert run(capsys, command, *inputs, "-o", tmp_path / "out", "--overwrite")[0] in (0, 3)
    assert figure.read_text() != "mine"


@pytest.mark.parametrize("command", ["compare", "history", "calibration", "portability"])
def test_overwrite_needs_a_folder(command, files, capsys):
    status, out, err = run(capsys, command, *[files["rmsnorm"]] * (2 if command == "compare" else 1), "--overwrite")
    assert (status, out, err.count("\n")) == (2, "", 1) and "--overwrite: holds nothing to replace, expected -o DIR" in err


@pytest.mark.parametrize("how", DAMAGE)
def test_bad_files(tmp_path, capsys, how):
    path = tmp_path / "r.h5"
    synthetic.write(path, synthetic.attention_seqlen(sizes=(512,), dtypes=("f32",)))
    good = synthetic.write(tmp_path / "good.h5", synthetic.attention_seqlen(sizes=(512,), dtypes=("f32",)))
    damage(path, how)
    before = sorted(os.listdir(tmp_path))
    for arguments in ([path, "-o", tmp_path / "out"], ["compare", good, path], ["compare", path, good]):
        status, out, err = run(capsys, *arguments)
        assert (status, out) == (2, "")
        assert err.startswith(f"katt-report: {path}: holds ")
        assert err.count("\n") == 1
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("where", ["file", "below a file", "below nothing writable"])
def test_a_folder_that_cannot_be_written(files, tmp_path, capsys, where):
    (tmp_path / "file").write_text("in the way")
    target = {"file": tmp_path / "file", "below a file": tmp_path / "file" / "out",
              "below nothing writable": "/proc/nowhere/out"}[where]  # fmt: skip
    status, out, err = run(capsys, files["rmsnorm"], "-o", target)
    assert (status, out) == (2, "")
    assert err.startswith(f"katt-report: -o {target}: holds a folder that cannot be written")
    assert err.count("\n") == 1
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(
    "arguments", [[], ["r.h5"], ["comapre", "a.h5", "b.h5"], ["r.h5", "-o"], ["compare", "r.h5"],
                  ["compare", "a", "b", "--tolerance", "2"],
                  ["compare", "a", "b", "--metric", "luck"], ["compare", "a", "b", "--tolerance", "nan"],
                  ["r.h5", "-o", ""], ["export", "r.h5", "--csv", ""], ["r.h5", "--baseline", ""], [""], ["fresh", ""],
                  ["r.h5", "--baseline", "a", "--baseline", "b"], ["compare", "r.h5", ""]],
)  # fmt: skip
def test_bad_usage(capsys, arguments):
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("katt-report: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(("arguments", "meant"), [
    (["compare", "a", "b", "--tolerence", "0.1"], "--tolerance"),
    (["compare", "a", "b", "--allow-loss"], "--allow-lost"), (["compare", "a", "b", "--metrics=time"], "--metric"),
    (["baselines", "a", "--explain-file", "x"], "--explained"),
    (["r.h5", "--outptu", "x"], "--output"), (["comapre", "a", "b"], "compare"), (["baseline", "a"], "baselines"),
])
def test_what_was_meant(capsys, arguments, meant):
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert f"did you mean {meant}?" in err and err.count("\n") == 1


@pytest.mark.parametrize("arguments", [["LONG", "-o", "x"], ["export", "R", "--csv", "LONG"], ["compare", "R", "LONG"],
                                       ["fresh", "R", "--source", "LONG"], ["readme", "LONG"], ["index", "LONG"],
                                       ["baselines", "R", "--explained", "LONG"], ["history", "LONG"]])  # fmt: skip
def test_a_name_that_is_too_long(arguments, files, capsys):
    replaced = {"LONG": "n" * 300, "R": files["rmsnorm"]}
    status, out, err = run(capsys, *(replaced.get(word, word) for word in arguments))
    assert (status, out, err.count("\n")) == (2, "", 1) and "(File name too long), expected " in err


def test_without_a_folder(files, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, err = run(capsys, files["rmsnorm"])
    assert (status, err) == (0, "")
    assert out.splitlines()[-1] == "report: rmsnorm-report/report.html"
    assert os.listdir(tmp_path) == ["rmsnorm-report"]


def test_a_killed_run_leaves_nothing_behind(tmp_path):
    (tmp_path / "existing").mkdir()
    fork = multiprocessing.get_context("fork")  # a new Python would load Matplotlib

    def write(folder, made):
        write_folder(folder, lambda: [made.set(), time.sleep(60)])

    for folder, place in ((tmp_path / "new", tmp_path), (tmp_path / "existing", tmp_path / "existing")):
        made = [fork.Event() for _ in range(2)]
        running = [fork.Process(target=write, args=(folder, event), daemon=True) for event in made]
        for process in running:
            process.start()
        assert all(event.wait(60) for event in made)
        running[0].kill()
        running[0].join()
        assert len(list(place.glob(".katt-report.*"))) == 2
        write_folder(folder, lambda: {"report.html": b""}, overwrite=True)
        # The folder of the other run, which still writes, stays.
        assert len(list(place.glob(".katt-report.*"))) == 1
        running[1].kill()
        running[1].join()
        write_folder(folder, lambda: {"report.html": b""}, overwrite=True)
        assert not list(tmp_path.rglob(".katt-report.*"))


def test_a_folder_is_written_whole_or_not_at_all(files, tmp_path, capsys):
    (tmp_path / "memory.svg").mkdir()
    (tmp_path / "report.html").write_text("old")
    status, out, err = run(capsys, files["rmsnorm"], "-o", tmp_path, "--overwrite")
    assert (status, out, err) == (2, "", f"katt-report: -o {tmp_path}/memory.svg: holds a folder, expected a file\n")
    assert sorted(os.listdir(tmp_path)) == ["memory.svg", "report.html"]
    assert (tmp_path / "report.html").read_text() == "old"


@pytest.mark.parametrize(("name", "before", "after"), [
    ("report.html", [], []), ("compare.html", ["compare"], ["a.h5"]), ("history.html", ["history"], ["a.h5"]),
    ("portability.html", ["portability"], ["a.h5"]),
])  # fmt: skip
def test_no_folder_replaces_an_input(name, before, after, files, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for copy in (name, "a.h5"):
        synthetic.write(tmp_path / copy, synthetic.attention_seqlen(sizes=(512,), dtypes=("f32",)))
    held = (tmp_path / name).read_bytes()
    status, out, err = run(capsys, *before, name, *after, "-o", tmp_path)
    assert (status, out) == (2, "")
    assert err == f"katt-report: -o {tmp_path / name}: holds an input of the command, expected another file\n"
    assert (tmp_path / name).read_bytes() == held and sorted(os.listdir(tmp_path)) == sorted([name, "a.h5"])


def as_a_program(arguments, repository, **changes):
    environment = os.environ | {"PYTHONPATH": str(repository / "drivers" / "report")}
    command = [sys.executable, "-m", "katt_report", *arguments]
    return subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, check=False, **changes)


def test_a_full_disk(files, tmp_path, repository):
    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    folder = tmp_path / "report"
    small = tmp_path / "small.h5"
    synthetic.write(small, synthetic.attention_seqlen(sizes=(512,), dtypes=("f32",)))
    done = as_a_program([small, "-o", folder], repository, stdout=subprocess.PIPE, preexec_fn=small_files)
    assert (done.returncode, done.stdout) == (1, "")
    lines = [line for line in done.stderr.splitlines() if " figure " not in line]  # of a slow machine
    assert lines == [f"katt-report: {folder}: cannot be written (File too large)"]
    assert os.listdir(tmp_path) == ["small.h5"]
    with open("/dev/full", "w") as full:
        done = as_a_program(["compare", files["models"], files["models"]], repository, stdout=full)
    assert done.returncode == 1
    assert done.stderr == "katt-report: standard output: cannot be written (No space left on device)\n"


def test_a_closed_standard_output(files, repository):
    done = as_a_program(["compare", files["models"], files["models"]], repository, preexec_fn=lambda: os.close(1))
    assert done.returncode == 1
    assert done.stderr == "katt-report: standard output: cannot be written (it is closed)\n"


def test_an_interrupted_command_says_nothing(capsys, monkeypatch):
    def interrupted(_arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("katt_report.commands.report.run", interrupted)
    usual = signal.getsignal(signal.SIGINT)
    try:
        assert run(capsys, "r.h5") == (130, "", "")
    finally:
        signal.signal(signal.SIGINT, usual)


def test_compare(tmp_path, capsys):
    old = synthetic.write(tmp_path / "old.h5", synthetic.attention_seqlen(1))
    new = synthetic.write(tmp_path / "new.h5", synthetic.attention_seqlen(2))
    slow = synthetic.write(tmp_path / "slow.h5", synthetic.attention_seqlen(3, slow={(2048, "f32"): 2.0}))
    status, out, err = run(capsys, "compare", old, new)
    assert (status, err) == (0, "")
    assert out.splitlines()[-1].startswith("no regression: 33 rows compared")
    status, out, err = run(capsys, "compare", old, slow, "-o", tmp_path / "out")
    assert (status, err) == (1, "")
    assert "regression  flash f32 N=2048" in out
    assert sorted(os.listdir(tmp_path / "out")) == ["compare.html", "compare.png", "compare.svg"]
    status, out, err = run(capsys, "compare", old, slow, "--json")
    assert (status, err) == (1, "")
    found = json.loads(out)
    assert found["regression"] is True
    assert found["counts"]["regression"] == 1
    assert next(row for row in found["rows"] if row["verdict"] == "regression")["identity"]["seq_q"] == 2048


def test_lost_rows(tmp_path, capsys):
    old = synthetic.write(tmp_path / "old.h5", synthetic.attention_seqlen(1, dtypes=("f32",)))
    file = synthetic.attention_seqlen(1, dtypes=("f32",))
    file.rows = [row for row in file.rows if row["variant"] == "naive"]
    new = synthetic.write(tmp_path / "new.h5", file)
    status, out, _ = run(capsys, "compare", old, new)
    assert status == 1 and out.splitlines()[-1].startswith("6 LOST ROWS: 5 rows compared, 6 lost")
    status, out, _ = run(capsys, "compare", new, old)
    assert status == 3  # naive alone is not judged
    assert run(capsys, "compare", old, old, "--allow-lost")[0] == 0
    file = synthetic.attention_seqlen(1, dtypes=("f32",))
    file.rows = [row for row in file.rows if row["variant"] == "naive" or row["seq_q"] < 8192]
    new = synthetic.write(tmp_path / "new.h5", file)
    status, out, _ = run(capsys, "compare", old, new, "--json")
    assert status == 1 and json.loads(out)["regression"] is True
    status, out, _ = run(capsys, "compare", old, new, "--allow-lost")
    assert status == 0 and out.splitlines()[-1].startswith("no regression: 9 rows compared, 2 lost")


def test_another_machine_tells_nothing(tmp_path, capsys):
    def without_a_pair(file, speed):
        file.rows = [row for row in file.rows if row["variant"] == "flash"]
        for row in file.rows:
            row.update(speedup=float("nan"), speedup_lo=float("nan"), speedup_hi=float("nan"))
        file.ceilings = {run: [(n, v * speed, *rest) for n, v, *rest in lines] for run, lines in file.ceilings.items()}
        return file

    old = synthetic.write(tmp_path / "old.h5", without_a_pair(synthetic.attention_seqlen(1), 1.0))
    same = synthetic.write(tmp_path / "same.h5", without_a_pair(synthetic.attention_seqlen(1), 1.1))
    other = synthetic.write(tmp_path / "other.h5", without_a_pair(synthetic.attention_seqlen(1), 3.0))
    assert run(capsys, "compare", old, same)[0] == 0
    status, out, err = run(capsys, "compare", old, other)
    assert (status, err) == (3, "")
    assert out.splitlines()[-1].startswith("cannot tell: 18 rows compared, 18 unclear")
    status, out, _ = run(capsys, "compare", old, other, "--json")
    assert (status, json.loads(out)["cannot_tell"]) == (3, True)
    assert run(capsys, "compare", old, other, "--metric", "time")[0] == 0


def test_as_a_program(files, repository):
    done = as_a_program(["compare", files["models"], files["models"]], repository, stdout=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].startswith("no regression: 24 rows compared")


def test_quiet_leaves_results_and_verbose_tells_the_files(files, tmp_path, capsys):
    usual = run(capsys, files["rmsnorm"], "-o", tmp_path / "out")
    results = usual[1].removesuffix(f"report: {tmp_path}/out/report.html\n")
    assert results != usual[1]
    assert run(capsys, files["rmsnorm"], "-o", tmp_path / "out", "--quiet") == (0, results, "")
    status, out, err = run(capsys, files["rmsnorm"], "-o", tmp_path / "out", "--verbose")
    assert (status, out) == usual[:2]
    assert f"read {files['rmsnorm']}" in err.splitlines() and f"wrote {tmp_path}/out/report.html" in err.splitlines()
    status, out, err = run(capsys, files["rmsnorm"], "--quiet", "--verbose")
    assert (status, out, err.count("\n")) == (2, "", 1) and "not allowed with" in err
    status, out, err = run(capsys, "none.h5", "--quiet")
    assert (status, out, err.count("\n")) == (2, "", 1), "errors are said"


@pytest.mark.parametrize("command", ["", *NAMES])
def test_help_ends_with_examples(command, capsys):
    status, out, err = run(capsys, *[command] * bool(command), "--help")
    assert (status, err) == (0, "") and "--quiet" in out and "--verbose" in out
    examples = out.partition("\nExamples:\n")[2].splitlines()
    calls, meanings = examples[::2], examples[1::2]
    assert calls and len(calls) == len(meanings) and all(line.startswith("      ") for line in meanings)
    for call in calls:
        assert call.startswith(f"  katt-report {command}".rstrip())
        options = [word for word in call.split() if word.startswith("--") and word != "--help"]
        assert not command or all(f"{option} " in out for option in options), call


@pytest.mark.parametrize(("words", "offered"), [
    ([""], {"compare", "export", ":files .h5"}),
    (["ex"], {"export", ":files .h5"}),
    (["export", "--pa"], {"--parquet"}),
    (["export", "--csv", ""], {":files"}),
    (["compare", "--metric", ""], {"auto", "speedup", "time"}),
    (["compare", "--metric=s"], {"speedup"}),
    (["compare", "old.h5", ""], {":files .h5"}),
    (["mine.h5", "--fo"], {"--formats"}),
    (["history", "-o", ""], {":folders"}),
])  # fmt: skip
def test_words_for_a_shell(words, offered, capsys):
    status, out, err = run(capsys, "complete", *words)
    assert (status, err) == (0, "") and offered <= set(out.splitlines())
    assert len(offered) > 1 or offered == set(out.splitlines())
