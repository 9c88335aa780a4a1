"""katt-report portability: efficiencies, P and its interval, support, common points, the page."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import synthetic
from katt_report.figures import portability as drawings
from katt_report.figures.portability import cascades, limits, navigation
from katt_report.published.files import read_each
from katt_report.published.portability import (
    BEST_PEER,
    LIMITS,
    OURS,
    PEERS,
    convergence,
    geometric_mean,
    harmonic_mean,
    lines_below,
    portability,
)
from katt_report.statistics import Interval
from portable_files import MACHINES, file
from test_cli import run

ZEN4, AMX, AVX2 = MACHINES


def found(tmp_path, **files):
    for name, made in files.items():
        synthetic.write(tmp_path / f"{name}.h5", made)
    return portability(read_each([tmp_path]))


def only(operations):
    (operation,) = operations
    return operation


def test_p_is_the_harmonic_mean_of_the_machines_and_bounded_by_the_ends():
    values = [Interval(0.5, 0.4, 0.6), Interval(0.25, 0.2, 0.5)]
    p = harmonic_mean(values)
    assert p == Interval(*(pytest.approx(2 / (1 / a + 1 / b)) for a, b in ((0.5, 0.25), (0.4, 0.2), (0.6, 0.5))))
    assert harmonic_mean([*values, Interval(0, 0, 0)]) == Interval(0, 0, 0)
    assert geometric_mean(values).mid == pytest.approx(math.sqrt(0.125))


def test_fastest_variant_counts_at_the_points_in_common(tmp_path):
    one = {"naive": (9.0, 0.9), "flash": (2.0, 0.5), "flash_slow": (4.0, 0.25), "naive_linear": (1.0, 0.99)}
    result = found(tmp_path, a=file(ZEN4, [({}, one), ({"seq_q": 64, "seq_kv": 64}, {"flash": (1.0, 0.01)})]),
                   b=file(AMX, [({}, {"flash": (3.0, 0.25)})]))  # fmt: skip
    operation = only(result.operations[LIMITS])
    assert operation.points == 1  # 64 was measured on one machine alone
    assert {m: c[OURS].efficiency.mid for m, c in operation.cells.items()} == {ZEN4: 0.5, AMX: 0.25}
    assert operation.portability[OURS].mid == pytest.approx(1 / 3)
    assert result.operations[PEERS] == []  # no peer was measured


def test_points_are_aggregated_by_the_geometric_mean_and_shares_are_at_most_1(tmp_path):
    cases = [({"seq_q": n, "seq_kv": n}, {"flash": (1.0, share)}) for n, share in ((64, 0.2), (128, 0.45), (256, 1.3))]
    result = found(tmp_path, a=file(ZEN4, cases), b=file(AMX, cases))
    operation = only(result.operations[LIMITS])
    assert operation.points == 3
    assert operation.cells[AMX][OURS].efficiency.mid == pytest.approx((0.2 * 0.45 * 1.0) ** (1 / 3))


def test_a_machine_without_support_gives_0(tmp_path, capsys):
    result = found(tmp_path, a=file(ZEN4, [({}, {"naive": (9.0, 0.1), "flash": (2.0, 0.5)})]),
                   b=file(AVX2, [({}, {"naive": (9.0, 0.1), "flash": "skipped"})]))  # fmt: skip
    operation = only(result.operations[LIMITS])
    assert operation.portability[OURS] == Interval(0, 0, 0)
    assert operation.cells[AVX2][OURS].refused == 1
    status, out, _ = run(capsys, "portability", tmp_path)
    assert status == 0
    assert "0 (1 of 1 not supported)" in out
    assert f"attention forward in f32 is not supported on {AVX2}: P = 0." in out


def test_a_refusal_beside_one_peer_gives_0(tmp_path):
    result = found(tmp_path, a=file(ZEN4, [({}, {"flash": (2.0, 0.5), "torch": (1.0, 0.9)})]),
                   b=file(AVX2, [({}, {"flash": "skipped", "torch": (1.0, 0.9)})]))  # fmt: skip
    operation = only(result.operations[PEERS])
    assert {name: cell.efficiency.mid for name, cell in operation.cells[AVX2].items()} == {OURS: 0, "torch": 1, BEST_PEER: 1}
    assert operation.portability[OURS] == Interval(0, 0, 0)


def test_a_row_of_the_figure_has_the_points_of_one_kind(tmp_path):
    """At 512 two machines have a peer, at 64 all three ran."""
    small = ({"seq_q": 64, "seq_kv": 64}, {"flash": (1.0, 0.2)})
    beside = ({}, {"flash": (2.0, 0.5), "torch": (1.0, 0.9)})
    result = found(tmp_path, a=file(ZEN4, [small, beside]), b=file(AMX, [small, beside]), c=file(AVX2, [small]))
    assert sorted(mark.place[0] for mark in limits(result, {}).figure.marks) == [50.0, 50.0, 90.0, 90.0]


def test_what_does_not_fit_into_a_figure_is_counted(tmp_path, monkeypatch):
    cases = [({"pass": name}, {"flash": (2.0, 0.5), "torch": (3.0, 0.3)}) for name in ("forward", "backward")]
    result = found(tmp_path, **{machine[:4]: file(machine, cases) for machine in MACHINES})

    def ends():
        return [plot.caption.partition(" The first ")[2] for plot in (limits(result, {}), *cascades(result))]

    assert ends() == ["", ""]
    monkeypatch.setattr(drawings, "_MOST_MACHINES", 2)
    monkeypatch.setattr(drawings, "MOST_PANELS", 1)
    drawn = "are drawn; the table has all."
    assert ends() == [f"2 of 3 machines {drawn}", f"1 of 2 operations {drawn}"]


def test_a_peer_that_nobody_has_is_no_missing_support(tmp_path):
    cases = [({}, {"naive": (9.0, 0.1), "torch_flex": "skipped"})]
    result = found(tmp_path, a=file(ZEN4, cases, peers=()), b=file(AMX, cases, peers=()))
    assert result.operations == {LIMITS: [], PEERS: []}


def test_application_efficiency_is_paired_with_the_best_peer_and_at_most_1(tmp_path):
    cases = {ZEN4: {"flash": (2.0, 0.5), "torch": (1.0, 0.9), "other": (1.6, 0.6)},
             AMX: {"flash": (2.0, 0.5), "torch": (8.0, 0.2), "other": (4.0, 0.3)}}  # fmt: skip
    names = ("torch", "other")
    result = found(tmp_path, a=file(ZEN4, [({}, cases[ZEN4])], names), b=file(AMX, [({}, cases[AMX])], names))
    operation = only(result.operations[PEERS])
    reached = {m: {name: c.efficiency.mid for name, c in cells.items()} for m, cells in operation.cells.items()}
    assert reached[ZEN4] == pytest.approx({OURS: 0.5, "torch": 1.0, "other": 0.625, BEST_PEER: 1.0})
    assert reached[AMX] == pytest.approx({OURS: 1.0, "torch": 0.25, "other": 0.5, BEST_PEER: 0.5})
    assert operation.portability[OURS].mid == pytest.approx(2 / 3)
    shares = only(result.shares)
    assert {m: c[BEST_PEER].efficiency.mid for m, c in shares.cells.items()} == {ZEN4: 0.9, AMX: 0.3}


def test_intervals_reach_p(tmp_path):
    cases = [({}, {"flash": (2.0, 0.5), "torch": (1.0, 0.9)})]
    result = found(tmp_path, a=file(ZEN4, cases, noise=0.1), b=file(AMX, cases, noise=0.1))
    limit = only(result.operations[LIMITS]).portability[OURS]
    assert (limit.lo, limit.hi) == (pytest.approx(0.5 / 1.1), pytest.approx(0.55))
    relative = only(result.operations[PEERS]).portability[OURS]
    assert relative.lo < relative.mid < relative.hi
    assert relative.mid == pytest.approx(0.5, abs=0.06)


def test_the_most_threads_count_then_the_latest(tmp_path):
    old = file(ZEN4, [({}, {"flash": (1.0, 0.1)})], started_at="2025-01-01T00:00:00Z")
    new = file(ZEN4, [({}, {"flash": (1.0, 0.3)}), ({"threads": 1}, {"flash": (1.0, 0.9)})],
               started_at="2025-02-01T00:00:00Z")  # fmt: skip
    result = found(tmp_path, z_old=old, a_new=new)
    assert only(result.operations[LIMITS]).cells[ZEN4][OURS].efficiency.mid == 0.3


def test_axes_that_an_older_file_lacks(tmp_path):
    new = file(ZEN4, [({"stages": 1.0}, {"flash": (1.0, 0.4)})])
    result = found(tmp_path, a=new, b=file(AMX, [({}, {"flash": (1.0, 0.4)})]))
    assert only(result.operations[LIMITS]).portability[OURS].mid == pytest.approx(0.4)


def test_report(tmp_path, capsys):
    cases = [
        ({"dtype": dtype}, {"naive": (9.0, 0.1), "flash": (2.0, 0.5), "torch": (3.0, 0.3)}) for dtype in ("f32", "bf16")
    ]
    for name, machine in (("a", ZEN4), ("b", AMX)):
        synthetic.write(tmp_path / f"{name}.h5", file(machine, cases, noise=0.05))
    status, out, err = run(capsys, "portability", tmp_path, "-o", tmp_path / "out")
    assert (status, err) == (0, "")
    assert "Katt's performance portability is 0.50 (0.48–0.53) of the machines' measured limits" in out
    assert "the geometric mean of 2 operations, each over the 2 machines that have it." in out
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"portability.html", "portability.json", "limits.png", "limits.svg", "cascade_f32.svg"} <= names
    held = json.loads((tmp_path / "out" / "portability.json").read_text())
    assert {(p["dtype"], p["against"]): round(p["portability"][OURS]["value"], 3) for p in held["operations"]} == {
        ("f32", "limits"): 0.5, ("bf16", "limits"): 0.5, ("f32", "peers"): 1.0, ("bf16", "peers"): 1.0,
    }  # fmt: skip
    page = (tmp_path / "out" / "portability.html").read_text()
    assert "harmonic mean over the machines" in page
    assert "There is no navigation chart" in page


@pytest.mark.rendered
def test_figure_for_a_readme(tmp_path, capsys):
    cases = [({}, {"flash": (2.0, 0.5)})]
    for name, machine in (("a", ZEN4), ("b", AMX)):
        synthetic.write(tmp_path / f"{name}.h5", file(machine, cases))
    figure = tmp_path / "figure.png"
    assert run(capsys, "portability", tmp_path, "--figure", figure)[0] == 0
    image = figure.read_bytes()
    assert image.startswith(b"\x89PNG")
    status, out, err = run(capsys, "portability", tmp_path, "--figure", figure)
    assert (status, out) == (2, "")
    assert err == f"katt-report: --figure {figure}: holds an existing file, expected a new one, or --overwrite\n"
    assert run(capsys, "portability", tmp_path, "--figure", figure, "--overwrite")[0] == 0
    assert figure.read_bytes() == image
    assert run(capsys, "portability", tmp_path, "--figure", tmp_path / "figure.pdf")[0] == 2
    assert run(capsys, "portability", tmp_path / "a.h5", "--figure", tmp_path / "none" / "figure.svg")[0] == 2


def test_a_figure_in_the_folder_of_the_report(tmp_path, capsys):
    cases = [({}, {"flash": (2.0, 0.5)})]
    inputs = [synthetic.write(tmp_path / f"{n}.h5", file(machine, cases)) for n, machine in (("a", ZEN4), ("b", AMX))]
    out = tmp_path / "out"
    held = {"limits.png": "a file of the report in -o", "none/x.png": "a file in a folder that does not exist"}
    for name, what in held.items():
        status, said, err = run(capsys, "portability", *inputs, "-o", out, "--figure", out / name)
        assert (status, said, err.count("\n")) == (2, "", 1) and f"--figure {out / name}: holds {what}" in err
        assert not out.exists()
    status, said, err = run(capsys, "portability", *inputs, "-o", tmp_path / "x.png", "--figure", tmp_path / "x.png")
    assert (status, said, err.count("\n")) == (2, "", 1) and not (tmp_path / "x.png").exists()
    for more in ([], ["--overwrite"]):
        assert run(capsys, "portability", *inputs, "-o", out, "--figure", out / "x.png", *more)[0] == 0
        assert {"x.png", "portability.html"} <= {path.name for path in out.iterdir()}
    without = synthetic.write(tmp_path / "without.h5", file(ZEN4, [({}, {"flash": (2.0, math.nan)})]))
    status, said, err = run(capsys, "portability", without, "-o", tmp_path / "one", "--figure", tmp_path / "one.png")
    assert (status, said) == (2, "") and "nothing to draw" in err and not (tmp_path / "one").exists()


def test_bad_input(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    status, out, err = run(capsys, "portability", tmp_path / "empty")
    assert (status, out) == (2, "")
    assert (
        err == f"katt-report: {tmp_path}/empty: holds no result file, expected result files of katt sweep (NAME.h5)\n"
    )
    assert run(capsys, "portability", tmp_path / "none.h5")[0] == 2


def test_code_convergence(tmp_path):
    (tmp_path / "common.hpp").write_text("a\n\nb\nc\n")
    (tmp_path / "amx.hpp").write_text("d\n")
    lines = lines_below(tmp_path)
    assert [lines(name) for name in ("common.hpp", "amx.hpp", "../outside", "gone.hpp")] == [3, 1, 0, 0]
    cases = [({}, {"flash": (2.0, 0.5)})]
    parts = []
    for name, machine, files in (("a", ZEN4, ["common.hpp"]), ("b", AMX, ["common.hpp", "amx.hpp"])):
        (part,) = read_each([Path(synthetic.write(tmp_path / f"{name}.h5", file(machine, cases)))])
        part.points.columns["code"] = np.array([name])
        part.code[name] = dict.fromkeys(files, "0123456789abcdef")
        parts.append(part)
    result = portability(parts)
    assert convergence(only(result.operations[LIMITS]), lines) == pytest.approx(3 / 4)
    assert navigation(result, lines).name == "navigation"
    parts[0].code.clear()
    assert math.isnan(convergence(only(portability(parts).operations[LIMITS]), lines))
    assert navigation(portability(parts), lines) is None
