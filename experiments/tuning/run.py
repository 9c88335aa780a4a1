"""Replays races, and the strategies of Kernel Tuner, on the recorded spaces of a folder. See README.md."""

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from model_runs import KATT, ROOT, parser_of, plt, save  # noqa: E402

KERNEL_TUNER = Path(os.environ.get("KERNEL_TUNER", ROOT / "build" / "kernel_tuner" / "bin" / "python"))
"""A Python with kernel-tuner."""
NAMES = {
    "race": "race",
    "exhaustive": "exhaustive",
    "brute_force": "Kernel Tuner: all, 7 runs",
    "brute_force_long": "Kernel Tuner: all, the race's time",
}


def short_names(spaces):
    """The names of spaces by operator, pass, variant and dtype, with the axes that differ among those of an operator."""
    values = defaultdict(set)
    for name in spaces:
        op, *words = name.split()
        for axis, _, value in (word.partition("=") for word in words if "=" in word):
            values[op, axis].add(value)
    short = {}
    for name in spaces:
        op, *words = name.split()
        kept = [word for word in words if "=" not in word or len(values[op, word.partition("=")[0]]) > 1]
        short[name] = " ".join([op, *kept])
    return short


def replayed(folder, replays, scratch):
    """The replays of all searches: rows of space, search, loss and cost_s."""
    t4, json_file = scratch / "spaces.json", scratch / "replays.json"
    done = subprocess.run([KATT, "tune", "--replay", folder / "tuning.h5", "--replays", str(replays), "--json", "--results", t4],
                          check=True, stdout=subprocess.PIPE, text=True)  # fmt: skip
    json_file.write_text(done.stdout)
    races = json.loads(done.stdout)
    rows = [
        {"space": space["space"], "search": search, "loss": space["settings"][winner]["loss"], "cost_s": cost_s}
        for space in races["spaces"]
        for search in ("race", "exhaustive")
        for winner, cost_s in zip(space[search]["winners"], space[search]["cost_s"], strict=True)
    ]
    if KERNEL_TUNER.exists():
        others = scratch / "strategies.json"
        subprocess.run(
            [KERNEL_TUNER, Path(__file__).with_name("strategies.py"), t4, json_file, "-o", others], check=True
        )
        rows += json.loads(others.read_text())
    else:
        print(f"{KERNEL_TUNER} is missing: without Kernel Tuner", file=sys.stderr)
    return races, rows


def summaries(races, rows):
    """For every space and search: the share of wrong winners, and the median cost relative to the exhaustive one's."""
    settings = {space["space"]: len(space["settings"]) for space in races["spaces"]}
    short = short_names(settings)
    groups = defaultdict(list)
    for row in rows:
        groups[row["space"], row["search"]].append(row)
    result = []
    for (space, search), group in groups.items():
        losses = np.array([np.inf if row["loss"] is None else row["loss"] for row in group])
        costs = np.array([row["cost_s"] for row in group])
        exhaustive = np.array([row["cost_s"] for row in groups[space, "exhaustive"]])
        found = losses[np.isfinite(losses)]
        result.append({"space": short[space], "search": NAMES.get(search, search), "settings": settings[space],
                       "wrong_percent": 100 * float(np.mean(losses > 1 + races["tolerance"])),
                       "cost": float(np.median(costs / exhaustive)), "cost_p90": float(np.quantile(costs / exhaustive, 0.9)),
                       "cost_s": float(np.median(costs)), "mean_loss": float(found.mean()) if len(found) else np.nan})  # fmt: skip
    return result


def totals(rows, tolerance):
    """For every search over all spaces: the share of wrong winners, and the median relative cost."""
    exhaustive = defaultdict(list)
    for row in rows:
        if row["search"] == "exhaustive":
            exhaustive[row["space"]].append(row["cost_s"])
    wrong, costs, place = defaultdict(list), defaultdict(list), defaultdict(int)
    for row in rows:
        key = row["space"], row["search"]
        wrong[row["search"]].append(row["loss"] is None or row["loss"] > 1 + tolerance)
        costs[row["search"]].append(row["cost_s"] / exhaustive[row["space"]][place[key]])
        place[key] += 1
    return [
        {"search": NAMES.get(search, search), "wrong_percent": 100 * float(np.mean(wrong[search])),
         "cost": float(np.median(costs[search])), "replays": len(wrong[search])} for search in wrong
    ]  # fmt: skip


def draw(path, summary, total):
    """Wrong winners against cost: a point for each space, a large one for all."""
    figure, axes = plt.subplots(figsize=(8, 4.5))
    for number, one in enumerate(total):
        points = [row for row in summary if row["search"] == one["search"]]
        color = f"C{number}"
        axes.scatter(
            [row["cost"] for row in points], [row["wrong_percent"] for row in points], s=14, alpha=0.5, color=color
        )
        axes.scatter(
            [one["cost"]], [one["wrong_percent"]], s=90, color=color, edgecolor="black", zorder=3, label=one["search"]
        )
    axes.axhline(5, color="grey", linewidth=0.8, linestyle=":")
    axes.axvline(0.2, color="grey", linewidth=0.8, linestyle=":")
    axes.set(title="Races and other searches, replayed on recorded spaces", xscale="log", ylim=(-2, 102),
             xlabel="time of the samples / that of measuring all", ylabel="wrong winners, %")  # fmt: skip
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--replays", type=int, default=200, help="of each space (200)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        races, rows = replayed(options.output, options.replays, Path(scratch))
    summary, total = summaries(races, rows), totals(rows, races["tolerance"])
    save(options.output / "replays.h5", summary, total, {"replays": races["replays"], "seed": races["seed"],
                                                         "block": races["block"], "tolerance": races["tolerance"]})  # fmt: skip
    draw(options.output / "races.png", summary, total)
    for one in total:
        print(f"{one['search']}: wrong {one['wrong_percent']:.1f} %, {one['cost']:.3f} of the exhaustive time")


if __name__ == "__main__":
    main()
