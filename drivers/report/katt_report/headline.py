"""The result in words, computed from the points."""

import math
from collections import Counter

import numpy as np

from katt_report import schema
from katt_report.figures.memory import exponents, growth_text
from katt_report.figures.paired import paired_lines
from katt_report.groups import Group, groups
from katt_report.load import Results
from katt_report.pages.machines import machine_lines
from katt_report.points import Points
from katt_report.statistics import Interval
from katt_report.text import bytes_text, error_text, list_text, percent_text, ratio_text

# A range says more than a list of many points at the largest x.
_MOST_SENTENCES = 2


def headline(results: Results) -> list[tuple[str, list[str]]]:
    """Sentences for each group: (the group's title, its sentences). `N^1.00` stands for a power.

    With several machines, their comparison comes first.
    """
    machines = machine_lines(results)
    return [*([("machines", machines)] if machines else []),
            *((group.title, sentences(group)) for group in groups(results))]  # fmt: skip


def sentences(group: Group) -> list[str]:
    """The results of one group: speed and memory, exponents, errors, ceilings, rows that did not
    run."""
    lines = []
    for variant in group.variants:
        if variant != schema.BASELINE:
            lines += [line for dtype in group.dtypes for line in _compared(group, variant, dtype)]
    lines += [*paired_lines(group), *_growth(group), _errors(group), _ceilings(group), _statuses(group)]
    return [line for line in lines if line]


def _compared(group: Group, variant: str, dtype: str) -> list[str]:
    rows = group.best.where(np.isfinite(group.best["speedup"]), variant=variant, dtype=dtype)
    if not len(rows):
        return []
    where = f"in {dtype}"
    if group.x:
        largest = int(rows[group.x].max())
        rows = rows.where(**{group.x: largest})
        where = f"at {group.symbol} = {largest} in {dtype}"
    if len(rows) <= _MOST_SENTENCES:
        facets = [f" ({_facet(group, row)})" if group.facets else "" for row in rows.rows()]
        return [
            f"{variant} is {speed_text(_interval(row))} {where}{facet}{_memory(group, row)}."
            for row, facet in zip(rows.rows(), facets, strict=True)
        ]
    low, high = rows.row(int(np.argmin(rows["speedup"]))), rows.row(int(np.argmax(rows["speedup"])))
    middle = float(np.exp(np.mean(np.log(rows["speedup"]))))
    return [
        f"{variant} runs at {ratio_text(low['speedup'])}× to {ratio_text(high['speedup'])}× the speed of "
        f"{schema.BASELINE} {where}, {ratio_text(middle)}× in the geometric mean of {len(rows)} points "
        f"(least: {_facet(group, low)}; most: {_facet(group, high)}){_memory_range(group, rows)}."
    ]


def _facet(group: Group, row: dict) -> str:
    values = tuple(row[name] for name in group.facets)
    return group.short_text(values) or group.facet_text(values)


def _interval(row: dict) -> Interval:
    low, high = row["speedup_lo"], row["speedup_hi"]
    return Interval(row["speedup"], low if math.isfinite(low) else 0.0, high if math.isfinite(high) else math.inf)


def speed_text(speedup: Interval) -> str:
    """`3.1× (95 % interval 2.9–3.3) faster than naive`, slower, or indistinguishable, as the interval has it."""
    base = schema.BASELINE
    if speedup.lo <= 0 or math.isinf(speedup.hi):
        return f"{ratio_text(speedup.mid)}× as fast as {base} (no interval)"
    if speedup.lo > 1:
        bounds = f"{ratio_text(speedup.lo)}–{ratio_text(speedup.hi)}"
        return f"{ratio_text(speedup.mid)}× (95 % interval {bounds}) faster than {base}"
    if speedup.hi < 1:
        bounds = f"{ratio_text(1 / speedup.hi)}–{ratio_text(1 / speedup.lo)}"
        return f"{ratio_text(1 / speedup.mid)}× (95 % interval {bounds}) slower than {base}"
    bounds = f"{ratio_text(speedup.lo)}–{ratio_text(speedup.hi)}"
    return f"as fast as {base} within the measurement ({ratio_text(speedup.mid)}×, 95 % interval {bounds})"


def baseline_of(points: Points, row: dict) -> dict | None:
    """The measured baseline row at the same point as `row`, or None."""
    names = [n for n in [*points.identity, "source"] if n not in ("variant", *schema.TILES)]
    found = points.where(variant=schema.BASELINE, status="ok").match(names, [row[name] for name in names])
    return found.row(0) if len(found) else None


def _saving(group: Group, row: dict) -> tuple[float, float, float] | None:
    base = baseline_of(group.points, row)
    if not base or not base["total_bytes"] > 0 or not row["total_bytes"] > 0:
        return None
    return 1.0 - row["total_bytes"] / base["total_bytes"], row["total_bytes"], base["total_bytes"]


def _memory(group: Group, row: dict) -> str:
    saving = _saving(group, row)
    if not saving:
        return ""
    fraction, mine, base = saving
    sizes = f"({bytes_text(mine)} against {bytes_text(base)} in total)"
    if abs(fraction) < 0.005:
        return f" and needs as much memory {sizes}"
    return f" and needs {percent_text(abs(fraction))} {'less' if fraction > 0 else 'more'} memory {sizes}"


def _memory_range(group: Group, rows: Points) -> str:
    savings = [saving[0] for saving in (_saving(group, row) for row in rows.rows()) if saving]
    if not savings:
        return ""
    low, high = percent_text(min(savings)), percent_text(max(savings))
    if min(savings) >= 0:
        return f", with {low} less memory" if low == high else f", with {low} to {high} less memory"
    return f", with {percent_text(1 - max(savings))} to {percent_text(1 - min(savings))} of its memory"


def _growth(group: Group) -> list[str]:
    fits: dict[str, list] = {}
    for key, fit in exponents(group).items():
        if fit:
            fits.setdefault(key[-1], []).append(fit)
    if not fits:
        return []
    names = [name for name in group.variants if name in fits]
    growing = {name: [fit for fit in fits[name] if fit.exponent] for name in names}
    parts = []
    for name in [name for name in names if growing[name]]:
        ends = [growth_text(pick(growing[name], key=lambda fit: fit.exponent), group.symbol) for pick in (min, max)]
        parts.append(f"{' to '.join(dict.fromkeys(ends))} for {name}")
    every = [fit for name in names for fit in fits[name]]
    where = f"{group.symbol} = {min(fit.first for fit in every):.0f} … {max(fit.last for fit in every):.0f}"
    lines = [f"Measured workspace grows as {list_text(parts)} (fitted within {where})."] if parts else []
    still = {name: list(dict.fromkeys(growth_text(fit, group.symbol) for fit in fits[name])) for name in names
             if not growing[name]}  # fmt: skip
    none = [name for name, texts in still.items() if texts == ["none"]]
    if none:
        lines.append(f"No workspace: {list_text(none)}.")
    same = [name for name in still if name not in none]
    if same:
        lines.append(f"Workspace that does not grow with {group.symbol}: {list_text(same)}.")
    return lines


def _errors(group: Group) -> str:
    parts = []
    rows = group.points.ok
    for dtype in group.dtypes:
        worst = []
        for variant in group.variants:
            values = rows.where(dtype=dtype, variant=variant)["max_abs_err"]
            if np.isfinite(values).any():
                worst.append(f"{error_text(np.nanmax(values))} {variant}")
        if worst:
            parts.append(f"{dtype} {', '.join(worst)}")
    return f"Largest error against float64: {'; '.join(parts)}." if parts else ""


def _ceilings(group: Group) -> str:
    parts = []
    note = ""
    for dtype in group.dtypes:
        rows = group.best.where(np.isfinite(group.best["ceiling_fraction"]), dtype=dtype)
        peaks = rows.where(np.isin(rows["ceiling"], ["fma_f32", "avx512_bf16", "amx_bf16", "mma_bf16"]))
        if len(peaks) and peaks["ceiling_fraction"].max() > 1.1:
            note = " No kernel can be above its ceiling: the ceilings were disturbed when they were measured."
        if len(rows) and rows["ceiling_fraction"].max() > 0:
            best = rows.row(int(np.argmax(rows["ceiling_fraction"])))
            share = f"{percent_text(best['ceiling_fraction'])} of {best['ceiling']}"
            parts.append(f"{dtype} {best['variant']} {share}{group.where_text(best)}")
    return f"Nearest to a measured ceiling: {'; '.join(parts)}.{note}" if parts else ""


def _statuses(group: Group) -> str:
    counts = Counter(group.points["status"].tolist())
    total = len(group.points)
    line = f"{total} point{'s'[: total != 1]}: " + ", ".join(
        f"{counts[name]} {name}" for name in sorted(counts, key=lambda n: (n != "ok", n))
    )
    others = group.points.where(group.points["status"] != "ok")
    for variant, status in others.combinations(["variant", "status"]):
        missing = others.where(variant=variant, status=status)
        where = f" at {group.symbol} = {list_text([str(x) for x in missing.values(group.x)])}" if group.x else ""
        reasons = list(dict.fromkeys(missing["reason"].tolist()))
        first = f"{'for instance ' if len(reasons) > 1 else ''}{reasons[0] or 'no reason given'}"
        line += f"; {variant} {status}{where} ({first})"
    return line + "."


def cautions(results: Results) -> list[str]:
    """Facts that a reader should know about the runs before believing them."""
    lines = []
    for (source, run), about in results.runs.items():
        name = f"{source} {run}" if len(results.runs) > 1 else "The run"
        if about.get("status") in ("running", "interrupted"):
            lines.append(f"{name} did not finish (status {about['status']}): points are missing.")
        if about.get("dirty"):
            lines.append(
                f"{name} was built from a tree with uncommitted changes on {str(about.get('commit', ''))[:12]}."
            )
        if str(about.get("build_type", "Release")).lower() not in ("release", "relwithdebinfo"):
            lines.append(f"{name} is a {about['build_type']} build: its times say nothing about speed.")
        load, cores = about.get("load_average"), about.get("cores")
        if isinstance(load, float) and isinstance(cores, int) and load > 0.5 * cores:
            lines.append(f"{name} started at a load average of {load:.1f} on {cores} cores: trust ratios, not times.")
    over = int(np.sum(results.points["ceiling_fraction"] > 1.05))
    if over:
        lines.append(
            f"{over} point{'s'[: over != 1]} above the ceiling: the machine was busier while the ceilings were "
            "measured, or the kernel uses units, caches or streaming stores that the named ceiling does not."
        )
    notes = [note for note in results.points["note"] if note]
    lines += [f"{notes.count(note)} rows say: {note}." for note in dict.fromkeys(notes)]
    if results.replaced:
        lines.append(f"{results.replaced} earlier rows were measured again later; the last row of a point counts.")
    return lines
