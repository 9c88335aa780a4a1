"""katt-report index: the table, what is its own and what is not, and results/README.md of the project."""

import shutil

import h5py
import pytest
import synthetic
from katt_report.published.fresh import SourceTree
from katt_report.published.index import MARKER, entries, index, without_freshness
from portable_files import MACHINES, file
from test_cli import run

ZEN4, AMX, _ = MACHINES


@pytest.fixture
def results(tmp_path):
    """Two machines; with a peer on one of them."""
    cases = [
        ({"dtype": dtype}, {"naive": (9.0, 0.1), "flash": (3.0, 0.4), "slow": (6.0, 0.2)}) for dtype in ("f32", "bf16")
    ]
    beside = [(axes, {**times, "torch": (6.0, 0.2), "other": (4.5, 0.25)}) for axes, times in cases]
    for machine, experiment, made in (
        (ZEN4, "alone", file(ZEN4, cases, noise=0.1)), (AMX, "alone", file(AMX, cases, noise=0.1)),
        (AMX, "beside", file(AMX, beside, ("torch", "other"), noise=0.1)),
    ):  # fmt: skip
        folder = tmp_path / "results" / machine / experiment
        folder.mkdir(parents=True)
        synthetic.write(folder / f"{experiment}.h5", made)
    return tmp_path / "results"


def test_ratios(results):
    found = {(e.machine, e.experiment): e for e in entries(results, None)}
    assert found[ZEN4, "alone"].over == "naive"
    assert found[ZEN4, "alone"].ratio.mid == pytest.approx(3.0)
    assert found[ZEN4, "alone"].ratio.lo < 3.0 < found[ZEN4, "alone"].ratio.hi
    assert found[AMX, "beside"].over == "best other"
    assert found[AMX, "beside"].ratio.mid == pytest.approx(1.5, rel=0.1)
    assert found[AMX, "beside"].commits == ["9f1c2ab"]
    assert found[AMX, "beside"].dates == ["2025-03-04"]


def test_writes_the_table_and_the_same_again(results, capsys):
    assert run(capsys, "index", results) == (0, f"{results}/README.md\n", "")
    text = (results / "README.md").read_text()
    assert text.startswith(MARKER)
    assert f"| alone | [3.0×]({AMX}/alone) naive | [3.0×]({ZEN4}/alone) naive |" in text
    assert f"| {ZEN4} | [alone]({ZEN4}/alone) | 3.0 (2.7–3.3) | naive | 6 | unknown | 9f1c2ab | 2025-03-04 |" in text
    assert run(capsys, "index", results, "--check") == (0, "", "")
    run(capsys, "index", results)
    assert (results / "README.md").read_text() == text


def test_check_sees_another_file_and_not_another_tree(results, capsys, tmp_path):
    run(capsys, "index", results)
    text = (results / "README.md").read_text()
    bare = index(results, SourceTree(tmp_path))
    assert without_freshness(text) == without_freshness(bare)
    assert without_freshness(text) == without_freshness(text.replace("| unknown |", "| 12 % stale, 7 commits |"))
    assert without_freshness(text) == without_freshness(text.replace("| unknown |", "| fresh |"))
    assert without_freshness(text) != without_freshness(text.replace("3.0 (", "4.0 ("))
    shutil.rmtree(results / ZEN4)
    status, out, _ = run(capsys, "index", results, "--check")
    assert (status, out) == (
        1,
        f"{results}/README.md: says another thing than the files; katt-report index {results} makes it again\n",
    )
    assert (results / "README.md").read_text() == text


def test_a_readme_of_others_is_refused(results, capsys):
    (results / "README.md").write_text("# Mine\n")
    status, _, err = run(capsys, "index", results)
    assert status == 2
    assert err == (f"katt-report: {results}/README.md: holds a text that katt-report index did not make, expected a first "
                   f"line {MARKER}\n")  # fmt: skip
    assert (results / "README.md").read_text() == "# Mine\n"


@pytest.mark.parametrize(("columns", "told"), [
    ({"speedup_lo": [1.0]}, "speedup = nothing"), ({"speedup": [1.0], "speedup_lo": ["x"], "speedup_hi": [2.0]}, "speedup_lo = x"),
])  # fmt: skip
def test_a_summary_that_is_no_interval(columns, told, results, capsys):
    with h5py.File(results / ZEN4 / "alone" / "models.h5", "w") as models:
        models.attrs["generator"], models["tokens_s"] = "katt experiments", [1.0]
        for name, values in columns.items():
            models[f"summary/{name}"] = values
    status, out, err = run(capsys, "index", results)
    assert (status, out, err.count("\n")) == (2, "", 1) and f"models.h5: holds /summary with {told}, expected" in err


def test_a_summary_counts_the_best_peer_of_a_case(results):
    with h5py.File(results / ZEN4 / "alone" / "models.h5", "w") as models:
        models.attrs["generator"], models["tokens_s"] = "katt experiments", [1.0]
        columns = {"model": ["a", "a", "b"], "peer": ["x", "y", "x"], "rows": [1, 4, 1], "katt_time_s": [1.0, 1.1, 1.0]}
        for name, values in {**columns, "speedup": [8.0, 2.0, 8.0]}.items():
            models[f"summary/{name}"] = values
        models["summary/speedup_lo"] = models["summary/speedup_hi"] = models["summary/speedup"]
    (found,) = (e for e in entries(results, None) if e.machine == ZEN4)
    assert (found.over, found.ratio.mid) == ("best other", pytest.approx(4.0))


def test_a_folder_without_results(tmp_path, capsys):
    status, _, err = run(capsys, "index", tmp_path)
    assert (status, err) == (2, f"katt-report: {tmp_path}: holds no results, expected a folder with result files in "
                                "MACHINE/EXPERIMENT\n")  # fmt: skip


def test_the_projects_index_is_that_of_its_files(published, capsys):
    assert run(capsys, "index", published, "--check") == (0, "", "")
