"""`katt-report readme`: numbers of documents are those of the files; the project's own documents, too."""

import json
import math
import re
from pathlib import Path

import h5py
import pytest
import synthetic
from katt_report.cli import main
from katt_report.published.readme import _file_line, _speedups, is_experiment
from katt_report.published.source import open_source
from katt_report.statistics import paired_ratio


@pytest.fixture
def tree(tmp_path, files):
    """A tree with a sweep of attention beside a peer, a file of a model's runs and JSON."""
    folder = tmp_path / "results" / "zen4-2c" / "sweep"
    folder.mkdir(parents=True)
    held = synthetic.attention_seqlen(sizes=(512, 1024), dtypes=("f32", "bf16"))
    for index, line in enumerate([line for line in held.rows if line["variant"] == "naive"]):
        point = f"q{index:04d}"
        held.rows.append(line | {"variant": "torch_flash", "point": point, "time_s": 3 * line["time_s"], "speedup": 1 / 3})
        held.samples["run-0001", point] = 3 * held.samples["run-0001", line["point"]]
    held.runs["run-0001"] |= {"peers": json.dumps({"torch_flash": "torch 2"}), "device": "AMD EPYC", "isa": "avx2", "dirty": 1}
    synthetic.write(folder / "sweep.h5", held)
    models = tmp_path / "results" / "zen4-2c" / "models"
    models.mkdir()
    with h5py.File(models / "models.h5", "w") as file:
        file.attrs["build"], file.attrs["machine"] = json.dumps({"commit": "0123456789"}), json.dumps({"cpu": "AMD EPYC", "isa": ["avx2"]})
        file.attrs["date"] = "2026-11-27T01:02:03Z"
        file["model"], file["tokens_s"] = ["10 M", "100 M"], [123.4, 12.34]
        file["summary/speedup"], file["summary/speedup_lo"], file["summary/speedup_hi"] = [2.5], [2.25], [2.75]
        file["summary/model"] = ["10 M"]
    (models / "calls.json").write_text(json.dumps({"rows": [{"op": "rope", "took": {"python_s": [1e-6, 3e-6, 2e-6]}}]}))
    open_source.cache_clear()
    return tmp_path


def filled(tree, query):
    document = tree / "text.md"
    document.write_text(f"It is <!-- katt: {query} -->?<!-- /katt --> here.\n")
    assert main(["readme", str(document)]) == 0
    text = document.read_text()
    assert main(["readme", "--check", str(document)]) == 0  # once is enough
    return re.fullmatch(r"It is <!-- katt: .* -->(.*)<!-- /katt --> here.\n", text, re.DOTALL)[1]


SWEEP = "results/zen4-2c/sweep/sweep.h5"


def test_numbers_are_those_of_the_file(tree):
    source = open_source(tree / SWEEP)
    rows = [row for row in source.rows if row["variant"] == "flash" and row["dtype"] == "f32"]
    chosen = [row for row in rows if row["seq_q"] == 1024]
    assert len(rows) == 2 and len(chosen) == 1
    values = [row["speedup"] for row in rows]
    assert filled(tree, f"{SWEEP} speedup variant=flash dtype=f32") == f"{min(values):.1f} to {max(values):.1f}"
    assert filled(tree, f"{SWEEP} speedup variant=flash dtype=f32 of=max digits=4") == f"{max(values):.3f}"
    assert filled(tree, f"{SWEEP} speedup variant=flash dtype=f32 of=count") == str(len(values))
    lone = next(line for line in source.rows if line["variant"] == "torch_flash")
    lone["speedup"] = math.nan
    assert filled(tree, f"{SWEEP} speedup variant=torch_flash of=count") == "3", "a row without a ratio"
    assert filled(tree, f"{SWEEP} dtype variant=flash seq_q=1024,512") == "f32, bf16"
    assert filled(tree, f"{SWEEP} time_s variant=flash dtype=f32 seq_q=512 of=min").split()[1] in ("µs", "ms")
    row = chosen[0]
    only = " ".join(f"{name}={row[name]}" for name in ("dtype", "seq_q", "causal", "head_dim", "threads", "heads"))
    interval = f"{row['speedup']:.1f} ({row['speedup_lo']:.1f} to {row['speedup_hi']:.1f})"
    assert filled(tree, f"{SWEEP} speedup variant=flash {only} with=interval") == interval


def test_ratios_are_paired(tree):
    source = open_source(tree / SWEEP)
    row = next(row for row in source.rows if row["variant"] == "flash")
    other = next(one for one in source.rows if one["variant"] == "torch_flash" and source.point_of(one) == source.point_of(row))
    expected = paired_ratio(source.results.samples_of(other), source.results.samples_of(row))
    only = " ".join(f"{name}={row[name]}" for name in ("dtype", "seq_q", "causal", "head_dim", "threads"))
    told = filled(tree, f"{SWEEP} ratio over=torch_flash variant=flash {only} with=interval digits=3")
    assert told.startswith(f"{expected.mid:.3g}"[:4]) and source.ratio(row, "torch_flash") == expected
    table = filled(tree, f"{SWEEP} table value=ratio over=torch_flash variant=flash down=seq_q across=dtype").strip().splitlines()
    assert table[0] == "| seq_q | f32 | bf16 |" and [line.split(" | ")[0] for line in table[2:]] == ["| 512", "| 1024"]


def test_ratios_of_paired_points(tree, capsys):
    held = synthetic.attention_seqlen(sizes=(512,), dtypes=("f32",))
    held.rows = [line | {"score_rule": "none", "paired_to": "score_rule=none"} for line in held.rows if not line["causal"]]
    plain = next(line for line in held.rows if line["variant"] == "flash")
    held.rows = [plain]
    for axes, to, factor in (({"score_rule": "mine"}, "score_rule=none", 2), ({"softcap": 20.0}, "softcap=0", 4)):
        point = f"q{len(held.rows):04d}"
        held.rows.append(plain | axes | {"point": point, "paired_to": to, "time_s": factor * plain["time_s"]})
        held.samples["run-0001", point] = factor * held.samples["run-0001", plain["point"]]
    path = "results/zen4-2c/sweep/paired.h5"
    synthetic.write(tree / path, held)
    assert filled(tree, f"{path} ratio over=score_rule=none score_rule=mine digits=3") == "0.500"
    assert filled(tree, f"{path} ratio over=score_rule=none,softcap=20 score_rule=mine digits=3") == "2.00"
    assert filled(tree, f"{path} ratio over=seq_q=512,softcap=20 softcap=20") == "–", "lengths are not paired"
    assert filled(tree, f"{path} ratio over=softcap=much softcap=20") == "–"
    (tree / "text.md").write_text(f"<!-- katt: {path} ratio over=rule=none --><!-- /katt -->")
    assert main(["readme", str(tree / "text.md")]) == 2
    assert "holds an unknown name rule, expected one of" in capsys.readouterr().err


def test_examples_of_markers_stay(tree):
    document = tree / "text.md"
    text = "Write\n\n    it is <!-- katt: FILE QUANTITY … -->2.4<!-- /katt -->\n\nor `<!-- katt: question --><!-- /katt -->`.\n"
    document.write_text(text)
    assert main(["readme", str(document)]) == 0 and document.read_text() == text


def test_other_files_and_facts(tree):
    models = "results/zen4-2c/models/models.h5"
    assert filled(tree, f'{models} tokens_s model="10 M"') == "123"
    assert filled(tree, f"{models} summary/speedup with=interval") == "2.5 (2.2 to 2.8)"
    assert filled(tree, f"{models} date") == "2026-11-27" and filled(tree, f"{models} machine") == "amd-avx2-1c"
    assert filled(tree, "results/zen4-2c/models/calls.json took.python_s op=rope") == "2.0 µs"
    assert filled(tree, f"{SWEEP} commit") == "9f1c2ab, modified"
    assert filled(tree, f"{SWEEP} about").startswith("amd-avx2-2c (AMD EPYC, 2 cores); commit 9f1c2ab, modified; 2025-03-04; ")


@pytest.mark.parametrize(("text", "line"), [
    ("<!-- katt: results/none.h5 speedup -->", "a marker that is not closed"),
    ("<!-- katt: results/none.h5 speedup --><!-- /katt -->", "holds results/none.h5, which does not exist"),
    (f"\n<!-- katt: {SWEEP} --><!-- /katt -->", "text.md:2: holds"),
    (f"<!-- katt: {SWEEP} speed --><!-- /katt -->", "holds an unknown name speed, expected one of"),
    (f"<!-- katt: {SWEEP} speedup color=red --><!-- /katt -->", "holds an unknown name color"),
    (f"<!-- katt: {SWEEP} speedup variant=none --><!-- /katt -->", "which no row of"),
    (f"<!-- katt: {SWEEP} speedup of=mean --><!-- /katt -->", "holds of=mean, expected range"),
    (f"<!-- katt: {SWEEP} speedup digits=two --><!-- /katt -->", "holds digits=two, expected a whole number"),
    (f"<!-- katt: {SWEEP} speedup with=interval --><!-- /katt -->", "expected one row"),
    (f"<!-- katt: {SWEEP} ratio variant=flash --><!-- /katt -->", "expected ratio over=VARIANT"),
    (f"<!-- katt: {SWEEP} table down=seq_q --><!-- /katt -->", "expected down=NAMES and across=NAMES"),
    (f"<!-- katt: {SWEEP} ratio over=nope variant=flash --><!-- /katt -->", "over=nope, expected a variant of"),
    (f"<!-- katt: {SWEEP} speedup digits=99999999999999999999 --><!-- /katt -->", "expected a whole number below 100"),
    (f"<!-- katt: {SWEEP} speedup over=naive --><!-- /katt -->", "to which over=naive says nothing"),
    (f"<!-- katt: {SWEEP} speedup with=range --><!-- /katt -->", "to which with=range says nothing"),
    (f"<!-- katt: {SWEEP} speedup down=seq_q --><!-- /katt -->", "to which down=seq_q says nothing"),
    (f"<!-- katt: {SWEEP} speedup seq_q=512 seq_q=1024 --><!-- /katt -->", "each NAME once"),
    (f"<!-- katt: {SWEEP} commit variant=flash --><!-- /katt -->", "expected FILE commit alone"),
    ("<!-- katt: results/zen4-2c/models/models.h5 ratio over=x --><!-- /katt -->", "holds an unknown name ratio"),
])
def test_bad_markers_are_refused_in_one_line(tree, capsys, text, line):
    document = tree / "text.md"
    document.write_text(text)
    assert main(["readme", str(document)]) == 2
    told = capsys.readouterr().err
    assert line in told and told.count("\n") == 1 and document.read_text() == text


def test_rows_of_json_may_differ(tree):
    rows = [{"op": "rope", "x_s": 1e-6}, {"op": "norm", "y": 2}, {"op": "rope", "x_s": None}, {"op": "rope", "y": "odd"}]
    (tree / "differ.json").write_text(json.dumps({"rows": rows}))
    assert filled(tree, "differ.json x_s op=rope") == "1.0 µs"
    assert filled(tree, "differ.json y") == "2, odd"
    assert "| rope |" in filled(tree, "differ.json table value=x_s down=op across=y")


def test_the_commands_of_two_runs_stay_two(tree):
    held = open_source(tree / SWEEP)
    held.about["command"] = "katt sweep a.toml -o a.h5; katt sweep b.toml -o a.h5 --resume"
    line = _file_line(tree / SWEEP)
    assert line.endswith("; `katt sweep a.toml; katt sweep b.toml`")


def test_the_readme_of_results(tree, capsys):
    experiment = tree / "experiments" / "sweep"
    experiment.mkdir(parents=True)
    (experiment / "README.md").write_text("# sweep\n\n**Question.** Which is\n[faster](../../docs/fast.md)?\n\n**Device.** Any.\n")
    folder = tree / "results" / "zen4-2c" / "sweep"
    (folder / "speedup.png").touch()
    assert main(["readme", str(tree / "results")]) == 0
    text = (folder / "README.md").read_text()
    assert text.startswith("# sweep on zen4-2c\n\nWhich is\n[faster](../../../docs/fast.md)?\n\nMethod and expectation: [experiments/sweep](../../../experiments/sweep).")
    assert "![speedup](speedup.png)" in text and "katt:" not in text
    assert "| attention forward, `flash` |" in text and "| attention forward, over `torch_flash` |" in text
    assert main(["readme", "--check", str(tree / "results")]) == 0

    (folder / "README.md").write_text(text.replace("9f1c2ab", "1234567"))
    capsys.readouterr()
    assert main(["readme", "--check", str(folder)]) == 1
    assert "1234567" in capsys.readouterr().out

    (experiment / "results.md").write_text(
        "<!-- katt: title --><!-- /katt -->\n\nIt is <!-- katt: ./sweep.h5 speedup variant=flash of=count --><!-- /katt --> and "
        "<!-- katt: ./sweep.h5 speedup variant=absent --><!-- /katt -->.\n\n## Long\n\nTimes:\n\n"
        "<!-- katt: ./long.h5 speedup --><!-- /katt -->\n\n## End\n\nThe other:\n\n![no](no.png)\n\n![yes](speedup.png)\n"
    )
    assert main(["readme", str(folder)]) == 0
    count = len([row for row in open_source(folder / "sweep.h5").rows if row["variant"] == "flash"])
    assert (folder / "README.md").read_text() == f"# sweep on zen4-2c\n\nIt is {count} and –.\n\n## End\n\n![yes](speedup.png)\n"

    (folder / "README.md").write_bytes(b"caf\xe9")
    assert main(["readme", str(folder)]) == 0 and (folder / "README.md").read_text().startswith("# sweep")

    (folder / "calls.json").write_text('{"machine": "mine"}')
    (experiment / "results.md").write_text("<!-- katt: ./calls.json op --><!-- /katt -->\n")
    capsys.readouterr()
    assert main(["readme", str(folder)]) == 2
    assert "calls.json: holds machine that is a str, expected a dict" in capsys.readouterr().err
    (folder / "calls.json").unlink()

    (experiment / "results.md").write_text("<!-- katt: nonsense --><!-- /katt -->\n")
    assert main(["readme", str(folder)]) == 2
    assert "results.md: holds nonsense, expected FILE QUANTITY" in capsys.readouterr().err


def test_a_point_counts_once_whatever_its_tiles_and_runs(tree):
    path = tree / SWEEP
    held = synthetic.attention_seqlen(sizes=(512, 1024), dtypes=("f32",))
    for line in [line for line in held.rows if line["variant"] == "flash"]:
        slower = {"tile": "16x16", "point": line["point"] + "t", "time_s": 2 * line["time_s"], "speedup": line["speedup"] / 2}
        held.rows.append(line | slower)
        peer = {"variant": "torch", "tile": "auto", "point": line["point"] + "p", "time_s": 2 * line["time_s"]}
        held.rows.append(line | peer)
        held.samples["run-0001", peer["point"]] = 2 * held.samples["run-0001", line["point"]]
    held.runs["run-0001"]["peers"] = '{"torch": "torch 2"}'
    held.runs["run-0002"] = held.runs["run-0001"]
    naive = next(line for line in held.rows if line["variant"] == "naive")
    held.rows.append(naive | {"run": "run-0002", "label": "again"})
    synthetic.write(path, held)
    open_source.cache_clear()
    text = _speedups(path.parent)
    assert re.search(r"`flash` \| [^|]*\(2\) \|", text) and re.search(r"`torch` \| [^|]*\(2\) \|", text), text


def test_texts_that_are_none(tree, tmp_path, capsys):
    experiment, folder = tree / "experiments" / "sweep", tree / "results" / "zen4-2c" / "sweep"
    experiment.mkdir(parents=True)
    for name in ("README.md", "results.md"):
        (experiment / name).write_bytes(b"caf\xe9")
        assert main(["readme", str(folder)]) == 2
        assert f"{name}: holds no text (" in capsys.readouterr().err
        (experiment / name).unlink()
    (folder / "README.md").mkdir()
    assert main(["readme", str(folder)]) == 2
    assert "README.md: holds a folder, expected a file" in capsys.readouterr().err
    (tmp_path / "latin.md").write_bytes(b"caf\xe9")
    assert main(["readme", str(tmp_path / "latin.md")]) == 2
    assert "latin.md: holds no text (" in capsys.readouterr().err


def test_no_results(tmp_path, capsys):
    assert not is_experiment(Path("/tmp")) and not is_experiment(Path("/"))
    assert main(["readme", str(tmp_path)]) == 2
    assert "holds no results" in capsys.readouterr().err
    assert main(["readme", str(tmp_path / "none.md")]) == 2


def test_the_projects_documents_hold_the_files_numbers(repository, published, capsys):
    """Mend a failure by `katt-report readme results README.md docs/*.md`."""
    open_source.cache_clear()
    documents = [repository / "README.md", *sorted((repository / "docs").rglob("*.md"))]
    assert main(["readme", "--check", str(published), *map(str, documents)]) == 0, capsys.readouterr().out
