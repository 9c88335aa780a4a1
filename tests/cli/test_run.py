"""`katt run` on the operator cases, judged by their own checker, with every variant and tile."""

import json
import os
import subprocess
import sys

import pytest

from conftest import CASES, ROOT  # noqa: F401


def case_files():
    if not CASES.is_dir():
        return []
    return sorted(CASES.glob("attention_*.h5")) + sorted(CASES.glob("real_*.h5"))


def variants():
    """(variant, tile) of attention on the backends of this build, from `katt info`."""
    if "KATT" not in os.environ:
        return []
    info = json.loads(subprocess.run([os.environ["KATT"], "info", "--json"], capture_output=True, text=True,
                                     check=True).stdout)
    found = []
    for op in info["operators"]:
        for variant in op["variants"] if op["name"] == "attention" else []:
            if variant["pass"] == "forward":
                found += [(variant["backend"], variant["name"], tile) for tile in [None, *variant["tiles"]]]
    return found


@pytest.mark.parametrize("case", case_files(), ids=lambda path: path.stem)
def test_cases(katt, cases, case):
    """Refused tiles are told apart: they must say why, and the default must run."""
    ran = 0
    for backend, variant, tile in variants():
        arguments = ["run", "attention", "--in", case, "--out", "out.h5", "--variant", variant, "--backend", backend]
        if tile:
            q, kv = tile.split("x")
            arguments += ["--tile-q", q, "--tile-kv", kv]
        done = katt(*arguments)
        if done.returncode == 2 and tile:
            assert len(done.stderr.splitlines()) == 1, done.stderr
            continue
        assert done.returncode == 0, (arguments, done.stderr)
        check = subprocess.run([sys.executable, str(cases / "check_case.py"), str(case), str(katt.folder / "out.h5")],
                               capture_output=True, text=True, check=False)
        # Gradients are not written yet: their absence is the only thing that may be amiss.
        problems = [line for line in check.stdout.splitlines()
                    if not line.startswith(("ok", "FAIL")) and not line.startswith("d") ]
        assert problems == [], (backend, variant, tile, problems)
        ran += 1
    assert ran > 0


def test_threads_and_backends_agree(katt, cases):
    for arguments in (["--threads", "1"], ["--threads", "2"], ["--backend", "serial"]):
        done = katt("run", "attention", "--in", cases / "attention_f32_full.h5", "--out", "out.h5", *arguments)
        assert done.returncode == 0, done.stderr
