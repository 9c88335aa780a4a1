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


CASES = [*((score_mod, "causal", dtype) for score_mod in (None, alibi, softcap, relative) for dtype in LIMIT),
         *((alibi, mask, torch.float32) for mask in MASKS)]


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


LEARNED = {  # shape of the tensor, and the rule that reads it
    "slopes": ((HEADS,), lambda t: lambda s, b, h, q, k: s - t[h] * (q - k).abs()),
    "distances": ((HEADS, 2 * LENGTH), lambda t: lambda s, b, h, q, k: s + t[h, q - k + LENGTH]),
    "bias": ((BATCH, HEADS, LENGTH, LENGTH), lambda t: lambda s, b, h, q, k: s * 0.5 + t[b, h, q, k]),
    "shared bias": ((LENGTH, LENGTH), lambda t: lambda s, b, h, q, k: s + t[q, k]),
    "gain of keys": ((BATCH, LENGTH), lambda t: lambda s, b, h, q, k: s * torch.exp(t * 0.1)[b, k]),
    "cap": ((1,), lambda t: lambda s, b, h, q, k: torch.tanh(s * t[0]) * 3),
}


def learned(name, dtype):
    shape, rule_of = LEARNED[name]
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(2)).to(dtype) * 0.3
    return tensor.requires_grad_(), rule_of


@pytest.mark.parametrize("dtype", list(LIMIT), ids=str)
@pytest.mark.parametrize("name", LEARNED)
def test_gradients_of_captured_tensors_and_of_lse(name, dtype):
    q, k, v, dout = tensors(dtype, kv_heads=2)
    tensor, rule_of = learned(name, dtype)
    wide = tensor.detach().double().requires_grad_()
    block_mask = flex.create_block_mask(causal, None, None, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=32)
    ours = [x.clone().requires_grad_() for x in (q, k, v)]
    theirs = [x.double().requires_grad_() for x in (q, k, v)]
    out, lse = kt.flex_attention(*ours, rule_of(tensor), block_mask, enable_gqa=True, return_lse=True)
    expected, expected_lse = exact(*theirs, rule_of(wide), causal, enable_gqa=True)
    weights = torch.randn(lse.shape, generator=torch.Generator().manual_seed(3))
    ((out * dout).sum() + (lse * weights).sum()).backward()
    ((expected * dout.double()).sum() + (expected_lse * weights.double()).sum()).backward()
    pairs = [(tensor.grad, wide.grad), *((a.grad, b.grad) for a, b in zip(ours, theirs, strict=True))]
    for found, wanted in pairs:
        assert found.dtype == dtype
        assert (found - wanted).abs().max() <= LIMIT[dtype] * wanted.abs().max().clamp(min=1)


@pytest.mark.parametrize("dtype", list(LIMIT), ids=str)
def test_hidden_scores_may_be_nan(dtype):
    """A rule that has no number where the mask hides a score, nor a derivative."""
    q, k, v, dout = tensors(dtype)
    gain = torch.ones(HEADS, requires_grad=True)
    wide = torch.ones(HEADS, dtype=torch.float64, requires_grad=True)
    block_mask = flex.create_block_mask(causal, None, None, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=32)
    ours = [x.clone().requires_grad_() for x in (q, k, v)]
    theirs = [x.double().requires_grad_() for x in (q, k, v)]
    out = kt.flex_attention(*ours, lambda s, b, h, q, k: s * gain[h] * torch.log(q - k + 1.5), block_mask)
    out.backward(dout)
    exact(*theirs, lambda s, b, h, q, k: s * wide[h] * torch.log((q - k).clamp(min=0) + 1.5), causal)[0].backward(
        dout.double()
    )
    for found, wanted in zip((gain, *ours), (wide, *theirs), strict=True):
        assert (found.grad - wanted.grad).abs().max() <= LIMIT[dtype] * wanted.grad.abs().max().clamp(min=1)


def test_the_gradient_of_a_large_tensor_is_added_up_in_place():
    """Above the size of which every part has a copy."""
    length = 560
    q, k, v, dout = tensors(torch.float32, kv_heads=2, length=length)
    shape = (BATCH, HEADS, length, length)
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(2)).requires_grad_()
    wide = tensor.detach().double().requires_grad_()

    def rule_of(t):
        return lambda s, b, h, q, k: s + t[b, h, q, k]

    kt.flex_attention(q, k, v, rule_of(tensor), enable_gqa=True).backward(dout)
    exact(q.double(), k.double(), v.double(), rule_of(wide), None, enable_gqa=True)[0].backward(dout.double())
    assert (tensor.grad - wide.grad).abs().max() <= LIMIT[torch.float32]


@pytest.mark.parametrize("name", LEARNED)
def test_gradients_have_the_same_bits_on_any_number_of_threads(name):
    q, k, v, dout = tensors(torch.float32, kv_heads=2)
    made = []
    before = torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        tensor, rule_of = learned(name, torch.float32)
        kt.flex_attention(q, k, v, rule_of(tensor), enable_gqa=True).backward(dout)
        made.append(tensor.grad)
    torch.set_num_threads(before)
    assert torch.equal(*made)


def test_masks_by_head_and_blocks_that_are_not_square():
    q, k, v, _ = tensors(torch.float32, kv_heads=2)
    reach = torch.tensor([5, 40, 90, 200])

    def near(b, h, q, k):
        return (q - k).abs() < reach[h]

    for size in (32, (64, 32), 24):
        block_mask = flex.create_block_mask(near, None, HEADS, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=size)
        found = kt.flex_attention(q, k, v, None, block_mask, enable_gqa=True)
        expected, _ = exact(q.double(), k.double(), v.double(), None, near, enable_gqa=True)
        torch.testing.assert_close(found.double(), expected, rtol=2e-5, atol=2e-5)


def test_the_empty_mask_of_pytorch_shows_all():
    q, k, v, _ = tensors(torch.float32)
    mask = flex._create_empty_block_mask(q, k)
    assert torch.equal(kt.flex_attention(q, k, v, alibi, mask), kt.flex_attention(q, k, v, alibi))


def test_functions_that_are_made_again_are_not_traced_again(monkeypatch):
    from katt._rules import torch_trace

    q, k, v, _ = tensors(torch.float32)

    def attend(table, factor):
        return kt.flex_attention(q, k, v, lambda s, b, h, i, j: s * factor + table[h, i - j + LENGTH])

    expected = attend(TABLE, 0.5), attend(TABLE * 2, 0.5), attend(TABLE, 0.25)
    traces = []
    trace = torch_trace.trace
    monkeypatch.setattr(torch_trace, "trace", lambda *args: traces.append(args) or trace(*args))
    found = attend(TABLE, 0.5), attend(TABLE * 2, 0.5), attend(TABLE, 0.25)
    assert not traces
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    attend(TABLE, 0.75)
    assert len(traces) == 1


def test_opcheck():
    q, k, v, _ = (x.requires_grad_() for x in tensors(torch.float32, length=20))
    from katt._rules import Rule
    from katt._rules.run import Programs
    from katt._rules.torch_trace import trace_masked
    from katt.torch._flex import RULES

    program, masked, captured = trace_masked(relative, causal)
    RULES[-1] = rule = Rule.of(Programs(program, masked), captured)
    captured = [tensor.clone().requires_grad_() for tensor in captured]
    torch.library.opcheck(torch.ops.katt.flex_attention.default, (q, k, v, captured, -1, None, 0, 0.2, True))
    assert rule is RULES.pop(-1)


def test_gradcheck():
    """In float32, by differences over a wide step."""
    q, k, v, _ = (x[:1, :2, :6, :8].contiguous().requires_grad_() for x in tensors(torch.float32))
    table = (TABLE[:2, :12] * 0.3).clone().requires_grad_()

    def attend(q, k, v, table):
        def rule(s, b, h, i, j):
            return 2 * torch.tanh(s / 2) + table[h, i - j + 6]

        return kt.flex_attention(q, k, v, rule, return_lse=True)

    with pytest.warns(UserWarning, match="double precision"):
        assert torch.autograd.gradcheck(attend, (q, k, v, table), eps=1e-2, atol=2e-3, rtol=1e-2)


def test_torch_compile_is_eager():
    """The graph breaks at the call, which traces its rule itself."""
    q, k, v, dout = tensors(torch.float32, kv_heads=2)
    block_mask = flex.create_block_mask(causal, None, None, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=32)

    def layer(q, k, v, table):
        def rule(s, b, h, i, j):
            return s + table[h, i - j + LENGTH]

        return kt.flex_attention(q * 2, k + 1, v, rule, block_mask, enable_gqa=True).sin()

    made = []
    for function in (layer, torch.compile(layer, backend="aot_eager")):
        for _ in range(2):
            inputs = [x.clone().requires_grad_() for x in (q, k, v, TABLE)]
            out = function(*inputs)
            out.backward(dout)
            made.append([out, *(x.grad for x in inputs)])
    for other in made[1:]:
        for found, wanted in zip(other, made[0], strict=True):
            torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_it_is_pytorchs_flex_attention():
    q, k, v, _ = tensors(torch.float32)
    block_mask = flex.create_block_mask(causal, None, None, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=32)
    found = kt.flex_attention(q, k, v, relative, block_mask, 0.3)
    with torch.no_grad():
        expected = flex.flex_attention(q, k, v, relative, block_mask, 0.3)
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)


def test_auxiliary_results_are_pytorchs():
    if not hasattr(flex, "AuxRequest"):
        pytest.skip("this PyTorch has no return_aux")
    q, k, v, _ = tensors(torch.float32)
    out, lse = kt.flex_attention(q, k, v, alibi, return_lse=True)
    found, aux = kt.flex_attention(q, k, v, alibi, return_aux=flex.AuxRequest(lse=True))
    assert isinstance(aux, flex.AuxOutput) and torch.equal(found, out) and torch.equal(aux.lse, lse)
    assert kt.flex_attention(q, k, v, alibi, return_aux=flex.AuxRequest())[1] == flex.AuxOutput()
    for request, options, words in [
        (flex.AuxRequest(max_scores=True), {}, "return_aux: holds max_scores=True"),
        (flex.AuxRequest(), {"return_lse": True}, "return_aux: holds an AuxRequest beside return_lse=True"),
    ]:
        with pytest.raises(ValueError, match=words):
            kt.flex_attention(q, k, v, return_aux=request, **options)


def test_refusals():
    q, k, v, _ = tensors(torch.float32)
    by_head = flex.create_block_mask(lambda b, h, i, j: i >= h, None, HEADS, LENGTH, LENGTH, device="cpu")
    table = torch.zeros(HEADS, requires_grad=True)
    for call, words in [
        (lambda: kt.flex_attention(q, k, v, lambda s, b, h, i, j: torch.sin(s)),
         r"test_flex_attention.py:\d+: calls sin"),
        (lambda: kt.flex_attention(q, k[:, :2], v[:, :2]), "key: holds 2 heads, expected 4, or enable_gqa=True"),
        (lambda: kt.flex_attention(q[..., :-1], k, v), "key: holds head_dim .*, expected .*, as query has"),
        (lambda: kt.flex_attention(q[0], k, v), "query: holds shape .*, expected 4 axes"),
        (lambda: kt.flex_attention(q.double(), k, v), "query: holds torch.float64"),
        (lambda: kt.flex_attention(q, k, v, scale=torch.tensor(0.5)), "scale: holds a tensor, expected a number"),
        (lambda: kt.flex_attention(q, k[:, :3], v[:, :3], None, by_head, enable_gqa=True),
         "key: holds 3 heads, expected a divisor of 4"),
        (lambda: kt.flex_attention(q, k[:, :0], v[:, :0], None, by_head, enable_gqa=True),
         "key: holds 0 heads, expected a divisor of 4"),
        (lambda: kt.flex_attention(q, k, v, lambda s, b, h, i, j: s + table.detach()[h]),
         r"test_flex_attention.py:\d+: calls detach, expected it before the rule"),
        (lambda: kt.flex_attention(q, k, v, lambda s, b, h, i, j: s + s.data), r":\d+: calls detach"),
    ]:
        with pytest.raises(ValueError, match=words):
            call()


@pytest.mark.parametrize("full", [False, True])
def test_heads_of_a_group_see_the_blocks_of_their_own_lists(full):
    """Lists may say more than the mask's function does."""
    q, k, v, _ = tensors(torch.float32, kv_heads=2, length=128)
    counts = torch.tensor([1, 2, 2, 1]).view(1, HEADS, 1).expand(1, HEADS, 2).int()
    lists = (counts, torch.tensor([0, 1]).expand(1, HEADS, 2, 2).int())
    none = (torch.zeros_like(lists[0]), lists[1])
    blocks = (*none, *lists) if full else lists
    mask = flex.BlockMask.from_kv_blocks(*blocks, BLOCK_SIZE=64)
    out = kt.flex_attention(q, k, v, None, mask, enable_gqa=True)

    def listed(b, h, q, k):
        return k // 64 < counts[0, :, 0][h]

    expected, _ = exact(*(x.double() for x in (q, k, v)), None, listed, enable_gqa=True)
    torch.testing.assert_close(out, expected.float(), atol=2e-5, rtol=0)


def listed_blocks(lengths, last):
    """Blocks of 16, two at most in a row; the last row lists 1 and `last`."""
    counts, indices = torch.tensor([[[1, 2, 2]]]), torch.tensor([[[[0, 0], [0, 1], [1, last]]]])
    return flex.BlockMask(lengths, counts.int(), indices.int(), *[None] * 6, BLOCK_SIZE=(16, 16), mask_mod=causal)


def test_rows_may_list_fewer_blocks_than_there_are():
    q, k, v, dout = tensors(torch.float32, length=48)
    ours, theirs = ([x.detach().to(t, copy=True).requires_grad_() for x in (q, k, v)] for t in (torch.float32, torch.float64))
    out = kt.flex_attention(*ours, None, listed_blocks((48, 48), 2))
    expected, _ = exact(*theirs, None, lambda b, h, q, k: causal(b, h, q, k) & (q // 16 - k // 16 < 2))
    out.backward(dout)
    expected.backward(dout.double())
    for found, wanted in [(out, expected), *((a.grad, b.grad) for a, b in zip(ours, theirs, strict=True))]:
        torch.testing.assert_close(found, wanted.float(), atol=2e-5, rtol=0)
    long = tensors(torch.float32, length=64)[0]
    for queries, mask, words in [
        (q, listed_blocks((48, 48), 3), "block_mask: lists a block outside of its keys, expected 0 to 2"),
        (q, listed_blocks((48, 48), -1), "block_mask: lists a block outside of its keys"),
        (long, listed_blocks((64, 48), 2), "block_mask: lists the blocks of 48 queries, expected 64"),
    ]:
        with pytest.raises(ValueError, match=words):
            kt.flex_attention(queries, k, v, None, mask)


def test_small_numbers_of_log1p_and_expm1():
    q, k, v, _ = tensors(torch.float32, length=40)
    for rule in (lambda s, b, h, q, k: s + 1e6 * torch.log1p(k * 1e-6), lambda s, b, h, q, k: s + 1e6 * torch.expm1(-k * 1e-6),
                 lambda s, b, h, q, k: s - torch.log1p((q - k).abs() * 0.5), lambda s, b, h, q, k: s + torch.expm1(k * 0.1)):
        expected, _ = exact(*(x.double() for x in (q, k, v)), lambda s, b, h, q, k, rule=rule: rule(s, b, h, q.double(), k.double()), None)
        torch.testing.assert_close(kt.flex_attention(q, k, v, rule), expected.float(), atol=2e-5, rtol=0)
