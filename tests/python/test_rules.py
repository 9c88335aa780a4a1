"""Score rules and mask rules of Python as programs: traces, simplification and gradients, against NumPy and PyTorch."""

import functools
import math
import sys
import types

import numpy
import pytest
from random_rules import EXTENTS, RandomRule, captured

pytest.importorskip("katt")
from katt._rules import array_trace, interpret  # noqa: E402
from katt._rules.compact import FLAT, INSIDE, UNKNOWN, WRAPPED, compact  # noqa: E402
from katt._rules.differentiate import captured_gradients, slope  # noqa: E402
from katt._rules.program import BLOCK, KEY, OPERATIONS, ROW, SCORE, RuleError  # noqa: E402
from katt._rules.run import Programs, Rule  # noqa: E402

NAMES = ("score", "batch", "head", "query", "key")


def places():
    return [axis.astype(numpy.int64) for axis in numpy.indices(EXTENTS, sparse=True)]


def scores(seed):
    return numpy.random.default_rng(seed).standard_normal(EXTENTS) * 2


def run(program, arrays, score, **more):
    return interpret.run(program, arrays, score=score, **dict(zip(NAMES[1:], places())), **more)


def operations(program):
    return [program.values[number].operation for number in program.live()]


@pytest.mark.parametrize(("rule", "value", "words"), [
    (lambda s: s**10, lambda s: s**10, ""), (lambda s: s**65 / 1e9, lambda s: s**65 / 1e9, ""),
    (lambda s: s**-3, lambda s: s**-3.0, ""),
    (lambda s: s**numpy.inf, None, "raises to the power inf"), (lambda s: s**numpy.nan, None, "raises to the power nan"),
])
def test_powers(rule, value, words):
    def made(s, *_):
        return rule(s)

    if words:
        with pytest.raises(RuleError, match=words):
            array_trace.trace(made)
        return
    score = scores(1)
    numpy.testing.assert_allclose(run(*array_trace.trace(made), score)[0], value(score), rtol=1e-12)


@pytest.mark.parametrize("made", ["relu", "softplus", "mish", "celu", 2.5, 1.5, 0.3, -1.5], ids=str)
def test_slopes_at_0_and_of_large_numbers_are_pytorchs(made):
    """In float64 exp(1000) is infinite, as exp(89) is in float32."""
    torch_trace_ = torch_trace()
    import torch

    def rule(s, *_):
        return s**made if isinstance(made, float) else getattr(torch.nn.functional, made)(s)

    score = numpy.array([-1000.0, -3.0, 0.0, 0.25, 3.0, 1000.0])
    s = torch.from_numpy(score).requires_grad_()
    value = rule(s)
    value.sum().backward()
    found, by_score = run(slope(torch_trace_.trace(rule)[0]), [], score)
    numpy.testing.assert_allclose(found, value.detach().numpy(), rtol=1e-7)
    numpy.testing.assert_allclose(by_score, s.grad.numpy(), rtol=1e-7)


class Settings:
    cap = 20

    def bound(self):
        return self.cap

    __call__ = bound


def test_what_may_change_is_traced_again(monkeypatch):
    """Classes, modules, objects, bound methods and functions with attributes, from which a trace may read anything."""
    module, settings, table = types.ModuleType("settings"), Settings(), {"cap": 20}
    monkeypatch.setitem(sys.modules, "settings", module)
    get, bound = table.get, settings.bound

    def own(s, *_):
        return s * own.cap

    def imports(s, *_):
        import settings

        return s * settings.cap

    rules = [lambda s, *_: s * Settings.cap, lambda s, *_: s * module.cap, lambda s, *_: s * settings(),
             lambda s, *_: s * bound(), lambda s, *_: s * get("cap"), own, imports]
    for cap in (20, 30):
        Settings.cap = module.cap = own.cap = table["cap"] = cap
        for rule in rules:
            assert cap in [value.item for value in Rule(rule).programs.score.values]


def test_arrays_that_are_read_by_value_are_traced_again():
    torch_trace()
    caps = numpy.array([20.0], "float32")
    for cap in (20, 30):
        caps[0] = cap
        program = Rule(lambda s, *_: s * float(caps[0]), for_torch=True).programs.score
        assert cap in [value.item for value in program.values]


def test_functions_of_libraries_are_known():
    tanh, where, exp = numpy.tanh, numpy.where, math.exp

    def made(factor):
        return Rule(lambda s, b, h, q, k: where(q > k, tanh(s) * abs(factor), exp(1) * numpy.float32(2))).programs

    assert made(3) is made(3) is not made(4)


def torch_trace():
    pytest.importorskip("torch")
    from katt._rules import torch_trace

    return torch_trace


@pytest.mark.parametrize("depth", range(1, 7))
def test_numpy_rules_are_what_numpy_computes(depth):
    for seed in range(10):
        arrays = captured(numpy.random.default_rng(seed))
        rule = RandomRule(1000 * depth + seed, depth)
        program, held = array_trace.trace(functools.partial(rule, numpy, arrays))
        score = scores(seed)
        with numpy.errstate(all="ignore"):
            wide = {name: a.astype("float64" if a.dtype.kind == "f" else "int64") for name, a in arrays.items()}
            expected = rule(numpy, wide, score, *places())
        (found,) = run(program, held, score)
        numpy.testing.assert_allclose(found, numpy.broadcast_to(expected, EXTENTS), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("depth", range(1, 7))
def test_gradients_are_those_of_autograd(depth):
    torch_trace_ = torch_trace()
    import torch

    for seed in range(10):
        arrays = captured(numpy.random.default_rng(seed))
        tensors = {name: torch.from_numpy(a) for name, a in arrays.items()}
        rule = RandomRule(1000 * depth + seed, depth)
        program, held = torch_trace_.trace(functools.partial(rule, torch, tensors))
        score = scores(seed)

        wide = {name: t.double().requires_grad_() if t.is_floating_point() else t for name, t in tensors.items()}
        s = torch.from_numpy(score).requires_grad_()
        result = rule(torch, wide, s, *(torch.from_numpy(place) for place in places())).expand(EXTENTS)
        weights = numpy.random.default_rng(seed + 1).standard_normal(EXTENTS)
        result.backward(torch.from_numpy(weights))

        arrays = [tensor.numpy() for tensor in held]
        found, by_score = run(slope(program), arrays, score)
        numpy.testing.assert_allclose(found, result.detach().numpy(), rtol=1e-9, atol=1e-9)
        numpy.testing.assert_allclose(by_score * weights, s.grad.numpy(), rtol=1e-8, atol=1e-8)

        real = {n for n, t in enumerate(held) if t.is_floating_point()}
        gradients = {n: numpy.zeros(held[n].shape) for n in real}
        run(captured_gradients(program, real), arrays, score, gradient=weights, gradients=gradients)
        for name, tensor in wide.items():
            known = [n for n in real if held[n] is tensors[name]]
            if known:
                expected = numpy.zeros(tensor.shape) if tensor.grad is None else tensor.grad.numpy()
                numpy.testing.assert_allclose(gradients[known[0]], expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("depth", range(1, 7))
def test_compact_programs_are_the_programs(depth):
    extents = dict(zip(NAMES[1:], EXTENTS))
    for seed in range(20):
        arrays = captured(numpy.random.default_rng(seed))
        rule = RandomRule(1000 * depth + seed, depth)
        program, held = array_trace.trace(functools.partial(rule, numpy, arrays))
        score = scores(seed)
        both = slope(program)
        made = compact(both, extents, held)
        assert numpy.all(numpy.diff(made.code[:, 2]) >= 0)
        inputs = {"score": score, **dict(zip(NAMES[1:], places()))}
        for found, expected in zip(interpret.run_compact(made, held, **inputs), run(both, held, score)):
            numpy.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)  # constants are of 32 bits

        real = {n for n, array in enumerate(held) if array.dtype == "float32"}
        gradients = [{n: numpy.zeros(held[n].shape) for n in real} for _ in range(2)]
        back = captured_gradients(program, real)
        weights = numpy.random.default_rng(seed + 1).standard_normal(EXTENTS)
        inputs["gradient"] = weights
        interpret.run_compact(compact(back, extents, held), held, gradients=gradients[0], **inputs)
        run(back, held, score, gradient=weights, gradients=gradients[1])
        for n in real:
            numpy.testing.assert_allclose(gradients[0][n], gradients[1][n], rtol=1e-5, atol=1e-4)


def test_indices_are_bounded_before_the_run():
    table = numpy.zeros((3, 11), "float32")
    documents = numpy.array([[0, 4, 2, 1, 0, 3, 4]], "int32")
    extents = {"batch": 1, "head": 3, "query": 5, "key": 7}

    def places_of(rule):
        program, held = array_trace.trace(rule)
        return compact(program, extents, held).indices[:, 1].tolist()

    assert places_of(lambda s, b, h, q, k: s + table[h, q - k + 6]) == [FLAT]
    assert places_of(lambda s, b, h, q, k: s + table[h, q - k]) == [INSIDE, WRAPPED]
    assert places_of(lambda s, b, h, q, k: s + table[h, q + 2 * k]) == [INSIDE, UNKNOWN]
    assert places_of(lambda s, b, h, q, k: s + table[h % 2, (q * k) // 3 % 11]) == [FLAT]
    assert places_of(lambda s, b, h, q, k: s + table[h, documents[b, k] * 2 + 2]) == [FLAT] * 2
    assert places_of(lambda s, b, h, q, k: s + table[h, numpy.where(q > k, q, 11)]) == [INSIDE, UNKNOWN]
    with pytest.raises(RuleError, match="takes index 11 … 17 of an axis of 11 elements"):
        places_of(lambda s, b, h, q, k: s + table[h, k + 11])
    with pytest.raises(RuleError, match="expected 32 bits"):
        places_of(lambda s, b, h, q, k: s + (k + 1) * 2147483647)


def test_what_a_key_does_not_change_is_computed_once_a_row():
    slopes = numpy.ones(3, "float32")
    documents = numpy.zeros((2, 7), "int32")

    def rule(score, b, h, q, k):
        return numpy.where(documents[b, q] == documents[b, k], score + numpy.exp(slopes[h]) * (q // 2), b * 1.0)

    program, _ = array_trace.trace(rule)
    levels = {}
    for number in program.live():
        levels.setdefault(program.values[number].operation, set()).add(program.values[number].level)
    assert levels["exp"] == levels["floor_divide"] == {ROW}
    assert levels["gather"] == {ROW, KEY}
    assert levels["constant"] == {BLOCK}


def test_equal_values_are_one_and_constants_are_folded():
    def rule(score, b, h, q, k):
        twice = (q - k) * (2 * 3 - 5) + 0
        return score * 1.0 + (q - k) * 0.5 + twice * (numpy.float32(2) / 4) + numpy.where(True, score, -score)

    program, _ = array_trace.trace(rule)
    made = operations(program)
    assert made.count("subtract") == made.count("to_real") == 1
    assert "where" not in made and "negative" not in made


def test_scores_take_few_instructions():
    """What can be computed once a row or a key is: q − k + n as (q + n) − k, s − a·x as s + (−a)·x, which is fused."""
    table, slopes = numpy.ones((3, 12), "float32"), numpy.ones(3, "float32")

    def made(rule, extents=EXTENTS):
        program, arrays = array_trace.trace(rule)
        code = compact(program, dict(zip(NAMES[1:], extents, strict=True)), arrays).code
        names = [OPERATIONS[row[0]] for row in code if row[2] == SCORE]
        return ["add" if name == "subtract" else name for name in names]

    assert made(lambda s, b, h, q, k: s + table[h, q - k + 6]) == ["add", "gather", "add"]
    assert made(lambda s, b, h, q, k: s + table[h, 6 - (k - q)]) == ["add", "gather", "add"]
    assert made(lambda s, b, h, q, k: s + table[h, (k - q) - 6]) == ["add", "gather", "add"]

    def alibi(s, b, h, q, k):
        return s - slopes[h] * abs(q - k)

    assert made(alibi) == ["add", "absolute", "fma"]
    exact = (1, 3, 2**24 + 1, 2**24 + 1)  # queries and keys up to 2^24, the last integer before a gap of f32
    assert made(alibi, exact) == ["add", "absolute", "fma"]
    assert made(alibi, (1, 3, 2**24 + 2, 5)) == ["add", "absolute", "to_real", "fma"]


def test_slopes_of_masks_and_additive_rules_are_one():
    table = numpy.ones((3, 12), "float32")

    def rule(score, b, h, q, k):
        return numpy.where(q >= k, score + table[h, q - k + 6], -numpy.inf)

    program = slope(array_trace.trace(rule)[0])
    assert program.item(program.results[1]) == 1.0


def test_constants_of_a_slope_are_joined():
    """cap · (1 − t²) / cap is 1 − t²: with score / cap, t and cap · t five instructions."""
    program, arrays = array_trace.trace(lambda s, b, h, q, k: 20 * numpy.tanh(s / 20))
    code = compact(slope(program), None, arrays).code
    assert [OPERATIONS[row[0]] for row in code] == ["divide", "tanh", "multiply", "multiply", "subtract"]


CAPPED = [lambda s, b, h, q, k: 20 * numpy.tanh(s / 20), lambda s, b, h, q, k: numpy.tanh(s * 0.25) * 4 - abs(q - k),
          lambda s, b, h, q, k: numpy.where(q >= k, 4 * numpy.tanh(s / 4), -numpy.inf)]
UNCAPPED = [lambda s, b, h, q, k: 20 * numpy.tanh(s / 10), lambda s, b, h, q, k: 4 * numpy.tanh(s / 4) + s,
            lambda s, b, h, q, k: 4 * numpy.tanh(4 / s), lambda s, b, h, q, k: -4 * numpy.tanh(s / -4),
            lambda s, b, h, q, k: 4 * numpy.tanh(s / 4) + numpy.tanh(s / 4), lambda s, b, h, q, k: numpy.tanh(s),
            lambda s, b, h, q, k: 1e7 * numpy.tanh(s / 1e7), lambda s, b, h, q, k: q - k + 0.0]


@pytest.mark.parametrize("rule", CAPPED + UNCAPPED)
def test_a_softcap_at_the_beginning_is_known(rule):
    program, arrays = array_trace.trace(rule)
    capped = Programs(program).capped
    assert (capped is not None) == (rule in CAPPED)
    if capped:
        cap, rest = capped
        assert "tanh" not in operations(rest.score) and cap in (4, 20)
        score = scores(5)
        wanted = run(program, arrays, score)
        numpy.testing.assert_allclose(run(rest.score, arrays, cap * numpy.tanh(score / cap)), wanted, rtol=1e-6)


def branches(score, b, h, q, k):
    return score if q > k else -score


def asks_for_a_sine(score, b, h, q, k):
    return score + numpy.sin(score)


def returns_a_truth(score, b, h, q, k):
    return q > k


TABLE = numpy.zeros((3, 7), "float32")


def returns_a_row(score, b, h, q, k):
    return score + TABLE[h]


def indexes_by_reals(score, b, h, q, k):
    return score + TABLE[h, score]


def indexes_behind_the_end(score, b, h, q, k):
    return score + TABLE[3, k]


@pytest.mark.parametrize(("rule", "words"), [
    (branches, "test_rules.py:{1}: asks for the value of a number"),
    (asks_for_a_sine, "test_rules.py:{1}: calls sin, which rules do not have"),
    (returns_a_truth, "returns_a_truth: returns truth result, expected one number of type float32"),
    (returns_a_row, "returns_a_row: returns a result of shape (7,), expected one number"),
    (indexes_by_reals, "test_rules.py:{1}: takes an index that is real, expected an integer"),
    (indexes_behind_the_end, "test_rules.py:{1}: takes index 3 of an axis of 3 elements"),
])
def test_what_is_no_rule_is_refused_by_line(rule, words):
    with pytest.raises(RuleError) as refused:
        array_trace.trace(rule)
    assert words.replace("{1}", str(rule.__code__.co_firstlineno + 1)) in str(refused.value)


def test_what_is_no_rule_of_pytorch_is_refused_by_line():
    torch_trace_ = torch_trace()
    import torch

    table = torch.zeros(3, 7)

    def sine(score, b, h, q, k):
        return torch.sin(score)

    def branch(score, b, h, q, k):
        return score if q > k else -score

    def row(score, b, h, q, k):
        return score + table[h]

    def wide(score, b, h, q, k):
        return score + table.double()[h, k]

    def narrow(score, b, h, q, k):
        return score + (k * 100).to(torch.int8)

    bytes = torch.arange(8, dtype=torch.uint8)

    def wrapping(score, b, h, q, k):
        return score + (bytes[k] + bytes[k])

    line = {rule: f"test_rules.py:{rule.__code__.co_firstlineno + 1}" for rule in (sine, branch, row, wide, narrow, wrapping)}
    for rule, words in [
        (sine, f"{line[sine]}: calls sin, which rules do not have"),
        (branch, f"{line[branch]}: asks for the value of a tensor"),
        (row, "row: returns a result of shape (7,), expected one number of type float32"),
        (wide, f"{line[wide]}: _to_copy makes a tensor of torch.float64, expected float32, bool or an integer"),
        (narrow, f"{line[narrow]}: converts to torch.int8, expected float32, bool or an integer of 32 bits"),
        (wrapping, f"{line[wrapping]}: calls add of torch.uint8, which wraps around"),
    ]:
        with pytest.raises(RuleError) as refused:
            torch_trace_.trace(rule)
        assert words in str(refused.value)


def test_masks_of_pytorch_are_programs():
    torch_trace_ = torch_trace()
    import torch
    from torch.nn.attention.flex_attention import and_masks, or_masks

    documents = torch.tensor([[0, 0, 1, 1, 1, 2, 2], [0, 1, 1, 1, 1, 1, 2]])
    mask = and_masks(or_masks(lambda b, h, q, k: q >= k, lambda b, h, q, k: k < 2),
                     lambda b, h, q, k: documents[b, q] == documents[b, k],
                     lambda b, h, q, k: (q - k).abs() % 2 == h % 2)
    program, held = torch_trace_.trace(mask, "mask")
    (found,) = interpret.run(program, [t.numpy() for t in held], **dict(zip(NAMES[1:], places())))
    assert found.dtype == bool
    expected = mask(*(torch.from_numpy(place) for place in places()))
    assert numpy.array_equal(numpy.broadcast_to(found, EXTENTS), expected.expand(EXTENTS).numpy())
