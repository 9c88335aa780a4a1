"""The functions that are made from the operators' schemas, and their stubs."""

import ast
import inspect
import re

import numpy
import pytest
from conftest import right_tensor

katt = pytest.importorskip("katt")
from katt import _functions, _schema  # noqa: E402


def plans():
    return _schema.chosen(_functions.PLANS)


@pytest.mark.parametrize("plan", plans(), ids=lambda plan: plan.name)
def test_documentation_names_every_argument_and_result(plan):
    function = _functions.FUNCTIONS[plan.name]
    text = function.__doc__
    for name in inspect.signature(function).parameters:
        assert name == "tile" or name in text or name in dict(plan.numbers), name
    for output in plan.outputs:
        assert output.name in text
    assert plan.formula and "Raises ValueError" in text and max(map(len, plan.formula.split("\n"))) <= 120


def test_stubs_have_the_signatures_of_the_functions():
    tree = ast.parse(_schema.stub(_functions.PLANS))
    stubs = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert set(stubs) == set(_functions.FUNCTIONS)
    for name, function in _functions.FUNCTIONS.items():
        parameters = inspect.signature(function).parameters.values()
        arguments = stubs[name].args
        keywords = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
        assert [a.arg for a in arguments.args] == [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
        assert [a.arg for a in arguments.kwonlyargs] == keywords
        assert [ast.literal_eval(d) for d in arguments.kw_defaults] == [
            p.default for p in parameters if p.kind is p.KEYWORD_ONLY
        ]
        assert ast.get_docstring(stubs[name]) == inspect.getdoc(function)


def test_documents_and_stubs_of_torch_are_those_of_its_functions():
    torch = pytest.importorskip("torch")
    functions = pytest.importorskip("katt.torch._functions").FUNCTIONS
    tree = ast.parse(_schema.stub(_functions.PLANS, in_torch=True))
    stubs = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert set(stubs) == set(functions)
    absent = {"tile", "quantise", "logits", "kept_logits", "statistics", "out_q", "out_q_scale", "dloss"}
    for name, function in functions.items():
        parameters = inspect.signature(function).parameters
        told = [line for line in function.__doc__.split("\n") if re.match(r"Returns |\w+: |statistics ", line)]
        assert not absent & set(re.findall(r"\w+", " ".join(told))), name
        arrays = {tensor.name: right_tensor(tensor) for tensor in _functions.PLANS[name][0].inputs}
        required = [n for n, parameter in parameters.items() if parameter.default is inspect.Parameter.empty]
        made = function(*(torch.from_numpy(arrays[n]) for n in required))
        assert isinstance(made, torch.Tensor) and ast.unparse(stubs[name].returns).startswith("Tensor")
        assert (ast.unparse(stubs[name].returns) == "Tensor") == (name not in ("rmsnorm", "rmsnorm_linear", "rope"))


def test_arrays_of_other_leading_axes_are_refused():
    rows, turned = numpy.ones((2, 3, 8), "f"), numpy.ones((3, 2, 8), "f")
    ids, cache = numpy.zeros((3, 2), "i8"), katt.rope_cache(9, 8)
    heads = numpy.ones((2, 1, 3, 8), "f")
    for call, words in [
        (lambda: katt.cross_entropy(rows, ids), r"targets: holds shape \(3, 2\), expected \(2, 3\), as logits has"),
        (lambda: katt.cross_entropy(rows, ids.ravel()), r"targets: holds shape \(6,\), expected \(2, 3\)"),
        (lambda: katt.swiglu(rows, turned), r"up: holds shape \(3, 2, 8\), expected \(2, 3, intermediate\), as gate has"),
        (lambda: katt.rmsnorm(rows, rows[0, 0], turned), r"residual: holds shape \(3, 2, 8\), expected \(2, 3, hidden\)"),
        (lambda: katt.convert_dtype(rows, turned), r"out: holds shape \(3, 2, 8\), expected \(2, 3, 8\)"),
        (lambda: katt.embedding_backward(rows, ids, 4), r"ids: holds shape \(3, 2\), expected \(2, 3\), as dout has"),
        (lambda: katt.rope(heads, cache, positions=ids), r"positions: holds shape \(3, 2\), expected \(2, 3\)"),
    ]:
        with pytest.raises(ValueError, match=words):
            call()


def test_a_large_workspace_lives_as_long_as_the_call():
    x = numpy.zeros((1024, 20000), numpy.float32)  # naive keeps the probabilities, 82 MB
    dx = katt.softmax_backward(x, numpy.ones_like(x), variant="naive")
    assert abs(dx).max() < 1e-6


def test_flags_choose_results():
    x, weight = numpy.ones((2, 3, 8), "f"), numpy.ones(8, "f")
    out, h = katt.rmsnorm(x, weight, x)
    assert out.shape == h.shape == x.shape and (h == 2).all()
    h, q, s = katt.rmsnorm(x, weight, x, quantise=True)
    assert (h == 2).all() and q.dtype == numpy.int8 and s.shape == (2, 3)
    assert len(katt.linear_backward(x, x, numpy.ones((8, 8), "f"))) == 2
    assert len(katt.linear_backward(x, x, numpy.ones((8, 8), "f"), bias=True)) == 3


def test_convert_dtype_backward_rounds_to_the_given_array():
    dout = numpy.linspace(0, 1, 24, dtype="float32").reshape(2, 3, 4)
    dx = numpy.empty((2, 3, 4), "float16")
    assert katt.convert_dtype_backward(dout, dx) is dx
    assert (dx == dout.astype("float16")).all()
