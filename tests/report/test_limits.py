"""Ceilings that contradict each other, and rows above theirs."""

import math

import numpy as np
import pytest
import synthetic
from katt_report import figures, groups, headline, load
from katt_report.figures import draw_all
from katt_report.headline import cautions
from katt_report.limits import believed, checked
from katt_report.load import Ceiling
from katt_report.pages.page import report
from katt_report.pages.points_table import text_table
from katt_report.points import Points


def ceilings(**values) -> list[Ceiling]:
    return [Ceiling(name, value, "B/s", 2, 0, "r.h5", "run-0001") for name, value in values.items()]


def doubted(**values) -> set[str]:
    """The names of the ceilings that are not believed."""
    return {c.name for c in checked(ceilings(**values)) if math.isnan(c.value)}


@pytest.mark.parametrize(("values", "names"), [
    ({"read_l1": 600, "read_l2": 240, "read_dram": 44}, set()),
    ({"read_l1": 30, "read_l2": 240, "read_dram": 44}, {"read_l1"}),  # the nearer one was disturbed
    ({"read_l1": 600, "read_l2": 20, "read_l3": 25, "read_dram": 44}, {"read_l2", "read_l3"}),
    ({"read_l1": 600, "read_l2": 42, "read_dram": 44}, set()),  # within the noise of two measurements
    ({"copy_l2": 30, "copy_dram": 40, "read_l2": 240}, {"copy_l2"}),
    ({"stream_copy_dram": 10, "copy_dram": 40}, set()),  # no ceiling of a row
    ({"fma_f32": 470, "amx_bf16": 300}, {"amx_bf16"}), ({"fma_f32": 470, "avx512_bf16": 940}, set()),
    ({"read_l1": math.nan, "read_dram": 44}, {"read_l1"}),
])
def test_which_ceilings_are_believed(values, names):
    assert doubted(**values) == names


def test_other_threads_and_runs_contradict_nothing():
    one, two = ceilings(read_l1=30)[0], ceilings(read_dram=44)[0]
    assert not math.isnan(checked([one, Ceiling("read_dram", 44, "B/s", 1, 0, "r.h5", "run-0001")])[0].value)
    assert math.isnan(checked([one, two])[0].value)


def test_a_disturbed_ceiling_is_a_dash(tmp_path):
    file = synthetic.attention_seqlen(sizes=(512, 1024, 2048), dtypes=("bf16",))
    slow = {"read_l1": 20e9, "amx_bf16": 100e9}
    file.ceilings["run-0001"] = [(name, slow.get(name, value), *rest) for name, value, *rest in synthetic.CEILINGS]
    results = load(synthetic.write(tmp_path / "r.h5", file))
    assert "read_l1" in cautions(results)[0] and "amx_bf16" in cautions(results)[0]
    page = report(results)["report.html"].decode()
    assert page.count("– disturbed") == 2
    (group,) = groups(results)
    assert "ceiling" not in [plot.name for plot in draw_all(group)], "no row has a believable ceiling"
    assert "– (disturbed)" in text_table(group)
    assert not any("Nearest to a measured ceiling" in line for line in headline(results)[0][1])


def test_a_disturbed_ceiling_of_one_thread_doubts_no_row_of_two():
    points = Points({"source": np.array(["r.h5"] * 2), "run": np.array(["run-0001"] * 2), "threads": np.array([1, 2]),
                     "ceiling": np.array(["fma_f32"] * 2), "ceiling_fraction": np.array([0.5, 0.5])})  # fmt: skip
    held = [Ceiling("fma_f32", value, "FLOP/s", threads, 0, "r.h5", "run-0001") for threads, value in ((1, math.nan), (2, 1))]
    assert np.isnan(believed(points, held)).tolist() == [True, False]


def test_a_row_above_its_ceiling_has_no_share(tmp_path):
    file = synthetic.attention_seqlen(sizes=(512, 1024, 2048), dtypes=("f32",))
    above = next(row for row in file.rows if row["variant"] == "flash" and row["seq_q"] == 1024)
    above["ceiling_fraction"] = 23.86
    results = load(synthetic.write(tmp_path / "r.h5", file))
    (group,) = groups(results)
    assert "1 row above the ceiling" in cautions(results)[0]
    assert "– (above fma_f32)" in text_table(group) and "2386 %" not in text_table(group)
    plot = next(plot for plot in draw_all(group) if plot.name == "ceiling")
    assert plot.figure.axes[0].get_xlim()[1] < 100


@pytest.mark.parametrize(("ceilings_of", "drawn", "peak"), [((1, 2), 2, 470), ((1,), 1, 235)])
def test_a_roofline_has_the_points_of_its_threads(tmp_path, ceilings_of, drawn, peak):
    """As many points of one thread as of two: the larger number, if its ceilings were measured."""
    file = synthetic.attention_seqlen(sizes=(512, 1024), dtypes=("f32",))
    file.rows += [row | {"threads": 1, "point": row["point"] + "t"} for row in file.rows]
    file.ceilings["run-0001"] = [(name, value * threads / 2, unit, size, threads)
                                 for threads in ceilings_of
                                 for name, value, unit, size in synthetic.CEILINGS]  # fmt: skip
    (group,) = groups(load(synthetic.write(tmp_path / "r.h5", file)))
    plot = figures.roofline(group)
    assert plot.caption.endswith(f" Only points of {drawn} thread{'s'[: drawn != 1]} are drawn.")
    assert len(plot.figure.marks) == 4, "two sizes and two variants"
    assert f"fma_f32 {peak} GFLOP/s" in [text.get_text() for text in plot.figure.axes[0].texts]
