"""The model of a training step: its parts against what they are made of, the whole against published and own steps."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import h5py
import numpy
import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "drivers" / "report"))

from katt_report import load  # noqa: E402
from published_steps import CLUSTERS, PUBLISHED, check  # noqa: E402
from step_model import (  # noqa: E402
    MODELS,
    Cluster,
    Layout,
    Link,
    Model,
    Step,
    forecast_memory,
    gather_time,
    measured_device,
    predict,
)

H100 = CLUSTERS["h100"]
ENDLESS = replace(H100, inside=Link(0, 1e30), between=Link(0, 1e30))


def test_sizes_are_those_of_the_models():
    billions = {name: round(model.parameters / 1e9, 1) for name, model in MODELS.items()}
    assert billions == {
        "llama-2-13b": 13.0,
        "llama-2-70b": 69.0,
        "llama-3-8b": 8.0,
        "llama-3-70b": 70.6,
        "llama-3-405b": 405.9,
    }


def test_a_message_is_latency_and_bytes():
    assert gather_time(Link(1e-6, 1e9), 4, 4e9) == pytest.approx(3e-6 + 3.0)
    assert gather_time(Link(1e-6, 1e9), 1, 4e9) == 0


def test_ranks_of_a_host_share_its_adapters():
    assert H100.link(8, 1) == H100.inside
    assert H100.link(64, 8).bytes_s == H100.between.bytes_s  # a rank a host
    assert H100.link(64, 2).bytes_s == 4 * H100.between.bytes_s
    assert H100.link(64, 1).bytes_s == H100.inside.bytes_s


def test_flops_over_rates_are_the_time_of_products():
    model, step = MODELS["llama-3-8b"], Step(seq=8192, rows=1)
    one = predict(model, H100, Layout(), step)
    flops = 6 * model.num_hidden_layers * model.block_weights * step.seq
    assert one.parts["products"] == pytest.approx(flops / H100.device.product["bf16"])
    assert one.step_s == pytest.approx(sum(one.parts.values()))
    assert one.model_flops == pytest.approx(one.tflops_per_gpu * 1e12 * one.step_s)
    again = predict(model, H100, Layout(), replace(step, recompute="full"))
    assert again.parts["products"] == pytest.approx(4 / 3 * one.parts["products"])


@pytest.mark.parametrize(
    "layout", [Layout(data=8), Layout(tensor=8), Layout(context=4), Layout(data=8, sharding="fsdp")]
)
def test_without_cost_of_messages_ranks_share_the_work(layout):
    model, step = MODELS["llama-3-8b"], Step(seq=8192, rows=64)
    one = predict(model, ENDLESS, Layout(), step)
    shared = predict(model, ENDLESS, layout, step)
    for part in ("products", "attention", "elementwise", "head"):
        assert shared.parts[part] == pytest.approx(one.parts[part] / layout.gpus)
    assert shared.parts["tensor"] + shared.parts["context"] + shared.parts["data"] == pytest.approx(0, abs=1e-12)
    costly = predict(model, H100, layout, step)
    assert costly.step_s > shared.step_s


def test_the_bubble_is_that_of_1f1b():
    model = MODELS["llama-3-405b"]
    for virtual in (1, 2):
        layout = Layout(pipeline=8, virtual=virtual)
        got = predict(model, ENDLESS, layout, Step(seq=4096, rows=32))
        work = sum(time for name, time in got.parts.items() if name not in ("bubble", "send", "optimizer"))
        assert got.parts["bubble"] / work == pytest.approx(7 / virtual / 32)


def test_more_gpus_than_rows_are_refused():
    with pytest.raises(ValueError, match="rows 8: expected a multiple of data 16"):
        predict(MODELS["llama-3-8b"], H100, Layout(data=16), Step(seq=128, rows=8))
    with pytest.raises(ValueError, match="the model has 32 blocks"):
        predict(MODELS["llama-3-8b"], H100, Layout(pipeline=64), Step(seq=128, rows=8))


def test_published_steps_are_predicted():
    # docs/step_model.md states this error.
    rows = check()
    errors = numpy.abs([error for row, _, error in rows if not row.fitted])
    assert len(errors) == len(PUBLISHED) - len(CLUSTERS) and len(errors) >= 15
    assert errors.mean() < 0.065 and errors.max() < 0.155
    for row, _, error in rows:
        assert not row.fitted or abs(error) < 1e-3
    assert {row.layout.gpus for row in PUBLISHED} >= {8, 64, 128, 512, 1024, 8192, 16384}


def test_own_steps_are_predicted_from_own_kernels():
    points = [
        load(REPOSITORY / "results" / "zen4-avx512bf16-2c" / file).points
        for file in ("baselines/baselines.h5", "attention_tiling/attention_tiling.h5", "fused_ops/fused_ops.h5")
    ]
    model = Model.read_config(REPOSITORY / "experiments" / "byte_model")
    assert model.parameters == 10081600
    with h5py.File(REPOSITORY / "results" / "zen4-avx512bf16-2c" / "model_speed" / "training.h5") as file:
        times, dtypes, sides, models, tokens = (
            file[name][...] for name in ("time_s", "dtype", "side", "model", "tokens")
        )
    sustained = {}
    for dtype in ("bf16", "f32"):
        cluster = Cluster(measured_device(points, dtype), Link(0, 1), Link(0, 1))
        got = predict(model, cluster, Layout(), Step(seq=256, rows=4, micro_rows=4, products=dtype))
        own = (dtypes == dtype.encode()) & (sides == b"Katt") & (models == b"10 M") & (tokens == 256)
        sustained[dtype] = got.step_s / numpy.median(times[own])
    # docs/step_model.md: about four fifths.
    assert all(0.6 < share < 1.1 for share in sustained.values()), sustained
    with pytest.raises(ValueError, match="linear forward f64: no row"):
        measured_device(points, "f64")


def test_memory_is_what_katt_says(tmp_path):
    katt = Path(os.environ.get("KATT_BUILD_DIR", "build/openmp")) / "katt"
    if not katt.exists():
        pytest.skip("skipped: katt is not built")
    model = Model(64, 160, 4, 4, 4, 96, 16)
    layout = Layout(tensor=2, pipeline=2, data=2)
    step = Step(seq=32, rows=8)
    every = forecast_memory(katt, model, layout, step, tmp_path)
    assert len(every) == 8
    alone = forecast_memory(katt, model, Layout(), step, tmp_path)
    assert len(alone) == 1 and max(every) < alone[0] < sum(every)
    with pytest.raises(RuntimeError, match="--tensor 8: the model has 4 heads"):
        forecast_memory(katt, model, Layout(tensor=8), step, tmp_path)
