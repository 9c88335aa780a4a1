"""Rules that begin with a softcap, which the kernels have themselves: cap · tanh(score / cap)."""

import copy
import math

from .compact import rebuilt
from .program import Program

LARGEST = 1e6  # softcap of the kernels


def without_softcap(program: Program, masked: int | None) -> tuple[float, Program, int | None] | None:
    """(cap, the program of what follows, the number that `masked` has there) for a rule that reads the score in
    cap · tanh(score / cap) alone; else None."""
    whole = copy.copy(program)
    whole.results = [*program.results, *([] if masked is None else [masked])]
    found = capped_value(whole)
    if found is None:
        return None
    number, cap = found

    def change(made, _moved, value):
        return made.input("score") if value is whole.values[number] else None

    rest = rebuilt(whole, change)
    first, *others = rest.results
    rest.results = [first]
    return cap, rest, others[0] if others else None


def capped_value(program: Program) -> tuple[int, float] | None:
    """The number of cap · tanh(score / cap), and cap, where nothing else reads what it is made of."""
    values, live = program.values, program.live()

    def step(number, *operations):
        """(the only value that reads this one, the constant beside it); None for another operation."""
        readers = [reader for reader in live if number in values[reader].operands]
        if len(readers) != 1 or number in program.results:
            return None
        value = values[readers[0]]
        if value.operation not in operations or (value.operation == "divide" and value.operands[0] != number):
            return None
        return readers[0], next((program.item(operand) for operand in value.operands if operand != number), None)

    score = next((number for number in live if values[number].operation == "score"), None)
    scaled = None if score is None else step(score, "divide", "multiply")
    bent = scaled and scaled[1] and step(scaled[0], "tanh")
    capped = bent and step(bent[0], "multiply")
    if not capped or not capped[1]:
        return None
    number, cap = capped
    divisor = scaled[1] if values[scaled[0]].operation == "divide" else 1 / scaled[1]
    return (number, cap) if 0 < cap <= LARGEST and math.isclose(cap, divisor, rel_tol=1e-7) else None
