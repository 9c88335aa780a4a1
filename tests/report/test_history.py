"""katt-report history: change points, disturbed runs, noise between runs, the order of commits, the page."""

import shutil

import numpy as np
import pytest
import synthetic
from katt_report.published.files import read_each
from katt_report.published.history import history, segments
from portable_files import MACHINES, file
from test_cli import run

ZEN4, AMX, _ = MACHINES


def days(runs, machine=ZEN4, noise=0.02, **about):
    """The file of each run: `runs` holds for each the factor on the speed of flash."""
    random = np.random.default_rng(7)
    for number, factor in enumerate(runs):
        cases = [({"dtype": dtype}, {"naive": (9.0, 0.1), "other": (4.0 * jitter, 0.3), "torch": (5.0, 0.2),
                                     "flash": (3.0 / (factor if dtype == "f32" else 1.0) * jitter, 0.4)})
                 for dtype in ("f32", "bf16") for jitter in [np.exp(random.normal(0, 0.01))]]  # fmt: skip
        made = file(machine, cases, noise=noise, **{"started_at": f"2025-03-{number + 1:02d}T10:00:00Z", **about})
        for row in made.rows:
            row["commit"] = f"{number:02d}0123456789"
        yield made


def write(folder, runs, *machine, **about):
    """A file a run."""
    folder.mkdir(exist_ok=True)
    for number, made in enumerate(days(runs, *machine, **about)):
        synthetic.write(folder / f"{len(runs) - number:02d}.h5", made)  # names in the opposite order of time
    return folder


def changed(found):
    return {series.name: [(c.index, round(c.factor, 1), c.runs) for c in series.changes]
            for series in found.series if series.changes}  # fmt: skip


@pytest.mark.parametrize(("values", "starts"), [
    ([0.0] * 8, [0]),
    ([0.0] * 4 + [9.0] * 4, [0, 4]),
    ([0.0] * 4 + [9.0] * 3 + [0.0] * 3, [0, 4, 7]),
    ([0.0] * 4 + [50.0] + [0.0] * 4, [0]),  # one disturbed run
    ([0.0] * 6 + [9.0], [0, 6]),  # the newest run, which nothing has confirmed yet
    ([0.0, 1.0, -1.0, 0.5, -0.5, 1.0, 0.0, -1.0], [0]),
    ([1.0], [0]),
])  # fmt: skip
def test_segments(values, starts):
    assert segments(np.array(values), np.ones(len(values)), penalty=12.0) == starts


def test_noise_alone_is_no_change():
    random = np.random.default_rng(5)
    found = [segments(random.normal(size=15), np.ones(15), 3 * np.log(40 * 15)) for _ in range(40)]
    assert found == [[0]] * 40


def test_a_row_that_changed(tmp_path):
    found = history(read_each([write(tmp_path, [1.0] * 5 + [0.8] * 4)]))
    assert changed(found) == {"attention forward flash f32": [(5, 0.8, 4)]}
    first = found.series[0]
    assert first.name == "attention forward flash f32"  # rows with changes come first
    assert [m.commit[:2] for m in first.measurements] == [f"{n:02d}" for n in range(9)]
    assert len(found.series) == 4  # flash and other in two dtypes; neither naive nor the peer
    assert first.levels[0] == pytest.approx(3.0, rel=0.03)


def test_a_disturbed_run_is_no_change(tmp_path):
    assert changed(history(read_each([write(tmp_path, [1.0] * 4 + [0.6] + [1.0] * 4)]))) == {}


def test_copies_of_a_run_count_once(tmp_path):
    write(tmp_path / "runs", [1.0, 1.0, 0.8])
    shutil.copytree(tmp_path / "runs", tmp_path / "copies")
    assert [len(series.measurements) for series in history(read_each([tmp_path])).series] == [3] * 4


def test_every_run_of_a_file_counts(tmp_path, capsys):
    """As katt merge makes it; files of the same runs beside it are copies."""
    factors, week = [1.0] * 5 + [0.8] * 4, synthetic.File()
    for number, made in enumerate(days(factors)):
        run_name = f"run-{number:04d}"
        week.rows += [row | {"run": run_name} for row in made.rows]
        week.runs[run_name] = made.runs["run-0001"]
    path = synthetic.write(tmp_path / "week.h5", week)
    for arguments in ([path], [path, write(tmp_path / "days", factors)]):
        status, out, err = run(capsys, "history", *arguments)
        assert (status, err) == (0, "")
        assert f"{ZEN4}: 4 rows over 9 runs, 0001234 to 0801234: 1 changed (1 slower" in out


def test_machines_are_apart(tmp_path):
    write(tmp_path, [1.0] * 3)
    write(tmp_path / "amx", [0.5] * 3, AMX)
    found = history(read_each([tmp_path]))
    assert found.machines == sorted([ZEN4, AMX])
    assert changed(found) == {}


def test_runs_are_sorted_by_the_date_of_their_commit_where_the_tree_has_it(tmp_path):
    class Tree:
        def commit_date(self, commit):
            from datetime import UTC, datetime

            return datetime(2024, 1, 30 - int(commit[:2]), tzinfo=UTC)

    found = history(read_each([write(tmp_path, [1.0, 1.0, 0.7, 0.7, 0.7])]), Tree())
    assert [m.commit[:2] for m in found.series[0].measurements] == ["04", "03", "02", "01", "00"]
    assert changed(found) == {"attention forward flash f32": [(3, 1.4, 2)]}


def test_report(tmp_path, capsys):
    write(tmp_path / "runs", [1.0] * 6 + [0.7] * 2)
    status, out, err = run(capsys, "history", tmp_path / "runs", "-o", tmp_path / "out")
    assert (status, err) == (0, "")
    (line,) = [line for line in out.splitlines() if line.endswith("attention forward flash f32")]
    assert float(line.split()[0]) == pytest.approx(-30, abs=3)
    assert "0601234" in line
    assert "2025-03-07" in line
    assert f"{ZEN4}: 4 rows over 8 runs, 0001234 to 0701234: 1 changed (1 slower" in out
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "history.html", f"history_{ZEN4}.png", f"history_{ZEN4}.svg",
    }  # fmt: skip
    assert "All 4 rows" in (tmp_path / "out" / "history.html").read_text()


def test_bad_input(tmp_path, capsys):
    path = synthetic.write(tmp_path / "r.h5", file(ZEN4, [({}, {"flash": (1.0, 0.5)})]))
    assert run(capsys, "history", path) == (
        2, "", "katt-report: r.h5: holds no row with a speedup, expected rows measured beside naive\n")  # fmt: skip
    once = write(tmp_path / "once", [1.0])
    status, out, _ = run(capsys, "history", once)
    assert (status, out) == (0, "4 rows are in one run alone and have no history.\n")
