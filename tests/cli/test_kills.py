"""kill -9 at random instants, of sweeps and training, also of two that write one output: everything
reported as finished is there, and the next --resume continues to the end. `tests/soak/kills N
PROGRAM` kills more often than the suite."""

import json
import random
import re
import signal
import threading
import time

import h5py
import pytest
from conftest import TINY

SWEEP = ["sweep", "softmax", "--tokens", "1:40:+1", "--vocab", 16, "--dtype", "f32", "--rounds", 2, "--threads", 1,
         "-o", "out.h5", "--resume"]  # fmt: skip
ROWS = 2 * 40
TRAIN = ["train", "--model", TINY, "--text", "text", "--steps", 12, "--batch", 1, "--seq", 16, "--threads", 1,
         "--save-every", 1, "--resume"]  # fmt: skip


@pytest.fixture
def kills(request):
    return request.config.getoption("--kills")


def killed(katt, arguments, after_s, writers):
    """Starts programs at once and kills them after a while. Returns the status and stderr of each."""
    processes = [katt.start(*arguments) for _ in range(writers)]
    timer = threading.Timer(after_s, lambda: [process.send_signal(signal.SIGKILL) for process in processes])
    timer.start()
    ended = []
    for process in processes:
        _, stderr = process.communicate(timeout=120)
        ended.append((process.returncode, stderr))
    timer.cancel()
    return ended


def check_ends(ended):
    """Killed, or done, or refused for the other one."""
    for status, stderr in ended:
        if status == 2:
            assert re.search(r"^katt: .*: is being written by process \d+", stderr, re.MULTILINE), stderr
        else:
            assert status in (0, -signal.SIGKILL), (status, stderr)


def held(path):
    if not path.exists():
        return []
    with h5py.File(path) as file:
        names = [f"{row['run'].decode()}/{row['point'].decode()}" for row in file["points"][:]]
        assert all(len(file[f"samples/{name}"]) == 2 for name in names)
        rows = [(int(row["tokens"]), row["variant"].decode()) for row in file["points"][:]]
    assert len(set(rows)) == len(rows)
    return rows


def hidden(folder):
    return [path.name for path in folder.rglob(".*")]


def test_sweeps(katt, kills):
    instants = random.Random(katt.folder.name + str(time.time()))
    output = katt.folder / "out.h5"
    before = []
    for number in range(kills):
        ended = killed(katt, SWEEP, instants.uniform(0, 1.2), 1 + number % 2)
        check_ends(ended)
        rows = held(output)
        assert set(before) <= set(rows)
        told = sum(len(re.findall(r"^\[\d+/\d+\]", stderr, re.MULTILINE)) for _, stderr in ended)
        assert len(rows) >= len(before) + 2 * told, "a row that was told is lost"
        before = rows
        if len(rows) == ROWS or number == kills - 1:
            katt.runs(*SWEEP)
            assert len(held(output)) == ROWS
            assert hidden(katt.folder) == []
            output.unlink()
            before = []


def saved_steps(out):
    """Steps of the save in a folder; 0 where there is none."""
    path = out / "training_state.safetensors"
    if not path.exists():
        return 0
    data = path.read_bytes()
    header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
    assert len(data) == 8 + int.from_bytes(data[:8], "little") + max(
        entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
    return header["log.loss"]["shape"][0]


def test_training(katt, kills):
    (katt.folder / "text").write_text("the quick brown fox jumps over the lazy dog " * 20)
    katt.runs(*TRAIN, "--out", "whole", "--log", "whole.h5")
    whole = (katt.folder / "whole" / "model.safetensors").read_bytes()
    instants = random.Random(katt.folder.name + str(time.time()))
    before, number, parts = 0, 0, 0
    while number < kills:
        out = katt.folder / f"out-{parts}"
        arguments = [*TRAIN, "--out", out.name, "--log", f"{out.name}.h5"]
        ended = killed(katt, arguments, instants.uniform(0, 1.2), 1 + number % 2)
        number += 1
        check_ends(ended)
        steps = saved_steps(out)
        assert steps >= before
        for _, stderr in ended:  # a step is told before it is saved
            told = [int(step) for step in re.findall(r"^step (\d+)/", stderr, re.MULTILINE)]
            assert steps >= max(told, default=0) - 1
        assert (out / "config.json").exists() <= (out / "model.safetensors").exists()
        before = steps
        if steps == 12 or number == kills:
            katt.runs(*arguments)
            assert (out / "model.safetensors").read_bytes() == whole
            assert hidden(out) == []
            before, parts = 0, parts + 1
