"""Gradients of a program, by going through it backward: d score' / d score, and what a gradient of score' adds to the
captured tensors.

Where the derivative of an operation is a convention, it is PyTorch's: half of it to both of equal operands of minimum
and maximum, 0 for abs at 0.
"""

import copy
import math

from .program import REAL, Program

__all__ = ["captured_gradients", "slope"]

LEAST = 1e-30  # constants are joined far from where f32 ends


def slope(program: Program) -> Program:
    """The program with the results (score', d score' / d score)."""
    made = copy.deepcopy(program)
    (result,) = made.results
    gradient = adjoints(made, result, made.constant(1.0)).get(made.input("score"))
    made.results.append(made.constant(0.0) if gradient is None else gradient)
    return made


def captured_gradients(program: Program, tensors: set[int]) -> Program:
    """The program without results that adds the input `gradient`, d loss / d score', times d score' / d element, to the
    elements of the gradients of these tensors."""
    made = copy.deepcopy(program)
    (result,) = made.results
    made.results = []
    for number, gradient in adjoints(made, result, made.input("gradient")).items():
        value = made.values[number]
        if value.operation == "gather" and value.item in tensors:
            made.scatter(value.item, value.operands, gradient)
    return made


def adjoints(program: Program, result: int, seed: int) -> dict[int, int]:
    """The gradients of the real values on which the result depends. Where the result is -inf a score has no share in
    the softmax, and its gradient is 0 already: no `where` is made for it."""
    gradients = {result: seed}
    unseen = {result}  # values that are -inf only where the result is

    def add(number, gradient):
        if program.type(number) == REAL and program.item(gradient) != 0.0:
            known = gradients.get(number)
            gradients[number] = gradient if known is None else program.apply("add", known, gradient)

    for number in range(result, -1, -1):
        if number not in gradients:
            continue
        value = program.values[number]
        if value.operation == "where" and number in unseen:
            _, then, other = value.operands
            if -math.inf in (program.item(then), program.item(other)):
                kept = other if program.item(then) == -math.inf else then
                add(kept, gradients[number])
                unseen.add(kept)
                continue
        for operand, gradient in _operands(program, value, number, gradients[number]):
            add(operand, gradient)
    return gradients


def _operands(program, value, number, d):
    """(operand, its gradient) of an operation whose result has the gradient d."""
    apply, constant, where = program.apply, program.constant, program.where
    zero = constant(0.0)
    match value.operation, value.operands:
        case "add", (a, b):
            return [(a, d), (b, d)]
        case "subtract", (a, b):
            return [(a, d), (b, apply("negative", d))]
        case "multiply", (a, b):
            return [(a, _scaled(program, "multiply", d, b)), (b, _scaled(program, "multiply", d, a))]
        case "divide", (a, b):
            share = _scaled(program, "divide", d, b)
            return [(a, share), (b, apply("negative", apply("multiply", share, number)))]
        case "negative", (a,):
            return [(a, apply("negative", d))]
        case "absolute", (a,):
            below = where(apply("less", a, zero), apply("negative", d), zero)
            return [(a, where(apply("less", zero, a), d, below))]
        case "minimum" | "maximum", (a, b):
            half = where(apply("equal", a, b), apply("multiply", d, constant(0.5)), zero)
            a_below, b_below = apply("less", a, b), apply("less", b, a)
            of_a, of_b = (a_below, b_below) if value.operation == "minimum" else (b_below, a_below)
            return [(a, where(of_a, d, half)), (b, where(of_b, d, half))]
        case "exp", (a,):
            return [(a, apply("multiply", d, number))]
        case "log", (a,):
            return [(a, apply("divide", d, a))]
        case "tanh", (a,):
            return [(a, apply("multiply", d, apply("subtract", constant(1.0), apply("multiply", number, number))))]
        case "sigmoid", (a,):
            return [(a, apply("multiply", d, apply("multiply", number, apply("subtract", constant(1.0), number))))]
        case "sqrt", (a,):
            return [(a, apply("divide", apply("multiply", d, constant(0.5)), number))]
        case "where", (condition, a, b):
            return [(a, where(condition, d, zero)), (b, where(condition, zero, d))]
    return []


def _scaled(program, operation, d, by):
    """d · by or d / by. Of c · x and a constant, the constants are one: softcap's cap · (1 − t²) / cap is 1 − t²."""
    value = program.values[d]
    if value.operation == "multiply" and program.item(by) is not None:
        for constant, x in (value.operands, value.operands[::-1]):
            if program.item(constant) is not None:
                joined = program.apply(operation, constant, by)
                if LEAST < abs(program.item(joined) or 0.0) < 1 / LEAST:
                    return program.apply("multiply", x, joined)
    return program.apply(operation, d, by)
