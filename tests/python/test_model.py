"""katt.Llama against the logits and the greedy continuation that transformers gave (tests/cases/llama_tiny)."""

import h5py
import numpy
import pytest
from conftest import TINY

katt = pytest.importorskip("katt")


@pytest.fixture(scope="module")
def expected():
    with h5py.File(TINY / "expected.h5") as file:
        return {name: file[name][()] for name in file if isinstance(file[name], h5py.Dataset)}


@pytest.fixture(scope="module")
def model():
    return katt.Llama(TINY)


def test_logits(model, expected):
    logits = model.logits(expected["prompt"].ravel())
    assert numpy.abs(logits - expected["logits"].reshape(logits.shape)).max() < 1e-4
    assert model.nbytes > 0 and model.config["model_type"] == "llama"


def test_it_says_what_it_is(model):
    assert repr(model) == f"Llama({str(TINY)!r}: 2 layers, hidden 48, vocabulary 257, {model.nbytes} bytes)"


def test_greedy_continuation(model, expected):
    prompt = expected["prompt"].ravel()
    new = expected["greedy"]
    seen = []
    found = model.generate(prompt, len(new), stop_at_eos=False, on_token=seen.append)
    assert found == new.tolist() == seen
    assert list(model.stream(prompt, len(new), stop_at_eos=False)) == found


def test_sampling_is_of_the_seed(model):
    one, two, other = (
        model.generate([1, 2, 3], 20, temperature=1.0, seed=seed, stop_at_eos=False) for seed in (5, 5, 6)
    )
    assert one == two != other


def test_texts(tmp_path, model):
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {f"w{n}": n for n in range(model.config["vocab_size"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    for file in TINY.iterdir():
        (tmp_path / file.name).symlink_to(file)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    texts = katt.Llama(tmp_path)
    new = texts.generate("w1 w2 w3", 6, stop_at_eos=False)
    assert new == " ".join(f"w{token}" for token in model.generate([1, 2, 3], 6, stop_at_eos=False))
    assert "".join(texts.stream("w1 w2 w3", 6, stop_at_eos=False)) == new


def test_refusals(model, tmp_path):
    with pytest.raises(ValueError, match="config.json"):
        katt.Llama(tmp_path)
    with pytest.raises(ValueError, match="tokenizer.json: no such file, expected a tokenizer"):
        model.generate("hello")
    with pytest.raises(ValueError, match="prompt: is empty"):
        model.generate([])
    with pytest.raises(ValueError, match="max_new_tokens: holds 0"):
        model.generate([1], 0)
    with pytest.raises(ValueError, match="dtype f64: unknown"):
        katt.Llama(TINY, dtype="f64")
    with pytest.raises(ValueError, match="token 1000000: expected 0 to 256"):
        model.generate([10**6], 1)
