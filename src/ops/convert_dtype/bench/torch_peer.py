"""Conversion of a matrix in PyTorch."""

from katt_peers.torch_case import DTYPES

OPERATOR = "convert"


def compute(case, t):
    """x in the dtype of the output"""
    return (t["x"].to(DTYPES[case.outputs[0].dtype], copy=True),)


def backward(case, t):
    """The other way; nothing is kept for it."""
    return compute(case, {"x": t["dout"]})
