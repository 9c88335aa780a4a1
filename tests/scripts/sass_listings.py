"""Kernels as cuobjdump -sass prints them, for tests of scripts/kernel_table: no CUDA toolkit is needed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from gpu_stages import load_script as load  # noqa: E402, F401


def listing(name, *instructions, architecture="90a"):
    """The encoding stands behind each line, and half of it below."""
    lines = [f"\tcode for sm_{architecture}", f"\t\tFunction : {name}", "\t.headerflags\t@\"EF_CUDA_SM90\""]
    for i, text in enumerate(instructions):
        lines.append(f"        /*{16 * i:04x}*/                   {text} ;"
                     "      /* 0x0000000802100981 */")
        lines.append(" " * 60 + "/* 0x000ea2000c1e9900 */")
    return lines


def assemble(*lines):
    """Instructions with their labels, "name:", replaced by addresses: "@P0 BRA name"."""
    addresses, instructions = {}, []
    for line in lines:
        if line.endswith(":"):
            addresses[line[:-1]] = 16 * len(instructions)
        else:
            instructions.append(line)
    return [" ".join(f"0x{addresses[word]:x}" if word in addresses else word for word in line.split(" "))
            for line in instructions]
