"""A file with runs of several machines, as katt merge makes it: their rows are apart, and are compared."""

import math

import synthetic
from katt_report import groups, headline, load
from katt_report.pages.machines import by_machine, machine_lines, machines_section
from katt_report.pages.page import report

OTHER = {"device": "AMD EPYC 9654", "cores": 96}
HERE = "Intel Xeon (Sapphire Rapids) (2 cores)"
THERE = "AMD EPYC 9654 (96 cores)"


def two_machines(there: float, sizes=(512, 1024)):
    """A sweep on one machine, and again on one that takes `there` times as long with other threads."""
    file = synthetic.attention_seqlen(sizes=(512, 1024), dtypes=("f32",))
    again = synthetic.attention_seqlen(sizes=sizes, dtypes=("f32",))
    for row in again.rows:
        times = {name: row[name] * there for name in ("time_s", "time_lo_s", "time_hi_s")}
        file.rows.append(row | times | {"run": "run-0002", "threads": 96})
    file.samples |= {("run-0002", point): seconds for (_, point), seconds in again.samples.items()}
    file.runs["run-0002"] = synthetic.run_attributes(**OTHER)
    file.ceilings["run-0002"] = [("fma_f32", 940e9, "FLOP/s", 0)]
    return file


def test_rows_of_two_machines_do_not_replace_each_other(tmp_path):
    results = load(synthetic.write(tmp_path / "r.h5", two_machines(0.5)))
    assert results.replaced == 0 and len(results.points) == 8
    assert {name: len(points) for name, points in by_machine(results).items()} == {HERE: 4, THERE: 4}
    # Every figure is of one machine, with its samples and its ceilings.
    for group in groups(results):
        machines = {results.machine_of(*key) for key in group.points.tuples(["source", "run"])}
        assert len(machines) == 1
        peak = next(c.value for c in group.ceilings if c.name == "fma_f32")
        assert peak == (470e9 if machines == {HERE} else 940e9)
        assert all(results.samples_of(row) is not None for row in group.points.rows())


def test_times_at_common_rows(tmp_path):
    results = load(synthetic.write(tmp_path / "r.h5", two_machines(0.5)))
    lines = machine_lines(results)
    assert HERE in lines[0] and THERE in lines[0] and "4 rows" in lines[0]
    assert f"{THERE} takes 0.500× the time of {HERE} at 4 common rows" in lines[1]
    assert headline(results)[0] == ("machines", lines)
    section = machines_section(results)
    assert "940 GFLOP/s" in section and "470 GFLOP/s" in section


def test_one_thread_is_not_compared_with_two(tmp_path):
    file = two_machines(0.5)
    for row in list(file.rows):
        threads, slower = (1, 4.0) if row["run"] == "run-0001" else (2, 1.0)
        file.rows.append(row | {"threads": threads, "time_s": slower * row["time_s"], "point": row["point"] + "t"})
    results = load(synthetic.write(tmp_path / "r.h5", file))
    assert f"{THERE} takes 0.500× the time of {HERE} at 4 common rows" in machine_lines(results)[1]
    for row in file.rows:
        row["threads"] *= 1 if row["run"] == "run-0001" else 7
    results = load(synthetic.write(tmp_path / "r.h5", file))
    assert f"{THERE} takes 0.500× the time of {HERE} at 4 common rows" in machine_lines(results)[1]


def test_only_believed_ceilings_are_compared(tmp_path):
    file = two_machines(0.5)
    file.ceilings["run-0002"] += [("read_l2", 1e9, "B/s", 0), ("read_dram", 40e9, "B/s", 0), ("copy_l2", math.nan, "B/s", 0)]
    section = machines_section(load(synthetic.write(tmp_path / "r.h5", file)))
    assert "ceiling read_dram, 2 threads" in section
    assert "1.00 GB/s" not in section and ">0 " not in section


def test_machines_that_share_no_row(tmp_path):
    results = load(synthetic.write(tmp_path / "r.h5", two_machines(1.0, sizes=(2048,))))
    assert "no measured row in common" in machine_lines(results)[1]
    assert len(groups(results)) == 2, "no curve over points of two machines"


def test_the_page_has_the_section_where_there_are_several(tmp_path):
    page = report(load(synthetic.write(tmp_path / "r.h5", two_machines(2.0))))["report.html"].decode()
    assert 'id="machines"' in page and 'href="#machines"' in page


def test_one_machine_needs_no_comparison(files, tmp_path):
    results = load(files["seqlen"])
    assert machine_lines(results) == [] and machines_section(results) == ""
    # A resumed run of the same machine stays one source.
    file = synthetic.attention_seqlen(sizes=(512,), dtypes=("f32",))
    file.runs["run-0002"] = synthetic.run_attributes(started_at="2026-01-02T00:00:00Z")
    file.rows += [dict(row, run="run-0002") for row in file.rows]
    results = load(synthetic.write(tmp_path / "r.h5", file))
    assert results.points.values("source") == ["r.h5"] and results.replaced == 2
