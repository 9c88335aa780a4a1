"""The page and its figures: complete, self-contained, honest about what is missing."""

import base64
import dataclasses
import io
import json
import math
import re
import sys
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import matplotlib.image
import pytest
import synthetic
from katt_report import figures, groups, headline, load
from katt_report.derived.growth import exponents
from katt_report.figures import draw_all
from katt_report.figures.marks import SCALE
from katt_report.figures.shares import shares
from katt_report.pages.output import render
from katt_report.pages.page import report
from katt_report.pages.shares_table import shares_table
from matplotlib.offsetbox import TextArea


def page_of(results) -> str:
    """The page as text."""
    return report(results)["report.html"].decode()


def bar_lengths(panel) -> list[float]:
    """Of stacked bars, from top to bottom."""
    ends = {round(bar.get_y(), 3): bar.get_x() + bar.get_width() for bar in panel.patches}
    return [ends[y] for y in sorted(ends)]


class Outline(HTMLParser):
    """Headings, image addresses and unclosed elements of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.headings, self.addresses, self.open, self.errors = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.addresses += [value for name, value in attributes if name in ("src", "href")]
        if tag not in ("img", "meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.errors.append(tag)

    def handle_data(self, data):
        if self.open and self.open[-1] in ("h1", "h2", "h3"):
            self.headings.append(data)


EXPECTED = {
    "seqlen": ["speedup", "throughput", "time", "memory", "roofline", "ceiling", "errors"],
    "tiling": ["tiles", "roofline", "ceiling", "errors"],
    "models": ["speedup", "throughput", "memory", "roofline", "ceiling", "errors"],
    "rmsnorm": ["speedup", "throughput", "time", "memory", "ceiling", "errors"],
    "block": ["speedup", "throughput", "memory", "shares", "ceiling", "errors"],
}


@pytest.mark.rendered
@pytest.mark.parametrize("name", EXPECTED)
def test_page_and_figures(files, name):
    made = report(load(files[name]))
    figures = {f"{stem}.{kind}" for stem in EXPECTED[name] for kind in ("png", "svg")}
    assert set(made) == figures | {"report.html"}
    page = Outline(made["report.html"].decode())
    assert not page.errors
    assert not page.open
    # Self-contained: every address is inside the page.
    assert all(address.startswith(("data:image/svg+xml;base64,", "#")) for address in page.addresses)
    assert "src=" not in "".join(re.findall("<script[^>]*>", made["report.html"].decode()))
    for heading in ("Accuracy", "All points", "Measured ceilings", "Provenance", "How to read it"):
        assert heading in page.headings
    for file, data in made.items():
        if file.endswith(".svg"):
            ElementTree.fromstring(data)
        elif file.endswith(".png"):
            image = matplotlib.image.imread(io.BytesIO(data))
            assert image.shape[0] > 200
            # Something is drawn: an empty panel would be white nearly everywhere.
            assert (image[..., :3].min(axis=-1) < 0.5).mean() > 0.003
    check_answers(made["report.html"].decode(), EXPECTED[name])


def check_answers(text, names):
    """What each figure of a page tells a pointer lies in its image, whose parts are the series that can be switched off."""
    drawn = dict(re.findall(r'<figure id="([^"]+)">(.*?)</figure>', text, re.DOTALL))
    assert set(drawn) == set(names)
    for name, held in drawn.items():
        svg = base64.b64decode(re.search(r'data:image/svg\+xml;base64,([^"]+)', held)[1])
        answers = json.loads(re.search(r'class="answers">(.*?)</script>', held, re.DOTALL)[1])
        assert answers["marks"], name
        for series, *place, first, second, third in answers["marks"]:
            assert -1 <= series < max(len(answers["series"]), 1) and len(place) in (2, 4)
            assert all(0 <= end <= SCALE for end in place), name
            assert max(first, second, third) < len(answers["texts"])
        ids = [part.get("id") for part in ElementTree.fromstring(svg).iter() if part.get("id")]
        parts = [each for each in ids if each.startswith("series-")]
        assert len(parts) == len(set(parts))
        assert {int(part.split("-")[1]) for part in parts} == set(range(len(answers["series"]))), "what is switched off is there"


def test_the_same_file_gives_the_same_figure(files):
    (group,) = groups(load(files["tiling"]))
    assert render(figures.errors(group).figure) == render(figures.errors(group).figure)


def test_exponents_are_recovered(tmp_path):
    file = synthetic.attention_seqlen(naive_limit=16384)
    for row in file.rows:
        row["workspace_bytes"] = 32 * row["seq_q"] ** (2 if row["variant"] == "naive" else 1)
    (group,) = groups(load(synthetic.write(tmp_path / "r.h5", file)))
    for (_, variant), fit in exponents(group).items():
        assert fit.exponent == pytest.approx(2.0 if variant == "naive" else 1.0, abs=1e-6)
    (plot,) = (plot for plot in draw_all(group) if plot.name == "memory")
    corners = [area.get_text() for area in plot.figure.findobj(TextArea)]
    assert corners.count("naive: N²·⁰⁰") == corners.count("flash: N¹·⁰⁰") == 3


def test_exponents_do_not_mix_tiles(tmp_path):
    file = synthetic.attention_seqlen(dtypes=("f32",))
    flash = [row for row in file.rows if row["variant"] == "flash"]
    for row in flash:
        row["workspace_bytes"] = 64 * row["seq_q"]
        # A second tile with ten times the memory, the faster one at half of the sizes.
        faster = 0.9 if row["seq_q"] in (2048, 8192) else 1.1
        file.rows.append(row | {"tile_q": 128, "workspace_bytes": 640 * row["seq_q"], "point": row["point"] + "b",
                                "tile": "128x128", "time_s": row["time_s"] * faster})  # fmt: skip
    (group,) = groups(load(synthetic.write(tmp_path / "r.h5", file)))
    assert exponents(group)["f32", "flash"].exponent == pytest.approx(1.0)


def test_no_workspace_has_exponent_zero(files):
    (group,) = groups(load(files["rmsnorm"]))
    fits = exponents(group)
    assert {fit.exponent for key, fit in fits.items() if key[-1] == "fused"} == {0.0}
    assert all(fit.exponent == pytest.approx(1.0) for key, fit in fits.items() if key[-1] == "naive")
    assert (group.x, group.facets, group.rate_unit) == ("tokens", ["hidden"], "B/s")


def test_headline_says_what_the_data_say(tmp_path):
    file = synthetic.attention_seqlen(sizes=(1024, 2048, 4096), dtypes=("f32",))
    flash = next(row for row in file.rows if row["variant"] == "flash" and row["seq_q"] == 4096)
    naive = next(row for row in file.rows if row["variant"] == "naive" and row["seq_q"] == 4096)
    flash |= {"speedup": 3.1, "speedup_lo": 2.9, "speedup_hi": 3.3, "total_bytes": 16 << 20}
    naive |= {"total_bytes": 100 << 20}
    lines = headline(load(synthetic.write(tmp_path / "r.h5", file)))[0][1]
    assert lines[0] == "At N = 4096, flash is 3.10× as fast as naive (95 % interval 2.90–3.30)."
    assert lines[1].startswith("Needs 16 % of naive's memory (16.0 MiB against 100 MiB)")


@pytest.mark.parametrize(("speedup", "text"), [
    ((0.5, 0.4, 0.8), "0.500× as fast as naive (95 % interval 0.400–0.800)"),
    ((1.02, 0.97, 1.06), "as fast as naive within the measurement"),
    ((2.0, math.nan, math.nan), "2.00× as fast as naive (no interval)"),
])
def test_headline_does_not_flatter(tmp_path, speedup, text):
    file = synthetic.attention_seqlen(sizes=(1024,), dtypes=("f32",))
    for row in file.rows:
        if row["variant"] == "flash":
            row |= dict(zip(("speedup", "speedup_lo", "speedup_hi"), speedup, strict=True))
    assert text in headline(load(synthetic.write(tmp_path / "r.h5", file)))[0][1][0]


def test_refused_and_failed_rows_are_visible(files):
    page = page_of(load(files["tiling"]))
    assert page.count("– skipped") == 2
    assert page.count("✗ failed") == 1
    # Failed rows come first on the page and in the table; skipped rows are folded.
    assert page.index("1 of 34 rows FAILED") < page.index('class="answer"')
    assert page.index("✗ failed") < page.index("✓ ok")
    assert page.index("<summary>2 rows skipped: flash</summary>") < page.index("– skipped")
    assert "tile needs 160 KiB of scratch, a core&#x27;s L2 holds 128 KiB" in page
    assert "verification: max error 3.1e-02" in page
    assert "1 failed, 2 skipped" in page
    results = load(files["tiling"])
    assert headline(results)[0][0] == "failed"
    assert "attention forward flash f32 at N = 2048, tile 16x256: verification: max error" in headline(results)[0][1][1]


def test_a_heat_map_says_what_a_tile_loses(files):
    (group,) = groups(load(files["tiling"]))
    (plot,) = (plot for plot in draw_all(group) if plot.name == "tiles")
    panels = [panel for panel in plot.figure.axes if panel.get_xlabel() == "tile_kv"]
    assert [panel.get_title().split(" ")[0] for panel in panels] == ["f32", "bf16"]
    for panel in panels:
        texts = [text.get_text() for text in panel.texts]
        assert texts.count("best") == 1
        assert sum(bool(re.fullmatch(r"−[\d.]+ %", text)) for text in texts) >= 12
        assert re.search(r"\d × \d+: [\d.]+ .?FLOP/s$", panel.get_title())
    assert [text.get_text() for text in panels[0].texts].count("refused") == 1


def test_labels_that_are_too_many_panels_are_groups_of_their_own(tmp_path):
    file = synthetic.File(runs={"run-0001": synthetic.run_attributes()})
    for label, head_dims in (("some", (32, 64, 96, 128)), ("others", (32, 64, 128))):
        for head_dim in head_dims:
            part = synthetic.attention_seqlen(sizes=(512, 1024, 2048, 4096), head_dim=head_dim)
            file.rows += [row | {"label": label, "point": f"{label}{head_dim}{row['point']}"} for row in part.rows]
    found = groups(load(synthetic.write(tmp_path / "r.h5", file)))
    assert [group.title for group in found] == [f"attention forward on openmp: {name}" for name in ("some", "others")]
    assert [group.facets for group in found] == [["head_dim"], ["head_dim"]]


def test_every_row_is_in_the_table(files):
    results = load(files["seqlen"])
    page = page_of(results)
    assert len(re.findall(r'class="status', page)) == len(results.points)


def test_the_clock_of_a_gpu_stands_beside_its_rate(tmp_path):
    file = synthetic.attention_seqlen(sizes=(512, 1024), dtypes=("f32",))
    file.rows[0]["sm_clock_hz"] = 1.23e9
    results = load(synthetic.write(tmp_path / "r.h5", file))
    assert "sm_clock_hz" not in results.points.identity
    assert page_of(results).count("at 1.23 GHz") == 1


def test_provenance_is_complete_and_escaped(tmp_path):
    file = synthetic.attention_seqlen(sizes=(512, 1024), dtypes=("f32",))
    file.runs["run-0001"] |= {"command": "katt sweep <script>alert(1)</script>", "something_new": 42}
    page = page_of(load(synthetic.write(tmp_path / "r.h5", file)))
    for name in file.runs["run-0001"]:
        assert f">{name}</th>" in page
    assert "&lt;script&gt;" in page
    assert "<script>alert" not in page


def test_cautions(tmp_path):
    file = synthetic.attention_seqlen(sizes=(512, 1024), dtypes=("f32",))
    file.runs["run-0001"] |= {"status": "interrupted", "dirty": 1, "build_type": "Debug", "load_average": 3.5}
    page = page_of(load(synthetic.write(tmp_path / "r.h5", file)))
    for text in ("did not finish", "uncommitted changes", "Debug build", "load average of 3.5 on 2 cores"):
        assert text in page


def test_two_runs_in_one_file(tmp_path):
    file = synthetic.attention_seqlen(sizes=(512, 1024, 2048), dtypes=("f32",))
    for row in file.rows[2:]:
        file.samples["run-0002", row["point"]] = file.samples.pop(("run-0001", row["point"]))
        row["run"] = "run-0002"
    file.runs["run-0001"]["status"] = "interrupted"
    file.runs["run-0002"] = synthetic.run_attributes(started_at="2025-03-04T10:00:00Z")
    file.ceilings["run-0002"] = synthetic.CEILINGS
    made = report(load(synthetic.write(tmp_path / "r.h5", file)))
    page = made["report.html"].decode()
    assert "roofline.png" in made
    assert "<b>run-0001: </b>interrupted<br><b>run-0002: </b>done" in page


def test_one_point(tmp_path):
    file = synthetic.File(runs={"run-0001": synthetic.run_attributes()})
    case = synthetic.attention_case(2048, "f32")
    machine = synthetic.Machine(synthetic.np.random.default_rng(0))
    synthetic.case_rows(case, {"flash": synthetic.flash_variant(case)}, machine, 10, file)
    made = report(load(synthetic.write(tmp_path / "r.h5", file)))
    assert {"throughput.png", "memory.png", "errors.png"} <= set(made)
    assert "speedup.png" not in made
    assert "measured no ceilings" in made["report.html"].decode()


def test_nothing_ran(tmp_path):
    file = synthetic.File(rows=[synthetic.row(variant="flash", dtype="f32", seq_q=n, seq_kv=n, status="skipped",
                                              reason="no AMX here") for n in (512, 1024)])  # fmt: skip
    made = report(load(synthetic.write(tmp_path / "r.h5", file)))
    assert set(made) == {"report.html"}
    page = made["report.html"].decode()
    assert "No point of this group was measured" in page
    assert page.count("no AMX here") >= 2
    assert "/runs is missing" in page


def test_missing_speedups_and_errors(tmp_path):
    file = synthetic.attention_seqlen(sizes=(512, 1024, 2048))
    for row in file.rows:
        row |= dict.fromkeys(("speedup", "speedup_lo", "speedup_hi", "max_abs_err", "mean_abs_err"), math.nan)
    made = report(load(synthetic.write(tmp_path / "r.h5", file)))
    assert "throughput.png" in made
    assert not {"speedup.png", "errors.png"} & set(made)


def test_labels_make_bars_in_the_order_of_the_sweep(files):
    (group,) = groups(load(files["models"]))
    assert (group.x, group.facets) == (None, ["label"])
    (plot,) = (plot for plot in draw_all(group) if plot.name == "speedup")
    assert [text.get_text() for text in plot.figure.axes[0].get_yticklabels()] == list(synthetic.MODELS)


def test_bars_that_do_not_fit_are_counted(files, tmp_path, monkeypatch):
    """A dtype that only such bars have is no panel."""
    kinds = (figures.speedup_bars, figures.throughput_bars, figures.memory_bars)
    assert not any("are drawn" in kind(groups(load(files["models"]))[0]).caption for kind in kinds)
    monkeypatch.setattr(figures.bars, "_MOST_CATEGORIES", 3)
    file, first = synthetic.attention_real_models(), list(synthetic.MODELS)[:3]
    file.rows = [row for row in file.rows if (row["dtype"] == "f32") == (row["label"] in first)]
    (group,) = groups(load(synthetic.write(tmp_path / "r.h5", file)))
    for plot in (kind(group) for kind in kinds):
        (panel,) = plot.figure.axes
        assert panel.get_title() == "f32" and [text.get_text() for text in panel.get_yticklabels()] == first
        assert plot.caption.endswith(" The first 3 of 6 points are drawn; the table has all.")


def test_captions_count_the_panels_of_their_own_rows(files, monkeypatch):
    results = load(files["seqlen"])
    points = results.points
    points["speedup"][points["dtype"] == "bf16"] = points["total_bytes"][points["dtype"] == "f16"] = math.nan
    (group,) = groups(results)
    for plot in (figures.speedup(group), figures.memory(group)):
        assert len(plot.figure.axes) == 2 and "are drawn" not in plot.caption
    monkeypatch.setattr(figures.style, "MOST_PANELS", 2)
    assert "are drawn" not in figures.speedup(group).caption
    assert figures.time(group).caption.endswith(" The first 2 of 3 combinations are drawn; the table has all.")


def test_a_tile_of_a_later_run_hides_no_speedup(tmp_path):
    """--resume with one more tile measures it without naive."""
    file = synthetic.attention_seqlen(sizes=(512, 1024), dtypes=("f32",))
    lacks = dict.fromkeys(("speedup", "speedup_lo", "speedup_hi"), math.nan)
    file.rows += [row | lacks | {"tile": "128x128", "tile_q": 128, "run": "run-0002", "time_s": 0.9 * row["time_s"]}
                  for row in file.rows if row["variant"] == "flash"]  # fmt: skip
    file.runs["run-0002"] = synthetic.run_attributes()
    results = load(synthetic.write(tmp_path / "r.h5", file))
    assert groups(results)[0].best.where(variant="flash")["tile"].tolist() == ["64x128"] * 2
    assert headline(results)[0][1][0].startswith("At N = 1024, flash is ")


def test_labels_with_curves_become_panels(tmp_path):
    file = synthetic.File(runs={"run-0001": synthetic.run_attributes()})
    for causal in (0, 1):
        part = synthetic.attention_seqlen(sizes=(512, 1024, 2048, 4096), dtypes=("f32",), causal=causal,
                                          label=("full", "causal")[causal])  # fmt: skip
        file.rows += [row | {"point": f"{row['point']}-{causal}"} for row in part.rows]
    (group,) = groups(load(synthetic.write(tmp_path / "r.h5", file)))
    assert (group.x, group.facets) == ("seq_q", ["label"])


def test_a_tile_grid_beside_curves_is_a_group_of_its_own(tmp_path):
    file = synthetic.attention_seqlen(sizes=(256, 512, 1024, 2048), dtypes=("f32",), label="sequence length")
    file.rows += [row | {"label": "tiles", "point": row["point"] + "t"} for row in synthetic.attention_tiling().rows]
    results = load(synthetic.write(tmp_path / "r.h5", file))
    assert [(g.title, g.x, g.facets) for g in groups(results)] == [
        ("attention forward on openmp: sequence length", "seq_q", []),
        ("attention forward on openmp: tiles", None, []),
    ]
    made = report(results)
    assert {"speedup_sequence_length.png", "tiles_tiles.png"} <= set(made)
    assert "tiles_sequence_length.png" not in made


def test_names_leave_out_what_is_off(tmp_path):
    file = synthetic.File(runs={"run-0001": synthetic.run_attributes()})
    for index, more in enumerate(({}, {"softcap": 50.0}, {"window_left": 64}, {"block_density": 0.5})):
        part = synthetic.attention_seqlen(sizes=(512,), dtypes=("f32",), **more)
        file.rows += [row | {"point": f"{row['point']}-{index}"} for row in part.rows]
    (group,) = groups(load(synthetic.write(tmp_path / "r.h5", file)))
    texts = [group.short_text(values) for values, _ in group.panels()]
    assert sorted(texts) == ["", "block_density = 0.5", "softcap = 50", "window_left = 64"]


def test_what_auto_stands_for_is_no_axis(tmp_path):
    file = synthetic.attention_seqlen(sizes=(512, 1024, 2048), dtypes=("f32",))
    for row in file.rows:
        row["tile"] = "auto"
        row["tile_q"] = row["seq_q"] // 16 if row["variant"] == "flash" else 0
    (group,) = groups(load(synthetic.write(tmp_path / "r.h5", file)))
    assert group.facets == []
    assert "tiles" not in [plot.name for plot in draw_all(group)]


def test_many_axes(tmp_path):
    file = synthetic.File(runs={"run-0001": synthetic.run_attributes()}, ceilings={"run-0001": synthetic.CEILINGS})
    for causal in (0, 1):
        for head_dim in (64, 128):
            part = synthetic.attention_seqlen(sizes=(512, 1024, 2048), causal=causal, head_dim=head_dim)
            file.rows += [row | {"point": f"{row['point']}-{causal}-{head_dim}"} for row in part.rows]
    (group,) = groups(load(synthetic.write(tmp_path / "r.h5", file)))
    assert group.facets == ["head_dim", "causal"]
    assert len(group.panels()) == 4
    sentences = headline(load(tmp_path / "r.h5"))[0][1]
    assert "over 12 points)" in sentences[0]
    made = report(load(tmp_path / "r.h5"))
    assert "throughput.svg" in made


def test_operators_and_passes_have_their_own_figures(files, tmp_path):
    file = synthetic.attention_seqlen(sizes=(512, 1024), dtypes=("f32",))
    file.rows += [row | {"pass": "backward", "point": row["point"] + "b"} for row in file.rows]
    made = report(load(synthetic.write(tmp_path / "r.h5", file), files["rmsnorm"]))
    assert {"speedup_attention_forward.png", "speedup_attention_backward.png", "speedup_rmsnorm_forward.png"} <= set(
        made
    )


def test_the_same_points_in_two_files_are_kept_apart(tmp_path):
    paths = [synthetic.write(tmp_path / f"{n}.h5", synthetic.attention_seqlen(n, dtypes=("f32",))) for n in range(2)]
    results = load(*paths)
    assert [group.title for group in groups(results)] == [f"attention forward on openmp, {n}.h5" for n in range(2)]
    assert {"speedup_0_h5.png", "speedup_1_h5.png"} <= set(report(results))


def test_shares_of_the_operators(files):
    """Bars in parts of naive's time; a table that says what each operator takes and saves."""
    group = groups(load(files["block"]))[0]
    plot = next(plot for plot in draw_all(group) if plot.title == "Where the time goes")
    panels = plot.figure.get_axes()
    assert [panel.get_title() for panel in panels] == ["f32", "bf16"]
    names = [label.get_text().split()[-1] for label in panels[0].get_yticklabels()]
    assert names == ["naive", "fused"] * 4
    assert not panels[1].get_yticklabels()  # named once for both
    for panel in panels:
        lengths = bar_lengths(panel)
        assert lengths[::2] == pytest.approx([1.0] * 4)
        assert all(length < 0.8 for length in lengths[1::2])
    legend = [text.get_text() for text in plot.figure.legends[0].get_texts()]
    assert legend[:2] == ["linear", "attention"]
    assert legend[-1] == "rest"

    text = shares_table(group)
    row = re.search(r"<tr[^>]*>(?:(?!</tr>).)*<td class=\"\">fused</td><td class=\"\">rmsnorm</td>.*?</tr>", text).group(0)
    cells = re.findall(r"<td[^>]*>(.*?)</td>", row)
    assert cells[1:4] == ["f32", "fused", "rmsnorm"]
    # 0.04 of 0.95 in naive, of which half is saved, and 4 % of either whole is the rest
    assert cells[7:10] == ["", "", ""], "profiles of earlier versions count no work"
    assert cells[10] == "2.0 %"
    assert "first 70 %, second 20 %" in cells[11]
    assert text.count("<b>all</b>") == len(group.best)


@pytest.mark.parametrize(("models", "whole"), [
    (["SmolLM2 135M"], "naive's or the slowest variant's"), (list(synthetic.BLOCKS), "the slowest variant's"),
])  # fmt: skip
def test_shares_where_the_baseline_has_no_profile(tmp_path, models, whole):
    """As of a sweep of fused and naive_rope."""
    file = synthetic.llama_block()
    for row in file.rows:
        if row["variant"] == "naive" and row["label"] in models:
            row["variant"] = "naive_rope"
    plot = shares(groups(load(synthetic.write(tmp_path / "r.h5", file)))[0])
    assert "Where naive has no profile, the slowest profiled variant stands for it." in plot.caption
    for panel in plot.figure.axes:
        assert panel.get_xlabel() == f"time / {whole} time"
        lengths = bar_lengths(panel)
        for pair in zip(lengths[::2], lengths[1::2], strict=True):
            assert max(pair) == pytest.approx(1.0) and min(pair) < 0.8


def test_shares_that_do_not_fit_are_counted(files, monkeypatch):
    monkeypatch.setattr(sys.modules[shares.__module__], "_MOST_BARS", 3)
    plot = shares(groups(load(files["block"]))[0])
    assert len(plot.figure.axes[0].get_yticklabels()) == 3
    assert plot.caption.endswith(" The first 3 of 8 bars of a panel are drawn; the table has all.")


def test_rows_without_a_profile_have_no_shares(files):
    """One run of several may have been profiled."""
    results = load(files["block"])
    profiles = dict(list(results.profiles.items())[:2])
    group = groups(dataclasses.replace(results, profiles=profiles))[0]
    panels = next(plot for plot in draw_all(group) if plot.title == "Where the time goes").figure.get_axes()
    assert len(panels) == 1
    assert len(panels[0].get_yticklabels()) == 2
    assert shares(groups(dataclasses.replace(results, profiles={}))[0]) is None
