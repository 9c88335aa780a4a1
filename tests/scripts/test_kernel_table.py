"""scripts/kernel_table reads listings of cuobjdump; no CUDA toolkit is needed."""

import importlib.machinery
import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "kernel_table"


@pytest.fixture(scope="module")
def table():
    loader = importlib.machinery.SourceFileLoader("kernel_table", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("kernel_table", loader))
    loader.exec_module(module)
    return module


def listing(name, *instructions):
    """A kernel as cuobjdump -sass prints it: the encoding behind each line, and half of it below."""
    lines = [f"\t\tFunction : {name}", "\t.headerflags\t@\"EF_CUDA_SM90\""]
    for i, text in enumerate(instructions):
        lines.append(f"        /*{16 * i:04x}*/                   {text} ;"
                     "      /* 0x0000000802100981 */")
        lines.append(" " * 60 + "/* 0x000ea2000c1e9900 */")
    return lines


WIDE = listing(
    "wide",
    "LDC R1, c[0x0][0x28]",
    "CALL.REL.NOINC 0xd0",  # once a block
    "BAR.SYNC.DEFER_BLOCKING 0x0",
    "LDG.E.128 R4, desc[UR8][R2.64]",  # 0x30
    "@P0 LDG.E.128 R8, desc[UR8][R2.64+0x800]",
    "@!P1 LDG.E.128.CONSTANT R12, desc[UR8][R2.64+0x1000]",
    "LDG.E.64 R16, desc[UR8][R2.64+0x1800]",
    "FADD R4, R4, R5",
    "STG.E.128 desc[UR8][R18.64], R4",
    "LDG.E R20, desc[UR8][R2.64]",
    "STG.E desc[UR8][R18.64], R20",
    "@P2 BRA 0x30",
    "EXIT",
    "I2F.U64.RP R5, R10",  # 0xd0
    "RET.REL.NODEC R4 0x0",
)
NARROW = listing(
    "narrow",
    "LDG.E.U16 R4, desc[UR8][R2.64]",  # 0x00
    "CALL.REL.NOINC 0x60",
    "CALL.REL.NOINC 0x80",
    "STG.E.U8 desc[UR8][R6.64], R4",
    "@P0 BRA 0x0",
    "BRA 0x50",  # a kernel ends so
    "I2F.U64.RP R12, R4",  # 0x60: the division
    "RET.REL.NODEC R6 0x0",
    "MUFU.RCP R12, R4",  # 0x80: a reciprocal of f32
    "RET.REL.NODEC R6 0x0",
)


def test_kernels_and_their_instructions_are_found(table):
    kernels = dict(table.parse_kernels([*WIDE, *NARROW]))
    assert list(kernels) == ["wide", "narrow"]
    assert len(kernels["wide"]) == 15
    assert kernels["wide"][4] == (0x40, "LDG.E.128", "R8, desc[UR8][R2.64+0x800]")


def test_widths_of_accesses(table):
    widths = {"LDG.E": 4, "LDG.E.U16.CONSTANT": 2, "LDG.E.S8": 1, "STG.E.64": 8, "STG.E.128": 16,
              "LDG.E.LTC128B.128": 16}
    assert {operation: table.width_of(operation) for operation in widths} == widths


def test_a_kernel_that_has_its_loads_on_their_way_together(table):
    memory = table.memory_of(dict(table.parse_kernels(WIDE))["wide"])
    assert memory == {"LDG": "16×3 8×1 4×1", "STG": "16×1 4×1", "first_loads": 4, "together": 4,
                      "bytes_together": 56, "narrow": 0, "div64": 1, "div64_in_loops": 0}
    assert list(table.objections_to_memory({"kernel": "wide", **memory}, 4)) == []
    assert list(table.objections_to_memory({"kernel": "wide", **memory}, 5)) == [
        "wide: 4 loads together, expected at least 5"]


def test_a_kernel_that_lost_all_of_it_is_told(table):
    memory = table.memory_of(dict(table.parse_kernels(NARROW))["narrow"])
    assert (memory["div64"], memory["div64_in_loops"]) == (1, 1)
    assert list(table.objections_to_memory({"kernel": "narrow", **memory}, 2)) == [
        "narrow: 2 accesses of one or two bytes, expected 0: LDG 2×1, STG 1×1",
        "narrow: 1 loads together, expected at least 2",
        "narrow: 1 64-bit divisions in loops, expected 0"]
    assert len(list(table.objections_to_memory({"kernel": "narrow", **memory}, 2, narrow=2))) == 2


def test_bytes_in_flight_follow_the_resident_threads(table):
    gpu = dict(zip(table.GPU_FIELDS, (90, 2048, 32, 65536, 233472, 232448, 132, 3352)))
    row = {"threads": 128, "registers": 64, "static_shared": 1024, "dynamic_shared": 0,
           "bytes_together": 64}
    got, need = table.bytes_in_flight(row, gpu)
    assert got == 64 * 1024  # half of the threads, by their registers
    assert need == pytest.approx(3352e9 * table.LATENCY / 132)


def test_tuned_kernels_are_checked_where_they_are_compiled_for(table):
    rule = {"kernel": "WideRows<", "sm": "80", "loads": 4}
    memory = table.memory_of(dict(table.parse_kernels(NARROW))["narrow"])
    row = {"kernel": "WideRows<x>", "spills": 0, "stack": 0, "serialized": 0, **memory}
    assert len(list(table.objections([row], "90a", [rule]))) == 3
    assert list(table.objections([row], "75", [rule])) == []
    assert list(table.objections([], "90a", [rule])) == ["WideRows<…: there is no such kernel"]


def test_the_gpus_of_the_source_are_read(table):
    assert table.GPUS["H100"]["memory_gb_s"] == 3352
    assert {gpu["capability"] for gpu in table.GPUS.values()} == {80, 86, 90, 120}
    assert "H100/H200" in table.DEVICES
