"""results/README.md: which experiment was measured on which machine, what came out, and whether that still holds."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

from katt_report import schema
from katt_report.errors import InputError
from katt_report.published.fresh import Share, SourceTree, parts
from katt_report.published.portability import geometric_mean
from katt_report.published.source import DATA, Source, open_source
from katt_report.statistics import Interval
from katt_report.text import significant

MARKER = "<!-- Made by katt-report index: edits are lost. -->"
_FRESH = "fresh"
_INTRODUCTION = """# Results

Published measurements by experiment and machine. The folders hold the files (HDF5), figures and a README;
[experiments](../experiments) says what each asks and how to measure it again, `scripts/measure` does.

- The ratio is how many times as fast as **the best other program** of the same rounds Katt's fastest variant is, or as
  **naive** where no other program ran: paired, the geometric mean over the points, with the bounds that the 95 %
  intervals of all points give together ([docs/published_results.md](../docs/published_results.md#one-source-many-machines)).
- *fresh*: the row's code is still that of the source tree. It is stale when a file that its variant or its baseline
  is made of has other tokens now; rows of files older than that check are *unknown* and count as stale.
"""

_FIGURE = """![Share of each machine's limit](portability.png)

*How much of its measured limit Katt reaches on each machine (filled), and the best other program (hollow):
`katt-report portability results --figure results/portability.png`.*
"""


@dataclass(frozen=True)
class Entry:
    """One experiment on one machine. `ratio` is NaN where its files hold none, `over` says what it is a ratio to."""

    machine: str
    experiment: str
    ratio: Interval
    over: str
    rows: int
    freshness: Share
    commits: list[str]
    dates: list[str]


def entries(folder: Path, tree: SourceTree | None) -> list[Entry]:
    """Entries of every folder MACHINE/EXPERIMENT with result files, sorted."""
    places = {place: [path for path in sorted(place.iterdir()) if path.suffix in DATA]
              for place in sorted(folder.glob("*/*/"))}  # fmt: skip
    if not any(places.values()):
        raise InputError(folder, "no results", "a folder with result files in MACHINE/EXPERIMENT")
    known = parts([folder], tree) if tree else []
    shares = {(part.machine, part.experiment): part.share for part in known}
    return [_entry(place, [open_source(path) for path in paths], shares) for place, paths in places.items() if paths]


def _entry(place: Path, sources: list[Source], shares: dict[tuple[str, str], Share]) -> Entry:
    ratios, over = _ratios(sources)
    commits = [about.strip() for source in sources for about in source.about.get("commit", "").split(";")]
    days = [day.strip() for source in sources for day in source.about.get("date", "").split(";")]
    return Entry(
        place.parent.name, place.name, geometric_mean(ratios) if ratios else Interval(math.nan, math.nan, math.nan), over,
        sum(len(source.rows) for source in sources), shares.get((place.parent.name, place.name), Share()),
        sorted(dict.fromkeys(filter(None, commits))), sorted(dict.fromkeys(filter(None, days))),
    )  # fmt: skip


def _ratios(sources: list[Source]) -> tuple[list[Interval], str]:
    """Katt's fastest variant over the best peer at every point that has one, else over naive; "" without a ratio."""
    peers, naive = [], []
    for source in sources:
        cases: dict[tuple, dict] = {}
        for row in sorted(source.rows if source.results else [], key=lambda row: -row["time_s"]):
            if row["variant"] not in source.peers and not row["variant"].startswith(schema.BASELINE):
                cases[source.point_of(row)] = row
        for row in cases.values():
            beside = [ratio for peer in source.peers if _is_bounded(ratio := source.ratio(row, peer))]
            peers += [min(beside, key=lambda ratio: ratio.mid)] if beside else []
            naive.append(_bounds(row))
        models: dict[tuple, list[Interval]] = {}
        for row in source.summary:
            if "speedup_lo" in row and _is_bounded(ratio := _summary_bounds(source, row)):
                axes = (name for name in row if name not in ("peer", "rows") and schema.is_identity(name))
                models.setdefault(tuple(row[name] for name in axes), []).append(ratio)
        peers += [min(beside, key=lambda ratio: ratio.mid) for beside in models.values()]
    for ratios, over in ((peers, "best other"), (naive, schema.BASELINE)):
        bounded = [ratio for ratio in ratios if _is_bounded(ratio)]
        if bounded:
            return bounded, over
    return [], ""


def _bounds(row: dict) -> Interval:
    return Interval(*(float(row[name]) for name in ("speedup", "speedup_lo", "speedup_hi")))


def _summary_bounds(source: Source, row: dict) -> Interval:
    for name in ("speedup", "speedup_lo", "speedup_hi"):
        value = row.get(name, "nothing")
        if not isinstance(value, int | float):
            raise InputError(source.path, f"/summary with {name} = {value}", "numbers in speedup, its _lo and _hi")
    return _bounds(row)


def _is_bounded(ratio: Interval) -> bool:
    return ratio.mid > 0 and ratio.lo > 0 and math.isfinite(ratio.mid) and math.isfinite(ratio.hi)


def index(folder: Path, tree: SourceTree | None) -> str:
    """The text of the folder's README.md. What it says of freshness depends on `tree`, all else on the files alone."""
    found = entries(folder, tree)
    machines = sorted({entry.machine for entry in found})
    held = {(entry.machine, entry.experiment): entry for entry in found}
    lines = [
        MARKER,
        _INTRODUCTION,
        *([_FIGURE] if (folder / "portability.png").is_file() else []),
        _row(["", *machines]),
        "|---" * (1 + len(machines)) + "|",
    ]
    lines.append(_row([_FRESH, *(_fresh_rows([e for e in found if e.machine == machine]) for machine in machines)]))
    for experiment in sorted({entry.experiment for entry in found}):
        lines.append(_row([experiment, *(_cell(held.get((machine, experiment))) for machine in machines)]))
    lines += ["", "## All", "", _row(["machine", "experiment", "ratio", "over", "rows", _FRESH, "commit", "measured"]),
              "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for e in found:
        link = f"[{e.experiment}]({e.machine}/{e.experiment})"
        days = dict.fromkeys([*e.dates[:1], *e.dates[-1:]])
        lines.append(_row([e.machine, link, _ratio(e.ratio), e.over, str(e.rows), _fresh_text(e.freshness),
                           ", ".join(e.commits), " to ".join(days)]))  # fmt: skip
    return "\n".join(lines) + "\n"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _cell(entry: Entry | None) -> str:
    if entry is None:
        return ""
    ratio = entry.ratio
    text = f"{significant(ratio.mid, 2)}×" if math.isfinite(ratio.mid) else "files"
    return f"[{text}]({entry.machine}/{entry.experiment})" + (" naive" if entry.over == schema.BASELINE else "")


def _ratio(ratio: Interval) -> str:
    if not math.isfinite(ratio.mid):
        return ""
    return f"{significant(ratio.mid, 2)} ({significant(ratio.lo, 2)}–{significant(ratio.hi, 2)})"


def _fresh_rows(found: list[Entry]) -> str:
    rows = sum(entry.freshness.rows for entry in found)
    return f"{100 * sum(entry.freshness.fresh for entry in found) / rows:.0f} % of {rows} rows" if rows else ""


def _fresh_text(share: Share) -> str:
    """`fresh`, `25 % stale`; the column beside it has the date, since an age would change without any input."""
    return str(replace(share, days=None, commits=None)) if share.rows else ""


def without_freshness(text: str) -> str:
    """The text without the words that another commit of the sources changes: what the files alone make."""
    lines = text.splitlines()
    place = None
    for number, line in enumerate(lines):
        cells = line.split(" | ")
        if cells[0] == f"| {_FRESH}":
            lines[number] = f"| {_FRESH} |"
        elif place is None and _FRESH in cells:  # the heads of the columns
            place = cells.index(_FRESH)
        elif place and len(cells) > place and line.startswith("| "):
            lines[number] = " | ".join([*cells[:place], "", *cells[place + 1 :]])
    return "\n".join(lines)
