"""scripts/measure on a tree of its own with a program that answers like katt: what is measured, kept and left."""

import fcntl
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from sass_listings import load

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "drivers" / "report"), str(ROOT / "tests" / "report")]

import synthetic  # noqa: E402
from katt_report import load as load_file  # noqa: E402
from katt_report.pages import output  # noqa: E402
from katt_report.published.cpp_tokens import code_digest, token_hash  # noqa: E402
from katt_report.published.fresh import SourceTree  # noqa: E402
from katt_report.published.source import open_source  # noqa: E402

KERNEL = "int rmsnorm() { return 1; }\n"
INFO = {
    "build": {"commit": "9f1c2ab7d0e4c1", "dirty": False, "mpi": "none"},
    "machine": {"cpu": "AMD EPYC", "cpu_id": "AuthenticAMD 25 17", "cores": 2, "isa": ["avx2", "avx512f", "avx512_bf16"]},
    "backends": [],
}
PLACE = "zen4-avx512bf16-2c"
KATT = '''
import json, pathlib, shutil, signal, sys, time
root = pathlib.Path(__file__).resolve().parents[2]
if sys.argv[1] == "info":
    print(json.dumps({info!r}))
    sys.exit()
with open(root / "calls", "a") as calls:
    print(" ".join(sys.argv[1:]), file=calls)
output = pathlib.Path(sys.argv[sys.argv.index("-o") + 1])
resumed = output.exists()
if resumed:
    shutil.copy(output, root / "resumed.h5")
shutil.copy(root / ("whole.h5" if resumed or not (root / "slow").exists() else "part.h5"), output)
if (root / "slow").exists() and not resumed:
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
    (root / "waits").touch()
    time.sleep(60)
if (root / "disk_full").exists():
    sys.exit(f"katt: {output}: cannot be written: No space left on device")
print("done after 1 s: 8 ok, 0 skipped, 1 failed;", output, file=sys.stderr)
sys.exit(1 if (root / "row_fails").exists() else 2 if (root / "breaks").exists() else 0)
'''


def result(path, sweep, rows=None, failed=""):
    """A file whose rows name the code src/ops/rmsnorm.cpp."""
    held = synthetic.rmsnorm()
    held.rows = held.rows[:rows]
    if failed:
        held.rows.append(held.rows[-1] | {"variant": failed, "status": "failed", "reason": "differs", "point": "p9999"})
    files = {"src/ops/rmsnorm.cpp": token_hash(KERNEL)}
    held.runs["run-0001"] = synthetic.run_attributes(device="AMD EPYC", cpu_id="AuthenticAMD 25 17", sweep=sweep,
                                                     isa="avx2 avx512f avx512_bf16",
                                                     peers='{"torch_eager": "torch 2"}')  # fmt: skip
    held.code = {code_digest(files): files}
    for line in held.rows:
        line["code"] = code_digest(files)
    synthetic.write(path, held)


@pytest.fixture
def tree(tmp_path):
    """A source tree with three experiments: tiny (two forms), other, and one that needs what is not there."""
    for folder in ("src/ops", "src/op", "build/openmp", "drivers"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "src/op/variants.hpp").touch()
    (tmp_path / "src/ops/rmsnorm.cpp").write_text(KERNEL)
    program = tmp_path / "build/openmp/katt"
    program.write_text(f"#!{sys.executable}\n{KATT.replace('{info!r}', repr(INFO))}")
    program.chmod(0o755)
    sweep = 'op = "rmsnorm"\n'
    for name, priority, more in [("tiny", 1, 'short = { minutes = 2, options = "--dtype f32" }\n'), ("other", 2, ""),
                                 ("absent", 1, 'needs = ["peers"]\n')]:  # fmt: skip
        folder = tmp_path / "experiments" / name
        folder.mkdir(parents=True)
        (folder / "sweep.toml").write_text(sweep)
        (folder / "README.md").write_text(f"# {name}\n\n**Question.** How fast is {name}?\n\n**Device.** Any.\n")
        (folder / "experiment.toml").write_text(textwrap.dedent(f"""
            [[step]]
            output = "{name}.h5"
            priority = {priority}
            minutes = 5
            commands = ["katt sweep experiments/{name}/sweep.toml -o {{output}} --resume"]
            """) + more)  # fmt: skip
    result(tmp_path / "whole.h5", sweep)
    result(tmp_path / "part.h5", sweep, rows=4)
    return tmp_path


@pytest.fixture
def measure(tree, request):
    """The script, which takes the tree for its own. One test makes the index of results, too, which takes seconds."""
    module = load("measure")
    module.ROOT = tree
    module.busy_share = lambda: 0.5
    if request.function is not test_a_second_call_measures_only_what_is_stale:
        module.index = lambda: True
    open_source.cache_clear()

    def run(*arguments):
        open_source.cache_clear()
        return module.main([str(one) for one in arguments])

    run.module = module
    return run


def calls(tree):
    return (tree / "calls").read_text().splitlines() if (tree / "calls").exists() else []


def test_a_second_call_measures_only_what_is_stale(tree, measure, capsys):
    assert measure() == 0
    told = capsys.readouterr().out
    assert f"{PLACE}: 60 minutes" in told and "cannot run: build/peers" in told and "50% of the processors" in told
    folder = tree / "results" / PLACE
    assert sorted(path.name for path in (folder / "tiny").iterdir()) == ["README.md", "tiny.h5"]
    text = (folder / "tiny" / "README.md").read_text()
    assert text.startswith(f"# tiny on {PLACE}\n\nHow fast is tiny?") and "9f1c2ab" in text and "rmsnorm forward" in text
    assert len(calls(tree)) == 2 and not (tree / "build/measure" / PLACE / "tiny" / "tiny").exists()

    assert measure() == 0
    assert len(calls(tree)) == 2 and "0 of 0 to measure" in capsys.readouterr().out

    (tree / "src/ops/rmsnorm.cpp").write_text("// only a comment\n" + KERNEL)
    assert measure() == 0 and len(calls(tree)) == 2
    (tree / "experiments/other/sweep.toml").write_text('op = "rmsnorm"\ntokens = 1\n')
    assert measure("--dry-run") == 0
    assert "5 min; stale (another sweep)" in capsys.readouterr().out
    (tree / "src/ops/rmsnorm.cpp").write_text(KERNEL.replace("1", "2"))
    assert measure("--dry-run") == 0
    assert "  tiny    5 min; stale (" in capsys.readouterr().out

    assert measure("tiny", "--again") == 0
    assert len(calls(tree)) == 3 and calls(tree)[-1].startswith("sweep experiments/tiny/sweep.toml")


def test_of_a_sweep_only_the_stale_passes_are_measured(tree, measure, capsys):
    """The sweep goes on with a file of the fresh ones, of the runs that have any."""
    (tree / "src/ops/rope.cpp").write_text("int rope;\n")
    held = synthetic.rmsnorm()
    files = {name: {f"src/ops/{name}.cpp": token_hash((tree / f"src/ops/{name}.cpp").read_text())} for name in ("rmsnorm", "rope")}
    held.code = {code_digest(each): each for each in files.values()}
    held.runs |= {f"run-000{n}": held.runs["run-0001"] | {"sweep": 'op = "rmsnorm"\n'} for n in (1, 2)}
    for number, line in enumerate(held.rows):
        line |= {"op": "rope", "run": "run-0001"} if number % 4 == 0 else {"run": "run-0002"}
        line["code"] = code_digest(files[line["op"]])
    held.samples = {(line["run"], line["point"]): next(iter(held.samples.values())) for line in held.rows}
    held.cycles = dict(held.samples)
    place = tree / "results" / PLACE / "tiny/tiny.h5"
    place.parent.mkdir(parents=True)
    synthetic.write(place, held)
    assert measure("tiny", "--dry-run") == 0 and "0 of 0 to measure" in capsys.readouterr().out

    (tree / "src/ops/rope.cpp").write_text("int rope = 1;\n")
    assert measure("tiny", "--dry-run") == 0
    rows, gone = len(held.rows), sum(line["op"] == "rope" for line in held.rows)
    assert f"  tiny  {5 * gone / rows:.1f} min, its stale passes; " in capsys.readouterr().out
    assert measure("tiny") == 0
    kept = load_file(tree / "resumed.h5")
    assert kept.points.values("op") == ["rmsnorm"] and len(kept.points) == rows - gone
    assert [run for _, run in kept.runs] == ["run-0001"] == kept.points.values("run")
    assert all(kept.samples_of(row) is not None for row in kept.points.rows()) and len(kept.code) == 1
    with h5py.File(tree / "resumed.h5") as file:
        for group in ("samples", "cycles"):
            assert sum(len(points) for points in file[group].values()) == rows - gone, group
    assert "tiny: 0.0 minutes" in capsys.readouterr().out and place.read_bytes() != (tree / "resumed.h5").read_bytes()

    (tree / "src/ops/rmsnorm.cpp").write_text("int all;\n")  # all of what the program has written
    assert measure("tiny", "--dry-run") == 0 and "  tiny  5 min; stale (" in capsys.readouterr().out


def test_chosen_figures_come_with_the_file(tree, measure, capsys, monkeypatch):
    described = tree / "experiments/tiny/experiment.toml"
    described.write_text(described.read_text() + '[step.figures]\n"fast.png" = "speedup*.png"\n"none.png" = "nothing*.png"\n')
    result(tree / "whole.h5", 'op = "rmsnorm"\n', rows=8)  # figures of few panels
    assert measure("tiny") == 0
    folder = tree / "results" / PLACE / "tiny"
    assert "the report has no figure nothing*.png" in capsys.readouterr().out
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "fast.png", "tiny.h5"]
    assert "![fast](fast.png)" in (folder / "README.md").read_text()

    (folder / "README.md").unlink()
    (folder / "fast.png").unlink()
    for arguments in (["--dry-run"], ["other"]):
        assert measure("--redraw", *arguments) == 0 and len(list(folder.iterdir())) == 1
    rendered = []
    monkeypatch.setattr(output, "render", lambda figure, formats: rendered.append(formats) or [b"image"])
    assert measure("--redraw", "tiny") == 0 and len(calls(tree)) == 1
    assert rendered == [("png",)], "this one alone"
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "fast.png", "tiny.h5"]


def test_a_figure_that_is_made_no_more_goes(tree, measure):
    described = tree / "experiments/tiny/experiment.toml"
    described.write_text(described.read_text() + '[step.figures]\n"old.png" = "nothing*.png"\n')
    folder = tree / "results" / PLACE / "tiny"
    folder.mkdir(parents=True)
    for arguments in (["tiny"], ["--redraw"]):
        (folder / "old.png").touch()
        (folder / "mine.png").touch()
        assert measure(*arguments) == 0
        assert sorted(path.name for path in folder.glob("*.png")) == ["mine.png"]
        assert "old.png" not in (folder / "README.md").read_text()


def test_readme_is_whole_or_as_before(tree, measure, monkeypatch):
    assert measure("tiny") == 0
    readme = tree / "results" / PLACE / "tiny/README.md"
    before = readme.read_text()

    def full(path, data):
        path.write_text("")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError):
        measure("--redraw")
    assert readme.read_text() == before and len(list(readme.parent.iterdir())) == 2


def test_redraw_is_refused_beside_another_call(tree, measure):
    (tree / "build/measure").mkdir()
    with open(tree / "build/measure/lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(measure.module.BadInput, match="another scripts/measure is running"):
            measure("--redraw")


def test_a_folder_with_a_blank(tree, measure):
    measure.module.ROOT = tree.rename(tree.with_name("a tree"))
    assert measure("tiny") == 0
    assert (measure.module.ROOT / "results" / PLACE / "tiny/tiny.h5").exists()


def test_minutes_choose_forms_and_leave_out(tree, measure, capsys):
    for minutes, told, count in [(10, "  tiny    5 min; missing", 2), (7, "  tiny    2 min, short form; missing", 2),
                                 (6, "  other   left out, 5 min do not fit", 1), (1, "  tiny    left out", 0)]:  # fmt: skip
        assert measure("--dry-run", "--minutes", minutes) == 0
        printed = capsys.readouterr().out
        assert told in printed and f"{count} of 2 to measure" in printed
    assert calls(tree) == []
    assert measure("--minutes", 4, "tiny") == 0
    assert calls(tree)[0].endswith("--resume --dtype f32")


def test_a_short_form_replaces_no_whole_file(tree, measure, capsys):
    """It lacks rows of that. The file's command says which form it is."""
    assert measure("tiny") == 0
    (tree / "src/ops/rmsnorm.cpp").write_text(KERNEL.replace("1", "2"))
    capsys.readouterr()
    for options, told in [("", "left out, 5 min do not fit"), (" --dtype f32", "2 min, short form")]:
        with h5py.File(tree / "results" / PLACE / "tiny/tiny.h5", "a") as file:
            file["runs/run-0001"].attrs["command"] = f"katt sweep experiments/tiny/sweep.toml -o tiny.h5{options}"
        assert measure("tiny", "--dry-run", "--minutes", 4) == 0
        assert f"  tiny  {told}; stale" in capsys.readouterr().out


def test_a_program_of_uncommitted_sources_is_told(tree, measure, capsys):
    warning = "build/openmp/katt was built before its sources were committed"
    assert measure("--dry-run") == 0 and warning not in capsys.readouterr().err
    program = tree / "build/openmp/katt"
    program.write_text(program.read_text().replace("'dirty': False", "'dirty': True"))
    assert measure("--dry-run") == 0 and warning in capsys.readouterr().err


def test_a_stopped_call_goes_on(tree, measure, capsys):
    old = tree / "results" / PLACE / "tiny" / "tiny.h5"
    assert measure("tiny") == 0
    published = old.read_bytes()
    (tree / "src/ops/rmsnorm.cpp").write_text(KERNEL.replace("1", "2"))
    (tree / "slow").touch()
    measure.module.read_steps, read = (lambda names: [short(step) for step in read(names)]), measure.module.read_steps

    def short(step):
        """Costs next to nothing by its own account."""
        form = measure.module.Form("full", 0.001)
        return measure.module.Step(step.experiment, step.output, step.priority, step.needs, step.commands, {}, "model", (form,))

    assert measure("tiny", "--minutes", 0.1) == 0  # seconds: the programs before it have to start
    assert "the next call goes on" in capsys.readouterr().out
    assert old.read_bytes() == published and (tree / "build/measure" / PLACE / "tiny/tiny/tiny.h5").exists()

    assert measure("tiny") == 0  # the program finds its own file and resumes
    assert "goes on" in capsys.readouterr().out and len(calls(tree)) == 3
    assert not (tree / "build/measure" / PLACE / "tiny" / "tiny").exists()

    # Another program does not go on with it.
    (tree / "build/measure" / PLACE / "tiny/tiny").mkdir(parents=True)
    (tree / "build/measure" / PLACE / "tiny/tiny/stamp").write_text("of another build")
    (tree / "slow").unlink()
    assert measure("tiny", "--dry-run") == 0 and "goes on" not in capsys.readouterr().out


def test_a_begun_form_needs_no_room(tree, measure, capsys):
    """Its first minutes are spent; the short form would begin again."""
    machine, (step,) = measure.module.Machine(), measure.module.read_steps(["tiny"])
    machine.stage(step).mkdir(parents=True)
    (machine.stage(step) / "stamp").write_text(machine.stamp(step, step.forms[0]))
    assert measure("--dry-run", "--minutes", 3) == 0
    told = capsys.readouterr().out
    assert "  tiny    5 min, goes on; missing" in told and "  other   left out" in told
    assert "1 of 2 to measure, about 3 minutes" in told


def test_ctrl_c_keeps_the_stage(tree):
    (tree / "slow").touch()
    code = textwrap.dedent(f"""
        import pathlib, sys
        sys.path[:0] = [{str(ROOT / "drivers" / "report")!r}, {str(ROOT / "scripts")!r}]
        from gpu_stages import load_script
        module = load_script("measure")
        module.ROOT, module.busy_share = pathlib.Path({str(tree)!r}), lambda: 0
        try:
            module.main(["tiny"])
        except KeyboardInterrupt:
            sys.exit(130)
    """)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL) as running:
        end = time.monotonic() + 60
        while not (tree / "waits").exists() and running.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        assert running.wait(30) == 130
    assert (tree / "build/measure" / PLACE / "tiny/tiny/tiny.h5").exists() and not (tree / "results").exists()


@pytest.mark.parametrize("variant", ["fused", "torch_eager"])
def test_failed_rows(tree, measure, capsys, variant):
    """Published, since the file says which; a peer's are no failure of ours."""
    (tree / "row_fails").touch()
    result(tree / "whole.h5", 'op = "rmsnorm"\n', failed=variant)
    ours = variant == "fused"
    assert measure("tiny") == ours
    told = capsys.readouterr().out
    assert (tree / "results" / PLACE / "tiny/tiny.h5").exists() and ("(fused failed: the file" in told) == ours


def test_a_sweep_that_died_is_not_published(tree, measure, capsys):
    """Its exit status is that of a sweep with a failed row."""
    (tree / "disk_full").touch()
    assert measure("tiny") == 1
    assert "tiny: failed, exit status 1: katt:" in capsys.readouterr().err
    assert not (tree / "results" / PLACE / "tiny").exists()
    (tree / "disk_full").unlink()
    (tree / "row_fails").touch()
    assert measure("tiny") == 0 and "goes on" in capsys.readouterr().out


def test_failures(tree, measure, capsys):
    (tree / "breaks").touch()
    assert measure("other") == 1
    assert "other: failed, exit status 2" in capsys.readouterr().err
    assert not (tree / "results" / PLACE / "other").exists()


@pytest.mark.parametrize(("arguments", "text", "line"), [
    (["nothing"], "", "nothing: no experiment to measure, expected one of absent, other, tiny"),
    (["--minutes", "0"], "", "--minutes: holds 0, expected a positive number"),
    (["--again"], "", "--again: names no experiment"),
    (["tiny"], "[[step]\n", "experiments/tiny/experiment.toml: no TOML"),
    (["tiny"], "[[step]]\nminute = 1\n", "experiments/tiny/experiment.toml: minute is unknown or missing"),
    (["tiny"], "", "experiments/tiny/experiment.toml: holds no [[step]]"),
])
def test_bad_input(tree, measure, arguments, text, line):
    if arguments == ["tiny"]:
        (tree / "experiments/tiny/experiment.toml").write_text(text)
    with pytest.raises(measure.module.BadInput) as error:
        measure(*arguments)
    assert str(error.value).startswith(line)


def test_files_of_models_are_judged_by_their_code(tree, measure):
    """And by the experiment's own files since their commit; comments, and words beside it, change nothing."""
    git = ["git", "-C", tree, "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "init", "-q", tree], check=True)
    subprocess.run([*git, "add", "src", "experiments"], check=True)
    subprocess.run([*git, "commit", "-qm", "first"], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    (step,) = measure.module.read_steps(["other"])
    tokens = {name: token_hash((tree / name).read_text()) for name in ("src/ops/rmsnorm.cpp", "src/op/variants.hpp")}
    info = INFO | {"build": {"commit": commit, "dirty": False}, "code": {"files": tokens, "model": ["src/ops/rmsnorm.cpp"]}}

    def judged(path):
        open_source.cache_clear()
        return measure.module._state_of_runs(step, open_source(path), SourceTree(tree))

    written = tree / "runs.json", tree / "runs.h5"
    written[0].write_text('{"rows": [{"time_s": 1}]}')
    with h5py.File(written[1], "w") as file:
        file.attrs["build"], file["time_s"] = f'{{"commit": "{commit}"}}', np.ones(3)
    for path in written:
        assert judged(path).startswith("unknown"), "names no code"
        measure.module.add_origin(step, measure.module.Form("short", 1, "--dtype f32"), path, info)
        assert open_source(path).rows and judged(path) == "fresh"
        assert open_source(path).about["command"].endswith(f"-o {step.output} --resume --dtype f32")
    (tree / "experiments/other/README.md").write_text("other words\n")
    (tree / "src/op/variants.hpp").write_text("int more;\n")  # no model's
    (tree / "src/ops/rmsnorm.cpp").write_text("// comment\n" + KERNEL)
    assert {judged(path) for path in written} == {"fresh"}
    (tree / "experiments/other/sweep.toml").write_text('op = "rope"\n')
    assert {judged(path) for path in written} == {f"stale (experiments/other changed since {commit[:7]})"}
    (tree / "src/ops/rmsnorm.cpp").write_text("")
    assert all(judged(path).startswith("stale (0 days") for path in written)


def test_a_device_has_a_folder_of_its_own(tree, measure, capsys):
    (tree / "build/cuda").mkdir()
    (tree / "build/openmp/katt").rename(tree / "build/cuda/katt")
    described = tree / "experiments/absent/experiment.toml"
    described.write_text(described.read_text().replace('["peers"]', '["device"]'))
    assert measure("--dry-run") == 0
    told = capsys.readouterr().out
    assert "cannot run: no device" in told and "cannot run: build/openmp/katt is missing" in told
    program = tree / "build/cuda/katt"
    backend = {"name": "cuda", "available": True, "device": "NVIDIA H100 80GB HBM3"}
    program.write_text(program.read_text().replace("'backends': []", f"'backends': [{backend!r}]"))
    assert measure() == 0
    assert f"{PLACE}, h100: 60 minutes" in capsys.readouterr().out
    assert (tree / "results/h100/absent/absent.h5").exists() and len(calls(tree)) == 1


def test_every_experiment_of_the_project_is_described():
    """Each can be read, and names files that exist; those without a description are run by other scripts."""
    steps = load("measure").read_steps([])
    for step in steps:
        words = " ".join(step.commands).split()
        assert all((ROOT / word).exists() for word in words if word.startswith("experiments/")), step.name
        assert not {"-q", "--quiet"} & set(words), "a sweep that says nothing does not tell that it came to its end"
        assert step.forms[-1].minutes <= step.forms[0].minutes
    others = {path.name for path in (ROOT / "experiments").iterdir() if path.is_dir()} - {step.experiment for step in steps}
    assert others - {"__pycache__"} == {"calibration", "demo", "smoke", "cuda_sanitizer"}  # runs over hours, and none with a result
