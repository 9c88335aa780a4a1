"""Random score rules: trees of the operations that rules may have, for PyTorch's functions and NumPy's."""

import numpy

BATCH, HEADS, QUERIES, KEYS = 2, 3, 5, 7
EXTENTS = (BATCH, HEADS, QUERIES, KEYS)


def captured(generator, extents=EXTENTS):
    """What rules capture: reals by head, by distance, and as large as the scores; integers by batch and key."""
    batch, heads, queries, keys = extents
    return {
        "slopes": generator.standard_normal(heads).astype("float32"),
        "distances": generator.standard_normal((heads, queries + keys)).astype("float32"),
        "bias": generator.standard_normal(extents).astype("float32"),
        "documents": generator.integers(0, 3, (batch, keys)).astype("int32"),
    }


class RandomRule:
    """A rule of this depth: call(xp, tensors, score, batch, head, query, key) with NumPy's or PyTorch's functions."""

    def __init__(self, seed, depth, extents=EXTENTS):
        self._generator = numpy.random.default_rng(seed)
        *_, self._queries, self._keys = extents
        self._made = self._real(depth)

    def __call__(self, xp, tensors, *arguments):
        return self._made(xp, tensors, *arguments) + 0.25 * arguments[0]

    def _choose(self, makers):
        return makers[self._generator.integers(len(makers))]()

    def _constant(self):
        return round(float(self._generator.uniform(-2, 2)), 3)

    def _real(self, depth):
        if depth == 0:
            return self._choose([self._score, self._score, self._number, self._slope])
        one, two = lambda f: self._one(f, depth), lambda f: self._two(f, depth)
        return self._choose([
            lambda: two(lambda xp, a, b: a + b),
            lambda: two(lambda xp, a, b: a - b),
            lambda: two(lambda xp, a, b: a * b * 0.5),
            lambda: two(lambda xp, a, b: a / (abs(b) + 0.5)),
            lambda: two(lambda xp, a, b: xp.minimum(a, b)),
            lambda: two(lambda xp, a, b: xp.maximum(a, b)),
            lambda: one(lambda xp, a: -a),
            lambda: one(lambda xp, a: abs(a)),
            lambda: one(lambda xp, a: xp.exp(-abs(a))),
            lambda: one(lambda xp, a: xp.log(abs(a) + 0.5)),
            lambda: one(lambda xp, a: 3 * xp.tanh(a / 3)),
            lambda: one(lambda xp, a: 1 / (1 + xp.exp(-a))),
            lambda: one(lambda xp, a: xp.sqrt(a * a + 0.25)),
            lambda: one(lambda xp, a: xp.clip(a, -1.5, 1.0)),
            lambda: one(lambda xp, a: xp.floor(a) * 0.5 + a**3 * 0.125),
            lambda: self._where(depth),
            lambda: self._read(depth),
            lambda: self._converted(depth),
        ])  # fmt: skip

    def _score(self):
        return lambda xp, tensors, score, *place: score

    def _number(self):
        c = self._constant()
        return lambda xp, tensors, score, *place: score * 0 + c

    def _slope(self):
        return lambda xp, tensors, score, b, h, q, k: tensors["slopes"][h] * (k - q)

    def _one(self, f, depth):
        a = self._real(depth - 1)
        return lambda xp, *rest: f(xp, a(xp, *rest))

    def _two(self, f, depth):
        a, b = self._real(depth - 1), self._real(self._generator.integers(depth))
        return lambda xp, *rest: f(xp, a(xp, *rest), b(xp, *rest))

    def _where(self, depth):
        c, a, b = self._truth(depth - 1), self._real(depth - 1), self._real(depth - 1)
        return lambda xp, *rest: xp.where(c(xp, *rest), a(xp, *rest), b(xp, *rest))

    def _read(self, depth):
        i = self._index(depth - 1)
        extent, last = self._queries + self._keys, int(self._generator.integers(2))

        def distances(xp, tensors, score, b, h, q, k):
            return tensors["distances"][h, i(xp, tensors, score, b, h, q, k) % extent - last * extent]

        def bias(xp, tensors, score, b, h, q, k):
            return tensors["bias"][b, h, q, k]

        def grown(xp, tensors, score, b, h, q, k):
            return xp.exp(tensors["slopes"] * 0.5)[h] * score

        return self._choose([lambda: distances, lambda: bias, lambda: grown])

    def _converted(self, depth):
        i, a = self._index(depth - 1), self._real(depth - 1)
        return lambda xp, *rest: a(xp, *rest) + i(xp, *rest) * 0.125

    def _index(self, depth):
        if depth == 0:
            axis = self._generator.integers(4)
            return lambda xp, tensors, score, *place: place[axis]
        a, b = self._index(depth - 1), self._index(self._generator.integers(depth))
        c = int(self._generator.integers(1, 5))
        f = self._choose([
            lambda: lambda xp, a, b: a + b,
            lambda: lambda xp, a, b: a - b,
            lambda: lambda xp, a, b: a * c,
            lambda: lambda xp, a, b: a // c,
            lambda: lambda xp, a, b: a % c - 2,
            lambda: lambda xp, a, b: xp.where(a < b, a, b + c),
            lambda: None,
        ])  # fmt: skip
        keys = self._keys
        if f is None:
            return lambda xp, tensors, s, batch, h, q, k: tensors["documents"][
                batch, a(xp, tensors, s, batch, h, q, k) % keys
            ]
        return lambda xp, *rest: f(xp, a(xp, *rest), b(xp, *rest))

    def _truth(self, depth):
        kind = self._generator.integers(4 if depth > 0 else 2)
        if kind == 0:
            a, b = self._index(max(depth - 1, 0)), self._index(max(depth - 1, 0))
            return lambda xp, *rest: a(xp, *rest) <= b(xp, *rest)
        if kind == 1:
            a, c = self._real(max(depth - 1, 0)), self._constant()
            return lambda xp, *rest: a(xp, *rest) > c
        a, b = self._truth(depth - 1), self._truth(depth - 1)
        if kind == 2:
            return lambda xp, *rest: a(xp, *rest) & ~b(xp, *rest)
        return lambda xp, *rest: a(xp, *rest) | (b(xp, *rest) != a(xp, *rest))
