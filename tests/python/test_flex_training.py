"""A small LLaMA whose attention has a document mask and a learned relative bias, trained with katt.torch.flex_attention
and with PyTorch's operators alone; and the memory of a long sequence."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
flex = pytest.importorskip("torch.nn.attention.flex_attention")
transformers = pytest.importorskip("transformers")
kt = pytest.importorskip("katt.torch")

LENGTH, HEADS, KV_HEADS, STEPS = 97, 4, 2, 8
DOCUMENTS = torch.arange(LENGTH) // 40


def visible(b, h, q, k):
    return (q >= k) & (DOCUMENTS[q] == DOCUMENTS[k])


def biased(table):
    return lambda score, b, h, q, k: score + table[h, q - k + LENGTH]


def with_katt(module, query, key, value, mask, scaling, **options):
    block_mask = flex.create_block_mask(visible, None, None, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=32)
    out = kt.flex_attention(query, key, value, biased(module.table), block_mask, scaling, enable_gqa=True)
    return out.transpose(1, 2), None


def with_scores(module, query, key, value, mask, scaling, **options):
    key, value = (x.repeat_interleave(HEADS // KV_HEADS, dim=1) for x in (key, value))
    places = [torch.arange(n).view([-1 if a == i else 1 for a in range(4)]) for i, n in ((1, HEADS), (2, LENGTH))]
    keys = torch.arange(LENGTH)
    scores = biased(module.table)(query @ key.transpose(2, 3) * scaling, 0, *places, keys)
    scores = torch.where(visible(0, 0, places[1], keys), scores, -torch.inf)
    return (torch.softmax(scores, -1) @ value).transpose(1, 2), None


def losses(attention):
    name = f"test_{attention.__name__}"
    transformers.AttentionInterface.register(name, attention)
    transformers.AttentionMaskInterface.register(name, lambda *args, **options: None)
    config = transformers.LlamaConfig(vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                                      num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, attn_implementation=name)
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    for layer in model.model.layers:
        layer.self_attn.table = torch.nn.Parameter(torch.zeros(HEADS, 2 * LENGTH))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    tokens = torch.randint(64, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    curve = []
    for _ in range(STEPS):
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        curve.append(float(loss.detach()))
    return curve, model.model.layers[1].self_attn.table.detach()


def test_a_llama_trains_as_with_eager_attention():
    (ours, our_table), (theirs, their_table) = losses(with_katt), losses(with_scores)
    assert theirs[-1] < theirs[0] - 0.5 and float(their_table.abs().max()) > 1e-3
    assert max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) < 1e-3
    torch.testing.assert_close(our_table, their_table, rtol=0, atol=1e-3)


MEMORY = """
import resource, torch, katt.torch
torch.set_num_threads(1)
length = {length}
table = torch.zeros(1, 2 * length, requires_grad=True)
q = torch.randn(1, 1, length, 16, requires_grad=True)
documents = torch.arange(length) // 1000
def attend(q):
    rule = lambda s, b, h, i, j: torch.where((i >= j) & (documents[i] == documents[j]), s + table[h, i - j + length],
                                             -float("inf"))
    katt.torch.flex_attention(q, q, q, rule).sum().backward()
attend(q[:, :, :64])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
attend(q)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_no_tensor_is_as_large_as_the_scores():
    length = 8192
    done = subprocess.run(
        [sys.executable, "-c", MEMORY.format(length=length)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    grown_bytes = int(done.stdout) * 1024
    assert grown_bytes < length * length * 4 // 8, grown_bytes
