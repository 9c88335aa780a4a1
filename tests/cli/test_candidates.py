"""`katt sweep --candidate`: kernels of a user beside ours, from shared libraries and files of Python."""

import json
import re
import shutil
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest
from conftest import ROOT

EXAMPLE = ROOT / "examples" / "candidate"
SWIGLU = ("--tokens", 5, "--intermediate", 7, "--variant", "naive", "--threads", 1, "--rounds", 3)

NUMPY = '''
"""SwiGLU of NumPy."""
import numpy


def forward(case, tensors):
    assert case.threads == 1 and case.axes["tokens"] == 5 and not tensors["gate"].flags.writeable
    gate = tensors["gate"].astype(numpy.float32)
    numpy.copyto(case.outputs["out"], gate / (1 + numpy.exp(-gate)) * tensors["up"].astype(numpy.float32),
                 casting="same_kind")
'''  # fmt: skip


def compiled(folder, name, source, *options):
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    path = folder / f"{name}.c"
    path.write_text(source)
    library = folder / f"{name}.so"
    command = ["cc", "-O2", "-shared", "-fPIC", "-I", str(ROOT / "src" / "candidate"), *options, str(path), "-o",
               str(library), "-lm"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return library


@pytest.fixture(scope="module")
def attention(tmp_path_factory):
    """The library of examples/candidate, compiled as its README says."""
    readme = (EXAMPLE / "README.md").read_text()
    command = next(line.strip() for line in readme.splitlines() if line.startswith("    cc "))
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    library = tmp_path_factory.mktemp("attention") / "attention.so"
    words = [str(library) if word == "attention.so" else word for word in command.split()]
    done = subprocess.run(words, cwd=EXAMPLE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return library


# A prime, length 1, more queries than keys, grouped heads.
SHAPES = [("--seq", 61), ("--seq", 1), ("--seq-q", 37, "--seq-kv", 19, "--causal", 1),
          ("--seq-q", 1, "--seq-kv", 67, "--causal", 1, "--kv-heads", 2)]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: " ".join(map(str, shape)))
@pytest.mark.parametrize("cage", [(), ("--untrusted",)], ids=["trusted", "untrusted"])
def test_the_example_beside_flash(katt, attention, shape, cage):
    katt.runs("sweep", "attention", "--pass", "forward,backward", "--batch", 2, "--heads", 4, "--head-dim", 24, *shape,
              "--variant", "flash,naive", "--candidate", f"mine={attention}", "--rounds", 3, "--threads", 2, *cage,
              "-o", "out.h5")
    with h5py.File(katt.folder / "out.h5") as file:
        rows = file["points"][:]
        about = json.loads(file["runs"]["run-0001"].attrs["peers"])["mine"]
    mine = [row for row in rows if row["variant"] == b"mine"]
    assert [row["pass"] for row in mine] == [b"forward", b"backward"]
    assert [row["status"] for row in rows] == [b"ok"] * 6
    assert all(row["speedup"] > 0 and row["max_abs_err"] < 1e-4 and row["code"] == b"" for row in mine)
    assert about.startswith("attention of examples/candidate; SHA-256 ")


def test_what_a_candidate_does_not_compute_is_skipped(katt, attention):
    katt.runs("sweep", "attention", "--seq", 16, "--dtype", "f32,bf16", "--alibi", "0,1", "--layout", "bhsd,bshd",
              "--variant", "flash", "--candidate", f"mine={attention}", "--rounds", 2, "-o", "out.h5")
    rows = [row for row in katt.rows() if row["variant"] == b"mine"]
    reasons = {(row["dtype"], row["alibi"], row["layout"]): row["reason"].decode() for row in rows}
    assert reasons[b"f32", 0, b"bhsd"] == ""
    assert reasons[b"bf16", 0, b"bhsd"] == "only f32"
    assert reasons[b"f32", 1, b"bhsd"] == "no mask but causal"
    assert "not as bshd" in reasons[b"f32", 0, b"bshd"]


def test_a_pass_that_is_not_there_is_skipped(katt, tmp_path):
    library = compiled(tmp_path, "half", """
#include <katt/candidate.h>
int katt_candidate_backward(const katt_problem* problem) { (void)problem; return 3; }
""")
    done = katt("sweep", "swiglu", *SWIGLU, "--pass", "forward,backward", "--candidate", library, "-o", "out.h5")
    assert done.returncode == 1
    rows = {row["pass"]: row for row in katt.rows() if row["variant"] == b"half"}
    assert rows[b"forward"]["reason"] == b"it has no katt_candidate_forward"
    assert rows[b"backward"]["reason"] == b"katt_candidate_backward returned 3"


TELLS = """
#include <math.h>
#include <katt/candidate.h>

/* Checks what it is told: out holds what it should, or the number of what is wrong. */
size_t katt_candidate_workspace(const katt_problem* problem) {
  return problem->inputs[0].data == NULL ? 1000 : 0;
}
int katt_candidate_forward(const katt_problem* problem) {
  const katt_tensor *gate = katt_input(problem, "gate"), *up = katt_input(problem, "up");
  const katt_tensor* out = katt_output(problem, "out");
  if (problem->version != KATT_CANDIDATE_VERSION || problem->threads != 1) return 1;
  if (strcmp(problem->op, "swiglu") != 0 || strcmp(problem->pass, "forward") != 0) return 2;
  if (gate == NULL || up == NULL || out == NULL || katt_input(problem, "x") != NULL) return 3;
  if (out->rank != 2 || out->shape[0] != 5 || out->shape[1] != 7) return 4;
  if (out->strides[0] != 7 || out->strides[1] != 1 || ((uintptr_t)out->data & 63) != 0) return 5;
  if (katt_integer(problem, "tokens", 0) != 5 || katt_integer(problem, "none", 9) != 9) return 6;
  if (problem->workspace == NULL || problem->workspace_bytes != 1000) return 7;
  if (gate->dtype != problem->dtype || up->dtype != problem->dtype || out->dtype != problem->dtype) return 8;
  memset(problem->workspace, 1, problem->workspace_bytes);
  for (int i = 0; i < 35; ++i) {
    if (problem->dtype == KATT_F32) {
      const float g = ((const float*)gate->data)[i];
      ((float*)out->data)[i] = g / (1 + expf(-g)) * ((const float*)up->data)[i];
    } else {
      const float g = (float)((const _Float16*)gate->data)[i];
      ((_Float16*)out->data)[i] = (_Float16)(g / (1 + expf(-g)) * (float)((const _Float16*)up->data)[i]);
    }
  }
  return 0;
}
"""


def test_what_a_candidate_is_told(katt, tmp_path):
    library = compiled(tmp_path, "tells", TELLS, "-Wall", "-Werror")
    katt.runs("sweep", "swiglu", *SWIGLU, "--dtype", "f32,f16", "--candidate", library, "-o", "out.h5")
    assert katt.variants()["tells"]["status"] == b"ok"


@pytest.mark.parametrize("cage", [(), ("--untrusted",)], ids=["trusted", "untrusted"])
def test_a_file_of_python(katt, tmp_path, cage):
    (tmp_path / "own.py").write_text(NUMPY)
    katt.runs("sweep", "swiglu", *SWIGLU, "--dtype", "f32,f16", "--candidate", tmp_path / "own.py", *cage, "-o",
              "out.h5")
    with h5py.File(katt.folder / "out.h5") as file:
        rows = [row for row in file["points"][:] if row["variant"] == b"own"]
        about = json.loads(file["runs"]["run-0001"].attrs["peers"])["own"]
    assert [row["status"] for row in rows] == [b"ok", b"ok"]
    assert about.startswith(f"SwiGLU of NumPy.; numpy {np.__version__}, Python ")


@pytest.mark.parametrize(("body", "reason"), [
    ("return tensors['gate']", "out(0, 0) is "),
    ("return tensors['gate'][:-1]", "out: holds shape (4, 7), expected (5, 7)"),
    ("return tensors['gate'], tensors['up']", "it returned 2 arrays, expected 1: out"),
    ("return tensors['gate'].astype(complex)", "TypeError: "),
    ("tensors['gate'][:] = 0", "ValueError: assignment destination is read-only"),
    ("raise RuntimeError('first\\nsecond')", "RuntimeError: first"),
])
def test_a_file_of_python_that_is_wrong(katt, tmp_path, body, reason):
    (tmp_path / "own.py").write_text(f"def forward(case, tensors):\n    {body}\n")
    done = katt("sweep", "swiglu", *SWIGLU, "--candidate", tmp_path / "own.py", "-o", "out.h5")
    assert done.returncode == 1
    row = katt.variants()["own"]
    assert row["status"] == b"failed"
    assert reason in row["reason"].decode()


@pytest.mark.parametrize(
    "attempt",
    ["__import__('socket').socket()", "__import__('os').fork()", "open('file', 'w')",
     "__import__('os').kill(__import__('os').getppid(), 15)"],
)  # fmt: skip
def test_python_in_a_cage_cannot(katt, tmp_path, attempt):
    (tmp_path / "own.py").write_text(f"def forward(case, tensors):\n    {attempt}\n")
    done = katt("sweep", "swiglu", *SWIGLU, "--candidate", tmp_path / "own.py", "--untrusted", "-o", "out.h5")
    assert done.returncode == 1
    assert katt.variants()["own"]["reason"].startswith(b"PermissionError: ")


def test_a_sweep_file_names_candidates_and_resume_knows_them(katt, tmp_path):
    library = compiled(tmp_path, "tells", TELLS)
    (tmp_path / "own.py").write_text(NUMPY)
    (katt.folder / "sweep.toml").write_text(
        f'op = "swiglu"\ntokens = 5\nintermediate = 7\nvariant = "naive"\nthreads = 1\n'
        f'candidate = ["{library}", "second={tmp_path}/own.py"]\nrounds = 2\nuntrusted = true\n'
    )
    katt.runs("sweep", "sweep.toml", "-o", "out.h5")
    assert set(katt.variants()) == {"naive", "tells", "second"}
    assert "nothing left to do" in katt("sweep", "sweep.toml", "-o", "out.h5", "--resume").stderr
    assert "is the file of --candidate" in katt.refuses("sweep", "sweep.toml", "-o", tmp_path / "own.py", "--overwrite")
    (tmp_path / "own.py").write_text(NUMPY + "# edited\n")
    refused = katt.refuses("sweep", "sweep.toml", "-o", "out.h5", "--resume")
    assert "own.py: out.h5 holds rows of another file (" in refused and "SHA-256 " in refused


def test_a_sweep_that_was_killed_knows_its_candidates(katt, tmp_path):
    (tmp_path / "own.py").write_text(NUMPY)
    arguments = ("sweep", "swiglu", "--tokens", 5, "--intermediate", "7:400:+1", *SWIGLU[4:], "--candidate",
                 tmp_path / "own.py", "-o", "out.h5")  # fmt: skip
    process = katt.start(*arguments)
    while not (katt.folder / "out.h5").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.communicate()
    (tmp_path / "own.py").write_text(NUMPY + "# edited\n")
    refused = katt(*arguments, "--resume")  # it removes what the killed one left
    assert refused.returncode == 2 and "out.h5 holds rows of another file (" in refused.stderr


def refusal(katt, text, *more):
    return katt.refuses("sweep", "swiglu", *SWIGLU, "--candidate", text, *more, "-o", "out.h5")


def test_what_is_no_candidate_is_refused(katt, tmp_path):
    (tmp_path / "text.so").write_text("no library")
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "broken.py").write_text("def forward(:")
    assert "no such file" in refusal(katt, "missing.so")
    assert "is no file" in refusal(katt, f"folder={tmp_path}")
    assert "is no shared library" in refusal(katt, tmp_path / "text.so")
    assert "defines neither forward" in refusal(katt, tmp_path / "empty.py")
    assert "SyntaxError" in refusal(katt, tmp_path / "broken.py")
    assert "expected the path" in refusal(katt, "mine=")
    assert "is the name of a peer" in refusal(katt, f"torch_eager={tmp_path}/text.so")
    assert "expected NAME=PATH" in refusal(katt, tmp_path / "a-b.so")
    (tmp_path / "with,comma.py").write_text(NUMPY)
    ends = "; a comma separates candidates, expected paths without one"
    assert refusal(katt, "mine=with,comma.py") == f"katt: --candidate with: no such file{ends}"
    assert refusal(katt, "with,1-2.py").endswith(ends)
    (tmp_path / "sweep.toml").write_text('op = "swiglu"\ncandidate = ["mine=with,comma.py"]\n')
    assert katt.refuses("sweep", "sweep.toml", "-o", "out.h5").endswith(f": no such file{ends}")


def test_a_library_that_cannot_serve_is_refused(katt, tmp_path):
    other = compiled(tmp_path, "other", "int unrelated(void) { return 0; }\n")
    assert "has no katt_candidate_version" in refusal(katt, other)
    good = compiled(tmp_path, "good", "#include <katt/candidate.h>\n"
                    "int katt_candidate_forward(const katt_problem* p) { return p == NULL; }\n")  # fmt: skip
    assert "naive is a variant of swiglu" in refusal(katt, f"naive={good}")
    assert "is the name of a peer or of another candidate" in refusal(katt, f"x={good},x={good}")
    assert f"x is {good} elsewhere" in refusal(katt, f"x={good},x={other}")
    none = compiled(tmp_path, "none", "#include <katt/candidate.h>\n")
    assert "defines neither katt_candidate_forward nor katt_candidate_backward" in refusal(katt, none)
    newer = compiled(tmp_path, "newer", "#include <katt/candidate.h>\n"
                     "int katt_candidate_forward(const katt_problem* p) { return p == NULL; }\n"
                     "__attribute__((constructor)) static void newer(void) { katt_candidate_version = 99; }\n")  # fmt: skip
    assert "is compiled for version 99 of katt/candidate.h, expected 1" in refusal(katt, newer)
    open_end = compiled(tmp_path, "open_end", "#include <katt/candidate.h>\nint missing(void);\n"
                        "int katt_candidate_forward(const katt_problem* p) { return p == NULL || missing(); }\n")  # fmt: skip
    assert "undefined symbol: missing" in refusal(katt, open_end)
    crash = compiled(tmp_path, "crash", "#include <stdlib.h>\n#include <katt/candidate.h>\n"
                     "int katt_candidate_forward(const katt_problem* p) { return p == NULL; }\n"
                     "__attribute__((constructor)) static void crash(void) { abort(); }\n")  # fmt: skip
    assert "was ended by SIGABRT" in refusal(katt, crash)
    foreign = bytearray(other.read_bytes())
    foreign[18:20] = (0xF3).to_bytes(2, "little")  # RISC-V
    (tmp_path / "foreign.so").write_bytes(foreign)
    assert "is a library of another machine (ELF machine 243)" in refusal(katt, tmp_path / "foreign.so")
    done = subprocess.run(["cc", "-no-pie", "-x", "c", "-", "-o", tmp_path / "program"], input="int main(void) { return 0; }",
                          text=True, capture_output=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "is no shared library" in refusal(katt, tmp_path / "program")


def caged_toy(folder, *, writes):
    """The toy of test_peers.py, which leaves files behind or not."""
    text = (ROOT / "tests" / "cli" / "toy_peer.py").read_text()
    text = text.replace("/usr/bin/env python3", sys.executable)  # a shell around Python may fork
    path = folder / "toy"
    path.write_text(text if writes else re.sub(r"pathlib.Path.*write_text.*", "pass", text))
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(("writes", "status"), [(False, b"ok"), (True, b"failed")])
def test_a_peer_in_a_cage(katt, tmp_path, writes, status):
    done = katt("sweep", "swiglu", *SWIGLU, "--peer", "right", "--peer-program", caged_toy(tmp_path, writes=writes),
                "--untrusted", "-o", "out.h5")  # fmt: skip
    row = katt.variants()["right"]
    assert (row["status"], done.returncode) == (status, 1 if writes else 0), row["reason"]
    if writes:
        assert b"Permission denied" in row["reason"]
