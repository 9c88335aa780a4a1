"""Files of score rules, which the program katt reads (src/ops/attention/bench/rule_file.hpp), and peers of its sweeps
(src/ops/attention/bench/torch_rule.py)."""

import json
import struct
from pathlib import Path

import numpy

from .compact import FLAT, INSIDE, compact
from .program import Program, RuleError
from .run import Rule, held

LONGEST = 2**20
DTYPES = {"float32": "F32", "int32": "I32", "bool": "BOOL"}


def write(path: Path, name: str, rule: Rule) -> None:
    """Writes a rule as a safetensors file. RuleError for what it captures and kernels do not read."""
    arrays = [numpy.asarray(held(array), order="C") for array in rule.captured]
    tensors = {}
    extents = bounds(rule.programs.score, arrays)
    tensors["bounded"] = numpy.array(list(extents.values()), numpy.int32)
    softcap, capped = rule.programs.capped or (0.0, None)
    tensors["softcap"] = numpy.array([softcap], numpy.float32)
    programs = {"score": rule.programs.score, "slope": rule.programs.slope}
    if capped:
        programs |= {"capped.score": capped.score, "capped.slope": capped.slope}
    for part, program in programs.items():
        for prefix, limits in (("", None), ("bounded.", extents)):
            made = compact(program, limits if extents["batch"] else None, arrays)
            for field in ("code", "indices", "constants", "results", "registers"):
                tensors[f"{prefix}{part}.{field}"] = numpy.asarray(getattr(made, field), numpy.int32)
    tensors |= {f"captured.{n}": array for n, array in enumerate(arrays)}
    header, end = {"__metadata__": {"name": name, "values": values_text(rule.programs.score)}}, 0
    for key, array in tensors.items():
        places = [end, end + array.nbytes]
        header[key] = {"dtype": DTYPES[str(array.dtype)], "shape": list(array.shape), "data_offsets": places}
        end = places[1]
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(array.tobytes() for array in tensors.values()))


def bounds(program: Program, arrays: list[numpy.ndarray]) -> dict[str, int]:
    """Extents, powers of two up to 2^20, up to which all indices are inside of their axes and all integers of 32 bits;
    0 where there are none."""
    extents = dict.fromkeys(("batch", "head", "query", "key"), 1)
    if not are_inside(program, extents, arrays):
        return dict.fromkeys(extents, 0)
    for name in extents:
        while extents[name] < LONGEST and are_inside(program, extents | {name: 2 * extents[name]}, arrays):
            extents[name] *= 2
    return extents


def are_inside(program, extents, arrays):
    try:
        made = compact(program, extents, arrays)
    except RuleError:
        return False
    return bool(numpy.isin(made.indices[:, 1], (INSIDE, FLAT)).all())


def values_text(program: Program) -> str:
    """The values of a program in order, the result last, as JSON: [operation, type, operands, item], where operands are
    places in this list, and a gather's item is the number of its tensor."""
    live = program.live()
    places = {number: place for place, number in enumerate(live)}
    (result,) = program.results
    values = [program.values[number] for number in live]
    listed = [[value.operation, value.type, [places[n] for n in value.operands], value.item] for value in values]
    return json.dumps({"values": listed, "result": places[result]})
