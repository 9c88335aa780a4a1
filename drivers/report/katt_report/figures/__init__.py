"""The figures of a report: each module draws one kind, each function takes a Group.

A function returns a Plot, or None when the group holds no data for it.
"""

from dataclasses import replace

from katt_report import schema
from katt_report.figures.bars import memory_bars, peer_bars, speedup_bars, throughput_bars
from katt_report.figures.ceilings import ceiling_shares, roofline
from katt_report.figures.curves import peers, speedup, throughput, time
from katt_report.figures.errors import errors
from katt_report.figures.memory import memory
from katt_report.figures.paired import paired
from katt_report.figures.shares import shares
from katt_report.figures.style import Plot
from katt_report.figures.tiles import tiles
from katt_report.groups import Group

__all__ = [
    "Plot", "ceiling_shares", "draw_all", "errors", "memory", "memory_bars", "paired", "peer_bars", "peers", "roofline",
    "shares", "speedup", "speedup_bars", "throughput", "throughput_bars", "tiles", "time",
]  # fmt: skip


def draw_all(group: Group) -> list[Plot]:
    """Every figure that the group has data for, in the order of the page. With a baseline of the reader's choice all
    ratios are against that one."""
    if group.x:
        over = [peers, speedup, throughput, time, memory, tiles]
    elif len(group.panels()) > 1:
        over = [peer_bars, speedup_bars, throughput_bars, memory_bars, tiles]
    else:
        # One point: bars would repeat what the sentences say, unless there are no tiles to show either.
        over = [tiles]
    if group.baseline != schema.BASELINE:
        group = replace(group, against=None)
    plots = [plot for plot in (draw(group) for draw in over) if plot]
    if not plots and not group.x:
        over = [peer_bars, speedup_bars, throughput_bars, memory_bars]
        plots = [plot for plot in (draw(group) for draw in over) if plot]
    return plots + [plot for plot in (draw(group) for draw in (paired, shares, roofline, ceiling_shares, errors)) if plot]
