"""`katt info`, help and version."""

import json
import os
from pathlib import Path

import pytest


def test_json(katt):
    done = katt("info", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    info = json.loads(done.stdout)
    assert info["build"]["kokkos"] and info["version"]
    assert info["machine"]["cores"] >= 1
    files, model = info["code"]["files"], set(info["code"]["model"])
    assert {"src/nn/runner.hpp", "src/training/trainer.cpp", "src/ops/linear/gemm/gemm.cpp"} <= model < set(files)
    assert "src/ops/softmax/softmax.cpp" in set(files) - model
    assert {backend["name"] for backend in info["backends"]} == {"openmp", "serial", "cuda"}
    attention = next(op for op in info["operators"] if op["name"] == "attention")
    names = {variant["name"] for variant in attention["variants"]}
    assert {"naive", "flash"} <= names
    baselines = {variant["name"] for variant in attention["variants"] if variant["baseline"]}
    assert baselines == {"naive"}
    assert info["devices"] == []  # of a build without CUDA
    host = info["machine"]["topology"]
    assert {"id", "socket", "node", "core"} == set(host["processors"][0])
    assert os.sched_getaffinity(0) <= {processor["id"] for processor in host["processors"]}
    assert host["sockets"] <= host["cores"] <= len(host["processors"])
    assert info["machine"]["caches"][0]["bytes"] >= 1024 and "counters_refusal" in info["machine"]
    assert any(variant["tiles"] for variant in attention["variants"])
    # Which of them this machine runs, with the reason where it does not.
    refusals = {(variant["name"], variant["pass"]): variant["refusal"] for variant in attention["variants"]}
    assert refusals["naive", "forward"] == refusals["flash", "backward"] == refusals["decode", "forward"] == ""
    assert (refusals["flash_amx", "forward"] == "") == (info["machine"]["amx_refusal"] == "")


def test_one_screen(katt):
    done = katt.runs("info")
    for word in ("commit", "Kokkos", "socket", "NUMA node", "naive", "flash", "memory", "caches", "counters", "cuda"):
        assert word in done.stdout
    assert len(done.stdout.splitlines()) <= 40
    info = json.loads(katt("info", "--json").stdout)
    for operator in info["operators"]:
        line = next(line for line in done.stdout.splitlines() if line.split()[:1] == [operator["name"]])
        here = line.split("; not here: ")[0].split()[1:]
        assert set(here) == {v["name"] for v in operator["variants"] if v["refusal"] == ""}
        assert {v["name"] for v in operator["variants"]} == set(line.replace("; not here:", "").split()[1:])


def test_one_operator(katt):
    done = katt.runs("info", "attention")
    for words in ("--seq, --seq-q", "f32, f16, bf16", "forward on openmp", "q (B, Hq, Sq, D)", "mask ", " optional",
                  "dk "):
        assert words in done.stdout
    for variant in ("flash_amx", "flash_avx512_bf16"):
        operators = json.loads(katt("info", "--json").stdout)["operators"]
        attention = next(op for op in operators if op["name"] == "attention")
        refusals = {v["refusal"] for v in attention["variants"] if v["name"] == variant}
        line = next(line for line in done.stdout.splitlines() if line.split()[:1] == [variant])
        assert all((not reason) or reason in done.stdout for reason in refusals) and line
    assert "rmsnorm" not in done.stdout
    (alone,) = json.loads(katt("info", "attention", "--json").stdout)["operators"]
    assert alone["name"] == "attention"
    for operator in ("linear", "ternary_linear", "linear_cross_entropy", "llama_block", "all_reduce"):
        assert katt("info", operator).stdout.startswith(f"{operator}: ")


def test_all(katt):
    done = katt.runs("info", "--all")
    for word in ("flags", "isa", "huge pages", "tiles 64x64", "attention: ", "rmsnorm: "):
        assert word in done.stdout


def test_blas_has_kernels_of_this_cpu(katt):
    """OpenBLAS gives an unknown CPU the kernels of one with only SSE; the program selects others,
    unless the user has chosen."""

    def kernels(**more):
        line = next(line for line in katt("info", **more).stdout.splitlines() if line.split()[:1] == ["BLAS"])
        return line.split("kernels of ")[1] if "kernels of " in line else None

    if kernels() is None:
        pytest.skip("skipped: the BLAS is not OpenBLAS")
    flags = set(Path("/proc/cpuinfo").read_text().split())
    if "avx2" in flags:
        assert kernels() not in ("Prescott", "Core2", "Penryn", "Nehalem", "Sandybridge", "Barcelona", "Atom")
    assert kernels(env={"OPENBLAS_CORETYPE": "Nehalem"}) == "Nehalem"


def test_measure(katt):
    done = katt.runs("info", "--json", "--measure", "--threads", "1")
    info = json.loads(done.stdout)
    assert {row["threads"] for row in info["ceilings"]} == {1}
    values = {row["name"]: row["value"] for row in info["ceilings"]}
    assert values["fma_f32"] > 0 and values["read_dram"] > 0
    # Without AMX the reason is told.
    assert ("amx_bf16" in values) == (info["machine"]["amx_refusal"] == "")


def test_help_and_version(katt):
    for arguments in (
        ("--help",),
        ("sweep", "--help"),
        ("sweep", "attention", "--help"),
        ("run", "--help"),
        ("info", "--help"),
    ):
        done = katt(*arguments)
        assert (done.returncode, done.stderr) == (0, ""), arguments
        assert "katt" in done.stdout
    assert "--window" in katt("sweep", "attention", "--help").stdout
    assert katt("--version").stdout.startswith("katt ")
