"""strategies.py SPACES.json REPLAYS.json -o OUT.json: the strategies of Kernel Tuner on the spaces of a T4 file.

Needs a Python with kernel-tuner. SPACES.json and REPLAYS.json are those of `katt tune --replay`; in each replay a
strategy may spend the time that the race spent. Kernel Tuner measures the settings one after the other, each in seven
runs, and takes their mean: so a setting's time is here the mean of seven neighbouring rounds, each setting's drawn
anew. It reads caches of its own, not T4, in its simulation mode; times are scaled up so that its own time, which it
counts, does not matter."""

import argparse
import contextlib
import io
import json
import multiprocessing
import tempfile
import warnings
from pathlib import Path

import numpy as np
from kernel_tuner.interface import tune_cache
from kernel_tuner.runners.simulation import SimulationRunner
from kernel_tuner.util import StopCriterionReached

ITERATIONS = 7
"""Kernel Tuner's default."""
SCALE = 1e6
ALL_OF_THE_TIME = "brute_force_long"
"""All settings, in as many runs as the race's time allows: the strategies do not measure a setting twice."""
STRATEGIES = {
    "brute_force": None,  # without a limit
    "random_sample": {"fraction": 1.0},
    "greedy_ils": {},
    "genetic_algorithm": {},
    "simulated_annealing": {},
    "mls": {},
    "pso": {},
}


def spaces_of(t4):
    """Of each problem that ran: the settings as (values, samples in ms, runs a sample), by problem, in the order of the
    file."""
    spaces = {}
    for result in t4["results"]:
        if result["invalidity"] != "correct":
            continue
        values = tuple(result["configuration"].values())
        inner = next(one["value"] for one in result["measurements"] if one["name"] == "runs_a_sample")
        space = spaces.setdefault(json.dumps(result["problem"]), (tuple(result["configuration"]), []))
        space[1].append((values, np.array(result["times"]["runtimes"]), inner))
    return [space for space in spaces.values() if len(space[1]) > 1]


def cache_of(parameters, settings, random, iterations=ITERATIONS):
    """A cache file of Kernel Tuner for one replay."""
    entries = {}
    for values, samples, inner in settings:
        first = random.integers(len(samples))
        times = SCALE * samples[(first + np.arange(iterations)) % len(samples)]
        entries[",".join(map(str, values))] = {
            **dict(zip(parameters, values, strict=True)), "time": times.mean(), "times": list(times), "compile_time": 0,
            "verification_time": 0, "benchmark_time": inner * times.sum(), "strategy_time": 0, "framework_time": 0,
            "timestamp": ""}  # fmt: skip
    tune_params = {name: sorted({values[i] for values, _, _ in settings}) for i, name in enumerate(parameters)}
    return {"device_name": "recorded", "kernel_name": "recorded", "problem_size": 1,
            "tune_params_keys": list(parameters), "tune_params": tune_params, "objective": "time", "cache": entries}  # fmt: skip


class Recorder:
    """What Kernel Tuner's simulation measures: some strategies lose it when the time ends."""

    def __init__(self):
        self.tried = {}
        self._run = SimulationRunner.run

    def __enter__(self):
        def run(runner, settings, options):
            results = self._run(runner, settings, options)
            for one in results:
                if one and "time" in one:
                    self.tried[tuple(one[name] for name in options.tune_params)] = one["time"]
            return results

        SimulationRunner.run = run
        return self

    def __exit__(self, *_):
        SimulationRunner.run = self._run


def search(path, cache, strategy, limit_s, seed):
    """The best setting that a strategy finds, and the seconds that the measurements took."""
    options = STRATEGIES[strategy]
    if options is not None:
        options = {**options, "time_limit": limit_s * SCALE}
    path.write_text(json.dumps(cache))
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(), Recorder() as recorder:
        warnings.simplefilter("ignore")
        with contextlib.suppress(StopCriterionReached):
            tune_cache(str(path), strategy=strategy, strategy_options=options or {}, quiet=True, seed=seed)
    tried = recorder.tried
    if not tried:
        return None, 0.0
    cost_ms = sum(cache["cache"][",".join(map(str, values))]["benchmark_time"] for values in tried)
    return min(tried, key=tried.get), cost_ms / SCALE / 1e3


def replay(parameters, settings, replayed, seed):
    """All strategies in all replays of a space."""
    losses = {tuple(one["setting"]): one["loss"] for one in replayed["settings"]}
    assert list(losses) == [values for values, _, _ in settings], replayed["space"]
    random = np.random.default_rng(seed)
    round_s = sum(inner * np.mean(samples) for _, samples, inner in settings) / 1e3
    rows = []

    def add(search, winner, cost_s):
        loss = losses[winner] if winner else None  # it had no time for one setting
        rows.append({"space": replayed["space"], "search": search, "loss": loss, "cost_s": cost_s})

    with tempfile.TemporaryDirectory() as scratch:
        for number, limit_s in enumerate(replayed["race"]["cost_s"]):
            cache = cache_of(parameters, settings, random)
            for strategy in STRATEGIES:
                winner, cost_s = search(Path(scratch) / "cache.json", cache, strategy, limit_s, number)
                add(strategy, winner, cost_s)
            iterations = max(1, int(limit_s / round_s))
            cache = cache_of(parameters, settings, random, iterations)
            add(ALL_OF_THE_TIME, *search(Path(scratch) / "cache.json", cache, "brute_force", limit_s, number))
    print(replayed["space"], flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("spaces", type=Path)
    parser.add_argument("replays", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    replays = json.loads(options.replays.read_text())
    spaces = spaces_of(json.loads(options.spaces.read_text()))
    tasks = [(*space, replayed, replays["seed"]) for space, replayed in zip(spaces, replays["spaces"], strict=True)]
    with multiprocessing.Pool() as pool:
        rows = [row for rows in pool.starmap(replay, tasks, chunksize=1) for row in rows]
    options.output.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
