#!/usr/bin/env python3
"""python_figures FOLDER: draws what python_training and python_calls have written to FOLDER:
training.json → training.png, calls.json → calls.png."""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402


def training(folder):
    result = json.loads((folder / "training.json").read_text())
    figure, (losses, times) = plt.subplots(1, 2, figsize=(9, 3.5), width_ratios=(3, 2))
    for (name, values), style in zip(result["losses"].items(), ("-", "--"), strict=True):
        losses.plot(values, style, marker="o", markersize=4, label=name)
    losses.set(title="Training a small LLaMA of transformers, bf16", xlabel="step", ylabel="loss")
    losses.legend(frameon=False)
    samples = {name: [1e3 * value for value in values] for name, values in result["attention_s"].items()}
    times.boxplot(list(samples.values()), tick_labels=list(samples))
    times.set(title=f"its attention at {result['seq']} tokens", ylabel="ms, forward and backward", ylim=(0, None))
    save(figure, folder / "training.png")


def calls(folder):
    rows = json.loads((folder / "calls.json").read_text())["rows"]
    figure, axes = plt.subplots(figsize=(7, 3))
    names = [f"{row['operator']}\n{row['arrays']}" for row in rows]
    native = [row["native_s"] * 1e6 for row in rows]
    beyond = [(row["python_s"] - row["native_s"]) * 1e6 for row in rows]
    axes.bar(names, native, label="the call in C++")
    axes.bar(names, beyond, bottom=native, label="beyond it, from Python")
    axes.axhline(10, color="grey", linewidth=0.8, linestyle=":")
    axes.set(title="The smallest calls, one thread", ylabel="µs")
    axes.margins(y=0.3)  # room for the legend
    axes.tick_params(axis="x", labelsize=8)
    axes.legend(frameon=False, ncols=2)
    save(figure, folder / "calls.png")


def save(figure, path):
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    print(path)


def main():
    folder = Path(sys.argv[1])
    for name, draw in (("training", training), ("calls", calls)):
        if (folder / f"{name}.json").exists():
            draw(folder)


if __name__ == "__main__":
    main()
