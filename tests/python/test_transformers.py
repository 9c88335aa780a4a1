"""katt.torch.register_transformers: models of transformers with Katt's attention."""

import types

import pytest
from test_torch import close

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
kt = pytest.importorskip("katt.torch")


def transformers_models():
    shape = dict(vocab_size=99, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, max_position_embeddings=64)  # fmt: skip
    return {
        "llama": transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape)),
        "qwen3": transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**shape, head_dim=16)),
    }


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_transformers(name):
    kt.register_transformers()
    model = transformers_models()[name].eval()
    ids = torch.randint(1, 99, (2, 11))
    mask = torch.ones_like(ids)
    mask[1, :4] = 0  # padded on the left

    def results(implementation):
        model.set_attn_implementation(implementation)
        model.zero_grad()
        plain = model(ids, labels=ids)
        plain.loss.backward()
        with torch.no_grad():
            masked = model(ids, attention_mask=mask).logits
            new = model.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False, pad_token_id=0)
        return plain.logits, masked[mask.bool()], [p.grad.clone() for p in model.parameters()], new

    for found, expected in zip(results("katt")[:2], results("sdpa")[:2], strict=True):
        close(found.detach(), expected.detach(), 1e-5)
    ours, theirs = results("katt"), results("sdpa")
    for found, expected in zip(ours[2], theirs[2], strict=True):
        close(found, expected, 1e-5)
    assert (ours[3] == theirs[3]).all()


def test_transformers_refuses_models_that_compute_attention_themselves():
    kt.register_transformers()
    config = transformers.BloomConfig(vocab_size=97, hidden_size=64, n_layer=1, n_head=4, attn_implementation="katt")
    with pytest.raises(ValueError, match="attn_implementation katt: BloomModel: computes attention itself"):
        transformers.BloomForCausalLM(config)(torch.tensor([[5, 6, 7]]))


def test_transformers_refuses_other_attentions():
    from katt.torch._transformers import attention_forward

    q = torch.randn(1, 2, 4, 8)
    for name in ("s_aux", "sinks", "indices", "block_indices"):
        with pytest.raises(ValueError, match=f"attn_implementation katt: {name}: holds .*, expected none"):
            attention_forward(torch.nn.Module(), q, q, q, None, **{name: torch.zeros(2)})


def test_layers_that_share_keys_always_have_a_mask():
    """Gemma 4 drops queries before these layers, so that the place of the others is in the mask alone."""
    from katt.torch._transformers import model_mask

    plain, shared = (types.SimpleNamespace(num_kv_shared_layers=n) for n in (0, 2))
    assert model_mask(batch_size=1, q_length=4, kv_length=4, config=plain) is None
    mask = model_mask(batch_size=1, q_length=4, kv_length=4, config=shared)
    assert torch.equal(mask, torch.ones(1, 1, 4, 4, dtype=torch.bool).tril())
