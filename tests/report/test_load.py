"""Reading: allowed and refused forms of a file."""

import h5py
import numpy as np
import pytest
import synthetic
from katt_report import InputError, load
from katt_report.headline import cautions
from katt_report.isolation import load_isolated, logs_or_results
from katt_report.published.files import result_files
from katt_report.text import usual_value


def test_strings_and_numbers_are_plain(files):
    points = load(files["seqlen"]).points
    assert points["variant"].dtype.kind == "U"
    assert points.values("dtype") == ["bf16", "f16", "f32"]
    row = points.row(0)
    assert type(row["seq_q"]) is int
    assert type(row["time_s"]) is float
    assert row["source"] == "seqlen.h5"


def test_attributes_samples_and_ceilings(files):
    results = load(files["seqlen"])
    about = results.runs["seqlen.h5", "run-0001"]
    assert about["device"] == "Intel Xeon (Sapphire Rapids)"
    assert about["cores"] == 2
    row = results.points.row(0)
    assert np.median(results.samples_of(row)) == pytest.approx(row["time_s"])
    assert {c.name for c in results.ceilings} >= {"fma_f32", "read_dram"}
    assert next(c for c in results.ceilings if c.name == "fma_f32").unit == "FLOP/s"


def test_text_that_is_not_utf8_is_shown_not_fatal(tmp_path):
    file = synthetic.attention_seqlen(sizes=(512,), dtypes=("f32",))
    path = synthetic.write(tmp_path / "r.h5", file)
    with h5py.File(path, "r+") as out:
        table = out["points"][()]
        table["reason"] = b"caf\xe9"
        out["points"][...] = table
    assert load(path).points["reason"][0] == "caf\N{REPLACEMENT CHARACTER}"


def test_variable_length_strings_are_read(tmp_path):
    path = synthetic.write(tmp_path / "r.h5", synthetic.attention_seqlen(sizes=(512,), dtypes=("f32",)))
    with h5py.File(path, "r+") as out:
        table = out["points"][()]
        kinds = [(n, h5py.string_dtype() if table.dtype[n].kind == "S" else table.dtype[n]) for n in table.dtype.names]
        del out["points"]
        wide = np.empty(len(table), np.dtype(kinds))
        for name in table.dtype.names:
            wide[name] = [v.decode() for v in table[name]] if table.dtype[name].kind == "S" else table[name]
        out.create_dataset("points", data=wide)
    assert load(path).points.values("variant") == ["flash", "naive"]


def test_a_resumed_run_replaces_its_rows(tmp_path):
    file = synthetic.attention_seqlen(sizes=(512, 1024), dtypes=("f32",))
    again = [dict(row, run="run-0002", time_s=9.0) for row in file.rows if row["seq_q"] == 1024]
    file.rows[-1] |= {"status": "failed"}
    file.rows += again
    file.runs["run-0002"] = synthetic.run_attributes()
    path = synthetic.write(tmp_path / "r.h5", file)
    results = load(path)
    assert len(results.points) == 4
    for one in (results, load_isolated(path), logs_or_results(path)[1]):
        assert one.replaced == 2
        assert "2 earlier rows were measured again later; the last row of a point counts." in cautions(one)
    assert set(results.points.where(seq_q=1024)["time_s"]) == {9.0}
    assert results.points.values("status") == ["ok"]


def test_optional_columns_may_be_missing(tmp_path):
    path = synthetic.write(tmp_path / "r.h5", synthetic.attention_seqlen(sizes=(512,), dtypes=("f32",)))
    with h5py.File(path, "r+") as out:
        table = out["points"][()]
        keep = [n for n in table.dtype.names if n not in ("point", "label", "speedup_lo", "speedup_hi", "cold")]
        del out["points"], out["samples"], out["ceilings"], out["runs"]
        out["points"] = table[keep].copy()
    points = load(path).points
    assert np.isnan(points["speedup_lo"]).all()
    assert points.values("label") == [""]


def test_engines_of_older_files_are_the_variants_of_today(tmp_path):
    file = synthetic.attention_seqlen(sizes=(512,), dtypes=("f32", "bf16"))
    for row in file.rows:
        row["engine"] = {"naive": "amx"}.get(row["variant"], "amx" if row["dtype"] == "bf16" else "")
    points = load(synthetic.write(tmp_path / "r.h5", file)).points
    assert points.where(dtype="bf16").values("variant") == ["flash_amx", "naive"]
    assert points.where(dtype="f32").values("variant") == ["flash", "naive"]
    for row in file.rows:
        row |= {"op": "linear", "variant": row["variant"].replace("flash", "fused")}
    points = load(synthetic.write(tmp_path / "linear.h5", file)).points
    assert points.where(dtype="bf16").values("variant") == ["amx", "naive"]


def test_several_files_are_merged(files):
    both = load(files["seqlen"], files["rmsnorm"])
    assert both.points.values("source") == ["rmsnorm.h5", "seqlen.h5"]
    attention = both.points.where(op="attention")
    assert "tokens" in attention
    assert set(attention["tokens"]) == {0}


def test_an_axis_that_one_file_lacks_joins_its_rows(tmp_path):
    """NaN there would make every row a point of its own."""
    file = synthetic.attention_seqlen(sizes=(512,), dtypes=("f32",))
    file.rows += [dict(row, run="run-0002", time_s=9.0) for row in file.rows]
    file.runs["run-0002"] = synthetic.run_attributes()
    lacks = synthetic.write(tmp_path / "lacks.h5", file)
    for row in file.rows:
        row["gain"] = 0.5
    both = load(lacks, synthetic.write(tmp_path / "has.h5", file))
    assert len(both.points) == 4 and sorted(set(both.points["gain"])) == [0.0, 0.5]
    assert usual_value([0, "none", "none"]) == 0, "a text axis that one of several files lacks"


def test_the_same_name_in_two_folders(tmp_path):
    paths = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        paths.append(synthetic.write(tmp_path / folder / "r.h5", synthetic.attention_seqlen(dtypes=("f32",))))
    results = load(*paths)
    assert results.points.values("source") == sorted(paths)
    assert len(load(paths[0], paths[0]).points) == len(results.points)


def test_a_folder_passes_over_files_that_are_no_sweeps(tmp_path, files):
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other.create_group("points")
    with pytest.raises(InputError, match="no result file"):
        result_files([tmp_path])


def damage(path, how):
    """Damages a good file in the named way."""
    data = path.read_bytes()
    if how == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif how == "not HDF5":
        path.write_text("op,pass,variant\n")
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "missing":
        path.unlink()
    elif how == "folder":
        path.unlink()
        path.mkdir()
    else:
        with h5py.File(path, "r+") as out:
            table = out["points"][()]
            if how == "no points":
                del out["points"]
            elif how == "points is a group":
                del out["points"]
                out.create_group("points")
            elif how == "points is an array":
                del out["points"]
                out["points"] = np.zeros((3, 3))
            elif how == "schema 2":
                out.attrs["schema"] = 2
            elif how == "no schema":
                del out.attrs["schema"]
            elif how == "no rows":
                del out["points"]
                out["points"] = table[:0]
            elif how == "missing columns":
                del out["points"]
                out["points"] = table[[n for n in table.dtype.names if n not in ("time_s", "variant")]].copy()
            elif how == "wrong type":
                kinds = [(n, "S8" if n == "time_s" else table.dtype[n]) for n in table.dtype.names]
                del out["points"]
                out["points"] = np.zeros(3, np.dtype(kinds))


DAMAGE = {
    "truncated": "damaged or truncated HDF5",
    "not HDF5": "holds no HDF5 data",
    "empty": "holds no HDF5 data",
    "missing": "no such file",
    "folder": "holds a folder",
    "no points": "holds no dataset /points",
    "points is a group": "holds a group named /points",
    "points is an array": "expected a flat compound table",
    "schema 2": "holds schema 2, expected schema 1",
    "no schema": "holds no attribute schema",
    "no rows": "holds 0 rows in /points",
    "missing columns": "without the columns variant, time_s",
    "wrong type": "column time_s of type |S8",
}


@pytest.mark.parametrize("how", DAMAGE)
def test_bad_files_are_refused(tmp_path, how):
    path = tmp_path / "r.h5"
    synthetic.write(path, synthetic.attention_seqlen(sizes=(512,), dtypes=("f32",)))
    damage(path, how)
    with pytest.raises(InputError) as error:
        load(path)
    message = str(error.value)
    assert DAMAGE[how] in message
    assert message.startswith(f"{path}: holds ")
    assert ", expected " in message
    assert "\n" not in message


def test_every_truncation_is_refused_or_read(tmp_path):
    path = tmp_path / "r.h5"
    synthetic.write(path, synthetic.attention_seqlen(sizes=(512,), dtypes=("f32",)))
    data = path.read_bytes()
    for length in np.linspace(1, len(data) - 1, 40).astype(int):
        path.write_bytes(data[:length])
        with pytest.raises(InputError):
            load(path)


def test_random_damage_is_never_a_crash(tmp_path):
    # Isolated: on some of these files the HDF5 library itself aborts.
    path = tmp_path / "r.h5"
    synthetic.write(path, synthetic.attention_seqlen(sizes=(512,), dtypes=("f32",)))
    data = bytearray(path.read_bytes())
    random = np.random.default_rng(0)
    for _ in range(100):
        broken = data.copy()
        for place in random.integers(0, len(data), 6):
            broken[place] = random.integers(0, 256)
        path.write_bytes(broken)
        try:
            load_isolated(path)
        except InputError as error:
            assert "\n" not in str(error)
