"""Result files of sweeps."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


class Result:
    """One result file (docs/schema.md), or several shown together.

    `rows` are as the report sees them: text decoded, the last row of a point that was measured twice.
    """

    def __init__(self, *paths: str | Path, folder: tempfile.TemporaryDirectory | None = None):
        from katt_report.errors import InputError
        from katt_report.isolation import load_isolated

        self.paths = tuple(path_of("open", path) for path in paths)
        self._folder = folder  # lives as long as the file in it is needed
        try:
            self._results = load_isolated(*self.paths)
        except InputError as error:
            raise ValueError(str(error)) from None

    @property
    def frame(self) -> pandas.DataFrame:
        """One row a variant at a point, with the columns of docs/schema.md and `source`, the file's name. The column
        `status` says which rows were measured: of a row that was skipped or failed `time_s` and what follows from it
        is NaN; a suspect row has a time that nobody should believe; `reason` says why."""
        return self._results.frame

    @property
    def figures(self) -> dict[str, Figure]:
        """Every figure of the report by its name: speedup, throughput, time, memory, roofline, …"""
        from katt_report import groups
        from katt_report.figures import draw_all

        return {plot.name: plot.figure for group in groups(self._results) for plot in draw_all(group)}

    def plot(self, name: str | None = None) -> Figure:
        """The figure of that name; the first of the report if None. ValueError where there is none."""
        figures = self.figures
        if not figures:
            raise ValueError("plot: the result holds no point that was measured, expected at least one")
        if name is None:
            return next(iter(figures.values()))
        if name not in figures:
            raise ValueError(f"plot: {name}: no such figure, expected one of {', '.join(figures)}")
        return figures[name]

    def report(self, folder: str | Path) -> Path:
        """Writes report.html and its figures into a folder; returns the path of the page. ValueError for a folder that
        cannot be written, OSError for a full disk."""
        from katt_report.errors import InputError
        from katt_report.pages.output import write_folder
        from katt_report.pages.page import report

        folder = path_of("report", folder)
        try:
            write_folder(folder, lambda: report(self._results))
        except InputError as error:
            raise ValueError(str(error)) from None
        return folder / "report.html"

    def save(self, path: str | Path) -> Path:
        """Copies the file of the result to `path` and returns it. ValueError when the result is several files, or when
        the path exists."""
        import shutil

        path = path_of("save", path)
        if len(self.paths) != 1:
            raise ValueError(f"save: the result is {len(self.paths)} files, expected one")
        if path.is_dir():
            raise ValueError(f"save: {path}: is a folder, expected a new file")
        part = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            shutil.copyfile(self.paths[0], part)
            os.link(part, path)
        except FileExistsError:
            raise ValueError(f"save: {path}: exists, expected a new file") from None
        except OSError as error:
            raise ValueError(f"save: {path}: {error.strerror}, expected the place of a new file") from None
        finally:
            with contextlib.suppress(OSError):
                part.unlink()
        return path

    def __repr__(self) -> str:
        from katt_report import headline

        lines = [f"Result of {', '.join(path.name for path in self.paths)}, {len(self._results.points)} rows"]
        for title, sentences in headline(self._results):
            lines += [f"{title}:", *(f"  {sentence}" for sentence in sentences)]
        return "\n".join(lines)


def path_of(function: str, path: str | Path) -> Path:
    """A path; ValueError for what is none."""
    try:
        return Path(path)
    except TypeError:
        raise ValueError(f"{function}: holds {path!r}, expected a path") from None


def open(*paths: str | Path) -> Result:  # noqa: A001
    """Reads the result files of `katt sweep` at `paths`, several as one result. ValueError for what is none."""
    if not paths:
        raise ValueError("open: no path, expected result files")
    return Result(*paths)
