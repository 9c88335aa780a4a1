"""Fixtures: result files made up once for all tests, in a temporary folder."""

import sys
from functools import cache
from pathlib import Path

import pytest
from matplotlib.figure import Figure

REPOSITORY = Path(__file__).resolve().parents[2]
# The tree's own package, whatever version is installed beside it.
sys.path.insert(0, str(REPOSITORY / "drivers" / "report"))

import synthetic  # noqa: E402
from katt_report.published import source  # noqa: E402


def pytest_configure(config):
    """Matplotlib's own quarrel with newer pyparsing is not ours to report."""
    for module in ("matplotlib", "pyparsing"):
        config.addinivalue_line("filterwarnings", f"ignore::DeprecationWarning:{module}.*")
    config.addinivalue_line("markers", "rendered: reads the bytes of figures")


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the source tree."""
    return REPOSITORY


_isolated = cache(source.isolated)


@pytest.fixture
def published(repository, monkeypatch) -> Path:
    """The folder of the published results, whose files are read once in a session: together they take seconds."""
    monkeypatch.setattr(source, "isolated", _isolated)
    return repository / "results"


@pytest.fixture(scope="session")
def files(tmp_path_factory) -> dict[str, str]:
    """The paths of one result file of each kind of experiment."""
    folder = tmp_path_factory.mktemp("results")
    made = {
        "seqlen": synthetic.attention_seqlen(),
        "tiling": synthetic.attention_tiling(),
        "models": synthetic.attention_real_models(),
        "rmsnorm": synthetic.rmsnorm(),
        "block": synthetic.llama_block(),
    }
    return {name: synthetic.write(folder / f"{name}.h5", file) for name, file in made.items()}


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """No word about progress, however slow the machine is."""
    monkeypatch.setattr("katt_report.commands.report.PATIENCE_S", float("inf"))


@pytest.fixture(autouse=True)
def unrendered(request, monkeypatch):
    """Figures are made but not rendered, which takes most of a report's time, unless a test is marked `rendered`."""
    if request.node.get_closest_marker("rendered") is None:
        monkeypatch.setattr(Figure, "savefig", lambda _figure, file, **_options: file.write(b"<svg/>"))
        monkeypatch.setattr("katt_report.pages.output.of_few_colours", lambda png: png)
