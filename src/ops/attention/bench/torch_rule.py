"""A score rule of katt.sweep as PyTorch's flex_attention takes it, from the file that the sweep has read
(python/katt/_rules/file.py): a program without jumps, and the tensors that it captures."""

import json
import operator
import struct
from pathlib import Path

import torch
from katt_peers.refusal import Refusal

INPUTS = ("score", "batch", "head", "query", "key")
DTYPES = {"F32": torch.float32, "I32": torch.int32, "BOOL": torch.bool}


def minimum(a, b):
    """The minimum of two tensors, or of a tensor and a number in either order."""
    if isinstance(a, (int, float)):
        a, b = b, a
    return torch.clamp(a, max=b) if isinstance(b, (int, float)) else torch.minimum(a, b)


def maximum(a, b):
    if isinstance(a, (int, float)):
        a, b = b, a
    return torch.clamp(a, min=b) if isinstance(b, (int, float)) else torch.maximum(a, b)


def floor_divide(a, b):
    """0 where b is 0, as in a rule; so is the remainder."""
    return a // b if isinstance(b, int) and b else torch.where(b == 0, 0, a // torch.where(b == 0, 1, b))


def remainder(a, b):
    return a % b if isinstance(b, int) and b else torch.where(b == 0, 0, a % torch.where(b == 0, 1, b))


FUNCTIONS = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "negative": operator.neg,
    "absolute": torch.abs,
    "minimum": minimum,
    "maximum": maximum,
    "divide": operator.truediv,
    "exp": torch.exp,
    "log": torch.log,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "sqrt": torch.sqrt,
    "floor": torch.floor,
    "floor_divide": floor_divide,
    "remainder": remainder,
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "and": operator.and_,
    "or": operator.or_,
    "not": torch.logical_not,
    "where": torch.where,
    "to_real": lambda a: a.to(torch.float32),
    "to_index": lambda a: a.to(torch.int32),
}


def rule_of(case):
    """score_mod(score, batch, head, query, key) of a case with a score rule, else None."""
    if case.axes["score_rule"] == "none":
        return None
    if not case.rule_file:
        raise Refusal("the sweep hands over no file of its score rule")
    program, tensors = read(Path(case.rule_file), case.device)
    return score_mod_of(program, tensors, case.device)


def read(path, device):
    """The program of a rule, and its captured tensors on the device."""
    data = bytearray(path.read_bytes())
    begin = 8 + struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8:begin])
    tensors = []
    while (spec := header.get(f"captured.{len(tensors)}")) is not None:
        first, end = spec["data_offsets"]
        part = data[begin + first : begin + end]  # a copy, on a boundary of its own
        tensors.append(torch.frombuffer(part, dtype=DTYPES[spec["dtype"]]).view(spec["shape"]).to(device))
    return json.loads(header["__metadata__"]["values"]), tensors


def score_mod_of(program, tensors, device):
    """The function of a program. Numbers stay numbers of Python, as a user would write them."""
    values = program["values"]
    constants = {n: item for n, (operation, *_, item) in enumerate(values) if operation == "constant"}
    computed = [n for n, (operation, *_) in enumerate(values) if operation not in (*INPUTS, "constant")]
    # Places in the list that a call makes: inputs, constants, results of the steps.
    places = {n: INPUTS.index(operation) for n, (operation, *_) in enumerate(values) if operation in INPUTS}
    places |= {n: len(INPUTS) + place for place, n in enumerate([*constants, *computed])}
    steps = []
    for n in computed:
        operation, _, operands, item = values[n]
        if operation == "gather":
            # flex_attention takes indices that are tensors; numbers choose a part of the tensor here.
            part = tensors[item][tuple(constants.get(operand, slice(None)) for operand in operands)]
            function, operands = element_of(part), [operand for operand in operands if operand not in constants]
        elif all(operand in constants for operand in operands):
            numbers = [torch.tensor(constants[operand], device=device) for operand in operands]
            function, operands = element_of(FUNCTIONS[operation](*numbers)), []
        else:
            function = FUNCTIONS[operation]
        steps.append((function, tuple(places[operand] for operand in operands)))
    numbers, result = tuple(constants.values()), places[program["result"]]

    def score_mod(score, batch, head, query, key):
        made = [score, batch, head, query, key, *numbers]
        for function, operands in steps:
            made.append(function(*[made[place] for place in operands]))
        return made[result] if isinstance(made[result], torch.Tensor) else torch.full_like(score, made[result])

    return score_mod


def element_of(tensor):
    """The function of an index for each axis of the tensor; of none, where it has no axis."""
    return lambda *indices: tensor[indices] if indices else tensor
