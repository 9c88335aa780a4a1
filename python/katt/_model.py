"""LLaMAs."""

from __future__ import annotations

import json
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy

from . import _katt
from ._arrays import natural, real


def token_ids(ids: Iterable[int]) -> list[int]:
    """Ids as whole numbers; ValueError for anything else."""
    try:
        numbers = [operator.index(token) for token in ids]
    except TypeError as error:
        raise ValueError(f"token ids: {error}, expected integers") from None
    for token in numbers:
        if abs(token) >= 2**63:
            raise ValueError(f"token ids: holds a number of {token.bit_length()} bits, expected ids of the vocabulary")
    return numbers


class Llama:
    """A LLaMA of Hugging Face's format: a folder with config.json and model.safetensors, or its
    shards when that is missing, or with config.json alone (random weights of `seed`, with a
    UserWarning).

    dtype: "f32", "f16" or "bf16", of weights and activations. threads: 0 for katt.get_num_threads().
    Texts need a tokenizer.json in the folder and the package tokenizers. Every method raises RuntimeError where the
    logits are not finite: a weight is not, or f16 overflows.
    """

    def __init__(self, folder: str | Path, *, dtype: str = "f32", threads: int = 0, seed: int = 0):
        self.folder = Path(folder)
        seed = natural("Llama", "seed", seed, limit=2**64)
        threads = natural("Llama", "threads", threads, limit=2**31)
        self._model = _katt.Model(str(folder), str(dtype), seed, threads)
        self.config: dict = json.loads(self._model.config_json)
        if self._model.note:
            warnings.warn(self._model.note, stacklevel=2)
        self._tokenizer = None

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return self._model.bytes

    @property
    def eos_token_ids(self) -> list[int]:
        """Ids at which a text ends: eos_token_id of config.json and of generation_config.json, one or a list."""
        return self._model.eos_token_ids

    @property
    def tokenizer(self):
        """The tokenizers.Tokenizer of the folder; ValueError when there is none."""
        if self._tokenizer is None:
            file = self.folder / "tokenizer.json"
            if not file.exists():
                raise ValueError(f"{file}: no such file, expected a tokenizer; pass token ids instead of a text")
            try:
                from tokenizers import Tokenizer
            except ImportError:
                raise ValueError(
                    "the package tokenizers is missing, which texts need: pip install tokenizers, or pass token ids"
                ) from None
            try:
                self._tokenizer = Tokenizer.from_file(str(file))
                self._tokenizer.no_truncation()  # the file may hold the lengths of a training's batches
                self._tokenizer.no_padding()
            except Exception as error:  # the package has no class of its own for it
                raise ValueError(f"{file}: holds no tokenizer: {error}") from None
        return self._tokenizer

    def __repr__(self) -> str:
        layers, hidden, vocab = (self.config.get(name) for name in ("num_hidden_layers", "hidden_size", "vocab_size"))
        return f"Llama({str(self.folder)!r}: {layers} layers, hidden {hidden}, vocabulary {vocab}, {self.nbytes} bytes)"

    def logits(self, ids: Sequence[int]) -> numpy.ndarray:
        """Logits (len(ids), vocab_size) float32 of every position of a text of token ids."""
        return self._model.logits(token_ids(ids))

    def generate(
        self,
        prompt: str | Sequence[int],
        max_new_tokens: int = 32,
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        stop_at_eos: bool = True,
        chunk: int = 512,
        on_token: Callable[[int], None] | None = None,
    ) -> str | list[int]:
        """Continues a prompt: the new text of a text, so that prompt + text reads on, and the new ids of token ids.

        prompt: a text, or token ids. max_new_tokens: the most that are generated.
        temperature, top_k, top_p, seed, stop_at_eos, chunk: as in `stream`.
        on_token: called with every new id as soon as it is known.
        """
        ids = self._ids(prompt)
        new = []
        for token in self._tokens(ids, max_new_tokens, temperature, top_k, top_p, seed, stop_at_eos, chunk):
            new.append(token)
            if on_token:
                on_token(token)
        return "".join(self._pieces(ids, new)) if isinstance(prompt, str) else new

    def stream(
        self,
        prompt: str | Sequence[int],
        max_new_tokens: int = 32,
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        stop_at_eos: bool = True,
        chunk: int = 512,
    ) -> Iterator[str] | Iterator[int]:
        """Yields the result of `generate` piece by piece, as soon as it is known.

        prompt: a text, or token ids. max_new_tokens: the most that are generated.
        temperature: 0 takes the most likely token; else samples from the logits divided by it.
        top_k, top_p: of the top_k most likely tokens (0: all), and of the fewest that hold the probability top_p.
        seed: the same one gives the same text.
        stop_at_eos: ends after one of eos_token_ids; a model that names none makes max_new_tokens.
        chunk: tokens of the prompt taken at a time.
        """
        ids = self._ids(prompt)
        tokens = self._tokens(ids, max_new_tokens, temperature, top_k, top_p, seed, stop_at_eos, chunk)
        return self._pieces(ids, tokens) if isinstance(prompt, str) else tokens

    def _ids(self, prompt) -> list[int]:
        ids = self.tokenizer.encode(prompt).ids if isinstance(prompt, str) else token_ids(prompt)
        if not ids:
            raise ValueError("prompt: is empty, expected at least one token")
        return ids

    def _tokens(self, ids, max_new_tokens, temperature, top_k, top_p, seed, stop_at_eos, chunk) -> Iterator[int]:
        max_new_tokens = natural("generate", "max_new_tokens", max_new_tokens, 1)
        ends = self.eos_token_ids if stop_at_eos else []
        sequence = _katt.Sequence(
            self._model,
            capacity=len(ids) + max_new_tokens,
            chunk=natural("generate", "chunk", chunk, 1),
            temperature=real("generate", "temperature", temperature),
            top_k=natural("generate", "top_k", top_k),
            top_p=real("generate", "top_p", top_p),
            seed=natural("generate", "seed", seed, limit=2**64),
        )

        def tokens():
            token = sequence.append(ids)
            yield token
            for _ in range(max_new_tokens - 1):
                if token in ends:
                    return
                token = sequence.append([token])
                yield token

        return tokens()

    def _pieces(self, prompt: list[int], tokens: Iterable[int]) -> Iterator[str]:
        """Texts of the tokens that follow a prompt. A piece ends with a whole character, and is the
        text that the tokens add to the text of earlier ones: alone, they might lose their first
        space. The tokens of the piece before suffice."""
        before, fresh = prompt, []
        shown = self.tokenizer.decode(before)
        for token in tokens:
            fresh.append(token)
            text = self.tokenizer.decode(before + fresh)
            if len(text) > len(shown) and not text.endswith("\N{REPLACEMENT CHARACTER}"):
                yield text[len(shown) :]
                before, fresh = fresh, []
                shown = self.tokenizer.decode(before)
        rest = self.tokenizer.decode(before + fresh)[len(shown) :]
        if rest:
            yield rest
