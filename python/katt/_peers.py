"""Functions of Python as peers of a sweep.

The sweep starts one process for each peer and talks to it through inherited descriptors
(docs/peers.md). The process is a relay, a few lines below: it passes its descriptors to this
process, which serves the requests in a thread. So a function runs here, with all objects that it
refers to, for example a closure or a model in a notebook.
"""

from __future__ import annotations

import inspect
import math
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from shlex import quote

import numpy
from katt_peers.case import Case, Spec
from katt_peers.refusal import Refusal
from katt_peers.server import Server

RELAY = """\
# Hands the descriptors of a peer to the process that serves it, and waits until that has let go.
import socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [sys.argv[1].encode()], [0, 1, 3])
    server.recv(1)
"""


class PeerServer:
    """Serves functions while it is entered; `program` is the program for the sweep to start, None
    without functions."""

    def __init__(self, functions: Mapping[str, Callable], arrays: str):
        if arrays not in ("numpy", "torch"):
            raise ValueError(f"arrays: holds {arrays}, expected numpy or torch")
        for name, function in functions.items():
            if not callable(function):
                raise ValueError(f"peers: {name}: holds a {type(function).__name__}, expected a function")
        self._functions = dict(functions)
        self._arrays = arrays
        self.program: Path | None = None

    def __enter__(self) -> PeerServer:
        if not self._functions:
            return self
        self._folder = tempfile.TemporaryDirectory(prefix="katt-peers-")
        address = os.path.join(self._folder.name, "socket")
        relay = Path(self._folder.name) / "relay.py"
        relay.write_text(RELAY.format(address=address))
        self.program = relay.with_name("peer")
        self.program.write_text(f'#!/bin/sh\nexec {quote(sys.executable)} -ES {quote(str(relay))} "$1"\n')
        self.program.chmod(0o700)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        if self.program:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._folder.cleanup()

    def _accept(self) -> None:
        while True:
            try:
                relay, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(relay,), daemon=True).start()

    def _serve(self, relay: socket.socket) -> None:
        # The relay ends when its connection does, and with it the sweep sees the end of the peer.
        with relay:
            name, (requests, replies, memory), _, _ = socket.recv_fds(relay, 256, 3)
            function = self._functions[name.decode()]
            torch = sys.modules.get("torch")
            threads = torch.get_num_threads() if torch else 0
            # This thread has an OpenMP team of its own, which is bound to processors as the sweep asks.
            server = Server(lambda case: FunctionCase(case, function, self._arrays), memory)
            try:
                with open(requests, encoding="utf-8") as lines, open(replies, "w", encoding="utf-8") as answers:
                    server.answer_all(lines, answers)
            except OSError:  # the sweep has ended, or ended the peer
                pass
            finally:
                os.close(memory)
                if torch:
                    torch.set_num_threads(threads)


class FunctionCase:
    """A case of a sweep on a function, in the form for katt_peers.server.Server."""

    def __init__(self, case: Case, function: Callable, arrays: str):
        self._case = case
        self._library = TorchArrays(case) if arrays == "torch" else NumPyArrays(case)
        self.about = f"{self._library.about}, in Python {sys.version.split()[0]}"
        self._function = function
        self._inputs = {spec.name: self._library.input(spec) for spec in case.inputs}
        self._arguments = arguments_of(function, case, self._inputs)
        self._results = ()
        self.run(1)  # the first call may compile

    def run(self, times: int) -> float:
        """Seconds of one run, the mean of `times`."""
        start = time.perf_counter()
        for _ in range(times):
            results = self._function(**self._arguments)
        seconds = (time.perf_counter() - start) / times
        self._results = tuple(results) if isinstance(results, (tuple, list)) else (results,)
        return seconds

    def take(self, spec: Spec, first: int, count: int) -> bool:
        """Takes over elements of an input that the sweep has changed; False where they do not follow each other."""
        if swapped(self._case, len(spec.shape)):
            return False
        part = slice(first, first + count)
        self._inputs[spec.name].reshape(-1)[part] = self._library.shared(spec).reshape(-1)[part]
        return True

    def forget(self) -> None:
        self._results = ()

    def read(self) -> None:
        """Writes the results of the last run where the sweep reads them."""
        expected = self._case.outputs
        if len(self._results) != len(expected):
            names = ", ".join(spec.name for spec in expected)
            raise ValueError(f"the function gave {len(self._results)} results, expected {len(expected)}: {names}")
        for spec, result in zip(expected, self._results, strict=True):
            if tuple(result.shape) != spec.shape:
                raise ValueError(f"{spec.name}: holds shape {tuple(result.shape)}, expected {spec.shape}")
            self._library.write(spec, result)


def arguments_of(function: Callable, case: Case, inputs: dict) -> dict:
    """The names of a function's parameters."""
    known = {**case.axes, **case.parameters, "threads": case.threads, "dtype": case.dtype, **inputs}
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return known
    missing = [p.name for p in parameters if p.default is p.empty and p.name not in known]
    if missing:
        raise ValueError(f"the function asks for {', '.join(missing)}, expected names among {', '.join(known)}")
    return {parameter.name: known[parameter.name] for parameter in parameters if parameter.name in known}


def swapped(case: Case, rank: int) -> bool:
    """True when (batch, head, seq, dim) is stored as (batch, seq, head, dim)."""
    return case.axes.get("layout") == "bshd" and rank == 4


class NumPyArrays:
    """Tensors as arrays of NumPy; its BLAS has threads of its own, whose number a sweep does not set."""

    def __init__(self, case: Case):
        self._case = case
        self.about = f"numpy {numpy.__version__}"

    def _dtype(self, spec):
        if spec.dtype != "bf16":
            return {"f32": numpy.float32, "f16": numpy.float16, "i64": numpy.int64}[spec.dtype]
        try:
            import ml_dtypes
        except ImportError:
            raise Refusal("arrays of NumPy have bf16 only with the package ml_dtypes") from None
        return ml_dtypes.bfloat16

    def shared(self, spec):
        flat = numpy.frombuffer(self._case.memory, self._dtype(spec), math.prod(spec.shape), spec.offset)
        return flat.reshape(spec.shape)

    def input(self, spec):
        array = self.shared(spec).copy()
        return array.swapaxes(1, 2).copy().swapaxes(1, 2) if swapped(self._case, array.ndim) else array

    def write(self, spec, result):
        self.shared(spec)[...] = result


class TorchArrays:
    """Tensors of PyTorch, on the threads that the row says."""

    def __init__(self, case: Case):
        import torch

        self._case = case
        self._torch = torch
        self._dtypes = {
            "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i64": torch.int64
        }  # fmt: skip
        torch.set_num_threads(case.threads)
        self.about = f"torch {torch.__version__}"

    def shared(self, spec):
        flat = self._torch.frombuffer(
            self._case.memory, dtype=self._dtypes[spec.dtype], count=math.prod(spec.shape), offset=spec.offset
        )
        return flat.view(spec.shape)

    def input(self, spec):
        tensor = self.shared(spec).clone()
        return tensor.transpose(1, 2).contiguous().transpose(1, 2) if swapped(self._case, tensor.dim()) else tensor

    def write(self, spec, result):
        self.shared(spec).copy_(result.detach())
