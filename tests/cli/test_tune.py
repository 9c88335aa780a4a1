"""`katt tune`: races, what it writes, what it tells of stale tiles, and replays of races."""

import json
import math

import h5py
import pytest
from conftest import BACKEND

pytestmark = pytest.mark.skipif(BACKEND != "openmp", reason="tunes on the host")

POINT = ["attention", "--heads", 1, "--head-dim", 16, "--dtype", "f32", "--seq", 37, "--threads", 1, "--variant", "flash",
         "--backend", "openmp"]  # fmt: skip
TILES = ["--tile", "32x32,32x64,64x64"]
TUNE = ["tune", *POINT, *TILES, "-o", "tiles.json"]
QUICK = ["--budget-s", "0.02"]


def tiles(katt):
    return json.loads((katt.folder / "tiles.json").read_text())["tiles"]


def rewrite(katt, **changes):
    """Changes keys of the only tile; None removes one."""
    path = katt.folder / "tiles.json"
    content = json.loads(path.read_text())
    (tile,) = content["tiles"]
    for key, value in changes.items():
        if value is None:
            del tile[key]
        else:
            tile[key] = value
    path.write_text(json.dumps(content))


def notes(done):
    return [line for line in done.stderr.splitlines() if line.startswith("--tile auto")]


@pytest.mark.parametrize("how", [[], ["--exhaustive"], ["--rounds", 3]], ids=["race", "exhaustive", "rounds"])
def test_a_tile_with_its_interval_machine_and_code(katt, how):
    results = "out.json" if how else "out.h5"  # HDF5 brings the seconds of ceilings
    done = katt.runs(*TUNE, *QUICK, *how, "--results", results)
    assert done.stdout.startswith("attention forward flash f32: ")
    (tile,) = tiles(katt)
    assert tile["tile"] in ([32, 32], [32, 64], [64, 64])
    assert tile["default_tile"] == [64, 64]
    assert 0 < tile["time_lo_s"] <= tile["time_s"] <= tile["time_hi_s"]
    assert tile["default_ratio"] > 0
    assert tile["device"] in tile["machine"]
    if how:
        made = json.loads((katt.folder / results).read_text())["results"]
        rounds = {len(one["times"]["runtimes"]) for one in made}
        assert len(made) == 3 and len(rounds) == 1 and (how != ["--rounds", 3] or rounds == {3}), "all are in every round"
        return
    with h5py.File(katt.folder / "out.h5") as file:
        points, run = file["points"][:], file["runs/run-0001"].attrs
        assert {code.decode() for code in points["code"]} == {tile["code"]}
        assert set(points["status"]) == {b"ok"}
        assert json.loads(run["settings"])["race"]
        left = [row for row in points if row["note"].startswith(b"left the race: ")]
        stayed = {row["samples"] for row in points if not row["note"]}
        assert len(stayed) == 1, "those that stay have been in every round"
        assert all(row["samples"] <= max(stayed) for row in left)


def plan(katt):
    """A sweep with tuned tiles up to the work."""
    done = katt.runs("sweep", *POINT, "--tile", "auto", "--tuning", "tiles.json", "--causal", "0,1", "--dry-run")
    return done


def test_auto_asks_for_all_tiles(katt):
    """What is tuned is no answer yet: `auto` alone would make the default the best tile."""
    done = katt.runs("tune", *POINT, "--tile", "auto", "-o", "tiles.json", "--rounds", 1)
    assert done.stdout.count("flash") >= 1 and len(tiles(katt)) == 1
    named = katt.runs("tune", *POINT, "-o", "named.json", "--rounds", 1)
    assert len(done.stdout.splitlines()) == len(named.stdout.splitlines())


def test_a_stale_tile_is_used_and_told_once(katt):
    katt.runs(*TUNE, *QUICK)
    assert notes(plan(katt)) == []
    rewrite(katt, tile=[32, 32], code="0123456789abcdef")
    done = plan(katt)
    (line,) = notes(done)
    assert "attention forward flash f32: the tile is stale, tuned with another code (0123456789abcdef, here " in line
    assert line.endswith("; katt tune attention measures again")
    assert done.stdout.count("flash 32x32") == 2, "a stale tile is used"
    rewrite(katt, machine="Another (Vendor 1 2)")
    assert "another machine (Another (Vendor 1 2), here " in notes(plan(katt))[0]
    rewrite(katt, device="Another")
    done = plan(katt)
    (line,) = notes(done)
    assert "tuned on another machine only (Another, here " in line and "the default runs" in line
    assert "flash 32x32" not in done.stdout


def test_a_file_of_an_earlier_version(katt):
    katt.runs(*TUNE, *QUICK)
    rewrite(katt, tile=[32, 32], machine=None, code=None, time_lo_s=None, time_hi_s=None, default_ratio=None)
    done = katt.runs("sweep", *POINT, "--tile", "auto", "--tuning", "tiles.json", "--rounds", 1, "-o", "out.h5")
    assert "tuned with another machine (not recorded, here " in notes(done)[0]
    with h5py.File(katt.folder / "out.h5") as file:
        assert list(file["points"]["tile_q"]) == [32]
    assert katt(*TUNE, *QUICK, "--causal", 1).returncode == 0, "it can be added to"
    assert len(tiles(katt)) == 2


def test_results_as_t4(katt):
    katt.runs("tune", *POINT, "--tile", "32x32,32x64,8x8", "-o", "tiles.json", "--causal", "0,1", "--rounds", 2,
              "--results", "t4.json")
    t4 = json.loads((katt.folder / "t4.json").read_text())
    assert t4["schema_version"] == "1.0.0" and t4["metadata"]["timeunit"] == "milliseconds"
    assert len(t4["results"]) == 6
    for result in t4["results"]:
        assert {"configuration", "times", "invalidity", "correctness"} <= set(result), "what the schema wants"
        ran = result["configuration"] != {"tile_q": 8, "tile_kv": 8}
        assert result["invalidity"] == ("correct" if ran else "constraints")
        assert result["correctness"] == int(ran)
        assert len(result["times"]["runtimes"]) == (2 if ran else 0)
        if ran:
            values = {one["name"]: one["value"] for one in result["measurements"]}
            assert values["time_lo"] <= values["time"] <= values["time_hi"]
            assert math.isclose(values["time"], sum(result["times"]["runtimes"]) / 2)
    assert [result["problem"]["causal"] for result in t4["results"]] == [0, 0, 0, 1, 1, 1]
    assert "t4.json: exists" in katt.refuses(*TUNE, "--rounds", 1, "--results", "t4.json")
    assert "--overwrite" in katt.refuses(*TUNE, "--rounds", 1, "--overwrite")
    katt.runs(*TUNE, "--rounds", 1, "--results", "t4.json", "--overwrite")
    assert json.loads((katt.folder / "t4.json").read_text()) != t4
    assert "is the file of -o" in katt.refuses(*TUNE, "--rounds", 1, "--results", "./tiles.json")


@pytest.fixture
def recorded(katt):
    """A result file of every tile in some rounds."""
    katt.runs("sweep", *POINT, *TILES, "--rounds", 12, "-o", "spaces.h5")
    return katt


def test_replays(recorded):
    replay = ["tune", "--replay", "spaces.h5", "--replays", 5, "--seed", 3]
    done = recorded.runs(*replay, "--json", "--results", "t4.json")
    result = json.loads(done.stdout)
    (space,) = result["spaces"]
    assert space["space"].startswith("attention forward flash f32 threads=1 ") and "seq_q=37" in space["space"]
    assert space["recorded_rounds"] == 12
    assert [one["setting"] for one in space["settings"]] == [[32, 32], [32, 64], [64, 64]]
    assert [one["default"] for one in space["settings"]] == [False, False, True]
    assert min(one["loss"] for one in space["settings"]) >= 1
    for search in ("race", "exhaustive"):
        assert len(space[search]["winners"]) == len(space[search]["cost_s"]) == 5
        assert set(space[search]["winners"]) <= {0, 1, 2}
        assert all(rounds >= 7 for rounds in space[search]["rounds"])
    wrong = [space["settings"][winner]["loss"] > 1.02 for winner in space["race"]["winners"]]
    assert result["wrong"] == sum(wrong) / 5
    assert recorded(*replay, "--json").stdout == done.stdout, "the same seed"
    longer = json.loads(recorded.runs("tune", "--replay", "spaces.h5", "--replays", 1, "--min-rounds", 1100, "--json").stdout)
    assert [longer["spaces"][0][search]["rounds"] for search in ("race", "exhaustive")] == [[1100], [1100]]
    t4 = json.loads((recorded.folder / "t4.json").read_text())
    assert [len(one["times"]["runtimes"]) for one in t4["results"]] == [12, 12, 12]
    assert "--overwrite" in recorded.refuses(*replay, "--results", "t4.json")
    recorded.runs(*replay, "--results", "t4.json", "--overwrite")
    text = recorded(*replay)
    assert text.returncode == 0 and text.stdout.splitlines()[-1].startswith("1 space: wrong ")


def test_what_cannot_be_replayed(recorded):
    (recorded.folder / "bad.h5").write_bytes(b"no result")
    assert "bad.h5" in recorded.refuses("tune", "--replay", "bad.h5")
    assert "--replays" in recorded.refuses("tune", "--replay", "spaces.h5", "--replays", 0)
    assert "--min-rounds" in recorded.refuses("tune", "--replay", "spaces.h5", "--min-rounds", 2000000)
    assert "is the file of --replay" in recorded.refuses("tune", "--replay", "spaces.h5", "--results", "spaces.h5")
    with h5py.File(recorded.folder / "spaces.h5", "r+") as file:
        points = file["points"][:]
        points["status"] = b"failed"
        file["points"][:] = points
    assert "holds no variant with two settings" in recorded.refuses("tune", "--replay", "spaces.h5")
