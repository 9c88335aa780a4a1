"""The commands of `katt-report`: a module each, whose `run(arguments)` returns the exit status.

A command imports what it needs inside `run`: --help and a wrong option should not wait for Matplotlib.
"""

NAMES = (
    "baselines",
    "calibration",
    "compare",
    "export",
    "fresh",
    "history",
    "index",
    "portability",
    "predicted",
    "readme",
)
