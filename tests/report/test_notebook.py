"""The notebooks run from top to bottom, and are committed without outputs."""

import os
from pathlib import Path

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


def run(repository, name, monkeypatch) -> str:
    """Everything that the notebook shows."""
    path = [str(repository / "drivers" / "report"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(part for part in path if part))
    notebook = nbformat.read(repository / "notebooks" / name, as_version=4)
    resources = {"metadata": {"path": repository / "notebooks"}}
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    return outputs(notebook)


def test_notebook_runs(repository, tmp_path, monkeypatch):
    file = synthetic.attention_seqlen(sizes=(512, 1024, 2048), dtypes=("f32",))
    monkeypatch.setenv("KATT_RESULT", synthetic.write(tmp_path / "r.h5", file))
    text = run(repository, NAME, monkeypatch)
    assert "<svg" in text
    assert "no regression" in text
    assert "flash" in text


def test_notebook_of_the_step_model_runs(repository, monkeypatch):
    monkeypatch.setenv("KATT", str(Path(os.environ.get("KATT_BUILD_DIR", "build/openmp")).absolute() / "katt"))
    text = run(repository, "training_step_model.ipynb", monkeypatch)
    assert "<svg" in text
    assert "mean error" in text
    assert "16384" in text
    assert "most GB of a GPU" in text or "skipped" in text


@pytest.mark.parametrize("name", [NAME, "training_step_model.ipynb"])
def test_notebook_is_committed_without_outputs(repository, name):
    notebook = nbformat.read(repository / "notebooks" / name, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.outputs or cell.execution_count for cell in notebook.cells if cell.cell_type == "code")


def test_notebook_defines_no_metric(repository):
    # Metrics live in katt_report: the notebook reads columns and calls functions.
    text = (repository / "notebooks" / NAME).read_text()
    for word in ("median(", "percentile(", "quantile(", "polyfit("):
        assert word not in text
