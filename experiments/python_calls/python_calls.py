#!/usr/bin/env python3
"""python_calls: what a call from Python costs beyond the call in C++.

Tiny cases, so that the call is all there is: the variant itself, called from C++ by the sweep, and the same variant called
through the package, in interleaved rounds as a peer, on arrays of NumPy and of PyTorch (where it is installed). Prints the
medians in microseconds and their difference; -o FILE.json keeps the medians."""

import argparse
import importlib.util
import json
from pathlib import Path

import katt

CASES = {
    "attention": ("flash", dict(seq=1, heads=1, head_dim=8)),
    "rmsnorm": ("fused", dict(tokens=1, hidden=8)),
    "softmax": ("fused", dict(tokens=1, vocab=8)),
    "swiglu": ("fused", dict(tokens=1, intermediate=8)),
}


def calls(op, variant):
    """The operator of the package as a peer, with the arguments that it has in a sweep."""
    functions = {
        "attention": lambda q, k, v, scale: katt.attention(q, k, v, scale=scale, variant=variant),
        "rmsnorm": lambda x, weight, eps: katt.rmsnorm(x, weight, eps=eps, variant=variant),
        "softmax": lambda x: katt.softmax(x, variant=variant),
        "swiglu": lambda gate, up: katt.swiglu(gate, up, variant=variant),
    }
    return functions[op]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.json")
    options = parser.parse_args()
    rows = []
    libraries = ["numpy"]
    if importlib.util.find_spec("torch"):
        import torch  # noqa: F401

        libraries.append("torch")
    katt.set_num_threads(1)
    print(f"{'operator':<12}{'arrays':<8}{'C++':>10}{'Python':>10}{'beyond':>10}  µs")
    for op, (variant, axes) in CASES.items():
        for library in libraries:
            frame = katt.sweep(
                op, peers={"package": calls(op, variant)}, arrays=library, variant=variant, dtype="f32", threads=1,
                budget_s=0.5, progress=False, **axes,
            ).frame.set_index("variant")  # fmt: skip
            if not (frame["status"] == "ok").all():
                raise SystemExit("; ".join(frame["reason"]))
            ours, package = frame.loc[variant, "time_s"] * 1e6, frame.loc["package", "time_s"] * 1e6
            print(f"{op:<12}{library:<8}{ours:>10.2f}{package:>10.2f}{package - ours:>10.2f}")
            rows.append({"operator": op, "arrays": library, "native_s": ours / 1e6, "python_s": package / 1e6})
    if options.output:
        options.output.write_text(json.dumps({"commit": katt.__commit__, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
