"""scripts/kernel_table reads listings of cuobjdump; no CUDA toolkit is needed."""

import pytest
from sass_listings import listing, load


@pytest.fixture(scope="module")
def table():
    return load("kernel_table")


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
    architecture="80",
)


LEAVES_BY_CALL = listing(
    "leaves_by_call",
    "LDG.E.128 R4, desc[UR8][R2.64]",  # 0x00
    "@P1 CALL.REL.NOINC 0x30",  # out of the loop
    "BRA 0x0",
    "@!P0 EXIT",  # 0x30
    "CALL.REL.NOINC 0x60",
    "EXIT",
    "I2F.U64.RP R12, R4",  # 0x60: the division
    "RET.REL.NODEC R6 0x0",
    architecture="80",
)


def memory_of(table, lines):
    return table.memory_of(next(table.parse_kernels(lines)).instructions)


def row(memory, **values):
    return {"kernel": "WideRows<x>", "architecture": "90a", "spills": 0, "stack": 0, "serialized": 0,
            "static_shared": 1024, "UTMALDG": 0, **memory, **values}


def test_kernels_and_their_instructions_are_found(table):
    wide, narrow = table.parse_kernels([*WIDE, *NARROW])
    assert (wide.name, wide.architecture, narrow.name, narrow.architecture) == ("wide", "90a", "narrow", "80")
    assert len(wide.instructions) == 15
    assert wide.instructions[4] == (0x40, "LDG.E.128", "R8, desc[UR8][R2.64+0x800]", "P0")


def test_widths_of_accesses(table):
    widths = {"LDG.E": 4, "LDG.E.U16.CONSTANT": 2, "LDG.E.S8": 1, "STG.E.64": 8, "STG.E.128": 16,
              "LDG.E.LTC128B.128": 16}
    assert {operation: table.width_of(operation) for operation in widths} == widths


def test_a_kernel_that_has_its_loads_on_their_way_together(table):
    memory = memory_of(table, WIDE)
    assert memory == {"LDG": "16×3 8×1 4×1", "STG": "16×1 4×1", "first_loads": 4, "together": 4,
                      "bytes_together": 56, "narrow": 0, "div64": 1, "div64_in_loops": 0}
    objections = table.kernel_rules.objections_to_memory
    assert list(objections(memory, 4)) == []
    assert list(objections(memory, 5)) == ["4 loads together, expected at least 5"]


def test_a_kernel_that_lost_all_of_it_is_told(table):
    memory = memory_of(table, NARROW)
    assert (memory["div64"], memory["div64_in_loops"]) == (1, 1)
    objections = table.kernel_rules.objections_to_memory
    assert list(objections(memory, 2)) == [
        "2 accesses of one or two bytes, expected 0: LDG 2×1, STG 1×1",
        "1 loads together, expected at least 2",
        "1 64-bit divisions in loops, expected 0"]
    assert len(list(objections(memory, 2, narrow=2))) == 2


def test_a_branch_out_of_a_loop_that_is_a_call_is_no_division(table):
    memory = memory_of(table, LEAVES_BY_CALL)
    assert (memory["div64"], memory["div64_in_loops"]) == (1, 0)


def test_bytes_in_flight_follow_the_resident_threads(table):
    gpu = dict(zip(table.GPU_FIELDS, (90, 2048, 32, 65536, 233472, 232448, 132, 3352)))
    row = {"threads": 128, "registers": 64, "static_shared": 1024, "dynamic_shared": 0,
           "bytes_together": 64}
    got, need = table.bytes_in_flight(row, gpu)
    assert got == 64 * 1024  # half of the threads, by their registers
    assert need == pytest.approx(3352e9 * table.kernel_cycles.LATENCY / 132)


def test_tuned_kernels_are_checked_where_they_are_compiled_for(table):
    rule = {"kernel": "WideRows<", "sm": "80", "loads": 4}
    narrow = row(memory_of(table, NARROW))
    objections = table.kernel_rules.objections
    assert len(list(objections({"90a": [narrow]}, [rule]))) == 3
    assert list(objections({"75": [narrow]}, [rule])) == []
    assert list(objections({"90a": []}, [rule])) == ["WideRows<…: there is no such kernel"]
    # Two architectures: each objection names its own, and one of them suffices for a kernel to be there.
    both = list(objections({"86": [narrow], "90a": []}, [rule]))
    assert both[0].startswith("sm_86: WideRows<x>: 2 accesses") and len(both) == 3
    assert list(objections({"90a": [narrow]}, [{**rule, "sm": "90a", "loads": 1, "narrow": 2}])) == [
        "WideRows<x>: 1 64-bit divisions in loops, expected 0"]


def test_spills_serialized_products_and_static_shared_memory_are_told(table):
    rule = {"kernel": "WideRows<", "sm": "90a", "static_shared": 0, "requires": ["HGMMA"]}
    bad = row({}, spills=2, stack=16, serialized=1, static_shared=1040, HGMMA=0)
    assert list(table.kernel_rules.objections({"90a": [bad]}, [rule])) == [
        "WideRows<x>: spills: 2 accesses to local memory, 16 bytes of stack, expected 0",
        "WideRows<x>: its wgmma instructions are serialized",
        "WideRows<x>: holds no HGMMA",
        "WideRows<x>: 16 bytes of static shared memory, expected 0"]
    assert list(table.kernel_rules.objections({"90a": [row({}, HGMMA=8)]}, [rule])) == []


def test_the_most_special_rule_comes_first(table):
    tuned = [{"kernel": "A<", "turns": True, "instructions": 9}, {"kernel": "A<bf16, 64", "instructions": 7}]
    rules = table.kernel_rules.rules_for("A<bf16, 64, 128>", tuned)
    assert [rule["instructions"] for rule in rules] == [7, 9]
    assert table.kernel_rules.rules_for("B<bf16>", tuned) == []


def test_presets_know_the_registers_that_were_compiled(table, tmp_path, monkeypatch):
    rules = table.kernel_rules
    monkeypatch.setattr(rules, "REGISTERS", tmp_path / "registers.hpp")
    kernel = "FlashMma<bf16, 64, 128, 64, NoRule>"
    found = {name: [{"kernel": kernel, "registers": 160 + i}] for i, name in enumerate(rules.CAPABILITIES)}
    rules.write_registers(found)
    assert rules.known_registers() == rules.registers_of(found)
    assert list(rules.objections_to_registers(found)) == []
    found["86"][0]["registers"] = 168  # within eight of 161
    assert list(rules.objections_to_registers(found)) == []
    found["86"][0]["registers"] = 169
    objection, = rules.objections_to_registers(found)
    assert objection == ("sm_86: FlashMma at head_dim 64, tile 128x64: 169 registers, registers.hpp has 161: "
                         "scripts/kernel_table --write-registers")
    del found["120"]
    with pytest.raises(SystemExit):
        rules.write_registers(found)


def test_the_tuned_kernels_have_known_keys(table):
    known = {"kernel", "sm", "requires", "instructions", "beside", "static_shared", "loads", "narrow", "loaders",
             "turns", "persistent", "fill", "streams", "predicted"}
    assert {key for rule in table.read_tuned() for key in rule} <= known


def test_the_gpus_of_the_source_are_read(table):
    assert table.GPUS["H100"]["memory_gb_s"] == 3352
    assert {gpu["capability"] for gpu in table.GPUS.values()} == {80, 86, 90, 120}
    assert "H100/H200" in table.DEVICES
