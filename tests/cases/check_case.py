#!/usr/bin/env python3
"""check_case.py CASE.h5 OUT.h5: does an output of `katt run` hold what the case expects?

Every dataset of the case's group `expected` is a reference in float64, with an attribute `budget`: the largest error of
a plain implementation in PyTorch that computes in the case's dtype. The largest error of an output may be

    limit = 2·budget + rounding

where rounding, at the scale s of the largest reference value, is half a step of the dtype (2^-9 s in bf16, 2^-12 s in
f16; 4e-3 for lse, which sums scores of the dtype) or four steps of f32 (2^-21 s + 2^-22). The gradients of attention in
f32 may have 4·budget: they go through lse where the plain implementation kept the probabilities. Infinities must agree
in place and sign, and nothing else may be infinite or NaN.

Prints a line for every dataset that is wrong, then a summary; exit status 1 if one was.
"""

import sys

import h5py
import numpy as np


def limit_of(name, dtype, budget, scale):
    """The largest error that the dataset `name` may have."""
    if dtype == "f32":
        factor = 4 if name in ("dq", "dk", "dv") else 2
        return factor * budget + 2.0**-21 * scale + 2.0**-22
    if name == "lse":
        return 2 * budget + 4e-3
    return 2 * budget + {"f16": 2.0**-12, "bf16": 2.0**-9}[dtype] * scale


def wrong_datasets(case, out):
    """The lines that say what is wrong with the file `out`, and the largest share of a limit that was used."""
    lines, worst = [], 0.0
    with h5py.File(case) as expected, h5py.File(out) as given:
        for name, dataset in expected["expected"].items():
            if name not in given:
                lines.append(f"{name}: missing")
                continue
            reference = dataset[()].astype(np.float64)
            values = given[name][()].astype(np.float64)
            if values.size != reference.size:
                lines.append(f"{name}: shape {values.shape}, expected {reference.shape}")
                continue
            values = values.reshape(reference.shape)
            finite = np.isfinite(reference)
            if not np.array_equal(values[~finite], reference[~finite]) or not np.isfinite(values[finite]).all():
                lines.append(f"{name}: infinities differ")
                continue
            error = np.abs(values[finite] - reference[finite]).max(initial=0.0)
            scale = np.abs(reference[finite]).max(initial=0.0)
            limit = limit_of(name, expected.attrs["dtype"], float(dataset.attrs["budget"]), scale)
            worst = max(worst, error / limit)
            if error > limit:
                lines.append(f"{name}: error {error:.3g}, limit {limit:.3g}")
    return lines, worst


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: check_case.py CASE.h5 OUT.h5")
    lines, worst = wrong_datasets(*sys.argv[1:])
    print(*lines, f"{'FAIL' if lines else 'ok'}: at most {worst:.2f} of a limit", sep="\n")
    sys.exit(1 if lines else 0)


if __name__ == "__main__":
    main()
