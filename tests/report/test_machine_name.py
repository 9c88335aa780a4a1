"""Names of kinds of machine: from the CPU's family and model, or, for older files, from what they hold."""

import pytest
from katt_report.published.machine import machine_name

ZEN4 = "fma avx2 avx512f avx512bw avx512_bf16 avx512_vnni"
AMX = "fma avx2 avx512f avx512_bf16 avx512_fp16 amx_bf16 amx_tile amx_int8"
FP16 = "fma avx2 avx512f avx512_bf16 avx512_fp16"
XEON = "Intel(R) Xeon(R) Processor"


@pytest.mark.parametrize(("cpu_id", "isa", "cores", "name"), [
    ("AuthenticAMD 25 17", ZEN4, 2, "zen4-avx512bf16-2c"),
    ("AuthenticAMD 25 17", "fma sse4a avx2", 2, "zen4-avx2-2c"),
    ("AuthenticAMD 26 2", ZEN4, 64, "zen5-avx512bf16-64c"),
    ("AuthenticAMD 25 1", "fma avx2", 8, "zen3-avx2-8c"),
    ("AuthenticAMD 30 1", "fma avx2", 8, "amd-30-1-avx2-8c"),
    ("GenuineIntel 6 207", AMX, 2, "emeraldrapids-amx-2c"),
    ("GenuineIntel 6 207", FP16, 2, "emeraldrapids-avx512fp16-2c"),
    ("GenuineIntel 6 173", AMX + " amx_fp16", 2, "graniterapids-amx-2c"),
    ("0x41 8 0xd40", "fphp asimd sve", 4, "neoverse-v1-sve-4c"),
    ("0x41 8 0xd08", "asimd", 4, "cortex-a72-neon-4c"),
    ("0xc0 8 0xac3", "fphp asimd", 80, "ampere1-neon-80c"),
    ("0x61 8 0x022", "asimd", 8, "0x61-8-0x022-neon-8c"),
])
def test_family_and_model_name_the_generation(cpu_id, isa, cores, name):
    run = {"device": "any", "backend": "openmp", "cpu_id": cpu_id, "isa": isa, "cores": cores}
    info = {"cpu": "any", "cpu_id": cpu_id, "isa": isa.split(), "cores": cores}
    assert machine_name(run) == machine_name(info) == name


@pytest.mark.parametrize(("device", "isa", "l3_mib", "name"), [
    ("AMD EPYC", ZEN4, 32, "zen4-avx512bf16-2c"),
    ("AMD EPYC", ZEN4 + " avx512_vp2intersect", 32, "zen5-avx512bf16-2c"),
    ("AMD EPYC", "fma avx2", 32, "amd-avx2-2c"),
    (XEON, AMX, 300, "emeraldrapids-amx-2c"),
    (XEON, FP16, 260, "emeraldrapids-avx512fp16-2c"),
    (XEON, AMX, 105, "sapphirerapids-amx-2c"),
    (XEON, AMX + " amx_fp16", 480, "graniterapids-amx-2c"),
    (XEON, AMX, 480, "graniterapids-amx-2c"),
])
def test_files_without_family_and_model(device, isa, l3_mib, name):
    run = {"device": device, "backend": "openmp", "isa": isa, "cores": 2, "l3_bytes": l3_mib << 20}
    info = {"cpu": device, "isa": isa.split(), "cores": 2, "caches": [{"bytes": 32768}, {"bytes": l3_mib << 20}]}
    assert machine_name(run) == machine_name(info) == name


def test_a_virtual_machine_with_an_older_model_has_its_generation_guessed():
    run = {"device": XEON, "backend": "openmp", "cpu_id": "GenuineIntel 6 167", "isa": AMX, "cores": 2}
    assert machine_name(run | {"l3_bytes": 300 << 20}) == "emeraldrapids-amx-2c"
    assert machine_name(run | {"isa": "fma avx2 avx512f", "l3_bytes": 16 << 20}) == "rocketlake-avx512-2c"


@pytest.mark.parametrize(("device", "name"), [
    ("NVIDIA H100 80GB HBM3", "h100"),
    ("NVIDIA H100 PCIe", "h100-pcie"),
    ("AMD EPYC, NVIDIA H200", "h200"),
    ("NVIDIA A100-SXM4-80GB", "a100"),
    ("NVIDIA GeForce RTX 4090", "rtx-4090"),
])
def test_a_gpu_has_its_own_name(device, name):
    assert machine_name({"backend": "openmp,cuda", "device": device, "isa": ZEN4, "cores": 16}) == name
