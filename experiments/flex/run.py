"""Measures a sweep file whose entries name score rules, with the rules of this file. See README.md.

Options besides -o and --resume are those of `katt sweep`: --seq 2048, --dtype bf16."""

import argparse
from pathlib import Path

import katt
import numpy

ROOT = Path(__file__).resolve().parents[2]
HEADS, LONGEST, CAP = 8, 8192, 20.0
RANDOM = numpy.random.default_rng(1)
SLOPES = (0.5 ** numpy.arange(1, HEADS + 1)).astype("float32")  # ALiBi's for eight heads, as the axis alibi has
DOCUMENTS = numpy.repeat(numpy.arange(64, dtype="int32"), RANDOM.integers(64, 512, 64))[:LONGEST]
TABLE = RANDOM.standard_normal((HEADS, 2 * LONGEST)).astype("float32")


def alibi(score, b, h, q, k):
    return score - SLOPES[h] * abs(q - k)


def softcap(score, b, h, q, k):
    return CAP * numpy.tanh(score / CAP)


def document(score, b, h, q, k):
    return numpy.where(DOCUMENTS[q] == DOCUMENTS[k], score, -numpy.inf)


def relative(score, b, h, q, k):
    return score + TABLE[h, q - k + LONGEST]


RULES = {rule.__name__: rule for rule in (alibi, softcap, document, relative)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sweep", help="forward.toml or backward.toml")
    parser.add_argument("-o", "--output", required=True, help="result file")
    parser.add_argument("--resume", action="store_true", help="continue the result file; start it if missing")
    options, others = parser.parse_known_args()
    names = [name.removeprefix("--").replace("-", "_") for name in others[::2]]
    katt.sweep(
        options.sweep,
        score_rule=RULES,
        output=options.output,
        resume=options.resume,
        peer_program=ROOT / "build" / "peers" / "bin" / "katt-peers",
        **dict(zip(names, others[1::2], strict=True)),
    )


if __name__ == "__main__":
    main()
