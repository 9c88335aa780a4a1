"""oneDNN, called through its C interface (dnnl.h, version 3) without any binding. The folders of
the operators hold its computations, in bench/onednn_peer.py:

    steps(library, case, t)           a list of Primitives, or of a Graph's parts, on the matrices t by name; the first
                                      names the engine
    training_steps(library, case, t)  the same for the peer onednn_training"""

import ctypes
import math
import os
import sys
import time
from functools import cache

from .operators import function_of
from .processors import bind_busy, openmp
from .refusal import Refusal

# dnnl_types.h, dnnl_common_types.h
CPU, IN_ORDER, IMPLEMENTATION = 1, 1, 8
FORWARD_TRAINING, FORWARD_INFERENCE, BACKWARD = 64, 96, 128
SOFTMAX, SWISH, ADD, MULTIPLY = 0x30000, 0x2C, 0x1FFF0, 0x1FFF1
SUCCESS, UNIMPLEMENTED = 0, 3
USE_SCALE, USE_SHIFT, RMS_NORM = 2, 4, 32
SRC, SRC_1, DST, WEIGHTS, BIAS, MEAN, VARIANCE, SCALE, SHIFT = 1, 2, 17, 33, 41, 49, 50, 51, 52
DIFF_SRC, DIFF_DST, DIFF_SCALE, DIFF_SHIFT = 129, 145, 255, 256
OPENMP, TBB, SYCL = 2, 4, 512  # how it runs on threads
DTYPES = {"f16": 1, "bf16": 2, "f32": 3, "s32": 4, "boolean": 8}
BYTES = {"f16": 2, "bf16": 2, "f32": 4, "s32": 4, "boolean": 1}
ONE = {"f16": b"\x00\x3c", "bf16": b"\x80\x3f", "f32": b"\x00\x00\x80\x3f"}  # 1.0
# Libraries that the wheel's libdnnl needs, each before those that need it; the last runs SYCL on a CPU.
NEEDED = ["libtbb.so.12", "libintlc.so.5", "libirng.so", "libsvml.so", "libimf.so", "libumf.so.1", "libsycl.so.9"]
OPENCL = "libintelocl.so"

Dims = ctypes.c_int64 * 12
Pointer = ctypes.c_void_p


class Version(ctypes.Structure):
    _fields_ = [("major", ctypes.c_int), ("minor", ctypes.c_int), ("patch", ctypes.c_int), ("hash", ctypes.c_char_p),
                ("cpu_runtime", ctypes.c_uint), ("gpu_runtime", ctypes.c_uint)]  # fmt: skip


class Argument(ctypes.Structure):
    _fields_ = [("arg", ctypes.c_int), ("memory", Pointer)]


class Limit(ctypes.Structure):
    """tbb::global_control"""

    _fields_ = [("value", ctypes.c_size_t), ("reserved", ctypes.c_ssize_t), ("parameter", ctypes.c_int)]


def load():
    """libdnnl of this environment, whose libraries the loader does not find by itself; else of the system."""
    folder = os.path.join(sys.prefix, "lib")
    if os.path.exists(os.path.join(folder, "libdnnl.so.3")):
        os.environ["OCL_ICD_FILENAMES"] = os.path.join(folder, OPENCL)
        for name in NEEDED:
            if os.path.exists(os.path.join(folder, name)):
                ctypes.CDLL(os.path.join(folder, name), ctypes.RTLD_GLOBAL)
    reasons = []
    for path in [os.path.join(folder, "libdnnl.so.3"), "libdnnl.so.3"]:
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            reasons.append(str(error))
    raise Refusal(f"peer oneDNN is not installed: scripts/peers installs it ({reasons[0]})")


class Library:
    """oneDNN on the CPU. A failed call raises RuntimeError, a call without a kernel in oneDNN
    Refusal."""

    def __init__(self):
        self._library = load()
        self._library.dnnl_version.restype = ctypes.POINTER(Version)
        version = self._library.dnnl_version().contents
        self.about = f"oneDNN {version.major}.{version.minor}.{version.patch}"
        self._runtime = version.cpu_runtime
        self._limit = None
        try:
            self.engine = self.make("engine_create", ctypes.c_int(CPU), ctypes.c_size_t(0))
        except RuntimeError as error:  # a runtime of SYCL without a device for this CPU
            raise Refusal(f"{self.about} finds no CPU to run on ({error})") from error
        self.stream = self.make("stream_create", self.engine, ctypes.c_uint(IN_ORDER))

    def set_threads(self, count):
        if self._runtime == OPENMP and openmp() is not None:
            openmp().omp_set_num_threads(count)
        elif self._runtime in (TBB, SYCL):
            tbb = ctypes.CDLL("libtbb.so.12")
            if self._limit:
                tbb._ZN3tbb6detail2r17destroyERNS0_2d114global_controlE(ctypes.byref(self._limit))
            self._limit = Limit(count, 0, 0)  # max_allowed_parallelism
            tbb._ZN3tbb6detail2r16createERNS0_2d114global_controlE(ctypes.byref(self._limit))
        else:
            raise Refusal("this oneDNN was built with neither OpenMP nor TBB, so its number of threads is not ours")

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

    def run(self, steps):
        """Runs the steps to their end."""
        for step in steps:
            step.execute()
        self.call("stream_wait", self.stream)

    def implementation(self, description):
        name = ctypes.c_char_p()
        self.call("primitive_desc_query", description, ctypes.c_int(IMPLEMENTATION), ctypes.c_int(0),
                  ctypes.byref(name))  # fmt: skip
        return name.value.decode()


@cache
def loaded():
    """One oneDNN in a process, whose number of threads is that of the last case."""
    return Library()


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
        return self._seen((columns, rows), (1, columns)) if transposed else self._seen((rows, columns), (columns, 1))

    def vector(self):
        """(description, memory) of the elements in one dimension."""
        return self._seen((math.prod(self.shape),), (1,))

    def _seen(self, extents, strides):
        make = self.library.make
        description = make("memory_desc_create_with_strides", ctypes.c_int(len(extents)), Dims(*extents),
                           ctypes.c_int(DTYPES[self.dtype]), Dims(*strides))  # fmt: skip
        memory = Memory(make("memory_create", description, self.library.engine, Pointer(self.address)).value)
        memory.matrix = self
        return description, memory


class Memory(Pointer):
    """A dnnl_memory_t of a Matrix, which it keeps."""


class Primitive:
    """A kernel with its arguments, {DNNL_ARG: memory}."""

    def __init__(self, library, description, memories):
        self.implementation = library.implementation(description)
        if self.implementation.startswith("ref"):
            raise Refusal(f"oneDNN has only its reference for this case ({self.implementation})")
        self._library = library
        self._primitive = library.make("primitive_create", description)
        self._memories = memories
        self._arguments = (Argument * len(memories))(*memories.items())

    def execute(self):
        self._library.call("primitive_execute", self._primitive, self._library.stream,
                           ctypes.c_int(len(self._arguments)), self._arguments)  # fmt: skip


def product(library, out, a, b, bias=None, then=None):
    """out = a · b + bias, each a view; then: what `following` gave."""
    none = Pointer()
    attributes, more = then or (none, {})
    description = library.make("matmul_primitive_desc_create", library.engine, a[0], b[0], bias[0] if bias else none,
                               out[0], attributes)  # fmt: skip
    memories = {SRC: a[1], WEIGHTS: b[1], DST: out[1]}
    return Primitive(library, description, memories | ({BIAS: bias[1]} if bias else {}) | more)


def combined(library, kind, out, a, b):
    """out = a + b (kind ADD), or a · b (MULTIPLY) by elements, each a view."""
    description = library.make("binary_primitive_desc_create", library.engine, ctypes.c_int(kind), a[0], b[0], out[0],
                               Pointer())  # fmt: skip
    return Primitive(library, description, {SRC: a[1], SRC_1: b[1], DST: out[1]})


def reordered(library, out, x):
    """out = x in the dtype of out, each a view."""
    description = library.make("reorder_primitive_desc_create", x[0], library.engine, out[0], library.engine, Pointer())
    return Primitive(library, description, {SRC: x[1], DST: out[1]})


def normalisation(library, case, t, rms=False):
    """Layer normalisation, or RMSNorm, of the rows of x, its weights in f32, which its kernels want. The gradients start
    from the statistics of a forward pass, computed here once."""
    none, dtype, eps = Pointer(), ctypes.c_int(DTYPES["f32"]), ctypes.c_float(case.parameters["eps"])
    flags = ctypes.c_uint(USE_SCALE | (RMS_NORM if rms else USE_SHIFT))
    kind = ctypes.c_int(FORWARD_TRAINING if case.backward else FORWARD_INFERENCE)
    names = {SCALE: "weight"} if rms else {SCALE: "weight", SHIFT: "bias"}

    def row(name, columns=t["x"].shape[1]):
        t[name] = Matrix(library, "f32", 1, columns)
        t[name].fill(0)
        return t[name]

    weights = {}
    for argument, name in names.items():
        wide = row(f"{name}_f32")
        if name in t:  # the gradients take no bias
            library.run([reordered(library, wide.vector(), t[name].vector())])
        weights[argument] = wide.vector()[1]
    t.setdefault("out", Matrix(library, case.dtype, *t["x"].shape))
    x, out = t["x"].view(), t["out"].view()
    forward = library.make("layer_normalization_forward_primitive_desc_create_v2", library.engine, kind, x[0], out[0],
                           none, dtype, eps, flags, none)  # fmt: skip
    if not case.backward:
        return [Primitive(library, forward, {SRC: x[1], DST: out[1]} | weights)]
    tokens = t["x"].shape[0]
    stats = {MEAN: row("mean", tokens).vector()[1], VARIANCE: row("variance", tokens).vector()[1]}
    library.run([Primitive(library, forward, {SRC: x[1], DST: out[1]} | stats | weights)])
    dx, dout = t["dx"].view(), t["dout"].view()
    backward = library.make("layer_normalization_backward_primitive_desc_create_v2", library.engine,
                            ctypes.c_int(BACKWARD), dx[0], dout[0], x[0], none, dtype, dtype, eps, flags, forward,
                            none)  # fmt: skip
    gradients = {DIFF_SCALE: row("dweight_f32").vector(), DIFF_SHIFT: row("dbias_f32").vector()}
    memories = {SRC: x[1], DIFF_DST: dout[1], DIFF_SRC: dx[1], SCALE: weights[SCALE]} | stats
    memories |= {argument: view[1] for argument, view in gradients.items()}
    narrow = [reordered(library, t[name].vector(), t[f"{name}_f32"].vector()) for name in ("dweight", "dbias")]
    return [Primitive(library, backward, memories), *narrow]


def following(library, factor=None):
    """(attributes, memories) of a primitive that multiplies its result by the view `factor`, or takes the result's
    swish."""
    operations, attributes = library.make("post_ops_create"), library.make("primitive_attr_create")
    memories = {}
    if factor:
        library.call("post_ops_append_binary", operations, ctypes.c_int(MULTIPLY), factor[0])
        memories[32768 | SRC_1] = factor[1]  # DNNL_ARG_ATTR_MULTIPLE_POST_OP(0)
    else:
        library.call("post_ops_append_eltwise", operations, ctypes.c_int(SWISH), ctypes.c_float(1), ctypes.c_float(0))
    library.call("primitive_attr_set_post_ops", attributes, operations)
    return attributes, memories


def open_steps(case):
    return OneDnnCase(case, function_of("onednn", case.op, "steps"))


def open_training(case):
    return OneDnnCase(case, function_of("onednn", case.op, "training_steps"))


class OneDnnCase:
    """A list of primitives on matrices of its own, run one after the other."""

    def __init__(self, case, steps):
        if case.device != "cpu":
            raise Refusal("this peer computes on the CPU")
        library = loaded()
        library.set_threads(case.threads)
        self._library, self._case, self._tensors = library, case, {}
        for spec in (*case.inputs, *case.outputs):
            if spec.dtype not in BYTES:
                raise Refusal(f"oneDNN has no elements of {spec.dtype}")
            rows, columns = math.prod(spec.shape[:-1]), spec.shape[-1] if spec.shape else 1
            content = bytes(case.memory[spec.offset : spec.offset + rows * columns * BYTES[spec.dtype]])
            self._tensors[spec.name] = Matrix(library, spec.dtype, rows, columns, content)
        self._steps = steps(library, case, self._tensors)
        self._execute()
        self.about = library.about
        self.engine = self._steps[0].implementation.split(":")[-1]  # "brg:avx512_core_bf16"
        if case.bound and openmp() is None:
            bind_busy(self._execute, case.bound)

    def run(self, times):
        """Runs and returns the seconds of one run, the mean of `times`."""
        start = time.perf_counter()
        for _ in range(times):
            self._execute()
        return (time.perf_counter() - start) / times

    def forget(self):
        """Clears what the last run has written. Without one there is nothing to do: the sweep measures its transport by
        this request."""
        if self._has_run:
            for spec in self._case.outputs:
                self._tensors[spec.name].fill(0xFF)
        self._has_run = False

    def read(self):
        """Copies the outputs into the shared memory."""
        for spec in self._case.outputs:
            content = self._tensors[spec.name].bytes()
            self._case.memory[spec.offset : spec.offset + len(content)] = content

    def _execute(self):
        self._has_run = True
        self._library.run(self._steps)
