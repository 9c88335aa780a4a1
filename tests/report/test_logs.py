"""Logs of katt train and katt generate: phases by operator."""

import h5py
import numpy as np
import pytest
from katt_report import InputError, cli
from katt_report.figures.shares import rest_of
from katt_report.isolation import logs_or_results
from katt_report.pages.log_page import curves, log_lines, log_report, profile_table
from katt_report.published.source import open_source

KIND = np.dtype([("name", "S96"), ("depth", "<i8"), ("calls", "<f8"), ("time_s", "<f8"), ("flops", "<f8"),
                 ("bytes", "<f8"), ("ceiling", "S24"), ("ceiling_fraction", "<f8")])  # fmt: skip
ROWS = [
    ("prefill", 0, 1, 0.4, 0, 0, b"", np.nan),
    ("katt::linear", 1, 14, 0.3, 3e9, 6e6, b"fma_f32", 0.8),
    ("katt::linear::pack", 2, 14, 0.1, 0, 0, b"", np.nan),
    ("katt::rope", 1, 2, 0.05, 1e6, 2e6, b"copy_dram", 0.5),
    ("Kokkos::ViewFill", 0, 1, 0.01, 0, 0, b"", np.nan),
    ("decode", 0, 1, 0.5, 0, 0, b"", np.nan),
    ("katt::linear", 1, 28, 0.45, 1e9, 6e8, b"read_dram", 0.9),
]


def log(path, rows=ROWS, **about):
    with h5py.File(path, "w") as file:
        file.attrs.update({"generator": "katt", "log": "generate", "dtype": "f32", "device": "Z80", **about})
        data = file.create_dataset("profile", data=np.array(rows, KIND))
        data.attrs.update(runs=np.int64(1), time_s=1.0)
        file["loss"] = np.array([3.0, 2.5], "<f4")
    return path


def test_phases_are_profiles_of_their_own(tmp_path):
    (read,) = logs_or_results(log(tmp_path / "a.h5"))[0]
    assert [part.name for part in read.profile.outermost] == ["prefill", "Kokkos::ViewFill", "decode"]
    first = read.profile.phase(read.profile.outermost[0])
    assert [part.name for part in first.outermost] == ["katt::linear", "katt::rope"]
    assert [part.name for part in first.inside(first.outermost[0])] == ["katt::linear::pack"]
    assert rest_of(first).time_s == pytest.approx(0.05)
    assert rest_of(read.profile).time_s == pytest.approx(0.09)


def test_words_and_table(tmp_path):
    (read,) = logs_or_results(log(tmp_path / "a.h5"))[0]
    lines = log_lines(read)
    assert lines[0] == "2 steps: loss 3 to 2.5."
    assert lines[1] == "prefill: 400 ms of an answer, 40 %; of it linear 75 % and rope 12 %."
    table = profile_table(read.profile)
    for text in ("prefill", "3.00 GFLOP", "80 % fma_f32", "50 % copy_dram", "rest"):
        assert text in table
    files = log_report([read])
    assert set(files) == {"report.html", "phases.svg", "phases.png", "loss.svg", "loss.png"}


def test_a_log_says_how_it_was_made(tmp_path):
    about = {"cpu_id": "AuthenticAMD 25 17", "isa": "avx2", "cores": np.int64(2), "commit": "0123456789", "dirty": np.int64(1),
             "finished_at": "2026-11-27T01:02:03Z"}  # fmt: skip
    source = open_source(log(tmp_path / "a.h5", **about))
    assert source.about == {"machine": "zen4-avx2-2c", "device": "Z80, 2 cores", "commit": "0123456, modified", "date": "2026-11-27"}
    assert [row["loss"] for row in source.rows] == [3.0, 2.5]


def test_logs_and_results_are_not_mixed(tmp_path, files, capsys):
    path = log(tmp_path / "a.h5")
    assert logs_or_results(files["seqlen"])[0] == []
    assert cli.main([str(path), files["seqlen"], "-o", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_profile_that_is_none(tmp_path):
    path = log(tmp_path / "a.h5")
    with h5py.File(path, "r+") as file:
        del file["profile"]
        file.create_group("profile")
    with pytest.raises(InputError):
        logs_or_results(path)


def training(path, losses, **columns):
    with h5py.File(path, "w") as file:
        file.attrs.update({"generator": "katt", "log": "train", "dtype": "f32", "device": "Z80"})
        for name, values in {"loss": losses, **columns}.items():
            file[name] = np.array(values, "<f8")
    return path


def test_a_training_log_shows_its_loss(tmp_path):
    losses = 3.0 * np.exp(-np.arange(200) / 60) + 1.0
    losses[150] = np.nan
    path = training(tmp_path / "t.h5", losses, grad_norm=losses / 2, lr=np.full(200, 1e-3), time_s=0.1 + losses / 100)
    (read,) = logs_or_results(path)[0]
    plot = curves(read, "loss")
    panels = {panel.get_ylabel(): panel for panel in plot.figure.axes}
    assert list(panels) == ["loss", "norm of the gradient", "time of a step"]  # a constant rate has no panel
    (line,) = panels["loss"].get_lines()
    assert np.array_equal(line.get_xdata(), np.arange(1, 201))
    assert np.array_equal(line.get_ydata(), losses, equal_nan=True)
    assert log_lines(read)[:2] == ["200 steps: loss 4 to 1.109.", "1 step with a loss that is no number."]
    files = log_report([read])
    assert set(files) == {"report.html", "loss.svg", "loss.png"}
    assert "<h3>Loss</h3>" in files["report.html"].decode()


def test_options_for_rows_are_refused_for_logs(tmp_path, capsys):
    path = str(training(tmp_path / "t.h5", [3.0, 2.0]))
    for option in (["--baseline", "naive"], ["--only", "dtype=f32"]):
        assert cli.main([path, *option, "-o", str(tmp_path / "out")]) == 2
        assert "a log, which has no rows" in capsys.readouterr().err
    assert cli.main([path, "--table"]) == 0
    assert capsys.readouterr().out.startswith("2 steps: loss 3 to 2.")


def test_logs_of_no_time_or_of_numbers_without_end(tmp_path, capsys):
    paths = [training(tmp_path / "huge.h5", [1e300, 1e-320], lr=[1e308, -1e308]), training(tmp_path / "empty.h5", [])]
    paths += [log(tmp_path / f"{index}.h5", rows) for index, rows in enumerate(
        (ROWS[:0], ROWS[1:2], [("prefill", 0, 1, 0.0, 0, 0, b"", np.nan), *ROWS[1:3]]))]  # fmt: skip
    for path in paths:
        assert cli.main([str(path), "-o", str(tmp_path / "out")]) == 0, path
        assert capsys.readouterr().err == ""
