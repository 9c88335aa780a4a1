"""oneDNN's Graph API (dnnl_graph.h): operations on tensors that the library fuses into parts."""

import ctypes
import math

from .onednn import CPU, DTYPES, Dims, Matrix, Pointer
from .refusal import Refusal

# dnnl_graph_types.h
KINDS = {"add": 2, "exp": 26, "gen_index": 84, "greater_equal": 85, "matmul": 39, "multiply": 46, "reduce_sum": 57,
         "select": 81, "softmax": 64, "subtract": 74, "type_cast": 77}  # fmt: skip
ATTRIBUTES = {"axis": 0x30, "axes": 0x40, "keep_dims": 0x61, "transpose_a": 0x65, "transpose_b": 0x66, "mode": 0x84}
STRIDED, FUSION = 2, 1


class LogicalTensor(ctypes.Structure):
    """dnnl_graph_logical_tensor_t, its layout row-major."""

    _fields_ = [("id", ctypes.c_size_t), ("ndims", ctypes.c_int), ("dims", Dims), ("dtype", ctypes.c_int),
                ("property", ctypes.c_int), ("layout_type", ctypes.c_int), ("strides", Dims)]  # fmt: skip


def pointers(kind, things):
    return (ctypes.POINTER(kind) * len(things))(*map(ctypes.pointer, things))


class Part:
    """A compiled partition. The graph keeps the memory of its tensors."""

    def __init__(self, graph, library, implementation, compiled, inputs, outputs):
        self.implementation = implementation
        self._graph, self._library, self._compiled = graph, library, compiled
        self._inputs, self._outputs = ((Pointer * len(made))(*made) for made in (inputs, outputs))

    def execute(self):
        self._library.call("graph_compiled_partition_execute", self._compiled, self._library.stream,
                           ctypes.c_size_t(len(self._inputs)), self._inputs, ctypes.c_size_t(len(self._outputs)),
                           self._outputs)  # fmt: skip


class Graph:
    """Operations, each added after those whose results it takes."""

    def __init__(self, library):
        self._library = library
        self._graph = library.make("graph_graph_create", ctypes.c_int(CPU))
        self._ops = 0
        self._tensors = []  # of each the logical tensor and, where it has one, its Matrix

    def tensor(self, dtype, shape, matrix=None):
        """A tensor in the memory of a Matrix, or without: a result."""
        strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        made = LogicalTensor(id=len(self._tensors), ndims=len(shape), dims=Dims(*shape), dtype=DTYPES[dtype],
                             layout_type=STRIDED, strides=Dims(*strides))  # fmt: skip
        self._tensors.append([made, matrix])
        return made

    def number(self, dtype, value):
        """A tensor of one element of four bytes."""
        kind = {"f32": ctypes.c_float, "s32": ctypes.c_int32}[dtype]
        return self.tensor(dtype, (1,), Matrix(self._library, dtype, 1, 1, bytes(kind(value))))

    def op(self, kind, inputs, *outputs, **attributes):
        """Adds an operation; returns its first output."""
        self._ops += 1
        op = self._library.make("graph_op_create", ctypes.c_size_t(self._ops), ctypes.c_int(KINDS[kind]),
                                ctypes.c_char_p(kind.encode()))  # fmt: skip
        for key, value in attributes.items():
            attribute = ctypes.c_int(ATTRIBUTES[key])
            if isinstance(value, bool):
                call, held, count = "bool", (ctypes.c_uint8 * 1)(value), 1
            elif isinstance(value, str):
                call, held, count = "str", ctypes.c_char_p(value.encode()), len(value)
            else:
                values = value if isinstance(value, tuple) else (value,)
                call, held, count = "s64", (ctypes.c_int64 * len(values))(*values), len(values)
            self._library.call(f"graph_op_set_attr_{call}", op, attribute, held, ctypes.c_size_t(count))
        for tensor in inputs:
            self._library.call("graph_op_add_input", op, ctypes.byref(tensor))
        for tensor in outputs:
            self._library.call("graph_op_add_output", op, ctypes.byref(tensor))
        self._library.call("graph_add_op", self._graph, op)
        return outputs[0]

    def parts(self):
        """The graph's compiled parts in their order."""
        library, count = self._library, ctypes.c_size_t()
        library.call("graph_graph_finalize", self._graph)
        library.call("graph_graph_filter", self._graph, ctypes.c_int(FUSION))
        library.call("graph_graph_get_partition_num", self._graph, ctypes.byref(count))
        found = (Pointer * count.value)()
        library.call("graph_graph_get_partitions", self._graph, count, found)
        implementation = "graph" if count.value == 1 else f"graph_{count.value}_parts"
        return [self._compiled(Pointer(part), implementation) for part in found]

    def _compiled(self, part, implementation):
        library, supported = self._library, ctypes.c_uint8()
        library.call("graph_partition_is_supported", part, ctypes.byref(supported))
        if not supported.value:
            raise Refusal("oneDNN's graph has an operation without a kernel for this case")
        inputs, outputs = self._ports(part, "input"), self._ports(part, "output")
        compiled = library.make("graph_compiled_partition_create", part)
        library.call("graph_partition_compile", part, compiled, ctypes.c_size_t(len(inputs)),
                     pointers(LogicalTensor, inputs), ctypes.c_size_t(len(outputs)), pointers(LogicalTensor, outputs),
                     library.engine)  # fmt: skip
        memory = ([self._memory(tensor) for tensor in made] for made in (inputs, outputs))
        return Part(self, library, implementation, compiled, *memory)

    def _ports(self, part, which):
        """The tensors that a part reads, or writes."""
        count = ctypes.c_size_t()
        self._library.call(f"graph_partition_get_{which}_ports_num", part, ctypes.byref(count))
        ports = (LogicalTensor * count.value)()
        self._library.call(f"graph_partition_get_{which}_ports", part, count, ports)
        return [self._tensors[port.id][0] for port in ports]

    def _memory(self, tensor):
        held = self._tensors[tensor.id]
        if held[1] is None:  # between two parts
            dtype = next(name for name, code in DTYPES.items() if code == tensor.dtype)
            held[1] = Matrix(self._library, dtype, 1, math.prod(tensor.dims[: tensor.ndims]))
        return self._library.make("graph_tensor_create", ctypes.byref(tensor), self._library.engine,
                                  Pointer(held[1].address))  # fmt: skip
