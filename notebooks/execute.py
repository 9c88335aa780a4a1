"""Runs notebooks of this folder: `python notebooks/execute.py [NAME.ipynb…]` stores the outputs in the files (default:
all). tests/python/test_notebooks.py runs them by the same function, and stores nothing.

KATT_BUDGET_S sets the seconds that the live sweeps spend on a row, 0.3.
"""

import sys
import time
from pathlib import Path

import nbclient
import nbformat

FOLDER = Path(__file__).resolve().parent
NAMES = sorted(path.name for path in FOLDER.glob("*.ipynb"))


def execute(name: str) -> nbformat.NotebookNode:
    """The notebook of that name with the outputs of a run from top to bottom. Raises what a cell raised."""
    notebook = nbformat.read(FOLDER / name, as_version=4)
    resources = {"metadata": {"path": FOLDER}}
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", record_timing=False, resources=resources).execute()
    notebook.metadata.language_info = {"name": "python"}  # without the version of Python that ran it
    return notebook


if __name__ == "__main__":
    for name in sys.argv[1:] or NAMES:
        start = time.monotonic()
        notebook = execute(name)
        nbformat.write(notebook, FOLDER / name)
        print(f"{name}: {time.monotonic() - start:.1f} s, {(FOLDER / name).stat().st_size} bytes", flush=True)
