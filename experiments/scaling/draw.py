"""Draws the figures of a result file: what each rank holds and sends, and what it waits for.

    build/venv/bin/python experiments/scaling/draw.py scaling.h5 .
"""

import sys
from pathlib import Path

import h5py
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402

RANKS = [1, 2, 4, 8]


def read(path):
    """The rows that were measured, text as str."""
    with h5py.File(path) as file:
        rows = file["points"][:]
    rows = {name: rows[name].astype(str) if rows[name].dtype.kind == "S" else rows[name] for name in rows.dtype.names}
    ok = rows["status"] == "ok"
    return {name: column[ok] for name, column in rows.items()}


def select(rows, **wanted):
    chosen = np.logical_and.reduce([rows[name] == value for name, value in wanted.items()])
    return {name: column[chosen] for name, column in rows.items()}


def line(axes, rows, column, scale, label, **style):
    order = np.argsort(rows["ranks"])
    marker = "os"[len(axes.lines) // 10 % 2]  # colours come again after ten
    axes.plot(rows["ranks"][order], rows[column][order] * scale, marker=marker, label=label, **style)


def finish(axes, title, ylabel):
    axes.set(title=title, xlabel="ranks", ylabel=ylabel, xscale="log", xticks=RANKS, xticklabels=RANKS)
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)  # never on a line


def one_over_ranks(axes, first):
    axes.plot(RANKS, [first / ranks for ranks in RANKS], color="gray", linestyle=":", label="1 / ranks")


def of_variants(axes, rows, column):
    """Attention of shared sequences, backward, in each variant."""
    shared = select(rows, op="ring_attention", dtype="f32", **{"pass": "backward"})
    for variant in dict.fromkeys(shared["variant"]):
        for label, style in (("strong", "-"), ("weak", "--")):
            line(axes, select(shared, variant=variant, label=label), column, 1e-6, f"{variant}, {label}", linestyle=style)


def memory(rows):
    figure, (ring, step) = plt.subplots(1, 2, figsize=(13, 4))
    of_variants(ring, rows, "total_bytes")
    strong = select(rows, op="ring_attention", dtype="f32", label="strong", variant="ring", **{"pass": "backward"})
    one_over_ranks(ring, strong["total_bytes"][strong["ranks"] == 1][0] * 1e-6)
    ring.set_yscale("log", base=2)
    finish(ring, "Attention of shared sequences: 1024 tokens, or 256 a rank", "MB on a rank")
    steps = select(rows, op="training_step")
    alone = select(steps, ranks=1)["total_bytes"][0] * 1e-6
    for label in dict.fromkeys(steps["label"]):
        if label == "data, weak":
            continue
        line(step, select(steps, label=label), "total_bytes", 1e-6, label)
    one_over_ranks(step, alone)
    step.set_yscale("log", base=2)
    finish(step, "A training step", "MB on a rank")
    return figure


def traffic(rows):
    figure, (ring, step) = plt.subplots(1, 2, figsize=(13, 4))
    of_variants(ring, rows, "sent_bytes")
    finish(ring, "Attention of shared sequences, backward", "MB sent by a rank")
    steps = select(rows, op="training_step")
    for label in dict.fromkeys(steps["label"]):
        line(step, select(steps, label=label), "sent_bytes", 1e-6, label)
    finish(step, "A training step", "MB sent by a rank")
    return figure


def waiting(rows):
    figure, (share, overlap) = plt.subplots(1, 2, figsize=(12, 4), sharex=True)
    lines = {label: select(rows, op="training_step", label=label) for label in
             dict.fromkeys(select(rows, op="training_step")["label"])}
    for op, label in (("ring_attention", "attention"), ("tensor_parallel_block", "block")):
        shared = select(rows, op=op, dtype="f32", label="strong", **{"pass": "backward"})
        for variant in dict.fromkeys(shared["variant"]):
            lines[f"{label}: {variant}, backward"] = select(shared, variant=variant)
    for label, chosen in lines.items():
        several = {name: column[chosen["ranks"] > 1] for name, column in chosen.items()}
        line(share, several, "communication_fraction", 100, label)
        line(overlap, several, "overlap_fraction", 100, label)
    finish(share, "Time in communication", "% of the time")
    finish(overlap, "Computed in while messages were under way", "% of that time")
    share.get_legend().remove()
    return figure


def busbw(rows):
    figure, panels = plt.subplots(1, 4, figsize=(14, 3.6), sharey=True)
    for axes, op in zip(panels, ["all_reduce", "all_gather", "reduce_scatter", "send_recv"], strict=True):
        for ranks, color in zip(RANKS[1:], ["C0", "C1", "C2"], strict=True):
            for variant, style in (("rounds", "-"), ("mpi", ":")):
                chosen = select(rows, op=op, dtype="f32", ranks=ranks, variant=variant)
                order = np.argsort(chosen["message_size"])
                axes.plot(chosen["message_size"][order], chosen["busbw_gbytes_s"][order], style, marker=".", color=color,
                          label=f"{ranks} ranks" if variant == "rounds" else f"{ranks}, MPI")  # fmt: skip
        axes.set(title=op, xlabel="bytes", xscale="log", yscale="log")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("bus bandwidth, GB/s")
    panels[0].legend(fontsize=7)
    return figure


def main(path, folder):
    rows = read(path)
    for draw in (memory, traffic, waiting, busbw):
        figure = draw(rows)
        figure.tight_layout()
        figure.savefig(Path(folder) / f"{draw.__name__}.png", dpi=110)
        plt.close(figure)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: draw.py RESULT.h5 FOLDER")
    main(*sys.argv[1:])
