#!/usr/bin/env python3
"""A peer of swiglu in f32 without any library, well-behaved or not as its name says; tests/cli/test_peers.py."""

import array
import json
import math
import mmap
import os
import pathlib
import sys
import time

SECONDS = 0.005  # of a run
LIES = {"boasts": 0.03, "whines": 0.03}  # of theirs: a shorter lie is within what clocks may differ
CLAIMS = {"boasts": 0.1, "whines": 2.0}  # shares of it that it claims, where it does not tell the truth
MEMORY = {"remembers": {"host_bytes": 1000, "device_bytes": 24}, "half": {"host_bytes": 1000},
          "negative": {"host_bytes": -1, "device_bytes": 0}}  # fmt: skip


def tensor(memory, spec):
    count = math.prod(spec["shape"])
    values = array.array("f")
    values.frombytes(memory[spec["offset"] : spec["offset"] + 4 * count])
    return values


def compute(memory, request):
    gate, up = (tensor(memory, spec) for spec in request["inputs"])
    return array.array("f", [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up, strict=True)])


def main():
    name = sys.argv[1]
    pathlib.Path(f"{name}.pid").write_text(str(os.getpid()))
    request = memory = kept = None
    for line in sys.stdin:
        message = json.loads(line)
        reply = {"ok": True}
        if message["do"] == "open":
            request, memory = message, mmap.mmap(3, message["bytes"])
            pathlib.Path(f"{name}.json").write_text(line)
            if name == "refuses":
                reply = {"skipped": "not today"}
            if name == "breaks":
                reply = {"failed": "it broke"}
            reply |= {"about": "toy 1", "engine": "abacus"}
            if name == "follows":
                reply |= {"inputs": True}
        if message["do"] == "inputs":
            pathlib.Path(f"{name}.inputs").write_text(line)
        if message["do"] == "run":
            if name == "dies":
                sys.exit("first line\nlast words")
            if name == "hangs":
                time.sleep(1000)
            start = time.perf_counter()
            time.sleep(LIES.get(name, SECONDS) * message["times"])
            seconds = (time.perf_counter() - start) / message["times"] * CLAIMS.get(name, 1)
            reply = {"seconds": "soon"} if name == "timeless" else {"seconds": seconds}
            if kept is None:
                kept = compute(memory, request)
        if message["do"] == "read" and name != "lazy":
            out = kept if name == "keeps" else compute(memory, request)
            if name == "wrong":
                out[1] += 1
            offset = request["outputs"][0]["offset"]
            memory[offset : offset + 4 * len(out)] = out.tobytes()
            reply |= MEMORY.get(name, {})
        print("what?" if name == "babbles" else json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
