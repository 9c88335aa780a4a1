"""The module katt._katt of a wheel that holds one for each of several levels of a CPU (scripts/wheel): becomes the one of
the best level that this CPU can run, or of the level that KATT_LEVEL names."""

import importlib.util
import os
import sys
from pathlib import Path


def folder_of_level(levels: Path, cpu: Path = Path("/proc/cpuinfo")) -> Path:
    """`levels` has a line for each level, the best first: its name, and the words of /proc/cpuinfo that it needs."""
    lines = [line.split() for line in levels.read_text().splitlines()]
    names = ", ".join(level for level, *_ in lines)
    if named := os.environ.get("KATT_LEVEL"):
        if named not in names.split(", "):
            raise ImportError(f"KATT_LEVEL is {named}, expected {names}")
        return levels.parent / named
    has = set(cpu.read_text().partition("\n\n")[0].split())
    for level, *needs in lines:
        if has.issuperset(needs):
            return levels.parent / level
    lacks = next(word for word in lines[-1] if word not in has | {lines[-1][0]})
    raise ImportError(
        f"katt: this CPU has no {lacks}, which the last of this package's levels needs ({names}); build Katt on this machine"
    )


def become(folder: Path) -> None:
    """Puts the module in `folder` in this one's place."""
    spec = importlib.util.spec_from_file_location(__name__, next(folder.glob("_katt.*so")))
    module = importlib.util.module_from_spec(spec)
    sys.modules[__name__] = module
    spec.loader.exec_module(module)


if __name__ == "katt._katt":
    become(folder_of_level(Path(__file__).parent / "lib" / "katt" / "levels"))
