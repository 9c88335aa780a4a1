"""A small array library of a CUDA device, for tests: memory of CUDA's runtime, called through ctypes, that is handed out
by DLPack. `Array` works as libraries without a current stream do; `Tabled` has DLPack's table of C functions, which
tells its current stream, as PyTorch's tensors do."""

import ctypes
import math
import re
from pathlib import Path

import numpy

NONBLOCKING = 1  # cudaStreamNonBlocking
FROM_HOST, TO_HOST = 1, 2  # cudaMemcpyHostToDevice, …
CUDA = 2  # kDLCUDA
CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4}


class Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class Dtype(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class Tensor(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("device", Device), ("ndim", ctypes.c_int32), ("dtype", Dtype),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64))  # fmt: skip


class Managed(ctypes.Structure):
    _fields_ = (("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


def runtime():
    """CUDA's runtime as the module has loaded it."""
    maps = Path("/proc/self/maps").read_text()
    return ctypes.CDLL(re.search(r"(/\S*libcudart\.so\S*)$", maps, re.MULTILINE)[1])


def cuda(name, *arguments):
    error = getattr(runtime(), name)(*arguments)
    assert error == 0, (name, error)


def device_count():
    count = ctypes.c_int(0)
    return count.value if runtime().cudaGetDeviceCount(ctypes.byref(count)) == 0 else 0


def new_stream():
    """One that does not wait for the default stream."""
    handle = ctypes.c_void_p()
    cuda("cudaStreamCreateWithFlags", ctypes.byref(handle), NONBLOCKING)
    return handle.value


class Memory:
    def __init__(self, size, device):
        self.pointer = ctypes.c_void_p()
        before = ctypes.c_int()
        cuda("cudaGetDevice", ctypes.byref(before))
        cuda("cudaSetDevice", device)
        cuda("cudaMalloc", ctypes.byref(self.pointer), ctypes.c_size_t(max(size, 1)))
        cuda("cudaSetDevice", before)

    def __del__(self):
        runtime().cudaFree(self.pointer)


exported = {}  # what DLPack's consumers hold
ctypes.pythonapi.PyCapsule_New.restype = ctypes.py_object
ctypes.pythonapi.PyCapsule_New.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
ctypes.pythonapi.PyCapsule_GetPointer.restype = ctypes.c_void_p
ctypes.pythonapi.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def forget(address):
    del exported[address]


class Array:
    stream_asked = None  # by the last consumer of any array

    def __init__(self, owner, dtype, shape, strides, device, offset=0):
        self.owner, self.dtype, self.shape, self.strides = owner, numpy.dtype(dtype), tuple(shape), tuple(strides)
        self.device, self.offset = device, offset

    @property
    def pointer(self):
        return self.owner.pointer.value + self.offset * self.dtype.itemsize

    @classmethod
    def of(cls, array, device=0, stream=None):
        """A copy of a NumPy array, with its strides; on a stream that is named, one that the caller waits for."""
        flat = array.base if array.base is not None and array.base.size == array.size else array
        flat = numpy.ascontiguousarray(flat)
        owner = Memory(flat.nbytes, device)
        owner.source = flat
        arguments = (owner.pointer, ctypes.c_void_p(flat.ctypes.data), ctypes.c_size_t(flat.nbytes), FROM_HOST)
        if stream is None:
            cuda("cudaMemcpy", *arguments)
        else:
            cuda("cudaMemcpyAsync", *arguments, ctypes.c_void_p(stream))
        strides = [step // array.itemsize for step in array.strides]
        return cls(owner, array.dtype, array.shape, strides, device)

    def tensor(self):
        kind = re.match("[a-z]+", self.dtype.name)[0]
        ndim = len(self.shape)
        shape, strides = (ctypes.c_int64 * ndim)(*self.shape), (ctypes.c_int64 * ndim)(*self.strides)
        dtype = Dtype(CODES[kind], 8 * self.dtype.itemsize, 1)
        made = Tensor(self.pointer, Device(CUDA, self.device), ndim, dtype, shape, strides, 0)
        return made, (shape, strides)

    def __dlpack_device__(self):
        return (CUDA, self.device)

    def __dlpack__(self, *, stream=None, **_):
        type(self).stream_asked = stream
        tensor, kept = self.tensor()
        managed = Managed(tensor, None, ctypes.cast(forget, ctypes.c_void_p))
        address = ctypes.addressof(managed)
        exported[address] = (managed, kept, self)
        return ctypes.pythonapi.PyCapsule_New(address, b"dltensor", None)

    @classmethod
    def from_dlpack(cls, array):
        capsule = array.__dlpack__()
        tensor = Managed.from_address(ctypes.pythonapi.PyCapsule_GetPointer(capsule, b"dltensor")).tensor
        names = {(2, 32): "float32", (2, 16): "float16", (0, 8): "int8", (1, 8): "uint8"}
        shape = tensor.shape[: tensor.ndim]
        strides = tensor.strides[: tensor.ndim] if tensor.strides else dense(shape)
        owner = type("Owner", (), {"pointer": ctypes.c_void_p(tensor.data), "capsule": capsule})()
        return cls(owner, names[tensor.dtype.code, tensor.dtype.bits], shape, strides, tensor.device.id)

    def __array_namespace__(self):
        return type(self)

    def numpy(self, stream=None):
        """A copy of a dense array in the host's memory."""
        assert self.strides == dense(self.shape) or math.prod(self.shape) <= 1
        out = numpy.empty(self.shape, self.dtype)
        arguments = (ctypes.c_void_p(out.ctypes.data), ctypes.c_void_p(self.pointer), ctypes.c_size_t(out.nbytes), TO_HOST)
        if stream is None:
            cuda("cudaMemcpy", *arguments)
        else:
            cuda("cudaMemcpyAsync", *arguments, ctypes.c_void_p(stream))
            cuda("cudaStreamSynchronize", ctypes.c_void_p(stream))
        return out


def dense(shape):
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


class Tabled(Array):
    current = 0  # the library's current stream


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(Tensor))
def export_borrowed(array, out):
    out[0], array.borrowed = array.tensor()
    return 0


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
def current_stream(_type, _device, out):
    out[0] = Tabled.current
    return 0


class Table(ctypes.Structure):
    """DLPackExchangeAPI of DLPack 1.3."""

    _fields_ = (("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("previous", ctypes.c_void_p),
                ("unused", ctypes.c_void_p * 3), ("export_borrowed", ctypes.c_void_p),
                ("current_stream", ctypes.c_void_p))  # fmt: skip


table = Table(1, 3, None, (None, None, None), ctypes.cast(export_borrowed, ctypes.c_void_p),
              ctypes.cast(current_stream, ctypes.c_void_p))  # fmt: skip
name_of_table = b"dlpack_exchange_api"
Tabled.__dlpack_c_exchange_api__ = ctypes.pythonapi.PyCapsule_New(ctypes.addressof(table), name_of_table, None)
