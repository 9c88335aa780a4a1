"""Every row of a group as a table, for the page and for the terminal: the axes that vary, then the results."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from katt_report import schema
from katt_report.groups import Group, sort_dtypes, sort_variants
from katt_report.limits import HIGHEST, believed
from katt_report.pages.markup import escape, small, status, table
from katt_report.points import Points
from katt_report.text import (
    bytes_text,
    error_text,
    percent_text,
    range_text,
    rate_text,
    ratio_text,
    seconds_text,
    significant,
    value_text,
)  # fmt: skip

SPOKEN = {"op", "pass", "backend", "variant"}
"""The columns that a title names."""


@dataclass(frozen=True)
class _Line:
    """One row: the values of its axes, what ran, and its results as (main, secondary) texts."""

    axes: list[str]
    variant: tuple[str, str]
    tile: str
    status: str
    results: list[tuple[str, str]]
    reason: str


def points_table(group: Group) -> str:
    """The measured, failed and suspect rows, the latter two first; skipped rows folded, by reason."""
    axes, tiled = _axes(group), _tiled(group)
    heads = [(name, kind) for name, kind in axes]
    heads += [("variant", "")] + [("tile", "n")] * tiled + [("status", "")] + [(text, "n") for text in _heads(group)]
    cells, apart, before = [], set(), None
    for line in _lines(group, group.points.where(group.points["status"] != "skipped")):
        if before is not None and line.axes != before:
            apart.add(len(cells))
        before = line.axes
        cell = [escape(text) for text in line.axes] + [escape(line.variant[0]) + small(line.variant[1])]
        cell += [escape(line.tile)] * tiled + [status(line.status)]
        cell += [escape(line.reason)] if line.reason else [escape(main) + small(more) for main, more in line.results]
        cells.append(cell)
    return (table(heads, cells, apart) if cells else "") + _skipped(group, axes)


def _skipped(group: Group, axes: list[tuple[str, str]]) -> str:
    rows = group.points.where(status="skipped")
    if not len(rows):
        return ""
    heads = [*axes, ("variant", ""), ("tile", "n"), ("status", ""), ("reason", "")]
    cells = [
        [*(escape(text) for text in line.axes), escape(line.variant[0]), escape(line.tile), status("skipped"),
         escape(line.reason)]
        for line in _lines(group, rows)
    ]  # fmt: skip
    count = f"{len(rows)} row{'s'[: len(rows) != 1]} skipped"
    variants = ", ".join(sort_variants(rows.values("variant"), group.baseline, group.peers))
    return f"<details><summary>{count}: {escape(variants)}</summary>{table(heads, cells)}</details>"


def text_table(group: Group) -> str:
    """The same for a terminal: failed and suspect rows first, skipped ones by variant and reason at the end."""
    axes, tiled = _axes(group), _tiled(group)
    lines = [[*(name for name, _ in axes), "variant", *["tile"] * tiled, *_heads(group)]]
    right = [kind == "n" for _, kind in axes] + [False] + [True] * tiled + [True] * len(_heads(group))
    for line in _lines(group, group.points.where(group.points["status"] != "skipped")):
        cells = [*line.axes, line.variant[0], *[line.tile] * tiled]
        cells += [f"{line.status.upper()}: {line.reason}"] if line.reason else [
            f"{main} ({more})" if more else main for main, more in line.results]  # fmt: skip
        lines.append(cells)
    whole = [line for line in lines if len(line) == len(right)]
    widths = [max(len(line[i]) for line in whole) for i in range(len(right))]
    text = []
    for line in lines:
        # The last cell of a row that failed is as long as its reason.
        padded = [cell.rjust(width) if to_right else cell.ljust(width)
                  for cell, width, to_right in zip(line, widths, right, strict=False)]  # fmt: skip
        text.append("  ".join(padded if len(line) == len(right) else [*padded[: len(line) - 1], line[-1]]).rstrip())
    skipped = group.points.where(status="skipped")
    for variant, reason in skipped.combinations(["variant", "reason"]):
        count = len(skipped.where(variant=variant, reason=reason))
        text.append(f"skipped: {variant}, {count} row{'s'[: count != 1]}: {reason or 'no reason given'}")
    return "\n".join(text)


def _axes(group: Group) -> list[tuple[str, str]]:
    """The axes that vary, with the class of their column."""
    points = group.points
    names = _axis_names(group)
    return [("N" if name == group.x and group.symbol == "N" else name, "" if points[name].dtype.kind == "U" else "n")
            for name in names]  # fmt: skip


def _axis_names(group: Group) -> list[str]:
    points = group.points
    # seq_kv beside an equal seq_q would be a column that says nothing.
    hidden = {*SPOKEN, *group.x_also, *schema.TILES}
    names = [name for name in points.identity if len(points.values(name)) > 1 and name not in hidden]
    return sorted(names, key=lambda name: ("label", "dtype").index(name) if name in ("label", "dtype") else 2)


def _tiled(group: Group) -> bool:
    return bool(np.any(group.points["tile_q"] > 0) or np.any(group.points["tile_kv"] > 0))


def _exchanges(group: Group) -> bool:
    """Whether ranks exchange messages."""
    return bool(np.nansum(group.points["sent_bytes"]) > 0)


def _heads(group: Group) -> list[str]:
    over = "speedup (95 %)" if group.baseline == schema.BASELINE else f"over {group.baseline} (95 %)"
    peers = ["Katt over it (95 %)"] if _against(group) else []
    exchanged = ["bus bandwidth", "sent by a rank", "messages", "communicating", "overlapped"]
    return ["time (95 %)", "throughput", "of ceiling", over, *peers, *_paired_heads(group), "workspace", "total", "max error (mean)", "samples",
            *(exchanged if _exchanges(group) else [])]  # fmt: skip


def _paired_heads(group: Group) -> list[str]:
    """The column of the ratios to the reference points of paired axes, if there are any."""
    rows = group.points.where(np.isfinite(group.points["paired_ratio"]))
    return [f"over {' or '.join(rows.values('paired_to'))} (95 %)"] if len(rows) else []


def _against(group: Group) -> dict[tuple, dict]:
    """The ratios to the peers by row; none with a baseline of the reader's choice."""
    if group.against is None or group.baseline != schema.BASELINE:
        return {}
    return {(row["source"], row["run"], row["point"]): row for row in group.against.rows()}


def _lines(group: Group, points: Points) -> Iterator[_Line]:
    names = _axis_names(group)
    dtypes = sort_dtypes(points.values("dtype"))
    variants = sort_variants(points.values("variant"), group.baseline, group.peers)

    def place(row: dict) -> tuple:
        along = (dtypes.index(row[name]) if name == "dtype" else row[name] for name in names)
        first = schema.WRONG.index(row["status"]) if row["status"] in schema.WRONG else len(schema.WRONG)
        return (first, *along, variants.index(row["variant"]), row["tile_q"], row["tile_kv"])

    against, exchanges, paired = _against(group), _exchanges(group), bool(_paired_heads(group))
    shared = zip(points.rows(), believed(points, group.ceilings).tolist(), strict=True)
    for row, share in sorted(shared, key=lambda pair: place(pair[0])):
        key = (row["source"], row["run"], row["point"])
        extents = [str(row[name]) for name in schema.EXTENTS]
        tile = "\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}".join(extents) if extents != ["0", "0"] else ""
        results, reason = [], ""
        if row["status"] == "ok":
            results = _results(row, group, share, against.get(key) if against else False, paired)
            results += _exchanged(row) if exchanges else []
        else:
            reason = row["reason"] or "no reason given"
        yield _Line([value_text(row[name]) for name in names], (row["variant"], row["engine"]), tile, row["status"],
                    results, reason)  # fmt: skip


def _results(
    row: dict, group: Group, share: float, peer: dict | None | bool, paired: bool
) -> list[tuple[str, str]]:
    """`peer`: the ratio to this row, a peer's; None for a row of Katt, False without that column. `paired`: with the
    ratio to the reference of paired axes."""
    rate = row[group.rate] * (1e12 if group.rate == "tflops" else 1e9)
    # The bytes of the host and of the device, when both hold memory.
    parts = [f"{bytes_text(row[name + '_bytes'])} {name}" for name in ("host", "device") if row[name + "_bytes"] > 0]
    if math.isfinite(share) and row["ceiling"]:
        ceiling = f"{percent_text(share)} {row['ceiling']}", ""
    elif row["ceiling_fraction"] > HIGHEST:
        ceiling = "–", f"above {row['ceiling']}"
    else:
        ceiling = "–", "disturbed" if math.isfinite(row["ceiling_fraction"]) else ""
    hertz = row["sm_clock_hz"] if math.isfinite(row["sm_clock_hz"]) else row["ghz"] * 1e9
    clock = f"at {rate_text(hertz, 'Hz')}" if math.isfinite(hertz) else ""
    clock += ", throttled" * (row["throttled"] > 0)
    return [
        (seconds_text(row["time_s"]), range_text(row["time_lo_s"], row["time_hi_s"], seconds_text)),
        (rate_text(rate, group.rate_unit), clock),
        ceiling,
        _ratio(row, "speedup") if row["variant"] != group.baseline else ("", ""),
        *([_ratio(peer, "ratio") if peer else ("", "")] if peer is not False else []),
        *([_ratio(row, "paired_ratio")] if paired else []),
        ("none" if row["workspace_bytes"] == 0 else bytes_text(row["workspace_bytes"]), ""),
        (bytes_text(row["total_bytes"]), " + ".join(parts) if len(parts) > 1 else ""),
        (error_text(row["max_abs_err"]), error_text(row["mean_abs_err"])),
        (str(row["samples"]), ""),
    ]


def _ratio(row: dict, name: str) -> tuple[str, str]:
    if not math.isfinite(row[name]):
        return "", ""
    return f"{ratio_text(row[name])}×", range_text(row[f"{name}_lo"], row[f"{name}_hi"], ratio_text)


def _exchanged(row: dict) -> list[tuple[str, str]]:
    """The bytes that ranks sent each other in a run, and the seconds that it took."""
    busbw, sent, messages, inside, hidden = (row[name] for name in schema.EXCHANGE)
    rate = rate_text(busbw * 1e9, "B/s") if busbw > 0 else "–"
    if not math.isfinite(sent):  # MPI by itself
        return [(rate, ""), *[("–", "")] * 4]
    texts = rate, bytes_text(sent), significant(messages), percent_text(inside), percent_text(hidden)
    return [(text, "") for text in texts]
