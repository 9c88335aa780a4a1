"""Cycles: read from a file, told from axes, and the judge of a verdict in time."""

import math

import numpy as np
import pytest
import synthetic
from katt_report import compare, load
from katt_report.calibration import slowed
from katt_report.pages.compare_page import table_text
from katt_report.schema import is_identity

COLUMNS = ("ghz", "cycles", "instructions", "llc_misses", "joules", "throttled", "speedup_cycles",
           "speedup_cycles_lo", "speedup_cycles_hi")  # fmt: skip


def counted(file: synthetic.File, ghz: float = 3.0, work: float = 1.0) -> synthetic.File:
    """The file with cycles as a processor of a steady clock counts them; `work` is a factor on flash's."""
    for line in file.rows:
        line |= dict.fromkeys(COLUMNS, math.nan)
        key = (line["run"], line["point"])
        if line["status"] == "ok":
            cycles = file.samples[key] * ghz * 1e9 * (work if line["variant"] == "flash" else 1.0)
            file.cycles[key] = cycles
            line |= {"ghz": ghz, "cycles": float(np.median(cycles))}
    return file


@pytest.fixture
def judged(tmp_path):
    """Compares two synthetic sweeps: `slow` is a factor on flash's time at N = 2048 in the newer one."""

    def judge(slow: float, old=counted, new=counted, **options):
        sweep = dict(dtypes=("f32",), sizes=(1024, 2048, 16384), rounds=25)
        files = [old(synthetic.attention_seqlen(1, **sweep)),
                 new(synthetic.attention_seqlen(1, slow={(2048, "f32"): slow, (16384, "f32"): slow}, **sweep))]  # fmt: skip
        found = compare(*(load(synthetic.write(tmp_path / f"{n}.h5", file)) for n, file in enumerate(files)), **options)
        (row,) = (row for row in found.rows if row.identity["seq_q"] == 2048 and row.identity["variant"] == "flash")
        return found, row

    return judge


def test_columns_are_no_axes():
    assert not any(is_identity(name) for name in COLUMNS)


def test_a_slowed_program_needs_more_cycles(tmp_path):
    results = load(synthetic.write(tmp_path / "a.h5", counted(synthetic.attention_seqlen(dtypes=("f32",), sizes=(512,)))))
    slower = slowed(results, 1.3)
    for row in results.points.rows():
        factor = 1.0 if row["variant"] == "naive" else 1.3
        assert slower.cycles_of(row) == pytest.approx(factor * results.cycles_of(row))
    assert compare(results, slower).regressions == 1


def test_samples_are_read(tmp_path):
    file = counted(synthetic.attention_seqlen(1, dtypes=("f32",), sizes=(512, 1024)))
    path = synthetic.write(tmp_path / "a.h5", file)
    results = load(path)
    row = results.points.row(0)
    assert results.cycles_of(row) == pytest.approx(3e9 * results.samples_of(row))
    assert row["cycles"] == pytest.approx(np.median(results.cycles_of(row)))
    other = synthetic.write(tmp_path / "b.h5", synthetic.attention_seqlen(1, dtypes=("f32",), sizes=(512,)))
    both = load(path, other)
    assert both.cycles_of(both.points.row(0)) is not None
    assert both.cycles_of(both.points.row(len(both.points) - 1)) is None
    assert math.isnan(both.points.row(len(both.points) - 1)["ghz"])


def test_a_slowdown_in_cycles_is_a_regression(judged):
    found, row = judged(1.5)
    assert row.verdict == "regression" and found.worse
    assert "confirmed in cycles: 0.67×" in row.reasons


def test_an_improvement_in_cycles_is_one(judged):
    _, row = judged(0.5)
    assert row.verdict == "improved" and "confirmed in cycles: 2.00×" in row.reasons


@pytest.mark.parametrize("slow, word", [(1.5, "0.67×"), (0.5, "2.00×")])
def test_a_change_of_the_clock_alone_is_unclear(judged, slow, word):
    # flash takes as many cycles as before in another time.
    found, row = judged(slow, new=lambda file: counted(file, work=1 / slow if slow > 1 else 2.0))
    assert row.verdict == "unclear" and not found.worse, table_text(found)
    assert row.reasons[0] == f"{word} the old speedup, not confirmed in cycles: 1.00×"
    assert row.reasons[1] == "clock 3.00 → 3.00 GHz"


def test_times_are_confirmed_too(judged):
    found, row = judged(1.5, metric="time")
    assert row.verdict == "regression" and any("confirmed in cycles" in reason for reason in row.reasons)
    found, row = judged(1.5, new=lambda file: counted(file, ghz=2.0), metric="time")
    assert row.verdict == "unclear" and "not confirmed in cycles: 1.00×" in row.reasons[0]
    assert row.reasons[1] == "clock 3.00 → 2.00 GHz"


def test_without_cycles_in_both_files_time_decides(judged):
    for sides in ({"old": lambda file: file}, {"new": lambda file: file}):
        _, row = judged(1.5, **sides)
        assert row.verdict == "regression" and not any("cycles" in reason for reason in row.reasons)


def test_rounds_without_a_count_are_left_out(judged):
    def gaps(file):
        for cycles in counted(file).cycles.values():
            cycles[::3] = math.nan
        return file

    assert judged(1.5, new=gaps)[1].verdict == "regression"
    assert judged(1.0, old=gaps)[1].verdict == "same"
