"""The between-runs term is the one that was put in, coverage is what it should be, and slowdowns are found."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import synthetic
from katt_report import load
from katt_report.calibration import METRICS, alarms, calibrate, calibrate_terms, slowed, with_between_runs
from katt_report.cli import main
from katt_report.compare import compare
from katt_report.errors import InputError
from katt_report.isolation import runs_isolated
from katt_report.published.repeats import alarms_csv, read_alarms
from katt_report.ratios import with_baseline
from katt_report.statistics import (
    Interval,
    between_runs,
    coverage,
    coverage_left_out,
    median_interval,
    paired_ratio,
)

BETWEEN = {"attention": 0.06, "linear": 0.02, "rmsnorm": 0.0}
"""The relative standard deviation between runs of each operator's kernel."""


def series(between, seed, rows=40, runs=10, within=0.03, rounds=21):
    """Intervals of medians by row and run: each run has a median of its own, each sample noise of its own."""
    random = np.random.default_rng(seed)
    return [[median_interval(np.exp(random.normal(random.normal(0.0, between), within, rounds))) for _ in range(runs)]
            for _ in range(rows)]  # fmt: skip


@pytest.mark.parametrize(("between", "error"), [(0.01, 0.4), (0.05, 0.2), (0.2, 0.2)])
def test_the_term_is_the_deviation_between_runs(between, error):
    rows = series(between, seed=3)
    # Intervals of order statistics are a little wide, 97 % for 21 samples: a small term is smaller by that.
    assert between_runs(rows) == pytest.approx(between, rel=error)
    assert coverage(rows) < 0.83
    assert 0.93 <= coverage(rows, between_runs(rows)) <= 0.97
    assert 0.92 <= coverage_left_out(rows) <= 0.975


def test_runs_that_do_not_differ_need_no_term():
    rows = series(0.0, seed=4, rows=80)
    assert 0.80 <= coverage(rows) <= 0.93 and between_runs(rows) < 0.005
    assert 0.93 <= coverage(rows, between_runs(rows)) <= 0.985


def test_a_term_of_heavy_tails_covers_as_well():
    random = np.random.default_rng(5)
    rows = [[median_interval(np.exp(random.normal(0.02 * random.standard_t(2), 0.01, 15))) for _ in range(12)]
            for _ in range(40)]  # fmt: skip
    assert 0.93 <= coverage_left_out(rows) <= 0.97


def test_intervals_are_widened_in_quadrature_of_logarithms():
    interval = Interval(2.0, 2.0 * math.exp(-0.03), 2.0 * math.exp(0.04))
    wide = interval.widened(0.04 / 1.959963984540054)
    assert math.log(2.0 / wide.lo) == pytest.approx(0.05) and math.log(wide.hi / 2.0) == pytest.approx(math.sqrt(0.0032))
    twice = interval.repeated()
    assert math.log(2.0 / twice.lo) == pytest.approx(0.03 * math.sqrt(2)) and interval.widened(0.0).lo == pytest.approx(interval.lo)
    unbounded = Interval(1.0, 0.0, math.inf)
    assert unbounded.widened(0.1) == unbounded.repeated(0.1) == unbounded
    assert math.isnan(between_runs([[interval]])) and math.isnan(coverage([[interval, None]]))
    assert math.isnan(coverage_left_out([[interval, interval]])), "no other pair to fit"


def repeats(runs=8, cases=3, rounds=15, seed=0) -> synthetic.File:
    """A sweep of three operators, naive and fused, many times."""
    random = np.random.default_rng(seed)
    file = synthetic.File()
    for number in range(1, runs + 1):
        run = f"run-{number:04d}"
        file.runs[run] = synthetic.run_attributes(started_at=f"2025-03-04T{8 + number:02d}:00:00Z")
        for op, between in BETWEEN.items():
            for size in range(cases):
                noise = random.normal(0.0, 0.05, rounds)  # of both
                moved = {"naive": 0.0, "fused": random.normal(0.0, between)}
                taken = {name: 1e-3 * (1 if name == "naive" else 0.5)
                         * np.exp(noise + moved[name] + random.normal(0.0, 0.01, rounds)) for name in moved}  # fmt: skip
                for name, seconds in taken.items():
                    time, ratio = median_interval(seconds), paired_ratio(taken["naive"], seconds)
                    line = synthetic.row(
                        op=op, variant=name, dtype="f32", seq_q=64 << size, seq_kv=64 << size, run=run, tile="auto",
                        point=f"{len(file.rows):06d}", samples=rounds, time_s=time.mid, time_lo_s=time.lo,
                        time_hi_s=time.hi, speedup=ratio.mid, speedup_lo=ratio.lo, speedup_hi=ratio.hi, inner=1,
                        flops=1e6, bytes=1e3, workspace_bytes=1, total_bytes=1000, max_abs_err=1e-7, mean_abs_err=1e-8,
                    )  # fmt: skip
                    file.rows.append(line)
                    file.samples[run, line["point"]] = seconds
    return file


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return synthetic.write(tmp_path_factory.mktemp("calibration") / "calibration.h5", repeats())


def test_a_calibration_tells_operators_apart(path):
    runs = runs_isolated(path)
    assert len(runs) == 8 and all(len(run.points) == 18 for run in runs)
    found = calibrate(runs)
    assert found.runs == 8 and found.minutes == 7 * 60 and found.commits == ["9f1c2ab7d0e4"]
    terms = {(term.op, term.metric): term for term in found.terms}
    assert set(terms) == {(op, metric) for op in BETWEEN for metric in ("speedup", "time")}
    for op, between in BETWEEN.items():
        assert found.between(op, "speedup") == pytest.approx(between, abs=0.005 + 0.4 * between), op
        assert (terms[op, "speedup"].rows, terms[op, "speedup"].pairs) == (3, 3 * 28)
    assert terms["attention", "speedup"].before < 0.5 and terms["attention", "speedup"].after > 0.9
    assert found.between("rope", "speedup") is None


@pytest.fixture(scope="module")
def rules(path):
    return alarms(runs_isolated(path))


def test_compare_with_the_term_raises_fewer_alarms_and_still_finds_slowdowns(rules):
    rates = {(one.rule, one.calibrated, one.slowdown): one for one in rules}
    plain, calibrated = (rates["compare", known, 0.0] for known in (False, True))
    assert plain.any_row > 0.3 and calibrated.any_row <= 0.1, "attention moves by 6 % between runs"
    assert plain.comparisons == calibrated.comparisons > 10
    assert rates["compare", True, 0.3].any_row == 1.0 and rates["compare", True, 0.3].one_row > 0.6
    rows = [rates["compare --tolerance 0.02", True, slowdown].one_row for slowdown in (0.0, 0.05, 0.1, 0.3)]
    assert rows == sorted(rows) and rows[0] < 0.05 and rows[2] > 0.3
    assert rates["check_regression", False, 0.1].any_row == 0.0, "its tolerance is a quarter"
    assert rates["check_regression", False, 0.0].comparisons < plain.comparisons, "three sweeps a comparison"


def test_a_slowdown_is_that_of_every_variant_but_naive(path):
    run = runs_isolated(path)[0]
    slower = slowed(run, 1.1)
    for before, after in zip(run.points.rows(), slower.points.rows(), strict=True):
        factor = 1.0 if before["variant"] == "naive" else 1.1
        assert after["time_s"] == pytest.approx(before["time_s"] * factor)
        assert after["speedup"] == pytest.approx(before["speedup"] / factor)
        assert np.allclose(slower.samples_of(after), run.samples_of(before) * factor)


def test_compare_says_what_the_calibration_is_and_lacks(path, tmp_path, capsys):
    runs = runs_isolated(path)
    found = compare(runs[0], runs[5], calibration=calibrate_terms(runs))
    assert any("from 8 repeats on Intel Xeon" in note for note in found.notes)
    lacking = calibrate_terms([slowed(run, 1.0) for run in runs])
    lacking.terms[:] = [term for term in lacking.terms if term.op != "linear"]
    assert "without a between-runs term: linear" in compare(runs[0], runs[5], calibration=lacking).notes
    old = synthetic.write(tmp_path / "old.h5", repeats(runs=1, seed=7))
    assert main(["compare", str(old), str(old), "--calibration", str(path)]) == 0
    assert "8 repeats" in capsys.readouterr().out


def test_the_command_prints_tables_and_writes_a_figure(path, rules, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("katt_report.calibration.alarms", lambda runs: rules)
    folder = tmp_path / "results" / "machine" / "calibration"
    assert main(["calibration", str(path), "-o", str(folder)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("8 runs of one sweep in 7.0 hours on Intel Xeon")
    assert "| attention" in said and "| check_regression" in said
    assert sorted(file.name for file in folder.iterdir()) == ["alarms.csv", "coverage.png"]
    assert str(read_alarms(folder / "alarms.csv")) == str(rules), "NaN is not equal to itself"
    assert main(["calibration", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)  # NaN is no JSON
    assert found["runs"] == 8 and found["alarms"]


def test_the_readme_of_results_has_the_tables(path, rules, tmp_path, repository):
    folder = tmp_path / "results" / "machine" / "calibration"
    folder.mkdir(parents=True)
    (tmp_path / "experiments").symlink_to(repository / "experiments")
    (folder / "calibration.h5").write_bytes(Path(path).read_bytes())
    (folder / "alarms.csv").write_text(alarms_csv(rules))
    assert main(["readme", str(folder)]) == 0
    text = (folder / "README.md").read_text()
    assert "8 runs of one sweep" in text and "## False alarms and detections" in text and "| check_regression" in text
    assert all(len(line) <= 120 for line in text.splitlines() if not line.startswith("- ["))
    (folder / "alarms.csv").write_text("rule,calibrated\ncompare,True\n")
    assert main(["readme", str(folder)]) == 2


def test_a_report_shows_widened_intervals(path, tmp_path, capsys):
    file = synthetic.write(tmp_path / "one.h5", repeats(runs=1, seed=7))
    plain, terms = load(file), calibrate_terms(runs_isolated(path))
    wide = with_between_runs(plain, terms)
    for before, after in zip(plain.points.rows(), wide.points.rows(), strict=True):
        for metric, (mid, lo, hi) in METRICS.items():
            if before[lo] < before[hi]:
                expected = Interval(before[mid], before[lo], before[hi]).widened(terms.between(before["op"], metric))
                assert (after[mid], after[lo], after[hi]) == (expected.mid, expected.lo, expected.hi)
        assert after["time_lo_s"] <= before["time_lo_s"] and before["time_hi_s"] <= after["time_hi_s"]
    assert "speedup" in wide.points["note"][1] and "speedup" not in wide.points["note"][0], "naive is the baseline"
    assert main([file, "-o", str(tmp_path / "out"), "--calibration", str(path)]) == 0
    assert "hold the differences between 8 runs on Intel Xeon (Sapphire Rapids) (2 cores): speedup 5." in (tmp_path / "out" / "report.html").read_text()
    assert plain.points["note"][1] == "", "the file's own table stays"
    chosen = with_baseline(plain, "fused")
    wide = with_between_runs(chosen, terms)
    assert all(np.array_equal(wide.points[name], chosen.points[name], equal_nan=True) for name in METRICS["speedup"])
    assert np.all(wide.points["time_hi_s"] >= chosen.points["time_hi_s"])
    note = wide.points["note"][0]
    assert note.endswith(" %; those of ratios to fused do not") and "speedup" not in note
    plain.runs["one.h5", "run-0001"]["peers"] = '{"torch": "torch 2"}'
    assert with_between_runs(plain, terms).points["note"][1].endswith(" %; those of ratios to peers do not")


def test_what_is_no_calibration_is_refused(tmp_path, files, capsys):
    with pytest.raises(InputError, match="1 run, expected the same sweep at least 3 times"):
        runs_isolated(files["seqlen"])
    mixed = repeats(runs=3)
    mixed.runs["run-0002"]["device"] = "another"
    with pytest.raises(InputError, match="runs of 2 machines, expected repeats on one"):
        runs_isolated(synthetic.write(tmp_path / "mixed.h5", mixed))
    single = synthetic.write(tmp_path / "single.h5", repeats(runs=3, rounds=1))
    for command in (["calibration", single, "-o", str(tmp_path / "out")],
                    [files["seqlen"], "-o", str(tmp_path / "out"), "--calibration", single]):  # fmt: skip
        assert main(command) == 2 and not (tmp_path / "out").exists()
        assert f"{single}: holds no row with an interval in two runs, expected repeats" in capsys.readouterr().err
    assert main(["compare", files["seqlen"], files["seqlen"], "--calibration", files["seqlen"]]) == 2
    assert "expected the same sweep" in capsys.readouterr().err
    assert len(load(files["seqlen"]).points)
