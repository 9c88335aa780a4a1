"""`katt run --backend cuda` on the operator cases: every variant that accepts a case passes it."""

import json
import os
import subprocess

import h5py
import pytest
from check_case import wrong_datasets
from conftest import CASES, CASES_BESIDE, own_words, skipped_where_missing

CASE_FILES = [*sorted(CASES.glob("*.h5")), *(sorted(CASES_BESIDE.glob("*.h5")) or [CASES_BESIDE])]


@pytest.fixture(scope="session")
def variants():
    """Operator -> its forward variants on the device, the naive one first."""
    done = subprocess.run([os.environ["KATT"], "info", "--json"], capture_output=True, text=True, check=True)
    own_words(done.stderr)
    return {op["name"]: [variant["name"] for variant in op["variants"]
                         if (variant["backend"], variant["pass"]) == ("cuda", "forward")]
            for op in json.loads(done.stdout)["operators"]}  # fmt: skip


# Operators whose variants beside naive run on hosts only.
ON_HOSTS_ONLY = {"rmsnorm_linear"}


@pytest.mark.parametrize("case", map(skipped_where_missing, CASE_FILES))
def test_cases(katt, variants, case):
    """Naive takes every case, and so does the default; another variant refuses with one line."""
    with h5py.File(case) as file:
        op = file.attrs["op"]
    assert variants[op][0] == "naive"
    ran = set()
    for variant in ["auto", *variants[op]]:
        if variant in ran:  # auto was this one
            continue
        done = katt("run", op, "--in", case, "--out", "out.h5", "--overwrite", "--backend", "cuda", "--variant", variant)
        if done.returncode == 2 and variant not in ("auto", "naive"):
            assert len(done.stderr.splitlines()) == 1, done.stderr
            continue
        assert done.returncode == 0, (variant, done.stderr)
        wrong, _ = wrong_datasets(case, katt.folder / "out.h5")
        assert wrong == [], variant
        with h5py.File(katt.folder / "out.h5") as file:
            ran.add(file.attrs["variant"])
    assert len(ran) >= (1 if op in ON_HOSTS_ONLY else 2), ran
