"""`katt completion`: what a real bash, and a real zsh, offer while a command line is typed."""

import json
import os
import pty
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

COMMANDS = {"sweep", "tune", "merge", "referee", "run", "info", "completion"}


@pytest.fixture
def bash(katt):
    """The answers of bash for words, of which it has cut those with "=" and ":" as it does."""
    if shutil.which("bash") is None:
        pytest.skip("no bash")

    def offered(*words, program=katt.path):
        script = (
            'source <("$1" completion bash); COMP_WORDS=("${@:2}"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _katt; '
            'for one in "${COMPREPLY[@]}"; do echo "$one"; done'
        )
        done = subprocess.run(["bash", "-c", script, "bash", katt.path, program, *words], cwd=katt.folder,
                              capture_output=True, text=True, timeout=30, check=True)  # fmt: skip
        assert done.stderr == ""
        return done.stdout.splitlines()

    return offered


def test_commands(katt, bash):
    assert COMMANDS <= set(bash(""))
    assert bash("sw") == ["sweep"]
    assert set(bash("--")) == {"--help", "--version"}
    assert "complete" not in katt("--help").stdout.split() and "complete" not in bash("")


def test_operators_and_files(katt, bash):
    (katt.folder / "attic").mkdir()
    for name in ("at tack.toml", "attention.h5", "attention.txt"):
        (katt.folder / name).write_text("")
    operators = {op["name"] for op in json.loads(katt("info", "--json").stdout)["operators"]}
    assert operators <= set(bash("sweep", ""))
    assert set(bash("sweep", "att")) == {"attention", "attic"}
    assert set(bash("sweep", "at")) == {"attention", "attic", "at tack.toml"}
    assert set(bash("run", "att")) == {"attention"} == set(bash("info", "atte"))
    assert set(bash("run", "attention", "--in", "att")) == {"attention.h5", "attic"}
    assert set(bash("run", "attention", "--in", "=", "att")) == {"attention.h5", "attic"}
    assert set(bash("merge", "a.h5", "b.h5", "att")) == {"attention.h5", "attic"}
    assert bash("generate", "--model", "at") == ["attic"] or "generate" not in bash("")


def test_options_are_those_of_the_help(katt, bash):
    for command in sorted(set(bash("")) & (COMMANDS | {"generate", "train", "memory", "logits"})):
        offered = {name for name in bash(command, "--") if name.startswith("--")}
        said = katt(command, "--help").stdout
        assert {"--help", "--verbose", "--quiet"} <= offered
        assert all(name in said for name in offered), command
    assert "--causal" in bash("sweep", "attention", "--ca")
    assert "--causal" not in bash("sweep", "rmsnorm", "--ca")
    assert bash("sweep", "attention", "--tile_q") == ["--tile-q"]
    assert bash("sweep", "--no-such-option", "") != []


def test_values(katt, bash):
    operators = {op["name"]: op for op in json.loads(katt("info", "--json").stdout)["operators"]}
    variants = {variant["name"] for variant in operators["attention"]["variants"]}
    assert variants <= set(bash("sweep", "attention", "--variant", ""))
    assert variants <= set(bash("run", "attention", "--json", "--variant", ""))
    assert "flash" not in bash("sweep", "rmsnorm", "--variant", "")
    assert set(bash("sweep", "attention", "--dtype", "")) == {"f32", "f16", "bf16"}
    assert set(bash("run", "attention", "--dtype", "b")) == {"bf16"}
    assert bash("sweep", "attention", "--pass", "back") == ["backward"]
    assert bash("sweep", "attention", "--causal", "") == ["0", "1"]
    assert "serial" in bash("sweep", "attention", "--backend", "s") + bash("run", "attention", "--backend", "s")
    assert "64x64" in bash("sweep", "attention", "--tile", "64")
    assert "torch_flash" in bash("sweep", "attention", "--peer", "torch_f")
    assert bash("sweep", "attention", "--seq", "512", ":", "1024", ":", "x2", "--dtype", "f3") == ["f32"]
    assert set(bash("completion", "")) == {"bash", "zsh"}


def test_lists_item_by_item(bash):
    assert set(bash("sweep", "attention", "--dtype", "f32,")) == {"f32,f16", "f32,bf16"}
    assert bash("sweep", "attention", "--dtype", "=", "f32,b") == ["f32,bf16"]
    assert bash("run", "attention", "--dtype", "f32,b") == [], "one value"


def test_the_report(katt, bash):
    report = Path(katt.path).with_name("katt-report")
    if not report.exists() or subprocess.run([report, "--help"], capture_output=True, check=False).returncode:
        pytest.skip("no katt-report beside the program")
    (katt.folder / "mine.h5").write_text("")
    assert {"compare", "export", "mine.h5"} <= set(bash("", program=str(report)))
    assert bash("compare", "--metric", "sp", program=str(report)) == ["speedup"]


def test_broken_words_are_no_error(katt):
    for words in ((), ("",), ("nothing", ""), ("sweep", "none.toml", "--"), ("sweep", "\x1b"), ("run", "--variant", "")):
        done = katt("complete", *words)
        assert (done.returncode, done.stderr) == (0, ""), words


def test_nothing_is_started(katt, tmp_path):
    """No wait, no thread of OpenMP, no look at the variables of Kokkos, no re-exec for BLAS."""
    surroundings = {"KOKKOS_NUM_THREADS": "none"}
    assert katt("info", env=surroundings).returncode == 2
    done = katt("complete", "sweep", "attention", "--variant", "", env=surroundings)
    assert "flash" in done.stdout.split() and done.stderr == ""


def test_zsh(katt):
    if shutil.which("zsh") is None:
        pytest.skip("no zsh")
    (katt.folder / "case.h5").write_text("")
    script = katt.folder / "katt.zsh"
    script.write_text(katt("completion", "zsh").stdout)
    lines = {
        f"{katt.path} swe\t": "sweep ",
        f"{katt.path} sweep attent\t": "attention ",
        f"{katt.path} sweep attention --dtype f32,b\t": "f32,bf16 ",
        f"{katt.path} sweep attention --dtype=b\t": "--dtype=bf16 ",
        f"{katt.path} run attention --in ca\t": "case.h5 ",
    }
    for line, completed in lines.items():
        assert completed in typed_into_zsh(katt.folder, line, completed), line


def typed_into_zsh(folder, line, awaited):
    """What a terminal shows after a line is typed."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.execvpe("zsh", ["zsh", "-f", "-i"], {**os.environ, "TERM": "dumb", "HOME": str(folder), "COLUMNS": "400",
                                                 "PS1": "> "})

    def read(until, seconds=60):
        shown, end = "", time.monotonic() + seconds
        while until not in shown and time.monotonic() < end:
            if select.select([terminal], [], [], 0.1)[0]:
                shown += os.read(terminal, 65536).decode(errors="replace")
        return shown

    try:
        read("> ")  # what is typed before may be lost
        setup = "unsetopt beep; stty columns 400; autoload -Uz compinit; compinit -u -D; . ./katt.zsh; echo rea''dy\n"
        os.write(terminal, setup.encode())
        read("ready\r\n")
        os.write(terminal, line.encode())
        return read(awaited)
    finally:
        os.close(terminal)
        os.waitpid(child, 0)
