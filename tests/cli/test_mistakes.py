"""Mistakes of the first hour: each gets one line that names the intended word."""

import json
import os
import pty
import re
import signal
import subprocess
import time

import h5py
import pytest

A = ("sweep", "attention", "-o", "out.h5")
R = ("sweep", "rmsnorm", "-o", "out.h5")
G = ("generate", "--model", "none")
T = ("train", "--model", "none")

# The typed text, and the word that the answer must name.
MISTAKES = [
    # axes by other names
    ((*A, "--sequence", "64"), "mean --seq?"),
    ((*A, "--sequence-length", "64"), "mean --seq?"),
    ((*A, "--seq_len", "64"), "mean --seq?"),
    ((*A, "--context", "4096"), "mean --seq?"),
    ((*A, "--max-seq-len", "64"), "mean --seq?"),
    ((*A, "--tokens", "64"), "mean --seq?"),
    ((*A, "-seq", "64"), "mean --seq?"),
    ((*A, "--SEQ", "64"), "mean --seq?"),
    ((*A, "--kv-seq", "64"), "mean --seq-kv?"),
    ((*A, "--batch-size", "2"), "mean --batch?"),
    ((*A, "--bs", "2"), "mean --batch?"),
    ((*A, "-b", "2"), "mean --batch?"),
    ((*A, "--num-heads", "8"), "mean --heads?"),
    ((*A, "--n_heads", "8"), "mean --heads?"),
    ((*A, "--num_kv_heads", "2"), "mean --kv-heads?"),
    ((*A, "--num-key-value-heads", "2"), "mean --kv-heads?"),
    ((*A, "--head-size", "64"), "mean --head-dim?"),
    ((*A, "--d", "64"), "mean --head-dim?"),
    ((*A, "--sliding-window", "128"), "mean --window?"),
    ((*A, "--is-causal", "1"), "mean --causal?"),
    ((*A, "--casual", "1"), "mean --causal?"),
    ((*A, "--mask", "1"), "mean --bias?"),
    ((*A, "--logit-cap", "30"), "mean --softcap?"),
    ((*A, "--kernel", "flash"), "mean --variant?"),
    ((*A, "--variants", "flash"), "mean --variant?"),
    ((*A, "--data-type", "f32"), "mean --dtype?"),
    ((*A, "--precision", "bf16"), "mean --dtype bf16?"),
    ((*A, "--num-threads", "2"), "mean --threads?"),
    ((*A, "--iterations", "9"), "mean --rounds?"),
    ((*A, "--direction", "backward"), "mean --pass?"),
    ((*A, "--tile-size", "64x64"), "mean --tile?"),
    ((*A, "--compare", "torch"), "mean --peer?"),
    ((*A, "--force"), "mean --overwrite?"),
    ((*A, "--continue"), "mean --resume?"),
    ((*A, "--plan"), "mean --dry-run?"),
    (("sweep", "attention", "--out", "out.h5"), "mean --output?"),
    ((*R, "--seq", "64"), "mean --tokens?"),
    ((*R, "--batch", "64"), "mean --tokens?"),
    ((*R, "--hidden-size", "64"), "mean --hidden?"),
    ((*R, "--d_model", "64"), "mean --hidden?"),
    (("sweep", "linear", "-o", "out.h5", "--input-size", "64"), "mean --in-features?"),
    (("sweep", "softmax", "-o", "out.h5", "--vocab-size", "64"), "mean --vocab?"),
    (("sweep", "swiglu", "-o", "out.h5", "--ffn-dim", "64"), "mean --intermediate?"),
    # values
    ((*A, "--variant", "flash-attention"), "mean flash?"),
    ((*A, "--variant", "flsh"), "mean flash?"),
    ((*A, "--variant", "reference"), "mean naive?"),
    ((*A, "--variant", "best"), "mean auto?"),
    ((*A, "--variant", "torch_flash"), "--peer"),
    ((*A, "--peer", "pytorch"), "mean torch_flash?"),
    ((*A, "--peer", "torch_compiled"), "mean torch_compile?"),
    ((*A, "--pass", "bwd"), "mean backward?"),
    ((*A, "--backend", "cpu"), "mean openmp?"),
    ((*A, "--backend", "cuda"), "this build has no CUDA backend"),
    ((*A, "--dtype", "fp8"), "expected f32, f16, bf16"),
    ((*A, "--dtype", "floatt32"), "expected f32, f16, bf16"),
    ((*A, "--causal", "maybe"), "from 0 to 1"),
    ((*A, "--seq", "64", "128"), "with commas"),
    ((*A, "--seq", "1q"), "1q"),
    # commands and operators
    (("bench", "attention"), "mean katt sweep?"),
    (("finetune",), "mean katt train?"),
    (("infer",), "mean katt generate?"),
    (("swepp", "attention"), "mean katt sweep?"),
    (("attention", "--seq", "64"), "mean katt sweep attention?"),
    (("mine.toml",), "mean katt sweep mine.toml?"),
    (("report", "mine.h5"), "katt-report"),
    (("sweep", "--seq", "64"), "katt sweep OP"),
    (("sweep", "mine.yaml"), ".toml"),
    (("sweep", "sdpa", "-o", "out.h5"), "mean attention?"),
    (("sweep", "matmul", "-o", "out.h5"), "mean linear?"),
    (("sweep", "RMSNorm", "-o", "out.h5"), "mean rmsnorm?"),
    (("sweep", "rotary_embedding", "-o", "out.h5"), "mean rope?"),
    (("sweep", "cross_entropy_loss", "-o", "out.h5"), "mean cross_entropy?"),
    (("info", "atention"), "mean attention?"),
    (("info", "--full"), "mean --all?"),
    (("run", "attention", "--input", "a.h5", "--out", "b.h5"), "mean --in?"),
    (("run", "attention", "--in", "a.h5", "--output", "b.h5"), "mean --out?"),
    # models
    ((*G, "--prompt", "Hello"), "katt.Llama"),
    ((*G, "--max-tokens", "9"), "mean --max-new-tokens?"),
    ((*G, "--input-ids", "1,2"), "mean --tokens?"),
    ((*G, "--temp", "1"), "mean --temperature?"),
    ((*G, "--topk", "1"), "mean --top-k?"),
    (("generate", "--model-path", "none"), "mean --model?"),
    ((*T, "--learning-rate", "1e-3"), "mean --lr?"),
    ((*T, "--epochs", "3"), "mean --steps?"),
    ((*T, "--gradient-accumulation-steps", "3"), "mean --accumulation?"),
    ((*T, "--gradient-checkpointing"), "mean --checkpoint?"),
    ((*T, "--max-grad-norm", "1"), "mean --clip?"),
    ((*T, "--dataset", "a.h5"), "mean --data?"),
    ((*T, "--tp", "2"), "mean --tensor?"),
    ((*T, "--save-steps", "2"), "mean --save-every?"),
    (("memory", "--model", "none", "--seq-length", "2"), "mean --seq?"),
]  # fmt: skip


def test_there_are_many():
    assert len(MISTAKES) >= 62


@pytest.mark.parametrize(("arguments", "meant"), MISTAKES,
                         ids=lambda value: " ".join(value) if isinstance(value, tuple) else None)
def test_what_was_meant_is_named(katt, arguments, meant):
    assert meant in katt.refuses(*arguments)


@pytest.mark.parametrize(("text", "meant"), [
    ('[[sweeps]]\nop = "attention"\n', "sweep.toml:1: the table [[sweeps]] is unknown; did you mean [[sweep]]?"),
    ("[axis]\nseq = 64\n", "did you mean [axes]?"),
    ('operator = "attention"\nseq = 64\n', "did you mean op?"),
    ('op = "attention"\nsequence_length = 64\n', 'sweep.toml:2: key "sequence_length" is unknown; did you mean seq?'),
    ('op = "rmsnorm"\nseq = 64\n', "did you mean tokens?"),
    ('op = "mlp"\n', "did you mean swiglu_mlp?"),
    ('op = "attention"\npeer = "pytorch"\n', "sweep.toml:2: peer pytorch: unknown; did you mean torch_flash?"),
])
def test_sweep_files(katt, text, meant):
    (katt.folder / "sweep.toml").write_text(text)
    assert meant in katt.refuses("sweep", "sweep.toml", "-o", "out.h5")


def test_other_names_for_values(katt):
    """The program takes the names of other programs."""
    plan = katt("sweep", "attention", "--dry-run", "--seq", "1k,1024,2K:4k:x2", "--causal", "true,0,no", "--dtype",
                "fp32,float32,half,float16,bfloat16")  # fmt: skip
    assert (plan.returncode, plan.stderr) == (0, ""), plan.stderr
    assert "18 points" in plan.stdout  # three lengths, two masks, three dtypes
    lines = plan.stdout.splitlines()
    assert len(lines) == 19 and "seq_q=2048" in plan.stdout and "seq_q=4096" in plan.stdout


def test_a_value_that_is_missing_is_not_the_next_option(katt):
    for arguments in (("run", "swiglu", "--in", "in.h5", "--out=", "--overwrite"),
                      ("run", "swiglu", "--in", "in.h5", "--out", "--json"),
                      ("sweep", "softmax", "--dtype=", "--dry-run"), ("sweep", "softmax", "-o=", "--rounds", "2")):  # fmt: skip
        assert ": the value is missing" in katt.refuses(*arguments)
    assert list(katt.folder.iterdir()) == []


def test_a_short_option_takes_an_equals_sign(katt):
    katt.runs("sweep", "softmax", "--tokens", 4, "--vocab", 16, "--no-ceilings", "--rounds", 1, "-o=out.h5")
    assert [path.name for path in katt.folder.iterdir()] == ["out.h5"]


def test_a_dry_run_says_what_would_be_done(katt):
    arguments = ("sweep", "attention", "--seq", "64,512k", "--heads", "2", "--variant", "naive,flash,flash_amx",
                 "--dry-run")
    done = katt(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(katt.folder.iterdir()) == []
    small, large, total = done.stdout.splitlines()
    assert "naive, flash" in small and "flash_amx (skipped: " in small and "seq_q=64" in small
    assert "naive (skipped: needs " in large and "seq_q=524288" in large
    assert re.search(r"2 points, 6 rows, of which 3 cannot run here; .* of memory, at most about ", total)
    summary = json.loads(katt(*arguments, "--json").stdout)
    assert (summary["points"], summary["rows"], summary["skipped"]) == (2, 6, 3) and summary["seconds"] > 60
    # A part of it has its own points, memory and time; the longest point is dealt first.
    parts = [json.loads(katt(*arguments, "--json", "--shard", f"{part}/2").stdout) for part in (1, 2)]
    assert [(part["points"], part["rows"], part["skipped"]) for part in parts] == [(1, 3, 2), (1, 3, 1)]
    assert parts[0]["memory_bytes"] == summary["memory_bytes"] > parts[1]["memory_bytes"]
    assert parts[0]["seconds"] + parts[1]["seconds"] == pytest.approx(summary["seconds"], rel=0.01)
    assert "seq_q=64" in katt(*arguments, "--shard", "2/2").stdout.splitlines()[0]
    # A sweep that would be refused is refused.
    assert "memory" in katt.refuses("sweep", "attention", "--seq", "1G", "--heads", "1k", "--dry-run")


def test_reasons_and_too_many_threads_are_said(katt):
    done = katt.runs("sweep", "softmax", "--tokens", "4", "--vocab", "16,32", "--rounds", "1", "--threads",
                     str(os.cpu_count() + 1), "--peer", "torch_eager", "--peer-program", "nowhere/katt-peers", "-o", "out.h5")
    assert f"warning: {os.cpu_count() + 1} threads on " in done.stderr
    assert "2 points, 6 rows, at most about " in done.stderr
    assert done.stderr.splitlines()[-1].startswith("done after")
    assert done.stderr.count("torch_eager skipped: ") == 1  # each reason once


def on_a_terminal(katt, *arguments, stop_at):
    """The program's output on a terminal; sends Ctrl-C when the output holds `stop_at`."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([katt.path, *arguments], cwd=katt.folder, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    said = b""
    asked = False
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # it has ended
            break
        if not part:
            break
        said += part
        if stop_at in said and not asked:
            asked = True
            process.send_signal(signal.SIGINT)
    os.close(ours)
    return process.wait(timeout=60), said.decode(errors="replace")


def test_what_is_done_is_said_and_ctrl_c_answers(katt):
    status, said = on_a_terminal(katt, "sweep", "attention", "--seq", "256,512", "--budget-s", "30", "--precision", "0",
                                 "--threads", "1", "--no-ceilings", "-o", "out.h5", stop_at=b" variants")  # fmt: skip
    assert status == 130, said
    for what in ("making the inputs", "running and verifying flash",
                 "stopping after this kernel; again to stop now", "interrupted after"):  # fmt: skip
        assert what in said


def test_ctrl_c_ends_the_measurement_of_ceilings(katt):
    arguments = ["sweep", "softmax", "--tokens", "8", "--vocab", "16", "--budget-s", "0.01", "--threads", "1", "-o", "out.h5"]
    status, said = on_a_terminal(katt, *arguments, stop_at=b"measuring the ceilings")
    assert status == 130 and "0 ok" in said and "--resume goes on" in said, said
    with h5py.File(katt.folder / "out.h5") as file:
        assert not len(file["ceilings"])
    katt.runs(*arguments, "--resume")


def test_an_interrupted_tune_says_what_its_file_holds(katt):
    status, said = on_a_terminal(katt, "tune", "attention", "--seq", "256", "--variant", "flash", "--rounds", "100000",
                                 "--threads", "1", "-o", "t.json", stop_at=b"verifying")  # fmt: skip
    assert status == 130 and "interrupted after" in said, said
    assert "t.json gets no tile, as no point was finished" in said and "--resume" not in said
    assert list(katt.folder.iterdir()) == []


def test_a_log_says_what_takes_long(katt):
    process = katt.start("sweep", "attention", "--seq", "1k", "--variant", "flash", "--budget-s", "60",
                         "--precision", "0", "--threads", "1", "-o", "out.h5")  # fmt: skip
    line = ""
    while "measuring 1 variant" not in line:
        line = process.stderr.readline()
        assert line, "it ended without a word"
    process.send_signal(signal.SIGINT)
    time.sleep(0.05)
    assert process.wait(timeout=60) == 130


CONTROL = "\x1b]0;owned\x07\x9b31m\r"


@pytest.mark.parametrize("arguments", [
    (CONTROL,),
    ("sweep", CONTROL, "-o", "out.h5"),
    ("sweep", f"{CONTROL}.toml", "-o", "out.h5"),
    ("sweep", "attention", "--variant", CONTROL, "-o", "out.h5"),
    ("sweep", "attention", "--peer", CONTROL, "-o", "out.h5"),
    ("sweep", "attention", f"--{CONTROL}", "1", "-o", "out.h5"),
    ("sweep", "attention", "--seq", f"64,{CONTROL}", "-o", "out.h5"),
    ("sweep", "attention", "--dtype", CONTROL, "-o", "out.h5"),
    ("sweep", "attention", "--shard", CONTROL, "-o", "out.h5"),
    ("sweep", "attention", "--seq", "64", "-o", f"/proc/none/{CONTROL}/out.h5"),
    ("run", "attention", "--in", CONTROL, "--out", "out.h5"),
    ("run", CONTROL, "--in", "in.h5", "--out", "out.h5"),
    ("merge", CONTROL, "-o", "out.h5"),
    ("info", CONTROL),
    ("generate", "--model", CONTROL, "--tokens", "1"),
    ("generate", "--model", "none", "--tokens", CONTROL),
    ("train", "--model", CONTROL, "--text", CONTROL, "--steps", "1"),
    ("memory", "--model", CONTROL),
], ids=lambda value: value[0].strip(CONTROL) or "command")
def test_no_name_speaks_to_the_terminal(katt, arguments):
    line = katt.refuses(*arguments)
    assert not re.search("[\x00-\x1f\x7f-\x9f]", line), repr(line)


def test_names_of_files_that_are_written_are_escaped(katt):
    name = f"{CONTROL}.h5"
    done = katt(
        "sweep", "softmax", "--tokens", "2", "--vocab", "16", "--rounds", "1", "--threads", "1", "-o", name, "--json"
    )
    assert done.returncode == 0 and (katt.folder / name).exists()
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", done.stderr + done.stdout)
    assert json.loads(done.stdout)["output"] == name
    done = katt("merge", name, "-o", f"2{name}")
    assert done.returncode == 0 and not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", done.stderr + done.stdout)
