"""The page of logs: stacked bars of the phases by operator, and a table with the work of each."""

import math

import numpy as np
from matplotlib.ticker import FuncFormatter, MaxNLocator

from katt_report.figures import style
from katt_report.figures.shares import REST_IS, TITLE, draw_bars, looks_of, rest_of, short_name
from katt_report.load import Part, Profile
from katt_report.logs import Log
from katt_report.pages.markup import bullets, escape, page, table
from katt_report.pages.output import FORMATS, add_figure
from katt_report.pages.shares_table import work_cells
from katt_report.text import list_text, percent_text, seconds_text, significant

_HEADS = [("phase", ""), ("operator", ""), ("calls", "n"), ("time", "n"), ("share", "n"), ("FLOPs", "n"),
          ("traffic", "n"), ("of ceiling", "n")]  # fmt: skip
_MOST_TOLD = 1000
"""Steps of a curve that tell their value: all of a short training, of a longer one evenly spread."""
_UNIT = {"train": "a step", "generate": "an answer"}


def log_report(logs: list[Log], formats: tuple[str, ...] = FORMATS) -> dict[str, bytes]:
    """The files of a report on logs by name."""
    files, body = {}, []
    for index, log in enumerate(logs):
        which = "" if len(logs) == 1 else f"_{index + 1}"
        body.append(f"<section><h2>{escape(log.name)}</h2>" + bullets(log_lines(log), "headline"))
        plot = curves(log, f"loss{which}")
        if plot:
            body.append(f"<h3>{plot.title}</h3>" + add_figure(plot, files, formats))
        if log.profile:
            plot = phases(log, f"phases{which}")
            body.append(f"<h3>{TITLE}</h3>" + (add_figure(plot, files, formats) if plot else ""))
            body.append(profile_table(log.profile))
        rows = [[escape(key), escape(value)] for key, value in log.about.items()]
        body.append("<h3>About</h3>" + table([("", ""), ("", "")], rows) + "</section>")
    title = f"Katt: {list_text(list(dict.fromkeys('katt ' + log.command for log in logs)))}"
    under = " · ".join(dict.fromkeys(str(log.about.get("device", "")) for log in logs))
    files["report.html"] = page(title, under, "\n".join(body)).encode()
    return files


# Curves over the steps: the column, the label of its axis, its unit's text.
_CURVES = (("loss", "loss", None), ("grad_norm", "norm of the gradient", None), ("lr", "learning rate", None),
           ("time_s", "time of a step", seconds_text))  # fmt: skip


def curves(log: Log, name: str) -> style.Plot | None:
    """The loss over the steps of a training run, with the norm of the gradient, the rate and the time of a step.

    A column that never changes has no panel; None for a log without a loss.
    """
    loss = log.columns.get("loss")
    if loss is None or not np.isfinite(loss).any():
        return None
    shown = [(column, title, text) for column, title, text in _CURVES
             if column == "loss" or len(np.unique(log.columns.get(column, ()))) > 1]  # fmt: skip
    with style.context():
        figure, axes = style.grid(len(shown), 2, 2.9)
        for panel, (column, title, text) in zip(axes, shown, strict=True):
            values = log.columns[column]
            steps = np.arange(1, len(values) + 1)
            panel.plot(steps, values, color="#0072B2", linewidth=1.0 if len(values) > 100 else 1.5,
                       marker="o" if len(values) < 30 else "", markersize=4)  # fmt: skip
            told = slice(None, None, math.ceil(len(values) / _MOST_TOLD))
            words = [(f"step {step}", f"{title} {text(value) if text else format(value, '.4g')}", log.name)
                     for step, value in zip(steps[told].tolist(), values[told].tolist(), strict=True)]  # fmt: skip
            figure.add_marks(panel, None, zip(steps[told], values[told], strict=True), words)
            if column != "loss":
                panel.set_ylim(0.0, 1.12 * style.top_of(values))
            panel.set_xlabel("step")
            panel.set_ylabel(title)
            panel.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            if text:
                ticks = FuncFormatter(lambda value, _, text=text: text(value, 2) if value else "0")
                panel.yaxis.set_major_formatter(ticks)
    return style.Plot(
        name,
        "Loss",
        figure,
        "The loss of every step as the log has it, without smoothing, and what belongs to it. The other axes start at "
        "zero and follow the bulk of the values: a single outlier may leave them.",
        f"Line charts over the steps: {list_text([title for _, title, _ in shown])}.",
    )


def log_lines(log: Log) -> list[str]:
    """The content of a log in words."""
    lines = []
    losses = log.columns.get("loss")
    if losses is not None and len(losses):
        least = int(np.nanargmin(losses)) if np.isfinite(losses).any() else len(losses) - 1
        lowest = "" if least == len(losses) - 1 else f", lowest {losses[least]:.4g} at step {least + 1}"
        lines.append(f"{len(losses)} steps: loss {losses[0]:.4g} to {losses[-1]:.4g}{lowest}.")
        lost = int(np.sum(~np.isfinite(losses)))
        if lost:
            lines.append(f"{lost} step{'s'[: lost != 1]} with a loss that is no number.")
    if not log.profile:
        return [*lines, f"{log.name} holds no profile: katt {log.command} --profile takes one."]
    unit = _UNIT.get(log.command, "a run")
    for part in log.profile.outermost:
        inside = sorted(log.profile.inside(part), key=lambda one: -one.time_s)[:3]
        most = [f"{short_name(one.name)} {percent_text(one.time_s / part.time_s)}" for one in inside]
        share = percent_text(part.time_s / log.profile.time_s)
        inner = f"; of it {list_text(most)}" if most else ""
        lines.append(f"{part.name}: {seconds_text(part.time_s)} of {unit}, {share}{inner}.")
    return lines


def phases(log: Log, name: str) -> style.Plot | None:
    """A bar a phase, in the parts of its operators, relative to the whole; None without a phase that took time."""
    profile = log.profile
    inside = {part.name: profile.phase(part) for part in profile.outermost if part.time_s > 0}
    if not inside:
        return None
    bars = [("", phase, parts, parts.time_s / profile.time_s) for phase, parts in inside.items()]
    with style.context():
        drawing, axes = style.grid(1, 1, 1.2 + 0.5 * len(bars))
        draw_bars(axes[0], bars, looks_of(list(inside.values())))
        axes[0].set_xlabel(f"time / whole time of {_UNIT.get(log.command, 'run')}")
        style.legend_of_figure(drawing, axes)
    return style.Plot(
        name,
        TITLE,
        drawing,
        f"Time of every phase in parts of the whole ({seconds_text(profile.time_s)}, the mean of {profile.runs}); the "
        "percentages are shares of the phase. Measured with Kokkos' profiling callbacks, which wait for every launch; "
        f"{REST_IS}.",
        "A stacked bar of operators for each phase.",
    )


def profile_table(profile: Profile) -> str:
    """Every phase and its parts, the largest first."""
    lines, apart = [], set()
    for part in profile.outermost:
        parts = sorted(profile.inside(part), key=lambda one: -one.time_s)
        work = {"flops": sum(one.flops for one in parts), "bytes": sum(one.bytes for one in parts)}
        apart.add(len(lines))
        whole = Part(part.name, 0, part.calls, part.time_s, **work)
        lines.append([f"<b>{escape(part.name)}</b>", "", *_cells(whole, profile)])
        lines += [["", escape(short_name(one.name)), *_cells(one, profile)] for one in parts]
        if parts:
            lines.append(["", "rest", *_cells(rest_of(profile.phase(part)), profile)])
    apart.add(len(lines))
    lines.append(["rest", "", *_cells(rest_of(profile), profile)])
    return table(_HEADS, lines, apart, nested=True)


def _cells(part: Part, profile: Profile) -> list[str]:
    return [
        significant(part.calls, 0) if part.calls else "",
        escape(seconds_text(part.time_s)),
        escape(percent_text(part.time_s / profile.time_s)),
        *work_cells(part),
    ]
