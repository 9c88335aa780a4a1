"""The result files among files and folders, each with the machines of its runs."""

import math
from collections.abc import Iterable
from pathlib import Path

from katt_report import schema
from katt_report.errors import InputError
from katt_report.isolation import each_isolated, in_child
from katt_report.load import Results, about_peers, columns_of, merge
from katt_report.published.fresh import Share, SourceTree, rows_by_machine, share, source_tree


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
    """False for a sound file of another kind, and for predictions; damage is left to the reader, which names it."""
    try:
        names = in_child(path, columns_of, path)
    except InputError:
        return True
    return names is not None and schema.PREDICTED not in names


def read_each(paths: Iterable[Path], every_run: bool = False) -> list[Results]:
    """The results of every result file among or below the paths, apart; with `every_run` the rows of all runs."""
    return each_isolated(*result_files(paths), every_run=every_run)


def tree_of(named: Path | None) -> SourceTree | None:
    """The source tree that was named, else the one of this program; None where a package was installed without one."""
    try:
        return source_tree(named)
    except InputError:
        if named:
            raise
        return None


def freshness_of_machines(parts: list[Results], tree: SourceTree) -> dict[str, Share]:
    """How many rows of every machine are fresh."""
    every = merge(parts)
    return {machine: share(every, tree, indices) for machine, indices in rows_by_machine(every).items()}


def peers_of(parts: Iterable[Results]) -> set[str]:
    """The variants that are peers in any of the files."""
    return {name for part in parts for about in part.runs.values() for name in about_peers(about)}


def point_axes(parts: Iterable[Results]) -> dict[str, list[str]]:
    """The columns that name a point apart from its label, its number of threads and its backend, by operator.

    An axis that some file lacks, since it is older, is left out unless it has several values in another.
    """
    no_axis = {"op", "pass", "dtype", "variant", "label", "threads", "backend", *schema.TILES}
    found: dict[str, list[dict[str, int]]] = {}
    for part in parts:
        for op in part.points.values("op"):
            rows = part.points.where(op=op)
            found.setdefault(op, []).append({n: len(rows.values(n)) for n in rows.identity if n not in no_axis})
    names = {}
    for op, counts in found.items():
        every = dict.fromkeys(name for count in counts for name in count)
        names[op] = [n for n in every if all(n in count for count in counts) or any(c.get(n, 1) > 1 for c in counts)]
    return names


def plain_values(row: dict, names: Iterable[str]) -> tuple:
    """The values of columns, 0 for a column that the file lacks and None for NaN, which equals nothing."""
    values = (row.get(name, 0) for name in names)
    return tuple(None if isinstance(value, float) and math.isnan(value) else value for value in values)
