"""Files of score rules, which the program katt reads (src/ops/attention/bench/rule_file.hpp)."""

import json
import struct
from pathlib import Path

import numpy

from .compact import compact
from .run import Rule, held

DTYPES = {"float32": "F32", "int32": "I32", "bool": "BOOL"}


def write(path: Path, name: str, rule: Rule) -> None:
    """Writes a rule as a safetensors file. RuleError for what it captures and kernels do not read."""
    arrays = [held(array) for array in rule.captured]
    tensors = {}
    for part, program in (("score", rule.programs.score), ("slope", rule.programs.slope)):
        made = compact(program, None, arrays)
        for field in ("code", "indices", "constants", "results", "registers"):
            tensors[f"{part}.{field}"] = numpy.asarray(getattr(made, field), numpy.int32)
    tensors |= {f"captured.{n}": numpy.ascontiguousarray(array) for n, array in enumerate(arrays)}
    header, end = {"__metadata__": {"name": name}}, 0
    for key, array in tensors.items():
        places = [end, end + array.nbytes]
        header[key] = {"dtype": DTYPES[str(array.dtype)], "shape": list(array.shape), "data_offsets": places}
        end = places[1]
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(array.tobytes() for array in tensors.values()))
