"""The promise of every command for its outputs: none is an input, another output, or replaced
unasked; none has two writers; a full disk and a full stdout are one line and status 1."""

import json
import os
import resource
import shutil
import signal
import subprocess

import h5py
import pytest
from conftest import BACKEND, CASES, TINY, program_in

CASE = CASES / "attention_f32_causal_gqa.h5"
SWEEP = ["sweep", "softmax", "--no-ceilings", "--tokens", 3, "--vocab", 16, "--dtype", "f32", "--rounds", 2, "--threads", 1,
         "--backend", BACKEND]  # fmt: skip
TUNE = ["tune", "attention", "--heads", 1, "--head-dim", 16, "--dtype", "f32", "--variant", "flash", "--tile",
        "32x64,64x64", "--rounds", 2, "--threads", 1]  # fmt: skip
GENERATE = ["generate", "--model", "model", "--prompts", "prompts", "--max-new-tokens", 2]
TRAIN = ["train", "--model", "model", "--text", "text", "--steps", 1, "--seq", 16]


@pytest.fixture(scope="module")
def part(tmp_path_factory):
    """A result file."""
    katt = program_in(tmp_path_factory.mktemp("part"))
    katt.runs(*SWEEP, "-o", "part.h5")
    return katt.folder / "part.h5"


@pytest.fixture
def katt_with_files(katt, part):
    """The program in a folder with an input of each kind, and links to the case."""
    folder = katt.folder
    shutil.copytree(TINY, folder / "model")
    shutil.copy(CASE, folder / "case.h5")
    (folder / "link.h5").symlink_to("case.h5")
    os.link(folder / "case.h5", folder / "hard.h5")
    (folder / "text").write_text("the quick brown fox " * 50)
    (folder / "prompts").write_text("1,2,3\n")
    (folder / "sweep.toml").write_text('[[sweep]]\nop = "softmax"\ntokens = 3\nvocab = 16\ndtype = "f32"\n')
    (folder / "old").write_bytes(b"something of the user's")
    shutil.copy(part, folder / "part.h5")
    return katt


RUN = ["run", "attention", "--in", "case.h5"]
LOGITS = ["logits", "--model", "model", "--tokens", "1,2"]


@pytest.mark.parametrize("overwrite", [[], ["--overwrite"]])
@pytest.mark.parametrize("arguments", [
    [*RUN, "--out", "case.h5"], [*RUN, "--out", "./case.h5"], [*RUN, "--out", "link.h5"], [*RUN, "--out", "hard.h5"],
    [*LOGITS, "--out", "model/model.safetensors"], [*LOGITS, "--out", "model/config.json"],
    [*GENERATE, "--out", "prompts"], [*GENERATE, "--log", "model/config.json"],
    [*GENERATE, "--out", "new.h5", "--log", "./new.h5"],
    [*TRAIN, "--log", "text"], [*TRAIN, "--log", "model/model.safetensors"], [*TRAIN, "--out", "model"],
    [*SWEEP, "--peer-program", "old", "-o", "old"],
    [*TRAIN, "--out", "new", "--log", "new/model.safetensors"], [*TRAIN, "--out", "new", "--log", "new/config.json"],
    ["sweep", "sweep.toml", "-o", "sweep.toml"], ["merge", "part.h5", "-o", "part.h5"],
])  # fmt: skip
def test_an_input_or_another_output_is_refused(katt_with_files, arguments, overwrite):
    line = katt_with_files.refuses(*arguments, *overwrite)
    assert "is the file of" in line or "exists" in line or "--overwrite to replace it" in line
    assert not overwrite or "is the file of" in line, line


@pytest.mark.parametrize("arguments, target", [
    ([*RUN, "--out"], "old"), ([*LOGITS, "--out"], "old"), ([*GENERATE, "--out"], "old"), ([*GENERATE, "--log"], "old"),
    ([*TRAIN, "--log"], "old"), ([*SWEEP, "-o"], "old"), (["merge", "part.h5", "-o"], "old"),
])  # fmt: skip
def test_what_is_there_is_replaced_only_when_asked(katt_with_files, arguments, target):
    """And then keeps its mode."""
    katt = katt_with_files
    path = katt.folder / target
    path.chmod(0o600)
    assert "exists; expected a new file" in katt.refuses(*arguments, target)
    katt.runs(*arguments, target, "--overwrite")
    h5py.File(path).close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_resuming_in_the_folder_of_the_model(katt_with_files):
    """A run's own save may also be named as its model."""
    katt = katt_with_files
    katt.runs(*TRAIN, "--out", "out")
    katt.runs("train", "--model", "out", "--text", "text", "--steps", 2, "--seq", 16, "--out", "out", "--resume")
    assert "no run to continue" in katt.refuses(*TRAIN, "--out", "model", "--resume"), "a model that is no run's save"
    shutil.copytree(katt.folder / "model", katt.folder / "other")
    assert "no run to continue" in katt.refuses(*TRAIN, "--out", "other", "--resume")
    (katt.folder / "other" / "model.safetensors").unlink()
    assert "holds config.json" in katt.refuses(*TRAIN, "--out", "other")
    assert "--out: is empty, expected a value" in katt.refuses(*TRAIN, "--out", "")


def steps(count, *more):
    return ["train", "--model", "model", "--text", "text", "--seq", 16, "--threads", 1, "--steps", count, *more]


def resumed(count, *more):
    return steps(count, "--out", "out", "--resume", *more)


@pytest.mark.parametrize("log, words", [
    ("text", "is not an HDF5 file"), ("case.h5", "holds no dataset loss"), ("part.h5", "holds no dataset loss"),
    ("other.h5", "is the log of another run: step 1 has another time_s"),
    ("longer.h5", "holds 2 steps, the run has 1"),
])  # fmt: skip
def test_only_the_log_of_the_run_is_continued(katt_with_files, log, words):
    """In a folder without a run, any log is of another one."""
    katt = katt_with_files
    log_of_other = {"other.h5": 1, "longer.h5": 2}.get(log)
    if log_of_other:
        katt.runs(*steps(log_of_other, "--log", log))
    if log == "text":
        (katt.folder / "notes").write_text("notes")
        log = "notes"
    assert "holds no run to continue; expected a new file" in katt.refuses(*resumed(1, "--log", log))
    katt.runs(*resumed(1, "--log", "log.h5"))
    line = katt.refuses(*resumed(3, "--log", log))
    assert line.startswith(f"katt: --log {log}: {words}") and "expected the log of the run in out" in line
    katt.runs(*resumed(2, "--log", "log.h5"))
    with h5py.File(katt.folder / "log.h5") as file:
        assert file["loss"].shape == (2,)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "model.safetensors.index.json"])
def test_resume_begins_in_no_foreign_folder(katt_with_files, name):
    katt = katt_with_files
    (katt.folder / "model" / "tokenizer.json").write_text("of the model")
    (katt.folder / "out").mkdir()
    (katt.folder / "out" / name).write_bytes(b"the user's")
    line = katt.refuses(*resumed(1))
    assert f"--out out: holds {name} and no run to continue; expected another folder or --overwrite" in line


@pytest.mark.parametrize("name", ["model.safetensors", "model-step1-00001-of-00002.safetensors", "tokenizer.json"])
def test_resume_begins_again_after_a_killed_first_save(katt_with_files, name):
    """A kill leaves the lock of the run, and companions are copies."""
    katt = katt_with_files
    (katt.folder / "model" / "tokenizer.json").write_text("of the model")
    (katt.folder / "out").mkdir()
    if name == "tokenizer.json":
        shutil.copy(katt.folder / "model" / name, katt.folder / "out" / name)
    else:
        (katt.folder / "out" / name).write_bytes(b"of the killed save")
        (katt.folder / "out" / ".training_state.safetensors.katt-lock").write_text("1 nowhere")
    katt.runs(*resumed(1))
    assert sorted(path.name for path in (katt.folder / "out").iterdir() if path.name.startswith(".")) == []
    assert not list((katt.folder / "out").glob("*-of-*"))


def test_overwrite_leaves_no_companion_of_the_model_before(katt_with_files):
    katt = katt_with_files
    (katt.folder / "model" / "tokenizer.json").write_text("of the model")
    katt.runs(*TRAIN, "--out", "out")
    (katt.folder / "model" / "tokenizer.json").unlink()
    katt.runs(*TRAIN, "--out", "out", "--overwrite")
    assert not (katt.folder / "out" / "tokenizer.json").exists()


@pytest.mark.parametrize("option", ["--overwrite", "--resume"])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "training_state.safetensors"])
def test_a_folder_in_the_place_of_a_saved_file(katt_with_files, name, option):
    katt = katt_with_files
    (katt.folder / "model" / "tokenizer.json").write_text("of the model")
    (katt.folder / "out" / name).mkdir(parents=True)
    line = katt.refuses(*TRAIN, "--out", "out", option)
    assert line == f"katt: --out out: holds a folder {name}, expected a file"


def held(katt, arguments, path):
    """The program at work, once it has said something about a case or a step: its output is there by then."""
    process = katt.start(*arguments)
    while process.stderr.readline() and not path.exists():
        pass
    assert process.poll() is None and path.exists()
    return process


LONG_SWEEP = ["sweep", "softmax", "--no-ceilings", "--tokens", "1:2000:+1", "--vocab", 16, "--dtype", "f32", "--rounds", 2, "--threads",
              1, "--backend", BACKEND, "-o", "out.h5"]  # fmt: skip
LONG_TRAIN = ["train", "--model", "model", "--text", "text", "--steps", 1000000, "--seq", 16, "--out", "out", "--log",
              "log.h5", "--resume"]  # fmt: skip


@pytest.mark.parametrize("first, others, path", [
    (LONG_SWEEP, [[*LONG_SWEEP, "--resume"], [*LONG_SWEEP, "--overwrite"],
                  ["merge", "part.h5", "-o", "out.h5", "--overwrite"],
                  [*RUN, "--out", "out.h5", "--overwrite"]], "out.h5"),
    (LONG_TRAIN, [LONG_TRAIN, [*TRAIN, "--out", "out", "--overwrite"], [*TRAIN, "--log", "log.h5", "--overwrite"],
                  [*RUN, "--out", "log.h5"]], "out"),
], ids=["sweep", "train"])  # fmt: skip
def test_a_second_writer_is_refused(katt_with_files, first, others, path):
    katt = katt_with_files
    process = held(katt, first, katt.folder / path)
    for arguments in others:
        done = katt(*arguments)
        assert done.returncode == 2, (arguments, done.stderr)
        assert f"is being written by process {process.pid}" in done.stderr.splitlines()[-1], done.stderr
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert [str(name) for name in katt.folder.rglob(".*")] == []


@pytest.mark.skipif(BACKEND != "openmp", reason="tunes on the host")
def test_two_that_tune_lose_nothing(katt):
    processes = [katt.start(*TUNE, "--seq", f"{first}:{first + 15}:+2", "-o", "tiles.json") for first in (1, 2)]
    for process in processes:
        _, stderr = process.communicate(timeout=120)
        assert process.returncode == 0, stderr
    tiles = json.loads((katt.folder / "tiles.json").read_text())["tiles"]
    assert sorted(tile["axes"]["seq_q"] for tile in tiles) == list(range(1, 17))
    assert sorted(path.name for path in katt.folder.iterdir()) == ["tiles.json"]


@pytest.mark.skipif(BACKEND != "openmp", reason="tunes on the host")
def test_tuning_touches_no_other_file(katt):
    (katt.folder / "t.json.h5").write_bytes(b"the user's")
    katt.runs(*TUNE, "--seq", 8, "-o", "t.json")
    assert (katt.folder / "t.json.h5").read_bytes() == b"the user's"
    assert sorted(path.name for path in katt.folder.iterdir()) == ["t.json", "t.json.h5"]
    assert "is the file of -o" in katt.refuses(*TUNE, "--seq", 8, "-o", "t.json", "--results", "./t.json")
    user = {"XDG_CONFIG_HOME": str(katt.folder)}  # the file that is read without --tuning
    used = katt.folder / "katt" / "tuning.json"
    used.parent.mkdir()
    shutil.copy(katt.folder / "t.json", used)
    done = katt("sweep", "attention", "--seq", 8, "--tile", "auto", "-o", used, "--overwrite", env=user)
    assert done.returncode == 2 and "is the file of --tuning" in done.stderr
    assert used.read_bytes() == (katt.folder / "t.json").read_bytes()


@pytest.mark.skipif(BACKEND != "openmp", reason="tunes on the host")
def test_without_a_home_tuning_wants_a_name(katt):
    environment = {**os.environ, "XDG_CONFIG_HOME": "relative"}
    environment.pop("HOME", None)
    done = subprocess.run([katt.path, *map(str, TUNE), "--seq", "8"], cwd=katt.folder, env=environment, text=True,
                          capture_output=True, timeout=60)  # fmt: skip
    assert done.returncode == 2 and done.stderr.startswith("katt: -o is missing: HOME"), done.stderr
    assert list(katt.folder.iterdir()) == []


def limited(katt, arguments, **options):
    """The program with a limit on the size of files, which stands for a full disk."""
    return subprocess.run([katt.path, *map(str, arguments)], cwd=katt.folder, text=True, capture_output=True,
                          timeout=120, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),
                          **options)  # fmt: skip


@pytest.mark.skipif(BACKEND != "openmp", reason="files are written by the host")
@pytest.mark.parametrize("arguments", [
    [*RUN, "--out", "new.h5"], [*LOGITS, "--out", "new.h5"], ["generate", "--model", "model", "--tokens", 1, "--out",
                                                              "new.h5"], [*TRAIN, "--out", "new"],
    [*TRAIN, "--log", "new.h5"], [*SWEEP, "-o", "new.h5"], ["merge", "part.h5", "-o", "new.h5"],
])  # fmt: skip
def test_a_limit_on_files_is_one_line(katt_with_files, arguments):
    katt = katt_with_files
    done = limited(katt, arguments)
    lines = [line for line in done.stderr.splitlines() if line.startswith("katt: ")]
    if done.returncode == 0:  # a small file
        assert "new.h5" in os.listdir(katt.folder)
    else:
        assert done.returncode == 1 and len(lines) == 1, done.stderr
        assert "new" in lines[0] and "File too large" in lines[0]
        assert not [path for path in katt.folder.rglob("new*") if path.is_file()]
    assert [str(name) for name in katt.folder.rglob(".*")] == []


@pytest.mark.skipif(BACKEND != "openmp", reason="files are written by the host")
def test_training_asks_for_space_before_it_begins(katt_with_files):
    """And begins again after a killed first save once there is space: the failure takes the lock with it."""
    katt, out = katt_with_files, katt_with_files.folder / "out"
    out.mkdir()
    for name in ("model-step1-00001-of-00002.safetensors", ".training_state.safetensors.katt-lock"):
        (out / name).write_bytes(b"of the killed save")
    done = limited(katt, resumed(1))
    assert done.returncode == 1 and "a save takes" in done.stderr
    assert "step 1/1" not in done.stderr
    assert list(out.iterdir()) == []
    katt.runs(*resumed(1))


@pytest.mark.parametrize("arguments", [
    ["info"], ["info", "--json"], ["--help"], ["--version"], ["sweep", "--help"], [*RUN, "--out", "o.h5", "--json"],
    ["memory", "--model", "model"], [*LOGITS, "--out", "o.h5", "--json"], GENERATE, [*GENERATE, "--json"],
    [*TRAIN, "--json"], [*SWEEP, "-o", "o.h5", "--json"], ["merge", "part.h5", "-o", "o.h5", "--json"],
])  # fmt: skip
def test_a_full_stdout_is_told(katt_with_files, arguments):
    katt = katt_with_files
    with open("/dev/full", "w") as full:
        done = subprocess.run([katt.path, *map(str, arguments)], cwd=katt.folder, stdout=full, text=True,
                              stderr=subprocess.PIPE, timeout=120)  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "katt: standard output: cannot be written: No space left on device"


def test_a_case_that_is_open_elsewhere(katt_with_files):
    katt = katt_with_files
    with h5py.File(katt.folder / "case.h5", "r+"):
        assert "another program has it open for writing" in katt.refuses(*RUN, "--out", "o.h5")
    with h5py.File(katt.folder / "part.h5", "r+"):
        assert "another program has it open for writing" in katt.refuses("merge", "part.h5", "-o", "o.h5")
    with h5py.File(katt.folder / "case.h5", "r"):
        katt.runs(*RUN, "--out", "o.h5")
    with h5py.File(katt.folder / "new.h5", "w"):
        assert "another program" in katt.refuses("run", "attention", "--in", "new.h5", "--out", "p.h5")
