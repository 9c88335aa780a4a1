"""Operators in float64 NumPy, as their formulas stand, and gradients by central differences."""

import numpy


def wide(*arrays):
    return [None if x is None else numpy.asarray(x).astype(numpy.float64) for x in arrays]


def attention(q, k, v, *, causal=False, window=(-1, -1), bias=None, softcap=0.0, scale=None, slopes=None, lengths=None,
              blocks=None, block_size=1):  # fmt: skip
    """(out, lse)"""
    q, k, v, bias = wide(q, k, v, bias)
    group = q.shape[1] // k.shape[1]
    k, v = (numpy.repeat(x, group, axis=1) for x in (k, v))
    batch, heads, seq_q, head_dim = q.shape
    seq_kv = k.shape[2]
    s = numpy.einsum("bhid,bhjd->bhij", q, k) * (head_dim**-0.5 if scale is None else scale)
    if softcap:
        s = softcap * numpy.tanh(s / softcap)
    n = numpy.full(batch, seq_kv) if lengths is None else numpy.asarray(lengths)
    i, j = numpy.arange(seq_q)[:, None], numpy.arange(seq_kv)[None, :]
    distance = j - (i + (n - seq_q)[:, None, None, None])
    if slopes is not None:
        s = s - numpy.asarray(slopes, numpy.float64)[None, :, None, None] * numpy.abs(distance)
    if bias is not None:
        s = s + bias
    right = 0 if causal else window[1]
    seen = numpy.broadcast_to(j < n[:, None, None, None], s.shape)
    if right >= 0:
        seen = seen & (distance <= right)
    if window[0] >= 0:
        seen = seen & (distance >= -window[0])
    if blocks is not None:
        seen = seen & (numpy.asarray(blocks)[i // block_size, j // block_size] != 0)
    s = numpy.where(seen, s, -numpy.inf)
    with numpy.errstate(divide="ignore", invalid="ignore"):
        top = numpy.maximum(s.max(axis=-1, keepdims=True), -1e300)
        e = numpy.exp(s - top)
        total = e.sum(axis=-1, keepdims=True)
        p = numpy.where(total > 0, e / numpy.where(total > 0, total, 1), 0)
        lse = numpy.where(total > 0, numpy.log(total) + top, -numpy.inf)[..., 0]
    return numpy.einsum("bhij,bhjd->bhid", p, v), lse


def softmax(x):
    (x,) = wide(x)
    e = numpy.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def rmsnorm(x, weight, eps):
    x, weight = wide(x, weight)
    return x * weight / numpy.sqrt((x**2).mean(axis=-1, keepdims=True) + eps)


def layernorm(x, weight, bias, eps):
    x, weight, bias = wide(x, weight, bias)
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / numpy.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps) * weight + bias


def silu(x):
    return x / (1 + numpy.exp(-x))


def swiglu(gate, up):
    gate, up = wide(gate, up)
    return silu(gate) * up


def linear(x, weight, bias=None):
    x, weight, bias = wide(x, weight, bias)
    out = x @ weight.T
    return out if bias is None else out + bias


def swiglu_mlp(x, w_gate, w_up, w_down):
    x, w_gate, w_up, w_down = wide(x, w_gate, w_up, w_down)
    return (silu(x @ w_gate.T) * (x @ w_up.T)) @ w_down.T


def cross_entropy(logits, targets, ignore_index=-100):
    (logits,) = wide(logits)
    logits, targets = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)
    top = logits.max(axis=-1)
    lse = numpy.log(numpy.exp(logits - top[:, None]).sum(axis=-1)) + top
    counted = targets != ignore_index
    picked = logits[numpy.arange(len(targets)), numpy.where(counted, targets, 0)]
    return (lse - picked)[counted].mean()


def rope(x, theta=10000.0, positions=None, interleaved=False):
    (x,) = wide(x)
    batch, _, seq, head_dim = x.shape
    if positions is None:
        positions = numpy.broadcast_to(numpy.arange(seq), (batch, seq))
    angles = positions[:, None, :, None] * theta ** (-2 * numpy.arange(head_dim // 2) / head_dim)
    cos, sin = numpy.cos(angles), numpy.sin(angles)
    out = numpy.empty_like(x)
    a = slice(0, None, 2) if interleaved else slice(0, head_dim // 2)
    b = slice(1, None, 2) if interleaved else slice(head_dim // 2, None)
    out[..., a] = x[..., a] * cos - x[..., b] * sin
    out[..., b] = x[..., b] * cos + x[..., a] * sin
    return out


def ternary_linear(x, weight):
    x, weight = wide(x, weight)
    s_w = max(numpy.abs(weight).mean(), 1e-5)
    s_x = 127 / numpy.maximum(numpy.abs(x).max(axis=-1, keepdims=True), 1e-5)
    w_q = numpy.clip(numpy.round(weight / s_w), -1, 1)
    x_q = numpy.clip(numpy.round(x * s_x), -128, 127)
    return (x_q @ w_q.T) * s_w / s_x


def gradient(function, arguments, index, dout, step=1e-4):
    """Gradient of Σ dout · function(*arguments) with respect to one argument, by central differences in float64."""
    arguments = wide(*arguments)
    x = arguments[index]
    result = numpy.empty_like(x)
    for place in numpy.ndindex(x.shape):
        kept = x[place]
        x[place] = kept + step
        above = (dout * function(*arguments)).sum()
        x[place] = kept - step
        below = (dout * function(*arguments)).sum()
        x[place] = kept
        result[place] = (above - below) / (2 * step)
    return result
