"""experiments/model_speed/run.py with a program in the place of llama.cpp's and bitnet.cpp's bench."""

import json
import os
import subprocess
import sys
from pathlib import Path

import h5py
import pytest

ROOT = Path(__file__).resolve().parents[2]
ROWS = [{"model_type": "bitnet 2B", "n_prompt": 512, "n_gen": 0, "avg_ts": 100.0, "stddev_ts": 2.0},
        {"model_type": "bitnet 2B", "n_prompt": 0, "n_gen": 32, "avg_ts": 20.0, "stddev_ts": 1.0}]


def run(folder, *arguments):
    katt = folder / "katt"  # asked for its build and machine alone
    katt.write_text("#!/bin/sh\necho '{}'\n")
    katt.chmod(0o755)
    command = [sys.executable, ROOT / "experiments" / "model_speed" / "run.py", "-o", folder, "--threads", "2"]
    return subprocess.run([*map(str, command), *map(str, arguments)], capture_output=True, text=True, check=False,
                          env={**os.environ, "KATT": str(katt)})  # fmt: skip


@pytest.mark.parametrize(("what", "option"), [("llama_cpp", "--llama-bench"), ("bitnet_cpp", "--bitnet-bench")])
def test_a_bench_program_gives_tokens_a_second(tmp_path, what, option):
    bench = tmp_path / "bench"
    bench.write_text(f"#!/bin/sh\necho \"$@\" >{tmp_path}/given\necho '{json.dumps(ROWS)}'\n")
    bench.chmod(0o755)
    done = run(tmp_path, what, option, f"{bench} -r 3", "--gguf", "model.gguf")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "given").read_text() == "-r 3 -m model.gguf -t 2 -p 512 -n 32 -o json\n"
    with h5py.File(tmp_path / f"{what}.h5") as file:
        assert list(file["quantity"].asstr()) == ["prefill", "decode"]
        assert list(file["tokens_s"]) == [100, 20] and list(file["tokens_s_deviation"]) == [2, 1]


def test_a_bench_program_that_is_none_is_named(tmp_path):
    done = run(tmp_path, "bitnet_cpp", "--bitnet-bench", "/bin/echo", "--gguf", "model.gguf")
    assert done.returncode == 1
    assert done.stderr.startswith("/bin/echo -m model.gguf")
    assert "expected the bench program of bitnet.cpp" in done.stderr
    assert not (tmp_path / "bitnet_cpp.h5").exists()


def test_a_bench_program_must_be_given(tmp_path):
    done = run(tmp_path, "bitnet_cpp", "--gguf", "model.gguf")
    assert done.returncode == 2 and done.stderr.endswith("bitnet_cpp: expected --bitnet-bench and --gguf\n")
