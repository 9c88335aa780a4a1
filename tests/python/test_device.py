"""Operators on arrays in the memory of a CUDA device: of a card, or of one in software
(tests/with_device). Results are compared with those of the CPU, which the other tests compare with
float64."""

import os
import subprocess
import sys

import numpy
import pytest

katt = pytest.importorskip("katt")
_katt = pytest.importorskip("katt._katt")
if not _katt.cuda:
    pytest.skip("this package was built without CUDA", allow_module_level=True)

import device_arrays  # noqa: E402
from conftest import close  # noqa: E402
from device_arrays import Array, Tabled, new_stream  # noqa: E402
from katt._functions import PLANS, launch  # noqa: E402

if device_arrays.device_count() == 0:
    pytest.skip("no device", allow_module_level=True)


def attention(new):
    q, k = new(2, 4, 12, 16), new(2, 2, 20, 16)
    bias, lengths = new(1, 4, 12, 20), new.ids(20, 2)
    for options in ({"causal": True}, {"bias": bias, "softcap": 3.0}, {"kv_lengths": lengths, "window": (5, 2)}):
        out, lse = katt.attention(q, k, k, return_lse=True, **options)
        yield from (out, lse, *katt.attention_backward(out, q, k, k, out, lse, **options))
    out, lse = katt.attention(q, k, k, return_lse=True, alibi_slopes=new.f32(4))
    yield from (out, lse)


def rope(new):
    x, cache = new(2, 3, 9, 16), katt.rope_cache(40, 16, like=new(1))
    yield cache
    yield from katt.rope(x, cache, new(2, 1, 9, 16), interleaved=True)
    yield katt.rope_backward(x, cache, positions=new.ids(40, 2, 9))


def norms(new):
    x, weight, dout = new(3, 5, 48), new(48), new(3, 5, 48)
    out, h = katt.rmsnorm(x, weight, dout)
    yield from (out, h, *katt.rmsnorm_backward(dout, h, weight, out))
    yield katt.layernorm(x, weight, new(48))
    yield from katt.layernorm_backward(dout, x, weight)
    yield katt.softmax(x)
    yield katt.softmax_backward(dout, x)


def layers(new):
    x, weight = new(3, 5, 16), new(24, 16)
    out = katt.linear(x, weight, new(24))
    yield from (out, *katt.linear_backward(out, x, weight, bias=True))
    gate, up = new(3, 5, 24), new(3, 5, 24)
    yield katt.swiglu(gate, up)
    yield from katt.swiglu_backward(up, gate, up)
    mlp = (x, weight, new(24, 16), new(16, 24))
    yield katt.swiglu_mlp(*mlp)
    yield from katt.swiglu_mlp_backward(new(3, 5, 16), *mlp)


def tokens(new):
    weight, ids = new(40, 16), new.ids(40, 2, 6)
    hidden = katt.embedding(ids, weight)
    yield from (hidden, katt.embedding_backward(hidden, ids, 40))
    logits = katt.linear(hidden, weight)
    loss, statistics = katt.cross_entropy(logits, ids)
    yield from (loss, katt.cross_entropy_backward(logits, ids, statistics, dloss=2.0))
    loss, statistics = katt.linear_cross_entropy(hidden, weight, ids)
    yield from (loss, *katt.linear_cross_entropy_backward(hidden, weight, ids, statistics))


def ternary(new):
    x, weight = new(3, 64), new(20, 64)
    packed = katt.ternary_pack(weight)
    yield packed.dequantise(x)
    yield katt.ternary_linear(x, packed)
    yield from katt.ternary_linear_backward(new(3, 20), x, packed)
    yield katt.convert_dtype(x, new(3, 64))


class OnHost:
    """Makes the arrays of a test, the same numbers for every class."""

    def __init__(self, dtype):
        self.dtype, self.generator = dtype, numpy.random.default_rng(3)

    def put(self, array):
        return array

    def __call__(self, *shape):
        return self.put(self.generator.standard_normal(shape).astype(self.dtype))

    def f32(self, *shape):
        return self.put(numpy.abs(self.generator.standard_normal(shape)).astype("float32"))

    def ids(self, end, *shape):
        return self.put(self.generator.integers(1, end, shape))


class OnDevice(OnHost):
    def put(self, array):
        return Array.of(array)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("passes", [attention, rope, norms, layers, tokens, ternary])
def test_operators(passes, dtype):
    expected, found = list(passes(OnHost(dtype))), list(passes(OnDevice(dtype)))
    assert len(expected) == len(found) > 0
    for here, there in zip(expected, found, strict=True):
        assert isinstance(there, Array) and there.dtype == here.dtype
        # Both round results of operators that they feed to the next one.
        close(there.numpy().astype("float32"), here.astype("float64"), here.dtype)


def test_strides(generator):
    stored = generator.standard_normal((2, 12, 4, 16)).astype("float16")  # (batch, seq, heads, head_dim)
    q = stored.swapaxes(1, 2)
    there = Array.of(q)
    assert there.strides != device_arrays.dense(there.shape)
    close(katt.attention(there, there, there, causal=True).numpy(), katt.attention(q, q, q, causal=True))
    with pytest.raises(ValueError, match="stride 12 on its last axis"):
        katt.softmax(Array.of(stored[0, :, 0].T.copy().T))


def test_stream_of_the_caller(generator):
    """Everything is queued on a stream that waits for no other, and the result is read in its turn."""
    x = generator.standard_normal((64, 96)).astype("float32")
    expected = katt.softmax(katt.softmax(x))
    for _ in range(4):
        stream = new_stream()
        there = Array.of(x, stream=stream)
        with katt.stream(stream):
            out = katt.softmax(katt.softmax(there))
        assert Array.stream_asked == stream
        close(out.numpy(stream), expected)


def test_stream_of_the_library(generator):
    x = generator.standard_normal((64, 96)).astype("float32")
    try:
        Tabled.current = new_stream()
        there, out = Tabled.of(x, stream=Tabled.current), Tabled.of(numpy.zeros_like(x))
        launch(PLANS["softmax"][0], (there,), (out,), (), ("auto", (), 0))
        close(out.numpy(Tabled.current), katt.softmax(x))
    finally:
        Tabled.current = 0


def test_without_a_stream_the_result_is_complete(generator):
    x = generator.standard_normal((64, 96)).astype("float32")
    out = katt.softmax(Array.of(x))
    assert Array.stream_asked == 1  # the legacy default stream
    close(out.numpy(new_stream()), katt.softmax(x))  # on a stream that waits for no other


def test_streams_are_named_in_many_ways():
    class Numbered:
        cuda_stream = 48

    class OfNvidia:
        def __cuda_stream__(self):
            return (0, 64)

    for stream, number in ((0, 1), (32, 32), (Numbered(), 48), (OfNvidia(), 64)):
        with katt.stream(stream):
            assert _katt.exchange_stream(number) == number
    assert _katt.exchange_stream(None) is None
    with pytest.raises(ValueError, match="stream: holds 'fast', expected the number of a CUDA stream"):
        with katt.stream("fast"):
            pass


def test_refusals(generator):
    q = generator.standard_normal((1, 2, 8, 16)).astype("float32")
    there = Array.of(q)
    with pytest.raises(ValueError, match=r"^attention: k: holds memory of the CPU, expected memory of cuda:0, as q has$"):
        numbers = (1.0, False, 0.0, False, -1, -1, 0)
        launch(PLANS["attention"][0], (there, q, q, *[None] * 4), (there, None), numbers, ("auto", (), 0))
    with pytest.raises(ValueError, match=r"^softmax: out: holds memory of cuda:0, expected memory of the CPU, as x has$"):
        launch(PLANS["softmax"][0], (q,), (there,), (), ("auto", (), 0))
    with pytest.raises(ValueError, match=r"^variant fast: unknown; expected one of auto, naive"):
        katt.softmax(there, variant="fast")
    with pytest.raises(ValueError, match="attention: kv_heads 3: does not divide heads 2"):
        katt.attention(there, Array.of(numpy.zeros((1, 3, 8, 16), "f")), Array.of(numpy.zeros((1, 3, 8, 16), "f")))


def test_devices(generator):
    if device_arrays.device_count() < 2:
        pytest.skip("one device")
    x = generator.standard_normal((5, 96)).astype("float32")
    expected = katt.softmax(x)
    for device in (1, 0, 1):
        out = katt.softmax(Array.of(x, device))
        assert out.device == device
        close(out.numpy(), expected)
    with pytest.raises(ValueError, match=r"^swiglu: up: holds memory of cuda:1, expected memory of cuda:0, as gate has$"):
        katt.swiglu(Array.of(x), Array.of(x, 1))


def in_a_process(source, **environment):
    path = os.pathsep.join([os.path.dirname(__file__), *filter(None, sys.path)])
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": path, **environment})  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_fault_is_an_exception():
    """A kernel that reads outside of all memory: every later call on the device reports it, and the
    CPU still works."""
    said = in_a_process("""
import katt, numpy
from device_arrays import Array
x = numpy.ones((4, 32), "f")
there = Array.of(x)
katt.softmax(there)
there.offset = 1 << 40
for _ in range(2):
    try:
        katt.softmax(there)
    except RuntimeError as error:
        print(error)
print(katt.softmax(x)[0, 0] == 1 / 32)
""")
    first, second, host = said.splitlines()
    assert first.startswith("katt: cuda:0: cuda") and second.startswith("katt: cuda:0: cuda")
    assert host == "True"


def test_the_cpu_needs_no_device():
    """Neither a card nor NVIDIA's driver: the package is imported and computes where nothing of the device is loaded."""
    said = in_a_process("import katt, numpy; print(katt.softmax(numpy.ones((4, 32), 'f'))[0, 0] == 1 / 32)",
                        LD_LIBRARY_PATH="", CUDA_VISIBLE_DEVICES="")  # fmt: skip
    assert said == "True\n"
