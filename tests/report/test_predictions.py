"""`katt-report predicted`: predicted times beside measured ones."""

import json
import math

import pytest
import synthetic
from katt_report.cli import main
from katt_report.published.files import result_files

# Seconds by (queries, variant, tile_q): what a model expects, and what a sweep measured.
PREDICTED = {(4096, "flash", 64): 1e-3, (8192, "flash", 64): 4e-3, (8192, "flash", 128): 3e-3, (16384, "flash", 64): 1.0}
MEASURED = {(4096, "flash", 64): 2e-3, (8192, "flash", 64): 2e-3, (8192, "flash", 128): 3.3e-3, (8192, "naive", 0): 1.0}


def write(path, times, columns):
    file = synthetic.File(runs={"run-0001": synthetic.run_attributes()})
    for (seq, variant, tile_q), seconds in times.items():
        case = synthetic.attention_case(seq, "bf16", causal=1)
        tile = {"tile_q": tile_q, "tile_kv": 64 if tile_q else 0, "point": f"p{len(file.rows)}"}
        file.rows.append(synthetic.row(**case, variant=variant, **tile, **columns(seconds)))
    return synthetic.write(path, file)


@pytest.fixture
def predicted(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(synthetic, "COLUMNS", [*synthetic.COLUMNS, "predicted_time_s"])
        return write(tmp_path / "predicted.h5", PREDICTED, columns=lambda seconds: {
            "status": "skipped", "reason": "predicted, not run", "predicted_time_s": seconds, "backend": "cuda"})  # fmt: skip


@pytest.fixture
def measured(tmp_path):
    return write(tmp_path / "measured.h5", MEASURED, columns=lambda seconds: {"time_s": seconds, "label": "first"})


def test_measured_over_predicted_time_row_by_row(predicted, measured, capsys):
    assert main(["predicted", predicted, measured]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines[1:4]] == ["2.00", "0.50", "1.10"]
    assert "seq_q=8192" in lines[3] and "tile=128x64" in lines[3] and lines[4].endswith("-")
    flops = synthetic.attention_case(4096, "bf16", causal=1)["flops"]
    assert f"{flops / 1e-3 * 1e-12:.0f} TFLOP/s" in lines[1] and f"{flops / 2e-3 * 1e-12:.0f} TFLOP/s" in lines[1]
    mean = (2.0 * 0.5 * 1.1) ** (1 / 3)
    assert lines[5] == (f"3 of 4 predictions were measured: measured over predicted time {mean:.2f} in the geometric mean, "
                        "0.50 to 2.00")  # fmt: skip


def test_a_prediction_without_a_tile_meets_the_fastest(measured, tmp_path, capsys):
    file = write(tmp_path / "any.h5", {(8192, "flash", 0): 1e-3}, columns=lambda seconds: {"predicted_time_s": seconds})
    assert main(["predicted", file, measured]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[-1] == "2.00"


def test_the_same_as_json(predicted, measured, capsys):
    assert main(["predicted", predicted, measured, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["measured_s"] for row in found["rows"]] == [2e-3, 2e-3, 3.3e-3, None]
    assert math.isclose(found["geometric_mean_ratio"], 1.1 ** (1 / 3))


def test_files_that_cannot_be_compared_are_refused(predicted, measured, tmp_path, capsys):
    assert main(["predicted", measured, measured]) == 2
    assert "no predicted time, expected rows with predicted_time_s" in capsys.readouterr().err
    other = write(tmp_path / "other.h5", {(512, "flash", 64): 1.0}, columns=lambda seconds: {"time_s": seconds})
    assert main(["predicted", predicted, other]) == 2
    assert "no measured row of predicted.h5" in capsys.readouterr().err


def test_times_of_0_are_none(measured, tmp_path, capsys):
    times = {(4096, "flash", 64): 0.0, (8192, "flash", 64): 0.0}
    of_0 = write(tmp_path / "of_0.h5", times, lambda seconds: {"time_s": seconds})
    file = write(tmp_path / "any.h5", {(4096, "flash", 64): 0.0, (8192, "flash", 64): 1e-3},
                 columns=lambda seconds: {"predicted_time_s": seconds})  # fmt: skip
    assert main(["predicted", file, measured]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("1 of 1 predictions were measured")
    assert main(["predicted", file, of_0]) == 2
    assert "no measured row of any.h5" in capsys.readouterr().err


def test_predictions_are_no_result_of_a_machine(predicted, measured, tmp_path):
    assert [path.name for path in result_files([tmp_path])] == ["measured.h5"]
