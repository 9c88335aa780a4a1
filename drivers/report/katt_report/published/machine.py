"""The name of a kind of machine: what makes its numbers differ from another's, and nothing else.

`python -m katt_report.published.machine` reads `katt info --json` from stdin and prints the name.
"""

import json
import re
import sys
from collections.abc import Mapping

# Family and models (first, last) of /proc/cpuinfo as Linux names them: arch/x86/kernel/cpu/amd.c, asm/intel-family.h; for
# ARM implementer and parts, asm/cputype.h.
_AMD = (
    (23, 0, 47, "zen1"), (23, 48, 79, "zen2"), (23, 80, 95, "zen1"), (23, 96, 255, "zen2"),
    (25, 0, 15, "zen3"), (25, 16, 31, "zen4"), (25, 32, 95, "zen3"), (25, 96, 175, "zen4"),
    (26, 0, 79, "zen5"), (26, 80, 95, "zen6"), (26, 96, 127, "zen5"), (26, 128, 207, "zen6"),
)  # fmt: skip
_INTEL = {
    "haswell": (60, 63, 69, 70), "broadwell": (61, 71, 79, 86), "skylake": (78, 85, 94), "kabylake": (142, 158),
    "cometlake": (165, 166), "icelake": (106, 108, 125, 126), "tigerlake": (140, 141), "rocketlake": (167,),
    "alderlake": (151, 154), "raptorlake": (183, 186, 191), "meteorlake": (170, 172), "lunarlake": (189,),
    "arrowlake": (181, 197, 198), "sapphirerapids": (143,), "emeraldrapids": (207,), "graniterapids": (173, 174),
    "sierraforest": (175,),
}  # fmt: skip
_WITH_FP16 = ("sapphirerapids", "emeraldrapids", "graniterapids")
"""The generations of `_INTEL` that have AVX512-FP16. A virtual machine may show the model of an older one."""
_ARM = {
    "0x41": {
        "0xd03": "cortex-a53", "0xd08": "cortex-a72", "0xd0b": "cortex-a76", "0xd41": "cortex-a78",
        "0xd0c": "neoverse-n1", "0xd40": "neoverse-v1", "0xd49": "neoverse-n2", "0xd4f": "neoverse-v2",
        "0xd84": "neoverse-v3", "0xd8e": "neoverse-n3",
    },
    "0x46": {"0x001": "a64fx"},
    "0xc0": {"0xac3": "ampere1", "0xac4": "ampere1a"},
}  # fmt: skip

_UNITS = (("amx", "amx_bf16"), ("avx512fp16", "avx512_fp16"), ("avx512bf16", "avx512_bf16"), ("avx512", "avx512f"),
          ("avx2", "avx2"), ("sve", "sve"), ("neon", "asimd"))  # fmt: skip
"""Units, the best first, each with the flag of /proc/cpuinfo that tells it."""


def machine_name(attributes: Mapping) -> str:
    """GENERATION-UNIT-CORESc, such as zen4-avx512bf16-2c, of a host; of a GPU its short name, such as h100.

    `attributes` are those of a run of a sweep's file, or the part `machine` of `katt info --json`, which the files of
    model runs hold, too. Files older than `cpu_id`, and virtual machines whose model lacks an instruction set that they
    have, have their generation guessed from the instruction sets.
    """
    if "cuda" in _text(attributes.get("backend", "")).split(","):
        return _gpu(_text(attributes.get("device", "")))
    cpu = _text(attributes.get("cpu", attributes.get("device", "")))
    isa = attributes.get("isa", "")
    flags = set(_text(isa).split()) if isinstance(isa, str | bytes) else set(isa)
    unit = next((unit for unit, flag in _UNITS if flag in flags), "portable")
    generation = _generation(_text(attributes.get("cpu_id", "")).split())
    if not generation or (generation in _INTEL and "avx512_fp16" in flags and generation not in _WITH_FP16):
        generation = _guess(cpu, flags, attributes)
    return f"{generation}-{unit}-{int(attributes.get('cores', 1))}c"


def fault(attributes: Mapping) -> tuple[str, str] | None:
    """The first attribute of a foreign file that `machine_name` cannot read, and what was expected; None without one."""
    for name in ("cores", "l3_bytes"):
        if not _is_count(attributes.get(name, 0)):
            return f"{name} = {attributes[name]!r}", "a whole number"
    isa = attributes.get("isa", "")
    if not isinstance(isa, str | bytes) and not (isinstance(isa, list) and all(isinstance(flag, str) for flag in isa)):
        return f"isa = {isa!r}", "instruction sets by name"
    vendor, *numbers = _text(attributes.get("cpu_id", "")).split() or [""]
    if vendor in ("AuthenticAMD", "GenuineIntel") and not all(number.isdecimal() for number in numbers):
        return f"cpu_id = {attributes['cpu_id']!r}", "vendor, family and model as numbers"
    caches = attributes.get("caches") or []
    if not isinstance(caches, list) or not all(isinstance(c, Mapping) and _is_count(c.get("bytes")) for c in caches):
        return f"caches = {caches!r}", "a list with the bytes of each"
    return None


def _is_count(value) -> bool:
    return isinstance(value, int | float) and 0 <= value < 1e18


def _generation(cpu_id: list[str]) -> str:
    """Generation by vendor, family, model; "" where there is none, vendor-family-model of one that the tables lack."""
    if len(cpu_id) != 3:
        return ""
    vendor, family, model = cpu_id
    if vendor == "AuthenticAMD":
        for a_family, first, last, name in _AMD:
            if family == str(a_family) and first <= int(model) <= last:
                return name
    elif vendor == "GenuineIntel":
        for name, models in _INTEL.items():
            if family == "6" and int(model) in models:
                return name
    elif model in _ARM.get(vendor, {}):
        return _ARM[vendor][model]
    known = {"AuthenticAMD": "amd", "GenuineIntel": "intel", "0x41": "arm"}
    return _slug("-".join([known.get(vendor, vendor), family, model]))


def _guess(cpu: str, flags: set[str], attributes: Mapping) -> str:
    """Where `cpu_id` tells nothing, from instruction sets and, between two generations of Intel, the last cache."""
    if cpu.startswith("AMD"):
        if "avx512f" in flags:
            return "zen5" if "avx512_vp2intersect" in flags else "zen4"
        return "amd"
    if cpu.startswith("Intel"):
        if "amx_fp16" in flags:
            return "graniterapids"
        if "avx512_fp16" in flags:  # at most 112.5, 320 and 504 MiB of last cache
            cache = _last_cache(attributes) >> 20
            return "graniterapids" if cache > 320 else "emeraldrapids" if cache > 120 else "sapphirerapids"
        return "intel"
    return _slug(cpu)


def _last_cache(attributes: Mapping) -> int:
    caches = attributes.get("caches") or [{"bytes": attributes.get("l3_bytes", 0)}]
    return int(caches[-1]["bytes"])


def _gpu(device: str) -> str:
    """The model alone: without vendor, kind of memory and socket, "NVIDIA H100 80GB HBM3" is h100."""
    device = device.split(", ")[-1]  # a run on host and device names both, the host first
    return _slug(re.sub(r"\b(NVIDIA|Tesla|GeForce|SXM\d*|HBM\w*|\d+ ?GB)\b", "", device)) or "gpu"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _text(value) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


if __name__ == "__main__":
    print(machine_name(json.load(sys.stdin)["machine"]))
