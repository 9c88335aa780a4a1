"""The columns of `/points` in schema 1, and the ones that identify a point.

docs/schema.md explains every column; the reader checks files against this module.
"""

SCHEMA = 1
BASELINE = "naive"
"""The variant that `speedup` refers to."""

OK, SKIPPED, FAILED, SUSPECT = "ok", "skipped", "failed", "suspect"
"""The values of `status`. A suspect row was measured, but nobody should believe its time (docs/measuring.md): it is shown
with its reason and counts nowhere."""
WRONG = (FAILED, SUSPECT)

STRING, INTEGER, REAL = "string", "integer", "real"
_KINDS = {STRING: "SOU", INTEGER: "iub", REAL: "f"}

REQUIRED = {
    "op": STRING, "pass": STRING, "variant": STRING, "backend": STRING, "dtype": STRING, "batch": INTEGER,
    "heads": INTEGER, "kv_heads": INTEGER, "seq_q": INTEGER, "seq_kv": INTEGER, "head_dim": INTEGER,
    "causal": INTEGER, "tile_q": INTEGER, "tile_kv": INTEGER, "threads": INTEGER, "status": STRING, "reason": STRING,
    "samples": INTEGER, "time_s": REAL, "time_lo_s": REAL, "time_hi_s": REAL, "flops": REAL, "bytes": REAL,
    "tflops": REAL, "gbytes_s": REAL, "ceiling": STRING, "ceiling_fraction": REAL, "speedup": REAL,
    "workspace_bytes": REAL, "total_bytes": REAL, "max_abs_err": REAL, "mean_abs_err": REAL, "commit": STRING,
    "run": STRING,
}  # fmt: skip
OPTIONAL = {
    "point": STRING, "label": STRING, "speedup_lo": REAL, "speedup_hi": REAL, "tile": STRING, "inner": INTEGER,
    "cold": INTEGER, "engine": STRING, "host_bytes": REAL, "device_bytes": REAL, "host_s": REAL,
    "sm_clock_hz": REAL, "claimed_s": REAL, "busbw_gbytes_s": REAL, "sent_bytes": REAL, "messages": REAL, "communication_fraction": REAL,
    "overlap_fraction": REAL, "pipeline_idle_fraction": REAL, "note": STRING, "code": STRING, "paired_to": STRING,
    "paired_ratio": REAL, "paired_ratio_lo": REAL, "paired_ratio_hi": REAL, "predicted_time_s": REAL,
    "ghz": REAL, "cycles": REAL, "instructions": REAL, "llc_misses": REAL, "joules": REAL, "throttled": REAL,
    "speedup_cycles": REAL, "speedup_cycles_lo": REAL, "speedup_cycles_hi": REAL,
}  # fmt: skip
EXCHANGE = ("busbw_gbytes_s", "sent_bytes", "messages", "communication_fraction", "overlap_fraction")
"""Exchange between ranks; NaN where nobody counted, 0 where one rank computes by itself."""
PREDICTED = "predicted_time_s"
"""The time that a model expects of a row that was not measured; NaN in a file of measurements."""
MEMORY = ("workspace_bytes", "total_bytes", "host_bytes", "device_bytes")
"""Measured peaks; NaN where nobody measured them."""

# Counts may be stored as integers or reals: both are exact below 2^53.
_COUNTS = {"flops", "bytes", *MEMORY}
_RESULTS = set(list(REQUIRED)[list(REQUIRED).index("status") :]) | {
    "point", "speedup_lo", "speedup_hi", "inner", "engine", "sm_clock_hz", "messages", "note", "code", "paired_to",
    "paired_ratio", "paired_ratio_lo", "paired_ratio_hi", "ghz", "cycles", "instructions", "llc_misses", "joules",
    "throttled", "speedup_cycles", "speedup_cycles_lo", "speedup_cycles_hi",
}  # fmt: skip
_RESULT_SUFFIXES = ("_s", "_bytes", "_err", "_fraction")
EXTENTS = ("tile_q", "tile_kv")
"""The tile that ran."""
TILES = ("tile", *EXTENTS)
"""Everything about the tile: `tile` is what was asked for, "auto" or as in "64x128"."""


def accepts(name: str, kind: str) -> bool:
    """True when a column stored with NumPy dtype kind `kind` may serve as the column `name`; an unknown one holds texts
    or numbers."""
    wanted = {**REQUIRED, **OPTIONAL}.get(name)
    return kind in _KINDS.get(wanted, "SOUiubf") or (wanted == REAL and name in _COUNTS and kind in "iu")


def default(kind: str):
    """The value of a column that a file or an operator lacks."""
    return {STRING: "", INTEGER: 0, REAL: float("nan")}[kind]


def is_identity(name: str) -> bool:
    """True when the column identifies a point (an axis) instead of holding a measurement.

    The requested tile counts: the tile that "auto" chose is a result. A column this version does
    not know is an axis unless its name ends like a measurement.
    """
    return name not in _RESULTS and name not in ("source", *EXTENTS) and not name.endswith(_RESULT_SUFFIXES)
