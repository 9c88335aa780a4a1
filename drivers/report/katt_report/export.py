"""The rows of result files and logs, and recorded profiles, in forms that other programs read."""

import csv
import io
import json
import math

import numpy as np

from katt_report.errors import InputError
from katt_report.load import Profile, Results
from katt_report.logs import Log


def table_of(results: Results) -> dict[str, np.ndarray]:
    """Every column of the rows, those of the exchange and of later versions included, and `source`, the file's name."""
    return dict(results.points.columns)


def table_of_logs(logs: list[Log]) -> dict[str, np.ndarray]:
    """A row a step: `source`, `step` from 1, and every column of the logs; NaN where a log lacks one."""
    lengths = [max((len(column) for column in log.columns.values()), default=0) for log in logs]
    names = dict.fromkeys(name for log in logs for name in log.columns)

    def values(log: Log, name: str, length: int) -> np.ndarray:
        held = log.columns.get(name, np.zeros(0))
        return np.concatenate([held.astype(np.float64), np.full(length - len(held), math.nan)])

    if not sum(lengths):
        raise InputError(", ".join(log.name for log in logs), "no steps", "a log of katt train")
    together = list(zip(logs, lengths, strict=True))
    return {
        "source": np.concatenate([np.full(length, log.name) for log, length in together]),
        "step": np.concatenate([np.arange(1, length + 1) for length in lengths]),
        **{name: np.concatenate([values(log, name, length) for log, length in together]) for name in names},
    }


def as_csv(table: dict[str, np.ndarray]) -> bytes:
    """A header and a line a row; numbers to the last digit, an empty cell for NaN (RFC 4180, but with LF)."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    for row in zip(*(column.tolist() for column in table.values()), strict=True):
        writer.writerow(["" if isinstance(value, float) and math.isnan(value) else value for value in row])
    return text.getvalue().encode()


def as_json(table: dict[str, np.ndarray]) -> bytes:
    """An array with an object a row, each on a line; null for NaN and for what is infinite."""
    lines = [
        json.dumps(dict(zip(table, map(finite, row), strict=True)), allow_nan=False, ensure_ascii=False)
        for row in zip(*(column.tolist() for column in table.values()), strict=True)
    ]
    return ("[\n" + ",\n".join(lines) + "\n]\n").encode()


def finite(value):
    """The value as JSON can hold it: null in place of a number that does not exist, within dicts and lists, too."""
    if isinstance(value, dict):
        return {name: finite(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_parquet(table: dict[str, np.ndarray]) -> bytes:
    """A Parquet file with text, int64 and float64 columns; NaN stays NaN. InputError without pyarrow."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError("--parquet", "no package pyarrow in this Python", "pip install pyarrow") from None
    file = io.BytesIO()
    parquet.write_table(pyarrow.table({name: pyarrow.array(column) for name, column in table.items()}), file)
    return file.getvalue()


def as_trace(profiles: list[tuple[str, str, Profile]]) -> bytes:
    """Profiles (track, name of the whole, profile) in the Trace Event Format of Chrome, for Perfetto and
    chrome://tracing.

    A profile holds sums, not moments: each part is one event as long as all its calls in a run together, and the
    parts of one depth follow each other in the order of the table. Times are in microseconds. Format:
    https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
    """
    events = [{"name": "process_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": "katt"}}]
    for track, (title, name, profile) in enumerate(profiles, 1):
        events.append({"name": "thread_name", "ph": "M", "pid": 1, "tid": track, "args": {"name": title}})
        events.append({"name": "thread_sort_index", "ph": "M", "pid": 1, "tid": track, "args": {"sort_index": track}})
        events += _events(name, profile, track)
    trace = {"displayTimeUnit": "ms", "traceEvents": events}
    return (json.dumps(trace, allow_nan=False, ensure_ascii=False) + "\n").encode()


def _events(name: str, profile: Profile, track: int) -> list[dict]:
    whole = 1e6 * profile.time_s
    events = [_event(name, "run", 0.0, whole, track, {"runs": profile.runs})]
    # Per depth: where the next part begins, and where the part around it ends.
    begins, ends = [0.0], [whole]
    for part in profile.parts:
        depth = min(part.depth, len(begins) - 1)
        del begins[depth + 1 :], ends[depth + 1 :]
        begin = begins[depth]
        # The clock of an inner part may read a little more than that of the part around it.
        end = min(begin + 1e6 * part.time_s, ends[depth])
        about = {"calls": part.calls, "time_s": part.time_s}
        if part.flops > 0:
            about |= {"flops": part.flops, "bytes": part.bytes}
        if part.ceiling and math.isfinite(part.ceiling_fraction):
            about |= {"ceiling": part.ceiling, "ceiling_fraction": part.ceiling_fraction}
        events.append(_event(part.name, "region", begin, end - begin, track, about))
        begins[depth] = end
        begins.append(begin)
        ends.append(end)
    return events


def _event(name: str, kind: str, begin: float, length: float, track: int, about: dict) -> dict:
    return {"name": name, "cat": kind, "ph": "X", "ts": begin, "dur": length, "pid": 1, "tid": track, "args": about}


def profiles_of(results: Results) -> list[tuple[str, str, Profile]]:
    """The recorded profiles of the rows, as `as_trace` takes them."""
    from katt_report.groups import groups

    found = []
    for group in groups(results):
        for row in group.points.rows():
            profile = group.profile_of(row)
            if profile:
                title = f"{group.title}: {row['variant']} {row['dtype']}{group.where_text(row)}"
                tile = f" tile {row['tile_q']}x{row['tile_kv']}" if row["tile_q"] else ""
                found.append((title + tile, f"{row['op']} {row['pass']}", profile))
    return found


def profiles_of_logs(logs: list[Log]) -> list[tuple[str, str, Profile]]:
    """The recorded profiles of logs, of a step or an answer each."""
    return [(log.name, f"katt {log.command}", log.profile) for log in logs if log.profile]
