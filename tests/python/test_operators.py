"""Every operator on arrays of NumPy against float64, forward and backward."""

import threading

import numpy
import pytest
import reference
from conftest import close

katt = pytest.importorskip("katt")


def normal(generator, dtype, *shape):
    return generator.standard_normal(shape).astype(dtype)


def test_attention(generator, dtype):
    q = normal(generator, dtype, 2, 4, 37, 32)
    k, v = (normal(generator, dtype, 2, 2, 53, 32) for _ in range(2))
    for options in ({}, {"causal": True}, {"window": (7, 3)}, {"softcap": 2.0, "scale": 0.5}):
        out, lse = katt.attention(q, k, v, return_lse=True, **options)
        expected, expected_lse = reference.attention(q, k, v, **options)
        assert isinstance(out, numpy.ndarray)
        assert out.dtype == dtype and lse.dtype == numpy.float32
        close(out, expected)
        close(lse, expected_lse, dtype)


def test_attention_masks(generator):
    q, k, v = (normal(generator, "float32", 2, 2, 20, 16) for _ in range(3))
    bias = normal(generator, "float32", 1, 2, 20, 20)
    bias[0, 1, 3, :5] = -numpy.inf
    slopes = numpy.array(katt.alibi_slopes(2), numpy.float32)
    lengths = numpy.array([0, 13], numpy.int64)
    blocks = generator.integers(0, 2, (3, 3)).astype(bool)
    out, lse = katt.attention(
        q, k, v, bias=bias, alibi_slopes=slopes, kv_lengths=lengths, block_mask=(blocks, 8), return_lse=True
    )
    expected, expected_lse = reference.attention(
        q, k, v, bias=bias, slopes=slopes, lengths=lengths, blocks=blocks, block_size=8
    )
    close(out, expected)
    assert (out[0] == 0).all() and (lse[0] == -numpy.inf).all()
    seen = numpy.isfinite(expected_lse)
    assert (numpy.isfinite(lse) == seen).all()
    close(lse[seen], expected_lse[seen])


def test_attention_gradients(generator):
    q = normal(generator, "float32", 1, 2, 5, 8)
    k, v = (normal(generator, "float32", 1, 1, 6, 8) for _ in range(2))
    dout = normal(generator, "float32", 1, 2, 5, 8)
    options = {"causal": True, "softcap": 3.0}
    out, lse = katt.attention(q, k, v, return_lse=True, **options)
    gradients = katt.attention_backward(dout, q, k, v, out, lse, **options)
    for index, found in enumerate(gradients):
        expected = reference.gradient(
            lambda *tensors: reference.attention(*tensors, **options)[0], (q, k, v), index, dout
        )
        close(found, expected, "float32")


def test_variants_and_tiles_agree(generator):
    q, k, v = (normal(generator, "float32", 1, 2, 70, 64) for _ in range(3))
    naive = katt.attention(q, k, v, variant="naive")
    close(katt.attention(q, k, v, variant="flash"), naive)
    with pytest.raises(ValueError, match=r"^variant fast: unknown; expected one of auto, naive"):
        katt.attention(q, k, v, variant="fast")
    with pytest.raises(ValueError, match="tile"):
        katt.attention(q, k, v, variant="flash", tile=(7, 7))


def test_rope(generator, dtype):
    x, x2 = normal(generator, dtype, 2, 3, 9, 16), normal(generator, dtype, 2, 1, 9, 16)
    cache = katt.rope_cache(40, 16)
    for interleaved in (False, True):
        out, out2 = katt.rope(x, cache, x2, interleaved=interleaved)
        close(out, reference.rope(x, interleaved=interleaved))
        close(out2, reference.rope(x2, interleaved=interleaved))
    positions = generator.integers(0, 40, (2, 9))
    out = katt.rope(x, cache, positions=positions)
    close(out, reference.rope(x, positions=positions))
    close(katt.rope_backward(out, cache, positions=positions), x.astype(numpy.float64))


def test_rmsnorm(generator, dtype):
    x, residual = normal(generator, dtype, 3, 5, 48), normal(generator, dtype, 3, 5, 48)
    weight = normal(generator, dtype, 48)
    close(katt.rmsnorm(x, weight, eps=1e-3), reference.rmsnorm(x, weight, 1e-3))
    out, h = katt.rmsnorm(x, weight, residual)
    close(h, numpy.add(*reference.wide(x, residual)))
    close(out, reference.rmsnorm(h, weight, 1e-5))
    q, s = katt.rmsnorm_quantized(x, weight)
    assert q.dtype == numpy.int8 and s.shape == (3, 5)
    assert numpy.abs(q / s[..., None] - reference.rmsnorm(x, weight, 1e-5)).max() < 0.6 / s.min()


@pytest.mark.parametrize(("forward", "backward", "exact", "shapes"), [
    (katt.rmsnorm, katt.rmsnorm_backward, lambda x, w: reference.rmsnorm(x, w, 1e-5), [(4, 16), (16,)]),
    (katt.softmax, katt.softmax_backward, reference.softmax, [(3, 7)]),
    (katt.swiglu, katt.swiglu_backward, reference.swiglu, [(2, 3, 5), (2, 3, 5)]),
    (katt.linear, katt.linear_backward, reference.linear, [(2, 3, 8), (5, 8)]),
    (katt.swiglu_mlp, katt.swiglu_mlp_backward, reference.swiglu_mlp, [(3, 4), (6, 4), (6, 4), (4, 6)]),
], ids=["rmsnorm", "softmax", "swiglu", "linear", "swiglu_mlp"])
def test_passes(generator, forward, backward, exact, shapes):
    inputs = [normal(generator, "float32", *shape) for shape in shapes]
    out = forward(*inputs)
    close(out, exact(*reference.wide(*inputs)))
    dout = normal(generator, "float32", *out.shape)
    gradients = backward(dout, *inputs)
    for index, found in enumerate(gradients if isinstance(gradients, tuple) else (gradients,)):
        close(found, reference.gradient(exact, inputs, index, dout))


def test_bias_gradients(generator):
    x, weight, bias = (normal(generator, "float32", *shape) for shape in ((6, 8), (8,), (8,)))
    close(katt.layernorm(x, weight, bias), reference.layernorm(x, weight, bias, 1e-5))
    dout = normal(generator, "float32", 6, 8)
    for index, found in enumerate(katt.layernorm_backward(dout, x, weight)):
        close(found, reference.gradient(lambda *a: reference.layernorm(*a, 1e-5), (x, weight, bias), index, dout))
    *_, dbias = katt.linear_backward(dout, x, normal(generator, "float32", 8, 8), bias=True)
    close(dbias, dout.astype(numpy.float64).sum(axis=0))


def test_losses(generator, dtype):
    hidden, weight = normal(generator, dtype, 2, 6, 16), normal(generator, dtype, 50, 16)
    logits = katt.linear(hidden, weight)
    targets = generator.integers(0, 50, (2, 6))
    targets[0, 2] = -100
    loss, statistics = katt.cross_entropy(logits, targets)
    close(loss, numpy.array([reference.cross_entropy(logits, targets)]), dtype)
    dlogits = katt.cross_entropy_backward(logits, targets, statistics, dloss=2.0)
    assert dlogits.shape == logits.shape and (dlogits[0, 2] == 0).all()
    p = reference.softmax(logits)
    expected = 2 * (p - numpy.eye(50)[numpy.maximum(targets, 0)]) / 11
    expected[0, 2] = 0
    close(dlogits, expected)
    loss2, statistics = katt.linear_cross_entropy(hidden, weight, targets)
    close(loss2, loss.astype(numpy.float64), dtype)
    dhidden, dweight = katt.linear_cross_entropy_backward(hidden, weight, targets, statistics, dloss=2.0)
    close(dhidden, expected @ weight.astype(numpy.float64))
    close(dweight, expected.reshape(-1, 50).T @ hidden.astype(numpy.float64).reshape(-1, 16))


def test_embedding(generator, dtype):
    weight, ids = normal(generator, dtype, 11, 8), generator.integers(0, 11, (3, 4))
    assert (katt.embedding(ids, weight) == weight[ids]).all()
    dout = normal(generator, dtype, 3, 4, 8)
    expected = numpy.zeros((11, 8))
    numpy.add.at(expected, ids.ravel(), dout.astype(numpy.float64).reshape(-1, 8))
    close(katt.embedding_backward(dout, ids, 11), expected)


def test_convert_dtype(generator, dtype):
    x = normal(generator, "float32", 5, 9)
    out = numpy.empty((5, 9), dtype)
    assert katt.convert_dtype(x, out) is out
    assert (out == x.astype(dtype)).all()


@pytest.mark.parametrize("weights_per_byte", [4, 5])
def test_ternary_linear(generator, weights_per_byte):
    x, weight = normal(generator, "float32", 3, 100), normal(generator, "float32", 20, 100)
    packed = katt.ternary_pack(weight, weights_per_byte=weights_per_byte)
    assert packed.nbytes < weight.nbytes / 2
    variant = "packed2" if weights_per_byte == 4 else "packed5"
    expected = reference.ternary_linear(x, weight)
    close(katt.ternary_linear(x, packed, variant=variant), expected)
    close(katt.ternary_linear(x, packed), expected)
    assert set(numpy.unique(numpy.sign(packed.dequantise(x)))) == {-1, 0, 1}
    dout = normal(generator, "float32", 3, 20)
    dx, dweight = katt.ternary_linear_backward(dout, x, packed)
    close(dx, dout.astype(numpy.float64) @ packed.dequantise(x).astype(numpy.float64))
    assert dweight.shape == weight.shape
    wide = normal(generator, "float32", 3, 200)
    for call in (lambda: katt.ternary_linear(wide, packed), lambda: katt.ternary_linear_backward(dout, wide, packed)):
        with pytest.raises(ValueError, match=r"ternary_linear: x: holds shape \(3, 200\), expected \(…, 100\)"):
            call()
    with pytest.raises(ValueError, match=r"ternary_linear: dout: holds shape \(1, 3, 20\), expected \(3, 20\)"):
        katt.ternary_linear_backward(dout[None], x, packed)
    with pytest.raises(ValueError, match="weights_per_byte: holds 3, expected 4 or 5"):
        katt.ternary_pack(weight, weights_per_byte=3)


def test_strides_are_honoured(generator):
    stored = normal(generator, "float32", 2, 30, 4, 24)  # (batch, seq, heads, head_dim)
    q = stored.swapaxes(1, 2)
    close(katt.attention(q, q, q), reference.attention(q, q, q)[0])
    wide = normal(generator, "float32", 10, 64)
    close(katt.softmax(wide[:, 3:20]), reference.softmax(wide[:, 3:20]))
    read_only = wide.copy()
    read_only.setflags(write=False)
    close(katt.softmax(read_only), reference.softmax(wide))


def test_repeated_rows(generator):
    row = normal(generator, "float32", 1, 1, 6)
    close(katt.softmax(numpy.broadcast_to(row, (4, 5, 6))), reference.softmax(numpy.broadcast_to(row, (4, 5, 6))))
    rows = numpy.broadcast_to(normal(generator, "float32", 2, 1, 6), (2, 3, 6))
    with pytest.raises(ValueError, match=r"shape \(2, 3, 6\) with strides \(6, 0, 1\), expected rows at equal"):
        katt.softmax(rows)
    out = numpy.lib.stride_tricks.as_strided(numpy.zeros(6, "float32"), (4, 6), (0, 4))
    with pytest.raises(ValueError, match="convert_dtype: out: holds rows that overlap, expected rows that do not"):
        katt.convert_dtype(normal(generator, "float32", 4, 6), out)


@pytest.mark.parametrize(("make", "message"), [
    (lambda x: x[:, ::2], r"softmax: x: holds stride 2 on its last axis, expected 1, a contiguous last axis"),
    (lambda x: x[::-1], r"softmax: x: holds stride -6 on axis 0, expected strides of at least 0"),
    (lambda x: x.astype("float64"), r"softmax: x: holds float64, expected float32, float16 or bfloat16"),
    (lambda x: x.astype("uint16"), r"softmax: x: holds uint16, expected float32, float16 or bfloat16"),
    (lambda x: x.reshape(2, 2, 6).swapaxes(0, 1), r"holds shape \(2, 2, 6\) with strides \(6, 12, 1\), expected rows"),
    (lambda x: [1.0, 2.0], r"softmax: x: holds a list, expected an array of NumPy, PyTorch or the array API"),
])
def test_refused_arrays(generator, make, message):
    with pytest.raises(ValueError, match=message) as refused:
        katt.softmax(make(normal(generator, "float32", 4, 6)))
    assert "\n" not in str(refused.value)


def test_refused_shapes(generator):
    q, k = normal(generator, "float32", 1, 4, 8, 16), normal(generator, "float32", 1, 3, 8, 16)
    with pytest.raises(ValueError, match="attention: kv_heads 3: does not divide heads 4"):
        katt.attention(q, k, k)
    with pytest.raises(ValueError, match=r"attention: q: holds shape \(4, 8, 16\), expected 4 axes"):
        katt.attention(q[0], k, k)
    with pytest.raises(ValueError, match="embedding: ids: holds int32, expected int64"):
        katt.embedding(numpy.zeros(3, numpy.int32), q[0, 0])


def test_arrays_that_share_memory():
    memory = numpy.arange(72, dtype=numpy.float32)
    with pytest.raises(ValueError, match="convert: out: shares memory with x, expected memory of its own"):
        katt.convert_dtype(memory[:64].reshape(8, 8), memory[8:].reshape(8, 8))
    columns = memory.reshape(6, 12)  # beside each other they share none
    katt.convert_dtype(columns[:, :6], columns[:, 6:])
    assert (columns[:, :6] == columns[:, 6:]).all()
    columns[:, 6:] += 1
    katt.convert_dtype(columns[:, 6:], columns[:, :6])
    assert (columns[:, :6] == columns[:, 6:]).all()


def test_an_array_that_cannot_be_written(generator):
    x = normal(generator, "float32", 4, 6)
    out = numpy.frombuffer(bytes(4 * 6 * 2), numpy.float16).reshape(4, 6)
    with pytest.raises(ValueError, match="convert_dtype: out: holds a read-only array, expected one to write to"):
        katt.convert_dtype(x, out)
    assert not out.any()


def test_empty_arrays():
    assert katt.softmax(numpy.empty((0, 5), numpy.float32)).shape == (0, 5)
    assert katt.linear(numpy.empty((0, 5), numpy.float32), numpy.ones((3, 5), numpy.float32)).shape == (0, 3)


def test_threads(generator):
    q = normal(generator, "float32", 1, 4, 200, 64)
    before = katt.get_num_threads()
    with katt.threads(1):
        assert katt.get_num_threads() == 1
        one = katt.attention(q, q, q)
    assert katt.get_num_threads() == before
    assert (katt.attention(q, q, q) == one).all()  # the same bits
    with pytest.raises(ValueError, match="threads: holds 0, expected 1 to"):
        katt.set_num_threads(0)


def test_many_python_threads(generator):
    q = normal(generator, "float32", 1, 2, 150, 32)
    expected = katt.attention(q, q, q)
    found = [None] * 8

    def work(place):
        found[place] = all((katt.attention(q, q, q) == expected).all() for _ in range(10))

    workers = [threading.Thread(target=work, args=(place,)) for place in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(found)


def test_other_libraries(generator):
    """An array of the array API that is neither NumPy's nor PyTorch's."""

    class Namespace:
        @staticmethod
        def from_dlpack(array):
            return Other(numpy.from_dlpack(array))

    class Other:
        def __init__(self, array):
            self.array = array
            self.shape = array.shape

        def __dlpack__(self, **arguments):
            return self.array.__dlpack__(**arguments)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

        def __array_namespace__(self):
            return Namespace

    x = normal(generator, "float32", 3, 8)
    out = katt.softmax(Other(x))
    assert isinstance(out, Other)
    close(out.array, reference.softmax(x))
