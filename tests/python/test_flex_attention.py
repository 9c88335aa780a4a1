"""katt.torch.flex_attention against PyTorch's, forward, and against autograd in float64, gradients."""

import pytest

torch = pytest.importorskip("torch")
flex = pytest.importorskip("torch.nn.attention.flex_attention")
kt = pytest.importorskip("katt.torch")

LIMIT = {torch.float32: 2e-5, torch.bfloat16: 3e-2}
BATCH, HEADS, LENGTH, WIDTH = 2, 4, 150, 24


def tensors(dtype, kv_heads=HEADS, length=LENGTH):
    generator = torch.Generator().manual_seed(5)
    shapes = (HEADS, kv_heads, kv_heads, HEADS)
    return [torch.randn(BATCH, heads, length, WIDTH, generator=generator).to(dtype) for heads in shapes]


def exact(q, k, v, score_mod, mask_mod, enable_gqa=False):
    """PyTorch's unfused form in float64."""
    if enable_gqa:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    s = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5
    places = [torch.arange(n).view([-1 if a == i else 1 for a in range(4)]) for i, n in enumerate(s.shape)]
    if score_mod is not None:
        s = score_mod(s, *places)
    if mask_mod is not None:
        s = torch.where(mask_mod(*places), s, -torch.inf)
    return torch.softmax(s, -1).nan_to_num(0.0) @ v, torch.logsumexp(s, -1)


SLOPES = torch.linspace(0.01, 0.2, HEADS)
TABLE = torch.randn(HEADS, 2 * LENGTH, generator=torch.Generator().manual_seed(1))
DOCUMENTS = (torch.arange(LENGTH) // 37 + torch.arange(BATCH)[:, None]).to(torch.int32)


def alibi(score, b, h, q, k):
    return score + SLOPES[h] * (k - q)


def softcap(score, b, h, q, k):
    return 3 * torch.tanh(score / 3)


def relative(score, b, h, q, k):
    return score + TABLE[h, q - k + LENGTH]


def causal(b, h, q, k):
    return q >= k


def window(b, h, q, k):
    return (q - k).abs() <= 20


def document(b, h, q, k):
    return DOCUMENTS[b, q] == DOCUMENTS[b, k]


MASKS = {
    "none": None,
    "causal": causal,
    "prefix": flex.or_masks(causal, lambda b, h, q, k: k < 30),
    "window": flex.and_masks(causal, window),
    "document": flex.and_masks(causal, document),
    "dilated": flex.and_masks(window, lambda b, h, q, k: (q - k) % 3 == 0),
}


CASES = [
    *((score_mod, "causal", dtype) for score_mod in (None, alibi, softcap, relative) for dtype in LIMIT),
    *((alibi, mask, torch.float32) for mask in MASKS),
]


@pytest.mark.parametrize(("score_mod", "mask", "dtype"), CASES)
def test_results_and_gradients(score_mod, mask, dtype):
    mask_mod = MASKS[mask]
    q, k, v, dout = tensors(dtype, kv_heads=2)
    block_mask = None
    if mask_mod is not None:
        by_batch = BATCH if mask == "document" else None
        block_mask = flex.create_block_mask(mask_mod, by_batch, None, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=32)
    ours = [x.clone().requires_grad_() for x in (q, k, v)]
    theirs = [x.double().requires_grad_() for x in (q, k, v)]
    out, lse = kt.flex_attention(*ours, score_mod, block_mask, enable_gqa=True, return_lse=True)
    expected, expected_lse = exact(*theirs, score_mod, mask_mod, enable_gqa=True)
    out.backward(dout)
    expected.backward(dout.double())
    pairs = [(out, expected), (lse, expected_lse), *((a.grad, b.grad) for a, b in zip(ours, theirs, strict=True))]
    for found, wanted in pairs:
        assert (found - wanted).abs().max() <= LIMIT[dtype] * wanted.abs().max().clamp(min=1)


def test_it_is_pytorchs_flex_attention():
    q, k, v, _ = tensors(torch.float32)
    block_mask = flex.create_block_mask(causal, None, None, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=32)
    found = kt.flex_attention(q, k, v, relative, block_mask, 0.3)
    with torch.no_grad():
        expected = flex.flex_attention(q, k, v, relative, block_mask, 0.3)
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)


def test_refusals():
    q, k, v, _ = tensors(torch.float32)
    learned = TABLE.clone().requires_grad_()
    for call, words in [
        (
            lambda: kt.flex_attention(q, k, v, lambda s, b, h, i, j: torch.sin(s)),
            r"test_flex_attention.py:\d+: calls sin",
        ),
        (lambda: kt.flex_attention(q, k[:, :2], v[:, :2]), "key: holds 2 heads, expected 4, or enable_gqa=True"),
        (lambda: kt.flex_attention(q[0], k, v), "query: holds shape .*, expected 4 axes"),
        (lambda: kt.flex_attention(q.double(), k, v), "query: holds torch.float64"),
        (lambda: kt.flex_attention(q, k, v, lambda s, b, h, i, j: s + learned[h, j]), "requires a gradient"),
    ]:
        with pytest.raises(ValueError, match=words):
            call()
