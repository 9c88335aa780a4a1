"""`katt logits`, `generate` and `memory` on a Hugging Face checkpoint with PyTorch's results."""

import json

import h5py
import numpy as np
import pytest
from conftest import TINY
from models import ids, last_ids, random_tensors


def test_logits(katt, checkpoint, expected):
    done = katt.runs("logits", "--model", checkpoint, "--tokens", ids(expected["prompt"]), "--out", "out.h5", "--json")
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
    done = katt.runs("generate", "--prompts", "prompts.txt", "--out", "new.h5", *options)
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
    katt.runs("generate", *options, "--max-new-tokens", 2)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("arguments", [[], ["--checkpoint"]])
def test_memory_forecast(katt, dtype, arguments):
    done = katt.runs("memory", "--model", TINY, "--batch", 4, "--seq", 128, "--dtype", dtype, "--measure", "--json",
                     *arguments)
    for use in json.loads(done.stdout).values():
        assert use["total_bytes"] == pytest.approx(use["measured_bytes"], rel=0.1)


def test_checkpointing_saves_memory(katt):
    def activations(*arguments):
        done = katt("memory", "--model", TINY, "--batch", 8, "--seq", 512, "--json", *arguments)
        return json.loads(done.stdout)["training"]["activations_bytes"]

    assert activations("--checkpoint") < activations("--checkpoint-blocks", "cheap") < activations()


def test_stops_at_every_end(katt, model):
    folder = model(random_tensors())
    (katt.folder / "prompts.txt").write_text("1,2,3\n7,7\n9\n")
    options = ["generate", "--model", folder, "--max-new-tokens", 12, "--json"]
    ways = [["--tokens", "1,2,3"], ["--tokens", "1,2,3", "--temperature", 1, "--seed", 4], ["--prompts", "prompts.txt"]]

    def made(way, *more):
        done = katt.runs(*options, *way, *more)
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


def test_tells_of_a_text_beyond_the_positions(katt, model):
    folder = model(random_tensors(), max_position_embeddings=16)
    for tokens, said in [(13, ""), (14, "katt: a text of up to 17 tokens, more than the 16 of max_position_embeddings "
                                        "in the model's config.json\n")]:
        done = katt.runs("generate", "--model", folder, "--tokens", "1,2,3", "--max-new-tokens", tokens, "--json")
        assert done.stderr == said


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
    katt.runs(*generate, "--tokens", "1,2,3,4")
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
    katt.runs(*generate, "--tokens", "1,2,9")
    katt.runs(*generate, "--tokens", "1,2,9", "--dtype", "bf16")


def test_a_text_is_for_python(katt, random_model):
    for arguments in [["--prompt", "Hello"], ["--model", TINY, "--prompt", "Hello"], ["--model", TINY, "--text", "Hi"]]:
        line = katt.refuses("generate", *arguments)
        assert "katt has no tokenizer: --tokens takes ids, and katt.Llama in Python takes a text" in line
    assert "--prompt " not in katt("generate", "--help").stdout
