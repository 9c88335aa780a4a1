"""The compact form of a program, which C++ runs: instructions of seven integers over numbered registers, and how far
the indices of gathers are known to lie inside of their tensors."""

from dataclasses import dataclass

import numpy

from .program import BLOCK, INDEX, INDEX_LIMIT, OPERATIONS, REAL, SCORE, TRUTH, Program, RuleError

TYPES = (REAL, INDEX, TRUTH)
LEVEL = 2**16  # register n of a level is level · LEVEL + n
# Registers of the inputs: they are there without an instruction.
INPUT_REGISTERS = {"batch": BLOCK * LEVEL, "head": 1 * LEVEL, "query": 1 * LEVEL + 1, "key": 2 * LEVEL,
                   "score": SCORE * LEVEL, "gradient": SCORE * LEVEL + 1}  # fmt: skip
# An index is inside of its axis; counts from its end where it is negative; may lie outside; or is the place of an
# element among all of the tensor.
INSIDE, WRAPPED, UNKNOWN, FLAT = 0, 1, 2, 3


@dataclass
class Compact:
    """A program as integers.

    code: (instructions, 7) int32: opcode, type of the operands, level, result, three operands. A gather has the number
    of its tensor, where its indices start in `indices`, and their number; a scatter too, with the added value in place
    of the result. Instructions are sorted by level: what a level needs of others is of levels before it.
    indices: (entries, 2) int32: the register of an index, and INSIDE, WRAPPED or UNKNOWN.
    constants: int32 bits of BLOCK registers from 1 on.
    results: registers. registers: their number in each level.
    """

    code: numpy.ndarray
    indices: numpy.ndarray
    constants: numpy.ndarray
    results: tuple[int, ...]
    registers: tuple[int, ...]


def bits(item, type):
    return int(numpy.float32(item).view(numpy.int32)) if type == REAL else int(item)


def compact(program: Program, extents: dict[str, int] | None, tensors: list[numpy.ndarray]) -> Compact:
    """The compact form for inputs batch, head, query and key below these extents, any if None, and captured tensors.
    RuleError for an index that is always outside of its tensor, and for integers that may need more than 32 bits."""
    bounds, flat = None, set()
    if extents is not None:
        program = in_reals(program, ranges(program, extents, tensors))
        program, flat = flat_gathers(program, ranges(program, extents, tensors), tensors)
        bounds = ranges(program, extents, tensors)
    fused = fusions(program)
    order = [n for n in program.live() if n not in fused.values()]
    order.sort(key=lambda n: program.values[n].level)
    operands_of = {n: fused_operands(program, fused, n) for n in order}
    last = {operand: n for n in order for operand in operands_of[n]}
    last |= dict.fromkeys(program.results, None)

    registers, used, free, code, indices, constants = {}, [1, 2, 1, 2], [], [], [], []
    for n in order:
        value = program.values[n]
        if value.operation in INPUT_REGISTERS:
            registers[n] = INPUT_REGISTERS[value.operation]
        elif value.operation == "constant":
            registers[n] = used[BLOCK]
            used[BLOCK] += 1
            constants.append(bits(value.item, value.type))
    for n in order:
        value = program.values[n]
        if n in registers:
            continue
        operands = operands_of[n]
        row = [OPERATIONS.index("fma" if n in fused else value.operation), 0, value.level]
        row[1] = TYPES.index(program.type(operands[-1]) if value.operation != "gather" else value.type)
        if value.operation in ("gather", "scatter"):
            own = operands if value.operation == "gather" else operands[:-1]
            fields = [value.item, len(indices), len(own)]
            for index, extent in zip(own, program.tensors[value.item].shape):
                place = FLAT if n in flat else UNKNOWN if bounds is None else placed(bounds[index], extent)
                indices.append((registers[index], place))
        else:
            fields = [registers[operand] for operand in operands] + [0] * (3 - len(operands))
        if value.operation == "scatter":
            code.append([*row, registers[operands[-1]], *fields])
        # A result may take the register of an operand that nothing needs later: instructions read before they write.
        for operand in set(operands):
            register = registers[operand]
            if last[operand] == n and register // LEVEL == SCORE and register not in INPUT_REGISTERS.values():
                free.append(register)
        if value.operation == "scatter":
            continue
        if value.level == SCORE and free:
            registers[n] = free.pop()
        else:
            registers[n] = value.level * LEVEL + used[value.level]
            used[value.level] += 1
        code.append([*row, registers[n], *fields])
    return Compact(
        numpy.array(code, numpy.int32).reshape(-1, 7),
        numpy.array(indices, numpy.int32).reshape(-1, 2),
        numpy.array(constants, numpy.int32),
        tuple(registers[n] for n in program.results),
        tuple(used),
    )


def in_reals(program, bounds):
    """The program with the sums and magnitudes of integers that become real computed in reals, which is exact below
    2^24: their terms are converted once a row or a key, not once a score."""

    def parts(n):
        value = program.values[n]
        is_sum = value.level == SCORE and value.operation in ("add", "subtract", "negative", "absolute")
        return value.operands if is_sum else ()

    def is_exact(n):
        low, high = bounds[n]
        below = program.values[n].level != SCORE or parts(n)  # else its conversion stays
        return below and max(-low, high) <= 2**24 and all(is_exact(part) for part in parts(n))

    def change(made, moved, value):
        def real(n):
            if parts(n):
                return made.apply(program.values[n].operation, *(real(part) for part in parts(n)))
            return made.convert(moved[n], REAL)

        if value.operation == "to_real" and parts(value.operands[0]) and is_exact(value.operands[0]):
            return real(value.operands[0])
        return None

    return rebuilt(program, change)


def rebuilt(program, change):
    """The program of change(made, moved, value) for its live values, or of the value itself where that is None. moved:
    the values of `made` by those of the program."""
    made, moved = Program(program.tensors), {}
    for n in program.live():
        value = program.values[n]
        moved[n] = change(made, moved, value)
        if moved[n] is None:
            operands = [moved[operand] for operand in value.operands]
            moved[n] = made.make(value.operation, value.type, operands, value.item, value.level)
    made.results = [moved[n] for n in program.results]
    made.added = [moved[n] for n in program.added]
    return made


def flat_gathers(program, bounds, tensors):
    """The program with one integer for the indices of each gather that are all inside of a contiguous tensor, so that
    what a key does not change of it is computed once a row; and these gathers."""
    flat = set()

    def is_flat(value):
        array, own = tensors[value.item], zip(value.operands, program.tensors[value.item].shape)
        inside = all(placed(bounds[index], extent) == INSIDE for index, extent in own)
        return value.operands and inside and array.flags.c_contiguous and array.size < INDEX_LIMIT - 16

    def change(made, moved, value):
        if value.operation != "gather" or not is_flat(value):
            return None
        place = made.constant(0)
        for operand, extent in zip(value.operands, program.tensors[value.item].shape):
            place = made.apply("add", made.apply("multiply", place, made.constant(extent)), moved[operand])
        gather = made.make("gather", value.type, [place], value.item)
        flat.add(gather)
        return gather

    return rebuilt(program, change), flat


def fusions(program):
    """{sum: product} for the additions of reals that become one instruction with their product, which nothing else
    needs."""
    uses = {}
    for n in program.live():
        for operand in program.values[n].operands:
            uses[operand] = uses.get(operand, 0) + 1
    for n in program.results:
        uses[n] = uses.get(n, 0) + 1
    fused = {}
    for n in program.live():
        value = program.values[n]
        if value.operation == "add" and value.type == REAL:
            for operand in value.operands:
                product = program.values[operand]
                same_level = product.level == value.level  # else the product is made less often
                if product.operation == "multiply" and uses[operand] == 1 and same_level:
                    fused[n] = operand
                    break
    return fused


def fused_operands(program, fused, n):
    operands = program.values[n].operands
    if n not in fused:
        return operands
    first = operands.index(fused[n])
    return (*program.values[fused[n]].operands, operands[1 - first])


def placed(bounds, extent):
    low, high = bounds
    if low >= extent or high < -extent:
        text = str(low) if low == high else f"{low} … {high}"
        raise RuleError(f"takes index {text} of an axis of {extent} elements")
    return INSIDE if 0 <= low and high < extent else WRAPPED if -extent <= low and high < extent else UNKNOWN


def ranges(program, extents, tensors):
    """The smallest and the largest number that each index of a program may be."""
    made = {}
    for n in program.live():
        value = program.values[n]
        if value.type == INDEX:
            operands = [made.get(operand) for operand in value.operands]
            made[n] = range_of(program, value, operands, extents, tensors)
            if not -INDEX_LIMIT <= made[n][0] <= made[n][1] < INDEX_LIMIT:
                raise RuleError(f"makes integers {made[n][0]} … {made[n][1]}, expected 32 bits")
    return made


def range_of(program, value, operands, extents, tensors):
    def corners(f):
        (a, b), (c, d) = operands
        made = [f(x, y) for x in (a, b) for y in (c, d)]
        return min(made), max(made)

    match value.operation:
        case "constant":
            return value.item, value.item
        case "gather":
            held = tensors[value.item]
            return (int(held.min()), int(held.max())) if held.size else (0, 0)
        case "add":
            return corners(lambda x, y: x + y)
        case "subtract":
            return corners(lambda x, y: x - y)
        case "multiply":
            return corners(lambda x, y: x * y)
        case "minimum":
            return corners(min)
        case "maximum":
            return corners(max)
        case "negative":
            ((low, high),) = operands
            return -high, -low
        case "absolute":
            ((low, high),) = operands
            return 0 if low <= 0 <= high else min(abs(low), abs(high)), max(abs(low), abs(high))
        case "where":
            _, (a, b), (c, d) = operands
            return min(a, c), max(b, d)
        case "floor_divide":
            (low, high), (least, most) = operands
            if least > 0 or most < 0:
                return corners(lambda x, y: x // y)
            largest = max(abs(low), abs(high))
            return -largest, largest  # by 0 it is 0
        case "remainder":
            (low, high), (least, most) = operands
            if least > 0:
                return (low, high) if 0 <= low and high < least else (0, most - 1)
            return min(least + 1, 0), max(most - 1, 0)
        case "to_index":
            if program.type(value.operands[0]) == TRUTH:
                return 0, 1
            return -INDEX_LIMIT, INDEX_LIMIT - 1
    return 0, max(extents[value.operation] - 1, 0)
