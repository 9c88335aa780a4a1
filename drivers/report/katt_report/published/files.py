"""The result files among files and folders, each with the machines of its runs."""

import json
from collections.abc import Iterable
from pathlib import Path

import h5py

from katt_report.errors import InputError
from katt_report.isolation import each_isolated
from katt_report.load import Results, merge
from katt_report.published.fresh import Share, SourceTree, share
from katt_report.published.machine import machine_name


def result_files(paths: Iterable[Path]) -> list[Path]:
    """The named files and, below the named folders, every result file of a sweep: logs and files of model runs, which
    hold no rows of operators, are passed over there. Each file once, sorted within its folder."""
    found: dict[Path, None] = {}
    for path in paths:
        below = [file for file in sorted(path.rglob("*.h5")) if _is_sweep(file)] if path.is_dir() else [path]
        if not below:
            raise InputError(path, "no result file", "result files of katt sweep (NAME.h5)")
        found |= dict.fromkeys(below)
    return list(found)


def _is_sweep(path: Path) -> bool:
    """False for a sound file of another kind; damage is left to the reader, which names it."""
    try:
        with h5py.File(path, "r") as file:
            return "points" in file
    except (OSError, RuntimeError):
        return True


def read_each(paths: Iterable[Path]) -> list[Results]:
    """The results of every result file among or below the paths, apart."""
    return each_isolated(*result_files(paths))


def machine_of(results: Results, row: dict) -> str:
    """The name of the machine that measured a row; a run on host and device is the backend's that the row has."""
    about = results.runs.get((row["source"], row["run"]), {})
    return machine_name({**about, "backend": row["backend"]})


def freshness_of_machines(parts: list[Results], tree: SourceTree) -> dict[str, Share]:
    """How many rows of every machine are fresh."""
    every = merge(parts)
    rows: dict[str, list[int]] = {}
    for index, row in enumerate(every.points.rows()):
        rows.setdefault(machine_of(every, row), []).append(index)
    return {machine: share(every, tree, indices) for machine, indices in rows.items()}


def peers_of(parts: Iterable[Results]) -> set[str]:
    """The variants that are peers in any of the files."""
    return {name for part in parts for about in part.runs.values() for name in about_peers(about)}


def about_peers(about: dict) -> dict[str, str]:
    """The peers that a run names, each with its library."""
    try:
        named = json.loads(str(about.get("peers") or "{}"))
    except ValueError:
        return {}
    return {str(name): str(library) for name, library in named.items()} if isinstance(named, dict) else {}
