"""Rows that nobody should believe: shown with their reason everywhere, counted nowhere."""

import csv
import io
import json
import math

import pytest
import synthetic
from katt_report import compare, figures, groups, headline, load
from katt_report.figures import draw_all
from katt_report.pages.page import report
from katt_report.published.history import history
from katt_report.published.portability import portability
from katt_report.published.source import open_source
from test_cli import run

REASON = "9.1 TFLOP/s, the fastest unit reaches 470 GFLOP/s"
SIZES = (512, 1024, 2048, 4096)


def doubted(variant: str = "flash", seq: int = 4096, seed: int = 1) -> synthetic.File:
    """A sweep in which a variant is a hundred times faster than it was at one N; the row keeps times and samples."""
    file = synthetic.attention_seqlen(seed, sizes=SIZES, dtypes=("f32",))
    for row in file.rows:
        if (row["variant"], row["seq_q"]) == (variant, seq):
            for name in ("time_s", "time_lo_s", "time_hi_s"):
                row[name] /= 100
            for name in ("tflops", "speedup", "speedup_lo", "speedup_hi", "ceiling_fraction"):
                row[name] *= 100
            file.samples[row["run"], row["point"]] = file.samples[row["run"], row["point"]] / 100
            row |= {"status": "suspect", "reason": REASON}
    return file


@pytest.fixture
def results(tmp_path):
    return load(synthetic.write(tmp_path / "doubted.h5", doubted()))


def test_no_headline_counts_it(results):
    titles = [title for title, _ in headline(results)]
    assert titles == ["suspect", "attention forward on openmp"]
    (_, warning), (_, lines) = headline(results)
    assert warning[0] == "1 of 8 rows SUSPECT: measured, but too good to be true. No figure, ratio or mean counts it."
    assert warning[1] == f"attention forward flash f32 at N = 4096, tile 64x128: {REASON}."
    assert lines[0].startswith("At N = 2048, flash is ") and "8 rows: 7 ok, 1 suspect." in lines


def test_no_figure_draws_it(results):
    (group,) = groups(results)
    for plot in draw_all(group):
        for panel in plot.figure.axes:
            for line in panel.get_lines():
                if "flash" in str(line.get_label()):
                    assert 4096 not in line.get_xdata(), plot.name
    assert group.best.where(variant="flash")["seq_q"].tolist() == [512, 1024, 2048]
    assert figures.errors(group) is not None


def test_the_page_warns_and_lists_it(results):
    page = report(results)["report.html"].decode()
    assert page.index('<div class="suspect">') < page.index('class="answer"') < page.index("‼ suspect")
    assert page.index("‼ suspect") < page.index("✓ ok")
    assert page.replace("\N{NO-BREAK SPACE}", " ").count(REASON) == 2  # in the warning and in the table
    assert "✗ failed" not in page and 'class="failed"' not in page


def test_a_page_of_several_groups_counts_them(tmp_path):
    file = doubted()
    file.rows += [row | {"pass": "backward", "status": "ok", "reason": "", "point": row["point"] + "b"} for row in file.rows]
    page = report(load(synthetic.write(tmp_path / "r.h5", file)))["report.html"].decode()
    assert '<th class="n" scope="col">failed</th><th class="n" scope="col">suspect</th>' in page


def test_the_terminal_says_so(tmp_path, capsys):
    path = synthetic.write(tmp_path / "r.h5", doubted())
    status, out, err = run(capsys, path, "-o", tmp_path / "report")
    assert (status, err) == (0, "") and out.startswith("suspect:\n  1 of 8 rows SUSPECT")
    status, out, err = run(capsys, path, "--table")
    assert (status, err) == (0, "") and f"SUSPECT: {REASON}" in out.splitlines()[2]


def test_a_peer_that_says_it_took_longer_is_suspect(tmp_path):
    file = synthetic.attention_seqlen(1, sizes=SIZES, dtypes=("f32",))
    file.rows[0] |= {"claimed_s": 4.5 * file.rows[0]["time_s"]}
    file.rows[1] |= {"claimed_s": 1.2 * file.rows[1]["time_s"]}
    points = load(synthetic.write(tmp_path / "r.h5", file)).points
    assert points["status"].tolist().count("suspect") == 1
    assert points.where(status="suspect")["reason"].tolist()[0].startswith("its clock says ")


def test_an_export_holds_it(tmp_path, capsys):
    path = synthetic.write(tmp_path / "r.h5", doubted())
    status, out, err = run(capsys, "export", path, "--csv", "-")
    assert (status, err) == (0, "")
    (row,) = (row for row in csv.DictReader(io.StringIO(out)) if row["status"] == "suspect")
    assert row["reason"] == REASON and float(row["time_s"]) > 0 and float(row["speedup"]) > 100


def test_profiles_of_suspect_rows_alone_are_a_trace(tmp_path, capsys):
    file = synthetic.llama_block()
    for row in file.rows:
        row |= {"status": "suspect", "reason": REASON}
    path = synthetic.write(tmp_path / "r.h5", file)
    status, _, err = run(capsys, "export", path, "--trace", tmp_path / "t.json")
    assert (status, err) == (0, "")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert len({event["args"]["name"] for event in events if event["name"] == "thread_name"}) == len(file.rows)


def test_compare_counts_it_as_lost(tmp_path, capsys):
    good = synthetic.write(tmp_path / "good.h5", synthetic.attention_seqlen(1, sizes=SIZES, dtypes=("f32",)))
    bad = synthetic.write(tmp_path / "bad.h5", doubted())
    status, out, _ = run(capsys, "compare", good, bad, "--json")
    found = json.loads(out)
    assert (status, found["counts"]["lost"], found["counts"]["regression"]) == (1, 1, 0)
    (row,) = (row for row in found["rows"] if row["verdict"] == "lost")
    assert row["reasons"] == [f"now suspect: {REASON}"] and row["identity"]["seq_q"] == 4096
    assert run(capsys, "compare", good, bad, "--allow-lost")[0] == 0
    status, out, _ = run(capsys, "compare", bad, good, "--json")
    (row,) = (row for row in json.loads(out)["rows"] if row["verdict"] == "new")
    assert status == 0 and row["reasons"] == ["was suspect"]


def test_a_suspect_baseline_bears_no_ratio(tmp_path):
    """naive would make every other variant slow, or fast, beside it."""
    results = load(synthetic.write(tmp_path / "r.h5", doubted("naive")))
    (group,) = groups(results)
    speedups = dict(zip(group.best.tuples(["variant", "seq_q"]), group.best["speedup"].tolist(), strict=True))
    assert math.isnan(speedups["flash", 4096]) and speedups["flash", 2048] > 1
    assert "At N = 2048, flash is" in headline(results)[1][1][0]
    assert results.points.where(variant="flash", seq_q=4096)["speedup"][0] > 0, "the file is as it was"
    good = load(synthetic.write(tmp_path / "g.h5", synthetic.attention_seqlen(1, sizes=SIZES, dtypes=("f32",))))
    found = compare(good, results, metric="speedup")
    (row,) = (row for row in found.rows if (row.identity["variant"], row.identity["seq_q"]) == ("flash", 4096))
    assert row.verdict == "unclear" and row.reasons == ["no paired speedup in both files"]


def test_published_numbers_leave_it_out(tmp_path):
    path = tmp_path / "r.h5"
    synthetic.write(path, doubted())
    source = open_source(path)
    assert source.about["rows"] == "7 rows, 1 suspect" and len(source.rows) == 7
    parts = [load(path), load(synthetic.write(tmp_path / "s.h5", synthetic.attention_seqlen(2, sizes=SIZES, dtypes=("f32",))))]
    assert history(parts, None).single == 1  # of the row at N = 4096 one measurement is left
    for cases in ([doubted()], [synthetic.attention_seqlen(1, sizes=SIZES, dtypes=("f32",))]):
        found = portability([load(synthetic.write(tmp_path / f"{len(cases)}.h5", cases[0]))])
        assert all(case.ours for case in found.cases)  # a doubt is no refusal
