"""katt.referee(): docs/referee.md."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy
import pytest

katt = pytest.importorskip("katt")

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="skipped: no C compiler")
AXES = {"tokens": 3, "intermediate": 8, "threads": 1}


def kernel(folder, name):
    path = folder / f"{name}.so"
    source = ROOT / "examples/referee" / f"{name}.c"
    command = ["cc", "-O2", "-fopenmp", "-shared", "-fPIC", f"-I{katt.get_include()}", str(source)]
    subprocess.run([*command, "-o", str(path), "-lm"], check=True)
    return path


def test_a_verdict(tmp_path):
    task = {"candidate": kernel(tmp_path, "swiglu"), "operator": "swiglu", "axes": AXES, "measuring": {"rounds": 8}}
    verdict = katt.referee(task, results=tmp_path / "rows.h5")
    assert verdict["status"] == "accepted" and verdict["geometric_mean"]["ratio"] > 0
    assert {"swiglu", "naive"} <= set(katt.open(tmp_path / "rows.h5").frame.variant)
    path = tmp_path / "task.json"
    path.write_text(json.dumps(task | {"candidate": str(kernel(tmp_path, "keeps_answer"))}))
    assert katt.referee(path)["status"] == "rejected"


def test_a_task_that_makes_no_sense():
    with pytest.raises(ValueError, match="task: operator: .*did you mean swiglu"):
        katt.referee({"candidate": "mine.so", "operator": "swigluu"})
    with pytest.raises(ValueError, match="task: holds <object"):
        katt.referee({"candidate": "mine.so", "operator": object()})
    with pytest.raises(ValueError, match="did you mean swiglu"):
        katt.referee({"candidate": "mine.so", "operator": "swigluu", "axes": {"tokens": numpy.int64(3)}})
