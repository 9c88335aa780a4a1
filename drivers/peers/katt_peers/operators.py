"""An operator's code for a library: the module bench/LIBRARY_peer.py in its folder."""

import importlib.util
import sys
from functools import cache
from pathlib import Path

from .refusal import Refusal

SOURCE = Path(__file__).resolve().parents[3] / "src"  # scripts/peers installs this package in place


@cache
def load(path):
    """The module of a file in an operator's folder bench; its name is unique among those of all operators."""
    spec = importlib.util.spec_from_file_location(f"katt_{path.parents[1].name}_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # torch.compile imports the modules of a function by name
    spec.loader.exec_module(module)
    return module


@cache
def modules(library):
    """The modules for a library by operator; the name is that of the folder, or OPERATOR."""
    found = {}
    for path in sorted(SOURCE.glob(f"*/*/bench/{library}_peer.py")):
        module = load(path)
        found[getattr(module, "OPERATOR", path.parents[1].name)] = module
    return found


def function_of(library, op, name):
    """An operator's function of that name for a library; raises Refusal when it has none."""
    having = {op: getattr(module, name) for op, module in modules(library).items() if hasattr(module, name)}
    if op not in having:
        raise Refusal(f"this peer computes {', '.join(having)}, not {op}")
    return having[op]


def operators_with(library, names):
    """The operators whose module for a library has one of these functions."""
    return [op for op, module in modules(library).items() if any(hasattr(module, name) for name in names)]
