"""Comparing: regressions are found, noise is not."""

import pytest
import synthetic
from katt_report import InputError, compare, load
from katt_report.pages.compare_page import compare_report, table_text


@pytest.fixture
def pair(tmp_path):
    """Builds two files, the second changed by a function of its File, and loads them."""

    def build(change=lambda file: None, seeds=(1, 2), **sweep):
        results = []
        for name, seed in zip(("old", "new"), seeds, strict=True):
            file = synthetic.attention_seqlen(seed, **sweep)
            if name == "new":
                change(file)
            results.append(load(synthetic.write(tmp_path / f"{name}.h5", file)))
        return results

    return build


def find(file, **equal) -> dict:
    """The one row of a File with these values."""
    (row,) = (row for row in file.rows if all(row[name] == value for name, value in equal.items()))
    return row


def verdicts(found) -> dict:
    """Verdict by row name."""
    return {row.name: row.verdict for row in found.rows}


def test_equal_files_have_no_regression(pair):
    found = compare(*pair(seeds=(5, 5)))
    assert found.regressions == 0
    assert {row.verdict for row in found.rows} == {"same", "baseline"}
    assert found.mean_ratio == pytest.approx(1.0)
    assert found.verdict.startswith("no regression: 33 rows compared")


def repeated(folder, seed, rounds) -> list:
    """Two runs of the same program, each with its own noise."""
    made = [synthetic.attention_seqlen(seed + index, rounds=rounds) for index in range(2)]
    return [load(synthetic.write(folder / f"{index}.h5", file)) for index, file in enumerate(made)]


def test_noise_raises_no_alarm(tmp_path):
    for repetition in range(20):
        old, new = repeated(tmp_path, 1000 + 2 * repetition, rounds=12)
        for metric in ("auto", "speedup"):
            found = compare(old, new, metric=metric)
            assert found.regressions == 0, table_text(found)


def test_few_rounds_raise_no_alarm(tmp_path):
    for repetition in range(20):
        old, new = repeated(tmp_path, 3000 + 2 * repetition, rounds=4)
        found = compare(old, new)
        assert found.regressions == 0, table_text(found)


def test_a_slowdown_is_found_under_the_same_noise(tmp_path):
    for repetition in range(10):
        old = synthetic.attention_seqlen(2000 + repetition)
        new = synthetic.attention_seqlen(2500 + repetition, slow={(4096, "f32"): 1.6, (1024, "bf16"): 1.6})
        found = compare(*(load(synthetic.write(tmp_path / f"{n}.h5", f)) for n, f in enumerate((old, new))))
        worse = [row for row in found.rows if row.verdict == "regression"]
        assert worse
        assert {(row.identity["seq_q"], row.identity["dtype"]) for row in worse} <= {(4096, "f32"), (1024, "bf16")}
        assert all(row.metric == "speedup" and row.ratio == pytest.approx(1 / 1.6, rel=0.2) for row in worse)


def test_each_machine_of_a_file_is_judged_by_itself(tmp_path):
    """The slower machine comes last in the old file and first in the new one."""
    results = []
    for name, runs in (("old", ("run-0001", "run-0002")), ("new", ("run-0002", "run-0001"))):
        file = synthetic.File()
        for run in runs:
            factor, about = (1.0, {}) if run == "run-0001" else (3.0, {"device": "AMD EPYC 9654", "cores": 96})
            part = synthetic.attention_seqlen(1, sizes=(512,), dtypes=("f32",), slow={(512, "f32"): factor})
            file.rows += [row | {"run": run} for row in part.rows]
            file.samples |= {(run, point): seconds for (_, point), seconds in part.samples.items()}
            file.runs[run] = synthetic.run_attributes(**about)
            file.ceilings[run] = [("fma_f32", 1e9 * factor, "FLOP/s", 0)]
        results.append(load(synthetic.write(tmp_path / f"{name}.h5", file)))
    found = compare(*results)
    assert sorted(row.verdict for row in found.rows) == ["baseline"] * 2 + ["same"] * 2
    assert len({row.name for row in found.rows}) == 4 and found.drift == (1.0, 1.0)


def test_tolerance(pair):
    slow = {(1024, "f32"): 1.4, (2048, "f32"): 1.4, (4096, "f32"): 1.4}
    old, _ = pair(rounds=25)
    new = pair(slow=slow, seeds=(1, 1), rounds=25)[1]
    assert compare(old, new, tolerance=0.05).regressions == 3
    assert compare(old, new, tolerance=0.5).regressions == 0


def test_an_improvement_is_no_regression(pair):
    old, _ = pair(dtypes=("f32",))
    new = pair(dtypes=("f32",), seeds=(1, 1), slow={(2048, "f32"): 0.5})[1]
    found = compare(old, new)
    assert verdicts(found)["flash f32 N=2048 tile=64x128"] == "improved"
    assert found.regressions == 0


def test_rows_without_a_pair_must_leave_the_drift(pair):
    # N = 16384 has no naive row: its time is judged, but not against a machine that slowed down as a whole.
    def slower_machine(file):
        for samples in file.samples.values():
            samples *= 2.0
        for row in file.rows:
            row["time_s"] *= 2.0

    old, new = pair(slower_machine, seeds=(1, 1))
    assert compare(old, new).regressions == 0
    assert compare(old, new, metric="time").regressions > 25

    def slower_flash(file):
        row = find(file, variant="flash", seq_q=16384, dtype="f32")
        file.samples["run-0001", row["point"]] *= 2.0

    found = compare(*pair(slower_flash, seeds=(1, 1)))
    assert [row.name for row in found.rows if row.verdict == "regression"] == ["flash f32 N=16384 tile=64x128"]


def test_another_state_of_the_machine_is_no_regression(pair):
    # A machine so busy that naive runs at a third of its speed, and flash at a fifth: who knows why.
    def busy(file):
        for row in file.rows:
            if row["dtype"] == "f32" and row["status"] == "ok":
                file.samples["run-0001", row["point"]] *= 3.0 if row["variant"] == "naive" else 5.0
                row["time_s"] *= 3.0 if row["variant"] == "naive" else 5.0

    old, new = pair(busy, seeds=(1, 1), naive_limit=16384)
    found = compare(old, new)
    assert (found.regressions, found.count("unclear")) == (0, 6)
    assert "naive ran at 0.33× its old speed" in found.rows[0].reasons[0]
    assert compare(old, new, metric="speedup").regressions > 3


def test_a_faster_baseline_alone_is_no_regression(pair):
    def faster(file, names):
        for row in file.rows:
            if row["dtype"] == "f32" and row["status"] == "ok" and row["variant"] in names:
                file.samples["run-0001", row["point"]] /= 1.4
                row["time_s"] /= 1.4

    old, new = pair(lambda file: faster(file, ("naive",)), seeds=(1, 1), naive_limit=16384)
    found = compare(old, new)
    assert (found.regressions, found.count("unclear")) == (0, 6)
    assert "it lost nothing" in found.rows[0].reasons[0]
    assert compare(old, new, metric="speedup").regressions > 3


def test_without_samples_the_stored_intervals_serve(pair):
    def change(file):
        file.samples.clear()
        find(file, variant="flash", seq_q=2048, dtype="f32").update(speedup=1.5, speedup_lo=1.4, speedup_hi=1.6)

    found = compare(*pair(change, seeds=(1, 1)))
    assert [row.name for row in found.rows if row.verdict == "regression"] == ["flash f32 N=2048 tile=64x128"]


def test_status_error_and_memory(pair):
    def change(file):
        find(file, variant="flash", seq_q=512, dtype="f32").update(status="failed", reason="verification: 0.3")
        find(file, variant="flash", seq_q=1024, dtype="f32").update(status="skipped", reason="tile too large")
        file.rows.remove(find(file, variant="flash", seq_q=2048, dtype="f32"))
        find(file, variant="flash", seq_q=4096, dtype="f32")["max_abs_err"] *= 2.5
        find(file, variant="flash", seq_q=8192, dtype="f32")["workspace_bytes"] *= 2
        find(file, variant="flash", seq_q=512, dtype="bf16")["mean_abs_err"] = float("nan")
        find(file, variant="flash", seq_q=1024, dtype="bf16")["total_bytes"] = int(1.05 * 2**20)
        find(file, variant="naive", seq_q=16384, dtype="bf16").update(status="ok", reason="", time_s=1.0)

    found = compare(*pair(change, seeds=(1, 1)))
    rows = {(row.identity["variant"], row.identity["seq_q"], row.identity["dtype"]): row for row in found.rows}

    def check(key, verdict, reason):
        assert rows[key].verdict == verdict
        assert reason in "; ".join(rows[key].reasons)

    check(("flash", 512, "f32"), "regression", "was ok, now failed: verification: 0.3")
    check(("flash", 1024, "f32"), "lost", "now refused: tile too large")
    check(("flash", 2048, "f32"), "lost", "missing in the new file")
    check(("flash", 4096, "f32"), "regression", "max_abs_err")
    check(("flash", 8192, "f32"), "regression", "workspace_bytes 576 KiB → 1.12 MiB")
    check(("flash", 512, "bf16"), "regression", "mean_abs_err")
    check(("flash", 1024, "bf16"), "same", "")
    check(("naive", 16384, "bf16"), "new", "was skipped")
    assert found.regressions == 4 and found.worse
    # Refused in both files: neither a finding nor a loss.
    assert ("naive", 16384, "f32") not in rows


def test_rows_are_paired_within_their_run(pair):
    def change(file):
        # A row measured again in a second run without naive: its times must not be paired with the first run's.
        row = find(file, variant="flash", seq_q=2048, dtype="f32")
        samples = file.samples["run-0001", row["point"]] * 3.0
        file.rows.append(row | {"run": "run-0002", "time_s": row["time_s"] * 3.0, "speedup": float("nan")})
        file.samples["run-0002", row["point"]] = samples
        file.runs["run-0002"] = synthetic.run_attributes()

    found = compare(*pair(change, seeds=(1, 1)))
    (row,) = (r for r in found.rows if r.identity["seq_q"] == 2048 and r.name.startswith("flash f32"))
    assert row.metric == "time"


def test_another_default_tile_still_matches(pair):
    def change(file):
        for row in file.rows:
            row["tile"] = "auto"
            row["tile_q"] = 32 if row["variant"] == "flash" else 0

    def auto(file):
        for row in file.rows:
            row["tile"] = "auto"

    old = pair(auto, seeds=(1, 1))[1]
    new = pair(change, seeds=(1, 1))[1]
    found = compare(old, new)
    assert found.count("lost") == 0
    assert "tile 64x128 → 32x128" in "; ".join(reason for row in found.rows for reason in row.reasons)


def test_a_new_axis_with_one_value_still_matches(pair):
    def change(file):
        for row in file.rows:
            row["paged"] = 1

    found = compare(*pair(change, seeds=(1, 1)))
    assert found.regressions == 0
    assert "no axis paged = 1" in " ".join(found.notes)


def test_a_new_axis_of_names_that_other_operators_lack_still_matches(pair):

    def change(file):
        for index, row in enumerate(file.rows):
            row["score_rule"] = "none" if index % 2 else ""

    found = compare(*pair(change, seeds=(1, 1)))
    assert found.regressions == 0
    assert "no axis score_rule = none" in " ".join(found.notes)


def test_notes_name_what_differs(pair):
    def change(file):
        file.runs["run-0001"]["device"] = "AMD EPYC"

    found = compare(*pair(change))
    assert any(note.startswith("device differs: Intel Xeon") and note.endswith("→ AMD EPYC") for note in found.notes)


def test_nothing_in_common(files):
    with pytest.raises(InputError, match="no row in common"):
        compare(load(files["seqlen"]), load(files["models"]))


def test_page_and_table(pair):
    found = compare(*pair(slow={(4096, "f32"): 3.0}, seeds=(1, 1)), tolerance=0.05)
    assert found.regressions == 0
    old, _ = pair()
    new = pair(slow={(4096, "f32"): 3.0})[1]
    found = compare(old, new)
    made = compare_report(found, "old.h5", "new.h5")
    assert set(made) == {"compare.html", "compare.svg", "compare.png"}
    page = made["compare.html"].decode()
    assert "▼ regression" in page
    assert "flash f32 N=4096 tile=64x128" in page
    assert table_text(found).splitlines()[-1].startswith("1 REGRESSION: 33 rows compared")
