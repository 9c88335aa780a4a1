"""Rules for the tuned kernels of scripts/tuned_kernels.toml, and the registers that the presets of tiles know. Imported
by scripts/kernel_table."""

import re

import sass

REGISTERS = sass.HERE.parent / "src" / "ops" / "attention" / "tensor_cores" / "registers.hpp"
RESERVED_SHARED = 1024  # of every block on sm_90; cuobjdump counts it


def compiled_for(architecture, wanted):
    if wanted.endswith("a"):
        return architecture == wanted
    return int(re.sub(r"\D", "", architecture) or 0) >= int(wanted)


def rules_for(kernel, tuned):
    """The rules that name a kernel, the most special first."""
    rules = [rule for rule in tuned if kernel.startswith(rule["kernel"])]
    return sorted(rules, key=lambda rule: -len(rule["kernel"]))


def objections(found, tuned):
    """Violations of the rules by the kernels of a program (found: architecture -> rows), a line each."""
    for rule in tuned:
        architectures = [name for name in found if compiled_for(name, rule["sm"])]
        rows = [(name, row) for name in architectures for row in found[name]
                if row["kernel"].startswith(rule["kernel"])]
        if architectures and not rows:
            yield f"{rule['kernel']}…: there is no such kernel"
        for architecture, row in rows:
            where = row["kernel"] if len(found) == 1 else f"sm_{architecture}: {row['kernel']}"
            for objection in objections_to(row, rule):
                yield f"{where}: {objection}"
    yield from objections_to_registers(found)


def objections_to(row, rule):
    if row["spills"] > 0 or row["stack"] > 0:
        yield f"spills: {row['spills']} accesses to local memory, {row['stack']} bytes of stack, expected 0"
    if row["serialized"] > 0:
        yield "its wgmma instructions are serialized"
    for instruction in rule.get("requires", ()):
        if row[instruction] == 0:
            yield f"holds no {instruction}"
    if "static_shared" in rule and row["static_shared"] - RESERVED_SHARED > rule["static_shared"]:
        yield (f"{row['static_shared'] - RESERVED_SHARED} bytes of static shared memory, expected "
               f"{rule['static_shared']}")
    if row["UTMALDG"] > 0 and copies_beside_tma(row["instructions"]):
        yield "LDGSTS in a loop with UTMALDG"
    if "loads" in rule:
        yield from objections_to_memory(row, rule["loads"], rule.get("narrow", 0))
    yield from objections_to_loop(row, rule)


def objections_to_memory(row, loads, narrow=0):
    if row["narrow"] > narrow:
        yield (f"{row['narrow']} accesses of one or two bytes, expected {narrow}: "
               f"LDG {row['LDG']}, STG {row['STG']}")
    if row["together"] < loads:
        yield f"{row['together']} loads together, expected at least {loads}"
    if row["div64_in_loops"] > 0:
        yield f"{row['div64_in_loops']} 64-bit divisions in loops, expected 0"


def objections_to_loop(row, rule):
    """Objections to kernels with cycles: where the wait for products stands, and instructions of an iteration."""
    if row.get("cycles") is None:
        return
    loop = row["cycles"].loop
    if loop.beside_products < rule.get("beside", 0):
        yield (f"{100 * loop.beside_products:.0f} % of MUFU before the wait for products under way, expected at least "
               f"{100 * rule['beside']:.0f} %")
    if loop.instructions > rule.get("instructions", loop.instructions):
        yield f"{loop.instructions} instructions an iteration, expected at most {rule['instructions']}"


def copies_beside_tma(instructions):
    """Whether an innermost loop holds both LDGSTS and UTMALDG."""
    flow = sass.ControlFlow(instructions)
    loops = flow.loops()
    for body in loops.values():
        if not any(other < body for other in loops.values()):
            opcodes = {each.opcode for block in body for each in flow.blocks[block]}
            if {"LDGSTS", "UTMALDG"} <= opcodes:
                return True
    return False


CAPABILITIES = ("80", "86", "90a", "120")
HEADER = """#pragma once

// Written by scripts/kernel_table --write-registers from the target tuned_kernels: do not edit.

#include <array>
#include <string_view>

namespace katt::attention::impl {{

/// Registers of a thread of a kernel on mma.sync, as ptxas assigns them.
struct CompiledRegisters {{
  std::string_view kernel;
  int head_dim;
  int tile_q;
  int tile_kv;
  std::array<int, {count}> registers;  ///< by register_capabilities
}};

inline constexpr std::array register_capabilities{{{capabilities}}};

inline constexpr std::array compiled_registers{{
{rows}
}};

}}  // namespace katt::attention::impl
"""


def registers_of(found):
    """(kernel, head_dim, tile_q, tile_kv) -> architecture -> registers, of the kernels on mma.sync."""
    table = {}
    for architecture, rows in found.items():
        for row in rows:
            if match := re.match(r"(FlashMma\w*)<bf16, (\d+), (\d+), (\d+), NoRule>", row["kernel"]):
                key = (match[1], *map(int, match.groups()[1:]))
                table.setdefault(key, {})[architecture] = row["registers"]
    return table


def write_registers(found):
    table = registers_of(found)
    if not table or any(set(row) != set(CAPABILITIES) for row in table.values()):
        sass.die(f"--write-registers needs every kernel of flash_mma for sm_{', sm_'.join(CAPABILITIES)}: "
                 "the target tuned_kernels")
    lines = [f'    CompiledRegisters{{"{key[0]}", {key[1]}, {key[2]}, {key[3]}, '
             f'{{{", ".join(str(row[name]) for name in CAPABILITIES)}}}}},' for key, row in sorted(table.items())]
    numbers = [re.sub(r"\D", "", name) for name in CAPABILITIES]
    REGISTERS.write_text(HEADER.format(count=len(numbers), capabilities=", ".join(numbers), rows="\n".join(lines)))


def known_registers():
    """As registers_of, from the header."""
    text, table = REGISTERS.read_text(), {}
    for kernel, extents, registers in re.findall(r'CompiledRegisters{"(\w+)", ([\d, ]+), {([\d, ]+)}}', text):
        values = map(int, registers.split(", "))
        table[(kernel, *map(int, extents.split(", ")))] = dict(zip(CAPABILITIES, values))
    return table


def objections_to_registers(found):
    """Registers are given by eight: a difference within them changes no occupancy."""
    known = known_registers()
    for key, row in registers_of(found).items():
        for architecture, registers in row.items():
            expected = known.get(key, {}).get(architecture)
            if architecture in CAPABILITIES and (expected is None or -(-expected // 8) != -(-registers // 8)):
                yield (f"sm_{architecture}: {key[0]} at head_dim {key[1]}, tile {key[2]}x{key[3]}: {registers} "
                       f"registers, {REGISTERS.name} has {expected or 'none'}: scripts/kernel_table --write-registers")
