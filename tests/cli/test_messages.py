"""What the program says for people, --verbose and --quiet, and the examples of every --help."""

import json
import os
import re

import pytest
from conftest import CASES, TINY

SWEEP = ["sweep", "attention", "--seq", "64", "--heads", 1, "--variant", "naive,flash", "--rounds", 1, "--threads", 1]
MEASURED = ("info", "sweep", "tune", "merge", "referee", "run", "completion")
MODELS = ("generate", "logits", "train", "memory")


def test_a_sweep_says_what_was_asked_for(katt):
    usual = katt(*SWEEP, "-o", "usual.h5")
    assert (usual.returncode, usual.stdout) == (0, "") and "flash" in usual.stderr
    assert "naive: " not in usual.stderr
    quiet = katt(*SWEEP, "-o", "quiet.h5", "--quiet", "--json")
    assert (quiet.returncode, quiet.stderr) == (0, "") and json.loads(quiet.stdout)["output"] == "quiet.h5"
    verbose = katt(*SWEEP, "-o", "verbose.h5", "-v")
    assert verbose.returncode == 0 and re.search(r"^    naive: \d.* 1 sample$", verbose.stderr, re.MULTILINE)
    assert re.search(r"^    flash \d+x\d+: .*x naive, 1 sample$", verbose.stderr, re.MULTILINE)


def test_verbose_has_the_reason_of_every_skipped_row(katt):
    done = katt("sweep", "attention", "--seq", "64,96", "--heads", 1, "--variant", "naive,flash", "--tile", "7x9", "--rounds", 1,
                "-o", "r.h5", "--verbose")  # fmt: skip
    assert len(re.findall(r"^    flash.*: skipped: ", done.stderr, re.MULTILINE)) == 2, done.stderr


def test_run(katt):
    case = CASES / "attention_f32_causal_gqa.h5"
    for volume in ([], ["--quiet"]):
        done = katt("run", "attention", "--in", case, "--out", "out.h5", "--overwrite", *volume)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = katt("run", "attention", "--in", case, "--out", "out.h5", "--overwrite", "--verbose", "--variant", "naive")
    assert (done.returncode, done.stdout) == (0, "")
    assert re.fullmatch(r"attention: naive, f32 on .*, \d+ threads?; wrote out.h5\n", done.stderr)


def test_quiet_generation_prints_the_ids_alone(katt):
    command = ["generate", "--model", TINY, "--tokens", "1,2,3", "--max-new-tokens", 4]
    usual = katt(*command)
    assert len(usual.stdout.splitlines()) > 1
    quiet = katt(*command, "--quiet")
    assert (quiet.returncode, quiet.stderr) == (0, "")
    assert quiet.stdout.splitlines() == usual.stdout.splitlines()[-1:]
    verbose = katt(*command, "--verbose")
    assert verbose.stdout.splitlines()[-1:] == quiet.stdout.splitlines()
    assert re.search(r"llama_tiny: \d layers? of \d+, .*; f32 on ", verbose.stderr)


def test_quiet_training(katt, tmp_path):
    (tmp_path / "text.txt").write_text("abc" * 400)
    (tmp_path / "model").mkdir()
    config = json.loads((TINY / "config.json").read_text()) | {"vocab_size": 256}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    command = ["train", "--model", "model", "--text", "text.txt", "--steps", 2, "--seq", 16]
    usual, quiet = katt(*command), katt(*command, "--quiet")
    assert "step 2/2" in usual.stderr and "parameters are random" in usual.stderr
    assert (quiet.returncode, quiet.stderr) == (0, "") and quiet.stdout.startswith("done after 2 steps")


@pytest.mark.parametrize("volume", [[], ["--quiet"], ["--verbose"]])
def test_a_refusal_is_one_line_at_any_volume(katt, volume):
    (katt.folder / "text.txt").write_text("abc" * 400)
    many = ["--threads", os.cpu_count() + 1]  # a warning, where the input is good
    assert "none.h5" in katt.refuses("run", "attention", "--in", "none.h5", "--out", "o.h5", *many, *volume)
    assert "--variant" in katt.refuses("run", "attention", "--in", CASES / "attention_f32_causal_gqa.h5", "--out", "o.h5",
                                       "--variant", "none", *many, *volume)  # fmt: skip
    assert "--text" in katt.refuses("generate", "--model", TINY, "--text", "abc", *many, *volume)
    katt.refuses("train", "--model", TINY, "--text", "text.txt", "--steps", 1, "--seq", 5000, *many, *volume)
    katt.refuses("sweep", "attention", "--seq", "4M", "--heads", 4096, "-o", "r.h5", *many, *volume)
    katt.refuses("merge", "none.h5", "-o", "r.h5", *volume)


def test_both_at_once_are_refused(katt):
    assert "--verbose and --quiet" in katt.refuses("info", "--verbose", "--quiet")


@pytest.mark.parametrize("command", [*MEASURED, *MODELS])
def test_help_ends_with_examples(katt, command):
    if command not in katt("--help").stdout.split():
        pytest.skip("not in this build")
    said = katt(command, "--help").stdout
    examples = said.partition("\nExamples:\n")[2].strip("\n").splitlines()
    calls, meanings = examples[::2], examples[1::2]
    assert calls and len(calls) == len(meanings) and all(line.startswith("      ") for line in meanings), said
    for call in calls:
        assert re.match(rf"  (mpirun -n \d+ |source <\()?katt ({command}|info) ?", call), call
        op = (call.split() + [""])[2]
        known = said + (katt("info", op).stdout if command in ("sweep", "tune") and op.islower() and "/" not in op else "")
        for option in re.findall(r"--[a-z-]+", call):
            assert option in known, call


def test_help_is_in_groups(katt):
    said = katt("--help").stdout
    groups = re.findall(r"^([A-Z]\w+):$", said, re.MULTILINE)
    assert groups[0] == "Measure" and {"Machine", "Shell", "Examples"} <= set(groups)
    assert len(re.findall(r"^  katt(?:-report)? ", said, re.MULTILINE)) >= 3
