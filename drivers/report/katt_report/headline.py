"""The result in words, computed from the points."""

import math
from collections import Counter

import numpy as np

from katt_report import schema
from katt_report.derived.growth import exponents, growth_text
from katt_report.derived.paired import paired_lines
from katt_report.groups import Group, groups
from katt_report.limits import ARITHMETIC, believed, checked
from katt_report.load import Results
from katt_report.pages.machines import machine_lines
from katt_report.points import Points
from katt_report.ratios import fastest
from katt_report.statistics import Interval, geometric_mean
from katt_report.text import bytes_text, error_text, list_text, percent_text, ratio_text

_MOST_FAILURES = 6
_WRONG = {
    schema.FAILED: "FAILED: a wrong result, or none.",
    schema.SUSPECT: "SUSPECT: measured, but too good to be true. No figure, ratio or mean counts {them}.",
}


def headline(results: Results, found: list[Group] | None = None) -> list[tuple[str, list[str]]]:
    """Sentences for each group: (the group's title, its sentences), the first of them the answer. `N^1.00` stands for a
    power.

    Rows that failed come first, under the title `failed`, then those that are suspect, under that one, then, with
    several machines, their comparison. `found` are the groups, where they are known.
    """
    machines = machine_lines(results)
    wrong = [(status, lines) for status in schema.WRONG if (lines := warnings(results, status))]
    return [*wrong, *([("machines", machines)] if machines else []),
            *((group.title, sentences(group)) for group in found or groups(results))]  # fmt: skip


def warnings(results: Results, status: str) -> list[str]:
    """The rows that failed (a wrong result, or none) or are suspect: their number, then each with its reason."""
    rows = results.points.where(status=status)
    if not len(rows):
        return []
    what = _WRONG[status].format(them="it" if len(rows) == 1 else "them")
    lines = [f"{len(rows)} of {len(results.points)} rows {what}"]
    for row in list(rows.rows())[:_MOST_FAILURES]:
        size = f" at N = {row['seq_q']}" if row["seq_q"] else ""
        tile = f", tile {row['tile_q']}x{row['tile_kv']}" if row["tile_q"] else ""
        where = f"{row['op']} {row['pass']} {row['variant']} {row['dtype']}{size}{tile}"
        lines.append(f"{where}{', ' + row['label'] if row['label'] else ''}: {row['reason'] or 'no reason given'}.")
    more = len(rows) - _MOST_FAILURES
    return lines + ([f"{more} more in the table."] if more > 0 else [])


def sentences(group: Group) -> list[str]:
    """The results of one group, the answer first: speed, memory, errors, ceilings, rows that did not run."""
    lines = [answer(group), _by_dtype(group), *paired_lines(group), _memory(group), _errors(group), _ceilings(group), _statuses(group)]
    return [line for line in lines if line]


def answer(group: Group) -> str:
    """One sentence: the speed of Katt's fastest variant over the baseline's, and over that of the fastest peer; of the
    fastest other where Katt has no row."""
    rows = fastest_rows(group)
    names = list(dict.fromkeys(rows["variant"].tolist()))
    ours = _are_ours(group, rows)
    versus = peer_part(group, rows if ours.any() else rows.where(ours))
    if ours.any() or (len(rows) and not versus):
        rows, place = _at_largest(group, rows)
        text = speed_text(rows, "speedup", group.baseline)
        several = "Katt's fastest variant" if ours.any() else "the fastest other" if place else "The fastest other"
        names = names if len(names) == 1 else [several]
        text = f"{names[0]} is {text}"
        place = f"{_first_upper(place)}, " if place else ""
        return f"{place}{text}{', and ' + versus if versus else ''}."
    if versus:
        _, place = _at_largest(group, group.against)
        return f"{_first_upper(place)}{', ' if place else ''}Katt's fastest variant is {versus}."
    if not len(group.best):
        return "Nothing was measured."
    return f"No row was measured beside {group.baseline}: there is no speedup."


def overall(found: list[Group]) -> str:
    """One sentence for several groups: the range of their answers, with the group at either end."""
    parts = []
    base = found[0].baseline if found else schema.BASELINE
    for name, chosen in ((base, _mean_speedup), ("the best peer", _mean_of_peers)):
        means = sorted((mean, group.title) for group in found if (mean := chosen(group)))
        if len(means) == 1:
            parts.append(f"{ratio_text(means[0][0])}× as fast as {name} in {means[0][1]}")
        elif means:
            (low, least), (high, most) = means[0], means[-1]
            parts.append(f"{ratio_text(low)}× ({least}) to {ratio_text(high)}× ({most}) as fast as {name} in "
                         f"{len(means)} groups")  # fmt: skip
    return f"Katt's fastest variant is {', and '.join(parts)}." if parts else "No row was measured beside another."


def _mean_speedup(group: Group) -> float | None:
    rows = fastest_rows(group)
    return geometric_mean(_at_largest(group, rows)[0]["speedup"]) if _are_ours(group, rows).any() else None


def _mean_of_peers(group: Group) -> float | None:
    rows = _leading(group, fastest_rows(group))
    return None if rows is None else geometric_mean(rows["ratio"])


def _first_upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def fastest_rows(group: Group) -> Points:
    """The fastest of Katt's variants at each point, with a speedup; of all others where Katt has none."""
    points = group.best
    known = np.isfinite(points["speedup"]) & (points["variant"] != group.baseline)
    ours = known & _are_ours(group, points)
    rows = list(fastest(points, ours if ours.any() else known).values())
    return Points({name: np.array([row[name] for row in rows], dtype=column.dtype) for name, column in
                   points.columns.items()})  # fmt: skip


def _are_ours(group: Group, points: Points) -> np.ndarray:
    return ~np.isin(points["variant"], [*group.peers, schema.BASELINE])


def peer_part(group: Group, beside: Points) -> str:
    """The ratio to the fastest peer of each point, at the x of the sentence that it is a part of (the largest of
    `beside`), else with its own; empty without a peer, or where the baseline is the reader's choice."""
    rows = _leading(group, beside)
    if rows is None:
        return ""
    peers = rows.values("variant")
    name = peers[0] if len(peers) == 1 else "the best peer"
    elsewhere = group.x and len(beside) and rows[group.x].max() != beside[group.x].max()
    return speed_text(rows, "ratio", name) + (f" {_at_largest(group, rows)[1]}" if elsewhere else "")


def _leading(group: Group, beside: Points) -> Points | None:
    if group.against is None or group.baseline != schema.BASELINE:
        return None
    rows = group.against.where(group.against["leads"])
    same = rows.where(rows[group.x] == beside[group.x].max()) if group.x and len(beside) else rows
    return _at_largest(group, same if len(same) else rows)[0]


def _at_largest(group: Group, rows: Points) -> tuple[Points, str]:
    """The rows at the largest x and its name; all rows where there is no x."""
    if not group.x:
        return rows, ""
    largest = int(rows[group.x].max())
    return rows.where(**{group.x: largest}), f"at {group.symbol} = {largest}"


def speed_text(rows: Points, name: str, base: str) -> str:
    """`3.1× as fast as naive (95 % interval 2.9–3.3)`; of several rows the geometric mean, its interval and the range.

    Where the interval of a row holds 1, the words say so.
    """
    value = _interval(rows, name)
    known = value.lo > 0 and math.isfinite(value.hi)
    bounds = f"95 % interval {ratio_text(value.lo)}–{ratio_text(value.hi)}" if known else "no interval"
    if len(rows) > 1:
        low, high = float(rows[name].min()), float(rows[name].max())
        span = f"{ratio_text(low)}× to {ratio_text(high)}× over {len(rows)} points"
        return f"{ratio_text(value.mid)}× as fast as {base} ({bounds}; {span})"
    if value.lo <= 1 <= value.hi and known:
        return f"as fast as {base} within the measurement ({ratio_text(value.mid)}×, {bounds})"
    return f"{ratio_text(value.mid)}× as fast as {base} ({bounds})"


def _interval(rows: Points, name: str) -> Interval:
    """The geometric mean of a ratio, with its 95 % interval: the rows' errors, in logarithms, are independent."""
    middle = np.log(rows[name])
    with np.errstate(divide="ignore", invalid="ignore"):
        below, above = middle - np.log(rows[f"{name}_lo"]), np.log(rows[f"{name}_hi"]) - middle
    mean = float(np.mean(middle))
    sides = (np.where(np.isfinite(side), side, np.inf) for side in (below, above))
    half = [float(np.sqrt(np.sum(side**2))) / len(rows) for side in sides]
    return Interval(math.exp(mean), math.exp(mean - half[0]), math.exp(mean + half[1]) if half[1] < 700 else math.inf)


def _by_dtype(group: Group) -> str:
    """The answer by dtype, where there are several."""
    rows = fastest_rows(group)
    if len(group.dtypes) < 2 or not len(rows):
        return ""
    rows, _ = _at_largest(group, rows)
    parts = []
    for dtype in group.dtypes:
        values = rows.where(dtype=dtype)["speedup"]
        if len(values):
            span = f" ({ratio_text(values.min())}× to {ratio_text(values.max())}×)" if len(values) > 1 else ""
            parts.append(f"{dtype} {ratio_text(geometric_mean(values))}×{span}")
    return f"By dtype, over {group.baseline}: {'; '.join(parts)}."


def details(group: Group) -> list[str]:
    """A sentence for every variant and dtype."""
    lines = []
    for variant in group.compared:
        for dtype in group.dtypes:
            rows = group.best.where(np.isfinite(group.best["speedup"]), variant=variant, dtype=dtype)
            if len(rows):
                rows, place = _at_largest(group, rows)
                share = _share(group, rows)
                where = f"{place} in {dtype}" if place else f"in {dtype}"
                speed = f"{variant} is {speed_text(rows, 'speedup', group.baseline)}"
                lines.append(f"{speed} {where}{', with ' + share if share else ''}.")
    return lines


def baseline_of(points: Points, row: dict, baseline: str = schema.BASELINE) -> dict | None:
    """The measured row of the baseline at the same point as `row`, or None."""
    names = [n for n in [*points.identity, "source"] if n not in ("variant", *schema.TILES)]
    found = points.where(variant=baseline, status="ok").match(names, [row[name] for name in names])
    return found.row(0) if len(found) else None


def share_text(share: float) -> str:
    """A share of something: `16 %`, `1/256`."""
    return f"1/{round(1 / share)}" if 0 < share < 0.02 else percent_text(share)


def _share(group: Group, rows: Points) -> str:
    """How much of the baseline's memory the rows need: `16 % of naive's memory`; empty where nobody knows."""
    pairs = [(row["total_bytes"], base["total_bytes"]) for row, base in
             ((row, baseline_of(group.points, row, group.baseline)) for row in rows.rows())
             if base and base["total_bytes"] > 0 and row["total_bytes"] > 0]  # fmt: skip
    if not pairs:
        return ""
    shares = sorted(mine / base for mine, base in pairs)
    if abs(shares[0] - 1) < 0.005 and abs(shares[-1] - 1) < 0.005:
        return f"as much memory as {group.baseline}"
    ends = dict.fromkeys([share_text(shares[0]), share_text(shares[-1])])
    sizes = f" ({bytes_text(pairs[0][0])} against {bytes_text(pairs[0][1])})" if len(pairs) == 1 else ""
    return f"{' to '.join(ends)} of {group.baseline}'s memory{sizes}"


def _memory(group: Group) -> str:
    """The fastest variants' share of the baseline's memory, and how workspace grows."""
    rows = fastest_rows(group)
    need = _share(group, _at_largest(group, rows)[0]) if len(rows) else ""
    parts = [text for text in (f"needs {need}" if need else "", _growth(group)) if text]
    return f"{_first_upper('; '.join(parts))}." if parts else ""


def _growth(group: Group) -> str:
    fits: dict[str, list] = {}
    for key, fit in exponents(group).items():
        if fit:
            fits.setdefault(key[-1], []).append(fit)
    parts = []
    for name in [name for name in group.variants if name in fits]:
        growing = sorted((fit for fit in fits[name] if fit.exponent), key=lambda fit: fit.exponent)
        if growing:
            ends = dict.fromkeys(growth_text(fit, group.symbol) for fit in (growing[0], growing[-1]))
            parts.append(f"{name} {' to '.join(ends)}")
        else:
            most = max(fit.factor for fit in fits[name])
            parts.append(f"{name} {f'at most {bytes_text(most)} at every {group.symbol}' if most else 'none'}")
    return f"workspace: {', '.join(parts)}" if parts else ""


def _errors(group: Group) -> str:
    parts = []
    rows = group.points.ok
    for dtype in group.dtypes:
        worst = []
        for variant in group.variants:
            values = rows.where(dtype=dtype, variant=variant)["max_abs_err"]
            if np.isfinite(values).any():
                worst.append((float(np.nanmax(values)), variant))
        # The largest of all others beside the baseline's.
        base = [pair for pair in worst if pair[1] == group.baseline]
        shown = sorted((pair for pair in worst if pair not in base), reverse=True)[:1] + base
        if shown:
            parts.append(f"{dtype} {', '.join(f'{error_text(value)} {name}' for value, name in shown)}")
    return f"Largest error against float64: {'; '.join(parts)}." if parts else ""


def _ceilings(group: Group) -> str:
    parts = []
    shares = believed(group.best, group.ceilings)
    for dtype in group.dtypes:
        chosen = np.isfinite(shares) & (shares > 0) & (group.best["dtype"] == dtype)
        if chosen.any():
            best = group.best.row(int(np.argmax(np.where(chosen, shares, -1.0))))
            share = f"{percent_text(best['ceiling_fraction'])} of {best['ceiling']}"
            parts.append(f"{dtype} {best['variant']} {share}{group.where_text(best)}")
    return f"Nearest to a measured ceiling: {'; '.join(parts)}." if parts else ""


def _statuses(group: Group) -> str:
    counts = Counter(group.points["status"].tolist())
    total = len(group.points)
    line = f"{total} row{'s'[: total != 1]}: " + ", ".join(
        f"{counts[name]} {name}" for name in sorted(counts, key=lambda n: (n != "ok", n))
    )
    others = group.points.where(status="skipped")
    parts = []
    for (variant,) in others.combinations(["variant"]):
        missing = others.where(variant=variant)
        some = group.x and len(group.points.where(variant=variant, status="ok"))
        where = f" at {group.symbol} = {list_text([str(x) for x in missing.values(group.x)])}" if some else ""
        reasons = list(dict.fromkeys(missing["reason"].tolist()))
        reason = f"{'for instance ' if len(reasons) > 1 else ''}{reasons[0] or 'no reason given'}"
        parts.append(f"{variant}{where} ({reason})")
    return f"{line}; skipped: {'; '.join(parts)}." if parts else f"{line}."


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
    lines += _disturbed(results)
    notes = [note for note in results.points["note"] if note]
    lines += [f"{notes.count(note)} rows say: {note}." for note in dict.fromkeys(notes)]
    if results.replaced:
        rows = "row was" if results.replaced == 1 else "rows were"
        lines.append(f"{results.replaced} earlier {rows} measured again later; the last row of a point counts.")
    return lines


def _disturbed(results: Results) -> list[str]:
    """Ceilings that contradict others, and rows above theirs."""
    lines = []
    ceilings = checked(results.ceilings)
    names = list(dict.fromkeys(new.name for new, old in zip(ceilings, results.ceilings, strict=True)
                               if math.isnan(new.value) and not math.isnan(old.value)))  # fmt: skip
    if names:
        lines.append(f"{list_text(names)} {'lie' if names[1:] else 'lies'} below a ceiling that cannot be the higher one: "
                     "disturbed while it was measured, and shown as a dash.")  # fmt: skip
    points = results.points.ok
    above = np.isfinite(points["ceiling_fraction"]) & np.isnan(believed(points, ceilings))
    units = above & np.isin(points["ceiling"], ARITHMETIC)
    for mask, why in ((units, "an arithmetic ceiling was disturbed, or the kernel uses other units"),
                      (above & ~units, "data came from a nearer cache, or streaming stores moved less")):  # fmt: skip
        count = int(mask.sum())
        if count:
            lines.append(f"{count} row{'s'[: count != 1]} above the ceiling ({why}): no share of it is shown.")
    return lines
