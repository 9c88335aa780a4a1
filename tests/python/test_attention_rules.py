"""katt.attention with score rules of Python, against NumPy in float64."""

import numpy
import pytest
from conftest import close
from random_rules import RandomRule, captured

katt = pytest.importorskip("katt")

SHAPES = [(1, 2, 2, 33, 47, 16), (2, 4, 2, 17, 40, 32), (2, 6, 2, 3, 80, 64)]


def problem(shape, dtype, seed=0):
    batch, heads, kv_heads, seq_q, seq_kv, head_dim = shape
    generator = numpy.random.default_rng(seed)

    def array(heads, seq):
        return generator.standard_normal((batch, heads, seq, head_dim)).astype(dtype)

    return array(heads, seq_q), array(kv_heads, seq_kv), array(kv_heads, seq_kv), array(heads, seq_q)


def reference(rule, slope, q, k, v, dout, causal=False):
    """out, lse and the gradients; slope is the derivative of the rule."""
    q, k, v, dout = (x.astype("float64") for x in (q, k, v, dout))
    kv_heads, group = k.shape[1], q.shape[1] // k.shape[1]
    k, v = (numpy.repeat(x, group, axis=1) for x in (k, v))
    scale = q.shape[-1] ** -0.5
    products = q @ k.swapaxes(2, 3) * scale
    places = numpy.indices(products.shape, sparse=True)
    s = numpy.broadcast_to(rule(products, *places), products.shape)
    if causal:
        s = numpy.where(places[3] <= places[2] + s.shape[3] - s.shape[2], s, -numpy.inf)
    largest = s.max(-1, keepdims=True)
    lse = largest + numpy.log(numpy.exp(s - largest).sum(-1, keepdims=True))
    p = numpy.exp(s - lse)
    out = p @ v
    dp = dout @ v.swapaxes(2, 3)
    ds = p * (dp - (dout * out).sum(-1, keepdims=True)) * slope(products, *places) * scale

    def shared(x):
        return x.reshape(x.shape[0], kv_heads, group, *x.shape[2:]).sum(2)

    return out, lse[..., 0], ds @ k, shared(ds.swapaxes(2, 3) @ q), shared(p.swapaxes(2, 3) @ dout)


BIASES = [(batch, heads) for batch in (1, 2) for heads in (1, 6)]


@pytest.mark.parametrize("extents", BIASES)
@pytest.mark.parametrize("rule", [None, lambda s, b, h, q, k: s * 0.5 + 0.1 * (q - k)])
def test_biases_have_gradients(extents, rule, dtype):
    q, k, v, dout = problem((2, 6, 2, 37, 53, 16), dtype)
    bias = numpy.random.default_rng(1).standard_normal((*extents, 37, 53)).astype(dtype)
    bias[..., 5, 2:], bias[..., 9] = -1e4, -numpy.inf
    wide_q, wide_k, wide_v, wide_dout, wide_bias = (x.astype("float64") for x in (q, k, v, dout, bias))
    wide_k, wide_v = (numpy.repeat(x, 3, axis=1).swapaxes(2, 3) for x in (wide_k, wide_v))
    s = wide_q @ wide_k / 4
    s = (s if rule is None else rule(s, *numpy.indices(s.shape, sparse=True))) + wide_bias
    p = numpy.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    dp, dlse = wide_dout @ wide_v, numpy.random.default_rng(2).standard_normal(s.shape[:3]).astype("float32")
    summed = tuple(axis for axis in (0, 1) if extents[axis] == 1)

    def expected(more):
        ds = p * (dp - (p * dp).sum(-1, keepdims=True) + more)
        return ds.sum(summed, keepdims=True)

    options = {"bias": bias, "score_rule": rule}
    out, lse = katt.attention(q, k, v, return_lse=True, **options)
    dq, dk, dv, dbias = katt.attention_backward(dout, q, k, v, out, lse, bias_gradient=True, **options)
    assert dbias.shape == bias.shape and dbias.dtype == bias.dtype and (dbias[..., 9] == 0).all()
    close(dbias, expected(0))
    plain = katt.attention_backward(dout, q, k, v, out, lse, **options)
    assert all((a == b).all() for a, b in zip((dq, dk, dv), plain, strict=True))
    *_, dbias = katt.attention_backward(dout, q, k, v, out, lse, bias_gradient=True, dlse=dlse, **options)
    close(dbias, expected(dlse[..., None]))


def test_no_bias_has_no_gradient():
    q, k, v, dout = problem(SHAPES[0], "float32")
    out, lse = katt.attention(q, k, v, return_lse=True)
    with pytest.raises(ValueError, match="^attention: bias_gradient: holds True without a bias, expected a bias"):
        katt.attention_backward(dout, q, k, v, out, lse, bias_gradient=True)


def agrees(rule, slope, shape, dtype, **options):
    q, k, v, dout = problem(shape, dtype)
    expected = reference(rule, slope, q, k, v, dout, **options)
    out, lse = katt.attention(q, k, v, score_rule=rule, return_lse=True, **options)
    close(out, expected[0])
    close(lse, expected[1], dtype)
    for found, wanted in zip(
        katt.attention_backward(dout, q, k, v, out, lse, score_rule=rule, **options), expected[2:], strict=True
    ):
        close(found, wanted)


@pytest.mark.parametrize("shape", SHAPES)
def test_biases_by_head_and_distance(shape, dtype):
    heads, seq_kv = shape[1], shape[4]
    slopes = numpy.linspace(0.01, 0.3, heads, dtype="float32")
    table = numpy.random.default_rng(2).standard_normal((heads, 2 * seq_kv)).astype("float32")

    def rule(score, b, h, q, k):
        return score + slopes[h] * (k - q) + table[h, k - q + seq_kv]

    agrees(rule, lambda score, *place: 1.0, shape, dtype)
    agrees(rule, lambda score, *place: 1.0, shape, dtype, causal=True)


@pytest.mark.parametrize("shape", SHAPES)
def test_softcap(shape, dtype):
    agrees(lambda score, b, h, q, k: 2 * numpy.tanh(score / 2),
           lambda score, b, h, q, k: 1 - numpy.tanh(score / 2) ** 2, shape, dtype)


@pytest.mark.parametrize("given", ["nothing", "softcap", "alibi"])
def test_a_softcap_before_others(given, dtype):
    """The rule's own softcap, which kernels have themselves, comes behind that and the ALiBi of the call."""
    documents, position = numpy.arange(47) // 12, numpy.arange(33)[:, None] + 14
    slopes = numpy.array([0.25, 0.5], "float32")

    def rule(score, b, h, q, k):
        return numpy.where(documents[q] == documents[k], 2 * numpy.tanh(score / 2) - 0.1 * abs(q - k), -numpy.inf)

    def before(score):
        if given == "softcap":
            return 3 * numpy.tanh(score / 3)
        return score - slopes[:, None, None] * abs(position - numpy.arange(47)) if given == "alibi" else score

    def slope(score, *place):
        own = 1 - numpy.tanh(score / 3) ** 2 if given == "softcap" else 1
        return own * (1 - numpy.tanh(before(score) / 2) ** 2)

    options = {"softcap": {"softcap": 3.0}, "alibi": {"alibi_slopes": slopes}}.get(given, {})
    q, k, v, dout = problem((1, 2, 2, 33, 47, 16), dtype)
    expected = reference(lambda s, *place: rule(before(s), *place), slope, q, k, v, dout)
    out, lse = katt.attention(q, k, v, score_rule=rule, return_lse=True, **options)
    found = katt.attention_backward(dout, q, k, v, out, lse, score_rule=rule, **options)
    for own, wanted in zip((out, lse, *found), expected, strict=True):
        close(own, wanted, dtype)


@pytest.mark.parametrize("shape", SHAPES)
def test_documents(shape, dtype):
    documents = numpy.arange(shape[4], dtype="int32") // 12 + numpy.arange(shape[0], dtype="int32")[:, None]
    agrees(lambda score, b, h, q, k: numpy.where(documents[b, q] == documents[b, k], score, -numpy.inf),
           lambda score, *place: 1.0, shape, dtype)


@pytest.mark.parametrize("variant", ["naive", "flash", "decode"])
def test_random_rules_on_every_engine(variant):
    shape = (2, 3, 3, 5, 7, 16)
    q, k, v, dout = problem(shape, "float32")
    for seed in range(12):
        arrays = captured(numpy.random.default_rng(seed))
        random = RandomRule(seed, seed % 6 + 1)
        wide = {name: a.astype("float64" if a.dtype.kind == "f" else "int64") for name, a in arrays.items()}

        def rule(*args, random=random, arrays=arrays):
            return random(numpy, arrays, *args)

        with numpy.errstate(all="ignore"):
            expected = reference(lambda *args: random(numpy, wide, *args), lambda *a: 1.0, q, k, v, dout)  # noqa: B023
        if not numpy.isfinite(expected[0]).all():
            continue
        out, lse = katt.attention(q, k, v, score_rule=katt.Rule(rule), return_lse=True, variant=variant)
        close(out, expected[0], "float16")  # a rule may have jumps
        close(lse, expected[1], "float16")


def test_same_bits_on_any_number_of_threads():
    q, k, v, dout = problem((2, 4, 2, 70, 90, 32), "float32")
    table = numpy.random.default_rng(2).standard_normal((4, 180)).astype("float32")
    rule = katt.Rule(lambda score, b, h, q, k: numpy.tanh(score) + table[h, k - q + 90])

    def run():
        out, lse = katt.attention(q, k, v, score_rule=rule, return_lse=True, variant="flash")
        return out, lse, *katt.attention_backward(dout, q, k, v, out, lse, score_rule=rule, variant="flash")

    with katt.threads(1):
        first = run()
    with katt.threads(2):
        for a, b in zip(first, run(), strict=True):
            assert numpy.array_equal(a, b)


def test_gradients_of_captured_arrays_and_of_lse():
    """Against differences of the loss in float64."""
    shape = (1, 2, 2, 6, 9, 8)
    q, k, v, dout = problem(shape, "float32")
    table = numpy.random.default_rng(4).standard_normal((2, 15)).astype("float32")
    dlse = numpy.random.default_rng(5).standard_normal((1, 2, 6)).astype("float32")

    def rule_of(held):
        return lambda score, b, h, q, k: score + held[h, k - q + 6]

    rule = katt.Rule(rule_of(table))
    out, lse = katt.attention(q, k, v, score_rule=rule, return_lse=True)
    *_, dtable = katt.attention_backward(dout, q, k, v, out, lse, score_rule=rule, captured=[table], dlse=dlse)

    def loss(held):
        expected = reference(rule_of(held), lambda *a: 1.0, q, k, v, dout)
        return (expected[0] * dout).sum() + (expected[1] * dlse).sum()

    expected = numpy.zeros(table.shape)
    for place in numpy.ndindex(table.shape):
        step = numpy.zeros(table.shape)
        step[place] = 1e-5
        expected[place] = (loss(table + step) - loss(table - step)) / 2e-5
    assert dtable.dtype == numpy.float32
    close(dtable, expected)
    with pytest.raises(ValueError, match="captured: holds an array that score_rule does not read"):
        katt.attention_backward(dout, q, k, v, out, lse, score_rule=rule, captured=[table.copy()])


def test_captured_views_and_arrays_that_are_named_twice():
    q, k, v, dout = problem((1, 2, 2, 6, 9, 8), "float32")
    table = numpy.random.default_rng(4).standard_normal((2, 9)).astype("float32")
    view, dense = table[:, ::-1], table[:, ::-1].copy()

    def run(held):
        rule = katt.Rule(lambda score, b, h, q, k: score + held[h, k])
        out, lse = katt.attention(q, k, v, score_rule=rule, return_lse=True)
        return out, *katt.attention_backward(dout, q, k, v, out, lse, score_rule=rule, captured=[held, held])[3:]

    for found, wanted in zip(run(view), run(dense), strict=True):
        assert numpy.array_equal(found, wanted)
    _, first, second = run(dense)
    assert numpy.array_equal(first, second)


def test_what_is_no_rule_is_a_value_error():
    q, k, v, _ = problem((1, 2, 2, 4, 6, 8), "float32")
    table = numpy.zeros(6, "float32")
    limits = numpy.array([0, 1, 2, 9], "int32")
    for rule, words in [
        (3, "attention: score_rule: holds a int, expected a function"),
        (lambda s, b, h, q, k: numpy.sin(s), r"attention: score_rule: test_attention_rules.py:\d+: calls sin"),
        (lambda s, b, h, q, k: s + table[k + 6], "attention: score_rule: takes index 6 … 11 of an axis of 6"),
        (lambda s, b, h, q, k: s + table[limits[q]], "attention: score_rule: takes an index outside of a captured"),
    ]:
        with pytest.raises(ValueError, match=words):
            katt.attention(q, k, v, score_rule=rule)


@pytest.mark.parametrize("rule", [lambda s, b, h, q, k: s - 0.1 * abs(q - k) ** 1.5,
                                  lambda s, b, h, q, k: s / (1 + numpy.exp(-90 * s))])
def test_exponentials_beyond_their_range(rule):
    """exp of minus infinity, a power of 0, is 0, and exp of 100 and more is infinite."""
    q, k, v, dout = problem(SHAPES[0], "float32")
    with numpy.errstate(over="ignore"):
        expected = reference(rule, lambda *_: 0, q, k, v, dout)
    for variant in ("naive", "flash"):
        out, lse = katt.attention(q, k, v, score_rule=rule, variant=variant, return_lse=True)
        close(out, expected[0])
        close(lse, expected[1])


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_slope_of_nan_where_a_mask_hides(dtype):
    def slope(s, b, h, q, k):
        return numpy.nan_to_num(numpy.log(q - k + 1.5))

    def rule(s, b, h, q, k):
        return s * numpy.log(q - k + 1.5)

    q, k, v, dout = problem((1, 2, 2, 70, 70, 16), dtype)
    expected = reference(rule, slope, q, k, v, dout, causal=True)
    for variant in ("naive", "flash"):
        out, lse = katt.attention(q, k, v, score_rule=rule, causal=True, return_lse=True)
        gradients = katt.attention_backward(dout, q, k, v, out, lse, score_rule=rule, causal=True, variant=variant)
        for gradient, wanted in zip(gradients, expected[2:], strict=True):
            close(gradient, wanted)


@pytest.mark.filterwarnings("ignore:divide by zero")
def test_an_infinite_slope_where_a_bias_hides(dtype):
    """Padded keys are 0, and so are their scores, where a root is steep; the bias hides them."""
    q, k, v, dout = problem((1, 2, 2, 33, 47, 16), dtype)
    k[:, :, 40:] = 0
    bias = numpy.zeros((1, 1, 33, 47), dtype)
    bias[..., 40:] = -numpy.inf

    def rule(s, b, h, q, k):
        return numpy.sqrt(abs(s))

    def slope(s, b, h, q, k):
        return numpy.where(s == 0, 0, numpy.sign(s) / (2 * numpy.sqrt(numpy.where(s == 0, 1, abs(s)))))

    expected = reference(lambda *at: rule(*at) + bias.astype("float64"), slope, q, k, v, dout)
    for variant in ("naive", "flash"):
        out, lse = katt.attention(q, k, v, score_rule=rule, bias=bias, return_lse=True)
        gradients = katt.attention_backward(dout, q, k, v, out, lse, score_rule=rule, bias=bias, variant=variant)
        assert all(numpy.isfinite(gradient.astype("float32")).all() for gradient in gradients)
        close(gradients[2], expected[4])
