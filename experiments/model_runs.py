"""Code that the experiments on a model share: running the program, and a result file with a
figure."""

import argparse
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import h5py
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "experiments" / "byte_model"
KATT = os.environ.get("KATT", str(ROOT / "build" / "openmp" / "katt"))
SCHEMA = "model_runs 1"
"""The form of the files that save() writes; docs/schema.md."""


def katt(*arguments):
    """The program's JSON. Its stderr passes through."""
    command = [KATT, *map(str, arguments), "--json"]
    print("katt", *command[1:], file=sys.stderr)
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])


def parser_of(description):
    """The options that every experiment has: -o, a folder that is made if it is missing."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("-o", "--output", type=folder_of, required=True, metavar="DIR", help="folder for file and figures")
    return parser


def folder_of(text):
    folder = Path(text)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def save(path, rows, summary=(), settings=None):
    """Rows (dictionaries with the same keys) as datasets of an HDF5 file, those of the summary in a group, with what
    made them."""
    info = json.loads(subprocess.run([KATT, "info", "--json"], check=True, capture_output=True, text=True).stdout)
    with h5py.File(path, "w") as file:
        for prefix, table in [("", rows), ("summary/", summary)]:
            for key in table[0] if table else ():
                values = [row[key] for row in table]
                file[prefix + key] = np.array(values, dtype=h5py.string_dtype() if isinstance(values[0], str) else None)
        file.attrs.update({"schema": SCHEMA, "generator": "katt experiments"})
        file.attrs["date"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for part in ["build", "machine"]:
            file.attrs[part] = json.dumps(info.get(part, {}))
        file.attrs.update(settings or {})


def figure(folder, name, title, xlabel, ylabel, lines, logx=False, logy=False):
    """lines: label → (x, y)."""
    plt.figure(figsize=(8, 4))
    for label, (x, y) in lines.items():
        plt.plot(x, y, marker="o" if len(x) < 20 else None, label=label)
    plt.title(title)
    plt.xlabel(xlabel)
    plt.ylabel(ylabel)
    if logx:
        plt.xscale("log", base=2)
    if logy:
        plt.yscale("log")
    plt.ylim(bottom=None if logy else 0)
    plt.grid(alpha=0.3)
    plt.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)  # beside the lines, never on them
    plt.tight_layout()
    plt.savefig(folder / f"{name}.png", dpi=120)
    plt.close()
