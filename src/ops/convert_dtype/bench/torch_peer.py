"""Conversion of a matrix in PyTorch."""

from katt_peers.torch_case import DTYPES

OPERATOR = "convert"


def compute(case, t):
    """x in the dtype of the output"""
    return (t["x"].to(DTYPES[case.outputs[0].dtype], copy=True),)


backward = compute  # it converts the other way, and keeps nothing
