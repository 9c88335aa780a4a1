"""Repeats one short sweep and judges its intervals by the repeats. See README.md.

The file holds a run for each repeat; the program continues in it, so the repeats may spread over hours.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import h5py
from katt_report.published.machine import machine_name
from katt_report.published.readme import is_experiment

ROOT = Path(__file__).resolve().parents[2]
KATT = os.environ.get("KATT", str(ROOT / "build" / "openmp" / "katt"))
REPORT = [sys.executable, "-m", "katt_report"]
FEWEST = 3  # repeats for a report


def runs_in(path):
    """Number of repeats that the file holds."""
    if not path.exists():
        return 0
    with h5py.File(path) as file:
        return len(file["runs"])


def run(*command, quiet=False):
    """Runs a program; `quiet`: its stderr counts only when it fails. Ends this one with its status when it fails."""
    stderr = subprocess.PIPE if quiet else None
    done = subprocess.run(list(map(str, command)), check=False, stdout=subprocess.DEVNULL, stderr=stderr)
    if done.returncode:
        sys.stderr.buffer.write(done.stderr or b"")
        raise SystemExit(done.returncode if done.returncode > 0 else 1)


def repeat(sweep, file):
    """Measures the sweep once more and adds it to the file, which is whole at every instant."""
    once, merged = file.with_name(".repeat.h5"), file.with_name(".merged.h5")
    try:
        run(KATT, "sweep", sweep, "-o", once, "--overwrite")
        if file.exists():
            run(KATT, "merge", file, once, "-o", merged, "--overwrite", quiet=True)
            merged.replace(file)
        else:
            once.replace(file)
    finally:
        once.unlink(missing_ok=True)
        merged.unlink(missing_ok=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=20, help="repeats in the file when all is done (20)")
    parser.add_argument("--minutes", type=float, help="end before these are over; a later call continues")
    parser.add_argument("--pause-s", type=float, default=20, help="seconds between two repeats (20)")
    parser.add_argument("--sweep", type=Path, default=ROOT / "experiments" / "regression" / "sweep.toml")
    parser.add_argument("-o", "--output", type=Path, help="folder (results/MACHINE/calibration)")
    options = parser.parse_args()
    folder = options.output
    if folder is None:
        info = subprocess.run([KATT, "info", "--json"], check=True, capture_output=True, text=True).stdout
        folder = ROOT / "results" / machine_name(json.loads(info)["machine"]) / "calibration"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "calibration.h5"
    began, longest = time.monotonic(), 0.0
    while (held := runs_in(file)) < options.repeats:
        start = time.monotonic()
        if options.minutes and longest and start - began + longest > 60 * options.minutes:
            break
        print(f"repeat {held + 1} of {options.repeats}", file=sys.stderr)
        repeat(options.sweep, file)
        longest = max(longest, time.monotonic() - start + options.pause_s)
        if held + 1 < options.repeats:
            time.sleep(options.pause_s)
    if held >= FEWEST:
        run(*REPORT, "calibration", file, "-o", folder, "--overwrite")
        if is_experiment(folder.absolute()):
            run(*REPORT, "readme", folder)
    left = options.repeats - held
    print(f"{file}: {held} repeats" + (f", {left} to come: the same command continues" if left > 0 else ""))


if __name__ == "__main__":
    main()
