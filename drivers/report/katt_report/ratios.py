"""Ratios of rows that were measured in the same rounds, against any variant, and the rows that a reader asks for."""

import math
from dataclasses import replace

import numpy as np

from katt_report import schema
from katt_report.commands.parser import meant
from katt_report.errors import InputError
from katt_report.load import Results
from katt_report.points import Points
from katt_report.statistics import Interval, paired_ratio
from katt_report.text import list_text

SPEEDUP = ("speedup", "speedup_lo", "speedup_hi")


def cases(points: Points) -> list[tuple]:
    """The case of every row: rows of one case share their inputs, their run and its rounds."""
    names = [*points.identity, "source", "run"]
    return points.tuples([name for name in names if name not in ("variant", *schema.TILES)])


def fastest(points: Points, which) -> dict[tuple, dict]:
    """The measured row with the least median time of each case, among those of the mask `which`."""
    found: dict[tuple, int] = {}
    keys, times = cases(points), points["time_s"]
    for index in np.flatnonzero(np.asarray(which) & (points["status"] == "ok") & (times > 0)):
        best = found.setdefault(keys[index], index)
        if times[index] < times[best]:
            found[keys[index]] = index
    return {key: points.row(index) for key, index in found.items()}


def believable(results: Results) -> Results:
    """The same without ratios to a suspect row of the baseline: a time that nobody should believe bears no ratio."""
    points, names = results.points, ("speedup", "speedup_cycles")
    doubted = points["status"] == schema.SUSPECT
    if not doubted.any():
        return results
    keys = cases(points)
    bases = {keys[index] for index in np.flatnonzero(doubted & (points["variant"] == results.baseline))}
    lost = doubted | np.array([key in bases for key in keys], bool)
    columns = {f"{name}{end}": np.where(lost, math.nan, points[f"{name}{end}"])
               for name in names for end in ("", "_lo", "_hi")}  # fmt: skip
    return replace(results, points=Points({**points.columns, **columns}))


def ratio_of(results: Results, base: dict, row: dict) -> Interval | None:
    """How many times faster `row` is than `base`: the median of the ratios round by round. None without samples."""
    pair = [results.samples_of(one) for one in (base, row)]
    return None if any(samples is None for samples in pair) else paired_ratio(*pair)


def with_baseline(results: Results, name: str) -> Results:
    """The same with the columns `speedup`, `speedup_lo` and `speedup_hi` against the variant `name`, its fastest tile.

    They are made from the samples, as katt makes those against naive. Throws InputError where no row measured
    `name`, or no other row in the same rounds.
    """
    points = results.points
    known = points.values("variant")
    if name not in known:
        raise InputError("--baseline", f"{name}{meant(name, known)}", f"a variant of the file: {', '.join(known)}")
    bases = fastest(points, points["variant"] == name)
    if not bases:
        reason = next((text for text in points.where(variant=name)["reason"] if text), "no reason given")
        raise InputError("--baseline", f"{name}, which no row measured ({reason})", "a variant that ran")
    columns = {column: np.full(len(points), math.nan) for column in SPEEDUP}
    for index, (key, row) in enumerate(zip(cases(points), points.rows(), strict=True)):
        base = bases.get(key)
        if row["status"] != "ok" or not base:
            continue
        same = all(base[column] == row[column] for column in ("variant", *schema.TILES))
        ratio = Interval(1.0, 1.0, 1.0) if same else ratio_of(results, base, row)
        for column, value in zip(SPEEDUP, (ratio.mid, ratio.lo, ratio.hi) if ratio else (), strict=False):
            columns[column][index] = value
    if not np.any(np.isfinite(columns["speedup"]) & (points["variant"] != name)):
        raise InputError("--baseline", f"{name}, beside which no samples are stored",
                         "a variant with other rows in the same rounds")  # fmt: skip
    return replace(results, points=Points({**points.columns, **columns}), baseline=name)


def against_peers(results: Results, best: Points) -> Points | None:
    """The rows of the peers with the columns `ratio`, `ratio_lo`, `ratio_hi`: how many times faster than the peer the
    fastest variant of Katt is in the same rounds, and `katt`, its name; `leads` marks the fastest peer of a case.

    None where no peer was measured beside a variant of Katt.
    """
    peer = np.isin(best["variant"], list(results.peers))
    ours = fastest(best, ~peer & (best["variant"] != schema.BASELINE))
    leading = fastest(best, peer)
    chosen, found = [], []
    for index, (key, row) in enumerate(zip(cases(best), best.rows(), strict=True)):
        if peer[index] and key in ours:
            ratio = ratio_of(results, row, ours[key])
            if ratio:
                leads = leading[key]["variant"] == row["variant"]
                chosen.append(index)
                found.append((ratio.mid, ratio.lo, ratio.hi, ours[key]["variant"], leads))
    if not found:
        return None
    names = ("ratio", "ratio_lo", "ratio_hi", "katt", "leads")
    more = {name: np.array(column) for name, column in zip(names, zip(*found, strict=True), strict=True)}
    return Points({**best.where(np.array(chosen)).columns, **more})


def only(results: Results, wanted: list[str]) -> Results:
    """The rows that `--only` asks for: each text is `COLUMN=VALUE,VALUE,COLUMN=VALUE…`, the columns are any.

    A value of a column of numbers is a number, also `4k`. Throws InputError, with the nearest name, for a column or
    a value that the file lacks, and where no row has all the values.
    """
    points = results.points
    asked: dict[str, list[str]] = {}
    for text in wanted:
        name, _, value = text.partition("=")
        if name in points and points[name].dtype.kind == "U" and value in points.values(name):  # with a comma, perhaps
            asked.setdefault(name, []).append(value)
            continue
        name = ""
        for piece in text.split(","):
            if "=" in piece:
                name, _, piece = (part.strip() for part in piece.partition("="))
                if name not in points:
                    raise InputError("--only", f"the column {name or '–'}{meant(name, list(points.columns))}",
                                     f"a column of the file: {', '.join(points.columns)}")  # fmt: skip
            elif not name:
                raise InputError("--only", piece or "nothing", "COLUMN=VALUE,…")
            asked.setdefault(name, []).append(piece.strip())
    keep = np.ones(len(points), bool)
    for name, values in asked.items():
        keep &= np.isin(points[name], [_value(points, name, value) for value in values])
    if not keep.any():
        raise InputError("--only", ",".join(wanted) + ", which no row has at once", "values of the same rows")
    return replace(results, points=points.where(keep))


def _value(points: Points, name: str, text: str):
    known = points.values(name)
    if points[name].dtype.kind == "U":
        if text in known:
            return text
    else:
        scale = {"k": 1024, "m": 1024**2}.get(text[-1:].lower(), 1)
        try:
            value = float(text[:-1] if scale > 1 else text) * scale
            if value in known:
                return value
        except ValueError:
            pass
    words = [f"{value:g}" if isinstance(value, float) else str(value) or '""' for value in known]
    shown = words if len(words) <= 12 else [*words[:11], f"… {words[-1]}"]
    raise InputError("--only", f"{name}={text}{meant(text, words)}", f"{name} of the file: {list_text(shown)}")
