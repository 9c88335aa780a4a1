"""A sweep in parts: katt sweep --shard I/N, and katt merge, which puts the parts together."""

import json
import os
import shutil
import subprocess

import h5py
import numpy as np
import pytest
from conftest import ROOT, program_in
from test_sweep import identities, table

SWEEP = ("sweep", "attention", "--seq", "16:128:x2", "--heads", "1,2", "--head-dim", "16", "--causal", "0,1",
         "--variant", "naive,flash", "--rounds", "3", "--threads", "1")  # fmt: skip
ALL = [f"part_{index}.h5" for index in range(1, 5)]
WITH_CEILINGS = (2, 3)  # parts of four: one measures them, for seconds, the other holds the same ones doubled
ORDER = ["op", "pass", "variant", "dtype", "heads", "seq_q", "causal", "tile", "point", "status"]


def rows(path):
    return table(path)[ORDER].to_records(index=False).tolist()


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """The whole sweep and its four parts, made once."""
    katt = program_in(tmp_path_factory.mktemp("parts"))
    katt.runs(*SWEEP, "-o", "whole.h5")
    measures, doubles = WITH_CEILINGS
    for index, name in enumerate(ALL, 1):
        katt.runs(*SWEEP, "--shard", f"{index}/4", "-o", name, ceilings=index == measures)
    with h5py.File(katt.folder / ALL[measures - 1]) as one, h5py.File(katt.folder / ALL[doubles - 1], "r+") as other:
        other.copy(one["ceilings/run-0001"], other.require_group("ceilings"), "run-0001")
        ceilings = other["ceilings/run-0001"][:]
        ceilings["value"] *= 2
        other["ceilings/run-0001"][:] = ceilings
    return katt.folder


@pytest.fixture
def merging(katt, parts):
    """The program in a folder of its own with copies of the whole sweep and its parts."""
    for file in parts.iterdir():
        shutil.copy(file, katt.folder)
    return katt


def test_four_parts_merged_are_the_rows_of_one(merging):
    sizes = [len(table(merging.folder / name)) for name in ALL]
    assert sum(sizes) == 32 and max(sizes) - min(sizes) <= 2, sizes
    # Interleaved: every part has short and long sequences.
    for name in ALL:
        assert len(set(table(merging.folder / name)["seq_q"])) >= 3
    done = merging.runs("merge", *reversed(ALL), "-o", "out.h5", "--json")
    assert rows(merging.folder / "out.h5") == rows(merging.folder / "whole.h5")
    assert list(table(merging.folder / "out.h5")) == list(table(merging.folder / "whole.h5"))
    said = json.loads(done.stdout)
    assert (said["files"], said["runs"], said["rows"]) == (4, 4, 32)
    assert said["missing"] == said["unfinished"] == [] and said["duplicates"] == 0
    assert "missing" not in done.stderr and "duplicates" not in done.stderr
    assert not list(merging.folder.glob(".*"))


def test_runs_samples_and_ceilings_come_along(merging):
    merging.runs("merge", *ALL, "-o", "out.h5")
    with h5py.File(merging.folder / "out.h5") as out:
        assert sorted(out["runs"]) == [f"run-{number:04}" for number in range(1, 5)]
        assert sorted(out["ceilings"]) == [f"run-{number:04}" for number in WITH_CEILINGS]
        for number, name in enumerate(ALL, 1):
            with h5py.File(merging.folder / name) as part:
                mine, its = out[f"runs/run-{number:04}"], part["runs/run-0001"]
                assert dict(mine.attrs) == dict(its.attrs)
                assert mine.attrs["shard"] == f"{number}/4"
                if number in WITH_CEILINGS:
                    ceilings = out[f"ceilings/run-{number:04}"][:], part["ceilings/run-0001"][:]
                    assert repr(ceilings[0].tolist()) == repr(ceilings[1].tolist())  # a disturbed one is NaN
                assert set(out[f"samples/run-{number:04}"]) == set(part["samples/run-0001"])
                for point, samples in part["samples/run-0001"].items():
                    assert np.array_equal(out[f"samples/run-{number:04}/{point}"][:], samples[:])
        for row in out["points"][:]:
            samples = out[f"samples/{row['run'].decode()}/{row['point'].decode()}"]
            assert np.median(samples[:]) == pytest.approx(row["time_s"])


def test_a_missing_part_is_named(merging):
    done = merging.runs("merge", ALL[0], ALL[1], ALL[3], "-o", "out.h5", "--json")
    assert json.loads(done.stdout)["missing"] == ["3/4"]
    line = next(line for line in done.stderr.splitlines() if line.startswith("missing"))
    assert "3/4" in line and "1/4" not in line
    # Missing parts can be added to existing ones.
    done = merging("merge", "out.h5", ALL[2], "-o", "all.h5", "--json")
    assert json.loads(done.stdout)["missing"] == []
    assert rows(merging.folder / "all.h5") == rows(merging.folder / "whole.h5")


def test_an_unfinished_part_is_named_and_resumed(merging):
    with h5py.File(merging.folder / ALL[1], "r+") as file:  # as a kill leaves it: rows are missing
        file["points"].resize((3,))
        file["runs/run-0001"].attrs["status"] = "running"
    done = merging("merge", *ALL, "-o", "out.h5", "--json")
    assert json.loads(done.stdout)["unfinished"] == ["2/4"]
    assert "2/4" in done.stderr
    merging.runs(*SWEEP, "--shard", "2/4", "-o", ALL[1], "--resume")
    done = merging("merge", *ALL, "-o", "out.h5", "--overwrite", "--json")
    said = json.loads(done.stdout)
    assert said["unfinished"] == [] and said["runs"] == 5
    assert rows(merging.folder / "out.h5") == rows(merging.folder / "whole.h5")
    again = merging(*SWEEP, "--shard", "2/4", "-o", ALL[1], "--resume")
    assert again.returncode == 0 and "nothing left to do" in again.stderr


def test_a_sweep_that_grew_in_its_file_is_finished(katt):
    small = ("sweep", "softmax", "--vocab", "16", "--dtype", "f32", "--rounds", "2", "--threads", "1", "-o", "e.h5")
    katt.runs(*small, "--tokens", "8")
    katt.runs(*small, "--tokens", "4,8", "--resume")
    said = json.loads(katt.runs("merge", "e.h5", "-o", "f.h5", "--json").stdout)
    assert said["missing"] == said["unfinished"] == [] and said["runs"] == 2


def test_the_whole_sweep_measures_a_missing_part(merging):
    merging.runs("merge", ALL[0], ALL[2], ALL[3], "-o", "m.h5")
    merging.runs(*SWEEP, "-o", "m.h5", "--resume")
    assert "nothing left to do" in merging.runs(*SWEEP, "-o", "m.h5", "--resume").stderr
    said = json.loads(merging.runs("merge", "m.h5", "-o", "n.h5", "--json").stdout)
    assert said["missing"] == said["unfinished"] == [] and said["rows"] == 32
    # another sweep in the file does not stand for the missing part
    merging.runs("merge", *ALL[:3], "whole.h5", "-o", "o.h5")
    said = json.loads(merging.runs("merge", "o.h5", "-o", "p.h5", "--json").stdout)
    assert said["missing"] == ["4/4"] and said["duplicates"] > 0


def test_a_part_does_not_go_on_in_the_file_of_another(merging):
    line = merging.refuses(*SWEEP, "--shard", "3/4", "-o", ALL[1], "--resume")
    assert "3/4" in line and "2/4" in line and ALL[1] in line


def test_duplicates_are_told_and_kept(merging):
    done = merging.runs("merge", *ALL, "whole.h5", "-o", "out.h5", "--json")
    said = json.loads(done.stdout)
    assert said["duplicates"] == 32 and said["rows"] == 64 and said["runs"] == 5
    line = next(line for line in done.stderr.splitlines() if line.startswith("duplicates"))
    assert "32 rows" in line and "whole.h5" in line and "part_" in line


def test_the_same_file_twice_counts_once(merging):
    shutil.copy(merging.folder / ALL[0], merging.folder / "copy.h5")
    done = merging("merge", *ALL, ALL[2], "copy.h5", "-o", "out.h5", "--json")
    said = json.loads(done.stdout)
    assert (said["copies"], said["duplicates"], said["rows"]) == (2, 0, 32)
    assert "given twice" in done.stderr


def test_machines_and_commits_are_told(merging):
    with h5py.File(merging.folder / ALL[2], "r+") as file:
        file["runs/run-0001"].attrs["device"] = "Z80"
        file["runs/run-0001"].attrs["cores"] = np.int64(1)
        file["runs/run-0001"].attrs["commit"] = "0123456789ab"
    done = merging.runs("merge", *ALL, "-o", "out.h5", "--json")
    said = json.loads(done.stdout)
    assert len(said["machines"]) == 2 and "Z80 (1 cores)" in said["machines"]
    assert len(said["commits"]) == 2
    told = done.stderr.splitlines()
    assert any(line.startswith("machines: 2") and "Z80" in line for line in told)
    assert any(line.startswith("commits: 2") and "0123456789ab" in line for line in told)


def test_the_split_follows_the_points_not_the_threads(katt):
    (katt.folder / "sweep.toml").write_text(
        'op = "rmsnorm"\ntokens = "1:64:x2"\nhidden = 64\nrounds = 1\nvariant = "naive"\n'
    )
    for threads in ("1", "2"):
        for index in (1, 2):
            name = f"{threads}_{index}.h5"
            done = katt.runs("sweep", "sweep.toml", "--threads", threads, "--shard", f"{index}/2", "-o", name)
    for index in (1, 2):
        one, two = (table(katt.folder / f"{threads}_{index}.h5") for threads in (1, 2))
        assert one["tokens"].tolist() == two["tokens"].tolist()
    # So parts of machines with different numbers of cores fit together.
    done = katt("merge", "1_1.h5", "2_2.h5", "-o", "out.h5", "--json")
    assert json.loads(done.stdout)["missing"] == [], done.stderr
    assert table(katt.folder / "out.h5")["tokens"].tolist() == [1, 2, 4, 8, 16, 32, 64]


@pytest.mark.parametrize("shard", ["9/8", "0/4", "-1/4", "1", "1/", "/4", "1/4/2", "one/two", "1.5/2", "1/2000000",
                                   "99999999999999999999/4"])  # fmt: skip
def test_a_shard_that_is_none(katt, shard):
    line = katt.refuses(*SWEEP, f"--shard={shard}", "-o", "out.h5")
    assert "--shard" in line


def test_more_parts_than_points(katt):
    line = katt.refuses(*SWEEP, "--shard", "3/17", "-o", "out.h5")
    assert "3/17" in line and "16 points" in line


def test_merge_refuses(merging):
    whole = merging.folder / "whole.h5"
    assert "expected result files" in merging.refuses("merge", "-o", "out.h5")
    assert "-o is missing" in merging.refuses("merge", *ALL)
    assert "exists" in merging.refuses("merge", *ALL, "-o", "whole.h5")
    assert "no such file" in merging.refuses("merge", *ALL, "none.h5", "-o", "out.h5")
    (merging.folder / "folder.h5").mkdir()
    assert "is a folder" in merging.refuses("merge", "folder.h5", "-o", "out.h5")
    (merging.folder / "text.h5").write_text("op,pass\n")
    assert "text.h5: is not an HDF5 file" in merging.refuses("merge", ALL[0], "text.h5", "-o", "out.h5")
    assert "folder" in merging.refuses("merge", *ALL, "-o", "folder.h5", "--overwrite")
    assert whole.exists()


def changed(merging, change):
    """A copy of a part to which something has been done."""
    path = merging.folder / "changed.h5"
    shutil.copy(merging.folder / ALL[1], path)
    with h5py.File(path, "r+") as file:
        change(file)
    return path.name


def replace_points(file, points):
    del file["points"]
    file.create_dataset("points", data=points, maxshape=(None,))


def without(name):
    def change(file):
        points = file["points"][:]
        keep = [column for column in points.dtype.names if column != name]
        kept = np.empty(len(points), np.dtype([(column, points.dtype[column]) for column in keep]))
        for column in keep:
            kept[column] = points[column]
        replace_points(file, kept)

    return change


def with_cell(name, value):
    def change(file):
        points = file["points"][:]
        points[name][0] = value
        replace_points(file, points)

    return change


def set_attribute(name, value):
    def change(file):
        file.attrs[name] = value

    return change


def external_samples(file):
    del file["samples/run-0001"]
    file["samples/run-0001"] = h5py.ExternalLink("whole.h5", "/samples/run-0001")


def text_samples(file):
    point = next(iter(file["samples/run-0001"]))
    del file[f"samples/run-0001/{point}"]
    file[f"samples/run-0001/{point}"] = np.array([b"fast"])


def huge_samples(file):
    point = next(iter(file["samples/run-0001"]))
    del file[f"samples/run-0001/{point}"]
    file.create_dataset(f"samples/run-0001/{point}", (1 << 45,), "f8", chunks=(1024,))


@pytest.mark.parametrize(("change", "says"), [
    pytest.param(set_attribute("schema", np.int64(2)), "schema", id="schema"),
    pytest.param(set_attribute("generator", "another"), "generator", id="generator"),
    pytest.param(lambda file: file.__delitem__("points"), "points", id="no table"),
    pytest.param(without("head_dim"), "head_dim", id="fewer columns"),
    pytest.param(without("run"), "run", id="no runs"),
    pytest.param(with_cell("run", b"run-0009"), "run-0009", id="unknown run"),
    pytest.param(with_cell("point", b"../x"), "../x", id="path as a point"),
    pytest.param(with_cell("point", b""), "point", id="empty point"),
    pytest.param(external_samples, "samples", id="samples elsewhere"),
    pytest.param(text_samples, "samples", id="samples of text"),
    pytest.param(huge_samples, "samples", id="samples without end"),
])
def test_merge_refuses_what_is_no_part(merging, change, says):
    name = changed(merging, change)
    line = merging.refuses("merge", ALL[0], name, "-o", "out.h5")
    assert name in line and says in line


def test_damaged_parts_end_in_one_line(merging):
    """Bytes changed at random: merged, or refused by name; nothing else."""
    random = np.random.default_rng(5)
    good = (merging.folder / ALL[1]).read_bytes()
    for _ in range(30):
        data = bytearray(good)
        for _ in range(random.integers(1, 60)):
            data[random.integers(len(data))] = random.integers(256)
        (merging.folder / "bad.h5").write_bytes(data)
        done = merging("merge", ALL[0], "bad.h5", "-o", "out.h5", "--overwrite")
        assert done.returncode in (0, 2), done.stderr
        if done.returncode == 2:
            assert done.stderr.count("\n") == 1 and "bad.h5" in done.stderr, done.stderr
        else:
            with h5py.File(merging.folder / "out.h5") as file:
                assert len(file["points"]) >= len(table(merging.folder / ALL[0]))
        assert not list(merging.folder.glob(".*"))


def test_older_files_without_places_can_be_merged(merging):
    def forget(file):
        for name in ("shard", "split", "part_rows"):
            del file["runs/run-0001"].attrs[name]

    name = changed(merging, forget)
    done = merging.runs("merge", ALL[0], name, "-o", "out.h5", "--json")
    assert json.loads(done.stdout)["missing"] == ["2/4", "3/4", "4/4"]
    both = identities(table(merging.folder / "out.h5"))
    assert both == sorted(identities(table(merging.folder / ALL[0])) + identities(table(merging.folder / ALL[1])))


def test_the_slurm_script_runs_its_task(katt):
    (katt.folder / "sweep.toml").write_text('op = "rmsnorm"\ntokens = "1:8:x2"\nhidden = 64\nrounds = 1\nthreads = 1\n')
    script = ["bash", ROOT / "examples" / "slurm" / "sweep_array.sh", "sweep.toml", "parts"]
    environment = {**os.environ, "KATT": str(katt.quick())}

    def task(number):
        tasks = {"SLURM_ARRAY_TASK_ID": number, "SLURM_ARRAY_TASK_COUNT": "2"} if number else {}
        return subprocess.run(script, cwd=katt.folder, env={**environment, **tasks}, capture_output=True, text=True,
                              timeout=120)  # fmt: skip

    for number in ("1", "2", "2"):  # submitted again it finds nothing left to do
        assert task(number).returncode == 0
    assert task(None).returncode == 2
    done = katt("merge", "parts/part_1.h5", "parts/part_2.h5", "-o", "out.h5", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["missing"] == []
    assert sorted(set(table(katt.folder / "out.h5")["tokens"])) == [1, 2, 4, 8]
