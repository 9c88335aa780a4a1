"""Katt in PyTorch's registry of flash attention: results, gradients, what stays with PyTorch, and the way back."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("katt.torch")
from katt.torch import _flash_impl  # noqa: E402

if not hasattr(torch.nn.attention, "activate_flash_attention_impl"):
    pytest.skip("this PyTorch has no registry of flash attention", allow_module_level=True)

F = torch.nn.functional
LIMIT = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@pytest.fixture
def launches(monkeypatch):
    """The passes that Katt has run; Katt is PyTorch's flash attention meanwhile."""
    made = []
    launch = _flash_impl.launch
    monkeypatch.setattr(_flash_impl, "launch", lambda plan, *rest: made.append(plan.name) or launch(plan, *rest))
    torch.nn.attention.activate_flash_attention_impl("katt")
    yield made
    torch.nn.attention.restore_flash_attention_impl()


def tensors(dtype, heads, kv_heads, length, keys, width):
    generator = torch.Generator().manual_seed(3)
    shapes = ((heads, length), (kv_heads, keys), (kv_heads, keys), (heads, length))
    return [torch.randn(2, *shape, width, generator=generator).to(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", list(LIMIT), ids=str)
@pytest.mark.parametrize("sizes", [(4, 4, 33, 33, 16), (4, 2, 20, 45, 32), (2, 1, 45, 20, 20)])
@pytest.mark.parametrize("mask", ["none", "causal", "bool"])
def test_results_and_gradients(launches, dtype, sizes, mask):
    q, k, v, dout = tensors(dtype, *sizes)
    options = {"enable_gqa": sizes[0] != sizes[1], "is_causal": mask == "causal"}
    if mask == "bool":
        options["attn_mask"] = torch.rand(sizes[2], sizes[3], generator=torch.Generator().manual_seed(1)) > 0.3
    ours = [x.clone().requires_grad_() for x in (q, k, v)]
    theirs = [x.double().requires_grad_() for x in (q, k, v)]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        out = F.scaled_dot_product_attention(*ours, **options)
    out.backward(dout)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = F.scaled_dot_product_attention(*theirs, **options)
    expected.backward(dout.double())
    assert launches == ["attention", "attention_backward"]
    for found, wanted in [(out, expected), *((a.grad, b.grad) for a, b in zip(ours, theirs, strict=True))]:
        assert found.dtype == dtype
        assert (found - wanted).abs().max() <= LIMIT[dtype] * wanted.abs().max().clamp(min=1)


def test_what_katt_does_not_compute_stays_with_pytorch(launches):
    q, k, v, _ = (x.double().requires_grad_() for x in tensors(torch.float32, 2, 2, 9, 9, 16))
    F.scaled_dot_product_attention(q, k, v).sum().backward()
    assert not launches
    assert q.grad is not None


def test_a_mask_in_float32_stays_with_pytorch(launches):
    """Rounding would make -1e9 hide a key."""
    q, k, v, _ = tensors(torch.float16, 2, 2, 9, 9, 16)
    F.scaled_dot_product_attention(q, k, v, torch.full((9, 9), -1e9))
    assert not launches


def test_compiled_forward_passes_round_as_backward_ones(launches, monkeypatch):
    seen, launch = [], _flash_impl.launch

    def noted(plan, inputs, outputs, numbers, *rest):
        seen.append(numbers[1])
        launch(plan, inputs, outputs, numbers, *rest)

    monkeypatch.setattr(_flash_impl, "launch", noted)
    x = torch.randn(1, 2, 3, 16, requires_grad=True)
    torch.compile(lambda x: F.scaled_dot_product_attention(x * 2, x * 3, x * 4), backend="aot_eager")(x)
    with torch.no_grad():
        F.scaled_dot_product_attention(x.detach()[:, :, :1], x.detach(), x.detach())
    assert seen == [True, False]


def test_restoring_takes_katt_away(launches):
    q, k, v, _ = tensors(torch.float32, 2, 2, 9, 9, 16)
    with_katt = F.scaled_dot_product_attention(q, k, v)
    assert torch.nn.attention.current_flash_attention_impl() == "katt"
    assert launches == ["attention"]
    torch.nn.attention.restore_flash_attention_impl()
    without = F.scaled_dot_product_attention(q, k, v)
    assert launches == ["attention"]
    torch.testing.assert_close(with_katt, without, rtol=2e-5, atol=2e-5)


def test_torch_compile_gives_what_eager_gives(launches):
    q, k, v, _ = tensors(torch.float32, 2, 2, 9, 9, 16)
    attend = torch.compile(lambda *x: F.scaled_dot_product_attention(*x), backend="aot_eager")
    assert torch.equal(attend(q, k, v), F.scaled_dot_product_attention(q, k, v))
    assert len(launches) == 2
