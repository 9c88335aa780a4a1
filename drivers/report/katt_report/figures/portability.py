"""The figures of performance portability: shares of the limits by machine, cascades, the navigation chart."""

import math
from collections.abc import Callable

import matplotlib
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter

from katt_report.figures import style
from katt_report.figures.marks import Drawing
from katt_report.groups import MOST_PANELS, sort_dtypes
from katt_report.published.portability import BEST_PEER, LIMITS, OURS, PEERS, Operation, Portability, convergence
from katt_report.statistics import Interval
from katt_report.text import interval_text, percent_text

_MOST_MACHINES = 8
_DTYPES = {"f32": ("#333333", "o"), "bf16": ("#009E73", "s"), "f16": ("#CC79A7", "^")}
_OTHER_DTYPE = ("#E69F00", "D")


def _look(dtype: str) -> tuple[str, str]:
    """Colour and marker of a dtype."""
    return _DTYPES.get(dtype, _OTHER_DTYPE)


def limits(found: Portability, notes: dict[str, str], every: bool = False) -> style.Plot | None:
    """A panel a machine, a row an operator and pass: Katt's share of the limit, beside it the best peer's.

    Every row is drawn at one set of points: those that several machines have measured with a peer where there are such,
    else those of LIMITS. The short form, which a
    README shows, has the operators with a peer (where one has), in f32 and bf16; `every` draws all. `notes` are lines
    below the names of machines.
    """
    least = min(2, len(found.machines))
    drawn = [p for p in found.operations[LIMITS] if len(p.cells) >= least]
    if not every:
        drawn = [p for p in drawn if p.dtype in ("f32", "bf16")] or drawn
        compared = {p.name for p in found.shares}
        drawn = [p for p in drawn if p.name in compared] or drawn
    with_peer = {(p.op, p.pass_name, p.dtype): p for p in found.shares if len(p.cells) >= least}
    drawn = [with_peer.get((p.op, p.pass_name, p.dtype), p) for p in drawn]
    rows = list(dict.fromkeys(p.name for p in drawn))
    if not rows:
        return None
    dtypes = sort_dtypes({p.dtype for p in drawn})
    every_machine = [m for m in found.machines if any(m in p.cells for p in drawn)]
    machines = every_machine[:_MOST_MACHINES]
    with style.context():
        # More than six are shown smaller, on a wider figure.
        width = max(min(style.PAGE_WIDTH, 2.4 + 2.1 * len(machines)), style.PAGE_WIDTH / 6 * len(machines))
        figure = Drawing(figsize=(width, 1.6 + (0.18 + 0.1 * len(dtypes)) * len(rows)), layout="constrained")
        axes = figure.subplots(1, len(machines), sharey=True, squeeze=False)[0]
        for panel, machine in zip(axes, machines, strict=True):
            for operation in drawn:
                place = rows.index(operation.name) + (
                    dtypes.index(operation.dtype) - (len(dtypes) - 1) / 2
                ) * 0.6 / len(dtypes)
                _share(panel, place, operation, machine)
            panel.set_title("\n".join(machine.split("-", 1)), fontsize=8.5, pad=22 if notes else None)
            panel.text(0.5, 1.0, notes.get(machine, ""), transform=panel.transAxes, ha="center",
                       va="bottom", fontsize=7, color=style.GREY)  # fmt: skip
            panel.set_xlim(0, 104)
            panel.xaxis.set_major_locator(FixedLocator([0, 25, 50, 75, 100]))
            panel.tick_params(axis="y", length=0)
            for edge in range(1, len(rows)):
                panel.axhline(edge - 0.5, color="#eeeeee", linewidth=0.6)
            panel.grid(axis="y", visible=False)
        axes[0].set_yticks(range(len(rows)), rows)
        axes[0].set_ylim(len(rows) - 0.5, -0.5)
        figure.supxlabel("share of the machine's measured limit, %", fontsize=9)
        handles = [Line2D([], [], color=_look(dtype)[0], marker=_look(dtype)[1], linestyle="") for dtype in dtypes]
        handles += [Line2D([], [], color="#333333", marker="o", markerfacecolor=fill, linestyle="")
                    for fill in ("#333333", "white")]  # fmt: skip
        style.legend_above(figure, handles, [*dtypes, "filled: Katt", "hollow: the best peer"])
    return style.Plot(
        "limits_all" if every else "limits",
        "Share of each machine's limit" + (", all operators" if every else ""),
        figure,
        "How much of the limit that binds it (arithmetic or bandwidth, measured in the same run) Katt's fastest variant "
        "reaches, the geometric mean of the points that the machines of a row have in common, its line the interval. "
        "Hollow: the fastest other program at the same points, where one was measured. A cross at 0: not supported."
        + style.first_note(_MOST_MACHINES, len(every_machine), "machines"),
        "Dot chart of the share of the measured limit by operator, a panel for each machine, Katt beside the best peer.",
    )


def _share(panel: Axes, place: float, operation: Operation, machine: str) -> None:
    colour, marker = _look(operation.dtype)
    cells = operation.cells.get(machine, {})
    ours, peer = cells.get(OURS), cells.get(BEST_PEER)
    if not ours:
        return
    value, parts = ours.efficiency, []
    name, points = f"{operation.name} · {operation.dtype}", f"{operation.points} points · {machine}"
    if value.mid == 0:
        parts += panel.plot(0, place, "x", color="#a8200d", markersize=6, markeredgewidth=1.6, clip_on=False)
        words = [(name, "not supported", points)]
    else:
        if peer:
            reached = 100 * peer.efficiency.mid
            parts += panel.plot([reached, 100 * value.mid], [place] * 2, color=colour, linewidth=0.8, alpha=0.5)
            parts += panel.plot(reached, place, marker, color=colour, markerfacecolor="white", markersize=4.5)
            said = f"the best peer: {_percents(peer.efficiency)}"
            panel.figure.add_marks(panel, operation.dtype, [(reached, place)], [(name, said, points)])
        parts += panel.plot([100 * value.lo, 100 * value.hi], [place] * 2, color=colour, linewidth=2.2,
                            solid_capstyle="butt")  # fmt: skip
        parts += panel.plot(100 * value.mid, place, marker, color=colour, markersize=5, clip_on=False)
        words = [(name, f"Katt: {_percents(value)}", points)]
    panel.figure.add_series(operation.dtype, colour, *parts)
    panel.figure.add_marks(panel, operation.dtype, [(100 * value.mid, place)], words)


def _percents(value: Interval) -> str:
    return interval_text(value.mid, value.lo, value.hi, percent_text)


def cascades(found: Portability) -> list[style.Plot]:
    """For every dtype a panel an operation: the efficiency of each program on its machines, the best first.

    The cascade plot of Sewall, Pennycook, Jacobsen, Deakin & McIntosh-Smith, *Interpreting and visualizing performance
    portability metrics*, P3HPC 2020.
    """
    operations = [p for p in found.operations[PEERS] if len(p.cells) > 1]
    dtypes = sort_dtypes({p.dtype for p in operations})
    every = {name for p in operations for cells in p.cells.values() for name in cells} - {OURS, BEST_PEER}
    looks = style.variant_looks([OURS, *sorted(every)])
    return [_cascade(found, [p for p in operations if p.dtype == dtype], dtype, looks) for dtype in dtypes]


def _cascade(found: Portability, operations: list[Operation], dtype: str, looks: dict[str, style.Look]) -> style.Plot:
    note, operations = style.first_note(MOST_PANELS, len(operations), "operations"), operations[:MOST_PANELS]
    machines = [m for m in found.machines if any(m in p.cells for p in operations)]
    colours = [
        matplotlib.colormaps["cividis"](0.15 + 0.8 * i / max(len(machines) - 1, 1)) for i in range(len(machines))
    ]
    with style.context():
        figure, axes = style.grid(len(operations), 3, 2.9)
        for panel, operation in zip(axes, operations, strict=True):
            programs = [name for name in looks if any(name in cell for cell in operation.cells.values())]
            for line, name in enumerate(programs):
                reached = sorted((-cell[name].efficiency.mid, machine) for machine, cell in operation.cells.items()
                                 if name in cell and cell[name].efficiency.mid > 0)  # fmt: skip
                places = range(1, len(reached) + 1)
                parts = panel.plot(places, [-value for value, _ in reached], label=name, **looks[name].curve())
                words = [(f"{name} · {operation.name} · {dtype}", _percents(operation.cells[machine][name].efficiency),
                          f"{operation.points} points · {machine}") for _, machine in reached]  # fmt: skip
                figure.add_marks(panel, name, ((at, -value) for at, (value, _) in zip(places, reached, strict=True)),
                                 words)  # fmt: skip
                strip = -0.1 - 0.15 * line
                parts += panel.plot(0.55, strip, **looks[name].curve(linestyle=""))
                figure.add_series(name, looks[name].colour, *parts)
                for place, (_, machine) in zip(places, reached, strict=True):
                    index = machines.index(machine)
                    panel.text(place, strip, str(index + 1), ha="center", va="center", fontsize=7,
                               color="white" if sum(colours[index][:3]) < 1.5 else "black",
                               bbox={"facecolor": colours[index], "edgecolor": "none", "pad": 2.2})  # fmt: skip
                p = operation.portability.get(name)
                panel.text(len(operation.cells) + 0.35, strip, f"P {p.mid:.2f}" if p else "P –", fontsize=7.5,
                           va="center")  # fmt: skip
            panel.set_xlim(0.4, len(operation.cells) + 0.95)
            panel.set_ylim(-0.1 - 0.15 * len(programs), 1.06)
            panel.xaxis.set_major_locator(FixedLocator(range(1, len(operation.cells) + 1)))
            panel.set_xlabel("machines, the best first")
            panel.yaxis.set_major_locator(FixedLocator([0, 0.25, 0.5, 0.75, 1]))
            panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f} %"))
            panel.axhline(0, color=style.GREY, linewidth=0.8)
            panel.set_title(operation.name)
        handles, labels = _programs(axes)
        handles += [Line2D([], [], marker="s", linestyle="", color=colour, markersize=8) for colour in colours]
        style.legend_above(figure, handles, labels + [f"{i + 1}: {machine}" for i, machine in enumerate(machines)])
    return style.Plot(
        f"cascade_{dtype}",
        f"Cascades, {dtype}",
        figure,
        "Application efficiency: the time of the fastest program at a point over the program's own, the geometric mean "
        "of the points. Each program has its machines in its own order, the best first; the squares below say which "
        "machine it is. P: the harmonic mean over the machines. A dash: not measured on all of them." + note,
        "Cascade plots of the efficiency of Katt and of its peers over machines.",
    )


def _programs(axes: list[Axes]) -> tuple[list, list[str]]:
    entries = {}
    for panel in axes:
        for handle, name in zip(*panel.get_legend_handles_labels(), strict=True):
            entries.setdefault(name, handle)
    return list(entries.values()), list(entries)


def navigation(found: Portability, size: Callable[[str], int]) -> style.Plot | None:
    """P over the share of code that the machines have in common, a point an operation.

    The navigation chart of Pennycook, Sewall, Jacobsen, Deakin & McIntosh-Smith, *Navigating performance, portability,
    and productivity*, Computing in Science & Engineering 23(5), 2021.
    """
    points = [(kind, p, convergence(p, size)) for kind, operations in found.operations.items() for p in operations]
    points = [(kind, p, share) for kind, p, share in points if OURS in p.portability and math.isfinite(share)]
    kinds = [kind for kind in (LIMITS, PEERS) if any(kind == other for other, _, _ in points)]
    if not points:
        return None
    names = list(dict.fromkeys(p.op for _, p, _ in points))
    colours = dict(zip(names, (matplotlib.colormaps["tab20"](i % 20) for i in range(len(names))), strict=True))
    dtypes = sort_dtypes({p.dtype for _, p, _ in points})
    with style.context():
        figure, axes = style.grid(len(kinds), len(kinds), 4.2)
        for panel, kind in zip(axes, kinds, strict=True):
            for other, operation, share in points:
                if kind == other:
                    forward = operation.pass_name == "forward"
                    p = operation.portability[OURS]
                    parts = panel.plot([share] * 2, [p.lo, p.hi], color=colours[operation.op], linewidth=1.0)
                    parts += panel.plot(share, p.mid, _look(operation.dtype)[1], color=colours[operation.op],
                                        markersize=6, markerfacecolor=None if forward else "white",
                                        clip_on=False)  # fmt: skip
                    figure.add_series(operation.op, matplotlib.colors.to_hex(colours[operation.op]), *parts)
                    said = interval_text(p.mid, p.lo, p.hi, lambda value: f"{value:.2f}")
                    figure.add_marks(panel, operation.op, [(share, p.mid)], [
                        (f"{operation.name} · {operation.dtype}", f"P {said}", f"{percent_text(share)} of the code in common")
                    ])  # fmt: skip
            panel.set_title("against the limits" if kind == LIMITS else "against the best program")
            panel.set_xlim(0, 1.02)
            panel.set_ylim(0, 1.02)
            panel.set_xlabel("code convergence: share of the code in common")
            panel.set_ylabel("performance portability P")
        handles = [Line2D([], [], color=colours[name], marker="o", linestyle="") for name in names]
        handles += [Line2D([], [], color="#333333", marker=_look(dtype)[1], linestyle="") for dtype in dtypes]
        handles += [Line2D([], [], color="#333333", marker="o", markerfacecolor="white", linestyle="")]
        style.legend_above(figure, handles, [*names, *dtypes, "hollow: not the forward pass"])
    return style.Plot(
        "navigation",
        "Navigation chart",
        figure,
        "To the right one source serves all machines, above it is fast on all of them; the upper right corner is the "
        "aim. Code convergence: lines that two machines have in common over all lines of both, the mean over pairs, of "
        "the project's files that the fastest variant and its baseline include.",
        "Navigation chart: performance portability over code convergence, a point for every operator, pass and dtype.",
    )
