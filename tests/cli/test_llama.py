"""`katt logits`, `generate`, `train` and `memory` on a Hugging Face checkpoint with PyTorch's results."""

import json
import shutil
import signal
import time

import h5py
import numpy as np
import pytest

from conftest import TINY

CONFIG = {
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.fixture
def random_model(tmp_path):
    """A folder that holds config.json alone: a model with random parameters."""
    folder = tmp_path / "random"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("the quick brown fox jumps over the lazy dog. " * 40)
    return path


def ids(tokens):
    return ",".join(str(token) for token in tokens)


def last_ids(done):
    assert done.returncode == 0, done.stderr
    return [int(token) for token in done.stdout.splitlines()[-1].split(",")]


def log_of(path):
    with h5py.File(path) as file:
        return {name: file[name][...] for name in ["loss", "grad_norm", "lr", "time_s"]}


def test_logits(katt, checkpoint, expected):
    done = katt("logits", "--model", checkpoint, "--tokens", ids(expected["prompt"]), "--out", "out.h5",
                "--json")
    assert done.returncode == 0, done.stderr
    with h5py.File(katt.folder / "out.h5") as file:
        logits = file["logits"][...]
    assert json.loads(done.stdout) == {"out": "out.h5", "logits": list(logits.shape)}
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, expected["logits"], atol=2e-5, rtol=0)


@pytest.mark.parametrize("arguments", [[], ["--no-cache"], ["--chunk", "7"], ["--threads", "1"],
                                       ["--backend", "serial"], ["--temperature", "0"]])
def test_greedy_continuation(katt, checkpoint, expected, arguments):
    done = katt("generate", "--model", checkpoint, "--tokens", ids(expected["prompt"]), "--max-new-tokens",
                len(expected["greedy"]), *arguments)
    assert last_ids(done) == expected["greedy"].tolist()
    assert "tokens/s" in done.stdout and "peak" in done.stdout


def test_sampling(katt):
    def sample(*arguments):
        return last_ids(katt("generate", "--model", TINY, "--tokens", "1,2,3", "--max-new-tokens", 20,
                             "--temperature", 1, *arguments))

    assert sample("--seed", 1) == sample("--seed", 1)
    assert sample("--seed", 1) != sample("--seed", 2)
    greedy = last_ids(katt("generate", "--model", TINY, "--tokens", "1,2,3", "--max-new-tokens", 20))
    assert sample("--top-k", 1) == greedy
    assert sample("--top-p", 1e-6) == greedy


def test_generate_text_and_json(katt, random_model):
    done = katt("generate", "--model", random_model, "--text", "GNU", "--max-new-tokens", 5)
    assert len(last_ids(done)) == 5
    done = katt("generate", "--model", random_model, "--text", "GNU", "--max-new-tokens", 5, "--json")
    made = json.loads(done.stdout)
    assert len(made["tokens"]) == 5 and made["peak_bytes"] > made["weight_bytes"] > 0


@pytest.mark.parametrize("how", [[], ["--temperature", 1, "--seed", 3], ["--batch", 2], ["--dtype", "bf16"]])
def test_several_prompts_in_one_batch(katt, how):
    prompts = ["1,2,3", "7", ",".join(map(str, range(1, 40))), "5,5,9,1"]
    (katt.folder / "prompts.txt").write_text("\n".join(prompts) + "\n")
    options = ["--model", TINY, "--max-new-tokens", 6, *how]
    done = katt("generate", "--prompts", "prompts.txt", "--out", "new.h5", *options)
    assert done.returncode == 0, done.stderr
    assert "4 prompts" in done.stdout and "peak" in done.stdout
    batch = [[int(token) for token in line.split(",")] for line in done.stdout.splitlines()[-4:]]
    alone = [option for option in options if option not in ("--batch", 2)]
    for prompt, tokens in zip(prompts, batch):
        assert last_ids(katt("generate", "--tokens", prompt, *alone)) == tokens
    with h5py.File(katt.folder / "new.h5") as file:
        assert file["tokens"][:].tolist() == batch
    assert json.loads(katt("generate", "--prompts", "prompts.txt", "--json", *options).stdout)["tokens"] == batch


def test_prompts_that_are_none(katt):
    file = katt.folder / "prompts.txt"
    options = ["--model", TINY, "--prompts", "prompts.txt"]
    file.write_text("1,2\n3,x\n")
    assert "prompts.txt:2 x: expected an integer" in katt.refuses("generate", *options)
    file.write_text("1,2\n\n3\n")
    assert "prompts.txt:2: holds nothing" in katt.refuses("generate", *options)
    file.write_text("1\n2,123456\n")
    assert "prompts.txt:2: token 123456: expected 0 to" in katt.refuses("generate", *options)
    file.write_text("")
    assert "prompts.txt: holds nothing" in katt.refuses("generate", *options)
    file.write_text("1\n")
    assert "--no-cache" in katt.refuses("generate", *options, "--no-cache")
    assert "--sinks" in katt.refuses("generate", *options, "--sinks", 2)
    assert "--batch: expected with --prompts" in katt.refuses("generate", "--model", TINY, "--tokens", 1, "--batch", 2)
    assert "no such file" in katt.refuses("generate", "--model", TINY, "--prompts", "none.txt")
    file.write_bytes(b"1,2\r\n3\r\n")  # ends of lines as Windows has them
    assert katt("generate", *options, "--max-new-tokens", 2).returncode == 0


@pytest.mark.parametrize("arguments", [[], ["--checkpoint"], ["--checkpoint-blocks", "cheap"]])
def test_trains_as_pytorch(katt, checkpoint, expected, arguments):
    options = [part for name in ["steps", "batch", "seq", "accumulation", "lr"]
               for part in ["--" + name, expected["options"][name]]]
    done = katt("train", "--model", checkpoint, "--data", checkpoint / "expected.h5", "--log", "log.h5", *options,
                *arguments)
    assert done.returncode == 0, done.stderr
    assert "left" in done.stderr
    log = log_of(katt.folder / "log.h5")
    np.testing.assert_allclose(log["loss"], expected["train/losses"], rtol=1e-4)
    np.testing.assert_allclose(log["grad_norm"], expected["train/grad_norms"], rtol=1e-3)
    np.testing.assert_allclose(log["lr"], expected["options"]["lr"])
    assert (log["time_s"] > 0).all()


def train(katt, model, text, steps, *arguments):
    return katt("train", "--model", model, "--text", text, "--steps", steps, "--batch", 2, "--seq", 16,
                "--lr", "3e-3", "--threads", 1, *arguments)


def test_resumes_bit_for_bit(katt, random_model, text):
    whole = train(katt, random_model, text, 6, "--out", "whole", "--log", "whole.h5")
    assert whole.returncode == 0, whole.stderr
    assert train(katt, random_model, text, 3, "--out", "parts").returncode == 0
    assert train(katt, random_model, text, 6, "--out", "parts", "--resume", "--log", "parts.h5").returncode == 0
    for name in ["model.safetensors", "config.json"]:
        assert (katt.folder / "whole" / name).read_bytes() == (katt.folder / "parts" / name).read_bytes()
    assert (log_of(katt.folder / "whole.h5")["loss"] == log_of(katt.folder / "parts.h5")["loss"]).all()
    assert not list(katt.folder.rglob(".*part"))


def test_ternary_model_trains_and_reopens(katt, random_model, text):
    done = train(katt, random_model, text, 8, "--ternary", 1, "--out", "out", "--log", "log.h5")
    assert done.returncode == 0, done.stderr
    loss = log_of(katt.folder / "log.h5")["loss"]
    assert loss[-1] < loss[0]
    config = json.loads((katt.folder / "out" / "config.json").read_text())
    assert config["quantization_config"] == {"quant_method": "bitnet", "linear_class": "autobitlinear",
                                             "quantization_mode": "online"}
    done = katt("generate", "--model", "out", "--tokens", "1,2,3", "--max-new-tokens", 4, "--json")
    assert done.returncode == 0, done.stderr
    ternary = json.loads(done.stdout)
    del config["quantization_config"]
    (katt.folder / "out" / "config.json").write_text(json.dumps(config))
    dense = json.loads(katt("generate", "--model", "out", "--tokens", "1,2,3", "--max-new-tokens", 4, "--json").stdout)
    assert len(ternary["tokens"]) == 4
    assert ternary["weight_bytes"] < dense["weight_bytes"]
    message = katt.refuses("train", "--model", "out", "--text", text, "--steps", 9, "--batch", 2, "--seq", 16, "--out",
                           "out", "--resume")
    assert "ternary: holds 1, expected 0" in message


def test_precision_is_continued_as_it_was(katt, random_model, text):
    options = ["--dtype", "f16", "--growth-interval", 2, "--growth-factor", 1.5, "--backoff-factor", 0.25,
               "--master-dtype", "f16"]
    assert train(katt, random_model, text, 6, "--out", "whole", "--log", "whole.h5", *options).returncode == 0
    with h5py.File(katt.folder / "whole.h5") as file:
        scale = file["loss_scale"][...]
    assert scale[2] == 1.5 * scale[0] and scale[4] == 1.5 * scale[2]
    assert train(katt, random_model, text, 3, "--out", "parts", *options).returncode == 0
    assert train(katt, random_model, text, 6, "--out", "parts", "--resume", *options).returncode == 0
    name = "model.safetensors"
    assert (katt.folder / "whole" / name).read_bytes() == (katt.folder / "parts" / name).read_bytes()
    again = ["train", "--model", random_model, "--text", text, "--steps", 9, "--batch", 2, "--seq", 16, "--out",
             "parts", "--resume", "--dtype", "f16"]
    assert "backoff_factor: holds 0.25, expected 0.5" in katt.refuses(*again)


@pytest.mark.parametrize("arguments, expected", [
    (["--growth-factor", 1], "--growth-factor 1: expected a number more than 1"),
    (["--growth-factor", 0.5], "--growth-factor 0.5: expected"),
    (["--backoff-factor", 1], "--backoff-factor 1: expected a number more than 0 and less than 1"),
    (["--backoff-factor", "half"], "--backoff-factor half: expected"),
    (["--growth-interval", 0], "--growth-interval 0: expected"),
    (["--master-dtype", "f64"], "--master-dtype f64: expected f32"),
    (["--master-dtype", "f16", "--dtype", "bf16"], "--master-dtype f16: expected f32 or bf16, that of --dtype"),
    (["--ternary", 2], "--ternary 2: expected 0 or 1"),
])
def test_precision_that_is_refused(katt, random_model, text, arguments, expected):
    message = katt.refuses("train", "--model", random_model, "--text", text, "--steps", 1, "--out", "out", *arguments)
    assert expected in message
    assert not (katt.folder / "out").exists()


def test_sigterm_saves_and_stops(katt, random_model, text):
    process = katt.start("train", "--model", random_model, "--text", text, "--steps", 1000000, "--batch", 2,
                         "--seq", 16, "--out", "out", "--threads", 1)
    time.sleep(1.5)
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "stopped after" in stdout
    steps = int(stdout.split("stopped after ")[1].split()[0])
    assert 0 < steps < 1000000
    done = train(katt, random_model, text, steps + 2, "--out", "out", "--resume", "--log", "log.h5")
    assert done.returncode == 0, done.stderr
    assert len(log_of(katt.folder / "log.h5")["loss"]) == steps + 2


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_learns_from_random_start(katt, random_model, text, dtype):
    done = train(katt, random_model, text, 40, "--dtype", dtype, "--log", "log.h5", "--json")
    assert done.returncode == 0, done.stderr
    loss = log_of(katt.folder / "log.h5")["loss"]
    assert 5.3 < loss[0] < 5.8  # log 256 = 5.55
    assert loss[-1] < 3.5
    assert json.loads(done.stdout)["steps"] == 40


def test_options_from_toml(katt, random_model, text):
    (katt.folder / "train.toml").write_text(
        f'model = "{random_model}"\ntext = "{text}"\nsteps = 3\nbatch = 2\nseq = 16\nschedule = "cosine"\n'
        'lr = 1e-3\nwarmup = 2\nlog = "log.h5"\ncheckpoint = true\n')
    done = katt("train", "--config", "train.toml", "--steps", 5)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(log_of(katt.folder / "log.h5")["lr"], [5e-4, 1e-3, 1e-3, 5e-4, 0], atol=1e-9)
    (katt.folder / "bad.toml").write_text("stepz = 3\n")
    assert "bad.toml:1: stepz" in katt.refuses("train", "--config", "bad.toml")


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("arguments", [[], ["--checkpoint"]])
def test_memory_forecast(katt, dtype, arguments):
    done = katt("memory", "--model", TINY, "--batch", 4, "--seq", 128, "--dtype", dtype, "--measure", "--json",
                *arguments)
    assert done.returncode == 0, done.stderr
    for use in json.loads(done.stdout).values():
        assert use["total_bytes"] == pytest.approx(use["measured_bytes"], rel=0.1)


def test_checkpointing_saves_memory(katt):
    def activations(*arguments):
        done = katt("memory", "--model", TINY, "--batch", 8, "--seq", 512, "--json", *arguments)
        return json.loads(done.stdout)["training"]["activations_bytes"]

    assert activations("--checkpoint") < activations("--checkpoint-blocks", "cheap") < activations()


def test_a_budget_is_met_by_measured_costs(katt, random_model, text):
    def run(*arguments):
        done = katt("train", "--model", random_model, "--text", text, "--steps", 3, "--batch", 8, "--seq", 64, "--json",
                    "--log", "log.h5", *arguments)
        assert done.returncode == 0, done.stderr
        with h5py.File(katt.folder / "log.h5") as file:
            return json.loads(done.stdout), file["loss"][...], dict(file.attrs)

    plain, losses, attributes = run()
    assert attributes["checkpoint_blocks"] == "none" and plain["recompute"] == {}
    budget = plain["peak_bytes"] * 9 // 10
    chosen, chosen_losses, attributes = run("--checkpoint-blocks", f"budget:{budget}")
    assert chosen["peak_bytes"] <= budget
    assert 0 < chosen["pool"]["live_bytes"] <= chosen["pool"]["peak_reserved_bytes"] < budget
    assert set(chosen["recompute"]) == {"n1", "qkv", "attended", "h", "n2", "gate_up", "product"}
    for name, cost in chosen["recompute"].items():
        assert attributes[f"recompute_{name}_bytes"] == cost["bytes"] > 0
        assert attributes[f"recompute_{name}_s"] == cost["time_s"] > 0
    assert attributes["checkpoint_blocks"] == chosen["checkpoint_blocks"] != "none"
    again, again_losses, _ = run("--checkpoint-blocks", chosen["checkpoint_blocks"])
    assert again["peak_bytes"] == pytest.approx(chosen["peak_bytes"], rel=0.02)
    # whatever is computed again, the bits are the same
    assert (chosen_losses == losses).all() and (again_losses == losses).all()


def test_refusals(katt, random_model, text):
    tokens = ["--tokens", "1,2"]
    assert "--model is missing" in katt.refuses("logits", *tokens, "--out", "o.h5")
    assert "--tokens x: expected an integer" in katt.refuses("logits", "--model", TINY, "--tokens", "1,x", "--out", "o.h5")
    assert "token 257" in katt.refuses("logits", "--model", TINY, "--tokens", "257", "--out", "o.h5")
    assert "config.json: no such file" in katt.refuses("generate", "--model", "none", *tokens)
    assert "--dtype f8: unknown" in katt.refuses("generate", "--model", TINY, *tokens, "--dtype", "f8")
    assert "--top-p" in katt.refuses("generate", "--model", TINY, *tokens, "--temperature", 1, "--top-p", 2)
    assert "--tokens or --text" in katt.refuses("generate", "--model", TINY)
    arguments = ["train", "--model", random_model, "--lr", "1e-3"]
    assert "--steps is missing" in katt.refuses(*arguments, "--text", text)
    assert "--data or --text" in katt.refuses(*arguments, "--steps", 1)
    assert "one more than the --seq" in katt.refuses(*arguments, "--steps", 1, "--text", text, "--seq", 100000)
    assert "--checkpoint-blocks" in katt.refuses(*arguments, "--steps", 1, "--text", text, "--checkpoint-blocks", "7")
    assert "budget holds 1000 bytes" in katt.refuses(*arguments, "--steps", 1, "--text", text,
                                                     "--checkpoint-blocks", "budget:1000")
    assert "--schedule" in katt.refuses(*arguments, "--steps", 1, "--text", text, "--schedule", "step")
    assert "no such file" in katt.refuses(*arguments, "--steps", 1, "--text", "none.txt")
    assert "training needs" in katt.refuses(*arguments, "--steps", 1, "--text", text, "--batch", 10000000)
    assert "2^56 bytes" in katt.refuses("memory", "--model", TINY, "--batch", 16777216, "--seq", 16777216)
    assert "is not an HDF5 file" in katt.refuses(*arguments, "--steps", 1, "--data", TINY / "model.safetensors")
    run = [*arguments, "--steps", 1, "--text", text, "--seq", 16]
    (katt.folder / "folder").mkdir()
    assert "folder: is a folder" in katt.refuses(*run, "--log", "folder")
    assert "cannot be written" in katt.refuses(*run, "--out", text / "below")
    assert "exclude each other" in katt.refuses(*run, "--out", "out", "--resume", "--overwrite")
    assert "--text: is empty" in katt.refuses(*arguments, "--steps", 1, "--text", "")
    (katt.folder / "flag.toml").write_text('checkpoint = "yes"\n')
    assert "flag.toml:1: checkpoint yes: expected true or false" in katt.refuses(*run, "--config", "flag.toml")
    assert train(katt, random_model, text, 1, "--out", "out").returncode == 0
    assert "--resume to continue" in katt.refuses(*arguments, "--steps", 2, "--text", text, "--out", "out")
    assert "batch: holds 2, expected 1" in katt.refuses(*arguments, "--steps", 2, "--text", text, "--out", "out",
                                                        "--seq", 16, "--resume")


def test_hostile_checkpoints(katt, tmp_path):
    folder = tmp_path / "hostile"
    folder.mkdir()
    good = (TINY / "model.safetensors").read_bytes()
    shutil.copy(TINY / "config.json", folder)
    for name, content in {
        "cut": good[:-1],
        "long": good + b"\0",
        "header": b"\xff" * 8 + good[8:],
        "text": b"not a checkpoint",
        "empty": b"",
        "dtype": good.replace(b'"BF16"', b'"U16" ', 1),
    }.items():
        (folder / "model.safetensors").write_bytes(content)
        line = katt.refuses("logits", "--model", folder, "--tokens", "1", "--out", "o.h5")
        assert "model.safetensors" in line, (name, line)
    config = json.loads((TINY / "config.json").read_text())
    (folder / "model.safetensors").write_bytes(good)
    for change, part in [({"hidden_size": 128}, "tensor"), ({"num_hidden_layers": 4}, "is missing"),
                         ({"model_type": "gpt2"}, "model_type"), ({"rope_parameters": {"rope_type": "yarn"}}, "yarn"),
                         ({"vocab_size": 4194304, "intermediate_size": 4194304}, "tensor")]:
        (folder / "config.json").write_text(json.dumps({**config, **change}))
        assert part in katt.refuses("logits", "--model", folder, "--tokens", "1", "--out", "o.h5")


def test_a_model_beyond_the_memory_is_refused_first(katt, tmp_path):
    """Without weights a folder describes a model of any size."""
    large = {**CONFIG, "vocab_size": 32000, "hidden_size": 65536, "intermediate_size": 262144, "num_hidden_layers": 1000}
    (tmp_path / "config.json").write_text(json.dumps({**large, "num_attention_heads": 512, "num_key_value_heads": 512}))
    for command in (["logits", "--out", "out.h5"], ["generate"]):
        assert f"{tmp_path}: inference needs" in katt.refuses(*command, "--model", tmp_path, "--tokens", "1,2")
