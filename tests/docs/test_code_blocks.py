"""Every block of code in README.md and docs/ runs, or is held against what runs: blocks.py and shell.py have the rules."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import h5py
import numpy
import pytest
from blocks import PROSE, ROOT, Block, blocks, documents
from shell import CASES, LESSONS, QUICK, Shell, commands

KATT = os.environ.get("KATT", str(ROOT / "build/openmp/katt"))
REPORT = str(Path(KATT).with_name("katt-report"))
PACKAGE = Path(KATT).parent / "python"
# Folders of results/ that pages name, as copies: commands may write there.
RESULTS = ["zen4-avx512bf16-2c/attention_seqlen", "zen4-avx512bf16-2c/baselines", "zen4-avx512bf16-2c/decode",
           "zen4-avx512bf16-2c/peers_cpu", "zen5-avx512bf16-2c/decode"]

# Pages whose blocks of Python other tests run, with more at hand.
PYTHON_ELSEWHERE = {
    "README.md": "tests/python/test_documents.py",
    "docs/python.md": "tests/python/test_documents.py",
    "docs/schema.md": "tests/report/test_schema_doc.py",
    "docs/report.md": "tests/report/test_schema_doc.py",
}

EVERY = [block for page in documents() for block in blocks(page)]


def of(*languages: str) -> list[Block]:
    return [block for block in EVERY if block.language in languages and not block.reason_not_run]


def pages_with(*languages: str) -> list[str]:
    return list(dict.fromkeys(block.page for block in of(*languages)))


@pytest.fixture(scope="session")
def measured(tmp_path_factory) -> Path:
    """A result file of a moment, with naive and flash."""
    path = tmp_path_factory.mktemp("measured") / "result.h5"
    sweep = ["sweep", "attention", "--seq", "64,1024,4096", "--dtype", "f32,bf16", "--variant", "naive,flash",
             "--heads", "1", "--head-dim", "16"]
    subprocess.run([KATT, *sweep, *QUICK, "--no-ceilings", "--threads", "1", "-o", str(path)], check=True, capture_output=True)
    return path


@pytest.fixture(scope="session")
def kernels(tmp_path_factory) -> Path:
    """A folder with the kernels of the reader."""
    folder = tmp_path_factory.mktemp("kernels")
    for name, source in (("mine", "candidate/attention"), ("swiglu", "referee/swiglu")):
        command = ["cc", "-O2", "-fopenmp", "-shared", "-fPIC", f"-I{ROOT}/src/candidate", f"{ROOT}/examples/{source}.c"]
        subprocess.run([*command, "-o", str(folder / f"{name}.so"), "-lm"], check=True)
    return folder


def prepare(folder: Path, page: str, measured: Path, kernels: Path):
    """Puts into a folder what pages name: programs, inputs, models, and outside of lessons results."""
    for name in ("experiments", "examples"):
        (folder / name).symlink_to(ROOT / name)
    for name in RESULTS:
        shutil.copytree(ROOT / "results" / name, folder / "results" / name)
    shutil.copyfile(CASES / "attention_f32_causal_gqa.h5", folder / "case.h5")
    shutil.copytree(CASES / "llama_tiny", folder / "model")
    (folder / "text.txt").write_text("1,2,3\n" * 200)
    (folder / "prompts.txt").write_text("1,2,3\n4,5\n")
    with h5py.File(folder / "tokens.h5", "w") as file:
        file["tokens"] = numpy.arange(4096, dtype=numpy.int32) % 64
    shutil.copyfile(ROOT / "experiments/smoke/sweep.toml", folder / "sweep.toml")
    (folder / "build").mkdir()
    for kernel in kernels.iterdir():
        shutil.copyfile(kernel, folder / kernel.name)
    task = json.loads((ROOT / "examples/referee/task.json").read_text())
    (folder / "task.json").write_text(json.dumps(task | {"axes": {"tokens": 3, "intermediate": 8}, "limits": {}}))
    if not page.startswith(LESSONS):
        for name in ("result.h5", "mine.h5", "old.h5", "new.h5", "part_1.h5", "answer.h5"):
            shutil.copyfile(measured, folder / name)


def test_every_language_has_a_rule():
    known = {"console", "bash", "python", "toml", "cpp", "cmake", *PROSE}
    assert [block.name for block in EVERY if block.language not in known] == []
    assert [block.name for block in EVERY if block.note.startswith("not run") and not block.reason_not_run] == []


def test_drawings_are_todays():
    drawings = ROOT / "docs/site/drawings.py"
    done = subprocess.run([sys.executable, str(drawings), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_pages_that_others_run_are_theirs():
    for page, test in PYTHON_ELSEWHERE.items():
        assert page.split("/")[-1] in (ROOT / test).read_text(), f"{test} does not name {page}"


@pytest.mark.parametrize("page", pages_with("console", "bash"))
def test_commands_run(page, tmp_path, measured, kernels, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    prepare(tmp_path, page, measured, kernels)
    for block in of("toml"):
        if block.page == page and block.file:
            (tmp_path / block.file).write_text(block.text)
    shell = Shell(tmp_path, page, KATT, REPORT)
    lessons_python = [block for block in of("python") if block.page == page and page.startswith(LESSONS)]
    names: dict = {}
    consoles = [block for block in of("console", "bash") if block.page == page]
    later = [line for block in consoles for line in commands(block.text)]
    for block in sorted([*consoles, *lessons_python], key=lambda one: one.line):
        if block.language == "python":
            run_python(block, names, tmp_path, monkeypatch)
            continue
        for line in commands(block.text):
            later.pop(0)
            shell.run(line, block.status, later)


def run_python(block: Block, names: dict, folder: Path, monkeypatch):
    monkeypatch.chdir(folder)
    for place in (PACKAGE, ROOT / "drivers/report", ROOT / "drivers/peers"):
        monkeypatch.syspath_prepend(str(place))
    if re.search(r"\bkatt\.|import katt\b(?!_)", block.text) and not list((PACKAGE / "katt").glob("_katt.*.so")):
        pytest.skip("a build without the Python package")
    exec(compile(block.text, block.name, "exec"), names)


@pytest.mark.parametrize("block", of("python"), ids=lambda block: block.name)
def test_python_runs(block, tmp_path, monkeypatch):
    if block.page.startswith(LESSONS) or (block.page in PYTHON_ELSEWHERE and block.is_fenced):
        return  # test_commands_run, or the test of PYTHON_ELSEWHERE
    if not block.is_fenced:
        run_python(block, {"h5py": h5py, "numpy": numpy, "pandas": pytest.importorskip("pandas")}, ROOT, monkeypatch)
        return
    if "torch" in block.text and importlib.util.find_spec("torch") is None:
        compile(block.text, block.name, "exec")
        return
    run_python(block, {}, tmp_path, monkeypatch)


@pytest.mark.parametrize("block", of("toml"), ids=lambda block: block.name)
def test_sweep_files_are_planned(block, tmp_path):
    if block.part_of:
        stands_in(block)
        return
    if not block.is_fenced:  # keys of a file, or one way and another to write one
        for text in [block.text] if block.text.startswith("[[") else block.text.split("\n"):
            tomllib.loads(text)
        return
    (tmp_path / "sweep.toml").write_text(block.text)
    done = subprocess.run(
        [KATT, "sweep", "sweep.toml", "--dry-run"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def squeezed(text: str) -> str:
    """Code without comments and blanks, and without the layout of lines."""
    text = re.sub(r"//[^\n]*|(?m:#[^\n]*$)", "", text)
    return re.sub(r"\s+", "", text)


def stands_in(block: Block):
    """The block is a part of its file; a line "…" stands for lines that are left out, and "…" for text within one."""
    source = squeezed((ROOT / block.part_of).read_text())
    at = 0
    for piece in re.split(r"…", squeezed(block.text)):
        found = source.find(piece, at)
        assert found >= 0, f"{block.name}: {block.part_of} has no {piece[:200]}"
        at = found + len(piece)


@pytest.mark.parametrize("block", of("cpp", "cmake"), ids=lambda block: block.name)
def test_code_is_that_of_a_built_file(block):
    assert block.part_of, f"{block.name}: names no file that it is a part of"
    stands_in(block)
