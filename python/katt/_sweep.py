"""Sweeps: the program katt, run from Python."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy

from ._candidates import candidate_options
from ._peers import PeerServer
from ._results import Result, path_of
from ._rules import Rule, RuleError
from ._rules.file import write as write_rule

PROGRAM = Path(__file__).with_name("bin") / "katt"
NOT_HERE = ("dry-run", "quiet", "verbose", "json", "help")
FLAGS = ("resume", "overwrite", "cold", "profile", "isolate", "untrusted", "no-ceilings")
DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
MOST_WAIT_S = 1.0  # for a program that was asked to end


class SweepError(RuntimeError):
    """The program of a sweep ended before the sweep did: a full disk, no memory, a crash, a signal. The message is the
    program's line; `status` is its exit status, of a signal the negative number (-9: killed). A file that the caller
    named holds what was finished, and resume=True goes on."""

    def __init__(self, message: str, status: int):
        super().__init__(message, status)  # as it is pickled
        self.status = status

    def __str__(self):
        return self.args[0]


def sweep(
    op: str | Path,
    *,
    peers: Mapping[str, Callable] | Iterable[str] = (),
    candidates: Mapping[str, str | Path] | Iterable[str | Path] = (),
    arrays: str = "numpy",
    score_rule: Callable | str | Sequence[Callable | str] | Mapping[str, Callable] | None = None,
    output: str | Path | None = None,
    progress: bool = True,
    **axes: Any,
) -> Result:
    """Measures an operator, or the sweep of a file (FILE.toml), and returns the result.

    op: the name of an operator, or the path of the file.
    axes: the options of `katt sweep` with underscores: a value, a list (seq=[512, 1024]), or a range as text
        (seq="512:16384:x2"); of dtype, variant, tile, threads, heads, head_dim, causal, … Flags (resume, overwrite,
        cold, profile, untrusted, no_ceilings) are True. Python has taken `pass`: pass_=["forward", "backward"]. Measuring is set by
        budget_s, min_rounds, rounds, precision and seed (docs/measuring.md). A dtype is "bf16" or "bfloat16", or the
        object of NumPy, ml_dtypes or PyTorch.
    peers: functions of yours by name, measured round by round between Katt's variants on the same inputs, their
        results held against the float64 reference like every variant's. A function is called in this process with
        what its parameters name: inputs of the operator, its axes, its further parameters (scale, eps), or all by
        **kwargs; it returns the outputs of the operator, of the backward pass the gradients, as one array or a tuple.
        Raise katt.Refusal for a case that it does not compute. Or names of peers that scripts/peers installs, with
        peer_program=….
    candidates: kernels of yours in files, each in a process of its own (docs/candidates.md): paths by name, or a list of
        paths, of shared libraries that include katt/candidate.h (compile them with -I and katt.get_include()) and of files
        of Python. untrusted=True runs them without network, writable files and other processes.
    arrays: the arrays of functions, "numpy" or "torch".
    score_rule: for "attention": a score rule as katt.attention takes it, of NumPy's functions, or a katt.Rule; a list
        of these and "none"; or a dict of rules by name: entries of a file that say score_rule = "NAME" find theirs in
        it. A rule's rows have its name, and their float64 reference is the same rule, score by score. Its captured
        arrays must have elements for every point of the sweep. It runs on the CPU. The peers "torch_flex",
        "torch_flex_eager", "torch_eager" and "torch_compile" compute it, too; a function of yours must do so itself.
    output: the result file; a temporary one, which lives as long as the Result, if None.
    progress: show the program's progress.

    ValueError for arguments that the program refuses, with its line; SweepError when it ended
    before the sweep did. A warning when cases have failed: their rows say why. Ctrl-C ends the
    program and is a KeyboardInterrupt within a second or so; an output that was named keeps what
    was finished, and resume=True goes on.
    """
    if output is not None:
        output = path_of("output", output)
    if not isinstance(peers, (Mapping, Iterable)) or isinstance(peers, str):
        raise ValueError(f"peers: holds {peers!r}, expected functions by name, or a list of names")
    peers = peers if isinstance(peers, Mapping) else list(peers)
    for name in peers:
        if not (isinstance(name, str) and name.isidentifier()):
            raise ValueError(f"peers: holds the name {name!r}, expected letters, digits and _")
    arguments = [str(PROGRAM), "sweep", str(op), "--json"]
    for name, value in axes.items():
        option = name.removesuffix("_").replace("_", "-")
        if option in FLAGS:
            arguments += [f"--{option}"] if value else []
        elif option in NOT_HERE:
            raise ValueError(f"{name}: katt.sweep measures and returns the result, expected katt sweep --{option}")
        else:
            arguments += [f"--{option}", axis_text(name, value)]
    folder = None
    if output is None:
        folder = tempfile.TemporaryDirectory(prefix="katt-sweep-")
        output = Path(folder.name) / f"{Path(str(op)).stem}.h5"
    arguments += ["-o", str(output)]
    with (
        PeerServer(peers if isinstance(peers, Mapping) else {}, arrays) as server,
        tempfile.TemporaryDirectory(prefix="katt-rule-") as rules,
    ):
        arguments += rule_options(str(op), score_rule, Path(rules))
        arguments += candidate_options(candidates, Path(rules))
        names = list(peers)
        if names:
            arguments += ["--peer", ",".join(map(str, names))]
        if server.program:
            arguments += ["--peer-program", str(server.program)]
        status, last_line, summary = run(arguments, progress)
    if status == 2:
        raise ValueError(last_line.removeprefix("katt: "))
    if summary is None or summary["interrupted"] or status != bool(summary["failed"] + summary.get("suspect", 0)):
        raise SweepError(ending(status, last_line, None if folder else output), status)
    result = Result(output, folder=folder)
    for word, what in {"failed": "have failed", "suspect": "are suspect"}.items():
        if summary.get(word):
            warnings.warn(f"{summary[word]} rows {what}; the column reason says why", stacklevel=2)
    return result


def rule_options(op: str, score_rule: Any, folder: Path) -> list[str]:
    """The options for score rules, which are written to files of this folder. ValueError for what is none."""
    if score_rule is None:
        return []
    is_dict = isinstance(score_rule, Mapping)
    rules = score_rule if isinstance(score_rule, (list, tuple)) else [score_rule]
    given = list(score_rule.items()) if is_dict else [(None, rule) for rule in rules]
    if not given:
        raise ValueError(f"score_rule: holds an empty {type(score_rule).__name__}, expected rules")
    files: dict[str, Path] = {}
    names = []
    for name, rule in given:
        is_known = isinstance(rule, str) and not is_dict
        names.append(rule if is_known else write_named(name, rule, folder, files))
    options = ["--score-rule-file", ",".join(map(str, files.values()))] if files else []
    return options if is_dict and op.endswith(".toml") else [*options, "--score-rule", ",".join(names)]


def write_named(name: str | None, rule: Any, folder: Path, files: dict[str, Path]) -> str:
    """Writes a rule to one of the files, and returns its name: the function's, if none is given."""
    try:
        rule = rule if isinstance(rule, Rule) else Rule(rule)
        if name is None:
            name = rule.name if rule.name.isidentifier() and rule.name != "none" else "rule"
        elif not (isinstance(name, str) and name.isidentifier() and name != "none"):
            raise RuleError(f"holds the name {name!r}, expected letters, digits and _, and not none")
        if name in files:
            raise RuleError(f"holds two rules of the name {name}, expected a dict with a name for each")
        files[name] = folder / f"{name}.safetensors"
        write_rule(files[name], name, rule)
    except RuleError as error:
        raise ValueError(f"score_rule: {error}") from None
    return name


def axis_text(name: str, value: Any) -> str:
    """A value of an axis in the program's form. ValueError for any other value."""
    if isinstance(value, (bool, numpy.bool_)):
        return str(int(value))
    if isinstance(value, str) and name == "dtype":
        return DTYPES.get(value, value)
    if isinstance(value, (str, int, float, numpy.number, Path)):
        return str(value)
    if isinstance(value, (numpy.dtype, type)) or type(value).__name__ == "dtype":
        return dtype_text(name, value)
    if not isinstance(value, Iterable):
        raise ValueError(f"{name}: holds {value!r}, expected a value, a list of values, or a range as text")
    return ",".join(axis_text(name, one) for one in value)


def dtype_text(name: str, dtype: Any) -> str:
    """The name of a dtype of NumPy, ml_dtypes or PyTorch."""
    if str(dtype).startswith("torch."):
        text = str(dtype).removeprefix("torch.")
    else:
        try:
            text = numpy.dtype(dtype).name
        except TypeError:
            raise ValueError(f"{name}: holds {dtype!r}, expected a value or a dtype") from None
    return DTYPES.get(text, text)


def run(arguments: list[str], progress: bool) -> tuple[int, str, dict | None]:
    """Exit status, last line and summary of the program, None if it did not come to its end. Its
    output goes to sys.stderr, which in a notebook is not a file."""
    if not PROGRAM.exists():
        raise RuntimeError(f"{PROGRAM}: no such file, expected the program of this package")
    last = ""
    with tempfile.TemporaryFile() as told:  # a pipe that nobody reads stops its program once it is full
        with subprocess.Popen(
            arguments, stdout=told, stderr=subprocess.PIPE, encoding="utf-8", errors="replace"
        ) as program:
            try:
                for line in program.stderr:
                    last = line.strip() or last
                    if progress:
                        sys.stderr.write(line)
            except BaseException:
                end(program)
                raise
        told.seek(0)
        summary = told.read()
    try:
        return program.returncode, last, json.loads(summary)
    except ValueError:
        return program.returncode, last, None


def end(program: subprocess.Popen) -> None:
    """Ends the program, which loses nothing that is finished: in order if it does so at once, else by force."""
    program.terminate()
    try:
        program.wait(MOST_WAIT_S)
    except subprocess.TimeoutExpired:
        program.kill()


def ending(status: int, last_line: str, output: str | Path | None) -> str:
    """The message for a program that ended before its sweep did."""
    how = f"ended with status {status}"
    if status < 0:
        number = -status
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        how = f"was ended by {name}"
    line = last_line.removeprefix("katt: ")
    kept = output is not None and Path(output).exists() and "--resume" not in line
    return f"katt sweep {how}: {line}" + (f"; {output} keeps what is done, resume=True goes on" if kept else "")
