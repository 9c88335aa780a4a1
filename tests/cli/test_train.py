"""`katt train` against PyTorch's results, its checkpoints and its options."""

import json
import shutil
import signal

import h5py
import numpy as np
import pytest
from conftest import said_by_katt
from models import log_of, train, training


@pytest.mark.parametrize("arguments", [[], ["--checkpoint"], ["--checkpoint-blocks", "cheap"]])
def test_trains_as_pytorch(katt, checkpoint, expected, arguments):
    done = katt.runs(*training(checkpoint, expected), "--log", "log.h5", *arguments)
    assert "left" in done.stderr
    log = log_of(katt.folder / "log.h5")
    np.testing.assert_allclose(log["loss"], expected["train/losses"], rtol=1e-4)
    np.testing.assert_allclose(log["grad_norm"], expected["train/grad_norms"], rtol=1e-3)
    np.testing.assert_allclose(log["lr"], expected["options"]["lr"])
    assert (log["time_s"] > 0).all()


def test_resumes_bit_for_bit(katt, random_model, text):
    train(katt, random_model, text, 6, "--out", "whole", "--log", "whole.h5")
    train(katt, random_model, text, 3, "--out", "parts")
    train(katt, random_model, text, 6, "--out", "parts", "--resume", "--log", "parts.h5")
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
    train(katt, random_model, text, 1, "--out", "out")
    out = katt.folder / "out"
    assert sorted(path.name for path in out.iterdir()) == [
        "config.json", "generation_config.json", "merges.txt", "model.safetensors", "tokenizer.json",
        "training_state.safetensors"]
    for name in ["generation_config.json", "tokenizer.json", "merges.txt"]:
        assert (out / name).read_bytes() == (random_model / name).read_bytes()
    # a run that continues from its own folder reads and keeps them
    (out / "tokenizer.json").write_text("changed")
    train(katt, "out", text, 2, "--out", "out", "--resume")
    assert (out / "tokenizer.json").read_text() == "changed"
    log = katt.refuses("train", "--model", random_model, "--text", text, "--steps", 1, "--seq", 16, "--out", "new",
                       "--log", "new/merges.txt")
    assert "is the file of" in log and not (katt.folder / "new").exists()


def test_ternary_model_trains_and_reopens(katt, random_model, text):
    train(katt, random_model, text, 8, "--ternary", 1, "--out", "out", "--log", "log.h5")
    loss = log_of(katt.folder / "log.h5")["loss"]
    assert loss[-1] < loss[0]
    config = json.loads((katt.folder / "out" / "config.json").read_text())
    assert config["quantization_config"] == {"quant_method": "bitnet", "linear_class": "autobitlinear",
                                             "quantization_mode": "online"}
    done = katt.runs("generate", "--model", "out", "--tokens", "1,2,3", "--max-new-tokens", 4, "--json")
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
    train(katt, random_model, text, 6, "--out", "whole", "--log", "whole.h5", *options)
    with h5py.File(katt.folder / "whole.h5") as file:
        scale = file["loss_scale"][...]
    assert scale[2] == 1.5 * scale[0] and scale[4] == 1.5 * scale[2]
    train(katt, random_model, text, 3, "--out", "parts", *options)
    train(katt, random_model, text, 6, "--out", "parts", "--resume", *options)
    name = "model.safetensors"
    assert (katt.folder / "whole" / name).read_bytes() == (katt.folder / "parts" / name).read_bytes()
    again = ["train", "--model", random_model, "--text", text, "--steps", 9, "--batch", 2, "--seq", 16, "--out",
             "parts", "--resume", "--dtype", "f16"]
    assert "backoff_factor: holds 0.25, expected 0.5" in katt.refuses(*again)


def test_a_loss_scale_is_continued(katt, random_model, text):
    options = ["--out", "out", "--dtype", "f16"]
    train(katt, random_model, text, 1, *options, "--loss-scale", 1.7)
    train(katt, random_model, text, 2, *options, "--loss-scale", 1.7, "--resume")
    again = ["train", "--model", random_model, "--text", text, "--steps", 9, "--batch", 2, "--seq", 16, *options,
             "--resume"]  # fmt: skip
    assert "loss_scale: holds 1.7000000476837158, expected 64 to continue" in katt.refuses(*again, "--loss-scale", 64)
    assert "loss_scaling: holds static, expected dynamic" in katt.refuses(*again)


@pytest.mark.parametrize("arguments, expected", [
    (["--growth-factor", 1], "--growth-factor 1: expected a number more than 1"),
    (["--growth-factor", 0.5], "--growth-factor 0.5: expected"),
    (["--backoff-factor", 1], "--backoff-factor 1: expected a number more than 0 and less than 1"),
    (["--backoff-factor", "half"], "--backoff-factor half: expected"),
    (["--growth-interval", 0], "--growth-interval 0: expected"),
    (["--master-dtype", "f64"], "--master-dtype f64: expected f32"),
    (["--master-dtype", "f16", "--dtype", "bf16"], "--master-dtype f16: expected f32 or bf16, that of --dtype"),
    (["--ternary", 2], "--ternary 2: expected 0 or 1"),
    (["--growth-interval", 5], "--growth-interval: expected with --loss-scale dynamic"),
    (["--min-lr", 1e-5], "--min-lr: expected with --schedule cosine"),
    (["--checkpoint", "--checkpoint-blocks", "none"], "--checkpoint-blocks none: expected without --checkpoint"),
])
def test_precision_that_is_refused(katt, random_model, text, arguments, expected):
    message = katt.refuses("train", "--model", random_model, "--text", text, "--steps", 1, "--out", "out", *arguments)
    assert expected in message
    assert not (katt.folder / "out").exists()


def test_shards_of_others_stay(katt, random_model, text):
    shard = katt.folder / "out" / "model-00001-of-00002.safetensors"
    shard.parent.mkdir()
    shutil.copy(text, shard)
    command = ["train", "--model", random_model, "--steps", 1, "--out", "out"]
    assert f"holds {shard.name}; expected" in katt.refuses(*command, "--text", text)
    assert "is the file of --text" in katt.refuses(*command, "--text", shard, "--overwrite")
    assert list(shard.parent.iterdir()) == [shard]
    katt.runs(*command, "--text", text, "--overwrite")
    assert not shard.exists(), "it was of the model that is replaced"


def test_a_run_that_learns_nothing_is_told(katt, random_model, text):
    done = katt("train", "--model", random_model, "--text", text, "--steps", 3, "--dtype", "f16", "--loss-scale", 1e9,
                "--out", "out", "--save-every", 1)
    assert done.returncode == 1 and "every step was skipped" in done.stderr and "nothing is saved" in done.stderr
    assert list((katt.folder / "out").iterdir()) == []
    for option in ("--save-every", "--save-shards"):
        assert f"{option}: needs --out" in katt.refuses("train", "--model", random_model, "--text", text, "--steps", 1,
                                                        option, 1)


def test_padding_is_not_trained(katt, random_model, text):
    """As with padding_idx of torch.nn.Embedding."""
    config = random_model / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"pad_token_id": ord("e"),
                                                                    "tie_word_embeddings": False}))
    train(katt, random_model, text, 2, "--out", "out")
    raw = (katt.folder / "out" / "model.safetensors").read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    begin, _ = json.loads(raw[8:end])["model.embed_tokens.weight"]["data_offsets"]
    width = json.loads(config.read_text())["hidden_size"]
    rows = np.frombuffer(raw, np.float32, 256 * width, end + begin).reshape(256, width)
    assert not rows[ord("e")].any() and rows[ord("t")].any()


def test_another_model_is_not_continued(katt, random_model, text):
    train(katt, random_model, text, 1, "--out", "out")
    config = random_model / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"rms_norm_eps": 1e-3}))
    line = katt.refuses("train", "--model", random_model, "--text", text, "--steps", 2, "--batch", 2, "--seq", 16,
                        "--out", "out", "--resume")
    assert "model: holds layers" in line


def test_weights_in_another_format_are_refused(katt, random_model):
    (random_model / "pytorch_model.bin").write_bytes(b"")
    line = katt.refuses("generate", "--model", random_model, "--tokens", "1,2")
    assert "holds pytorch_model.bin and no model.safetensors" in line


def test_a_token_outside_of_the_vocabulary_is_named(katt, random_model):
    with h5py.File(katt.folder / "tokens.h5", "w") as file:
        file["tokens"] = np.array([1, 5_000_000_000])
    line = katt.refuses("train", "--model", random_model, "--data", "tokens.h5", "--steps", 1)
    assert "token 1 is 5000000000, expected 0 to 255" in line


def test_sigterm_saves_and_stops(katt, random_model, text):
    process = katt.start("train", "--model", random_model, "--text", text, "--steps", 1000000, "--batch", 2,
                         "--seq", 16, "--out", "out", "--threads", 1)
    while "step " not in process.stderr.readline():  # the first one is told
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "stopped after" in stdout
    steps = int(stdout.split("stopped after ")[1].split()[0])
    assert 0 < steps < 1000000
    train(katt, random_model, text, steps + 2, "--out", "out", "--resume", "--log", "log.h5")
    assert len(log_of(katt.folder / "log.h5")["loss"]) == steps + 2


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_learns_from_random_start(katt, random_model, text, dtype):
    done = train(katt, random_model, text, 40, "--dtype", dtype, "--log", "log.h5", "--json")
    loss = log_of(katt.folder / "log.h5")["loss"]
    assert 5.3 < loss[0] < 5.8  # log 256 = 5.55
    assert loss[-1] < 3.5
    assert json.loads(done.stdout)["steps"] == 40


def test_options_from_toml(katt, random_model, text):
    (katt.folder / "train.toml").write_text(
        f'model = "{random_model}"\ntext = "{text}"\nsteps = 3\nbatch = 2\nseq = 16\nschedule = "cosine"\n'
        'lr = 1e-3\nwarmup = 2\nlog = "log.h5"\ncheckpoint = true\n')
    katt.runs("train", "--config", "train.toml", "--steps", 5)
    np.testing.assert_allclose(log_of(katt.folder / "log.h5")["lr"], [5e-4, 1e-3, 1e-3, 5e-4, 0], atol=1e-9)
    (katt.folder / "bad.toml").write_text("stepz = 3\n")
    assert "bad.toml:1: stepz" in katt.refuses("train", "--config", "bad.toml")


def test_a_budget_is_met_by_measured_costs(katt, random_model, text):
    def run(*arguments):
        done = katt.runs("train", "--model", random_model, "--text", text, "--steps", 3, "--batch", 8, "--seq", 64,
                         "--json", "--log", "log.h5", "--overwrite", *arguments)
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


def test_a_schedule_that_jumps_is_said(katt, random_model, text):
    cosine = ["--schedule", "cosine", "--out", "out"]
    train(katt, random_model, text, 4, *cosine)
    shutil.copytree(katt.folder / "out", katt.folder / "same")
    told = said_by_katt(train(katt, random_model, text, 8, *cosine, "--resume"))
    assert len(told) == 1 and "--resume: the learning rate goes from 0.00e+00 of step 4 to 1.17e-03" in told[0]
    same = train(katt, random_model, text, 4, "--schedule", "cosine", "--out", "same", "--resume")
    assert "katt: " not in same.stderr
    # while it warms up the rate is the same, and a constant one has no end that could move
    warm = ["--schedule", "cosine", "--warmup", 6, "--out", "warm"]
    train(katt, random_model, text, 2, *warm)
    assert "katt: " not in train(katt, random_model, text, 3, *warm, "--resume").stderr
    train(katt, random_model, text, 2, "--out", "constant")
    assert "katt: " not in train(katt, random_model, text, 3, "--out", "constant", "--resume").stderr
