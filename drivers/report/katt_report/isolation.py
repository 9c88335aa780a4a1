"""Reads untrusted files in a child process: the HDF5 library itself can crash on damaged ones."""

import faulthandler
import os
import pickle
import resource
import signal
from pathlib import Path

from katt_report.calibration import runs_of
from katt_report.errors import InputError
from katt_report.load import Results, merge, read, short_names
from katt_report.logs import Log, read_log
from katt_report.text import tell_more

_LONGEST_S = 300


def load_isolated(*paths) -> Results:
    """`load` for files of unknown origin: a crash or an endless loop in HDF5 becomes an InputError."""
    return merge(each_isolated(*paths))


def each_isolated(*paths, every_run: bool = False) -> list[Results]:
    """The results of every file apart, each with a name of its own as the source of its rows; `every_run` keeps rows
    that a later run of the file measured again."""
    paths = [Path(path) for path in paths]
    found = [isolated(path, name, read) for path, name in zip(paths, short_names(paths), strict=True)]
    return found if every_run else [merge([one]) for one in found]


def runs_isolated(path) -> list[Results]:
    """The repeats of a sweep in one file, a `Results` each, with every row (katt_report.calibration)."""
    path = Path(path)
    return runs_of(isolated(path, path.name, read), path)


def logs_or_results(*paths) -> tuple[list[Log], Results | None]:
    """The logs of katt train and katt generate, or else the results, that files of unknown origin hold. Throws InputError
    for files of both kinds."""
    paths = [Path(path) for path in paths]
    found = [isolated(path, name, _log_or_results) for path, name in zip(paths, short_names(paths), strict=True)]
    logs = [one for one in found if isinstance(one, Log)]
    if logs and len(logs) < len(found):
        raise InputError(paths[0], "logs beside result files", "one kind: result files, or logs alone")
    return logs, None if logs else merge([merge([one]) for one in found])


def _log_or_results(path: Path, name: str) -> Log | Results:
    return read_log(path, name) or read(path, name)


def isolated(path: Path, name: str, reader):
    """The result of `reader(path, name)`, run in a child process."""
    answer = in_child(path, reader, path, name)
    tell_more(f"read {path}")
    return answer


def in_child(path: Path, reader, *arguments):
    """The same without a word; `path` is the file that an InputError names."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _read_and_send(writing, reader, *arguments)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    _, ended = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(ended) != 0:
        raise InputError(path, "damaged HDF5 on which the HDF5 library crashes", "a Katt result file")
    answer = pickle.loads(data)
    if isinstance(answer, InputError):
        raise answer
    return answer


def _read_and_send(writing: int, reader, *arguments) -> None:
    """The child: reads, answers through the pipe, ends without the parent's cleanup."""
    status = 1
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.alarm(_LONGEST_S)
        faulthandler.disable()
        # The output of a dying C library would break the one-line rule.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            answer = reader(*arguments)
        except InputError as error:
            answer = error
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump(answer, pipe, pickle.HIGHEST_PROTOCOL)
        status = 0
    finally:
        os._exit(status)
