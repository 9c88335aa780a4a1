"""Memory in the page and its figures: what is known of it, what is not, and how it grows."""

import math

import numpy as np
import synthetic
from katt_report import groups, headline, load
from katt_report.compare import compare
from katt_report.derived.growth import exponents
from katt_report.figures import draw_all
from katt_report.pages.page import report
from matplotlib.offsetbox import TextArea


def memory_labels(group) -> tuple[set[str], set[str]]:
    """The legend of the figure of memory, and what the corner of its first panel says of the growth."""
    (plot,) = (plot for plot in draw_all(group) if plot.name.startswith("memory"))
    corner = {area.get_text() for area in plot.figure.axes[0].findobj(TextArea)}
    return {text.get_text() for text in plot.figure.legends[0].get_texts()}, corner


def a_sweep(sizes=(512, 1024, 2048, 4096)) -> synthetic.File:
    return synthetic.attention_seqlen(sizes=sizes, dtypes=("f32",))


def with_a_peer(file: synthetic.File, **memory) -> synthetic.File:
    """The sweep with a row `torch_flash` beside each of flash."""
    for line in [line for line in file.rows if line["variant"] == "flash"]:
        file.rows.append(line | {"variant": "torch_flash", "point": line["point"] + "t", **memory})
    return file


def test_a_file_without_the_columns_is_read(tmp_path):
    old = synthetic.write(tmp_path / "old.h5", with_a_peer(a_sweep(), workspace_bytes=0, total_bytes=0))
    new = synthetic.write(tmp_path / "new.h5", synthetic.measured_by_space(a_sweep()))
    points = load(old, new).points
    ours = points.where(points["variant"] != "torch_flash")
    assert np.all(ours["total_bytes"] > 0)
    assert np.isnan(ours.where(source="old.h5")["host_bytes"]).all()
    assert np.array_equal(ours.where(source="new.h5")["host_bytes"], ours.where(source="new.h5")["total_bytes"])
    peer = points.where(variant="torch_flash")
    assert np.isnan(peer["total_bytes"]).all() and np.isnan(peer["workspace_bytes"]).all()
    for sides in ((old, new), (new, old)):
        assert compare(*map(load, sides), allow_lost=True).verdict.startswith("no regression")


def test_a_peer_is_drawn_where_its_memory_is_known(tmp_path):
    unknown = {"workspace_bytes": math.nan, "total_bytes": math.nan}
    file = with_a_peer(with_a_peer(a_sweep()), **unknown)  # known, and the same rows again without: the last count
    known = load(synthetic.write(tmp_path / "known.h5", with_a_peer(a_sweep())))
    assert "torch_flash" in memory_labels(groups(known)[0])[0]
    results = load(synthetic.write(tmp_path / "unknown.h5", synthetic.measured_by_space(file)))
    assert memory_labels(groups(results)[0])[0] == {"naive", "flash"}
    page = report(results)["report.html"].decode()
    row = next(line for line in page.splitlines() if "torch_flash" in line and "<td" in line)
    assert row.count(">–<") == 2, "workspace and total"


def test_both_parts_are_shown_where_there_are_two(tmp_path):
    file = a_sweep(sizes=(512, 1024, 2048))
    on_host = report(load(synthetic.write(tmp_path / "h.h5", synthetic.measured_by_space(file))))["report.html"].decode()
    assert " host +" not in on_host
    file = synthetic.measured_by_space(a_sweep(sizes=(512, 1024, 2048)), device=0.75)
    on_both = report(load(synthetic.write(tmp_path / "d.h5", file)))["report.html"].decode()
    assert on_both.count(" host +") == len(file.rows)


def test_a_workspace_that_does_not_grow_has_no_exponent(tmp_path):
    file = a_sweep()
    for line in file.rows:
        line["workspace_bytes"] = 0 if line["variant"] == "flash" else 4096
    results = load(synthetic.write(tmp_path / "r.h5", file))
    (group,) = groups(results)
    assert memory_labels(group)[1] == {"flash: none", "naive: 4.00 KiB at every N"}
    text = " ".join(headline(results)[0][1])
    assert "workspace: naive at most 4.00 KiB at every N, flash none." in text
    assert "^0.00" not in text
    page = report(results)["report.html"].decode()
    assert page.count(">none<") == 4


def test_two_sizes_are_no_exponent(tmp_path):
    (group,) = groups(load(synthetic.write(tmp_path / "r.h5", a_sweep(sizes=(512, 1024)))))
    assert set(exponents(group).values()) == {None}
    assert memory_labels(group) == ({"flash", "naive"}, set())
