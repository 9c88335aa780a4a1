"""oneDNN, called through its C interface (dnnl.h, version 3) without any binding. The folders of
the operators hold its computations, in bench/onednn_peer.py:

    steps(library, case, t)  a list of Primitives on the matrices t by name; the first names the engine"""

import ctypes
import glob
import os
import sys
import time

from .operators import function_of
from .processors import openmp
from .refusal import Refusal

# dnnl_types.h, dnnl_common_types.h
CPU, IN_ORDER, FORWARD_TRAINING, SOFTMAX, IMPLEMENTATION = 1, 1, 64, 0x30000, 8
SUCCESS, UNIMPLEMENTED = 0, 3
SRC, DST, WEIGHTS, BIAS, DIFF_SRC, DIFF_DST = 1, 17, 33, 41, 129, 145
DTYPES = {"f16": 1, "bf16": 2, "f32": 3}
BYTES = {"f16": 2, "bf16": 2, "f32": 4}
ONE = {"f16": b"\x00\x3c", "bf16": b"\x80\x3f", "f32": b"\x00\x00\x80\x3f"}

Dims = ctypes.c_int64 * 12
Pointer = ctypes.c_void_p


class Version(ctypes.Structure):
    _fields_ = [("major", ctypes.c_int), ("minor", ctypes.c_int), ("patch", ctypes.c_int), ("hash", ctypes.c_char_p),
                ("cpu_runtime", ctypes.c_uint), ("gpu_runtime", ctypes.c_uint)]  # fmt: skip


class Argument(ctypes.Structure):
    _fields_ = [("arg", ctypes.c_int), ("memory", Pointer)]


def load():
    """libdnnl of this environment, else of the system."""
    for path in [*glob.glob(os.path.join(sys.prefix, "lib", "libdnnl.so.3")), "libdnnl.so.3"]:
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise Refusal("peer oneDNN is not installed: there is no libdnnl.so.3; scripts/peers installs it")


class Library:
    """oneDNN on the CPU. A failed call raises RuntimeError, a call without a kernel in oneDNN
    Refusal."""

    def __init__(self):
        self._library = load()
        self._library.dnnl_version.restype = ctypes.POINTER(Version)
        version = self._library.dnnl_version().contents
        self.about = f"oneDNN {version.major}.{version.minor}.{version.patch}"
        self.engine = self.make("engine_create", ctypes.c_int(CPU), ctypes.c_size_t(0))
        self.stream = self.make("stream_create", self.engine, ctypes.c_uint(IN_ORDER))

    def call(self, function, *arguments):
        status = getattr(self._library, f"dnnl_{function}")(*arguments)
        if status == UNIMPLEMENTED:
            raise Refusal(f"oneDNN has no kernel for this case ({function})")
        if status != SUCCESS:
            raise RuntimeError(f"dnnl_{function} gave status {status}")

    def make(self, function, *arguments):
        """The result of a function of the form f(result*, …)."""
        made = Pointer()
        self.call(function, ctypes.byref(made), *arguments)
        return made

    def implementation(self, description):
        name = ctypes.c_char_p()
        self.call("primitive_desc_query", description, ctypes.c_int(IMPLEMENTATION), ctypes.c_int(0),
                  ctypes.byref(name))  # fmt: skip
        return name.value.decode()


class Matrix:
    """A row-major matrix on a boundary of 64 bytes."""

    def __init__(self, library, dtype, rows, columns, content=None):
        self.library, self.dtype, self.shape = library, dtype, (rows, columns)
        self.size = rows * columns * BYTES[dtype]
        self._storage = ctypes.create_string_buffer(self.size + 64)
        self.address = (ctypes.addressof(self._storage) + 63) // 64 * 64
        if content is not None:
            ctypes.memmove(self.address, content, self.size)

    def fill(self, byte):
        ctypes.memset(self.address, byte, self.size)

    def bytes(self):
        return ctypes.string_at(self.address, self.size)

    def view(self, transposed=False):
        """(description, memory) of the matrix, or of its transpose in place."""
        rows, columns = self.shape
        extents, strides = ((columns, rows), (1, columns)) if transposed else ((rows, columns), (columns, 1))
        description = self.library.make("memory_desc_create_with_strides", ctypes.c_int(2), Dims(*extents),
                                        ctypes.c_int(DTYPES[self.dtype]), Dims(*strides))  # fmt: skip
        return description, self.library.make("memory_create", description, self.library.engine, Pointer(self.address))


class Primitive:
    """A kernel with its arguments, {DNNL_ARG: memory}."""

    def __init__(self, library, description, memories):
        self.implementation = library.implementation(description)
        if self.implementation.startswith("ref"):
            raise Refusal(f"oneDNN has only its reference for this case ({self.implementation})")
        self._library = library
        self._primitive = library.make("primitive_create", description)
        self._arguments = (Argument * len(memories))(*memories.items())

    def execute(self):
        self._library.call("primitive_execute", self._primitive, self._library.stream,
                           ctypes.c_int(len(self._arguments)), self._arguments)  # fmt: skip


def product(library, out, a, b, bias=None):
    """out = a · b + bias, each a view."""
    none = Pointer()
    description = library.make("matmul_primitive_desc_create", library.engine, a[0], b[0], bias[0] if bias else none,
                               out[0], none)  # fmt: skip
    memories = {SRC: a[1], WEIGHTS: b[1], DST: out[1]}
    return Primitive(library, description, memories | ({BIAS: bias[1]} if bias else {}))


class OneDnnCase:
    """A list of primitives on matrices of its own, run one after the other."""

    def __init__(self, case):
        steps = function_of("onednn", case.op, "steps")
        if case.device != "cpu":
            raise Refusal("this peer computes on the CPU")
        library = Library()
        if openmp() is None:
            raise Refusal("this oneDNN was not built with OpenMP, so that its number of threads is not ours")
        openmp().omp_set_num_threads(case.threads)
        self._library, self._case, self._tensors = library, case, {}
        for spec in (*case.inputs, *case.outputs):
            rows, columns = spec.shape if len(spec.shape) == 2 else (1, *spec.shape)
            content = bytes(case.memory[spec.offset : spec.offset + rows * columns * BYTES[spec.dtype]])
            self._tensors[spec.name] = Matrix(library, spec.dtype, rows, columns, content)
        self._steps = steps(library, case, self._tensors)
        self._execute()
        self.about = library.about
        self.engine = self._steps[0].implementation.split(":")[-1]  # "brg:avx512_core_bf16"

    def run(self, times):
        """Runs and returns the seconds of one run, the mean of `times`."""
        start = time.perf_counter()
        for _ in range(times):
            self._execute()
        return (time.perf_counter() - start) / times

    def forget(self):
        for spec in self._case.outputs:
            self._tensors[spec.name].fill(0xFF)

    def read(self):
        """Copies the outputs into the shared memory."""
        for spec in self._case.outputs:
            content = self._tensors[spec.name].bytes()
            self._case.memory[spec.offset : spec.offset + len(content)] = content

    def _execute(self):
        for step in self._steps:
            step.execute()
        self._library.call("stream_wait", self._library.stream)
