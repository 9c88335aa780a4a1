"""Packages with programs for several levels of a CPU: the level is chosen by what the CPU has, by the script katt and by the
module katt._katt alike."""

import importlib.util
import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="levels of x86-64")

ROOT = Path(__file__).resolve().parents[2]
CPU = "processor\t: 0\nvendor_id\t: AuthenticAMD\nflags\t\t: fpu avx2 fma\n\nprocessor\t: 1\nflags\t\t: avx9\n"
KOKKOS = {"HSW": "core-avx2", "SKX": "skylake-avx512", "SPR": "sapphirerapids"}
WORDS = {  # instruction sets that a compiler takes by itself: its macro, and the word of /proc/cpuinfo
    "__AVX2__": "avx2", "__FMA__": "fma", "__F16C__": "f16c", "__BMI__": "bmi1", "__BMI2__": "bmi2", "__LZCNT__": "abm",
    "__MOVBE__": "movbe", "__AVX512F__": "avx512f", "__AVX512CD__": "avx512cd", "__AVX512BW__": "avx512bw",
    "__AVX512DQ__": "avx512dq", "__AVX512VL__": "avx512vl", "__AVX512IFMA__": "avx512ifma",
    "__AVX512VBMI__": "avx512vbmi", "__AVX512VBMI2__": "avx512_vbmi2", "__AVX512VNNI__": "avx512_vnni",
    "__AVX512BITALG__": "avx512_bitalg", "__AVX512VPOPCNTDQ__": "avx512_vpopcntdq", "__AVX512BF16__": "avx512_bf16",
    "__AVX512FP16__": "avx512_fp16", "__AVXVNNI__": "avx_vnni", "__GFNI__": "gfni",
}  # fmt: skip


def cmake_levels(folder):
    """{level: (compiler options, words that it needs)}, the best first."""
    script = f"cmake_minimum_required(VERSION 3.25)\ninclude({ROOT}/cmake/levels.cmake)\n" + "".join(
        f'message("${{{kind}_{level}}}")\n' for level in levels() for kind in ("katt_kokkos_cpu", "katt_options", "katt_needs")
    )
    (folder / "levels.cmake").write_text(script)
    done = subprocess.run(["cmake", "-P", folder / "levels.cmake"], capture_output=True, text=True, check=True)
    lines = iter(done.stderr.splitlines())
    made = {}
    for level in levels():
        kokkos, options, needs = next(lines), next(lines), next(lines)
        made[level] = (options.split(";") if options else [f"-march={KOKKOS[kokkos]}"], set(needs.split(";")))
    return made


def levels():
    line = next(line for line in (ROOT / "cmake/levels.cmake").read_text().splitlines() if line.startswith("set(katt_levels"))
    return line.removesuffix(")").split()[1:]


def test_a_level_needs_every_instruction_set_that_its_programs_are_compiled_with(tmp_path):
    for level, (options, needs) in cmake_levels(tmp_path).items():
        macros = subprocess.run(
            ["c++", *options, "-dM", "-E", "-x", "c++", "/dev/null"], capture_output=True, text=True, check=True
        ).stdout
        used = {word for macro, word in WORDS.items() if f"#define {macro} " in macros}
        assert used - needs == set(), level
        assert "avx2" in used, level


@pytest.fixture
def package(tmp_path):
    """bin/katt and programs that tell their level, arguments and input."""
    (tmp_path / "bin").mkdir()
    shutil.copy(ROOT / "drivers/package/katt", tmp_path / "bin/katt")
    for level in ("best", "good", "least"):
        folder = tmp_path / "lib/katt" / level
        folder.mkdir(parents=True)
        (folder / "katt").write_text(f'#!/bin/sh\nprintf "%s|" {level} "$@"; cat; exit 7\n')
        (folder / "katt").chmod(0o755)
    (tmp_path / "lib/katt/levels").write_text("best fpu avx9\ngood fpu\nleast fpu\n")
    return tmp_path


def start(program, *arguments, **environment):
    return subprocess.run(
        [program, *arguments], input="typed", capture_output=True, text=True, env={**os.environ, "KATT_LEVEL": "", **environment}
    )


def test_the_script_starts_the_best_level_that_this_cpu_has(package):
    done = start(package / "bin/katt", "sweep", "a b", "")
    assert (done.stdout, done.stderr, done.returncode) == ("good|sweep|a b||typed", "", 7)
    link = package / "katt"
    link.symlink_to("bin/katt")
    assert start(link).stdout == "good|typed"


def test_a_level_can_be_named(package):
    assert start(package / "bin/katt", KATT_LEVEL="best").stdout == "best|typed"
    done = start(package / "bin/katt", KATT_LEVEL="odd")
    assert (done.stderr, done.returncode) == ("katt: KATT_LEVEL is odd, expected best, good, least\n", 2)


def test_the_script_says_what_the_cpu_lacks(package):
    (package / "lib/katt/levels").write_text("best avx9 fpu\nleast fpu avx8\n")
    done = start(package / "bin/katt")
    line = "katt: this CPU has no avx8, which the last of this package's levels needs (best, least); build Katt on this machine\n"
    assert (done.stdout, done.stderr, done.returncode) == ("", line, 2)


def test_the_module_takes_the_same_level(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("katt_levels", ROOT / "python/levels/_katt.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    cpu, file = tmp_path / "cpuinfo", tmp_path / "levels"
    cpu.write_text(CPU)

    def chosen(text):
        file.write_text(text)
        return module.folder_of_level(file, cpu)

    monkeypatch.delenv("KATT_LEVEL", raising=False)
    assert chosen("best avx2 avx9\ngood AuthenticAMD fma\nleast avx2\n") == tmp_path / "good"
    assert chosen("best GenuineIntel\nleast avx2\n") == tmp_path / "least"
    with pytest.raises(ImportError, match="this CPU has no avx8"):
        chosen("best avx9\nleast avx2 avx8\n")
    monkeypatch.setenv("KATT_LEVEL", "best")
    assert chosen("best avx9\nleast avx2\n") == tmp_path / "best"
    monkeypatch.setenv("KATT_LEVEL", "odd")
    with pytest.raises(ImportError, match="KATT_LEVEL is odd, expected best, least"):
        chosen("best avx9\nleast avx2\n")
