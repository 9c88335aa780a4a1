"""scripts/gpu_predictions: rows from the cycles of kernels, in the form of a result file. No CUDA toolkit is needed."""

import sys
from pathlib import Path

import h5py
import pytest
from sass_listings import load

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
kernel_cycles = pytest.importorskip("kernel_cycles")


@pytest.fixture(scope="module")
def predictions():
    return load("gpu_predictions")


def kernel(name, hgmma):
    """A kernel of two warpgroups whose iteration is products alone."""
    path = kernel_cycles.Path(instructions=10, hgmma=hgmma)
    return {"kernel": name, "cycles": kernel_cycles.Cycles(path, kernel_cycles.Path(), kernel_cycles.Path(), 2)}


KERNELS = [
    kernel("FlashWgmma<bf16, 128, 128, 64, NoRule>", 1000), kernel("FlashWgmma<bf16, 128, 128, 128, NoRule>", 1500),
    kernel("FlashWgmma<f16, 128, 128, 128, NoRule>", 10), kernel("FlashWgmma<bf16, 256, 128, 64, NoRule>", 4000),
    kernel("FlashMmaBackwardQ<bf16, 128, 64, 64, NoRule>", 800),
    kernel("FlashMmaBackwardKv<bf16, 128, 32, 64, NoRule>", 600),
    {"kernel": "WideRows<Cuda, rmsnorm::Forward<Cuda, bf16> >", "predicted": 2500.0},
]  # fmt: skip


def test_a_row_for_every_tile_of_a_variant_and_every_problem(predictions):
    rows = predictions.rows_of(KERNELS)
    names = [(row["variant"], row["pass"], row["tile"]) for row in rows if row["seq_q"] == 8192 and row["head_dim"] == 128]
    assert names == [("flash_wgmma", "forward", "128x64"), ("flash_wgmma", "forward", "128x128"),
                     ("flash_mma", "backward", "32x64")]  # fmt: skip
    assert {row["tile"] for row in rows if row["head_dim"] == 256} == {"128x64"}
    assert [row["point"] for row in rows[:2]] == ["000001", "000002"]


def test_the_time_is_the_models_and_the_work_that_of_a_sweep(predictions):
    (row,) = [row for row in predictions.rows_of(KERNELS) if row["tile"] == "128x128" and row["seq_q"] == 16384]
    problem = predictions.figures(128, 16384, True)
    assert row["predicted_time_s"] == kernel_cycles.attention_time(KERNELS[1]["cycles"], problem, 128, 128)
    assert row["flops"] == 4 * 16 * 128 * (16384 * 16385 // 2)
    assert row["bytes"] == 4 * 16 * 16384 * 128 * 2 + 4 * 16 * 16384, "q, k, v, out and lse"
    assert row["status"] == "skipped" and row["time_s"] != row["time_s"]


def test_a_backward_pass_is_the_sum_of_its_kernels(predictions):
    (row,) = [row for row in predictions.rows_of(KERNELS) if row["pass"] == "backward" and row["seq_q"] == 16384]
    problem = predictions.figures(128, 16384, True)
    assert row["predicted_time_s"] == pytest.approx(
        kernel_cycles.attention_time(KERNELS[4]["cycles"], problem, 64, 64)
        + kernel_cycles.attention_time(KERNELS[5]["cycles"], problem, 64, 32, "queries"))  # fmt: skip


def test_an_operator_takes_the_time_of_its_bytes(predictions):
    (row,) = [row for row in predictions.rows_of(KERNELS) if row["op"] == "rmsnorm"]
    assert row["predicted_time_s"] == pytest.approx(2 * (2 * 16384 * 4096 + 4096) / 2500e9 + kernel_cycles.LAUNCH)


def test_the_file_is_a_result_file_with_one_column_more(predictions, tmp_path):
    sys.path.insert(0, str(ROOT / "drivers" / "report"))
    from katt_report import load

    rows = predictions.rows_of(KERNELS)
    predictions.write(tmp_path / "h100.h5", rows)
    points = load(str(tmp_path / "h100.h5")).points
    assert points["predicted_time_s"].tolist() == [row["predicted_time_s"] for row in rows]
    with h5py.File(tmp_path / "h100.h5") as file:
        about = file["runs/run-0001"].attrs
        assert b"UNHIDDEN" in about["model"] and about["started_at"].endswith(b"Z")
