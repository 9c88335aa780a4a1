"""The referee of kernels: the program katt, run from Python."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ._sweep import PROGRAM, SweepError, run


def referee(
    task: Mapping[str, Any] | str | Path, *, results: str | Path | None = None, progress: bool = False
) -> dict[str, Any]:
    """Judges a kernel: is it right for inputs that change, how fast is it beside Katt's variants, and does it keep to
    the limits? It runs in a process of its own, in a sandbox unless the task says otherwise.

    task: the path of a task (JSON), or its content as a dictionary; relative paths in it then count from the working
        folder. docs/referee.md has both schemas.
    results: a new result file (HDF5) that keeps every row and sample.
    progress: print what the program says to sys.stderr.

    Returns the verdict: ["status"] is "accepted", "rejected", "undecided" or "unsupported", ["reasons"] says why, ["points"] has
    times in seconds with 95 % intervals, errors and ratios. Raises ValueError for a task that makes no sense, SweepError
    when the program ended otherwise than well, KeyboardInterrupt as everywhere.
    """
    with tempfile.TemporaryDirectory(prefix="katt-referee-") as folder:
        if isinstance(task, Mapping):
            content = dict(task)
            if isinstance(content.get("candidate"), (str, Path)):
                content["candidate"] = str(Path(content["candidate"]).absolute())
            path = Path(folder) / "task.json"
            try:
                path.write_text(json.dumps(content, default=plain))
            except TypeError as error:
                raise ValueError(f"task: {error}") from None
        else:
            path = Path(task)
        arguments = [str(PROGRAM), "referee", str(path)]
        if results is not None:
            arguments += ["--results", str(results)]
        status, last_line, verdict = run(arguments, progress)
    if status == 2:
        message = last_line.removeprefix("katt: ")
        raise ValueError(message.replace(str(path), "task") if isinstance(task, Mapping) else message)
    if verdict is None or verdict["status"] == "interrupted" or status not in (0, 1, 3):
        raise SweepError(f"katt referee ended with status {status}: {last_line}", status)
    return verdict


def plain(value: Any) -> Any:
    """What JSON holds in place of a NumPy number or array, or of a path. TypeError for anything else."""
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"holds {value!r}, expected text, numbers, lists and dictionaries")
