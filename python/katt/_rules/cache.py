"""Rules that have been traced before. A function that is made at every call, as a lambda in a layer's forward is, has
the code and names the values of the one before: its program is known, and only the arrays may be others."""

import functools
import sys
import types
from collections import ChainMap

import numpy

from .array_trace import names_in

PLAIN = (int, float, bool, str, bytes, type(None))  # what a trace reads by value
LIBRARIES = ("torch", "numpy", "math", "builtins")  # whose modules, types and functions do not change
FUNCTIONS = (types.BuiltinFunctionType, type(numpy.where), type)
FREE = (types.ModuleType, type, type(None))
MOST = 256  # programs


def is_torch_tensor(item):
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(item, torch.Tensor)


def is_of_library(module):
    return (module or "").partition(".")[0] in LIBRARIES


def is_fixed(item):
    """True for modules, types and functions of a library that read no object's contents."""
    if isinstance(item, types.ModuleType):
        return is_of_library(item.__name__)
    if isinstance(item, numpy.ufunc) or getattr(item, "__module__", None) == "torch._ops.aten":
        return True
    own = getattr(item, "__self__", None)  # a method's object
    return isinstance(item, FUNCTIONS) and is_of_library(item.__module__) and isinstance(own, FREE)


class Contents:
    """Contents that functions name: `key`, on which its program depends, and `arrays`, which the program reads.
    `is_known` is False where it names an object that a trace could read anything of."""

    def __init__(self, functions):
        self.arrays, self._parts, self._seen = [], [], {}
        self.is_known = self._visit(functions)
        self.key = tuple(self._parts)

    def _visit(self, item):
        if isinstance(item, types.FunctionType):
            return self._function(item)
        if isinstance(item, functools.partial):
            self._parts.append("partial")
            return self._all([item.func, *item.args, *item.keywords, *item.keywords.values()])
        if type(item) in (tuple, list):
            self._parts.append((type(item), len(item)))
            return self._all(item)
        if is_torch_tensor(item) or (isinstance(item, numpy.ndarray) and item.ndim):
            known = [n for n, array in enumerate(self.arrays) if array is item]
            place = known[0] if known else len(self.arrays)
            self._parts.append((str(item.dtype), str(getattr(item, "device", "")), tuple(item.shape), place))
            if not known:
                self.arrays.append(item)
            return True
        if isinstance(item, (numpy.generic, numpy.ndarray)):
            item = item.item()
        if type(item) not in PLAIN and not is_fixed(item):
            return False
        self._parts.append((type(item), repr(item) if isinstance(item, float) else item))
        return True

    def _function(self, function):
        if id(function) in self._seen:
            self._parts.append(("again", self._seen[id(function)]))
            return True
        self._seen[id(function)] = len(self._seen)
        self._parts.append(function.__code__)
        is_own = not is_of_library(function.__globals__.get("__name__"))
        if is_own and function.__dict__:
            return False
        try:
            named = [cell.cell_contents for cell in function.__closure__ or ()]
        except ValueError:  # a cell that is empty yet
            return False
        named += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        if is_own:  # a name that is not among the globals may be one of a module that the function imports
            names = sorted(names_in(function.__code__))
            known = ChainMap(function.__globals__, sys.modules)
            named += [known[name] for name in names if name in known]
        return self._all(named)

    def _all(self, items):
        return all([self._visit(item) for item in items])


_programs: dict[tuple, tuple] = {}


def traced(functions, trace):
    """trace(), a made thing and the arrays that it reads, for a tuple of functions and plain values; what was made
    before where they are known."""
    contents = Contents(functions)
    if not contents.is_known:
        return trace()
    known = _programs.pop(contents.key, None)
    if known is None:
        made, arrays = trace()
        places = [[n for n, each in enumerate(contents.arrays) if each is array] for array in arrays]
        read = [place[0] for place in places if place]
        if len(read) < len(places) or len(set(read)) < len(contents.arrays):
            return made, arrays  # the rule makes an array itself, or may have read one by value
        known = made, read
        if len(_programs) >= MOST:
            for oldest in list(_programs)[:1]:  # whose last use is longest ago; another thread may have taken it
                _programs.pop(oldest, None)
    _programs[contents.key] = known
    made, places = known
    return made, [contents.arrays[place] for place in places]
