"""Kernels of yours as candidates of a sweep (docs/candidates.md): the options of `katt sweep` for them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from shlex import quote

import katt_peers


def get_include() -> Path:
    """The folder to compile a candidate with: `cc -I` and this finds katt/candidate.h."""
    return Path(__file__).with_name("include")


def candidate_options(candidates: Mapping[str, str | Path] | Iterable[str | Path], folder: Path) -> list[str]:
    """The options for files by name, or files that give their own names. Files of Python run in this Python, by a
    program that is written to the folder."""
    if isinstance(candidates, (str, Path)):
        candidates = [candidates]
    wrong = ValueError(f"candidates: holds {candidates!r}, expected paths by name, or a list of paths")
    if not isinstance(candidates, Iterable):
        raise wrong
    names = list(candidates)
    paths = list(candidates.values()) if isinstance(candidates, Mapping) else names
    if not all(isinstance(path, (str, os.PathLike)) for path in paths):
        raise wrong
    texts = [os.fspath(path) for path in paths]
    if paths is not names:
        texts = [f"{name}={text}" for name, text in zip(names, texts, strict=True)]
    if not texts:
        return []
    options = ["--candidate", ",".join(texts)]
    if any(text.endswith(".py") for text in texts):
        program = folder / "candidate"
        peers = Path(katt_peers.__file__).parents[1]
        program.write_text(
            f"#!/bin/sh\nPYTHONPATH={quote(str(peers))}\nexport PYTHONPATH\n"
            f'exec {quote(sys.executable)} -m katt_peers.candidate "$@"\n'
        )
        program.chmod(0o755)
        options += ["--candidate-program", str(program)]
    return options
