"""katt.Llama against the logits and the greedy continuation that transformers gave (tests/cases/llama_tiny)."""

import json
import random
import shutil
import warnings

import h5py
import numpy
import pytest
from conftest import ROOT, TINY

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
    assert isinstance(logits, numpy.ndarray) and logits.dtype == numpy.float32 and logits.flags.writeable
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
    tokenizer.enable_truncation(2)  # of a training's batches, not of a prompt
    tokenizer.enable_padding(length=8)
    for file in TINY.iterdir():
        (tmp_path / file.name).symlink_to(file)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    texts = katt.Llama(tmp_path)
    new = texts.generate("w1 w2 w3", 6, stop_at_eos=False)
    ids = [1, 2, 3, *model.generate([1, 2, 3], 6, stop_at_eos=False)]
    assert "w1 w2 w3" + new == " ".join(f"w{token}" for token in ids)
    assert "".join(texts.stream("w1 w2 w3", 6, stop_at_eos=False)) == new


TEXTS = ["Gravity is", " a force.", "naïve café", "漢字 と 😀", "  two  spaces ", "\n\tx", " ", "a"]


def metaspace_of_llama_2(tokenizers, words):
    """Spaces are ▁, one is put before a text and taken off again; bytes stand for what the vocabulary lacks."""
    vocabulary = {
        token: at for at, token in enumerate(["<unk>", "<s>", "▁", *(f"<0x{byte:02X}>" for byte in range(256)), *words])
    }
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
    )
    decoders = tokenizers.decoders
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def metaspace(tokenizers, words):
    tokenizer = metaspace_of_llama_2(tokenizers, words)
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    tokenizer.decoder = tokenizers.decoders.Sequence(
        [tokenizers.decoders.ByteFallback(), tokenizers.decoders.Metaspace()]
    )
    return tokenizer


def byte_level(tokenizers, words):
    """The spaces and bytes of GPT-2 and LLaMA 3."""
    level = tokenizers.pre_tokenizers.ByteLevel
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({c: at for at, c in enumerate(level.alphabet())}, []))
    tokenizer.pre_tokenizer = level(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return tokenizer


@pytest.mark.parametrize("make", [metaspace_of_llama_2, metaspace, byte_level])
def test_new_text_follows_the_prompt(make):
    """The generated text is the text of prompt and new tokens without the prompt's, and the pieces
    of a stream add up to it."""
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = make(tokenizers, [*"Gravityisforce.ntwopaxb"])
    if make is not byte_level:
        tokenizer.add_special_tokens(["<s>"])
    llama = katt.Llama.__new__(katt.Llama)  # without a model
    llama._tokenizer = tokenizer
    draw = random.Random(5)
    for _ in range(300):
        prompt = tokenizer.encode("".join(draw.choices(TEXTS, k=draw.randint(1, 3)))).ids
        new = [token for text in draw.choices(TEXTS, k=draw.randint(1, 4)) for token in tokenizer.encode(text).ids]
        if make is not byte_level and draw.random() < 0.3:
            new.insert(draw.randint(0, len(new)), tokenizer.token_to_id("<s>"))
            if tokenizer.decode(prompt + new).count("\N{REPLACEMENT CHARACTER}"):
                continue  # it stands within a character
        whole, before = tokenizer.decode(prompt + new), tokenizer.decode(prompt)
        assert whole.startswith(before)
        pieces = list(llama._pieces(prompt, iter(new)))
        assert "".join(pieces) == whole[len(before) :], (prompt, new)
        assert all(pieces) and not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


def test_a_tokenizer_beside_the_tree():
    file = ROOT.parent / "shared" / "faults" / "tokenizer_metaspace" / "tokenizer.json"
    if not file.exists():
        pytest.skip("no ../shared/faults/tokenizer_metaspace")
    llama = katt.Llama.__new__(katt.Llama)
    llama._tokenizer = pytest.importorskip("tokenizers").Tokenizer.from_file(str(file))
    prompt, new = (
        [llama.tokenizer.token_to_id(token) for token in tokens]
        for tokens in [["▁Gravity", "▁is"], ["▁a", "▁force", "."]]
    )
    assert list(llama._pieces(prompt, new)) == [" a", " force", "."]


def copied(folder, **changes):
    """The tiny model's weights with another config.json."""
    shutil.copy(TINY / "model.safetensors", folder)
    config = json.loads((TINY / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


def test_ends_at_every_eos(model, tmp_path):
    endless = model.generate([1, 2, 3], 12, stop_at_eos=False)
    ends = [min({*range(256)} - {*endless}), endless[5]]  # the first never comes
    of_list = katt.Llama(copied(tmp_path, eos_token_id=ends))
    expected = endless[: next(at for at, token in enumerate(endless) if token in ends) + 1]
    assert of_list.eos_token_ids == ends
    assert of_list.generate([1, 2, 3], 12) == list(of_list.stream([1, 2, 3], 12)) == expected
    assert of_list.generate([1, 2, 3], 12, stop_at_eos=False) == endless
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": endless[2]}))
    assert (
        katt.Llama(copied(tmp_path, eos_token_id=None)).generate([1, 2, 3], 12)
        == endless[: endless.index(endless[2]) + 1]
    )


def test_logits_that_are_not_finite(tmp_path):
    """Weights that f16 cannot hold the products of, and bf16 can."""
    copied(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "initializer_range": 1e3}))
    with pytest.warns(UserWarning, match="parameters are random"):
        narrow = katt.Llama(tmp_path, dtype="f16")
    for use in [narrow.generate, narrow.logits, lambda ids: list(narrow.stream(ids, temperature=1.0))]:
        with pytest.raises(RuntimeError, match="the logits are not finite at position [0-2]: .*f16 overflows"):
            use([1, 2, 3])


def test_what_is_read_is_said(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        katt.Llama(TINY)
    copied(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.warns(UserWarning, match="holds model.safetensors and model.safetensors.index.json; the first is read"):
        katt.Llama(tmp_path)


def test_a_tokenizer_that_is_none(tmp_path):
    pytest.importorskip("tokenizers")
    (copied(tmp_path) / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="tokenizer.json: holds no tokenizer"):
        katt.Llama(tmp_path).generate("hello")


def test_refusals(model, tmp_path):
    with pytest.raises(ValueError, match="config.json"):
        katt.Llama(tmp_path)
    with pytest.raises(ValueError, match="tokenizer.json: no such file, expected a tokenizer"):
        model.generate("hello")
    with pytest.raises(ValueError, match="prompt: is empty"):
        model.generate([])
    with pytest.raises(ValueError, match="logits: ids: is empty"):
        model.logits([])
    with pytest.raises(ValueError, match="max_new_tokens: holds 0"):
        model.generate([1], 0)
    with pytest.raises(ValueError, match="dtype f64: unknown"):
        katt.Llama(TINY, dtype="f64")
    with pytest.raises(ValueError, match="token 1000000: expected 0 to 256"):
        model.generate([10**6], 1)
    for call in (model.logits, model.generate):
        with pytest.raises(ValueError, match="token ids: 'float' object cannot be interpreted as an integer"):
            call([1, 2.5])
        with pytest.raises(ValueError, match="token ids: holds a number of 71 bits, expected ids of the vocabulary"):
            call([1, 2**70])


NO_NATURALS = [-1, 0.5, "a", None, 2**70]
NO_REALS = ["0.5", None, 1j, [0.5], 10**400]
WRONG = {"max_new_tokens": [0, *NO_NATURALS], "chunk": [0, *NO_NATURALS], "top_k": NO_NATURALS, "seed": NO_NATURALS,
         "temperature": [-1.0, *NO_REALS], "top_p": [0.0, 2.0, *NO_REALS]}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_wrong_numbers_are_one_line(model, name, value):
    for call in (model.generate, model.stream):
        with pytest.raises(ValueError, match=name.replace("top_", "top[_-]") + ": holds .*, expected ") as error:
            call([1], **{name: value})
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(("arguments", "words"), [
    ({"seed": -1}, "Llama: seed: holds -1, expected an integer of at least 0"),
    ({"seed": 2**64}, f"Llama: seed: holds {2**64}, expected at most {2**64 - 1}"),
    ({"seed": 0.5}, "Llama: seed: holds 0.5, expected an integer"), ({"threads": None}, "Llama: threads: holds None"),
    ({"threads": 2**31}, "Llama: threads: holds "), ({"dtype": None}, "dtype None: unknown"),
    ({"dtype": 3}, "dtype 3: unknown; expected f32, f16, bf16"),
])  # fmt: skip
def test_a_model_is_made_of_right_numbers(arguments, words):
    with pytest.raises(ValueError, match=words) as error:
        katt.Llama(TINY, **arguments)
    assert "\n" not in str(error.value)


def test_numbers_of_numpy_are_numbers(model):
    new = model.generate([1, 2], numpy.int64(3), top_k=numpy.int32(5), temperature=numpy.float32(0.5), seed=2**64 - 1)
    assert 1 <= len(new) <= 3
