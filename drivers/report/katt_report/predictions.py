"""Times that a model predicted before a device was met, beside those that were measured on it.

A file of predictions is a result file whose rows were not run: `time_s` is NaN and `predicted_time_s` is the
expectation (docs/schema.md).
"""

import math
from dataclasses import dataclass

from katt_report import schema
from katt_report.errors import InputError
from katt_report.load import Results
from katt_report.statistics import geometric_mean
from katt_report.text import columns_text, value_text

_NOT_COMPARED = ("label", "tile", "backend", "threads", "cold")


@dataclass
class Pair:
    """A predicted row, and the measured time of the same variant, point and tile; NaN without one."""

    row: dict
    measured_s: float

    @property
    def predicted_s(self) -> float:
        """The model's time."""
        return self.row[schema.PREDICTED]

    @property
    def ratio(self) -> float:
        """Measured over predicted: above 1 the kernel is slower than the model says."""
        return self.measured_s / self.predicted_s


@dataclass
class Predictions:
    """All predicted rows, in the order of their file."""

    pairs: list[Pair]

    @property
    def met(self) -> list[Pair]:
        """Pairs that were measured."""
        return [pair for pair in self.pairs if math.isfinite(pair.measured_s)]

    @property
    def mean_ratio(self) -> float:
        """The geometric mean of measured over predicted."""
        return geometric_mean([pair.ratio for pair in self.met])

    @property
    def verdict(self) -> str:
        """One line for people and logs."""
        ratios = sorted(pair.ratio for pair in self.met)
        return (f"{len(ratios)} of {len(self.pairs)} predictions were measured: measured over predicted time "
                f"{self.mean_ratio:.2f} in the geometric mean, {ratios[0]:.2f} to {ratios[-1]:.2f}")  # fmt: skip

    def as_dict(self) -> dict:
        """Plain values for JSON."""
        names = ("op", "pass", "variant", "dtype", "tile_q", "tile_kv")
        rows = [
            {name: pair.row[name] for name in names}
            | {"axes": {name: pair.row[name] for name in axes_of(pair.row)}, "predicted_s": pair.predicted_s}
            | {"measured_s": pair.measured_s if math.isfinite(pair.measured_s) else None}
            for pair in self.pairs
        ]
        return {"verdict": self.verdict, "geometric_mean_ratio": self.mean_ratio, "rows": rows}


def axes_of(row: dict) -> list[str]:
    """The axes of a row that hold something, but for those that name its variant."""
    named = ("op", "pass", "variant", "dtype", *_NOT_COMPARED)
    return [name for name in row if schema.is_identity(name) and name not in named and row[name] not in (0, "")]


def compare_predictions(predicted: Results, measured: Results) -> Predictions:
    """Matches the rows of two files by the axes and the tile that ran; a predicted row without a tile stands for all of
    them. The fastest of several measured rows counts; a failed one counts as not measured."""
    source = ", ".join(predicted.points.values("source"))
    if not (predicted.points[schema.PREDICTED] > 0).any():
        raise InputError(source, "no predicted time", f"rows with {schema.PREDICTED}")
    names = [name for name in predicted.points.identity if name in measured.points and name not in _NOT_COMPARED]
    times: dict[tuple, float] = {}
    for row in measured.points.where(measured.points["time_s"] > 0, status="ok").rows():
        for tile in ((0, 0), _tile(row)):
            key = (*(row[name] for name in names), *tile)
            times[key] = min(row["time_s"], times.get(key, math.inf))
    pairs = [
        Pair(row, times.get((*(row[name] for name in names), *_tile(row)), math.nan)) for row in predicted.points.rows()
    ]
    found = Predictions([pair for pair in pairs if pair.predicted_s > 0])
    if not found.met:
        file = ", ".join(measured.points.values("source"))
        raise InputError(file, f"no measured row of {source}", "the same axes and tiles")
    return found


def _tile(row: dict) -> tuple:
    return tuple(row[name] for name in schema.EXTENTS)


def table_text(found: Predictions) -> str:
    """A line for each prediction, and the verdict as the last line."""
    lines = [("row", "predicted", "measured", "measured / predicted")]
    for pair in found.pairs:
        rates = [_rate(pair.row, time_s) for time_s in (pair.predicted_s, pair.measured_s)]
        lines.append((_name(pair.row), *rates, f"{pair.ratio:.2f}" if math.isfinite(pair.ratio) else ""))
    return "\n".join([*columns_text(lines), found.verdict])


def _name(row: dict) -> str:
    words = [row["op"], row["pass"], row["variant"], row["dtype"]]
    words += [f"{name}={value_text(row[name])}" for name in axes_of(row)]
    return " ".join(words + ([f"tile={row['tile_q']}x{row['tile_kv']}"] if row["tile_q"] else []))


def _rate(row: dict, time_s: float) -> str:
    """Work over time: of attention over many queries in TFLOP/s, of what memory bounds in GB/s."""
    if not math.isfinite(time_s):
        return "-"
    intense = row["flops"] > 100 * row["bytes"]
    return f"{row['flops'] / time_s * 1e-12:.0f} TFLOP/s" if intense else f"{row['bytes'] / time_s * 1e-9:.0f} GB/s"
