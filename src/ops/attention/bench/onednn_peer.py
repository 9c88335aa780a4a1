"""Attention by oneDNN's Graph API, in the patterns that its guide calls SDPA and GQA."""

import math

from katt_peers.onednn import Matrix
from katt_peers.onednn_graph import Graph
from katt_peers.refusal import Refusal


def steps(library, case, t):
    """The pattern of inference, or the gradients; these start from the output and the statistics of a training forward
    pass, computed here once."""
    refuse_masks(case)
    if not case.backward:
        return forward(library, case, t)
    b, h, s, _ = shapes(case)["q"]
    t["out"] = Matrix(library, case.dtype, *t["q"].shape)
    t["stats"] = Matrix(library, "f32", b * h * s, 1)
    library.run(forward(library, case, t, t["stats"]))
    return gradients(library, case, t)


def training_steps(library, case, t):
    """The pattern of training's forward pass, whose softmax stores its statistics; the gradients are those of steps."""
    if case.backward:
        raise Refusal("the gradients are those of the peer onednn")
    refuse_masks(case)
    b, h, s, _ = shapes(case)["q"]
    t["stats"] = Matrix(library, "f32", b * h * s, 1)
    return forward(library, case, t, t["stats"])


def refuse_masks(case):
    axes = case.axes
    for name, free, what in (("window_left", -1, "sliding window"), ("window_right", -1, "sliding window"),
                             ("softcap", 0, "softcap"), ("alibi", 0, "ALiBi"), ("kv_len_min", -1, "key lengths"),
                             ("score_rule", "none", "score rule"),
                             ("layout", "bhsd", "other order than batch, head, seq, head_dim")):  # fmt: skip
        if axes[name] != free:
            raise Refusal(f"this peer of oneDNN's graph has no {what}")
    if axes["causal"] and axes["seq_q"] > axes["seq_kv"]:
        raise Refusal("a query sees no key, which softmax over -inf makes NaN")


def shapes(case):
    """(batch, heads, seq, head_dim) of q; where heads share K and V, these have a dimension more."""
    return {spec.name: tuple(spec.shape) for spec in (*case.inputs, *case.outputs)}


class Tensors:
    """The graph's tensors of a case."""

    def __init__(self, library, case, t):
        self.library, self.graph, self.case, self.t = library, Graph(library), case, t
        b, heads, self.queries, self.dim = shapes(case)["q"]
        _, self.kv_heads, self.keys, _ = shapes(case)["k"]
        group = heads // self.kv_heads
        self.grouped = group > 1
        self.lead = (b, self.kv_heads, group) if self.grouped else (b, heads)
        self.kv_lead = (b, self.kv_heads, 1) if self.grouped else (b, heads)
        self.score = (*self.lead, self.queries, self.keys)

    def given(self, name):
        """A tensor of the case."""
        kv = name in ("k", "v", "dk", "dv")
        shape = (*self.kv_lead, self.keys, self.dim) if kv else (*self.lead, self.queries, self.dim)
        return self.graph.tensor(self.case.dtype, shape, self.t[name])

    def made(self, shape, dtype="f32"):
        return self.graph.tensor(dtype, shape)

    def stats(self):
        return self.graph.tensor("f32", (*self.lead, self.queries, 1), self.t["stats"])

    def scores(self, q, k, scale):
        """q · kᵀ · scale, with the mask's terms."""
        graph, score = self.graph, self.score
        s = graph.op("matmul", [q, k], self.made(score), transpose_b=True)
        s = graph.op("multiply", [s, scale], self.made(score))
        if self.case.axes["causal"]:
            s = self.causal(s)
        if "mask" in self.t:
            b, heads, rows, columns = shapes(self.case)["mask"]
            lead = (b, *((self.lead[1:]) if heads > 1 else (1,) * (len(self.lead) - 1)))
            mask = graph.tensor(self.case.dtype, (*lead, rows, columns), self.t["mask"])
            if self.case.dtype != "f32":
                mask = graph.op("type_cast", [mask], self.made((*lead, rows, columns)))
            s = graph.op("add", [s, mask], self.made(score))
        return s

    def causal(self, s):
        """Key j is visible to query i when j ≤ i + seq_kv − seq_q. The guide has a mask made inside the pattern for the
        forward pass, and an additive one for the gradients."""
        graph, score, offset = self.graph, self.score, self.keys - self.queries
        if self.case.backward:
            lead = (1,) * len(self.lead)
            zero, minus_infinity = bytes(4), b"\0\0\x80\xff"
            hidden = range(self.queries - 1, -1, -1)  # keys that a query does not see
            rows = (zero * (self.keys - n) + minus_infinity * n for n in hidden)
            self.t["causal"] = Matrix(self.library, "f32", self.queries, self.keys, b"".join(rows))
            mask = graph.tensor("f32", (*lead, self.queries, self.keys), self.t["causal"])
            return graph.op("add", [s, mask], self.made(score))
        row = graph.op("gen_index", [s], self.made(score, "s32"), axis=-2)
        if offset:
            row = graph.op("add", [row, graph.number("s32", self.keys)], self.made(score, "s32"))
            row = graph.op("subtract", [row, graph.number("s32", self.queries)], self.made(score, "s32"))
        column = graph.op("gen_index", [s], self.made(score, "s32"), axis=-1)
        seen = graph.op("greater_equal", [row, column], self.made(score, "boolean"))
        return graph.op("select", [seen, s, graph.number("f32", -math.inf)], self.made(score))


def forward(library, case, t, stats=None):
    """softmax(q · kᵀ · scale + mask) · v"""
    of = Tensors(library, case, t)
    s = of.scores(of.given("q"), of.given("k"), of.graph.number("f32", case.parameters["scale"]))
    outputs = [of.made(of.score, case.dtype), *([of.stats()] if stats else [])]
    p = of.graph.op("softmax", [s], *outputs, axis=-1, mode="inf_as_zero")
    of.graph.op("matmul", [p, of.given("v")], of.given("out"))
    return of.graph.parts()


def gradients(library, case, t):
    """P = exp(S − stats); dv = Pᵀ · dout, dS = P · (dout · vᵀ − Σ out · dout), dq = dS · k · scale, dk = dSᵀ · q · scale"""
    of = Tensors(library, case, t)
    graph, score = of.graph, of.score
    q, k, v, dout, scale = *map(of.given, ("q", "k", "v", "dout")), graph.number("f32", case.parameters["scale"])

    def narrow(x):
        return x if case.dtype == "f32" else graph.op("type_cast", [x], of.made(score, case.dtype))

    def of_keys(x, y, name):
        """xᵀ · y, summed over the heads that share a key"""
        out = of.given(name)
        if not of.grouped:
            return graph.op("matmul", [x, y], out, transpose_a=True)
        each = graph.op("matmul", [x, y], of.made((*of.lead, of.keys, of.dim), case.dtype), transpose_a=True)
        return graph.op("reduce_sum", [each], out, axes=(2,), keep_dims=True)

    s = graph.op("subtract", [of.scores(q, k, scale), of.stats()], of.made(score))
    p = graph.op("exp", [s], of.made(score))
    of_keys(narrow(p), dout, "dv")
    dp = graph.op("matmul", [dout, v], of.made(score), transpose_b=True)
    product = graph.op("multiply", [of.given("out"), dout], of.made((*of.lead, of.queries, of.dim)))
    sums = of.made((*of.lead, of.queries, 1))
    graph.op("reduce_sum", [product], sums, axes=(len(of.lead) + 1,), keep_dims=True)
    ds = graph.op("multiply", [p, graph.op("subtract", [dp, sums], of.made(score))], of.made(score))
    ds = narrow(graph.op("multiply", [ds, scale], of.made(score)))
    graph.op("matmul", [ds, k], of.given("dq"))
    of_keys(ds, q, "dk")
    return graph.parts()
