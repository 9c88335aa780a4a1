"""Reads result files: this module checks everything once, so that later code can trust the data."""

import json
import math
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import h5py
import numpy as np

from katt_report import schema
from katt_report.errors import InputError
from katt_report.points import Points, concatenate
from katt_report.published.machine import fault
from katt_report.text import printable, seconds_text

# A result file of a year of sweeps is a few megabytes; more than this is a damaged size field.
_LARGEST_DATASET_BYTES = 1 << 30
# No time, rate or ratio is larger, or smaller but 0; figures and quotients of others overflow.
_LARGEST_NUMBER, _SMALLEST_NUMBER = 1e30, 1e-30
# Files once held the results of these engines under the name of the variant that chose among them.
_ENGINES = ("amx", "avx512_bf16", "cublaslt")
_VARIANTS_OF_ENGINES = {("attention", "flash"): "flash_{}", ("linear", "fused"): "{}"}


@dataclass(frozen=True)
class Ceiling:
    """One measured limit of the machine; `unit` is "FLOP/s" or "B/s", `bytes` the working set."""

    name: str
    value: float
    unit: str
    threads: int
    bytes: int
    source: str
    run: str


@dataclass(frozen=True)
class Part:
    """A region or kernel of a profile; one of depth 1 is part of the nearest one of depth 0 before it.

    `flops` and `bytes` are 0 when nobody counted, `ceiling` is the nearest measured limit.
    """

    name: str
    depth: int
    calls: float
    time_s: float
    flops: float = 0.0
    bytes: float = 0.0
    ceiling: str = ""
    ceiling_fraction: float = math.nan


@dataclass(frozen=True)
class Profile:
    """The time of a run by regions and kernels: the mean of `runs` profiled runs."""

    runs: int
    time_s: float
    parts: list[Part]

    @property
    def outermost(self) -> list[Part]:
        """The time that no other part holds."""
        return [part for part in self.parts if part.depth == 0]

    def inside(self, outer: Part) -> list[Part]:
        """The parts that a part of depth 0 holds directly; none of one that took no time."""
        return [part for part in self._below(outer) if part.depth == 1 and outer.time_s > 0]

    def phase(self, outer: Part) -> "Profile":
        """The inside of a part of depth 0, as a profile of its own."""
        return Profile(self.runs, outer.time_s, [replace(part, depth=part.depth - 1) for part in self._below(outer)])

    def _below(self, outer: Part) -> list[Part]:
        after = self.parts[self.parts.index(outer) + 1 :]
        end = next((index for index, part in enumerate(after) if part.depth == 0), len(after))
        return after[:end]


def about_peers(about: Mapping) -> dict[str, str]:
    """The peers that a run names, each with its library; none in an older file, or for a damaged text."""
    try:
        named = json.loads(str(about.get("peers") or "{}")).items()
    except (ValueError, AttributeError, RecursionError):
        return {}
    return {printable(str(name)): printable(str(library)) for name, library in named}


@dataclass(frozen=True)
class Results:
    """The contents of one result file or several.

    `points` holds the last row of every point, with the column `source` (the file's name, and the
    machine's when a file holds runs of several: rows of different machines are different
    measurements); `samples` maps (source, run, point) to seconds, `runs` maps (source, run) to the
    provenance, `profiles` maps (source, run, point) to the profile of a row, if it has one; `code` maps the values of
    the column `code` to the project's files that they name, each with the hash of its tokens. `baseline`
    is the variant that the columns `speedup` refer to. `cycles` maps as `samples` does, to the cycles of each sample
    where they were counted.
    """

    points: Points
    samples: dict[tuple[str, str, str], np.ndarray] = field(default_factory=dict)
    runs: dict[tuple[str, str], dict] = field(default_factory=dict)
    ceilings: list[Ceiling] = field(default_factory=list)
    replaced: int = 0
    profiles: dict[tuple[str, str, str], Profile] = field(default_factory=dict)
    code: dict[str, dict[str, str]] = field(default_factory=dict)
    baseline: str = schema.BASELINE
    cycles: dict[tuple[str, str, str], np.ndarray] = field(default_factory=dict)

    @property
    def peers(self) -> dict[str, str]:
        """The variants that are other programs, with the name and version of each: `torch_flash`, `torch 2.15.0`."""
        return {name: what for about in self.runs.values() for name, what in about_peers(about).items()}

    @property
    def frame(self):
        """The points as a pandas.DataFrame, with texts as texts: `frame[frame.status == "ok"]` are
        the measured rows."""
        import pandas

        return pandas.DataFrame(dict(self.points.columns))

    def samples_of(self, row: dict) -> np.ndarray | None:
        """The times of one row in seconds, or None if the file has none."""
        return self.samples.get((row["source"], row["run"], row["point"]))

    def cycles_of(self, row: dict) -> np.ndarray | None:
        """The cycles of one row, one a round, or None if nobody counted them."""
        return self.cycles.get((row["source"], row["run"], row["point"]))

    def machine_of(self, source: str, run: str) -> str:
        """The machine of a run: `AMD EPYC 9654 (96 cores)`; empty when the file does not say."""
        return _machine(self.runs.get((source, run), {}))


def load(*paths) -> Results:
    """Reads result files into one `Results`; throws InputError for a file that is not a result
    file."""
    paths = [Path(path) for path in paths]
    return merge([read(path, name) for path, name in zip(paths, short_names(paths), strict=True)])


def merge(parts: list[Results]) -> Results:
    """One `Results` of several files, without the rows that a later one of the same file replaces."""
    merged = concatenate([part.points for part in parts])
    # The same point in two files is two measurements; only within a file does a later row replace one.
    latest = merged.latest(extra=("source",))
    return Results(
        latest,
        {key: value for part in parts for key, value in part.samples.items()},
        {key: value for part in parts for key, value in part.runs.items()},
        [ceiling for part in parts for ceiling in part.ceilings],
        sum(part.replaced for part in parts) + len(merged) - len(latest),
        {key: value for part in parts for key, value in part.profiles.items()},
        {key: value for part in parts for key, value in part.code.items()},
        cycles={key: value for part in parts for key, value in part.cycles.items()},
    )


def short_names(paths: list[Path]) -> list[str]:
    """Short distinct file names: the bare name, else the path, numbered if given twice."""
    names = [path.name for path in paths]
    if len(set(names)) < len(names):
        names = [str(path) for path in paths]
    if len(set(names)) < len(names):
        names = [f"{name} ({index})" for index, name in enumerate(names, 1)]
    return [printable(name) for name in names]


def read(path: Path, source: str, with_samples: bool = True) -> Results:
    """One file with every row kept; `source` names it in the results. Its samples and cycles take most of the time."""
    kind = f"a Katt result file (HDF5, schema {schema.SCHEMA})"
    return opened(path, kind, lambda file: _read(file, path, source, with_samples))


def columns_of(path: Path) -> tuple[str, ...] | None:
    """The columns of /points; None in a sound file of another kind."""

    def names(file: h5py.File):
        dtype = getattr(file.get("points"), "dtype", None)
        return None if dtype is None else dtype.names or ()

    return opened(path, "a result file", names)


def _check_is_file(path: Path, kind: str) -> None:
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(path, "nothing (no such file)", kind) from None
    except OSError as error:
        raise InputError(path, f"nothing that can be read ({error.strerror})", kind) from error
    if stat.S_ISDIR(mode):
        raise InputError(path, "a folder", kind)
    if not stat.S_ISREG(mode):  # reading a FIFO would wait
        raise InputError(path, "a device or a FIFO", kind)


def text_of(path: Path, kind: str) -> str:
    """The text of a file in UTF-8. Throws InputError where there is none; `kind` names the expected kind."""
    _check_is_file(path, kind)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(path, f"no text ({error})", kind) from error


def moment(text) -> datetime | None:
    """The time that an attribute of a run says, in UTC; None where it says none."""
    try:
        return datetime.fromisoformat(str(text)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def opened(path: Path, kind: str, use):
    """The result of `use` on an HDF5 file; damage becomes an InputError. `kind` names the expected
    kind."""
    _check_is_file(path, kind)
    try:
        if not h5py.is_hdf5(path):
            raise InputError(path, f"no HDF5 data ({path.stat().st_size} bytes of something else)", kind)
        with h5py.File(path, "r") as file:
            return use(file)
    # h5py reports damage below the top level as any of these, from whichever call meets it first.
    except (OSError, RuntimeError, LookupError, ArithmeticError, ValueError, TypeError, AttributeError,
            MemoryError) as error:  # fmt: skip
        raise InputError(path, f"damaged or truncated HDF5 ({error})", kind) from error


def _read(file: h5py.File, path: Path, source: str, with_samples: bool) -> Results:
    version = plain(file.attrs.get("schema"))
    if version != schema.SCHEMA:
        holds = "no attribute schema" if version is None else f"schema {version!r}"
        raise InputError(path, holds, f"schema {schema.SCHEMA}")
    points = _read_points(file, path)
    points.columns["source"] = np.full(len(points), source)
    _doubt(points)
    samples, cycles = (
        {
            (source, run, plain(point)): _numbers(data)
            for run, group in (_groups(file, name) if with_samples else ())
            for point, data in group.items()
            if isinstance(data, h5py.Dataset)
        }
        for name in ("samples", "cycles")
    )
    runs = {
        (source, run): {plain(name): plain(value) for name, value in group.attrs.items()}
        for run, group in _groups(file, "runs")
    }
    for (_, run), about in runs.items():
        if wrong := fault(about):
            raise InputError(path, f"/runs/{run} with {wrong[0]}", wrong[1])
    ceilings = [
        Ceiling(
            plain(row["name"]),
            float(measured(row["value"])),
            plain(row["unit"]),
            int(row["threads"]),
            int(row["bytes"]),
            source,
            run,
        )
        for run, data in _items(file, "ceilings")
        if isinstance(data, h5py.Dataset)
        for row in bounded(data)[()]
    ]
    profiles = {
        (source, run, plain(point)): read_profile(bounded(data))
        for run, group in _groups(file, "profile")
        for point, data in group.items()
        if isinstance(data, h5py.Dataset)
    }
    code = {
        digest: {str(plain(row["file"])): str(plain(row["tokens"])) for row in bounded(data)[()]}
        for digest, data in _items(file, "code")
        if isinstance(data, h5py.Dataset)
    }
    return _apart(Results(points, samples, runs, ceilings, profiles=profiles, code=code, cycles=cycles))


def _doubt(points: Points) -> None:
    """Makes rows suspect whose peer says that it took a quarter longer. In files from before 1.0.0 a sweep could take too
    much off a peer's time for the transport."""
    more = (points["status"] == schema.OK) & (points["claimed_s"] > 1.25 * points["time_s"])
    if more.any():
        said = [f"its clock says {seconds_text(claimed)} a run" for claimed in points["claimed_s"].tolist()]
        points.columns["status"] = np.where(more, schema.SUSPECT, points["status"])
        points.columns["reason"] = np.where(more, said, points["reason"])


def _machine(about: dict) -> str:
    device = str(about.get("device", ""))
    return f"{device} ({about['cores']} cores)" if device and about.get("cores") else device


def _apart(results: Results) -> Results:
    """The same with the machine in the source of every row, when the file's runs come from
    several."""
    ran = set(results.points.tuples(["source", "run"]))
    if len({_machine(about) for key, about in results.runs.items() if key in ran}) < 2:
        return results

    def renamed(key: tuple) -> tuple:
        return (f"{key[0]}, {results.machine_of(*key[:2]) or 'unknown machine'}", *key[1:])

    names = [renamed(key)[0] for key in results.points.tuples(["source", "run"])]
    results.points.columns["source"] = np.array(names, dtype=np.str_)
    return Results(
        results.points,
        {renamed(key): value for key, value in results.samples.items()},
        {renamed(key): value for key, value in results.runs.items()},
        [replace(ceiling, source=renamed((ceiling.source, ceiling.run))[0]) for ceiling in results.ceilings],
        profiles={renamed(key): value for key, value in results.profiles.items()},
        code=results.code,
        cycles={renamed(key): value for key, value in results.cycles.items()},
    )


def read_profile(data: h5py.Dataset) -> Profile:
    """A profile in the form of result files and logs; earlier versions count no work."""
    known = set(data.dtype.names or ())

    def checked(row, name: str) -> float:
        value = float(row[name])
        if not 0 <= value <= _LARGEST_NUMBER:
            raise InputError(data.file.filename, f"{data.name} with {name} {value:g}", "a number from 0")
        return value

    def number(row, name: str, missing: float) -> float:
        value = float(row[name]) if name in known else missing
        return value if abs(value) <= _LARGEST_NUMBER else missing

    parts = [
        Part(
            plain(row["name"]),
            int(checked(row, "depth")),
            checked(row, "calls"),
            checked(row, "time_s"),
            number(row, "flops", 0.0),
            number(row, "bytes", 0.0),
            plain(row["ceiling"]) if "ceiling" in known else "",
            number(row, "ceiling_fraction", math.nan),
        )
        for row in data[()]
    ]
    whole = checked(data.attrs, "time_s")
    if whole < _SMALLEST_NUMBER:
        raise InputError(data.file.filename, f"{data.name} of 0 seconds", "the time of a run")
    return Profile(int(data.attrs["runs"]), whole, parts)


def _read_points(file: h5py.File, path: Path) -> Points:
    data = file.get("points")
    if not isinstance(data, h5py.Dataset):
        holds = "no dataset /points" if data is None else "a group named /points"
        raise InputError(path, holds, "the table /points")
    if data.dtype.names is None or data.ndim != 1:
        raise InputError(path, f"/points of type {data.dtype} and rank {data.ndim}", "a flat compound table")
    missing = [name for name in schema.REQUIRED if name not in data.dtype.names]
    if missing:
        raise InputError(
            path,
            f"/points without the column{'s'[: len(missing) > 1]} {', '.join(missing)}",
            f"all columns of schema {schema.SCHEMA}",
        )
    if data.shape[0] == 0:
        raise InputError(path, "0 rows in /points", "at least one point")
    table = bounded(data)[()]
    columns = {}
    for name in table.dtype.names:
        column = table[name]
        known = {**schema.REQUIRED, **schema.OPTIONAL}.get(name)
        if column.ndim != 1 or not schema.accepts(name, column.dtype.kind):
            raise InputError(path, f"column {name} of type {column.dtype}", f"a column of type {known or 'scalar'}")
        plainly = _plain_column(column, known)
        columns[name] = plainly if schema.is_identity(name) else measured(plainly, _is_upper_end(name))
        if columns[name] is plainly and plainly.dtype.kind == "f" and not np.all(np.isfinite(plainly)):
            raise InputError(
                path, f"column {name} with {plainly[~np.isfinite(plainly)][0]}", "finite values of an axis"
            )
    for name, kind in schema.OPTIONAL.items():
        columns.setdefault(name, np.full(len(table), schema.default(kind)))
    # Files once held 0 for unmeasured memory: of other programs, and of rows that did not run.
    unknown = columns["total_bytes"] == 0
    for name in schema.MEMORY:
        columns[name] = np.where(unknown, np.nan, columns[name])
    columns["speedup"] = np.where(columns["speedup"] > 0, columns["speedup"], np.nan)
    # A file without the requested tile: take the one that ran.
    ran = [f"{q}x{kv}" if q or kv else "auto" for q, kv in zip(columns["tile_q"], columns["tile_kv"], strict=True)]
    columns["tile"] = np.where(columns["tile"] == "", ran, columns["tile"])
    columns["variant"] = np.array([
        _VARIANTS_OF_ENGINES.get((op, variant), variant).format(engine) if engine in _ENGINES else variant
        for op, variant, engine in zip(columns["op"], columns["variant"], columns["engine"], strict=True)
    ], dtype=np.str_)  # fmt: skip
    return Points(columns)


def _plain_column(column: np.ndarray, known: str | None) -> np.ndarray:
    if column.dtype.kind in "SOU":
        values, places = (column, ...) if column.dtype.kind == "O" else np.unique(column, return_inverse=True)
        return np.array([printable(str(plain(value))) for value in values.tolist()], dtype=np.str_)[places]
    if column.dtype.kind == "f" or known == schema.REAL:
        return column.astype(np.float64)
    return column.astype(np.int64)


def _is_upper_end(name: str) -> bool:
    return name.removesuffix("_s").endswith("_hi")


def measured(values: np.ndarray, is_upper_end: bool = False) -> np.ndarray:
    """Measured numbers, NaN or 0 in place of what no measurement gives; texts and whole numbers as they are.

    The upper end of an interval may be infinite: one sample has no bound.
    """
    values = np.asarray(values)
    if values.dtype.kind != "f":
        return values
    values = np.where(np.abs(values) < _SMALLEST_NUMBER, 0.0, values.astype(np.float64))
    beyond = np.where(np.isnan(values), math.nan, math.inf) if is_upper_end else math.nan
    return np.where(np.abs(values) <= _LARGEST_NUMBER, values, beyond)


def _items(file: h5py.File, name: str) -> list[tuple]:
    group = file.get(name)
    return [(plain(key), value) for key, value in group.items()] if isinstance(group, h5py.Group) else []


def _groups(file: h5py.File, name: str) -> list[tuple]:
    return [(key, value) for key, value in _items(file, name) if isinstance(value, h5py.Group)]


def _numbers(data: h5py.Dataset) -> np.ndarray:
    if data.dtype.kind not in "iuf":
        raise InputError(data.file.filename, f"{data.name} of type {data.dtype}", "numbers")
    return measured(bounded(data)[()].ravel())


def bounded(data: h5py.Dataset) -> h5py.Dataset:
    """The dataset; throws InputError where its values would take all memory."""
    if data.size * data.dtype.itemsize > _LARGEST_DATASET_BYTES:
        raise InputError(data.file.filename, f"{data.name} of {data.size} elements", "at most 1 GiB a dataset")
    return data


def plain(value):
    """An HDF5 value as a plain Python one: bytes become printable text, NumPy scalars become numbers."""
    if isinstance(value, np.ndarray):
        return plain(value.item()) if value.size == 1 else [plain(item) for item in value.tolist()]
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str):  # h5py decodes bytes that are not UTF-8 as surrogates
        return printable(value, keep="\t\n")
    return value.item() if isinstance(value, np.generic) else value
