"""Points of paired axes: the rate relative to the reference, its figure and its sentence."""

import json

import numpy as np
import pytest
import synthetic
from katt_report import load
from katt_report.compare import compare
from katt_report.derived.paired import relative_rates
from katt_report.figures import draw_all, paired
from katt_report.figures.style import group_looks
from katt_report.groups import groups
from katt_report.headline import sentences
from katt_report.pages.page import points_table
from katt_report.schema import is_identity

SHARES = (1.0, 0.5, 0.25)
LOST = {"f32": 0.02, "bf16": 0.1}
"""The share of the dense time that does not depend on the live blocks."""


def block_masks(goal: float = 0.8, to: str = "block_density=1") -> synthetic.File:
    """Two lengths at three live shares, paired with the dense points."""
    file = synthetic.File(runs={"run-0001": synthetic.run_attributes(settings=json.dumps({"paired_goal": goal}))})
    for dtype, lost in LOST.items():
        for seq in (1024, 2048):
            for share in SHARES:
                ratio = (1 + lost) / (share + lost)
                file.rows.append(synthetic.row(
                    **synthetic.attention_case(seq, dtype) | {"flops": seq * seq * share}, variant="flash", tile="auto",
                    block_density=share, time_s=1e-3 / ratio, time_lo_s=0.99e-3 / ratio, time_hi_s=1.01e-3 / ratio,
                    tflops=1e-9 * seq * seq * share * ratio, point=f"{len(file.rows):06d}", total_bytes=1e6,
                    workspace_bytes=1e3, paired_ratio=ratio, paired_ratio_lo=0.98 * ratio, paired_ratio_hi=1.02 * ratio,
                    paired_to=to, ceiling="fma_f32", ceiling_fraction=0.5,
                ))  # fmt: skip
    return file


@pytest.fixture
def group(tmp_path):
    return groups(load(synthetic.write(tmp_path / "paired.h5", block_masks())))[0]


def test_the_rate_is_that_of_work_relative_to_the_reference(group):
    rates = relative_rates(group)
    assert len(rates) == 12
    for row in rates.rows():
        lost = LOST[row["dtype"]]
        expected = row["block_density"] * (1 + lost) / (row["block_density"] + lost)
        assert row["rate"] == pytest.approx(expected)
        assert (row["rate_lo"], row["rate_hi"]) == (pytest.approx(0.98 * expected), pytest.approx(1.02 * expected))


def test_the_figure_has_a_line_a_length_and_the_goal(group):
    plot = paired(group)
    assert plot.name == "paired" and plot.title in [one.title for one in draw_all(group)]
    f32, bf16 = plot.figure.axes
    assert [f32.get_title(), bf16.get_title()] == ["f32", "bf16"]
    labels = f32.get_legend_handles_labels()[1]
    assert labels.count("expected: 0.8") == 1 and sum("N = " in label for label in labels) == 2
    assert [text.get_text() for text in f32.get_xticklabels()] == ["0.25", "0.5", "1"]


def test_a_variant_has_its_look_of_the_page(tmp_path):
    file = block_masks()
    file.rows = [line for line in file.rows if line["seq_q"] == 1024]
    file.rows += [line | {"variant": name, "point": line["point"] + name} for line in file.rows for name in ("naive", "amx")]
    group = groups(load(synthetic.write(tmp_path / "three.h5", file)))[0]
    drawn = paired(group).figure.colours
    assert drawn == {name: look.colour for name, look in group_looks(group).items() if name in drawn} and len(drawn) == 3


def test_words_and_table_name_the_reference(group):
    line = next(line for line in sentences(group) if "Paired" in line and "bf16" in line)
    assert line.startswith("Paired with block_density=1 in bf16, the rate of work is 0.786× (95 % interval 0.770–0.801")
    table = points_table(group)
    assert "over block_density=1 (95 %)" in table


def test_a_reference_may_be_a_name(tmp_path):
    file = block_masks(to="dtype=f32")
    for line in file.rows:
        line |= {"paired_ratio": 1.0 if line["dtype"] == "f32" else 3.0}
    group = groups(load(synthetic.write(tmp_path / "dtypes.h5", file)))[0]
    (panel,) = paired(group).figure.axes
    assert [text.get_text() for text in panel.get_xticklabels()] == ["bf16", "f32"]
    assert set(relative_rates(group)["rate"]) == {1.0, 3.0}


def test_files_without_pairs_have_no_such_figure(files, tmp_path):
    for group in groups(load(files["seqlen"])):
        assert paired(group) is None and not any("Paired" in line for line in sentences(group))
    file = block_masks()
    for line in file.rows:
        line |= dict.fromkeys(("paired_ratio", "paired_ratio_lo", "paired_ratio_hi"), np.nan)
    (group,) = groups(load(synthetic.write(tmp_path / "unpaired.h5", file)))
    assert paired(group) is None, "the group did not fit in memory"


def test_pairs_are_no_axes(group, tmp_path):
    assert not any(is_identity(name) for name in ("paired_to", "paired_ratio", "paired_ratio_lo", "paired_ratio_hi"))
    old = block_masks(to="")
    for line in old.rows:
        for name in ("paired_to", "paired_ratio", "paired_ratio_lo", "paired_ratio_hi"):
            del line[name]
    before = load(synthetic.write(tmp_path / "old.h5", old))
    assert len(compare(before, before).rows) == 12


def test_rows_along_another_axis_are_no_marks(tmp_path):
    """A group may be paired along several axes from one reference; the figure has those along the longest."""
    file = block_masks()
    for line in [line for line in file.rows if line["block_density"] == 1]:
        file.rows.append(line | {"softcap": 20.0, "paired_to": "softcap=0", "point": f"{len(file.rows):06d}",
                                 "paired_ratio": 0.125, "paired_ratio_lo": 0.1, "paired_ratio_hi": 0.15})  # fmt: skip
    group = groups(load(synthetic.write(tmp_path / "two.h5", file)))[0]
    assert len(relative_rates(group)) == 12 + 4
    plot = paired(group)
    assert plot.title == "Rate over block_density, paired with block_density=1"
    assert "0.125" not in "".join(line for line in sentences(group) if "Paired" in line)
