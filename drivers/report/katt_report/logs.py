"""Logs of katt train and katt generate: the time of a step, or of an answer."""

from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from katt_report.errors import InputError
from katt_report.load import Profile, bounded, measured, opened, plain, read_profile

_KIND = "a Katt result file or a log of katt train or katt generate (HDF5)"
_LARGEST_PROFILE = 100_000


@dataclass(frozen=True)
class Log:
    """One log: its attributes, the curves of a training run, and the profile if there is one."""

    name: str
    command: str
    about: dict
    columns: dict[str, np.ndarray]
    profile: Profile | None


def read_log(path: Path, name: str) -> Log | None:
    """The log in a file; None when the file is of another kind. Throws InputError for damage."""
    return opened(path, _KIND, lambda file: _read(file, path, name))


def _read(file: h5py.File, path: Path, name: str) -> Log | None:
    if "log" not in file.attrs:
        return None
    about = {plain(key): plain(value) for key, value in file.attrs.items()}
    data = file.get("profile")
    if data is not None and (not isinstance(data, h5py.Dataset) or data.size > _LARGEST_PROFILE):
        raise InputError(path, "no table named profile", "a table of regions and kernels")
    columns = {
        key: measured(bounded(value)[()]) for key, value in file.items()
        if isinstance(value, h5py.Dataset) and key != "profile" and value.ndim == 1 and value.dtype.kind == "f"
    }  # fmt: skip
    return Log(name, str(about["log"]), about, columns, read_profile(data) if data is not None else None)
