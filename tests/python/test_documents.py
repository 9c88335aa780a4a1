"""The lines of Python in README.md and docs/python.md run, on small problems."""

import os
import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests/docs"))
from blocks import blocks as blocks_of

katt = pytest.importorskip("katt")
Figure = pytest.importorskip("matplotlib.figure").Figure


def blocks(name: str) -> list[str]:
    """The Python of a document, without the blocks whose comment says why they do not run (tests/docs/blocks.py)."""
    return [block.text for block in blocks_of(name) if block.language == "python" and not block.reason_not_run]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder in which sweeps are short, and pages have no pictures: test_sweep.py renders one."""
    sweep, savefig = katt.sweep, Figure.savefig

    def unrendered(figure, file, **options):
        file.write(b"<svg/>") if hasattr(file, "write") else savefig(figure, file, **options)

    def quick(op, **arguments):
        if "seq" in arguments:
            arguments["seq"] = [64, 128]
        return sweep(op, **{"threads": 1, **arguments, "budget_s": 0.02, "min_rounds": 3, "no_ceilings": True, "progress": False})

    results = tmp_path / "results"
    results.mkdir()
    (results / "zen4-avx512bf16-2c").symlink_to(ROOT / "results" / "zen4-avx512bf16-2c")
    monkeypatch.setattr(katt, "sweep", quick)
    monkeypatch.setattr(Figure, "savefig", unrendered)
    monkeypatch.setattr("katt_report.pages.output.of_few_colours", lambda png: png)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", ["README.md", "docs/python.md"])
def test_lines_run(place, name):
    names = {}
    for block in blocks(name):
        if "torch" in block:
            try:
                import torch
            except ImportError:
                continue
            names["torch"] = torch
            before = torch.nn.functional.scaled_dot_product_attention
        exec(compile(block, name, "exec"), names)
        if "torch" in block:
            torch.nn.functional.scaled_dot_product_attention = before
    if name == "README.md":
        frame = names["frame"]
        assert len(frame[frame.status == "ok"]) > 1 and frame.variant.tolist()[0] in ("naive", "flash")
    else:
        assert os.path.exists("out/report.html") and (names["result"].frame["status"] == "ok").any()
