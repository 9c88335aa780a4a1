"""Katt as an attention implementation of Hugging Face transformers."""

import torch

from ._sdpa import scaled_dot_product_attention


def register_transformers(name: str = "katt") -> None:
    """Registers Katt in transformers under `name`: from_pretrained(…, attn_implementation="katt"), or
    model.set_attn_implementation("katt"). Masks are those of "sdpa"; grouped heads are not repeated, and softcap is
    computed. Dropout, attention sinks, chosen keys and paged caches raise ValueError at the call."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, model_mask)


def model_mask(*args, config=None, allow_is_causal_skip=True, **options):
    """The mask of "sdpa", but never left out where layers share keys: before those Gemma 4 drops queries, and takes
    care only for the name "sdpa" that the others need a mask then."""
    from transformers import MODEL_MAPPING
    from transformers.masking_utils import sdpa_mask

    models = MODEL_MAPPING.get(type(config), None) or ()
    models = models if isinstance(models, tuple) else (models,)
    if models and not any(m._supports_sdpa or m._supports_attention_backend for m in models):
        name = models[0].__name__
        raise ValueError(f"attn_implementation katt: {name}: computes attention itself, expected a model that does not")
    skips = allow_is_causal_skip and not getattr(config, "num_kv_shared_layers", 0)
    return sdpa_mask(*args, allow_is_causal_skip=skips, **options)


# Arguments of models that change what attention is.
REFUSED = {"s_aux": "attention sinks", "sinks": "attention sinks", "indices": "chosen keys",
           "block_indices": "chosen blocks of keys"}  # fmt: skip


def attention_forward(
    module, query, key, value, attention_mask, dropout=0.0, scaling=None, is_causal=None, softcap=None,
    position_bias=None, cache=None, **options,
):  # fmt: skip
    """The attention function of transformers: query (batch, heads, L, head_dim), key and value (batch, kv_heads, S,
    head_dim) → (batch, L, heads, head_dim), and no weights."""
    for name, holds in REFUSED.items():
        if options.get(name) is not None:
            raise ValueError(f"attn_implementation katt: {name}: holds {holds}, expected none")
    if type(cache).__name__ == "PagedAttentionCache":
        raise ValueError("attn_implementation katt: cache: holds a paged cache, expected a contiguous one")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    # As for sdpa: without a mask either all is visible or the rule is causal, aligned to the top left.
    is_causal = bool(is_causal) and attention_mask is None and query.shape[2] > 1
    if position_bias is not None:
        attention_mask = with_position_bias(position_bias, attention_mask, is_causal, query.shape[2], key.shape[2])
        is_causal = False
    out = scaled_dot_product_attention(
        query, key, value, attention_mask, dropout, is_causal, scaling, enable_gqa=True, softcap=softcap or 0.0
    )
    return out.transpose(1, 2).contiguous(), None


def with_position_bias(position_bias, mask, is_causal, length, keys):
    """The bias with -inf where the mask, or without one the causal rule, lets nothing be seen."""
    if mask is None and is_causal:
        mask = position_bias.new_ones(length, keys, dtype=torch.bool).tril()
    if mask is None:
        return position_bias
    return position_bias.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else position_bias + mask
