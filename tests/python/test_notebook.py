"""The notebook of the package runs from top to bottom."""

import pytest
from conftest import ROOT

pytest.importorskip("katt")
nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

FILE = ROOT / "notebooks" / "python.ipynb"


def test_notebook_runs(monkeypatch):
    monkeypatch.setenv("KATT_BUDGET_S", "0.02")
    notebook = nbformat.read(FILE, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code), "is committed without outputs"
    resources = {"metadata": {"path": FILE.parent}}
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    shown = [output for cell in code for output in cell.outputs]
    text = "\n".join(str(output.get("text", "")) + str(output.get("data", "")) for output in shown)
    assert "image/png" in text and "flash" in text
    assert "failed" in text, "the wrong function is told apart"
