"""katt.sweep with kernels of the user's own in files."""

import shutil
import subprocess

import pytest

katt = pytest.importorskip("katt")

QUICK = {"tokens": 5, "intermediate": 7, "variant": "naive", "threads": 1, "rounds": 3, "no_ceilings": True, "progress": False}

SOURCE = """
#include <math.h>
#include <katt/candidate.h>
int katt_candidate_forward(const katt_problem* problem) {
  const float *gate = (const float*)katt_input(problem, "gate")->data, *up = (const float*)katt_input(problem, "up")->data;
  float* out = (float*)katt_output(problem, "out")->data;
  for (int i = 0; i < 35; ++i) out[i] = gate[i] / (1 + expf(-gate[i])) * up[i];
  return 0;
}
"""

FUNCTION = """
import numpy

def forward(case, tensors):
    return tensors["gate"] / (1 + numpy.exp(-tensors["gate"])) * tensors["up"]
"""


@pytest.fixture
def library(tmp_path):
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    (tmp_path / "mine.c").write_text(SOURCE)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-I", katt.get_include(), tmp_path / "mine.c", "-o",
                    tmp_path / "mine.so", "-lm"], check=True)  # fmt: skip
    return tmp_path / "mine.so"


@pytest.mark.parametrize("untrusted", [False, True])
def test_files_are_candidates(library, tmp_path, untrusted):
    (tmp_path / "own.py").write_text(FUNCTION)
    candidates = {"library": library, "function": tmp_path / "own.py"}
    frame = katt.sweep("swiglu", candidates=candidates, untrusted=untrusted, **QUICK).frame
    assert list(frame["variant"]) == ["naive", "library", "function"]
    assert (frame["status"] == "ok").all() and (frame["speedup"] > 0).all()


def test_a_file_gives_its_name(library):
    assert "mine" in set(katt.sweep("swiglu", candidates=[library], **QUICK).frame["variant"])
    assert "mine" in set(katt.sweep("swiglu", candidates=library, **QUICK).frame["variant"])


def test_what_is_no_candidate_is_refused(tmp_path):
    with pytest.raises(ValueError, match="missing.so: no such file"):
        katt.sweep("swiglu", candidates={"mine": tmp_path / "missing.so"}, **QUICK)
    for candidates in (None, 3, [3], {"mine": None}):
        with pytest.raises(ValueError, match="candidates: holds .*, expected paths by name, or a list of paths"):
            katt.sweep("swiglu", candidates=candidates, **QUICK)
