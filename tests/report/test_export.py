"""Rows, logs and profiles for other programs."""

import csv
import fcntl
import io
import json
import math
import os
import resource
import sys

import numpy as np
import pytest
import synthetic
from katt_report import load
from pyarrow import parquet
from test_cli import as_a_program, run
from test_logs import log


def test_csv_holds_every_column(files, tmp_path, capsys):
    out = tmp_path / "rows.csv"
    status, shown, err = run(capsys, "export", files["seqlen"], "--csv", out)
    assert (status, shown, err) == (0, f"csv: {out}\n", "")
    points = load(files["seqlen"]).points
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert len(rows) == len(points) and list(rows[0]) == list(points.columns)
    for name, column in points.columns.items():
        kind = {"U": str, "i": int, "f": lambda text: float(text or "nan")}[column.dtype.kind]
        assert np.array_equal([kind(row[name]) for row in rows], column, equal_nan=column.dtype.kind == "f"), name
    assert rows[0]["variant"] == "flash"  # text, not bytes


def test_csv_is_a_data_frame(files, tmp_path, capsys):
    pandas = pytest.importorskip("pandas")
    assert run(capsys, "export", files["models"], "--csv", tmp_path / "r.csv")[0] == 0
    frame = pandas.read_csv(tmp_path / "r.csv", float_precision="round_trip")
    known = load(files["models"]).frame
    assert frame["label"].tolist() == known["label"].tolist()
    assert frame["speedup"].tolist() == known["speedup"].tolist()


def test_json_has_types(files, tmp_path, capsys):
    status, shown, err = run(capsys, "export", files["seqlen"], "--json", tmp_path / "r.json")
    assert (status, shown, err) == (0, f"json: {tmp_path}/r.json\n", "")
    rows = json.loads((tmp_path / "r.json").read_text())
    row, known = rows[0], load(files["seqlen"]).points.row(0)
    assert {name: value for name, value in row.items() if value is not None} == {
        name: value for name, value in known.items() if not (isinstance(value, float) and math.isnan(value))}  # fmt: skip
    assert type(row["seq_q"]) is int and type(row["time_s"]) is float and type(row["dtype"]) is str
    assert next(row for row in rows if row["status"] == "skipped")["time_s"] is None


def test_only_and_standard_output(files, repository):
    done = as_a_program(["export", files["seqlen"], "--csv", "-", "--only", "dtype=f32,variant=flash"], repository,
                        stdout=-1)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert [row["variant"] for row in csv.DictReader(io.StringIO(done.stdout))] == ["flash"] * 6


def test_parquet(files, tmp_path, capsys):
    status, _, err = run(capsys, "export", files["seqlen"], "--parquet", tmp_path / "r.parquet")
    assert (status, err) == (0, "")
    table = parquet.read_table(tmp_path / "r.parquet")
    points = load(files["seqlen"]).points
    assert table.column_names == list(points.columns)
    assert str(table.schema.field("seq_q").type) == "int64" and str(table.schema.field("time_s").type) == "double"
    assert table.column("variant").to_pylist() == points["variant"].tolist()
    assert np.array_equal(table.column("time_s").to_numpy(), points["time_s"], equal_nan=True)


def test_parquet_without_pyarrow_is_refused(files, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    status, out, err = run(capsys, "export", files["seqlen"], "--parquet", tmp_path / "r.parquet")
    assert (status, out) == (2, "")
    assert err == "katt-report: --parquet: holds no package pyarrow in this Python, expected pip install pyarrow\n"
    assert os.listdir(tmp_path) == []


def traced(path) -> list[dict]:
    """The events of a trace, checked by the rules of the Trace Event Format."""
    trace = json.loads(path.read_text())
    assert set(trace) == {"traceEvents", "displayTimeUnit"} and trace["displayTimeUnit"] in ("ms", "ns")
    whole = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    for event in trace["traceEvents"]:
        assert isinstance(event["name"], str) and isinstance(event["pid"], int) and isinstance(event["tid"], int)
        assert event["ph"] in "XM" and isinstance(event["args"], dict)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name", "thread_sort_index")
        else:
            assert isinstance(event["cat"], str) and event["ts"] >= 0 and event["dur"] >= 0
    # On one track two events are apart, or one holds the other.
    for track in {event["tid"] for event in whole}:
        ranges = sorted((e["ts"], -(e["ts"] + e["dur"])) for e in whole if e["tid"] == track)
        around = []
        for begin, end in ((begin, -end) for begin, end in ranges):
            while around and begin >= around[-1] - 1e-9:
                around.pop()
            assert not around or end <= around[-1] + 1e-9
            around.append(end)
    return trace["traceEvents"]


def test_the_trace_of_a_sweep(files, tmp_path, capsys):
    status, _, err = run(capsys, "export", files["block"], "--quiet", "--trace", tmp_path / "t.json")
    assert (status, err) == (0, "")
    events = traced(tmp_path / "t.json")
    names = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert len(names) == len(load(files["block"]).profiles) == len(set(names))
    assert any("fused bf16" in name and "LLaMA 3.2 1B" in name for name in names)
    first = [event for event in events if event["tid"] == 1 and event["ph"] == "X"]
    assert [event["name"] for event in first[:4]] == ["llama_block forward", "katt::rmsnorm", "katt::rmsnorm::first",
                                                      "katt::rmsnorm::second"]  # fmt: skip
    norm, inner, second = first[1:4]
    assert inner["ts"] == norm["ts"] and second["ts"] == pytest.approx(inner["ts"] + inner["dur"])
    assert norm["dur"] == pytest.approx(1e6 * norm["args"]["time_s"]) and second["args"]["calls"] == 2


def test_the_trace_of_a_log(tmp_path, capsys):
    path = log(tmp_path / "a.h5")
    assert run(capsys, "export", path, "--trace", tmp_path / "t.json")[0] == 0
    events = [event for event in traced(tmp_path / "t.json") if event["ph"] == "X"]
    assert [event["name"] for event in events][:4] == ["katt generate", "prefill", "katt::linear", "katt::linear::pack"]
    work = events[2]["args"]
    assert (work["flops"], work["ceiling"], work["ceiling_fraction"]) == (3e9, "fma_f32", 0.8)


def test_a_log_is_a_table_of_steps(tmp_path, capsys):
    path = log(tmp_path / "a.h5")
    assert run(capsys, "export", path, "--csv", tmp_path / "s.csv")[0] == 0
    assert (tmp_path / "s.csv").read_text() == "source,step,loss\na.h5,1,3.0\na.h5,2,2.5\n"


def test_what_is_refused(files, tmp_path, capsys):
    kept, steps = tmp_path / "kept.csv", log(tmp_path / "a.h5")
    kept.write_text("mine")
    for arguments, text in (
        ([files["seqlen"], "--csv", kept], "an existing file"), ([files["seqlen"], "--csv", tmp_path], "a folder"),
        ([files["seqlen"], "--json", files["seqlen"], "--overwrite"], "an input of the command"),
        ([files["seqlen"], "--trace", tmp_path / "t.json"], "no profile"),
        ([files["seqlen"]], "--csv --json --parquet --trace is required"),
        ([files["seqlen"], "--csv", tmp_path / "none" / "r.csv"], "cannot be written"),
        ([steps, files["seqlen"], "--csv", tmp_path / "r.csv"], "logs beside result files"),
    ):  # fmt: skip
        status, out, err = run(capsys, "export", *arguments)
        assert (status, out) == (2, "") and text in err and err.count("\n") == 1, arguments
    assert kept.read_text() == "mine" and sorted(os.listdir(tmp_path)) == ["a.h5", "kept.csv"]
    assert run(capsys, "export", files["seqlen"], "--csv", kept, "--overwrite")[0] == 0
    assert kept.read_text().startswith("op,pass,variant")


def test_what_is_replaced_keeps_its_link_and_mode(files, tmp_path, capsys):
    target, link, fifo = (tmp_path / name for name in ("target.csv", "link.csv", "fifo"))
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    assert run(capsys, "export", files["models"], "--csv", link, "--overwrite")[0] == 0
    assert link.is_symlink() and target.stat().st_mode & 0o777 == 0o640 and target.read_text() != "old"
    (tmp_path / "loop").symlink_to("loop")
    assert run(capsys, "export", files["models"], "--csv", tmp_path / "loop", "--overwrite")[0] == 2
    (tmp_path / "loop").unlink()
    os.mkfifo(fifo)
    status, out, err = run(capsys, "export", files["models"], "--csv", fifo, "--overwrite")
    assert (status, out, err) == (2, "", f"katt-report: --csv {fifo}: holds a device or a FIFO, expected a file\n")
    assert fifo.is_fifo() and sorted(os.listdir(tmp_path)) == ["fifo", "link.csv", "target.csv"]


def test_a_file_that_a_sweep_is_writing_stays(files, tmp_path, capsys):
    target, lock = tmp_path / "r.h5", tmp_path / ".r.h5.katt-lock"
    target.write_text("rows")
    lock.write_text("123 host")
    with open(lock) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        status, out, err = run(capsys, "export", files["seqlen"], "--csv", target, "--overwrite")
    assert (status, out) == (2, "") and target.read_text() == "rows"
    assert err == f"katt-report: --csv {target}: holds a file that process 123 is writing, expected one writer at a time\n"
    assert run(capsys, "export", files["seqlen"], "--csv", target, "--overwrite")[0] == 0, "left by a killed process"


def test_a_full_disk(files, tmp_path, repository):
    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    done = as_a_program(["export", files["seqlen"], "--csv", tmp_path / "r.csv"], repository, stdout=-1,
                        preexec_fn=small_files)  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"katt-report: {tmp_path / 'r.csv'}: cannot be written (File too large)\n"
    assert os.listdir(tmp_path) == []


def test_numbers_keep_their_digits(tmp_path, capsys):
    file = synthetic.attention_seqlen(sizes=(512,), dtypes=("f32",))
    file.rows[0]["time_s"] = 0.1 + 0.2
    assert run(capsys, "export", synthetic.write(tmp_path / "r.h5", file), "--json", tmp_path / "r.json")[0] == 0
    assert json.loads((tmp_path / "r.json").read_text())[0]["time_s"] == 0.1 + 0.2
