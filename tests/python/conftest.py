"""Fixtures of the tests of the package katt. The package that is tested is the installed one, or that of a build tree
on PYTHONPATH; where there is none, they are skipped."""

import signal
from pathlib import Path

import numpy
import pytest

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / "tests" / "cases"
TINY = CASES / "llama_tiny"

# Largest error against float64 beside the largest value, in units of the dtype's rounding.
TOLERANCE = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}


@pytest.fixture
def generator():
    return numpy.random.default_rng(7)


def bfloat16():
    return pytest.importorskip("ml_dtypes").bfloat16


@pytest.fixture(params=["float32", "float16", "bfloat16"])
def dtype(request):
    return numpy.dtype(bfloat16() if request.param == "bfloat16" else request.param)


def close(actual, expected, dtype=None):
    """True when an array agrees with its float64 reference as well as its dtype allows."""
    actual = numpy.asarray(actual)
    limit = TOLERANCE[str(dtype or actual.dtype)]
    difference = numpy.abs(actual.astype(numpy.float64) - expected)
    scale = max(1.0, float(numpy.abs(expected).max(initial=0)))
    assert actual.shape == expected.shape
    assert difference.max(initial=0) <= limit * scale, (difference.max(), limit * scale)


def array(*shape):
    return numpy.random.default_rng(1).standard_normal(shape).astype(numpy.float32)


def ids(*shape):
    return numpy.zeros(shape, numpy.int64)


EXTENTS = {"batch": 1, "heads": 2, "kv_heads": 2, "seq_q": 4, "head_dim": 8, "cache_rows": 8, "out_features": 8,
           "intermediate": 8}  # fmt: skip


def right_tensor(tensor):
    """An array as a tensor of a schema: rows are (2, 3, …), other axes 16 long."""
    shape = []
    for axis in tensor.axes:
        rows = (6,) if tensor.is_hidden else (2, 3)
        shape += rows if axis == "tokens" else [int(axis) if axis.isdigit() else EXTENTS.get(axis, 16)]
    return ids(*shape) if tensor.element == "i64" else array(*shape)


def pytest_addoption(parser):
    parser.addoption("--programs", type=int, default=100, help="random score rules that test_random_rules.py runs")
