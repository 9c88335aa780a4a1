"""The notebook runs from top to bottom on a result file, and is committed without outputs."""

import os

import pytest
import synthetic

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
pytest.importorskip("pandas")

NAME = "attention_results.ipynb"


def outputs(notebook) -> str:
    """Everything a run notebook shows, as text."""
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return "\n".join(str(output.get("text", "")) + str(output.get("data", "")) for output in shown)


def test_notebook_runs(repository, tmp_path, monkeypatch):
    file = synthetic.attention_seqlen(sizes=(512, 1024, 2048), dtypes=("f32",))
    monkeypatch.setenv("KATT_RESULT", synthetic.write(tmp_path / "r.h5", file))
    path = [str(repository / "drivers" / "report"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(part for part in path if part))
    notebook = nbformat.read(repository / "notebooks" / NAME, as_version=4)
    resources = {"metadata": {"path": repository / "notebooks"}}
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    text = outputs(notebook)
    assert "<svg" in text
    assert "no regression" in text
    assert "flash" in text


def test_notebook_is_committed_without_outputs(repository):
    notebook = nbformat.read(repository / "notebooks" / NAME, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.outputs or cell.execution_count for cell in notebook.cells if cell.cell_type == "code")


def test_notebook_defines_no_metric(repository):
    # Metrics live in katt_report: the notebook reads columns and calls functions.
    text = (repository / "notebooks" / NAME).read_text()
    for word in ("median(", "percentile(", "quantile(", "polyfit("):
        assert word not in text
