"""--profile: where the time of a run goes, printed and recorded."""

import h5py
import pytest

BLOCK = ("sweep", "llama_block", "--seq", "16", "--hidden", "32", "--intermediate", "48", "--heads", "4",
         "--kv-heads", "2", "--head-dim", "8", "--rounds", "3", "--threads", "1", "-o", "out.h5")  # fmt: skip
OPERATORS = ["katt::attention", "katt::linear", "katt::rmsnorm", "katt::rope", "katt::swiglu"]


def profiles(path):
    """(variant, pass): (table, attributes) of every row's profile."""
    with h5py.File(path) as file:
        places = [
            ((row["variant"].decode(), row["pass"].decode()), f"profile/{row['run'].decode()}/{row['point'].decode()}")
            for row in file["points"][:]
        ]
        return {key: (file[place][:], dict(file[place].attrs)) for key, place in places}


def test_every_operator_of_a_block_has_its_share(katt):
    done = katt.runs(*BLOCK, "--variant", "naive,fused", "--pass", "forward,backward", "--profile")
    found = profiles(katt.folder / "out.h5")
    assert set(found) == {(v, p) for v in ("naive", "fused") for p in ("forward", "backward")}
    for (variant, direction), (table, attributes) in found.items():
        outer = table[table["depth"] == 0]
        names = sorted(name.decode() for name in outer["name"])
        more = [] if direction == "forward" else ["katt::nn::add_gradient"]
        assert names == sorted(OPERATORS + more), variant
        assert attributes["runs"] >= 2
        assert 0 < outer["time_s"].sum() <= attributes["time_s"]
        assert table["depth"][0] == 0
        # Inside an operator lie its own kernels, and not more time than its own.
        turned = table[table["name"] == b"katt::rope"][0]
        index = list(table["name"]).index(b"katt::rope")
        after = table[index + 1 :]
        inner = after[: next((i for i, depth in enumerate(after["depth"]) if depth == 0), len(after))]
        assert len(inner) > 0
        assert all(name.startswith(b"katt::rope::") for name in inner["name"])
        assert inner["time_s"].sum() <= turned["time_s"]
    lines = [line for line in done.stderr.splitlines() if "katt::linear" in line]
    assert len(lines) == 4
    assert all("%, rest " in line for line in lines)


def test_kernels_are_shown_where_there_are_no_regions(katt):
    (katt.folder / "sweep.toml").write_text(
        'op = "attention"\nseq = 32\nheads = 2\nhead_dim = 16\nvariant = "naive,flash"\nrounds = 3\nthreads = 1\n'
        "profile = 1\n"
    )
    katt.runs("sweep", "sweep.toml", "-o", "out.h5")
    for table, _ in profiles(katt.folder / "out.h5").values():
        outer = table[table["depth"] == 0]
        assert any(name.startswith(b"katt::attention::") for name in outer["name"])


def test_nothing_is_recorded_without_it(katt):
    done = katt.runs(*BLOCK, "--variant", "fused")
    assert "katt::" not in done.stderr
    with h5py.File(katt.folder / "out.h5") as file:
        assert "profile" not in file


@pytest.mark.parametrize("value", ["2", "perhaps"])
def test_a_key_that_is_neither_0_nor_1(katt, value):
    (katt.folder / "sweep.toml").write_text(f'op = "rope"\nprofile = "{value}"\n')
    line = katt.refuses("sweep", "sweep.toml", "-o", "out.h5")
    assert "sweep.toml:2: profile" in line
    assert value in line
