"""Compares the machines of a file that several filled: the rows of each, its ceilings, and times at
common rows."""

import numpy as np

from katt_report.limits import checked
from katt_report.load import Results
from katt_report.pages.markup import bullets, escape, table
from katt_report.points import Points
from katt_report.statistics import geometric_mean
from katt_report.text import bytes_text, list_text, rate_text, ratio_text

TITLE = "Machines"


def by_machine(results: Results) -> dict[str, Points]:
    """The rows of each machine, in the order of the runs."""
    names = np.array([results.machine_of(*key) for key in results.points.tuples(["source", "run"])])
    order = dict.fromkeys(results.machine_of(*key) for key in results.runs)
    return {name: results.points.where(names == name) for name in order if name and name in names}


def machine_lines(results: Results) -> list[str]:
    """Sentences that compare the machines; none for one machine."""
    machines = by_machine(results)
    if len(machines) < 2:
        return []
    counts = [f"{name} with {len(points)} row{'s'[: len(points) != 1]}" for name, points in machines.items()]
    lines = [f"Measured on {len(machines)} machines: {list_text(counts)}. No figure mixes them."]
    first, *others = machines
    for other in others:
        ratios = _ratios(machines[first], machines[other])
        if not len(ratios):
            lines.append(f"{first} and {other} have no measured row in common.")
            continue
        mean = geometric_mean(ratios)
        span = f"; {ratio_text(ratios.min())}× to {ratio_text(ratios.max())}×" if len(ratios) > 1 else ""
        lines.append(
            f"{other} takes {ratio_text(mean)}× the time of {first} at {len(ratios)} common "
            f"row{'s'[: len(ratios) != 1]} (geometric mean{span})."
        )
    return lines


def machines_section(results: Results) -> str:
    """The page's section; empty for one machine."""
    machines = by_machine(results)
    if len(machines) < 2:
        return ""
    rows = [
        ["rows", *(str(len(points)) for points in machines.values())],
        ["of them measured", *(str(len(points.ok)) for points in machines.values())],
        ["commit", *(list_text([text[:12] for text in points.values("commit")]) for points in machines.values())],
    ]
    ceilings = {name: _ceilings(results, name) for name in machines}
    for name, unit, size, threads in dict.fromkeys(key for held in ceilings.values() for key in held):
        values = [held.get((name, unit, size, threads)) for held in ceilings.values()]
        about = (f" of {bytes_text(size)}" if size else "") + (f", {threads} thread{'s'[: threads != 1]}" if threads else "")
        rows.append([f"ceiling {name}{about}", *("–" if v is None else rate_text(v, unit) for v in values)])
    heads = [("", ""), *((escape(name), "n") for name in machines)]
    cells = [[escape(cell) for cell in row] for row in rows]
    return (
        f'<section id="machines"><h2>{TITLE}</h2>' + bullets(machine_lines(results), "plain")
        + table(heads, cells, nested=True) + "</section>"
    )  # fmt: skip


def _ratios(base: Points, other: Points) -> np.ndarray:
    """Time on the other machine over time on the base, for every row that both measured.

    Machines that share no number of threads, as each has its own default, are compared at the most of each.
    """
    shared = set(base.ok.values("threads")) & set(other.ok.values("threads"))
    names = [name for name in base.identity if name in other and (shared or name != "threads")]
    rows = [points.ok.where(points.ok["time_s"] > 0).sorted_by("threads") for points in (base, other)]
    times = [dict(zip(points.tuples(names), points["time_s"].tolist(), strict=True)) for points in rows]
    return np.array([time / times[0][key] for key, time in times[1].items() if key in times[0]])


def _ceilings(results: Results, machine: str) -> dict[tuple[str, str, int, int], float]:
    """The best believed measurement of each limit of a machine, by name, unit, working set and threads."""
    best: dict[tuple[str, str, int, int], float] = {}
    for ceiling in checked(results.ceilings):
        if results.machine_of(ceiling.source, ceiling.run) == machine and np.isfinite(ceiling.value):
            key = (ceiling.name, ceiling.unit, ceiling.bytes, ceiling.threads)
            best[key] = max(best.get(key, 0.0), ceiling.value)
    return best
