"""Numbers and attributes of foreign files that no measurement gives: one line or NaN, never a traceback."""

import json
import math
import os

import h5py
import numpy as np
import pytest
import synthetic
from katt_report import InputError, load
from katt_report.isolation import logs_or_results
from katt_report.published.source import open_source
from test_cli import run

INF, NAN = math.inf, math.nan


def made(path, change=None):
    """A file with one dtype and two sizes, changed before it is written."""
    file = synthetic.attention_seqlen(sizes=(512, 1024), dtypes=("f32",))
    if change:
        change(file)
    return synthetic.write(path, file)


def in_rows(**values):
    return lambda file: [row.update(values) for row in file.rows]


def in_ceilings(file):
    file.ceilings = {run: [(name, INF, *rest) for name, _, *rest in lines] for run, lines in file.ceilings.items()}


def in_samples(file):
    for samples in file.samples.values():
        samples[:3] = INF


def in_samples_of_0(file):
    for samples in file.samples.values():
        samples[::2] = 0.0


CHANGES = {
    "time inf": in_rows(time_s=INF), "time 1e308": in_rows(time_s=1e308), "time nan": in_rows(time_s=NAN),
    "flops inf": in_rows(flops=INF, tflops=INF), "ratio 0": in_rows(speedup=0.0, speedup_lo=0.0, speedup_hi=0.0, point=""),
    "times tiny": in_rows(time_s=1e-320, time_lo_s=1e-320, time_hi_s=1e-320, point="", speedup=NAN),
    "ends inf": in_rows(time_hi_s=INF, speedup_hi=INF, time_lo_s=0.0, speedup_lo=0.0),
    "axis inf": in_rows(softcap=INF), "axis nan": in_rows(softcap=NAN), "ceilings inf": in_ceilings, "samples inf": in_samples,
    "bytes tiny": in_rows(bytes=1e-320), "samples 0": in_samples_of_0,
}  # fmt: skip


@pytest.mark.rendered
@pytest.mark.filterwarnings("error::RuntimeWarning")  # it would stand on stderr
@pytest.mark.parametrize("how", CHANGES)
def test_numbers_that_are_not_finite(how, tmp_path, capsys):
    path = made(tmp_path / "x.h5", CHANGES[how])
    usual = made(tmp_path / "usual.h5")
    formats = () if how == "samples inf" else ("--formats", "svg")  # one of them also as PNG
    for arguments in (["compare", path, path, "--json"], ["compare", path, usual], ["compare", usual, path], [path, "--table"],
                      [path, "-o", tmp_path / "out", *formats], ["export", path, "--json", "-"]):  # fmt: skip
        status, out, err = run(capsys, *map(str, arguments))
        assert status in (0, 1, 2, 3) and err.count("\n") == (status == 2), (arguments, err)
        if "--json" in arguments and status != 2 and out:
            json.loads(out)


@pytest.mark.parametrize("name", ["samples", "cycles"])
def test_samples_that_are_texts(name, tmp_path, capsys):
    path = made(tmp_path / "x.h5")
    with h5py.File(path, "r+") as file:
        file[f"{name}/run-0001/odd"] = ["a", "b"]
    for command in ([path, "--table"], ["compare", path, path]):
        status, out, err = run(capsys, *command)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"katt-report: {path}: holds /{name}/run-0001/odd of type object, expected numbers")


@pytest.mark.parametrize("attributes", [{"log": "train"}, {"generator": "katt experiments"}], ids=str)
def test_a_sparse_dataset_takes_no_memory(attributes, tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.attrs.update(attributes)
        file.create_dataset("loss", (1 << 30,), "<f8", chunks=(1 << 20,))
    for reader in (logs_or_results, open_source):
        if reader is open_source or "log" in attributes:
            with pytest.raises(InputError, match="/loss of 1073741824 elements, expected at most 1 GiB"):
                reader(tmp_path / "x.h5")


def test_the_library_meets_foreign_files_in_a_child(tmp_path, monkeypatch, capsys):
    """A crash of HDF5 on one file of a folder is a line."""
    path = made(tmp_path / "x.h5")
    monkeypatch.setattr(h5py, "File", lambda *_, **__: os.kill(os.getpid(), 11))
    for command in ("fresh", "portability", "readme"):
        if command == "readme":
            (tmp_path / "a.md").write_text("<!-- katt: ./x.h5 speedup --><!-- /katt -->")
        status, out, err = run(capsys, command, tmp_path / "a.md" if command == "readme" else tmp_path)
        assert (status, out) == (2, "") and f"{path}: holds damaged HDF5 on which the HDF5 library crashes" in err


@pytest.mark.parametrize("wrong", [
    {"cores": "abc"}, {"cpu_id": "AuthenticAMD 25 xx"}, {"isa": 3}, {"l3_bytes": "many"}, {"cores": -1},
], ids=str)  # fmt: skip
def test_attributes_of_a_run(wrong, tmp_path, capsys, repository):
    path = made(tmp_path / "x.h5", lambda file: file.runs["run-0001"].update(wrong))
    for command in ("fresh", "history", "portability"):
        status, out, err = run(capsys, command, path)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"katt-report: {path}: holds /runs/run-0001 with {next(iter(wrong))} = ")


@pytest.mark.parametrize("wrong", [{"rows": [1]}, {"machine": {"isa": 3}}, {"machine": {"caches": 7}}], ids=str)
def test_json_of_others(wrong, tmp_path, capsys):
    folder = tmp_path / "results" / "zen4-2c" / "calls"
    folder.mkdir(parents=True)
    (folder / "calls.json").write_text(json.dumps(wrong))
    for command in ("index", "readme"):
        status, out, err = run(capsys, command, tmp_path / "results")
        assert (status, out, err.count("\n")) == (2, "", 1) and "calls.json: holds " in err
    assert os.listdir(tmp_path / "results") == ["zen4-2c"]


@pytest.mark.parametrize("wrong", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "soon"])
def test_a_time_beyond_the_calendar_is_none(wrong, tmp_path, capsys, repository):
    path = made(tmp_path / "x.h5", lambda file: file.runs["run-0001"].update(started_at=wrong))
    for arguments in (["fresh", path, "--source", repository], ["history", path, path]):
        assert run(capsys, *arguments)[::2] == (0, "")
    assert run(capsys, "calibration", path, "--no-alarms")[0] == 2  # one run is too few


def test_code_that_is_no_text(tmp_path, capsys, repository):
    path = made(tmp_path / "x.h5", in_rows(code="abc"))
    with h5py.File(path, "r+") as file:
        file["code/abc"] = np.array([(1, 2)], [("file", "<i4"), ("tokens", "<i4")])
    status, out, err = run(capsys, "fresh", path, "--source", repository)
    assert (status, err) == (0, "") and out.endswith("0 of 4 rows are fresh\n")


def test_columns_of_no_known_kind_are_refused(tmp_path, capsys):
    path = made(tmp_path / "x.h5")
    with h5py.File(path, "r+") as file:
        table = file["points"][()]
        del file["points"]
        wide = np.zeros(len(table), [*((name, table.dtype[name]) for name in table.dtype.names), ("mine", "<c16")])
        for name in table.dtype.names:
            wide[name] = table[name]
        file["points"] = wide
    status, out, err = run(capsys, path, "--table")
    assert (status, out) == (2, "")
    assert err == f"katt-report: {path}: holds column mine of type complex128, expected a column of type scalar\n"


@pytest.mark.parametrize("to", ["seq_q=many", "nonsense=1", "seq_q"])
def test_points_paired_to_none(to, tmp_path, capsys):
    ratios = dict.fromkeys(("paired_ratio", "paired_ratio_lo", "paired_ratio_hi"), 1.0)
    path = made(tmp_path / "x.h5", in_rows(paired_to=to, **ratios))
    assert run(capsys, path, "-o", tmp_path / "out")[::2] == (0, "")


def test_a_table_that_is_none(tmp_path):
    path = made(tmp_path / "x.h5")
    with h5py.File(path, "r+") as file:
        del file["ceilings/run-0001"]
        file["ceilings/run-0001"] = [1.0]
    with pytest.raises(InputError, match="damaged or truncated HDF5"):
        load(path)


def test_profiles_of_no_time(tmp_path, capsys):
    def change(times, whole):
        return lambda file: file.profiles.update({("run-0001", file.rows[0]["point"]): (1, whole, [
            (b"outer", 0, 1.0, times[0]), (b"inner", 1, 1.0, times[1])])})  # fmt: skip

    path = made(tmp_path / "x.h5", change((0.0, 1.0), 2.0))
    assert run(capsys, path, "-o", tmp_path / "out")[::2] == (0, "")
    path = made(tmp_path / "y.h5", change((1.0, 1.0), 0.0))
    status, out, err = run(capsys, path, "-o", tmp_path / "out")
    assert (status, out, err.count("\n")) == (2, "", 1) and "of 0 seconds, expected the time of a run" in err


@pytest.mark.parametrize(("name", "value"), [("depth", -1), ("time_s", NAN), ("calls", INF)])
def test_profiles(name, value, tmp_path, capsys):
    def change(file):
        point = file.rows[0]["point"]
        file.profiles = {("run-0001", point): synthetic.profile({"a": 1.0, "b": 2.0})}

    path = made(tmp_path / "x.h5", change)
    with h5py.File(path, "r+") as file:
        group = file["profile/run-0001"]
        data = group[next(iter(group))]
        table = data[()]
        table[name][0] = value
        data[()] = table
    status, out, err = run(capsys, "export", path, "--trace", "-")
    assert (status, out, err.count("\n")) == (2, "", 1) and f" with {name} " in err


def test_a_fifo_is_not_waited_for(tmp_path, capsys):
    for command, name in (("readme", "x.md"), ("fresh", "x.h5"), ("compare", "y.h5")):
        os.mkfifo(tmp_path / name)
        status, out, err = run(capsys, command, *[tmp_path / name] * (2 if command == "compare" else 1))
        assert (status, out, err.count("\n")) == (2, "", 1)
    (tmp_path / "README.md").symlink_to("x.md")
    for command in ("index", "portability"):
        status, out, err = run(capsys, command, tmp_path)
        assert (status, out, err.count("\n")) == (2, "", 1) and "FIFO" in err
