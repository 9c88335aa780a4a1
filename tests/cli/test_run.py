"""`katt run` on the operator cases, judged by their checker, with every variant and tile."""

import functools
import json
import os
import subprocess

import h5py
import numpy
import pytest
from check_case import wrong_datasets
from conftest import ALL_CASES, CASES, CASES_BESIDE, FAULTS_BESIDE, skipped_where_missing

CASE_FILES = [path for folder in (CASES, CASES_BESIDE, FAULTS_BESIDE)
              for path in sorted(folder.glob("*.h5")) or [folder]]


@functools.cache
def operators():
    done = subprocess.run([os.environ["KATT"], "info", "--json"], capture_output=True, text=True, check=True)
    return {entry["name"]: entry for entry in json.loads(done.stdout)["operators"]}


def variants(op, turn):
    """(backend, variant, tile) of an operator, its forward variants in order, from `katt info`: each with its default tile
    and one of its list, the next one for the next case; with KATT_ALL_CASES each with all."""
    found = []
    for variant in operators()[op]["variants"]:
        tiles = variant["tiles"]
        chosen = tiles if ALL_CASES else tiles[turn % max(len(tiles), 1):][:1]
        if variant["pass"] == "forward":
            found += [(variant["backend"], variant["name"], tile) for tile in [None, *chosen]]
    return found


@pytest.mark.parametrize("case", map(skipped_where_missing, CASE_FILES))
def test_cases(katt, case):
    """Every variant that accepts a case passes it. A refusal is one line; the naive variant, which comes first on each
    backend, and the operator's default refuse nothing."""
    with h5py.File(case) as file:
        op = file.attrs.get("op", case.name.split("_")[0])
    seen = set()
    for backend, variant, tile in [("serial", None, None), *variants(op, CASE_FILES.index(case))]:
        arguments = ["run", op, "--in", case, "--out", "out.h5", "--overwrite", "--backend", backend]
        if variant:
            arguments += ["--variant", variant]
        if tile:
            q, kv = tile.split("x")
            arguments += ["--tile-q", q, "--tile-kv", kv]
        done = katt(*arguments)
        first = variant is None or backend not in seen
        if variant:
            seen.add(backend)
        if done.returncode == 2 and not first:
            assert len(done.stderr.splitlines()) == 1, done.stderr
            continue
        assert done.returncode == 0, (arguments, done.stderr)
        wrong, _ = wrong_datasets(case, katt.folder / "out.h5")
        assert wrong == [], (backend, variant, tile)
        with h5py.File(katt.folder / "out.h5") as file:
            ran = file.attrs["variant"]
            assert ran == variant if variant else ran not in ("auto", "naive")
            assert ran != "naive" or "tile_q" not in file.attrs


@pytest.mark.parametrize(("asked", "ran"), [("auto", "fused"), ("naive", "naive"), ("fused", "fused")])
def test_logits_are_read_where_the_forward_pass_stored_them(katt, asked, ran):
    case = CASES / "linear_cross_entropy_f32.h5"
    katt.runs("run", "linear_cross_entropy", "--in", case, "--out", "out.h5", "--variant", asked)
    with h5py.File(katt.folder / "out.h5") as file:
        assert (file.attrs["variant"], file.attrs["backward_variant"]) == (ran, ran)


def test_the_output_says_what_ran(katt):
    """Variant auto, the default, and its tile; of the backward pass apart."""
    case = CASES / "attention_bf16_mask_kv_len.h5"
    katt.runs("run", "attention", "--in", case, "--out", "out.h5")
    with h5py.File(katt.folder / "out.h5") as file:
        ran = file.attrs["variant"]
        assert ran in ("flash", "flash_amx", "flash_avx512_bf16", "decode")
        assert file.attrs["tile_q"] > 0 and file.attrs["tile_kv"] > 0
        if "dq" in file:
            assert file.attrs["backward_variant"] != "naive" and file.attrs["backward_tile_q"] > 0
    katt.runs("run", "attention", "--in", case, "--out", "named.h5", "--variant", ran)
    with h5py.File(katt.folder / "out.h5") as one, h5py.File(katt.folder / "named.h5") as other:
        assert (one["out"][...] == other["out"][...]).all()


def test_a_forward_pass_before_a_backward_pass_is_exact(katt):
    """decode's lse is of f32 sums in another order; it runs only where no gradients are asked for."""
    shapes = {"q": (1, 2, 1, 8), "k": (1, 2, 37, 8), "v": (1, 2, 37, 8), "dout": (1, 2, 1, 8)}
    random = numpy.random.default_rng(1)
    for names, decodes in ((("q", "k", "v"), True), (tuple(shapes), False)):
        with h5py.File(katt.folder / "in.h5", "w") as file:
            file.attrs["dtype"] = "f32"
            for name in names:
                file[name] = random.standard_normal(shapes[name]).astype("f4")
        katt.runs("run", "attention", "--in", "in.h5", "--out", "out.h5", "--overwrite")
        with h5py.File(katt.folder / "out.h5") as file:
            assert (file.attrs["variant"] == "decode") == decodes


@pytest.mark.parametrize("op", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("eps", [-1.0, float("nan"), float("inf")])
def test_a_number_that_no_call_takes_is_one_of_its_file(katt, op, eps):
    with h5py.File(katt.folder / "in.h5", "w") as file:
        file.attrs.update({"op": op, "dtype": "f32", "eps": eps})
        for name, shape in (("x", (2, 4)), ("weight", (4,)), ("bias", (4,))):
            file[name] = numpy.ones(shape, "f4")
    line = katt.refuses("run", op, "--in", "in.h5", "--out", "out.h5")
    assert "in.h5: " in line and "eps" in line and not (katt.folder / "out.h5").exists()


def test_threads_do_not_matter(katt):
    case = CASES / "attention_f32_causal_gqa.h5"
    outputs = []
    for threads in ["1", "2"]:
        katt.runs("run", "attention", "--in", case, "--out", f"{threads}.h5", "--threads", threads)
        with h5py.File(katt.folder / f"{threads}.h5") as file:
            outputs.append({name: file[name][...].tobytes() for name in ["out", "lse", "dq", "dk", "dv"]})
    assert outputs[0] == outputs[1]


def mask_case(folder, **attributes):
    """A case of two batch entries and query heads that share a mask of whole rows of -1e9 and some -inf, and its
    gradient in float64."""
    generator = numpy.random.default_rng(7)
    q, dout = (generator.standard_normal((2, 4, 37, 16)).astype("f4") for _ in range(2))
    k, v = (generator.standard_normal((2, 2, 29, 16)).astype("f4") for _ in range(2))
    mask = generator.standard_normal((1, 4, 37, 29)).astype("f4")
    mask[:, :, 3], mask[:, :, 5, 4:], mask[..., 7] = -1e9, -1e9, -numpy.inf
    with h5py.File(folder / "in.h5", "w") as file:
        file.attrs.update({"op": "attention", "dtype": "f32", "causal": 0, "scale": 0.25, **attributes})
        for name, values in (("q", q), ("k", k), ("v", v), ("dout", dout), ("mask", mask)):
            file[name] = values
    q, dout, mask = (x.astype(float) for x in (q, dout, mask))
    k, v = (x.astype(float).repeat(2, axis=1).swapaxes(2, 3) for x in (k, v))
    score = numpy.where(mask == -1e9, -1e9, q @ k * 0.25 + mask)  # as float32 rounds it
    p = numpy.exp(score - score.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    dp = dout @ v
    return (p * (dp - (p * dp).sum(-1, keepdims=True))).sum(0, keepdims=True)


def test_the_gradient_of_a_mask_is_written_where_the_case_asks_for_it(katt):
    exact = mask_case(katt.folder, mask_gradient=1)
    seen = {}
    for variant in ("auto", "naive", "flash"):
        for threads in (1, 2):
            katt.runs("run", "attention", "--in", "in.h5", "--out", "out.h5", "--overwrite", "--variant", variant,
                      "--threads", threads)
            with h5py.File(katt.folder / "out.h5") as file:
                assert sorted(file) == ["dk", "dmask", "dq", "dv", "lse", "out"]
                dmask = file["dmask"][...]
            assert dmask.shape == exact.shape and numpy.abs(dmask - exact).max() < 2e-5, variant
            assert (dmask[..., 7] == 0).all()
            seen.setdefault(variant, set()).add(dmask.tobytes())
    assert len(seen["flash"]) == len(seen["auto"]) == 1
    assert "dmask (B or 1, Hq or 1, Sq, Skv) optional" in katt("info", "attention").stdout
    mask_case(katt.folder)
    katt.runs("run", "attention", "--in", "in.h5", "--out", "out.h5", "--overwrite")
    with h5py.File(katt.folder / "out.h5") as file:
        assert "dmask" not in file and "dq" in file


def test_a_finite_mask_is_finite_in_a_narrower_dtype(katt):
    """A row of equal scores is their mean, however low they are."""
    random = numpy.random.default_rng(3)
    mask = numpy.zeros((1, 1, 3, 5), "f4")
    mask[0, 0, 0], mask[0, 0, 1] = -1e9, numpy.finfo("f4").min
    v = random.standard_normal((1, 1, 5, 8), dtype="f4")
    with h5py.File(katt.folder / "in.h5", "w") as file:
        file.attrs.update({"op": "attention", "dtype": "f32"})
        file["q"], file["k"] = numpy.zeros((1, 1, 3, 8), "f4"), v
        file["v"], file["mask"] = v, mask
    for dtype, limit in (("f32", 1e-6), ("f16", 2e-3), ("bf16", 2e-2)):
        katt.runs("run", "attention", "--in", "in.h5", "--out", "out.h5", "--overwrite", "--dtype", dtype)
        with h5py.File(katt.folder / "out.h5") as file:
            assert numpy.abs(file["out"][...] - v.mean(2, keepdims=True)).max() < limit


def test_one_extent_of_a_tile_is_completed(katt):
    mask_case(katt.folder)
    for option in ("--tile-q", "--tile-kv"):
        katt.runs("run", "attention", "--in", "in.h5", "--out", "out.h5", "--overwrite", "--variant", "flash", option, 128)
        with h5py.File(katt.folder / "out.h5") as file:
            assert file.attrs[option[2:].replace("-", "_")] == 128
    assert "tile 17x* is not among those of flash" in katt.refuses(
        "run", "attention", "--in", "in.h5", "--out", "out.h5", "--overwrite", "--variant", "flash", "--tile-q", 17)


def test_a_flag_is_0_or_1(katt):
    mask_case(katt.folder, causal=2)
    line = katt.refuses("run", "attention", "--in", "in.h5", "--out", "out.h5")
    assert "in.h5: attribute causal: holds 2, expected 0 or 1" in line


def test_the_gradient_of_no_mask_is_refused(katt):
    mask_case(katt.folder, mask_gradient=1)
    with h5py.File(katt.folder / "in.h5", "r+") as file:
        del file["mask"]
    line = katt.refuses("run", "attention", "--in", "in.h5", "--out", "out.h5")
    assert "in.h5: attribute mask_gradient: holds 1, expected 0 where there is no mask" in line


def test_sweeps_measure_the_gradient_of_a_mask_against_float64(katt):
    katt.runs("sweep", "attention", "--seq", 48, "--heads", 2, "--pass", "forward,backward", "--bias", "0,1",
              "--mask-gradient", 1, "--variant", "naive,flash", "--dtype", "f32,bf16", "--rounds", 3, "--threads", 1,
              "-o", "out.h5")
    rows = [{name: row[name] for name in ("pass", "bias", "status", "reason")} for row in katt.rows()]
    for row in rows:
        ran = row["pass"] == b"backward" and row["bias"] == 1
        assert row["status"] == (b"ok" if ran else b"skipped"), row
        assert ran or row["reason"].startswith(b"mask_gradient: "), row
    assert len(rows) == 16


@pytest.mark.parametrize("name, part", [("out", "out: error"), ("dk", "dk: error"), ("lse", "lse: infinities differ"),
                                        (None, "dv: missing")])
def test_the_checker_sees_what_is_wrong(tmp_path, name, part):
    """A file that holds the references passes; one value changed, made infinite or left out does not."""
    case, out = CASES / "attention_f32_causal_gqa.h5", tmp_path / "out.h5"
    with h5py.File(case) as expected, h5py.File(out, "w") as file:
        for key, dataset in expected["expected"].items():
            file[key] = dataset[...].astype("float32")
    assert wrong_datasets(case, out)[0] == []
    with h5py.File(out, "r+") as file:
        if name is None:
            del file["dv"]
        else:
            file[name][(0,) * file[name].ndim] += float("inf") if name == "lse" else 1e-5
    lines, _ = wrong_datasets(case, out)
    assert len(lines) == 1 and lines[0].startswith(part)
