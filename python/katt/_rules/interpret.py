"""Runs a program on NumPy arrays: the reference of the interpreter in C++."""

import numpy

from .compact import FLAT, INPUT_REGISTERS, INSIDE, UNKNOWN
from .program import COMPARISONS, INDEX, OPERATIONS, REAL, TRUTH, Program

FUNCTIONS = {
    "add": numpy.add,
    "subtract": numpy.subtract,
    "multiply": numpy.multiply,
    "negative": numpy.negative,
    "absolute": numpy.absolute,
    "minimum": numpy.minimum,
    "maximum": numpy.maximum,
    "divide": numpy.divide,
    "fma": lambda a, b, c: a * b + c,
    "exp": numpy.exp,
    "log": numpy.log,
    "tanh": numpy.tanh,
    "sigmoid": lambda a: 1 / (1 + numpy.exp(-a)),
    "sqrt": numpy.sqrt,
    "floor": numpy.floor,
    "floor_divide": numpy.floor_divide,
    "remainder": numpy.remainder,
    "equal": numpy.equal,
    "not_equal": numpy.not_equal,
    "less": numpy.less,
    "less_equal": numpy.less_equal,
    "and": numpy.logical_and,
    "or": numpy.logical_or,
    "not": numpy.logical_not,
    "where": numpy.where,
}


def run(program: Program, tensors: list[numpy.ndarray], dtype=numpy.float64, gradients=None, **inputs):
    """The results of a program for inputs score, batch, head, query, key and gradient that broadcast together, with
    reals of this dtype. Scatters add to the arrays `gradients`, by the number of their tensor. IndexError for an index
    out of range; a negative one counts from the end, as in NumPy."""
    types = {REAL: numpy.dtype(dtype), INDEX: numpy.dtype(numpy.int64), TRUTH: numpy.dtype(bool)}
    made = {}
    with numpy.errstate(all="ignore"):
        for number in program.live():
            value = program.values[number]
            operands = [made[operand] for operand in value.operands]
            if value.operation in inputs:
                result = inputs[value.operation]
            elif value.operation == "constant":
                result = value.item
            elif value.operation == "gather":
                result = tensors[value.item][tuple(operands)]
            elif value.operation == "scatter":
                *indices, added = numpy.broadcast_arrays(*operands)
                added = numpy.where(inputs["gradient"] == 0, 0, added)  # even where a derivative is NaN
                numpy.add.at(gradients[value.item], tuple(indices), added)
                continue
            elif value.operation in ("to_real", "to_index"):
                result = operands[0]
            else:
                result = FUNCTIONS[value.operation](*operands)
            made[number] = numpy.asarray(result).astype(types[value.type])
    return [made[result] for result in program.results]


def run_compact(made, tensors: list[numpy.ndarray], dtype=numpy.float64, gradients=None, **inputs):
    """The results of the compact form of a program, as run() has them, but for indices that may lie outside of their
    tensor: those are clamped, as in C++."""
    types = (numpy.dtype(dtype), numpy.dtype(numpy.int64), numpy.dtype(bool))
    held = {INPUT_REGISTERS[name]: numpy.asarray(value) for name, value in inputs.items()}
    held |= {n + 1: Bits(constant) for n, constant in enumerate(made.constants)}

    def indices(start, count, shape):
        for (register, place), extent in zip(made.indices[start : start + count], shape):
            index = numpy.asarray(read(register, 1))
            if place == FLAT:
                yield from numpy.unravel_index(index, shape)
                return
            index = numpy.where(index < 0, index + extent, index) if place != INSIDE else index
            yield numpy.clip(index, 0, extent - 1) if place == UNKNOWN else index

    def read(register, type):
        value = held[register]
        return value.of(types[type]) if isinstance(value, Bits) else value

    with numpy.errstate(all="ignore"):
        for opcode, type, _, result, *fields in made.code.tolist():
            operation = OPERATIONS[opcode]
            if operation in ("gather", "scatter"):
                tensor, start, count = fields
                at = tuple(indices(start, count, tensors[tensor].shape))
                if operation == "scatter":
                    *at, added = numpy.broadcast_arrays(*at, read(result, type))
                    added = numpy.where(inputs["gradient"] == 0, 0, added)
                    numpy.add.at(gradients[tensor], tuple(at), added)
                else:
                    held[result] = tensors[tensor][at].astype(types[type])
            elif operation == "where":
                held[result] = numpy.where(read(fields[0], 2), read(fields[1], type), read(fields[2], type))
            elif operation in ("to_real", "to_index"):
                held[result] = read(fields[0], type).astype(types[operation == "to_index"])
            else:
                operands = [read(field, type) for field in fields[: ARITIES.get(operation, 2)]]
                made_type = types[2] if operation in COMPARISONS else types[type]
                held[result] = numpy.asarray(FUNCTIONS[operation](*operands)).astype(made_type)
    return [held[register].of(types[0]) if isinstance(held[register], Bits) else held[register]
            for register in made.results]  # fmt: skip


UNARY = ("negative", "absolute", "exp", "log", "tanh", "sigmoid", "sqrt", "floor", "not")
ARITIES = dict.fromkeys(UNARY, 1) | {"fma": 3}


class Bits:
    """A constant, whose type is that of the instruction that reads it."""

    def __init__(self, bits):
        self._bits = numpy.int32(bits)

    def of(self, dtype):
        return self._bits.view(numpy.float32).astype(dtype) if dtype.kind == "f" else self._bits.astype(dtype)
