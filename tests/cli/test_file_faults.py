"""Faults of the file system: the n-th call that changes a file fails, stores half, or is the last one of the program.

The result for every n: status 1 and one line that names the cause, or a finished file; no earlier
file is lost, nothing crashes, no scratch file stays. After a kill the same command continues or
begins again, and cleans up; after an error a sweep or a training does. The suite tries a few n of
each command, `tests/soak/faults PROGRAM` all of them."""

import errno
import json
import os
import random
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import h5py
import pytest
from conftest import BACKEND, CASES, ROOT, TINY, program_in
from test_kills import saved_steps

LIBRARY = Path(os.environ.get("KATT_BUILD_DIR", "")) / "tests" / "libkatt_faults.so"
pytestmark = [pytest.mark.skipif(BACKEND != "openmp", reason="files are written by the host"),
              pytest.mark.skipif(not LIBRARY.is_file(), reason="KATT_BUILD_DIR does not hold tests/libkatt_faults.so")]

# The fault, and a flag: it happens again at all later calls.
FAULTS = [("ENOSPC", False), ("ENOSPC", True), ("EDQUOT", False), ("EIO", False), ("short", False), ("kill", False),
          ("torn", False)]  # fmt: skip

SWEEP = ["sweep", "softmax", "--vocab", 16, "--dtype", "f32", "--rounds", 2, "--threads", 1, "--no-ceilings"]
TUNE = ["tune", "attention", "--heads", 1, "--head-dim", 16, "--variant", "flash", "--tile", "32x64,64x64", "--rounds",
        2, "--threads", 1]  # fmt: skip
RUN = ["run", "attention", "--in", "case.h5", "--threads", 1]
TRAIN = ["train", "--model", TINY, "--text", "text", "--steps", 2, "--batch", 1, "--seq", 16, "--threads", 1, "--out",
         "out", "--log", "log.h5"]  # fmt: skip


def rows(path):
    with h5py.File(path) as file:
        return [(int(row["tokens"]), row["variant"].decode()) for row in file["points"][:]]


def holds(*datasets):
    def check(path):
        with h5py.File(path) as file:
            for name in datasets:
                assert file[name].size > 0 and file[name][...] is not None
    return check


def tiles(path):
    return {entry["axes"]["seq_q"] for entry in json.loads(path.read_text())["tiles"]}


def check_table(*tokens):
    def check(path):
        assert sorted(rows(path)) == sorted((n, variant) for n in tokens for variant in ("naive", "fused"))
    return check


def check_tiles(path):
    assert tiles(path) == {8, 16}


def check_model(path):
    assert path.read_bytes() == (path.parents[2] / "reference" / path.name).read_bytes()


def check_size(path):
    """A state holds times."""
    assert path.stat().st_size == (path.parents[2] / "reference" / path.name).stat().st_size


def check_page(path):
    assert "</html>" in path.read_text(encoding="utf-8")


@dataclass
class Command:
    arguments: list
    outputs: dict  # file: what a finished one is to pass
    again: tuple = ()  # more arguments after a kill
    before: dict = None  # files that are there before, copies of prepared ones
    grows: bool = False  # an output that is not finished is one that goes on
    program: tuple = ()


COMMANDS = {
    "sweep": Command([*SWEEP, "--tokens", "3,5", "-o", "out.h5"], {"out.h5": check_table(3, 5)}, ("--resume",),
                     grows=True),
    "sweep_resumed": Command([*SWEEP, "--tokens", "3,5", "-o", "out.h5", "--resume"], {"out.h5": check_table(3, 5)},
                             before={"out.h5": "three.h5"}, grows=True),
    "sweep_overwritten": Command([*SWEEP, "--tokens", "3", "-o", "out.h5", "--overwrite"], {"out.h5": check_table(3)},
                                 before={"out.h5": "five.h5"}, grows=True),
    "merge": Command(["merge", "three.h5", "five.h5", "-o", "out.h5"], {"out.h5": check_table(3, 5)}, ("--overwrite",)),
    "tune": Command([*TUNE, "--seq", 16, "-o", "tiles.json"], {"tiles.json": check_tiles},
                    before={"tiles.json": "eight.json"}),
    "run": Command([*RUN, "--out", "new/out.h5"], {"new/out.h5": holds("out", "lse")}, ("--overwrite",)),
    "run_overwritten": Command([*RUN, "--out", "out.h5", "--overwrite"], {"out.h5": holds("out", "lse")},
                               before={"out.h5": "three.h5"}),
    "logits": Command(["logits", "--model", TINY, "--tokens", "1,2,3", "--threads", 1, "--out", "out.h5"],
                      {"out.h5": holds("logits")}, ("--overwrite",)),
    "generate": Command(["generate", "--model", TINY, "--tokens", "1,2,3", "--max-new-tokens", 2, "--threads", 1,
                         "--out", "out.h5", "--log", "log.h5"],
                        {"out.h5": holds("tokens"), "log.h5": lambda path: h5py.File(path).close()}, ("--overwrite",)),
    "train": Command([*TRAIN, "--save-every", 1],
                     {"out/model.safetensors": check_model, "out/training_state.safetensors": check_size,
                      "out/config.json": check_model, "out/generation_config.json": check_model,
                      "log.h5": holds("loss")}, ("--resume",), grows=True),
    "report": Command(["three.h5", "-o", "out"], {"out/report.html": check_page},
                      program=(sys.executable, "-m", "katt_report")),
}  # fmt: skip


class Walk:
    """A command that is run again and again, each time in a copy of the prepared folder."""

    def __init__(self, program, prepared, folder, command):
        self.command = command
        self.program = command.program or (program,)
        self.prepared = prepared
        self.folder = folder

    def run(self, place, *more, at=0, fault=("ENOSPC", False)):
        work = place / "work"
        environment = {**os.environ, "LD_PRELOAD": str(LIBRARY), "KATT_FAULT_FOLDER": str(work.resolve()),
                       "KATT_FAULT_LOG": str(place / "calls"), "KATT_FAULT_AT": str(at), "KATT_FAULT_KIND": fault[0],
                       "KATT_FAULT_LASTS": str(int(fault[1])), "PYTHONPATH": str(ROOT / "drivers" / "report")}  # fmt: skip
        return subprocess.run([*self.program, *map(str, [*self.command.arguments, *more])], cwd=work, text=True,
                              capture_output=True, timeout=120, env=environment)  # fmt: skip

    def place(self, name):
        """A folder with the prepared files, and those that are there before."""
        place = self.folder / name
        shutil.copytree(self.prepared / "work", place / "work")
        (place / "reference").symlink_to(self.prepared / "reference")
        for target, source in (self.command.before or {}).items():
            shutil.copy(place / "work" / source, place / "work" / target)
        return place

    def check_finished(self, place):
        for name, check in self.command.outputs.items():
            check(place / "work" / name)

    def check_kept(self, place, stderr):
        """The file after a failure is the earlier one, a finished one, or one that can continue."""
        for name, check in self.command.outputs.items():
            path = place / "work" / name
            source = (self.command.before or {}).get(name)
            if source is None and not path.exists():
                continue
            if source is not None and path.read_bytes() == (place / "work" / source).read_bytes():
                continue
            if not self.command.grows:
                check(path)
        told = re.findall(r"^\[\d+/\d+\]", stderr, re.MULTILINE)
        if self.program[0].endswith("katt") and self.command.arguments[0] == "sweep" and told:
            assert len(rows(place / "work" / "out.h5")) >= 2 * len(told), "a row that was told is lost"

    def check_clean(self, place):
        assert [str(path) for path in (place / "work").rglob(".*")] == []

    def count(self):
        place = self.place("whole")
        done = self.run(place)
        assert done.returncode == 0, done.stderr
        self.check_finished(place)
        self.check_clean(place)
        calls = len((place / "calls").read_text().splitlines())
        assert calls > 5
        return calls

    def fault(self, at, fault):
        place = self.place(f"{at}-{fault[0]}-{fault[1]}")
        done = self.run(place, at=at, fault=fault)
        try:
            self.judge(place, done, fault[0])
        except Exception as error:
            raise AssertionError(f"call {at}, {fault}: {error}\nstatus {done.returncode}\n{done.stderr}") from error
        shutil.rmtree(place)

    def judge(self, place, done, kind):
        assert "Traceback" not in done.stderr
        is_killed = kind in ("kill", "torn", "hangup")
        if is_killed:
            assert done.returncode in (0, 1, -1, -9)
        elif done.returncode != 0:
            assert done.returncode == 1 and kind != "short"
            lines = [line for line in done.stderr.splitlines() if line.startswith(("katt: ", "katt-report: "))]
            assert len(lines) == 1 and os.strerror(getattr(errno, kind)) in lines[0]
            self.check_clean(place)
        if is_killed or done.returncode != 0:
            self.check_kept(place, done.stderr)
            if not is_killed and not self.command.grows:
                return
            done = self.run(place, *self.command.again)
            assert done.returncode == 0, done.stderr
        self.check_finished(place)
        self.check_clean(place)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Inputs of all commands, and what an unbroken training makes."""
    place = tmp_path_factory.mktemp("prepared")
    work = place / "work"
    work.mkdir()
    katt = program_in(work)
    shutil.copy(CASES / "attention_f32_causal_gqa.h5", work / "case.h5")
    (work / "text").write_text("the quick brown fox jumps over the lazy dog " * 20)
    for arguments in ([*SWEEP, "--tokens", 3, "-o", "three.h5"], [*SWEEP, "--tokens", 5, "-o", "five.h5"],
                      [*TUNE, "--seq", 8, "-o", "eight.json"], TRAIN):  # fmt: skip
        katt.runs(*arguments)
    (work / "out").rename(place / "reference")
    (work / "log.h5").unlink()
    return place


@pytest.mark.parametrize("name", COMMANDS)
def test_every_call_may_fail(prepared, tmp_path, name, request, capsys):
    walk = Walk(os.environ["KATT"], prepared, tmp_path, COMMANDS[name])
    calls = walk.count()
    if request.config.getoption("--all-faults"):
        tried = [(at, fault) for at in range(1, calls + 1) for fault in FAULTS]
    else:  # one call of each seventh, with another fault each
        faults = random.Random(name).sample(FAULTS, len(FAULTS))
        tried = [(1 + (2 * i + 1) * calls // (2 * len(faults)), fault) for i, fault in enumerate(faults)]
        if name == "report":
            tried = tried[::3]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        failed = [str(result) for result in pool.map(lambda one: outcome(walk.fault, *one), tried) if result]
    with capsys.disabled():
        print(f"\n{name}: {len(tried)} faults in {calls} calls, {len(failed)} answered wrongly", end=" ")
    assert not failed, "\n\n".join(failed[:20])


def outcome(function, *arguments):
    try:
        function(*arguments)
    except AssertionError as error:
        return error
    return None


def test_no_config_stays_beside_parameters_of_another_model(prepared, tmp_path):
    other = ["train", "--model", "other", *TRAIN[3:], "--overwrite"]
    walk = Walk(os.environ["KATT"], prepared, tmp_path, Command(other, {}))

    def place(name):
        made = Walk.place(walk, name)
        shutil.copytree(prepared / "reference", made / "work" / "out")
        config = json.loads((Path(TINY) / "config.json").read_text())
        (made / "work" / "other").mkdir()
        (made / "work" / "other" / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
        return made

    walk.place = place
    walk.count()
    calls = (tmp_path / "whole" / "calls").read_text().splitlines()
    renames = [at for at, call in enumerate(calls, 1) if "rename" in call]
    assert len(renames) >= 4, calls
    for at in renames:
        killed = place(f"at-{at}")
        assert walk.run(killed, at=at, fault=("kill", False)).returncode == -9
        out = killed / "work" / "out"
        if (out / "config.json").exists():
            program_in(killed / "work").runs("logits", "--model", "out", "--tokens", "1,2", "--threads", 1,
                                              "--out", "logits.h5")


def test_a_failed_first_save_is_continued(prepared, tmp_path):
    """Any of its files is the last one that gets its name: the disk fails, or the terminal is closed."""
    command = COMMANDS["train"]
    walk = Walk(os.environ["KATT"], prepared, tmp_path, Command(TRAIN, command.outputs, ("--resume",), grows=True))

    def check_told(place, stderr):
        told = re.search(r"nothing of the run is saved|out holds step (\d+), --resume goes on there", stderr)
        if told:
            assert saved_steps(place / "work" / "out") == int(told[1] or 0), told[0]

    walk.check_kept = check_told
    walk.count()
    calls = (tmp_path / "whole" / "calls").read_text().splitlines()
    renames = [at for at, call in enumerate(calls, 1) if "rename" in call]
    assert len(renames) >= 5, calls  # generation_config.json, both tensors' files, config.json, the log
    for at in renames:
        walk.fault(at, ("EIO", True))
        walk.fault(at, ("hangup", False))
