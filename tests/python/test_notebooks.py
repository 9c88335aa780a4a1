"""Each notebook runs from top to bottom, and is committed with the outputs of a run: a question at its head, figures, and the
answer at its end."""

import re
import shutil
import socket
import sys

import pytest
from conftest import ROOT

pytest.importorskip("katt")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
sys.path.insert(0, str(ROOT / "notebooks"))

from execute import FOLDER, NAMES, execute  # noqa: E402

MOST_BYTES = 250_000  # of a file
MOST_BYTES_OF_ALL = 1_000_000
PATHS = re.compile(r"(?<![\w./<])/(?:home|root|tmp|work|usr|opt|mnt|var|Users|build)/")
METRICS = ("median(", "percentile(", "quantile(", "polyfit(")

each = pytest.mark.parametrize("name", NAMES)


def code_of(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown(cell):
    """The texts that a cell shows, none of them an error."""
    texts = []
    for output in cell.outputs:
        assert output.output_type != "error", output.get("evalue")
        assert output.get("name") != "stderr", output.get("text")
        texts += [output.text] if "text" in output else []
        texts += [text for kind, text in output.get("data", {}).items() if kind.startswith("text/")]
    return texts


def check_outputs(notebook):
    """Figures, no error, and the answer in the last cell."""
    cells = code_of(notebook)
    assert all(isinstance(text, str) for cell in cells for text in shown(cell))
    assert "image/png" in [kind for cell in cells for output in cell.outputs for kind in output.get("data", {})]
    answer = cells[-1].outputs[-1].data["text/markdown"]
    assert answer.startswith("**") and re.search(r"\d", answer), "ends with its answer in numbers"
    assert not re.search(r"\bnan\b", answer), answer


@each
def test_notebook_runs(name, monkeypatch):
    if name == "own_kernel.ipynb" and shutil.which("cc") is None:
        pytest.skip("skipped: no C compiler")
    monkeypatch.setenv("KATT_BUDGET_S", "0.02")
    check_outputs(execute(name))


@each
def test_notebook_is_committed_with_outputs(name):
    notebook = nbformat.read(FOLDER / name, as_version=4)
    nbformat.validate(notebook)
    check_outputs(notebook)
    assert [cell.execution_count for cell in code_of(notebook)] == list(range(1, len(code_of(notebook)) + 1))
    head, end = notebook.cells[0], notebook.cells[-1]
    assert head.cell_type == "markdown" and head.source.splitlines()[0].endswith("?"), "begins with its question"
    assert end.cell_type == "code" and notebook.cells[-2].source == "## Answer"


@each
def test_notebook_tells_nothing_of_a_machine(name):
    notebook = nbformat.read(FOLDER / name, as_version=4)
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert not any(cell.metadata for cell in notebook.cells)
    for text in (text for cell in code_of(notebook) for text in shown(cell)):
        assert not PATHS.search(text), PATHS.search(text)
        assert socket.gethostname() not in text


@each
def test_notebook_defines_no_metric(name):
    # Metrics live in katt_report: a notebook reads columns and calls functions.
    source = "\n".join(cell.source for cell in code_of(nbformat.read(FOLDER / name, as_version=4)))
    assert not [word for word in METRICS if word in source]


def test_notebooks_are_small():
    sizes = {name: (FOLDER / name).stat().st_size for name in NAMES}
    assert max(sizes.values()) < MOST_BYTES and sum(sizes.values()) < MOST_BYTES_OF_ALL, sizes
