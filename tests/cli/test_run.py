"""`katt run` on the operator cases, judged by their own checker, with every variant and tile."""

import json
import os
import subprocess
import sys

import h5py
import pytest

from conftest import CASES, ROOT  # noqa: F401


def case_files():
    return sorted(CASES.glob("*.h5")) if CASES.is_dir() else []


def variants(op):
    """(backend, variant, tile) of an operator, its forward variants in order, from `katt info`."""
    info = json.loads(subprocess.run([os.environ["KATT"], "info", "--json"], capture_output=True, text=True,
                                     check=True).stdout)
    described = next(entry for entry in info["operators"] if entry["name"] == op)
    return [(variant["backend"], variant["name"], tile)
            for variant in described["variants"] if variant["pass"] == "forward"
            for tile in [None, *variant["tiles"]]]


@pytest.mark.parametrize("case", case_files(), ids=lambda path: path.stem)
def test_cases(katt, cases, case):
    """Every variant that accepts a case passes it, and so do the forward outputs of every tile. A refusal is one
    line; the naive variant, which comes first on each backend, and the operator's default refuse nothing."""
    with h5py.File(case) as file:
        op = file.attrs["op"]
    seen = set()
    for backend, variant, tile in [("serial", None, None), *variants(op)]:
        arguments = ["run", op, "--in", case, "--out", "out.h5", "--backend", backend]
        if variant:
            arguments += ["--variant", variant]
        if tile:
            q, kv = tile.split("x")
            arguments += ["--tile-q", q, "--tile-kv", kv]
        done = katt(*arguments)
        first = variant is None or backend not in seen
        if variant:
            seen.add(backend)
        if done.returncode == 2 and not first:
            assert len(done.stderr.splitlines()) == 1, done.stderr
            continue
        assert done.returncode == 0, (arguments, done.stderr)
        check = subprocess.run([sys.executable, str(cases / "check_case.py"), str(case), str(katt.folder / "out.h5")],
                               capture_output=True, text=True, check=False)
        wrong = [line for line in check.stdout.splitlines() if not line.startswith(("ok", "FAIL"))]
        if tile:
            wrong = [line for line in wrong if not line.startswith("d")]  # the gradients
        assert check.stdout and wrong == [] and (tile or check.returncode == 0), (backend, variant, tile, check.stdout, check.stderr)


def test_threads_and_backends_agree(katt, cases):
    for arguments in (["--threads", "1"], ["--threads", "2"], ["--backend", "serial"]):
        done = katt("run", "attention", "--in", cases / "attention_f32_full.h5", "--out", "out.h5", *arguments)
        assert done.returncode == 0, done.stderr
