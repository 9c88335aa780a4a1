"""python -m katt_peers.candidate FILE.py: answers a sweep's requests with the functions of a file: `katt sweep OP
--candidate FILE.py`; docs/candidates.md. It needs NumPy and nothing else.

    def forward(case, tensors):      # and, or, backward
        return tensors["x"] * 2

`tensors` are the inputs by name, arrays that cannot be written. The function returns the outputs in the order of
`case.outputs`, one array or a tuple of them; or writes to the arrays of `case.outputs` and returns None. Optional are
`supports(case)`, the reason why a case is not computed or None, and `about()`, one line for the result file."""

import importlib.util
import json
import math
import mmap
import os
import queue
import signal
import sys
import threading
import time
from dataclasses import dataclass

import numpy

from .cage import settle
from .processors import allow
from .refusal import Refusal
from .server import first_line, keep_freed_memory, private_lines

INPUTS, OUTPUTS = 3, 4  # descriptors of the memory


@dataclass(frozen=True)
class Case:
    """A case to compute. `axes` holds every axis of the operator, `parameters` the other numbers (scale, eps)."""

    op: str
    backward: bool
    threads: int
    dtype: str  # f32, f16 or bf16
    axes: dict
    parameters: dict
    outputs: dict  # name → array to write


def dtype_of(name):
    """The dtype of NumPy; bf16 is that of the package ml_dtypes."""
    if name != "bf16":
        return {"f32": numpy.float32, "f16": numpy.float16, "i64": numpy.int64, "u8": numpy.uint8}[name]
    try:
        import ml_dtypes
    except ImportError:
        raise Refusal("arrays of NumPy have bf16 only with the package ml_dtypes") from None
    return ml_dtypes.bfloat16


def arrays(specs, memory):
    """Arrays by name, in place."""
    made = {}
    for spec in specs:
        flat = numpy.frombuffer(memory, dtype_of(spec["dtype"]), math.prod(spec["shape"]), spec["offset"])
        made[spec["name"]] = flat.reshape(spec["shape"])
    return made


def load(path):
    """The file as a module."""
    spec = importlib.util.spec_from_file_location("katt_candidate", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["katt_candidate"] = module
    spec.loader.exec_module(module)
    return module


class Candidate:
    def __init__(self, path):
        self._module = load(path)
        self._passes = [name for name in ("forward", "backward") if callable(getattr(self._module, name, None))]
        if not self._passes:
            raise ValueError("defines neither forward(case, tensors) nor backward(case, tensors)")
        tell = getattr(self._module, "about", None)
        said = str(tell()) if callable(tell) else (self._module.__doc__ or "").strip()
        version = f"numpy {numpy.__version__}, Python {sys.version.split()[0]}"
        self._about = "; ".join(filter(None, [said.splitlines()[0][:200] if said else "", version]))
        self._run = None

    def answer(self, request):
        match request["do"]:
            case "about":
                return {"ok": True, "about": self._about, "passes": self._passes}
            case "open":
                return self._open(request)
            case "run":
                start = time.perf_counter()
                for _ in range(request["times"]):
                    self._run()
                return {"seconds": (time.perf_counter() - start) / max(1, request["times"])}
            case "forget" | "read" | "inputs":  # the tensors are in the shared memory
                pass
            case "close":
                self._run = None
            case other:
                return {"failed": f"unknown request {other}"}
        return {"ok": True}

    def _open(self, request):
        allow(request["bound"] or request["processors"])
        if request["pass"] not in self._passes:
            raise Refusal(f"it has no function {request['pass']}")
        if request["backend"] == "cuda":
            raise Refusal("candidates run on the CPU")
        if request["axes"].get("layout") == "bshd":
            raise Refusal("candidates get tensors as (batch, head, seq, dim), not as bshd")
        tensors = arrays(request["inputs"], mmap.mmap(INPUTS, request["bytes"], access=mmap.ACCESS_READ))
        outputs = arrays(request["outputs"], mmap.mmap(OUTPUTS, request["output_bytes"]))
        case = Case(
            op=request["op"],
            backward=request["pass"] == "backward",
            threads=max(1, request["threads"]),
            dtype=request["dtype"],
            axes=request["axes"],
            parameters=request["parameters"],
            outputs=outputs,
        )
        supports = getattr(self._module, "supports", None)
        if reason := supports and supports(case):
            raise Refusal(str(reason))
        function = getattr(self._module, request["pass"])
        self._run = lambda: put(function(case, tensors), outputs)
        return {"ok": True, "about": self._about, "inputs": True, "in_place": True}


def spin(request, sleepers):
    """Work of a known length, before the file is loaded: the sweep measures what a request takes beside it. This
    thread runs where the first of the kernel's will. `sleepers`: the numbers of sleeping threads, one on each other
    processor, which this starts; drivers/candidate/main.cpp says what for."""
    bound = request["bound"]
    if bound and not sleepers:
        allow(bound[:1])
        sleepers.extend(start_sleeper(processor) for processor in bound[1:])
    start = time.perf_counter()
    while (spent := time.perf_counter() - start) < request["seconds"]:
        pass
    return {"seconds": spent, "sleepers": sleepers}


def start_sleeper(processor):
    started = queue.SimpleQueue()

    def sleep():
        allow([processor])
        started.put(threading.get_native_id())
        queue.SimpleQueue().get()  # for ever

    threading.Thread(target=sleep, daemon=True).start()
    return started.get()


def put(results, outputs):
    """Writes what the function returned; its time is the function's."""
    if results is None:  # it wrote them itself
        return
    results = results if isinstance(results, (tuple, list)) else (results,)
    if len(results) != len(outputs):
        raise ValueError(f"it returned {len(results)} arrays, expected {len(outputs)}: {', '.join(outputs)}")
    for (name, target), result in zip(outputs.items(), results, strict=True):
        array = numpy.asarray(result)
        if array.shape != target.shape:
            raise ValueError(f"{name}: holds shape {array.shape}, expected {target.shape}")
        numpy.copyto(target, array, casting="same_kind")


def main():
    requests, replies = private_lines()
    keep_freed_memory()
    settle()
    candidate, sleepers = None, []
    for line in requests:
        request = json.loads(line)
        try:
            if candidate is None and request["do"] in ("about", "open"):
                candidate = Candidate(sys.argv[1])
            reply = candidate.answer(request) if candidate else spin(request, sleepers)
        except Refusal as refusal:
            reply = {"skipped": str(refusal)[:500]}
        except Exception as error:  # every exception of the file is the row's reason
            reply = {"failed": f"{type(error).__name__}: {first_line(error)[:500]}"}
        if "id" in request:
            reply["id"] = request["id"]
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
        os.kill(os.getpid(), signal.SIGSTOP)  # until the next request: no thread goes on
    os._exit(0)


if __name__ == "__main__":
    main()
