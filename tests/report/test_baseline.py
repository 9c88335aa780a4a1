"""Ratios to any variant, the rows that `--only` asks for, and the table on the terminal."""

import dataclasses
import json
import math
import os

import numpy as np
import pytest
import synthetic
from katt_report import InputError, groups, headline, load
from katt_report.figures import draw_all
from katt_report.figures.style import group_looks, top_of
from katt_report.headline import answer, overall
from katt_report.pages.page import report
from katt_report.pages.points_table import points_table, text_table
from katt_report.ratios import against_peers, only, with_baseline
from katt_report.statistics import paired_ratio
from test_cli import run

PEER_TIMES = {"torch_flash": 1.5, "torch_math": 4.0}


def with_peers(sizes=(512, 1024, 2048, 4096), dtypes=("f32", "bf16")) -> synthetic.File:
    """A sweep with two peers beside flash: 1.5 and 4 times its time, each in its rounds, with noise of its own."""
    file = synthetic.attention_seqlen(sizes=sizes, dtypes=dtypes)
    file.runs["run-0001"]["peers"] = json.dumps(dict.fromkeys(PEER_TIMES, "torch 2.15.0"))
    random = np.random.default_rng(7)
    for row in [row for row in file.rows if row["variant"] == "flash"]:
        for name, factor in PEER_TIMES.items():
            times = factor * file.samples["run-0001", row["point"]] * np.exp(random.normal(0.0, 0.01, row["samples"]))
            point = f"{row['point']}-{name}"
            file.samples["run-0001", point] = times
            file.rows.append(row | {"variant": name, "point": point, "time_s": float(np.median(times)), "tile": "auto",
                                    "tile_q": 0, "tile_kv": 0, "speedup": row["speedup"] / factor,
                                    "workspace_bytes": 0, "total_bytes": 0})  # fmt: skip
    return file


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> str:
    return synthetic.write(tmp_path_factory.mktemp("peers") / "peers.h5", with_peers())


def test_ratios_are_those_of_the_rounds(path):
    results = load(path)
    again = with_baseline(results, "torch_flash")
    assert (results.baseline, again.baseline) == ("naive", "torch_flash")
    for row in again.points.rows():
        base = again.points.where(variant="torch_flash", dtype=row["dtype"], seq_q=row["seq_q"]).row(0)
        wanted = paired_ratio(again.samples_of(base), again.samples_of(row))
        if row["variant"] == "torch_flash":
            assert (row["speedup"], row["speedup_lo"], row["speedup_hi"]) == (1.0, 1.0, 1.0)
        else:
            assert (row["speedup"], row["speedup_lo"], row["speedup_hi"]) == (wanted.mid, wanted.lo, wanted.hi)
        if row["variant"] == "flash":
            assert row["speedup"] == pytest.approx(1.5, rel=0.02)
    # The file's own column comes out again, against naive.
    own = np.isin(results.points["variant"], ["naive", "flash"])
    assert with_baseline(again, "naive").points["speedup"][own] == pytest.approx(results.points["speedup"][own], rel=1e-9)


def test_the_page_is_against_the_baseline(path):
    results = with_baseline(load(path), "torch_flash")
    (group,) = groups(results)
    names = [plot.name for plot in draw_all(group)]
    assert "speedup" in names and "peers" not in names
    (plot,) = (plot for plot in draw_all(group) if plot.name == "speedup")
    assert plot.title == "Speedup over torch_flash"
    assert plot.figure.axes[0].get_ylabel() == "speedup over torch_flash"
    legend = [text.get_text() for text in plot.figure.legends[0].get_texts()]
    assert legend == ["torch_flash = 1×", "naive", "flash", "torch_math"]
    first = headline(results)[0][1][0]
    assert first.startswith("At N = 4096, flash is 1.5") and "as fast as torch_flash" in first and "naive" not in first
    page = report(results)["report.html"].decode()
    assert "over torch_flash (95 %)" in page and "Katt over it" not in page


def test_the_answer_is_against_naive_and_the_best_peer(path):
    results = load(path)
    (group,) = groups(results)
    first = headline(results)[0][1][0]
    assert "as fast as naive" in first and "as fast as torch_flash" in first and "torch_math" not in first
    against = against_peers(results, group.best)
    assert against.where(variant="torch_math")["ratio"] == pytest.approx(4.0, rel=0.02)
    assert set(against.where(against["leads"])["variant"]) == {"torch_flash"}
    page = report(results)["report.html"].decode()
    assert page.index('class="answer"') < page.index("<figure") and "Against the peers" in page
    assert "Katt over it (95 %)" in page


def test_another_program_is_not_called_katts_fastest(path):
    results = load(path)
    kept = only(results, ["variant=torch_flash,torch_math,naive,dtype=f32"])
    (group,) = groups(kept)
    assert answer(group).startswith("At N = 4096, torch_flash is ") and overall([group]) == "No row was measured beside another."
    kept.points["time_s"][kept.points["variant"] == "torch_flash"] *= np.where(np.arange(4) % 2, 9, 1)
    assert "Katt" not in answer(groups(kept)[0])
    (group,) = groups(with_baseline(only(results, ["variant=torch_flash,naive"]), "torch_flash"))
    assert "Katt" not in answer(group)


def test_a_ratio_to_a_peer_at_another_size_names_it(path):
    results = load(path)
    points = results.points
    kept = points.where((points["seq_q"] < 4096) | ~np.isin(points["variant"], list(PEER_TIMES)))
    first = answer(groups(dataclasses.replace(results, points=kept))[0])
    assert first.startswith("At N = 4096, flash is ") and first.endswith(" at N = 2048.")


def test_without_samples_there_is_no_ratio(path, tmp_path):
    file = with_peers(sizes=(512, 1024))
    file.samples = {}
    results = load(synthetic.write(tmp_path / "r.h5", file))
    assert groups(results)[0].against is None
    with pytest.raises(InputError, match="torch_flash, beside which no samples are stored"):
        with_baseline(results, "torch_flash")


def test_a_variant_looks_the_same_on_the_whole_page(tmp_path):
    file = with_peers()
    more = synthetic.rmsnorm()
    file.rows += [row | {"point": "r" + row["point"]} for row in more.rows]
    found = groups(load(synthetic.write(tmp_path / "r.h5", file)))
    looks = [group_looks(group) for group in found]
    assert looks[0]["naive"] == looks[1]["naive"]
    again = groups(with_baseline(load(tmp_path / "r.h5"), "flash"))
    assert [dict(group_looks(group)) for group in again if group.key[0] == "attention"] == looks[:1]
    every = {name: look for one in looks for name, look in one.items()}
    assert all(one[name] == every[name] for one in looks for name in one)
    assert len({(look.colour, look.marker) for look in every.values()}) == len(every) == 5
    for group in found:
        for plot in draw_all(group):
            for panel in plot.figure.axes:
                for line in panel.get_lines():
                    if line.get_label() in every:
                        assert line.get_marker() == every[line.get_label()].marker, plot.name
                        assert line.get_linestyle() in ("-", "None"), plot.name


def test_an_error_bar_or_an_outlier_decides_no_axis(tmp_path):
    file = synthetic.attention_seqlen(dtypes=("f32",), naive_limit=16384)
    flash = [row for row in file.rows if row["variant"] == "flash"]
    for row in flash:
        row |= {"speedup": 3.0, "speedup_lo": 2.5, "speedup_hi": 1000.0}
    flash[-1]["speedup"] = 300.0
    (group,) = groups(load(synthetic.write(tmp_path / "r.h5", file)))
    panel = next(plot for plot in draw_all(group) if plot.name == "speedup").figure.axes[0]
    assert panel.get_ylim()[1] < 4.0
    assert [text.get_text() for text in panel.texts] == ["↑ 300"]


def test_the_top_of_an_axis():
    assert top_of([1.0, 2.0, 4.0, 8.0, 16.0, 32.0]) == 32.0  # growth is no outlier
    assert top_of([2.0, 2.1, 2.2, 1.9, 2.0, 95.0]) == 2.2
    assert top_of([math.nan]) == 1.0


def test_what_cannot_run_is_in_no_figure(tmp_path):
    file = synthetic.attention_seqlen(sizes=(512, 1024, 2048), dtypes=("f32",))
    for row in [row for row in file.rows if row["variant"] == "flash"]:
        file.rows.append(row | {"variant": "flash_amx", "status": "skipped", "reason": "this CPU has no AMX",
                                "point": row["point"] + "a", "time_s": math.nan})  # fmt: skip
    (group,) = groups(load(synthetic.write(tmp_path / "r.h5", file)))
    for plot in draw_all(group):
        legends = [*plot.figure.legends, *(panel.get_legend() for panel in plot.figure.axes if panel.get_legend())]
        assert not [text for legend in legends for text in legend.get_texts() if "amx" in text.get_text()], plot.name
    table = points_table(group)
    assert "<details><summary>3 rows skipped: flash_amx</summary>" in table
    assert table.index("this CPU has no AMX") > table.index("<details>")
    assert "skipped: flash_amx, 3 rows: this CPU has no AMX" in text_table(group)


@pytest.mark.parametrize(("wanted", "rows"), [
    (["variant=flash"], 8), (["variant=flash,naive,dtype=f32"], 8), (["seq_q=1k,4096", "dtype=bf16"], 8),
    (["status=ok,softcap=0"], 32),
])
def test_only(path, wanted, rows):
    assert len(only(load(path), wanted).points) == rows


def test_only_a_label_with_a_comma(tmp_path):
    file = synthetic.attention_seqlen(sizes=(512,), dtypes=("f32",))
    file.rows[0]["label"], file.rows[1]["label"] = "GPT-2, small", "GPT-2"
    results = load(synthetic.write(tmp_path / "r.h5", file))
    assert len(only(results, ["label=GPT-2, small"]).points) == 1
    assert len(only(results, ["label=GPT-2,dtype=f32", "label=GPT-2, small"]).points) == 2


@pytest.mark.parametrize(("wanted", "text"), [
    ("varient=flash", "the column varient, did you mean variant?"),
    ("variant=flesh", "variant=flesh, did you mean flash?, expected variant of the file: flash, naive, torch_flash"),
    ("seq_q=513", "seq_q=513"), ("seq_q=x", "seq_q=x"), ("flash", "holds flash, expected COLUMN=VALUE"),
    ("variant=naive,tile=64x128", "which no row has at once"), ("", "holds nothing"), ("=1", "the column –"),
])
def test_only_refuses(path, wanted, text):
    with pytest.raises(InputError) as error:
        only(load(path), [wanted])
    assert text in str(error.value) and str(error.value).startswith("--only: holds ")


def test_the_baseline_is_checked(path, tmp_path, capsys):
    status, out, err = run(capsys, path, "--baseline", "torch_flesh", "-o", tmp_path / "out")
    assert (status, out) == (2, "") and err.count("\n") == 1
    assert "--baseline: holds torch_flesh, did you mean torch_flash?, expected a variant of the file: flash" in err
    results = load(path)
    results.points.columns["status"][results.points["variant"] == "torch_math"] = "skipped"
    with pytest.raises(InputError, match="which no row measured"):
        with_baseline(results, "torch_math")
    assert not (tmp_path / "out").exists()


def test_the_table_on_the_terminal(path, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, err = run(capsys, path, "--table", "--baseline", "torch_flash", "--only", "dtype=f32,variant=flash")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "attention forward on openmp"
    assert lines[1].split()[:4] == ["N", "variant", "tile", "time"] and "over torch_flash (95 %)" in lines[1]
    assert [line.split()[:2] for line in lines[2:]] == [[str(n), "flash"] for n in (512, 1024, 2048, 4096)]
    assert len({len(line) for line in lines[1:]}) == 1, "columns line up"
    assert os.listdir(tmp_path) == []
    for more in (("-o", tmp_path / "out"), ("--overwrite",), ("--formats", "png")):
        status, out, err = run(capsys, path, "--table", *more)
        assert (status, out, err.count("\n")) == (2, "", 1) and f"--table: holds {more[0]} beside it" in err


@pytest.mark.rendered
def test_the_formats(files, tmp_path, capsys):
    status, _, err = run(capsys, files["tiling"], "-o", tmp_path / "out", "--formats", "pdf", "--only", "variant=naive", "-q")
    assert (status, err) == (0, "")
    made = sorted(os.listdir(tmp_path / "out"))
    assert "report.html" in made and {name.rpartition(".")[2] for name in made} == {"html", "pdf"}
    assert (tmp_path / "out" / made[0]).read_bytes().startswith(b"%PDF-")
    status, out, err = run(capsys, files["tiling"], "--formats", "png,svq", "-o", tmp_path / "no")
    assert (status, out) == (2, "") and "svq, did you mean svg?" in err and err.count("\n") == 1


def test_progress(files, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("katt_report.commands.report.PATIENCE_S", 0.0)
    status, _, err = run(capsys, files["tiling"], "-o", tmp_path)
    assert status == 0
    assert err.splitlines() == [f"katt-report: figure {n} of 4" for n in range(1, 5)]


def test_several_groups_have_a_sentence_for_all(files):
    results = load(files["seqlen"], files["rmsnorm"])
    page = report(results)["report.html"].decode()
    assert "as fast as naive in 2 groups" in page
    assert page.count('<a href="#group_') == 4  # in the table of answers, and in the navigation
    assert dataclasses.replace(results).baseline == "naive"
