"""katt.torch: gradients against PyTorch's, torch.library's own checks and torch.compile."""

import subprocess
import sys

import numpy
import pytest
from conftest import right_tensor

torch = pytest.importorskip("torch")
GradcheckError = pytest.importorskip("torch.autograd.gradcheck").GradcheckError
katt = pytest.importorskip("katt")
kt = pytest.importorskip("katt.torch")
from katt.torch._functions import OPERATORS  # noqa: E402

F = torch.nn.functional

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
LIMIT = {torch.float32: 3e-5, torch.float16: 6e-3, torch.bfloat16: 4e-2}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(3)


def close(actual, expected, limit=None):
    limit = limit or LIMIT[actual.dtype]
    assert actual.shape == expected.shape
    error = (actual.double() - expected.double()).abs().max().item() if actual.numel() else 0
    assert error <= limit * max(1.0, expected.abs().max().item() if actual.numel() else 0), error


def agree(function, exact, inputs, limit=None):
    """Results and gradients of `function` against those of `exact` in float64."""
    ours = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
    theirs = [x.double().requires_grad_() if x.is_floating_point() else x for x in inputs]
    found, expected = function(*ours), exact(*theirs)
    close(found, expected, limit)
    dout = torch.randn_like(expected)
    variables = [x for x in ours if x.requires_grad]
    gradients = torch.autograd.grad(found, variables, dout.to(found.dtype))
    exact_gradients = torch.autograd.grad(expected, [x for x in theirs if x.requires_grad], dout)
    for variable, one, other in zip(variables, gradients, exact_gradients, strict=True):
        assert one.dtype == variable.dtype
        close(one, other, limit)


@pytest.mark.parametrize("dtype", DTYPES)
def test_layers_and_norms(dtype):
    def new(*shape):
        return torch.randn(shape, dtype=dtype)

    wide = 4 * LIMIT[dtype]
    agree(kt.linear, F.linear, [new(2, 5, 16), new(8, 16), new(8)], wide)
    agree(kt.linear, F.linear, [new(5, 16), new(8, 16)], wide)
    agree(kt.swiglu, lambda g, u: F.silu(g) * u, [new(2, 3, 24), new(2, 3, 24)])
    agree(kt.swiglu_mlp, lambda x, g, u, d: (F.silu(x @ g.T) * (x @ u.T)) @ d.T,
          [new(4, 16), new(24, 16) / 4, new(24, 16) / 4, new(16, 24) / 4], wide)  # fmt: skip
    agree(kt.softmax, lambda x: F.softmax(x, -1), [new(3, 4, 9)])
    agree(kt.rmsnorm, lambda x, w: F.rms_norm(x, (32,), w, 1e-5), [new(4, 3, 32), new(32)], wide)
    agree(kt.rmsnorm_linear, lambda x, n, w: F.linear(F.rms_norm(x, (32,), n, 1e-5), w),
          [new(2, 35, 32), new(32), new(8, 32) / 4], wide)  # fmt: skip
    agree(kt.layernorm, lambda x, w, b: F.layer_norm(x, (32,), w, b), [new(7, 32), new(32), new(32)], wide)
    agree(kt.embedding, F.embedding, [torch.tensor([[1, 2], [2, 0]]), new(5, 8)])
    agree(lambda x: kt.convert_dtype(x, torch.float32), lambda x: x * 1.0, [new(3, 8)])
    assert kt.convert_dtype(torch.tensor(1.5), torch.bfloat16).shape == (), "a tensor without axes"


def test_rmsnorm_with_a_residual():
    x, residual, weight = torch.randn(6, 16), torch.randn(6, 16), torch.randn(16)

    def ours(x, residual, weight):
        out, h = kt.rmsnorm(x, weight, residual)
        return out * 2 + h.sin()

    def exact(x, residual, weight):
        h = x + residual
        return F.rms_norm(h, (16,), weight, 1e-5) * 2 + h.sin()

    agree(ours, exact, [x, residual, weight], 1e-4)


def test_rope():
    x = torch.randn(2, 3, 7, 16)
    cache = katt.rope_cache(7, 16, like=x)
    assert isinstance(cache, torch.Tensor)

    def exact(x):
        cos, sin = cache[:, :8].double(), cache[:, 8:].double()
        a, b = x[..., :8], x[..., 8:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    agree(lambda x: kt.rope(x, cache), exact, [x])


@pytest.mark.parametrize("dtype", DTYPES)
def test_losses(dtype):
    hidden, weight = torch.randn(6, 16, dtype=dtype), torch.randn(40, 16, dtype=dtype)
    targets = torch.tensor([3, 5, -100, 0, 39, 7])
    limit = 4 * LIMIT[dtype]
    agree(lambda x: kt.cross_entropy(x, targets) * 3, lambda x: F.cross_entropy(x, targets) * 3, [hidden @ weight.T],
          limit)  # fmt: skip
    agree(lambda h, w: kt.linear_cross_entropy(h, w, targets) * 3, lambda h, w: F.cross_entropy(h @ w.T, targets) * 3,
          [hidden, weight], limit)  # fmt: skip


def test_ternary_linear():
    x, weight = torch.randn(3, 64, requires_grad=True), torch.randn(8, 64, requires_grad=True)
    out = kt.ternary_linear(x, weight)
    packed = katt.ternary_pack(weight.detach())
    close(out, katt.ternary_linear(x.detach(), packed))
    dx, dweight = torch.autograd.grad(out.sum(), (x, weight))
    ones = torch.ones_like(out)
    for wrong, message in ((weight[0], r"weight: holds shape \(64,\), expected 2 axes"),
                           (weight[:, :9], r"x: holds shape \(3, 64\), expected \(…, 9\)")):  # fmt: skip
        with pytest.raises(ValueError, match=f"ternary_linear: {message}"):
            kt.ternary_linear(x, wrong)
    for found, expected in zip((dx, dweight), katt.ternary_linear_backward(ones, x.detach(), packed), strict=True):
        close(found, expected)


def test_no_rows_are_quantised():
    out_q, scale = katt.rmsnorm_quantized(torch.zeros(0, 64), torch.ones(64))  # memory at a null pointer
    assert out_q.shape == (0, 64) and scale.shape == (0,)


def test_a_gradient_that_is_no_number():
    """As of a loss scale that overflows: the step is skipped, not the program ended."""
    for scale in (float("inf"), float("nan")):
        logits = torch.randn(2, 8, requires_grad=True)
        (kt.cross_entropy(logits, torch.tensor([0, 1])) * scale).backward()
        assert not logits.grad.isfinite().any()


def test_gradients_that_nobody_computes_are_refused():
    cache = katt.rope_cache(4, 8, like=torch.empty(0)).requires_grad_()
    with pytest.raises(ValueError, match="rope: cache: holds a tensor that requires a gradient, expected one without"):
        kt.rope(torch.randn(1, 2, 4, 8), cache)
    with pytest.raises(ValueError, match="rmsnorm: weight: holds a tensor that requires a gradient"):
        katt.rmsnorm(torch.randn(2, 8).numpy(), torch.randn(8, requires_grad=True))


def test_only_the_library_of_like_counts():
    like, packed = torch.zeros(2, requires_grad=True), katt.ternary_pack(torch.randn(8, 16))
    assert torch.equal(katt.rope_cache(4, 8, like=like), katt.rope_cache(4, 8, like=like.detach()))
    assert torch.equal(packed.dequantise(like), packed.dequantise(like.detach()))


def test_autograd_learns_of_an_array_that_was_written():
    a, c = torch.ones(4, requires_grad=True), torch.zeros(4)
    product = a * c
    katt.convert_dtype(torch.arange(4.0), c)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_tensors_that_require_gradients_are_not_taken_by_katt():
    q = torch.randn(1, 2, 4, 8, requires_grad=True)
    with pytest.raises(ValueError, match="attention: q: holds a tensor that requires a gradient"):
        katt.attention(q, q, q)
    plain, bias = q.detach(), torch.zeros(1, 1, 4, 4, requires_grad=True)
    with pytest.raises(ValueError, match="attention: bias: holds a tensor that requires a gradient"):
        katt.attention(plain, plain, plain, bias=bias)
    table = torch.zeros(8, requires_grad=True)
    rule = katt.Rule(lambda s, b, h, q, k: s + table[k], for_torch=True)
    out, lse = torch.zeros_like(plain), torch.zeros(1, 2, 4)
    for call in (lambda: katt.attention(plain, plain, plain, score_rule=rule),
                 lambda: katt.attention_backward(plain, plain, plain, plain, out, lse, score_rule=rule)):  # fmt: skip
        with pytest.raises(ValueError, match="attention: score_rule: captures a tensor that requires a gradient"):
            call()
    with pytest.raises(ValueError, match="attention: alibi_slopes: holds a tensor that requires a gradient"):
        kt.attention(plain, plain, plain, alibi_slopes=torch.ones(2, requires_grad=True))
    with torch.no_grad():
        katt.attention(plain, plain, plain, score_rule=rule)
        close(katt.attention(q, q, q), F.scaled_dot_product_attention(q, q, q))


def new(*shape):
    return torch.randn(shape, requires_grad=True)


def made_operators():
    """Every operator that is made from a schema, with and without what may be missing."""
    found = {}
    for name, both in OPERATORS.items():
        tensors = [
            torch.from_numpy(right_tensor(tensor)).requires_grad_(not tensor.element)
            for tensor in both.forward.plan.inputs
        ]
        rest = (*(default for _, default in both.forward.plan.numbers), "auto")
        operator = getattr(torch.ops.katt, name)
        found[name] = (operator, (*tensors, *rest))
        if both.conditions:
            least = (None if tensor.when else x for tensor, x in zip(both.forward.plan.inputs, tensors, strict=True))
            found[f"{name}_least"] = (operator, (*least, *rest))
    return found


def operators():
    q, kv = new(1, 4, 6, 8), new(1, 2, 7, 8)
    numbers = (0, 0.4, True, -1, -1, 0.0, True, "auto")
    cache = katt.rope_cache(9, 8, like=torch.empty(0))
    ids = torch.tensor([1, 0, 3])
    ops = torch.ops.katt
    turned = (new(1, 2, 5, 8), cache, new(1, 5, 1, 8).transpose(1, 2), torch.tensor([[4, 0, 1, 1, 8]]), 0, True, "auto")
    return made_operators() | {
        "attention": (ops.attention, (q, kv, kv.detach().clone().requires_grad_(), None, None, None, None, *numbers)),
        "attention_bshd": (ops.attention, (new(1, 6, 4, 8).transpose(1, 2), kv, kv, None, None, None, None, *numbers)),
        "rope_bshd": (ops.rope, turned),
        "cross_entropy_ids": (ops.cross_entropy, (new(3, 8), ids, -100, "auto")),
        "linear_cross_entropy": (ops.linear_cross_entropy, (new(3, 8), new(9, 8), ids, -100, "auto")),
        "ternary_linear": (ops.ternary_linear, (new(3, 8), new(5, 8))),
        "convert_dtype": (ops.convert_dtype, (new(3, 8), torch.bfloat16)),
    }


@pytest.mark.parametrize("name", list(operators()))
def test_opcheck(name):
    operator, arguments = operators()[name]
    torch.library.opcheck(operator, arguments)


def differentiable():
    """(operator, place of an input that has a gradient)."""
    for name, (operator, arguments) in made_operators().items():
        for place, x in enumerate(arguments):
            if isinstance(x, torch.Tensor) and x.requires_grad:
                yield pytest.param(operator, arguments, place, id=f"{name}-{place}")


@pytest.mark.parametrize(("operator", "arguments", "place"), list(differentiable()))
def test_gradients_are_those_of_differences(operator, arguments, place):
    """The derivative along a direction of one input, so that a gradient that belongs to another input shows."""
    arguments = [x.detach() if isinstance(x, torch.Tensor) else x for x in arguments]
    arguments[place] = arguments[place].clone().requires_grad_()

    def value(x):
        results = operator(*arguments[:place], x, *arguments[place + 1 :])
        results = [results] if isinstance(results, torch.Tensor) else results
        floats = [y for y in results if y.requires_grad or not x.requires_grad]
        generator = torch.Generator().manual_seed(5)
        return [(y * torch.randn(y.shape, generator=generator)).double().sum() if y.numel() else None for y in floats]

    made = value(arguments[place])
    (gradient,) = torch.autograd.grad(sum(y for y in made if y is not None), arguments[place])
    direction = torch.randn(gradient.shape, generator=torch.Generator().manual_seed(6))
    step = 2e-2
    ahead, behind = (value(arguments[place].detach() + sign * step * direction) for sign in (1, -1))
    differences = [(a - b) / (2 * step) for a, b in zip(ahead, behind, strict=True) if a is not None]
    expected = sum(differences[: sum(y is not None for y in made)])
    found = (gradient.double() * direction).sum()
    assert abs(found - expected) <= 0.02 * (gradient.double() * direction).abs().sum() + 1e-3, (found, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bias_shape", [(2, 4, 13, 17), (1, 4, 13, 17), (2, 1, 13, 17), (1, 1, 13, 17)])
def test_lse_and_bias_of_attention_have_gradients(bias_shape, dtype):
    q, k, v = (torch.randn(2, heads, seq, 16).to(dtype) for heads, seq in ((4, 13), (2, 17), (2, 17)))
    bias = torch.randn(bias_shape).to(dtype)
    ours = [x.clone().requires_grad_() for x in (q, k, v, bias)]
    theirs = [x.double().requires_grad_() for x in (q, k, v, bias)]
    out, lse = kt.attention(*ours[:3], bias=ours[3], causal=True, return_lse=True)
    q, k, v, bias = theirs
    s = q @ k.repeat_interleave(2, 1).transpose(2, 3) / 4 + bias
    s = s.masked_fill(torch.ones(13, 17).triu(5).bool(), float("-inf"))
    expected, expected_lse = torch.softmax(s, -1) @ v.repeat_interleave(2, 1), torch.logsumexp(s, -1)
    dout, dlse = torch.randn_like(expected), torch.randn_like(expected_lse)
    ((out * dout.to(dtype)).sum() + (lse * dlse.float()).sum()).backward()
    ((expected * dout.to(dtype)).sum() + (expected_lse * dlse).sum()).backward()
    for found, wanted in zip(ours, theirs, strict=True):
        close(found.grad, wanted.grad)


MASK_MEMORY = """
import resource, torch, katt.torch
torch.set_num_threads(1)
def attend(length, mask):
    q, k, v = (torch.randn(2, 4, length, 16, requires_grad=True) for _ in range(3))
    katt.torch.scaled_dot_product_attention(q, k, v, mask).sum().backward()
attend(64, torch.randn(64, 64, requires_grad=True))
mask = torch.randn({length}, {length}, requires_grad=True)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
attend({length}, mask)
assert float(mask.grad.abs().max()) > 0
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_after_naive_do_not_take_its_rounded_scores(dtype):
    torch.manual_seed(1)
    q, k, v, dout = ((torch.randn(1, 2, 64, 64) * size).to(dtype) for size in (6, 6, 1, 1))
    bias = torch.zeros(64, 64, dtype=dtype)
    bias[-24:] = -1000
    made = {}
    for variant in ("naive", "flash"):
        leaves = [x.clone().requires_grad_() for x in (q, k, v, bias)]
        out = katt.torch.attention(*leaves[:3], bias=leaves[3].expand(1, 1, 64, 64), variant=variant)
        made[variant] = torch.autograd.grad(out, leaves, dout)
    for naive, flash in zip(made["naive"], made["flash"], strict=True):
        torch.testing.assert_close(naive.float(), flash.float(), atol=0.02 * flash.abs().max().item(), rtol=0)


def test_gradients_of_a_mask_store_no_scores():
    """Eight heads share a mask: what grows is its gradient."""
    length = 4096
    done = subprocess.run([sys.executable, "-c", MASK_MEMORY.format(length=length)], capture_output=True, text=True,
                          timeout=300, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    grown_bytes = int(done.stdout) * 1024
    assert grown_bytes < 2 * length * length * 4, grown_bytes


class ThroughFloat64(torch.autograd.Function):
    """The result of PyTorch's operators in float64; the gradients of `ours` in float32."""

    @staticmethod
    def forward(ctx, ours, exact, *inputs):
        ctx.ours = ours
        ctx.save_for_backward(*inputs)
        return exact(*inputs)

    @staticmethod
    def backward(ctx, dout):
        with torch.enable_grad():
            inputs = [x.detach().float().requires_grad_() for x in ctx.saved_tensors]
            gradients = torch.autograd.grad(ctx.ours(*inputs), inputs, dout.float())
        return None, None, *(x.double() for x in gradients)


@pytest.mark.parametrize(
    "options", [{}, {"is_causal": True}, {"scale": 0.7}, {"attn_mask": torch.tensor([[0.0, -1.0, float("-inf")]] * 3)}],
    ids=["plain", "causal", "scale", "mask"],
)  # fmt: skip
def test_gradcheck(options):
    """torch.autograd.gradcheck differentiates what it is given numerically, for which float32 is too coarse: so that is
    the function in float64, beside the gradients of the kernels."""

    def exact(q, k, v):
        return F.scaled_dot_product_attention(
            q, k, v, **{name: x.double() if name == "attn_mask" else x for name, x in options.items()}
        )

    def ours(q, k, v):
        return kt.scaled_dot_product_attention(q, k, v, **options)

    def check(ours):
        inputs = [torch.randn(1, 2, 3, 8).double().requires_grad_() for _ in range(3)]
        return torch.autograd.gradcheck(lambda *x: ThroughFloat64.apply(ours, exact, *x), inputs, atol=1e-5, rtol=1e-4)

    assert check(ours)
    with pytest.raises(GradcheckError):
        check(lambda *x: 1.01 * ours(*x))


def test_gradients_of_few_queries_with_sharp_scores():
    """Both passes round scores alike, or the probabilities of a row would not sum to one: dv of a row that sees one key
    shows it, and dq of rows between two keys."""
    for _ in range(8):
        q, k, v = (18 * torch.rand(4, 4, n, 8) - 9 for n in (3, 6, 6))
        tensors = [x.requires_grad_() for x in (q, k, v)]
        dout = torch.linspace(-1, 1, q.numel()).view(q.shape)
        exact = [x.detach().double().requires_grad_() for x in tensors]
        truth = torch.autograd.grad(F.scaled_dot_product_attention(*exact), exact, dout.double())
        found = torch.autograd.grad(kt.scaled_dot_product_attention(*tensors), tensors, dout)
        for name, one, other, limit in zip("qkv", found, truth, (5e-5, 5e-5, 5e-6), strict=True):
            assert (one - other).abs().max() <= limit * max(1.0, other.abs().max().item() / 10), name


class Model(torch.nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.attention = attention
        self.qkv = torch.nn.Linear(32, 96)
        self.out = torch.nn.Linear(32, 32)

    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, 8).permute(2, 0, 3, 1, 4)
        y = self.attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


def test_compiled_models_equal_eager_ones():
    model = Model(kt.scaled_dot_product_attention)
    x = torch.randn(2, 10, 32, requires_grad=True)
    graphs = []

    def backend(graph, _inputs):
        graphs.append(graph)
        return graph

    compiled = torch.compile(model, backend=backend, fullgraph=True)
    eager = model(x)
    close(compiled(x), eager, 1e-6)
    assert len(graphs) == 1 and "katt" in graphs[0].code
    through_autograd = torch.compile(model, backend="aot_eager", fullgraph=True)
    for found, expected in zip(torch.autograd.grad(through_autograd(x).sum(), [x, *model.parameters()]),
                               torch.autograd.grad(eager.sum(), [x, *model.parameters()]), strict=True):
        close(found, expected, 1e-5)


def test_autocast():
    q = torch.randn(1, 2, 6, 16, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = kt.scaled_dot_product_attention(q, q, q)
    assert out.dtype == torch.bfloat16
    out.sum().backward()
    assert q.grad.dtype == torch.float32


def test_threads_are_pytorchs():
    before, ours = torch.get_num_threads(), katt.get_num_threads()
    q = torch.randn(1, 2, 130, 64)
    try:
        torch.set_num_threads(1)
        one = kt.attention(q, q, q)
        assert torch.get_num_threads() == 1 and katt.get_num_threads() == ours
    finally:
        torch.set_num_threads(before)
    assert (kt.attention(q, q, q) == one).all()
    assert torch.get_num_threads() == before


ORDER = """
{imports}
import numpy
torch.set_num_threads(2)
threads = torch.get_num_threads()
x = torch.randn(1, 4, 300, 64)
out = katt.attention(x, x, x)
assert torch.get_num_threads() == threads
assert (out - torch.nn.functional.scaled_dot_product_attention(x, x, x)).abs().max() < 1e-4
runtimes = {{line.split()[-1] for line in open("/proc/self/maps") if "libgomp" in line}}
print(len(runtimes), katt.get_num_threads() >= 1)
"""


@pytest.mark.parametrize("imports", ["import katt, torch", "import torch, katt"])
def test_the_order_of_imports_does_not_matter(imports):
    """One OpenMP runtime in the process, whichever library comes first."""
    done = subprocess.run(
        [sys.executable, "-c", ORDER.format(imports=imports)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", "True"]


def test_numpy_and_torch_share_memory():
    x = torch.randn(3, 8)
    assert (torch.from_numpy(katt.softmax(x.numpy())) == katt.softmax(x)).all()
    assert isinstance(katt.softmax(x.numpy()), numpy.ndarray)
