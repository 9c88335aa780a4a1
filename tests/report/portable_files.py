"""Files of several machines, made up with exact times: every round of a variant takes its time, times a drift that all
variants of the round share, so that paired ratios are known."""

import json

import numpy as np
import synthetic

MACHINES = {
    "zen4-avx512bf16-2c": {"device": "AMD EPYC", "isa": "avx512f avx512_bf16", "cpu_id": "AuthenticAMD 25 17"},
    "emeraldrapids-amx-2c": {"device": "Intel Xeon", "isa": "avx512f amx_bf16", "cpu_id": "GenuineIntel 6 207"},
    "zen2-avx2-2c": {"device": "AMD Ryzen", "isa": "avx2", "cpu_id": "AuthenticAMD 23 49"},
}
ORDER = np.linspace(-1, 1, 15)[[7, 2, 12, 0, 9, 5, 14, 3, 10, 6, 1, 13, 4, 11, 8]]
DRIFT = 1.0 + 0.3 * np.sin(np.arange(15))


def file(machine: str, cases, peers=("torch",), noise: float = 0.0, **about) -> synthetic.File:
    """`cases` are (axes, times): `times` maps a variant to (seconds, share of the ceiling), or to the status of a row
    without a measurement. `noise` is the width of all intervals, relative."""
    made = synthetic.File(
        runs={"run-0001": synthetic.run_attributes(
            peers=json.dumps(dict.fromkeys(peers, "a library")), **MACHINES[machine], **about)},
        ceilings={"run-0001": list(synthetic.CEILINGS)},
    )  # fmt: skip
    for axes, times in cases:
        for place, (variant, reached) in enumerate(times.items()):
            line = synthetic.row(**{"dtype": "f32", "seq_q": 512, "seq_kv": 512, **axes}, variant=variant,
                                 point=f"p{len(made.rows):04d}", tile="auto")  # fmt: skip
            if isinstance(reached, str):
                line |= {"status": reached, "reason": "not here"}
            else:
                seconds, share = reached
                samples = seconds * DRIFT * (1.0 + noise * np.roll(ORDER, 4 * place))
                base = times["naive"][0] / seconds if "naive" in times else np.nan
                made.samples["run-0001", line["point"]] = samples
                line |= {"time_s": seconds, "time_lo_s": seconds / (1 + noise), "time_hi_s": seconds * (1 + noise),
                         "samples": DRIFT.size, "ceiling": "fma_f32", "ceiling_fraction": share, "speedup": base,
                         "speedup_lo": base / (1 + noise), "speedup_hi": base * (1 + noise)}  # fmt: skip
            made.rows.append(line)
    return made
