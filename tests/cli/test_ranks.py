"""`katt train`, `logits`, `generate` and `memory` on several ranks, as mpirun starts them."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import time

import h5py
import models
import numpy as np
import pytest
from conftest import ALL_CASES, TINY, Runs, own_words, refusal_of, said_by_katt
from models import ids, results_of

MPIRUN = shutil.which("mpirun")
pytestmark = pytest.mark.skipif(MPIRUN is None, reason="no mpirun")

LAYOUTS = [
    (2, ["--tensor", 2]),
    (2, ["--pipeline", 2]),
    (2, ["--context", 2]),
    (2, []),
    (2, ["--zero", 1]),
    (2, ["--tensor", 2, "--sequence-parallel", 1]),
    (4, ["--tensor", 2, "--pipeline", 2, "--micro-batches", 3]),
    (4, ["--tensor", 2, "--zero", 1]),
    (4, ["--context", 2, "--context-variant", "ulysses"]),
    (8, ["--tensor", 2, "--pipeline", 2, "--sequence-parallel", 1]),
]
NAMES = [f"{ranks}: {' '.join(map(str, layout))}" for ranks, layout in LAYOUTS]


class Ranks(Runs):
    """ranks(P, …) runs `mpirun -n P katt …`, ranks.start(P, …) starts it."""

    def __init__(self, katt):
        self.path, self.folder = katt.path, katt.folder

    def command(self, count, *arguments):
        return [MPIRUN, "-q", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca",
                "mpi_yield_when_idle", "1", "-n", str(count), self.path, *map(str, arguments), "--threads", "1"]

    def __call__(self, count, *arguments, timeout=300):
        done = subprocess.run(self.command(count, *arguments), cwd=self.folder, capture_output=True, text=True,
                              timeout=timeout)
        done.stderr = own_words(done.stderr)
        return done

    def start(self, count, *arguments):
        return subprocess.Popen(self.command(count, *arguments), cwd=self.folder, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)


@pytest.fixture
def ranks(katt, with_mpi):
    return Ranks(katt)


@pytest.fixture(scope="module")
def expected():
    return results_of(TINY)


def training(expected, **changes):
    return models.training(TINY, expected, **changes)


def check_curve(path, expected):
    with h5py.File(path) as log:
        np.testing.assert_allclose(log["loss"][...], expected["train/losses"], rtol=2e-4)
        np.testing.assert_allclose(log["grad_norm"][...], expected["train/grad_norms"], rtol=2e-3)


@pytest.mark.parametrize("count, layout", LAYOUTS, ids=NAMES)
def test_trains_as_pytorch(ranks, expected, count, layout):
    done = ranks.runs(count, *training(expected), *layout, "--log", "log.h5")
    assert len(done.stdout.splitlines()) == 1, "one rank prints"
    check_curve(ranks.folder / "log.h5", expected)


def test_killed_ranks_lose_nothing_that_was_saved(katt, ranks, expected):
    """Any rank of four dies at any time, and the run goes on, half of the time in another layout: the curve is that of
    an unbroken run of one rank. KATT_KILLS says how often."""
    seed = time.time_ns()
    print("seed", seed)
    choose = random.Random(seed)
    kills = int(os.environ.get("KATT_KILLS", "4" if ALL_CASES else "2"))
    steps = (25 if "KATT_KILLS" in os.environ else 10) * kills  # so many that the run does not end before
    command = training(expected, steps=steps, batch=8, accumulation=8, lr=1e-4)
    katt.runs(*command, "--log", "unbroken.h5", "--threads", 1)
    layouts = [[], ["--zero", 1], ["--tensor", 2], ["--tensor", 2, "--zero", 1, "--sequence-parallel", 1],
               ["--context", 2], ["--tensor", 2, "--pipeline", 2],
               ["--pipeline", 2, "--context", 2, "--context-variant", "ulysses"]]
    layout, killed = choose.choice(layouts), 0
    while True:
        process = ranks.start(4, *command, *layout, "--out", "out", "--log", "log.h5", "--save-every", 2, "--save-shards",
                              choose.randint(1, 4), "--resume")
        if killed < kills:
            time.sleep(choose.uniform(0.2, 2.0))
            victims = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
            if victims and process.poll() is None:
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.kill(int(choose.choice(victims)), signal.SIGKILL)
                _, told = process.communicate(timeout=60)  # the launcher ends the others
                killed += process.returncode != 0
        _, told = process.communicate(timeout=300)
        if process.returncode == 0:
            break
        if choose.random() < 0.5:
            layout = choose.choice(layouts)
    with h5py.File(ranks.folder / "unbroken.h5") as one, h5py.File(ranks.folder / "log.h5") as log:
        np.testing.assert_allclose(log["loss"][...], one["loss"][...], rtol=1e-3)
        np.testing.assert_allclose(log["grad_norm"][...], one["grad_norm"][...], rtol=1e-2)
    if "KATT_KILLS" in os.environ:
        assert killed == kills, f"the run ended after {killed} kills"


def test_what_was_trained_is_a_checkpoint(ranks, katt, expected):
    """Ranks write what one rank reads, in transformers' names and shapes."""
    ranks.runs(4, *training(expected), "--tensor", 2, "--pipeline", 2, "--out", "out")
    katt.runs(*training(expected, steps=1), "--out", "alone")

    def header(folder):
        data = (katt.folder / folder / "model.safetensors").read_bytes()
        return json.loads(data[8:8 + int.from_bytes(data[:8], "little")])

    assert header("out") == header("alone")


def shards_of(folder):
    """The files of a sharded checkpoint by tensor, after a look into each."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    held = {}
    for name in set(index["weight_map"].values()):
        data = (folder / name).read_bytes()
        length = int.from_bytes(data[:8], "little")
        tensors = json.loads(data[8:8 + length])
        tensors.pop("__metadata__")
        held |= dict.fromkeys(tensors, name)
    assert held == index["weight_map"]
    sizes = [(folder / name).stat().st_size for name in set(held.values())]
    assert index["metadata"]["total_size"] <= sum(sizes) < index["metadata"]["total_size"] + 16384
    return held


def test_shards(ranks, katt, expected):
    """Each rank writes a file; other layouts go on from them, and every reader takes them."""
    for layout in [["--tensor", 2, "--zero", 1], ["--pipeline", 2]]:
        ranks.runs(4, *training(expected, steps=8), *layout, "--out", "out", "--save-shards", 4, "--overwrite")
        assert len(set(shards_of(ranks.folder / "out").values())) == 4
        assert not (ranks.folder / "out" / "model.safetensors").exists()
    prompt = ids(expected["prompt"])
    logits = []
    for count, layout in [(1, []), (2, ["--tensor", 2]), (2, ["--pipeline", 2])]:
        ranks.runs(count, "logits", "--model", "out", "--tokens", prompt, "--out", "out.h5", "--overwrite", *layout)
        with h5py.File(ranks.folder / "out.h5") as file:
            logits.append(file["logits"][...])
    np.testing.assert_allclose(logits[1], logits[0], atol=2e-5, rtol=0)
    np.testing.assert_allclose(logits[2], logits[0], atol=2e-5, rtol=0)
    assert "model.safetensors.index.json" in katt.refuses(*training(expected), "--out", "out")
    ranks.runs(2, *training(expected), "--tensor", 2, "--out", "out", "--log", "log.h5", "--resume")
    check_curve(ranks.folder / "log.h5", expected)
    assert sorted(path.name for path in (ranks.folder / "out").iterdir()) == [
        "config.json", "generation_config.json", "model.safetensors", "training_state.safetensors"]


@pytest.mark.parametrize("count, layout", [
    (2, ["--tensor", 2]), (2, ["--pipeline", 2]), (4, ["--tensor", 2, "--pipeline", 2]), (2, []),
    (4, ["--tensor", 2, "--context", 2, "--zero", 1, "--micro-batches", 2])])
def test_logits_and_greedy_continuation(ranks, expected, count, layout):
    prompt = ids(expected["prompt"])
    ranks.runs(count, "logits", "--model", TINY, "--tokens", prompt, "--out", "out.h5", *layout)
    with h5py.File(ranks.folder / "out.h5") as file:
        np.testing.assert_allclose(file["logits"][...], expected["logits"], atol=2e-5, rtol=0)
    # in pieces, so that the stages compute at the same time
    done = ranks.runs(count, "generate", "--model", TINY, "--tokens", prompt, "--max-new-tokens",
                      len(expected["greedy"]), "--chunk", 3, *layout)
    assert [int(token) for token in done.stdout.splitlines()[-1].split(",")] == expected["greedy"].tolist()


@pytest.mark.parametrize("count, layout", [(2, []), (4, ["--tensor", 2])])
def test_replicas_share_the_prompts(ranks, katt, count, layout):
    """Each prompt is continued as on one rank; there may be fewer prompts than replicas."""
    for prompts in (["1,2,3", "4", "5,6,7,8"], ["9,10"]):
        (ranks.folder / "prompts").write_text("\n".join(prompts))
        arguments = ["generate", "--model", TINY, "--prompts", "prompts", "--max-new-tokens", 4, "--temperature", 1,
                     "--seed", 3, "--json"]
        alone = katt(*arguments)
        done = ranks(count, *arguments, "--out", "tokens.h5", "--overwrite", *layout)
        assert (alone.returncode, done.returncode) == (0, 0), done.stderr
        tokens = json.loads(done.stdout)["tokens"]
        assert tokens == json.loads(alone.stdout)["tokens"]
        with h5py.File(ranks.folder / "tokens.h5") as file:
            assert file["tokens"][...].tolist() == tokens


@pytest.mark.parametrize("number, dtype", [
    (number, dtype) for number in range(8) for i, dtype in enumerate(["f32", "bf16"]) if ALL_CASES or number % 2 == i])
def test_memory_of_every_rank(ranks, number, dtype):
    """Layouts in turn in f32 and in bf16."""
    count, layout = [(1, []), *LAYOUTS[:7]][number]
    done = ranks.runs(count, "memory", "--model", TINY, "--batch", 6, "--seq", 128, "--dtype", dtype, "--measure",
                      "--json", *layout)
    forecast = json.loads(done.stdout)
    every = forecast.get("ranks", [forecast["training"]])
    assert len(every) == count
    assert ("communication_bytes" in forecast["inference"]) == ("--tensor" in layout)
    for rank in every:
        assert abs(rank["total_bytes"] / rank["measured_bytes"] - 1) < 0.02, rank


def test_memory_without_ranks(katt):
    """A forecast needs no mpirun; ZeRO-1 cuts the optimizer's state by the data parallel ranks."""
    def optimizer(*arguments):
        done = katt.runs("memory", "--model", TINY, "--batch", 4, "--seq", 64, "--json", *arguments)
        forecast = json.loads(done.stdout)
        return [rank["optimizer_bytes"] for rank in forecast.get("ranks", [forecast["training"]])]

    whole = optimizer()[0]
    cut = optimizer("--ranks", 4, "--zero", 1)
    assert len(cut) == 4 and abs(sum(cut) / whole - 1) < 0.01
    assert len(optimizer("--tensor", 2)) == 2
    assert "--measure" in katt.refuses("memory", "--model", TINY, "--tensor", 2, "--measure")


@pytest.mark.parametrize("count, arguments, message", [
    (4, ["--tensor", 3], "expected a divisor of the 4 ranks"),
    (4, ["--tensor", 4], "expected a divisor of all: 1, 2"),
    (3, ["--pipeline", 3], "the model has 2 blocks"),
    (3, ["--context", 3], "expected a multiple of 6"),
    (4, [], "a step has 6 rows, expected a multiple of the 4 data parallel ranks"),
    (2, ["--pipeline", 2, "--micro-batches", 4], "expected a divisor of them"),
    (2, ["--zero", 2], "--zero 2: expected 0 or 1"),
    (2, ["--sequence-parallel", "perhaps"], "--sequence-parallel perhaps: expected 0 or 1"),
    (2, ["--context", 2, "--context-variant", "tree"], "--context-variant tree: expected ring or ulysses"),
    (2, ["--virtual-stages", 2], "--pipeline is 1, expected 2 or more stages"),
    (2, ["--pipeline", 2, "--virtual-stages", 2], "the model has 2 blocks, expected at most as many parts"),
    (2, ["--save-shards", 3], "--save-shards 3: expected at most the 2 ranks"),
    (2, ["--checkpoint-blocks", "budget:1e9"], "of several ranks each would choose"),
    (2, ["--nonsense", 1], "unknown option"),
])
def test_refusals(ranks, expected, count, arguments, message):
    done = ranks(count, *training(expected), *arguments, "--out", "out")
    assert message in refusal_of(done)
    assert not (ranks.folder / "out").exists()


def test_ranks_are_told_the_same(ranks, expected):
    one, other = (list(map(str, training(expected, lr=rate))) for rate in (1e-3, 1e-1))
    done = ranks(1, *one, ":", "-n", 1, ranks.path, *other)
    assert "has other options than rank 0: " in refusal_of(done) and "--lr 0.1" in done.stderr


def test_commands_of_one_rank(ranks):
    done = ranks(2, "tune", "attention")
    assert done.returncode == 2
    assert "katt tune: started on 2 ranks, expected 1" in done.stderr


@pytest.mark.parametrize("count, layout, message", [
    (3, ["--pipeline", 3], "--pipeline 3: the model has 2 blocks"),
    (2, ["--pipeline", 3], "expected a divisor of the 2 ranks"),
    (2, ["--context", 4], "expected a divisor of the 2 ranks"),
])
def test_refusals_of_generation(ranks, count, layout, message):
    done = ranks(count, "generate", "--model", TINY, "--tokens", "1,2", *layout)
    assert message in refusal_of(done)


@pytest.mark.parametrize("layout", [["--tensor", 2], ["--pipeline", 2], []], ids=["tensor", "pipeline", "data"])
def test_logits_that_are_not_finite(ranks, tmp_path, layout):
    """An embedding is NaN: the ranks of a model end together, and replicas that each find such logits."""
    content = bytearray((TINY / "model.safetensors").read_bytes())
    begin = 8 + int.from_bytes(content[:8], "little")
    entry = json.loads(content[8:begin])["model.embed_tokens.weight"]
    assert entry["dtype"] == "BF16"
    row = 2 * entry["shape"][1]
    at = begin + entry["data_offsets"][0] + 9 * row
    content[at:at + row] = b"\xc0\x7f" * (row // 2)
    (tmp_path / "model.safetensors").write_bytes(content)
    shutil.copy(TINY / "config.json", tmp_path)
    (tmp_path / "prompts.txt").write_text("1,2,9\n5,9\n")
    prompts = ["--prompts", "prompts.txt"] if not layout else ["--tokens", "1,2,9"]
    for how in [[], ["--temperature", 1]] if ALL_CASES or not layout else [[]]:
        done = ranks(2, "generate", "--model", tmp_path, *prompts, "--max-new-tokens", 4, *layout, *how)
        assert done.returncode == 1 and done.stdout == "", (done.stdout, done.stderr)
        assert len(said_by_katt(done)) == 1, done.stderr
        assert "the logits are not finite at position 2: a weight of the model is not" in done.stderr
