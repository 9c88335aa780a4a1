"""A small column table: the few operations of a data frame that the report needs, on NumPy
alone."""

from collections.abc import Iterator

import numpy as np

from katt_report import schema


class Points:
    """The rows of `/points` as columns: strings decoded, one array a column, rows in file order.

    `dict(points.columns)` is a valid argument of `pandas.DataFrame`.
    """

    def __init__(self, columns: dict[str, np.ndarray]):
        self.columns = columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def where(self, mask=None, **equal) -> "Points":
        """The rows for which `mask` holds and every named column equals the given value."""
        keep = np.ones(len(self), bool) if mask is None else np.asarray(mask)
        if keep.dtype == bool:
            for name, value in equal.items():
                keep = keep & (self.columns[name] == value)
        return Points({name: column[keep] for name, column in self.columns.items()})

    def match(self, names, values) -> "Points":
        """The rows whose columns `names` hold `values`."""
        return self.where(**dict(zip(names, values, strict=True)))

    def values(self, name: str) -> list:
        """The different values of a column, sorted."""
        return np.unique(self.columns[name]).tolist()

    def combinations(self, names) -> list[tuple]:
        """The different value combinations of several columns, sorted."""
        return sorted(set(self.tuples(names)))

    def tuples(self, names) -> list[tuple]:
        """One tuple of plain Python values a row."""
        return list(zip(*(self.columns[name].tolist() for name in names), strict=True)) if names else [()] * len(self)

    def row(self, index: int) -> dict:
        """One row as plain Python values."""
        return {name: column[index].item() for name, column in self.columns.items()}

    def rows(self) -> Iterator[dict]:
        """Every row as plain Python values."""
        return (dict(zip(self.columns, values)) for values in self.tuples(list(self.columns)))

    @property
    def ok(self) -> "Points":
        """The rows that were measured."""
        return self.where(status="ok")

    @property
    def with_memory(self) -> "Points":
        """The rows with measured memory; a peer, another program, has it if its allocator
        counts."""
        return self.ok.where(np.isfinite(self.ok["total_bytes"]))

    @property
    def identity(self) -> list[str]:
        """The columns that identify the point of a row."""
        return [name for name in self.columns if schema.is_identity(name)]

    def sorted_by(self, *names: str) -> "Points":
        """The rows in the order of the named columns."""
        order = sorted(range(len(self)), key=lambda index: tuple(self.columns[name][index] for name in names))
        return self.where(np.array(order, int))

    def latest(self, extra: tuple[str, ...] = ()) -> "Points":
        """The last row of every identity: a resumed run's row replaces the one it repeated."""
        last = {key: index for index, key in enumerate(self.tuples([*self.identity, *extra]))}
        return self.where(np.array(sorted(last.values()), int))


def concatenate(parts: list[Points]) -> Points:
    """The rows of several tables; a missing column gets the default of its kind, a missing axis 0 in place of NaN,
    which would make each of its rows a point of its own."""
    names = list(dict.fromkeys(name for part in parts for name in part.columns))
    columns = {}
    for name in names:
        example = next(part[name] for part in parts if name in part)
        kind = {"U": schema.STRING, "i": schema.INTEGER}.get(example.dtype.kind, schema.REAL)
        missing = 0.0 if kind == schema.REAL and schema.is_identity(name) else schema.default(kind)
        columns[name] = np.concatenate([part[name] if name in part else np.full(len(part), missing) for part in parts])
    return Points(columns)
