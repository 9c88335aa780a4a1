"""katt.torch.scaled_dot_product_attention against PyTorch's."""

import pytest

torch = pytest.importorskip("torch")
kt = pytest.importorskip("katt.torch")
from test_torch import DTYPES, LIMIT, F, agree, close, seed  # noqa: E402, F401


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("enable_gqa", [False, True])
def test_sdpa(dtype, enable_gqa):
    q = torch.randn(2, 4, 9, 24, dtype=dtype)
    k, v = (torch.randn(2, 2 if enable_gqa else 4, 13, 24, dtype=dtype) for _ in range(2))
    for options in (
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"attn_mask": torch.rand(9, 13) < 0.7},
        {"attn_mask": torch.rand(2, 1, 9, 13) < 0.7},
        {"attn_mask": torch.randn(4, 9, 13).to(dtype)},
    ):

        def exact(q, k, v, options=options):
            mask = options.get("attn_mask")
            mask = mask.double() if mask is not None and mask.is_floating_point() else mask
            return F.scaled_dot_product_attention(q, k, v, **{**options, "attn_mask": mask}, enable_gqa=enable_gqa)

        agree(
            lambda q, k, v, options=options: kt.scaled_dot_product_attention(q, k, v, **options, enable_gqa=enable_gqa),
            exact, [q, k, v], 2 * LIMIT[dtype],
        )  # fmt: skip


def test_causal_rules_are_told_apart():
    """PyTorch aligns a causal mask to the top left corner, katt.torch.attention to the bottom right."""
    for length, keys in ((3, 7), (7, 3)):
        q, k, v = torch.randn(1, 1, length, 8), torch.randn(1, 1, keys, 8), torch.randn(1, 1, keys, 8)
        agree(lambda q, k, v: kt.scaled_dot_product_attention(q, k, v, is_causal=True),
              lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), [q, k, v])  # fmt: skip
        bottom_right = torch.ones(length, keys, dtype=torch.bool).tril(keys - length)
        agree(lambda q, k, v: kt.attention(q, k, v, causal=True),
              lambda q, k, v, mask=bottom_right: F.scaled_dot_product_attention(q, k, v, mask), [q, k, v])  # fmt: skip


def test_sdpa_shapes():
    for q_shape, kv_shape, v_dim in (
        ((5, 6), (7, 6), 6),  # neither batch nor heads, head_dim padded to 8
        ((3, 5, 8), (3, 7, 8), 16),
        ((4, 5, 8), (2, 4, 7, 8), 8),  # broadcast
        ((2, 3, 4, 5, 8), (2, 3, 4, 7, 8), 12),
        ((2, 4, 5, 16), (1, 4, 7, 16), 3),
        ((2, 4, 0, 16), (2, 4, 7, 16), 16),
    ):
        tensors = [torch.randn(q_shape), torch.randn(kv_shape), torch.randn(*kv_shape[:-1], v_dim)]
        agree(kt.scaled_dot_product_attention, F.scaled_dot_product_attention, tensors)


def test_gradient_of_the_mask():
    q, k, v = (torch.randn(2, 2, 5, 8) for _ in range(3))
    for shape in ((5, 5), (2, 1, 5, 5), (1, 2, 1, 5)):
        agree(lambda q, k, v, m: kt.scaled_dot_product_attention(q, k, v, m),
              lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), [q, k, v, torch.randn(shape)])  # fmt: skip


def test_causal_biases_of_pytorch():
    from torch.nn.attention.bias import causal_lower_right, causal_upper_left

    for length, keys in ((5, 5), (3, 7)):
        q, k, v = (torch.randn(1, 2, n, 8) for n in (length, keys, keys))
        for bias, last in ((causal_upper_left(length, keys), 0), (causal_lower_right(length, keys), keys - length)):
            mask = torch.ones(length, keys, dtype=torch.bool).tril(last)
            agree(lambda q, k, v, bias=bias: kt.scaled_dot_product_attention(q, k, v, bias),
                  lambda q, k, v, mask=mask: F.scaled_dot_product_attention(q, k, v, mask), [q, k, v])  # fmt: skip
            assert type(kt.scaled_dot_product_attention(q, k, v, bias)) is torch.Tensor


def test_the_gradient_of_a_bias_on_a_gpu_reads_no_hidden_keys():
    """It is made of PyTorch's operators, which run on the CPU, too."""
    from katt.torch._attention import bias_gradient

    q, k, v, dout = (torch.randn(2, 2, 5, 8) for _ in range(4))
    options = (torch.randn(1, 2, 5, 5), None, torch.tensor([3, 5]), None, 0, 0.3, True, -1, -1, 0.0)
    expected = bias_gradient(dout, q, k, v, *options)
    k[0, :, 3:] = v[0, :, 3:] = torch.nan
    close(bias_gradient(dout, q, k, v, *options), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_finite_numbers_of_a_mask_stay_finite(dtype):
    """A row of equal scores is their mean, however low they are."""
    q, v = torch.zeros(1, 1, 2, 8, dtype=dtype), torch.randn(1, 1, 3, 8, dtype=dtype)
    low = torch.finfo(torch.float32).min
    mask = torch.tensor([[low, low, float("-inf")], [-1e9, -1e9, -1e9]])
    out = kt.scaled_dot_product_attention(q, v, v, mask)
    close(out, torch.stack([v[0, 0, :2].mean(0), v[0, 0].mean(0)])[None, None])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_number_that_is_too_low_has_a_gradient(dtype):
    k, v = (torch.randn(1, 1, 2, 8).to(dtype) for _ in range(2))
    q = torch.zeros_like(k)
    low = torch.full((2, 2), torch.finfo(torch.float32).min, requires_grad=True)
    kt.scaled_dot_product_attention(q, k, v, low).sum().backward()
    same = torch.zeros(2, 2, requires_grad=True)
    kt.scaled_dot_product_attention(q, k, v, same).sum().backward()
    close(low.grad, same.grad)


def test_autocast_casts_a_mask():
    q, mask = torch.randn(1, 2, 4, 8), torch.randn(4, 4).half()
    with torch.autocast("cpu", torch.bfloat16):
        close(kt.scaled_dot_product_attention(q, q, q, mask), F.scaled_dot_product_attention(q, q, q, mask))


def test_sdpa_refuses_by_name():
    q = torch.randn(1, 2, 4, 8)
    wide, narrow, same = torch.randn(1, 2, 4, 264), torch.randn(1, 2, 4, 7), [q, q, q]
    for message, tensors, options in (
        ("dropout_p: holds 0.5, expected 0: katt has no dropout", same, {"dropout_p": 0.5}),
        ("dropout_p: holds -0.1, expected 0", same, {"dropout_p": -0.1}),
        ("scale: holds a tensor, expected a number", same, {"scale": torch.tensor(0.5)}),
        ("softcap: holds a tensor, expected a number", same, {"softcap": torch.tensor(2.0)}),
        ("attn_mask: holds a mask beside is_causal=True", same, {"is_causal": True, "attn_mask": torch.ones(4, 4)}),
        ("query: holds torch.float64, expected float32", [q.double(), q, q], {}),
        ("query: holds head_dim 264, expected at most 256", [wide, wide, wide], {}),
        ("key: holds head_dim 8, expected 7, as query has", [narrow, q, q], {}),
        ("value: holds 3 positions, expected 4, as key has", [q, q, q[:, :, 1:]], {}),
        (r"key: holds leading axes \(3, 2\), expected axes that broadcast with \(2, 2\)",
         [torch.randn(n, 2, 4, 8) for n in (2, 3, 3)], {}),
        (r"value: holds leading axes \(3,\), expected axes that broadcast with \(2,\)",
         [torch.randn(n, 2, 4, 8) for n in (1, 2, 3)], {"enable_gqa": True}),
        (r"attn_mask: holds shape \(3, 4\), expected one that broadcasts to \(1, 2, 4, 4\)", same,
         {"attn_mask": torch.ones(3, 4)}),
        (r"attn_mask: holds shape \(1, 1, 1, 4, 4\)", same, {"attn_mask": torch.ones(1, 1, 1, 4, 4)}),
        ("attn_mask: holds torch.int64, expected bool, float32 or torch.float32", same,
         {"attn_mask": torch.ones(4, 4).long()}),
        ("attn_mask: holds torch.float64", same, {"attn_mask": torch.ones(4, 4).double()}),
    ):
        with pytest.raises(ValueError, match=message):
            kt.scaled_dot_product_attention(*tensors, **options)
    for name, function, arguments in (("scale", kt.attention, same), ("softcap", kt.attention, same),
                                      ("eps", kt.rmsnorm, [q, q[0, 0, 0]])):  # fmt: skip
        with pytest.raises(ValueError, match=f"^{function.__name__}: {name}: holds a tensor, expected a number"):
            function(*arguments, **{name: torch.tensor(0.5, requires_grad=True)})
    with pytest.raises(ValueError, match=r"attention: block_mask: holds shape \(1, 1\), expected \(4, 4\)"):
        kt.attention(*[torch.randn(1, 1, 64, 8)] * 3, block_mask=(torch.ones(1, 1, dtype=torch.uint8), 16))
