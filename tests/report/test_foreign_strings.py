"""Strings of files that anybody wrote: whatever they hold, the report shows them and is well-formed."""

import os
import warnings
from xml.etree import ElementTree

import h5py
import numpy as np
import pytest
import synthetic
from katt_report import cli, load
from katt_report.text import power_text, printable

pytestmark = pytest.mark.rendered

# A formula that is none, markup, what ends a comment, an underscore that legends leave out, backslashes, controls, a
# change of direction, what fonts lack, what XML cannot hold, and bytes that are not UTF-8.
NAMES = [rb"$x_", rb"$\frac{$", rb"a$b$c", rb"<b>&amp;'\"", rb"a--b->", rb"_hidden", rb"\alpha\$", b"red\x1b[31m",
         b"two\nlines", "\u202eback".encode(), "\u6f22\u5b57".encode(), "\uffff".encode(), b"\xff\xfe", b"caf\xe9",
         b"%s{}%(x)d"]

# Pixels take as long again; test_names_of_a_sweep draws names in both formats.
AS_SVG = ("--formats", "svg")


def rewritten(path, names: dict[str, bytes]) -> str:
    """Replaces strings in the columns of /points; a name of `names` is a value of any column."""
    with h5py.File(path, "r+") as file:
        table = file["points"][:]
        for column, kind in ((name, table.dtype[name].kind) for name in table.dtype.names):
            for old, new in names.items():
                if kind == "S":
                    table[column][table[column] == old.encode()] = new
        del file["points"]
        file["points"] = table
    return str(path)


def well_formed(folder) -> None:
    for name in os.listdir(folder):
        data = (folder / name).read_bytes()
        if name.endswith(".svg"):
            ElementTree.fromstring(data)
        if name.endswith(".html"):
            assert "\x1b" not in data.decode() and "<b>&amp;" not in data.decode()


def sweep_of_names(path, seed: int) -> str:
    """A sweep with a variant of every name, and hostile names of its dtypes, operator and ceilings."""
    file = synthetic.attention_seqlen(seed, sizes=(512, 1024), dtypes=("f32", "bf16"))
    for number in range(len(NAMES) - 1):
        for row in [row for row in file.rows if row["variant"] == "flash"]:
            point = f"{row['point']}-{number}"
            file.rows.append(row | {"variant": f"v{number}", "point": point})
            file.samples["run-0001", point] = file.samples["run-0001", row["point"]] * (1.0 + number / 10)
    synthetic.write(path, file)
    names = {f"v{number}": name for number, name in enumerate(NAMES[1:])}
    return rewritten(path, {"flash": NAMES[0], **names, "f32": b"$f_32$", "bf16": b"_b\xff", "fma_f32": b"$\\fma{",
                            "attention": b"<$op\xff>"})  # fmt: skip


def test_names_of_a_sweep(tmp_path, capsys):
    old, new = (sweep_of_names(tmp_path / f"{seed}.h5", seed) for seed in (1, 2))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Glyph|.*layout|.*excluded")
        assert cli.main([new, "-o", str(tmp_path / "report")]) == 0
        assert cli.main(["compare", old, new, "-o", str(tmp_path / "compare")]) in (0, 1, 3)
    shown = capsys.readouterr()
    assert shown.err == "" and "\x1b" not in shown.out
    shown.out.encode()
    well_formed(tmp_path / "report")
    well_formed(tmp_path / "compare")


def test_the_name_is_shown_as_it_is(tmp_path):
    path = synthetic.write(tmp_path / "r.h5", synthetic.attention_seqlen(1, sizes=(512, 1024), dtypes=("f32",)))
    points = load(rewritten(path, {"flash": b"$x_{2}$ \xff"})).points
    assert points.values("variant") == ["$x_{2}$ \N{REPLACEMENT CHARACTER}", "naive"]


def test_attributes_and_names_of_runs(tmp_path, capsys):
    path = synthetic.write(tmp_path / "r.h5", synthetic.attention_real_models(1))
    utf8 = h5py.string_dtype("utf-8")  # whatever the bytes are
    run = b"$r\x1b\xff"
    rewritten(path, {"run-0001": run})
    with h5py.File(path, "r+") as file:
        for group in ("samples", "runs", "ceilings"):
            file[group].move("run-0001", run)
        attributes = file["runs"][run].attrs
        known = ("title", "device", "status", "build_type", "command", "environment", "sweep", "started_at", "backend")
        for number, name in enumerate(NAMES):
            attributes.create(known[number] if number < len(known) else f"more_{number}", name, dtype=utf8)
        attributes.create(b"\xffname$", NAMES, dtype=utf8)
        attributes["commit"], attributes["dirty"] = np.int64(7), np.int64(1)
        attributes["settings"] = b"[" * 20000
    assert cli.main([path, "-o", str(tmp_path / "report"), *AS_SVG]) == 0
    shown = capsys.readouterr()
    assert shown.err == "" and "\x1b" not in shown.out
    well_formed(tmp_path / "report")


def test_names_in_a_profile_and_a_log(tmp_path, capsys):
    file = synthetic.llama_block()
    runs, seconds, rows = next(iter(file.profiles.values()))
    renamed = [(name, *rest) for name, (_, *rest) in zip((b"$a_", b"_b\xff", b"c\x1b"), rows, strict=False)]
    file.profiles = dict.fromkeys(file.profiles, (runs, seconds, [*renamed, *rows[3:]]))
    assert cli.main([synthetic.write(tmp_path / "r.h5", file), "-o", str(tmp_path / "report"), *AS_SVG]) == 0
    with h5py.File(tmp_path / "log.h5", "w") as log:
        log.attrs.create("log", b"train$\xff", dtype=h5py.string_dtype("utf-8"))
        log.attrs.create("device", b"\x1b_$", dtype=h5py.string_dtype("utf-8"))
        kind = np.dtype([("name", "S96"), ("depth", "<i8"), ("calls", "<f8"), ("time_s", "<f8")])
        log["profile"] = np.array([(b"$phase\xff", 0, 1.0, 1.0), (b"_$op\x07", 1, 1.0, 0.5)], kind)
        log["profile"].attrs.update(runs=1, time_s=1.1)
    assert cli.main([str(tmp_path / "log.h5"), "-o", str(tmp_path / "log"), *AS_SVG]) == 0
    shown = capsys.readouterr()
    assert shown.err == "" and "\x1b" not in shown.out
    shown.out.encode()
    for folder in ("report", "log"):
        well_formed(tmp_path / folder)


def test_names_of_files(tmp_path, capsys):
    names = (b"$x_\xff\x1b[1m.h5", b"a\x1b[1m.h5", b"two\nlines.h5")
    paths = [os.fsdecode(os.path.join(os.fsencode(tmp_path), name)) for name in names]
    for path in paths:
        synthetic.write(path, synthetic.attention_seqlen(1, sizes=(512, 1024), dtypes=("f32",)))
    assert cli.main([paths[0], "-o", str(tmp_path / "report"), *AS_SVG]) == 0
    assert capsys.readouterr().err == ""
    for path in paths:
        assert cli.main([path, "-o", path]) == 2
        shown = capsys.readouterr()
        assert shown.err.count("\n") == 1 and "\x1b" not in shown.err
    well_formed(tmp_path / "report")


def test_printable():
    assert printable("a\tb\nc\x7f\ud800", keep="\t\n") == "a\tb\nc\ufffd\ufffd"
    assert printable("µ × ∝ é 漢") == "µ × ∝ é 漢"


def test_powers():
    assert [power_text(value) for value in (1e-7, 2e-3, 1.0, 1000.0, 0.0)] == ["10⁻⁷", "2 × 10⁻³", "10⁰", "10³", ""]
