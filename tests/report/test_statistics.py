"""Intervals cover what they promise, fits recover what was put in."""

import math
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from katt_report import load
from katt_report.statistics import effective_count, fit_power, median_interval, paired_ratio


@pytest.mark.parametrize(("power", "factor"), [(1.0, 512.0), (2.0, 32.0), (0.5, 7.0)])
def test_fit_recovers_the_exponent(power, factor):
    sizes = np.array([512, 1024, 2048, 4096, 8192])
    fit = fit_power(sizes, factor * sizes**power)
    assert fit.exponent == pytest.approx(power, abs=1e-9)
    assert fit.factor == pytest.approx(factor)


def test_fit_leaves_small_sizes_out():
    sizes = np.array([64, 128, 256, 4096, 8192, 16384])
    fit = fit_power(sizes, 8.0 * sizes + np.where(sizes < 1000, 1e9, 0))
    assert fit.exponent == pytest.approx(1.0)


def test_fit_of_nothing_growing():
    assert fit_power([1, 2, 4], [0, 0, 0]).exponent == 0.0
    assert fit_power([1, 2, 4], [4096, 4096, 4096]).exponent == 0.0
    assert fit_power([1, 2, 4], [4096, 4100, 4110]) == fit_power([1, 2, 4], [4110, 4110, 4110])
    assert fit_power([1, 2, 4], [4096, 4200, 4300]).exponent > 0


def test_fit_refuses_what_is_no_power():
    assert fit_power([512], [100]) is None
    assert fit_power([512, 1024], [100, 200]) is None, "two sizes fit any power"
    assert fit_power([512, 512], [100, 100]) is None
    assert fit_power([1, 2, 4], [0, 8, 16]) is None
    assert fit_power([1, 2, 4], [math.nan] * 3) is None


@pytest.mark.parametrize(("count", "level"), [(5, 0.95), (9, 0.95), (20, 0.95), (20, 0.999), (60, 0.95)])
def test_interval_covers_the_median(count, level):
    random = np.random.default_rng(count)
    hits = 0
    for _ in range(400):
        interval = median_interval(np.exp(random.normal(0.3, 0.4, count)), level)
        hits += interval.lo <= math.exp(0.3) <= interval.hi
    assert hits / 400 > level - 3 * math.sqrt(level * (1 - level) / 400) - 1e-9


def test_interval_is_of_order_statistics():
    # n = 20: P(Bin(20, 1/2) < 6) = 0.0207 <= 0.025 < P(... < 7), so the 6th smallest and largest.
    samples = np.stack([np.arange(1, 11), np.arange(20, 10, -1)], 1).ravel()
    interval = median_interval(samples, 0.95)
    assert effective_count(samples) == 20
    assert (interval.mid, interval.lo, interval.hi) == (10.5, 6.0, 15.0)


def test_interval_of_few_samples():
    assert median_interval([2.0]).hi == math.inf
    three = median_interval([1.0, 1.1, 1.2], 0.999)
    assert three.lo < 0.5
    assert three.hi > 2.0


def test_interval_holds_where_rounds_depend_on_each_other():
    # A neighbour that stays for several rounds: lag-1 correlation 0.5. Ignoring it would cover 75 %.
    random = np.random.default_rng(0)
    hits = 0
    for _ in range(300):
        drift = np.zeros(40)
        for index in range(1, 40):
            drift[index] = 0.5 * drift[index - 1] + random.normal(0, 0.1)
        interval = median_interval(np.exp(drift))
        hits += interval.lo <= 1.0 <= interval.hi
    assert hits / 300 > 0.88


def test_pairing_cancels_what_both_feel():
    random = np.random.default_rng(1)
    neighbour = np.exp(np.abs(random.normal(0, 0.5, 30)))
    ratio = paired_ratio(3.0 * neighbour, 1.0 * neighbour)
    assert (ratio.mid, ratio.lo, ratio.hi) == pytest.approx((3.0, 3.0, 3.0))
    assert paired_ratio([], [1.0]) is None


@pytest.mark.skipif("KATT_BUILD_DIR" not in os.environ, reason="KATT_BUILD_DIR does not name a build")
@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 5, 6, 7, 12, 41])
def test_the_intervals_of_a_file_are_those_of_the_report(tmp_path, rounds):
    file = tmp_path / "r.h5"
    sweep = ("sweep", "softmax", "--tokens", "1,2,4,8", "--vocab", "16,64", "--rounds", str(rounds), "--threads", "1",
             "--no-ceilings", "-o", file)  # fmt: skip
    subprocess.run([Path(os.environ["KATT_BUILD_DIR"]) / "katt", *sweep], check=True, capture_output=True)
    result = load(file)
    rows = [row for row in result.points.rows() if row["status"] == "ok"]
    samples = {(row["tokens"], row["vocab"], row["variant"]): result.samples_of(row) for row in rows}
    assert len(samples) == len(rows) >= 16
    for row in rows:
        own, naive = (samples[row["tokens"], row["vocab"], variant] for variant in (row["variant"], "naive"))
        time, speedup = median_interval(own), paired_ratio(naive, own)
        assert [row[f"time{end}_s"] for end in ("_lo", "", "_hi")] == [time.lo, time.mid, time.hi]
        assert [row[f"speedup{end}"] for end in ("_lo", "", "_hi")] == [speedup.lo, speedup.mid, speedup.hi]
