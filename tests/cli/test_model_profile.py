"""--profile of katt train and katt generate: a table by phase and operator, in the log, drawn by katt-report."""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import h5py
import numpy as np
import pytest
from conftest import ROOT, program_in
from models import CONFIG

LAYERS, HIDDEN, MLP, VOCAB, KV = 2, 32, 64, 256, 16
# The weights of a block: q and o, k and v, and the three of the MLP.
BLOCK_WEIGHTS = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * KV + 3 * HIDDEN * MLP


def model_in(folder):
    """Options that name a model of random parameters."""
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(CONFIG))
    (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 20)
    return ("--model", "model", "--threads", "1")


@pytest.fixture
def model(katt):
    return model_in(katt.folder)


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """The program in a folder with the logs of a profiled answer, a profiled and a plain training, and what they said: each
    profile takes the seconds of the ceilings. A configuration file asks for that of the training, as the option does in
    docs/measuring.md."""
    katt = program_in(tmp_path_factory.mktemp("profiled"))
    model = model_in(katt.folder)
    (katt.folder / "train.toml").write_text('profile = true\nlog = "steps.h5"\n')
    said = [katt(*generate(model, "--profile", "--log", "answer.h5")),
            katt(*train(model, "--json", "--config", "train.toml")),
            katt(*train(model, "--json", "--log", "plain.h5"))]  # fmt: skip
    assert [done.returncode for done in said] == [0, 0, 0], said
    return katt, model, *said


def generate(model, *more):
    return ("generate", *model, "--tokens", ",".join(map(str, range(1, 17))), "--max-new-tokens", "5", *more)


def train(model, *more):
    return ("train", *model, "--text", "text.txt", "--steps", "3", "--batch", "2", "--seq", "16", "--accumulation", "2",
            *more)  # fmt: skip


def profile(path):
    """The whole time, and the rows of the log's profile by phase and operator."""
    with h5py.File(path) as file:
        table, attributes = file["profile"][:], dict(file["profile"].attrs)
    found, phase = {}, None
    for row in table:
        if row["depth"] == 0:
            phase = row["name"].decode()
            found[phase, ""] = row
        elif row["depth"] == 1:
            found[phase, row["name"].decode()] = row
    return attributes, found


def check_times(attributes, found):
    """Parts are within their whole, and shares of ceilings are shares."""
    phases = {phase for phase, part in found if not part}
    assert sum(found[phase, ""]["time_s"] for phase in phases) <= attributes["time_s"] * 1.001
    for phase in phases:
        inside = [row["time_s"] for (of, part), row in found.items() if of == phase and part]
        assert inside and 0 < sum(inside) <= found[phase, ""]["time_s"]
    for (_, part), row in found.items():
        counted = part.startswith("katt::") and row["flops"] + row["bytes"] > 0
        assert bool(row["ceiling"]) == counted, part
        assert not counted or row["ceiling_fraction"] > 0, part


def test_generate_by_phase_and_operator(profiled):
    katt, model, done, _, _ = profiled
    attributes, found = profile(katt.folder / "answer.h5")
    assert attributes["runs"] == 1
    check_times(attributes, found)
    assert {phase for phase, _ in found} == {"prefill", "decode"}
    operators = {"katt::embedding", "katt::rmsnorm", "katt::linear", "katt::rope", "katt::attention", "katt::swiglu"}
    for phase, tokens, calls in (("prefill", 16, 1), ("decode", 4, 4)):
        assert operators <= {part for of, part in found if of == phase}
        assert found[phase, "katt::attention"]["calls"] == LAYERS * calls
        # The products of the blocks, and of the head for one row a call.
        flops = 2 * (tokens * LAYERS * BLOCK_WEIGHTS + calls * VOCAB * HIDDEN)
        assert found[phase, "katt::linear"]["flops"] == flops
        assert found[phase, "katt::linear"]["bytes"] >= 4 * calls * (LAYERS * BLOCK_WEIGHTS + VOCAB * HIDDEN)
    # 4 · hidden FLOPs for each visible pair of a layer: the prompt's triangle, then a row over all that came before.
    assert found["prefill", "katt::attention"]["flops"] == 4 * HIDDEN * LAYERS * sum(range(1, 17))
    assert found["decode", "katt::attention"]["flops"] == 4 * HIDDEN * LAYERS * sum(range(17, 21))
    with h5py.File(katt.folder / "answer.h5") as file:
        assert (file.attrs["log"], file.attrs["prompt"], file.attrs["new_tokens"]) == ("generate", 16, 5)
        assert attributes["time_s"] == pytest.approx(file.attrs["prefill_s"] + file.attrs["decode_s"])
    lines = done.stderr.splitlines()[1:]  # the first says that the parameters are random
    assert lines[0].split()[:4] == ["phase", "operator", "calls", "time"]
    assert sum("katt::linear" in line for line in lines) == 2
    # The output for scripts is the same as without a profile.
    plain = katt(*generate(model))
    assert plain.stdout.splitlines()[-1] == done.stdout.splitlines()[-1]
    assert "katt::" not in plain.stderr


def test_a_profile_needs_no_memory(profiled):
    """The ceilings are measured after the peak of the training is taken."""
    *_, steps, plain = profiled
    assert json.loads(steps.stdout)["peak_bytes"] == json.loads(plain.stdout)["peak_bytes"]


def test_train_by_phase_and_operator(profiled):
    katt, *_ = profiled
    attributes, found = profile(katt.folder / "steps.h5")
    check_times(attributes, found)
    assert attributes["runs"] == 3
    assert {phase for phase, _ in found} == {"forward", "backward", "optimizer"}
    with h5py.File(katt.folder / "steps.h5") as file:
        assert file.attrs["log"] == "train" and len(file["loss"]) == 3
        assert {"katt_version", "commit", "dirty", "device", "cpu_id", "isa", "cores"} <= set(file.attrs)
        assert datetime.now(UTC) - datetime.fromisoformat(file.attrs["finished_at"]) < timedelta(hours=1)
        assert attributes["time_s"] == pytest.approx(float(np.mean(file["time_s"][:])), rel=1e-3)
    # Calls and work are those of a step: two microbatches of 32 tokens.
    tokens = 2 * 2 * 16
    assert found["forward", ""]["calls"] == found["backward", ""]["calls"] == 2
    assert found["optimizer", ""]["calls"] == 1
    assert found["forward", "katt::linear"]["flops"] == 2 * tokens * LAYERS * BLOCK_WEIGHTS
    assert found["backward", "katt::linear"]["flops"] == 4 * tokens * LAYERS * BLOCK_WEIGHTS
    assert found["forward", "katt::linear_cross_entropy"]["flops"] == 2 * tokens * VOCAB * HIDDEN
    assert found["backward", "katt::attention"]["flops"] > found["forward", "katt::attention"]["flops"] > 0
    parameters = LAYERS * (BLOCK_WEIGHTS + 2 * HIDDEN) + 2 * VOCAB * HIDDEN + HIDDEN
    assert found["optimizer", "katt::training::adamw"]["bytes"] == 28 * parameters
    # The losses do not know of it.
    with h5py.File(katt.folder / "steps.h5") as one, h5py.File(katt.folder / "plain.h5") as two:
        assert np.array_equal(one["loss"][:], two["loss"][:])
        assert "profile" not in two


def test_the_report_draws_logs(profiled):
    katt, *_ = profiled

    def report(*files):
        command = [sys.executable, "-m", "katt_report", *files, "-o", "report", "--formats", "svg"]
        return subprocess.run(command, cwd=katt.folder, capture_output=True, text=True, timeout=300,
                              env={"PYTHONPATH": str(ROOT / "drivers" / "report")})  # fmt: skip

    done = report("answer.h5", "steps.h5", "plain.h5")
    assert done.returncode == 0, done.stderr
    assert "prefill: " in done.stdout and "backward: " in done.stdout and "--profile takes one" in done.stdout
    page = (katt.folder / "report" / "report.html").read_text()
    for word in ("prefill", "decode", "forward", "backward", "optimizer", "of ceiling", "adamw", "attention"):
        assert word in page
    assert {"phases_1.svg", "phases_2.svg"} <= {path.name for path in (katt.folder / "report").iterdir()}
    (katt.folder / "bad.h5").write_bytes((katt.folder / "steps.h5").read_bytes()[:2000])
    done = report("bad.h5")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "bad.h5" in done.stderr


def test_a_log_that_cannot_be_written(katt, model):
    line = katt.refuses(*generate(model, "--log", "model"))
    assert "model" in line and "folder" in line
