"""Sweeps: the program katt, run from Python."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ._peers import PeerServer
from ._results import Result

PROGRAM = Path(__file__).with_name("bin") / "katt"
FLAGS = ("resume", "overwrite", "cold", "profile")


def sweep(
    op: str | Path,
    *,
    peers: Mapping[str, Callable] | Iterable[str] = (),
    arrays: str = "numpy",
    output: str | Path | None = None,
    progress: bool = True,
    **axes: Any,
) -> Result:
    """Measures an operator, or what a sweep file (FILE.toml) says, and returns the result.

    axes: the options of `katt sweep` with underscores: a value, a list (seq=[512, 1024]), or a range as text
        (seq="512:16384:x2"); of dtype, variant, tile, threads, heads, head_dim, causal, … Flags (resume, overwrite,
        cold, profile) are True. Python has taken `pass`: pass_=["forward", "backward"]. Measuring is set by
        budget_s, min_rounds, rounds, precision and seed (docs/measuring.md).
    peers: functions of yours by name, measured round by round between Katt's variants on the same inputs, their
        results held against the float64 reference like every variant's. A function is called in this process with
        what its parameters name: inputs of the operator, its axes, its further parameters (scale, eps), or all by
        **kwargs; it returns the outputs of the operator, of the backward pass the gradients, as one array or a tuple.
        Raise katt.Refusal for a case that it does not compute. Or names of peers that scripts/peers installs, with
        peer_program=….
    arrays: what functions get and give, "numpy" or "torch".
    output: the result file; a temporary one, which lives as long as the Result, if None.
    progress: show the program's progress.

    ValueError for what the program refuses, with its line; a warning where cases have failed: their rows say why.
    """
    arguments = [str(PROGRAM), "sweep", str(op)]
    for name, value in axes.items():
        name = name.removesuffix("_").replace("_", "-")
        if name in FLAGS:
            arguments += [f"--{name}"] if value else []
        else:
            arguments += [f"--{name}", axis_text(value)]
    folder = None
    if output is None:
        folder = tempfile.TemporaryDirectory(prefix="katt-sweep-")
        output = Path(folder.name) / f"{Path(str(op)).stem}.h5"
    arguments += ["-o", str(output)]
    with PeerServer(peers if isinstance(peers, Mapping) else {}, arrays) as server:
        names = list(peers)
        if names:
            arguments += ["--peer", ",".join(names)]
        if server.program:
            arguments += ["--peer-program", str(server.program)]
        status, last_line = run(arguments, progress)
    if status == 2:
        raise ValueError(last_line.removeprefix("katt: "))
    if status == 130:
        raise KeyboardInterrupt
    if not Path(output).exists():
        raise RuntimeError(f"katt sweep ended with status {status}: {last_line}")
    result = Result(output, folder=folder)
    if status != 0:
        failed = result.frame.query("status == 'failed'")
        warnings.warn(f"{len(failed)} rows have failed; the column reason says why", stacklevel=2)
    return result


def axis_text(value: Any) -> str:
    """A value of an axis as the program reads it."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, (str, int, float, Path)):
        return str(value)
    return ",".join(axis_text(one) for one in value)


def run(arguments: list[str], progress: bool) -> tuple[int, str]:
    """Exit status and last line of the program; what it says goes to sys.stderr, which in a notebook is no file."""
    if not PROGRAM.exists():
        raise RuntimeError(f"{PROGRAM}: no such file, expected the program of this package")
    last = ""
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as program:
        try:
            for line in program.stderr:
                last = line.strip() or last
                if progress:
                    sys.stderr.write(line)
        except KeyboardInterrupt:
            program.wait()  # it was interrupted, too, and ends in order
            raise
    return program.returncode, last
