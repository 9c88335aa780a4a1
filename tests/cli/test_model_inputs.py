"""Inputs of the commands that read models: options, checkpoints and which file of a checkpoint is read."""

import json
import os
import shutil

import pytest
from conftest import TINY
from models import CONFIG, last_ids, random_tensors, train, write_safetensors


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
    (katt.folder / "flag.toml").write_text('seq = 16\nout = ""\n')
    assert "flag.toml:2: out: is empty, expected a value" in katt.refuses(*run, "--config", "flag.toml")
    train(katt, random_model, text, 1, "--out", "out")
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
    assert "random" not in train(katt, random_model, text, 3, "--out", "out", "--resume").stderr
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
