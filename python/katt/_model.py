"""LLaMAs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy

from . import _katt


class Llama:
    """A LLaMA of Hugging Face's format: a folder with config.json and model.safetensors or its shards, or with
    config.json alone (random weights of `seed`).

    dtype: "f32", "f16" or "bf16", of weights and activations. threads: 0 for katt.get_num_threads().
    Texts need a tokenizer.json in the folder and the package tokenizers.
    """

    def __init__(self, folder: str | Path, *, dtype: str = "f32", threads: int = 0, seed: int = 0):
        self.folder = Path(folder)
        self._model = _katt.Model(str(folder), dtype, seed, threads)
        self.config: dict = json.loads(self._model.config_json)
        self._tokenizer = None

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return self._model.bytes

    @property
    def tokenizer(self):
        """The tokenizers.Tokenizer of the folder; ValueError where there is none."""
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
            self._tokenizer = Tokenizer.from_file(str(file))
        return self._tokenizer

    def __repr__(self) -> str:
        layers, hidden, vocab = (self.config.get(name) for name in ("num_hidden_layers", "hidden_size", "vocab_size"))
        return f"Llama({str(self.folder)!r}: {layers} layers, hidden {hidden}, vocabulary {vocab}, {self.nbytes} bytes)"

    def logits(self, ids: Sequence[int]) -> numpy.ndarray:
        """Logits (len(ids), vocab_size) float32 of every position of a text of token ids."""
        flat = numpy.array(self._model.logits([int(token) for token in ids]), numpy.float32)
        return flat.reshape(len(ids), self._model.vocab_size)

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
        """Continues a prompt: the new text of a text, the new ids of token ids. Arguments as in `stream`; on_token
        is called with every new id as soon as it is known."""
        ids = []
        for token in self._tokens(prompt, max_new_tokens, temperature, top_k, top_p, seed, stop_at_eos, chunk):
            ids.append(token)
            if on_token:
                on_token(token)
        return self.tokenizer.decode(ids) if isinstance(prompt, str) else ids

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
        """Yields what `generate` returns piece by piece, as soon as it is known.

        temperature: 0 takes the most likely token; else samples from the logits divided by it, of the top_k most
        likely tokens (0: all) and of the fewest that hold the probability top_p. The same seed gives the same text.
        chunk: tokens of the prompt taken at a time.
        """
        tokens = self._tokens(prompt, max_new_tokens, temperature, top_k, top_p, seed, stop_at_eos, chunk)
        return self._pieces(tokens) if isinstance(prompt, str) else tokens

    def _tokens(self, prompt, max_new_tokens, temperature, top_k, top_p, seed, stop_at_eos, chunk) -> Iterator[int]:
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens: holds {max_new_tokens}, expected at least 1")
        ids = self.tokenizer.encode(prompt).ids if isinstance(prompt, str) else [int(token) for token in prompt]
        if not ids:
            raise ValueError("prompt: is empty, expected at least one token")
        capacity = len(ids) + max_new_tokens
        sequence = _katt.Sequence(self._model, capacity, chunk, temperature, top_k, top_p, seed)

        def tokens():
            token = sequence.append(ids)
            yield token
            for _ in range(max_new_tokens - 1):
                if stop_at_eos and token == self._model.eos_token_id:
                    return
                token = sequence.append([token])
                yield token

        return tokens()

    def _pieces(self, tokens: Iterator[int]) -> Iterator[str]:
        """Texts of tokens: a piece ends where the text of all so far ends in whole characters."""
        ids, shown = [], ""
        for token in tokens:
            ids.append(token)
            text = self.tokenizer.decode(ids)
            if not text.endswith("\N{REPLACEMENT CHARACTER}"):
                yield text[len(shown) :]
                shown = text
        rest = self.tokenizer.decode(ids)[len(shown) :]
        if rest:
            yield rest
