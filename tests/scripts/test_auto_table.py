"""scripts/auto_table prints what a sweep of naive and auto measured; experiments/auto_table walks every operator."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SWEEP = ROOT / "experiments" / "auto_table" / "sweep.toml"


def operators():
    done = subprocess.run([os.environ["KATT"], "info", "--json"], check=True, capture_output=True)
    return {op["name"]: {one["name"] for one in op["variants"]} for op in json.loads(done.stdout)["operators"]}


def table(*files):
    return subprocess.run(
        [sys.executable, ROOT / "scripts" / "auto_table", *files], capture_output=True, text=True, check=False
    )


def intervals_of(done):
    return [tuple(map(float, bounds)) for bounds in re.findall(r"([0-9.]+)–([0-9.]+)", done.stdout)]


def test_a_line_for_every_point(tmp_path):
    if "softmax" not in operators():
        pytest.skip("a build without softmax")
    made = tmp_path / "softmax.h5"
    sweep = ["sweep", "softmax", "--tokens", "4,64", "--vocab", "100", "--dtype", "f32,bf16", "--variant", "naive,auto",
             "--pass", "forward,backward", "--threads", "1", "--budget-s", "0.001", "--no-ceilings", "-o", made]  # fmt: skip
    subprocess.run([os.environ["KATT"], *sweep], check=True, capture_output=True)
    done = table(made)
    assert done.returncode == 0, done.stderr
    head, *lines, sums = done.stdout.splitlines()
    assert head.split()[:4] == ["operator", "pass", "dtype", "point"]
    assert [line.split()[:5] for line in lines] == [
        ["softmax", one, dtype, "tokens", tokens]
        for one in ("forward", "backward")
        for dtype in ("f32", "bf16")
        for tokens in ("4", "64")
    ]
    assert all(" fused " in line for line in lines)
    assert sums.startswith("8 points: ")
    # A second run of the sweep: the same lines, with intervals that hold those of both.
    again = tmp_path / "again.h5"
    subprocess.run([os.environ["KATT"], *sweep[:-1], again], check=True, capture_output=True)
    intervals = [intervals_of(one) for one in (done, table(again), table(made, again))]
    assert intervals[2] == [(min(one[0], two[0]), max(one[1], two[1])) for one, two in zip(*intervals[:2], strict=True)]


def test_what_is_no_result_file_is_refused(tmp_path):
    other = tmp_path / "other.h5"
    other.write_text("words")
    done = table(other)
    assert done.returncode == 2
    assert done.stderr.startswith(f"katt: {other}: holds ") and len(done.stderr.splitlines()) == 1


def test_the_sweep_walks_every_operator():
    with open(SWEEP, "rb") as file:
        walked = {sweep["op"] for sweep in tomllib.load(file)["sweep"]}
    assert {name for name, variants in operators().items() if "naive" in variants} <= walked
