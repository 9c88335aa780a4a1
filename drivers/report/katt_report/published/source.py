"""One published file, of whatever kind, as facts about its making and a table of rows."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

import h5py
import numpy as np

from katt_report import schema
from katt_report.errors import InputError
from katt_report.isolation import isolated
from katt_report.load import Results, about_peers, bounded, merge, opened, plain, read, text_of
from katt_report.published.machine import fault, machine_name
from katt_report.ratios import believable, ratio_of
from katt_report.statistics import Interval

DATA = (".h5", ".json")
"""Endings of the files of results."""
KIND = "a result file of katt sweep, of a model's runs, or JSON"


@dataclass
class Source:
    """`about` says machine, device, commit and date; `rows` are the measured ones (status ok).

    `results`, and the names of the `peers`, are those of a sweep. `code` of another file are the files of the project
    that it names, path → hash of the tokens.
    """

    path: Path
    about: dict[str, str]
    rows: list[dict]
    summary: list[dict]
    results: Results | None = None
    peers: tuple[str, ...] = ()
    code: dict[str, str] = field(default_factory=dict)

    def point_of(self, row: dict) -> tuple:
        """The same for all variants and tiles that were measured in the same rounds."""
        return tuple(row[name] for name in self._point)

    def ratio(self, row: dict, other: str) -> Interval:
        """Time of `other` over the time of `row`, round by round: a variant at the same point, with its fastest tile, or
        NAME=VALUE,…, the row's variant at a point that the sweep has paired with this one."""
        theirs = self._paired(row, other) if "=" in other else self.fastest.get((other, self.point_of(row)))
        found = ratio_of(self.results, theirs, row) if theirs else None
        return found or Interval(math.nan, math.nan, math.nan)

    def _paired(self, row: dict, to: str) -> dict | None:
        """The row of the same variant at the point with other values of paired axes."""
        try:
            values = dict(part.split("=", 1) for part in to.split(","))
            moved = {name: type(row[name])(value) for name, value in values.items()}
        except ValueError:  # no value of its column
            return None
        theirs = self.fastest.get((row["variant"], self.point_of(row | moved)))
        axes = {part.partition("=")[0] for held in (row, theirs or {}) for part in held.get("paired_to", "").split(",")}
        return theirs if set(values) <= axes else None

    @cached_property
    def _point(self) -> list[str]:
        axes = [name for name in self.results.points.identity if name not in ("variant", *schema.TILES)]
        return [*axes, "source", "run"]

    @cached_property
    def fastest(self) -> dict[tuple, dict]:
        """By variant and point the row with the fastest tile."""
        slowest_first = sorted(self.rows, key=lambda row: -row["time_s"])
        return {(row["variant"], self.point_of(row)): row for row in slowest_first}


@cache
def open_source(path: Path) -> Source:
    """Reads a file once; throws InputError for one that is none of ours."""
    if path.suffix == ".json":
        return _json(path)
    held = isolated(path, path.name, _read)
    return _sweep(path, held) if isinstance(held, Results) else held


def _read(path: Path, name: str) -> Results | Source:
    runs = opened(path, KIND, lambda file: None if "points" in file else _runs(file, path))
    return runs or merge([read(path, name)])


def _sweep(path: Path, results: Results) -> Source:
    results = believable(results)
    rows = list(results.points.ok.rows())
    ran = {row["run"] for row in rows} or {run for _, run in results.runs}
    runs = [about for (_, run), about in results.runs.items() if run in ran]
    statuses = results.points["status"].tolist()
    others = [f"{statuses.count(name)} {name}" for name in (schema.SKIPPED, *schema.WRONG) if name in statuses]
    about = {
        **_about_runs(runs, "started_at"),
        "command": _joined(str(run.get("command", "")) for run in runs),
        "rows": ", ".join([f"{statuses.count('ok')} rows", *others]),
    }
    peers = dict.fromkeys(name for run in runs for name in about_peers(run))
    return Source(path, about, rows, [], results, tuple(peers))


def _runs(file: h5py.File, path: Path) -> Source:
    """A file of experiments/model_runs.py: columns as datasets; or a log of katt train: the same, one row a step."""
    held = {name: plain(value) for name, value in file.attrs.items()}
    if "log" in held:
        _check_machine(path, held)
        about = _about_runs([held], "finished_at")
    else:
        machine, build = (json.loads(held.get(name, "{}")) for name in ("machine", "build"))
        about = _about(path, machine, build, str(held.get("date", ""))) | {"command": str(held.get("command", ""))}
    summary = file.get("summary")
    summary = _table(summary) if isinstance(summary, h5py.Group) else []
    return Source(path, about, _table(file), summary, code=_code(json.loads(held.get("code", "{}"))))


def _json(path: Path) -> Source:
    try:
        held = json.loads(text_of(path, KIND))
    except (ValueError, RecursionError) as error:
        raise InputError(path, f"no JSON ({error})", KIND) from error
    if not isinstance(held, dict):
        raise InputError(path, f"a {type(held).__name__}", "a JSON object")
    for name, kind in (("machine", dict), ("build", dict), ("code", dict), ("date", str), ("command", str)):
        if not isinstance(held.get(name, kind()), kind):
            raise InputError(path, f"{name} that is a {type(held[name]).__name__}", f"a {kind.__name__}")
    code, listed = _code(held.pop("code", {})), held.get("rows")
    if isinstance(listed, list) and not all(isinstance(row, dict) for row in listed):
        raise InputError(path, "rows that are no JSON objects", "rows of names and values")
    rows = [_flat(row) for row in listed] if isinstance(listed, list) else [_flat(held)]
    build = held.get("build", {"commit": held.get("commit", "")})
    about = _about(path, held.get("machine", {}), build, held.get("date", "")) | {"command": held.get("command", "")}
    return Source(path, about, rows, [], code=code)


def _about_runs(runs: list[dict], date: str) -> dict[str, str]:
    """The attributes of runs; `date` names the one with the time. Logs before version 1 name no machine."""
    told = [run for run in runs if "cpu_id" in run or "isa" in run]
    return {
        "machine": _joined(machine_name(run) for run in told),
        "device": _joined(f"{run.get('device', '')}, {run.get('cores', '?')} cores" for run in told),
        "commit": _joined(_commit(run.get("commit", ""), run.get("dirty")) for run in runs),
        "date": _joined(sorted(str(run.get(date, ""))[:10] for run in runs)),
    }


def _check_machine(path: Path, machine: dict) -> None:
    if wrong := fault(machine):
        raise InputError(path, f"a machine with {wrong[0]}", wrong[1])


def _about(path: Path, machine: dict, build: dict, date: str) -> dict[str, str]:
    _check_machine(path, machine)
    return {
        "machine": machine_name(machine) if machine else "",
        "device": f"{machine.get('cpu', '')}, {machine.get('cores', '?')} cores" if machine else "",
        "commit": _commit(build.get("commit", ""), build.get("dirty")),
        "date": date[:10],
    }


def _commit(commit, dirty) -> str:
    return str(commit)[:7] + (", modified" if dirty else "")


def _code(held) -> dict[str, str]:
    """Empty where a foreign file holds anything else."""
    return {str(path): str(tokens) for path, tokens in held.items()} if isinstance(held, dict) else {}


def _joined(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(text for text in texts if text))


def _table(group: h5py.Group) -> list[dict]:
    data = {name: item for name, item in group.items() if _is_column(item)}
    columns = {name: [plain(value) for value in bounded(item)[()].tolist()] for name, item in data.items()}
    if len({len(column) for column in columns.values()}) > 1:
        raise InputError(group.file.filename, "columns of different lengths", KIND)
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _is_column(item) -> bool:
    return isinstance(item, h5py.Dataset) and item.ndim == 1 and item.dtype.names is None


def _flat(value: dict, before: str = "") -> dict:
    """Members of members as a.b; a list of numbers as its median."""
    found = {}
    for name, item in value.items():
        if isinstance(item, dict):
            found |= _flat(item, f"{before}{name}.")
        elif isinstance(item, list):
            if item and all(isinstance(number, int | float) for number in item):
                found[before + name] = float(np.median(item))
        else:
            found[before + name] = item
    return found
