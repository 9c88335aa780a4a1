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
    if isinstance(candidates, Mapping):
        texts = [f"{name}={os.fspath(path)}" for name, path in candidates.items()]
    else:
        texts = [os.fspath(path) for path in candidates]
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
