"""Random score rules on every engine, forward and backward, against autograd in float64 of the unfused form.

`pytest tests/python/test_random_rules.py --programs 2000` runs as many programs; each runs on one engine, in turn."""

import numpy
import pytest
from random_rules import RandomRule, captured

torch = pytest.importorskip("torch")
katt = pytest.importorskip("katt")

# Forward variant, backward variant, dtype. auto is that of bf16 panels, where the CPU has one.
ENGINES = [
    ("naive", "naive", "float32"),
    ("flash", "flash", "float32"),
    ("decode", "flash", "float32"),
    ("flash", "flash", "float16"),
    ("auto", "auto", "bfloat16"),
]
LIMIT = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
SHAPES = [((2, 4, 21, 37), 2, 16), ((1, 2, 64, 64), 2, 32), ((2, 4, 3, 70), 1, 24), ((1, 3, 1, 1), 3, 8)]
LEARNED = ("slopes", "distances", "bias")


def unfused(rule, tensors, q, k, v):
    """out, lse, and the scores before the rule."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    before = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5
    places = [torch.arange(n).view([-1 if a == i else 1 for a in range(4)]) for i, n in enumerate(before.shape)]
    after = rule(torch, tensors, before, *places).expand(before.shape)
    return torch.softmax(after, -1) @ v, torch.logsumexp(after, -1), before


def is_smooth(rule, tensors, before):
    """True where a score's rounding moves its rule, and the slope of it, by little: at a jump nothing can be held
    against float64. Scores stay below 50, where float32 has its roundings far from 1, and are finite in PyTorch's
    float32, too: the slope of 1 / (1 + exp(-a)) is 0 · inf where exp overflows."""
    places = [torch.arange(n).view([-1 if a == i else 1 for a in range(4)]) for i, n in enumerate(before.shape)]
    made = []
    narrow = {
        name: tensor.detach().float().requires_grad_() if name in LEARNED else tensor
        for name, tensor in tensors.items()
    }
    for step, dtype, held in (
        (-1e-5, torch.float64, tensors),
        (0.0, torch.float64, tensors),
        (1e-5, torch.float64, tensors),
        (0.0, torch.float32, narrow),
    ):
        moved = (before.detach() * (1 + step) + step).to(dtype).requires_grad_()
        after = rule(torch, held, moved, *places).expand(before.shape)
        inputs = [moved, *(held[name] for name in LEARNED)]
        slope, *others = torch.autograd.grad(after.sum(), inputs, allow_unused=True, materialize_grads=True)
        if not all(x.isfinite().all() for x in (after, slope, *others)):
            return False
        made.append((after, slope))
    largest = max(float(slope.abs().max()) for _, slope in made)
    jumps = max(float((a - b).detach().abs().max()) for steps in zip(*made, strict=True) for a in steps for b in steps)
    return jumps < 1e-2 and largest < 20 and float(made[1][0].detach().abs().max()) < 50


def difference_of(seed):
    """What is wrong with a rule on its engine, "" for nothing; None where it cannot be held against float64."""
    forward, backward, dtype = ENGINES[seed % len(ENGINES)]
    extents, kv_heads, width = SHAPES[seed // len(ENGINES) % len(SHAPES)]
    batch, heads, queries, keys = extents
    generator = torch.Generator().manual_seed(seed)
    torch_dtype = getattr(torch, dtype)

    def draw(heads, length):
        return torch.randn(batch, heads, length, width, generator=generator).to(torch_dtype)

    q, k, v, dout = draw(heads, queries), draw(kv_heads, keys), draw(kv_heads, keys), draw(heads, queries)
    dlse = torch.randn(batch, heads, queries, generator=generator)
    rule = RandomRule(seed, seed % 6 + 1, extents)
    arrays = captured(numpy.random.default_rng(seed), extents)
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    wide = {
        name: tensor.double().requires_grad_() if name in LEARNED else tensor.long() for name, tensor in tensors.items()
    }
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    out, lse, before = unfused(rule, wide, *exact)
    if not is_smooth(rule, wide, before):
        return None
    inputs = [*exact, *(wide[name] for name in LEARNED)]
    loss = (out * dout.double()).sum() + (lse * dlse.double()).sum()
    expected = torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)

    made = katt.Rule(lambda *args: rule(torch, tensors, *args), for_torch=True)
    learned = [tensor for tensor in made.captured if any(tensor is tensors[name] for name in LEARNED)]
    names = [next(name for name in LEARNED if tensor is tensors[name]) for tensor in learned]
    found, found_lse = katt.attention(q, k, v, score_rule=made, return_lse=True, variant=forward)
    gradients = katt.attention_backward(
        dout, q, k, v, found, found_lse, score_rule=made, captured=learned, dlse=dlse, variant=backward
    )
    pairs = [(found, out), (found_lse, lse), *zip(gradients[:3], expected[:3], strict=True)]
    by_name = dict(zip(LEARNED, expected[3:], strict=True))
    pairs += [(gradient, by_name[name]) for name, gradient in zip(names, gradients[3:], strict=True)]
    for number, (ours, theirs) in enumerate(pairs):
        difference = float((ours.double() - theirs.detach()).abs().max())
        limit = LIMIT[dtype] * max(1.0, float(theirs.detach().abs().max())) * 5
        if not difference <= limit:
            return (
                f"seed {seed}, result {number}: differs by {difference}, allowed {limit}\n{made.programs.score.text()}"
            )
    return ""


def test_random_rules(request):
    wanted = request.config.getoption("--programs", default=100)
    found = [difference_of(seed) for seed in range(wanted)]
    wrong = [text for text in found if text]
    held = wanted - found.count(None)
    print(f"{held} of {wanted} random rules were held against float64; the others jump, are steep or not finite")
    assert not wrong, f"{len(wrong)} are wrong\n" + "\n".join(wrong)
    assert held > wanted // 3
