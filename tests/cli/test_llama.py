"""`katt logits`, `generate`, `train` and `memory` on a Hugging Face checkpoint with PyTorch's results."""

import json
import os
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


def test_a_warm_up_changes_no_token(katt):
    command = ("generate", "--model", TINY, "--tokens", "1,2,3", "--max-new-tokens", 6, "--temperature", 1.5, "--seed", 3)
    assert last_ids(katt(*command, "--warm-up", 2)) == last_ids(katt(*command))
    (katt.folder / "prompts.txt").write_text("1,2,3\n")
    assert "--warm-up: expected without --prompts" in katt.refuses(
        "generate", "--model", TINY, "--prompts", "prompts.txt", "--warm-up", 1)  # fmt: skip


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


def test_a_trained_model_keeps_its_tokenizer(katt, random_model, text):
    """And the tokens that end a text: generation_config.json alone names them here."""
    end = {"eos_token_id": [3, 5]}
    (random_model / "generation_config.json").write_text(json.dumps(end))
    (random_model / "tokenizer.json").write_bytes(bytes(range(256)))
    (random_model / "merges.txt").write_bytes(b"")
    (random_model / "notes.txt").write_text("not of a model")
    done = train(katt, random_model, text, 1, "--out", "out")
    assert done.returncode == 0, done.stderr
    out = katt.folder / "out"
    assert sorted(path.name for path in out.iterdir()) == [
        "config.json", "generation_config.json", "merges.txt", "model.safetensors", "tokenizer.json",
        "training_state.safetensors"]
    for name in ["generation_config.json", "tokenizer.json", "merges.txt"]:
        assert (out / name).read_bytes() == (random_model / name).read_bytes()
    # a run that continues from its own folder reads and keeps them
    (out / "tokenizer.json").write_text("changed")
    assert train(katt, "out", text, 2, "--out", "out", "--resume").returncode == 0
    assert (out / "tokenizer.json").read_text() == "changed"
    log = katt.refuses("train", "--model", random_model, "--text", text, "--steps", 1, "--seq", 16, "--out", "new",
                       "--log", "new/merges.txt")
    assert "is the file of" in log and not (katt.folder / "new").exists()


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
                    "--log", "log.h5", "--overwrite", *arguments)
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


def shapes_of(config):
    """Names and shapes of a checkpoint's tensors."""
    hidden, kv = config["hidden_size"], config["hidden_size"] // config["num_attention_heads"] * config[
        "num_key_value_heads"]
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,),
              "lm_head.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        for name, rows, columns in [("q", hidden, hidden), ("k", kv, hidden), ("v", kv, hidden), ("o", hidden, hidden)]:
            shapes[f"model.layers.{layer}.self_attn.{name}_proj.weight"] = (rows, columns)
        for name, rows, columns in [("gate", config["intermediate_size"], hidden),
                                    ("up", config["intermediate_size"], hidden),
                                    ("down", hidden, config["intermediate_size"])]:
            shapes[f"model.layers.{layer}.mlp.{name}_proj.weight"] = (rows, columns)
        for name in ["input_layernorm", "post_attention_layernorm"]:
            shapes[f"model.layers.{layer}.{name}.weight"] = (hidden,)
    return shapes


def random_tensors(seed=0):
    generator = np.random.default_rng(seed)
    return {name: generator.normal(0, 0.2, shape).astype(np.float32) if len(shape) == 2 else np.ones(shape, np.float32)
            for name, shape in shapes_of(CONFIG).items()}


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(map(np.ndarray.tobytes, tensors.values())))


@pytest.fixture
def model(tmp_path):
    """Writes a model's folder from tensors."""
    def write(tensors, **changes):
        folder = tmp_path / "model"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
        write_safetensors(folder / "model.safetensors", tensors)
        return folder

    return write


def test_stops_at_every_end(katt, model):
    folder = model(random_tensors())
    (katt.folder / "prompts.txt").write_text("1,2,3\n7,7\n9\n")
    options = ["generate", "--model", folder, "--max-new-tokens", 12, "--json"]
    ways = [["--tokens", "1,2,3"], ["--tokens", "1,2,3", "--temperature", 1, "--seed", 4], ["--prompts", "prompts.txt"]]

    def made(way, *more):
        done = katt(*options, *way, *more)
        assert done.returncode == 0, done.stderr
        tokens = json.loads(done.stdout)["tokens"]
        return (tokens if "--prompts" in way else [tokens]), done.stderr

    endless = [made(way)[0] for way in ways]
    greedy = endless[0][0]
    for way, unbroken, config, generation in [(ways[0], endless[0], [greedy[7], 255, greedy[4]], None),
                                              (ways[1], endless[1], endless[1][0][3], []),
                                              (ways[2], endless[2], None, greedy[4]),
                                              (ways[2], endless[2], greedy[6], [greedy[4], endless[2][1][5]])]:
        model(random_tensors(), eos_token_id=config)
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
        ends = {token for ids in (config, generation) for token in (ids if isinstance(ids, list) else [ids])}
        expected = []
        for tokens in unbroken:
            last = next((at for at, token in enumerate(tokens) if token in ends), len(tokens))
            expected.append(tokens[:last + 1])
        assert made(way, "--stop-at-eos") == (expected, ""), (config, generation, way)
        assert expected != unbroken
    (folder / "generation_config.json").unlink()
    for none in [[], 256]:  # the last is outside of the vocabulary
        model(random_tensors(), eos_token_id=none)
        tokens, said = made(ways[0], "--stop-at-eos")
        assert tokens == endless[0]
        assert said == (f"katt: --stop-at-eos: {folder} names no eos_token_id of its vocabulary: all --max-new-tokens "
                        "are made\n")
    model(random_tensors(), eos_token_id=["</s>"])
    assert 'config.json: eos_token_id: holds ["</s>"], expected a token id, a list of them or null' in katt.refuses(
        *options, *ways[0])


NOT_FINITE = "the logits are not finite at position"


def ends_not_finite(done):
    """The one line with which the program ends; checks status 1."""
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert done.stdout == "" and len(done.stderr.splitlines()) == 1, (done.stdout, done.stderr)
    return done.stderr


def test_logits_that_are_not_finite(katt, model):
    tensors = random_tensors()
    tensors["model.embed_tokens.weight"][9] = np.nan
    folder = model(tensors)
    generate = ["generate", "--model", folder, "--max-new-tokens", 2]
    for how in [[], ["--temperature", 1], ["--no-cache"], ["--dtype", "bf16"]]:
        assert f"katt: {NOT_FINITE} 3: a weight" in ends_not_finite(katt(*generate, "--tokens", "1,2,3,9", *how))
    assert katt(*generate, "--tokens", "1,2,3,4").returncode == 0
    (katt.folder / "prompts.txt").write_text("1,2\n3\n4,9,5\n")
    for how in [[], ["--temperature", 1, "--batch", 1]]:
        done = katt(*generate, "--prompts", "prompts.txt", "--out", "out.h5", *how)
        assert f"prompts.txt:3: {NOT_FINITE} 2: " in ends_not_finite(done)
    done = katt("logits", "--model", folder, "--tokens", "1,2,9,3", "--out", "out.h5")
    assert NOT_FINITE in ends_not_finite(done)  # a masked key that is NaN reaches the positions before it
    assert not (katt.folder / "out.h5").exists()
    tensors["model.embed_tokens.weight"][9] = 1
    tensors["model.layers.1.mlp.down_proj.weight"] *= 1e9  # f32 and bf16 hold it
    model(tensors)
    assert "f16 overflows" in ends_not_finite(katt(*generate, "--tokens", "1,2,9", "--dtype", "f16"))
    assert katt(*generate, "--tokens", "1,2,9").returncode == 0
    assert katt(*generate, "--tokens", "1,2,9", "--dtype", "bf16").returncode == 0


def test_a_file_comes_before_an_index(katt, model):
    """As transformers has it; a line says which is read."""
    options = ["--tokens", "1,2,3", "--max-new-tokens", 6]

    def made(folder):
        done = katt("generate", "--model", folder, *options)
        return last_ids(done), done.stderr

    other = random_tensors(seed=1)
    folder = model(other)
    shards = list(other)[:5], list(other)[5:]
    of_other = made(folder)
    (folder / "model.safetensors").unlink()
    for at, names in enumerate(shards):
        write_safetensors(folder / f"model-0000{at + 1}-of-00002.safetensors", {name: other[name] for name in names})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {
        name: f"model-0000{at + 1}-of-00002.safetensors" for at, names in enumerate(shards) for name in names}}))
    assert made(folder) == of_other and of_other[1] == ""
    model(random_tensors())
    tokens, said = made(folder)
    assert tokens != of_other[0]
    assert said == (f"katt: {folder}: holds model.safetensors and model.safetensors.index.json; the first is read, as "
                    "transformers does, and the shards are not\n")
    (folder / "model.safetensors.index.json").unlink()
    assert made(folder) == (tokens, "")


def test_random_parameters_are_said(katt, random_model, text):
    said = f"katt: parameters are random: {random_model} has no model.safetensors\n"
    assert katt("generate", "--model", random_model, "--tokens", "1", "--max-new-tokens", 1).stderr == said
    assert katt("logits", "--model", random_model, "--tokens", "1", "--out", "out.h5").stderr == said
    assert katt("memory", "--model", random_model, "--seq", 16, "--measure").stderr == said
    assert said in train(katt, random_model, text, 2, "--out", "out").stderr
    resumed = train(katt, random_model, text, 3, "--out", "out", "--resume")
    assert resumed.returncode == 0 and "random" not in resumed.stderr
    assert "random" not in train(katt, "out", text, 1).stderr
    assert katt("generate", "--model", "out", "--tokens", "1", "--max-new-tokens", 1).stderr == ""


@pytest.mark.parametrize("kind", ["fifo", "/dev/zero"])
def test_inputs_are_regular_files(katt, model, text, kind):
    """Nothing waits for a writer, and nothing reads what has no end."""
    folder = model(random_tensors())
    place = katt.folder / "odd.toml"
    os.mkfifo(place) if kind == "fifo" else place.symlink_to(kind)
    generate = ["generate", "--model", folder, "--tokens", "1", "--max-new-tokens", 1]
    train_it = ["train", "--model", folder, "--steps", 1, "--seq", 8]
    for command in [["generate", "--model", folder, "--prompts", "odd.toml"], [*train_it, "--text", "odd.toml"],
                    [*train_it, "--data", "odd.toml"], [*train_it, "--text", text, "--config", "odd.toml"],
                    ["sweep", "odd.toml", "-o", "out.h5"],
                    ["sweep", "attention", "--tile", "auto", "--tuning", "odd.toml", "-o", "out.h5"],
                    ["run", "softmax", "--in", "odd.toml", "--out", "out.h5"], ["merge", "odd.toml", "-o", "out.h5"]]:
        assert "odd.toml: is not a regular file" in katt.refuses(*command)
    for name in ["generation_config.json", "config.json", "model.safetensors", "model.safetensors.index.json"]:
        (folder / name).unlink(missing_ok=True)
        place.rename(folder / name)
        assert f"{name}: is not a regular file" in katt.refuses(*generate)
        (folder / name).rename(place)
        (folder / "config.json").write_text(json.dumps(CONFIG))


def test_a_schedule_that_jumps_is_said(katt, random_model, text):
    cosine = ["--schedule", "cosine", "--out", "out"]
    assert train(katt, random_model, text, 4, *cosine).returncode == 0
    shutil.copytree(katt.folder / "out", katt.folder / "same")
    longer = train(katt, random_model, text, 8, *cosine, "--resume")
    assert longer.returncode == 0
    told = [line for line in longer.stderr.splitlines() if line.startswith("katt: ")]
    assert len(told) == 1 and "--resume: the learning rate goes from 0.00e+00 of step 4 to 1.17e-03" in told[0]
    same = train(katt, random_model, text, 4, "--schedule", "cosine", "--out", "same", "--resume")
    assert same.returncode == 0 and "katt: " not in same.stderr
    # while it warms up the rate is the same, and a constant one has no end that could move
    warm = ["--schedule", "cosine", "--warmup", 6, "--out", "warm"]
    assert train(katt, random_model, text, 2, *warm).returncode == 0
    assert "katt: " not in train(katt, random_model, text, 3, *warm, "--resume").stderr
    assert train(katt, random_model, text, 2, "--out", "constant").returncode == 0
    assert "katt: " not in train(katt, random_model, text, 3, "--out", "constant", "--resume").stderr


def test_a_text_is_for_python(katt, random_model):
    for arguments in [["--prompt", "Hello"], ["--model", TINY, "--prompt", "Hello"], ["--model", TINY, "--text", "Hi"]]:
        line = katt.refuses("generate", *arguments)
        assert "katt has no tokenizer: --tokens takes ids, and katt.Llama in Python takes a text" in line
    assert "--prompt " not in katt("generate", "--help").stdout
