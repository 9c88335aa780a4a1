"""Fresh or not: whether the code that a row was measured with is still that of a source tree.

A row names its code by the column `code`; the dataset `/code/DIGEST` of its file holds the project's files that the
code is made of, each with the hash of its tokens (docs/schema.md). So the check needs a file and a tree, no build.
"""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from katt_report import schema
from katt_report.errors import InputError
from katt_report.isolation import in_child
from katt_report.load import Results, about_peers, merge, moment, opened, plain, read
from katt_report.published.cpp_tokens import token_hash
from katt_report.published.machine import machine_name
from katt_report.published.source import DATA, Source, open_source

FRESH = "fresh"
"""The code of the row is the code of the tree."""
STALE = "stale"
"""A file of the code has other tokens now, or is gone."""
UNKNOWN = "unknown"
"""The file does not say: an earlier version wrote it, or a program of one's own added the variant. Counts as stale."""
NONE = "none"
"""A peer's row, which has no code of the project, or a skipped one that names none: it does not count."""


@dataclass(frozen=True)
class Freshness:
    """State of one row: FRESH, STALE with the files that changed, UNKNOWN or NONE."""

    state: str
    changed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Share:
    """How many rows are fresh, and the age of the others.

    `days` since the oldest row that is not fresh began, and `commits` of the tree's history since its program's; None
    when all are fresh, or nothing tells. `changed` are the files that made rows stale, those of most rows first.
    """

    fresh: int = 0
    stale: int = 0
    unknown: int = 0
    days: int | None = None
    commits: int | None = None
    changed: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        return self.fresh + self.stale + self.unknown

    @property
    def is_fresh(self) -> bool:
        return self.fresh == self.rows

    @property
    def stale_share(self) -> float:
        """Rows that are not fresh over all that count; 0 without rows."""
        return (self.stale + self.unknown) / self.rows if self.rows else 0.0

    @property
    def age_text(self) -> str:
        """`12 days, 445 commits`; empty when nothing tells."""
        parts = [(self.days, "day"), (self.commits, "commit")]
        return ", ".join(f"{count} {unit}{'s' if count != 1 else ''}" for count, unit in parts if count is not None)

    def __str__(self) -> str:
        """`fresh`, `unknown (12 days, 445 commits)`, `25 % stale (3 days, 7 commits)`."""
        if self.is_fresh:
            return FRESH
        word = UNKNOWN if self.unknown == self.rows else STALE if not self.fresh else f"{self.stale_share:.0%} stale"
        return word.replace("%", " %") + (f" ({self.age_text})" if self.age_text else "")


class SourceTree:
    """The project's sources in a folder, and their history where it is a git work tree."""

    def __init__(self, root: Path):
        self.root = root.resolve()
        self._tokens = cache(self._read)
        self.commits_since = cache(self._commits_since)
        self.commit_date = cache(self._commit_date)

    def changed(self, files: Mapping[str, str]) -> tuple[str, ...]:
        """The files, of path → hash of tokens, that have other tokens here or are gone."""
        return tuple(path for path, tokens in files.items() if self._tokens(path) != tokens)

    def _read(self, path: str) -> str:
        file = (self.root / path).resolve()
        if not file.is_relative_to(self.root) or not file.is_file():  # a foreign file may name any path
            return ""
        return token_hash(file.read_text("utf-8", "surrogateescape"))

    def _commits_since(self, commit: str) -> int | None:
        """Commits of HEAD that `commit` lacks; None when the history does not hold it."""
        count = self._git("rev-list", "--count", f"{commit}..HEAD") if _is_commit(commit) else ""
        return int(count) if count else None

    def _commit_date(self, commit: str) -> datetime | None:
        seconds = self._git("show", "-s", "--format=%ct", f"{commit}^{{commit}}") if _is_commit(commit) else ""
        return datetime.fromtimestamp(int(seconds), UTC) if seconds else None

    def _git(self, *arguments: str) -> str:
        try:
            done = subprocess.run(["git", "-C", self.root, *arguments], capture_output=True, text=True, check=False)
        except OSError:
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""


def source_tree(path: Path | None = None) -> SourceTree:
    """The tree at `path`; without one that of the build whose katt-report this is, else the one around the current
    folder. Throws InputError where there is none."""
    if path is not None:
        if not _is_tree(path):
            raise InputError(path, "no folder src/ops" if path.is_dir() else "nothing", "a source tree of Katt")
        return SourceTree(path)
    around = [
        Path(__file__).resolve().parents[4],
        Path(sys.prefix).resolve().parents[1],
        Path.cwd(),
        *Path.cwd().parents,
    ]
    found = next((folder for folder in around if _is_tree(folder)), None)
    if found is None:
        raise InputError(
            "--source", "nothing, and there is no source tree around the current folder", "a source tree of Katt"
        )
    return SourceTree(found)


def freshness(results: Results, tree: SourceTree) -> list[Freshness]:
    """Freshness of every row of `results.points`, in their order."""
    points = results.points
    knows = {(source, run) for source, run, code in points.tuples(["source", "run", "code"]) if code}
    changed = {digest: tree.changed(files) for digest, files in results.code.items()}
    peers = {key: about_peers(about) for key, about in results.runs.items()}
    found = []
    for source, run, code, variant, status in points.tuples(["source", "run", "code", "variant", "status"]):
        may_lack = variant in peers.get((source, run), ()) or (status == schema.SKIPPED and (source, run) in knows)
        if code in changed:
            found.append(Freshness(STALE, changed[code]) if changed[code] else Freshness(FRESH))
        elif code or not may_lack:
            found.append(Freshness(UNKNOWN))
        else:
            found.append(Freshness(NONE))
    return found


def share(results: Results, tree: SourceTree, rows: Iterable[int] | None = None) -> Share:
    """The share of fresh rows among those of `results.points` with these indices; of all rows without them."""
    states = freshness(results, tree)
    chosen = range(len(states)) if rows is None else list(rows)
    counts = Counter(states[index].state for index in chosen)
    files = Counter(file for index in chosen for file in states[index].changed)
    old = [index for index in chosen if states[index].state in (STALE, UNKNOWN)]
    sources, runs, commits = (results.points[name] for name in ("source", "run", "commit"))
    measured = {(str(sources[index]), str(runs[index]), str(commits[index])) for index in old}
    ages = [
        age(results.runs.get((source, run), {}).get("started_at", ""), commit, tree) for source, run, commit in measured
    ]
    return Share(
        counts[FRESH],
        counts[STALE],
        counts[UNKNOWN],
        max((days for days, _ in ages if days is not None), default=None),
        max((count for _, count in ages if count is not None), default=None),
        tuple(file for file, _ in sorted(files.items(), key=lambda item: (-item[1], item[0]))),
    )


def age(started_at: str, commit: str, tree: SourceTree) -> tuple[int | None, int | None]:
    """Days since a measurement, or since its commit where it has no time, and commits of the tree's history since."""
    since = moment(started_at) or tree.commit_date(str(commit))
    days = max((datetime.now(UTC) - since).days, 0) if since else None
    return days, tree.commits_since(str(commit))


def machine_of(results: Results, row: dict) -> str:
    """The name of the machine that measured a row; a run on host and device is the backend's that the row has."""
    about = results.runs.get((row["source"], row["run"]), {})
    return machine_name({**about, "backend": row["backend"]})


def rows_by_machine(results: Results) -> dict[str, list[int]]:
    """The indices of the rows of each machine."""
    columns = ["source", "run", "backend"]
    names = {key: machine_of(results, dict(zip(columns, key, strict=True))) for key in results.points.combinations(columns)}
    rows: dict[str, list[int]] = {}
    for index, key in enumerate(results.points.tuples(columns)):
        rows.setdefault(names[key], []).append(index)
    return rows


@dataclass(frozen=True)
class Part:
    """The rows of one experiment on one machine. `stale` counts its rows that are not fresh by what tells them apart:
    (op, pass, variant, dtype, Freshness) → rows; a file of model runs has none to tell apart."""

    machine: str
    experiment: str
    share: Share
    stale: dict[tuple, int] = field(default_factory=dict)

    def as_dict(self) -> dict:
        names = ("op", "pass", "variant", "dtype")
        about = {"machine": self.machine, "experiment": self.experiment, "rows": self.share.rows}
        about |= {
            name: getattr(self.share, name) for name in ("fresh", "stale", "unknown", "stale_share", "days", "commits")
        }
        rows = [
            {
                **dict(zip(names, key, strict=False)),
                "rows": count,
                "state": key[-1].state,
                "changed": list(key[-1].changed),
            }
            for key, count in self.stale.items()
        ]
        return {**about, "changed": list(self.share.changed), "stale_rows": rows}


def parts(paths: Iterable[Path], tree: SourceTree) -> list[Part]:
    """The experiments among files and folders, sorted by machine. Folders are searched for files of sweeps and of model
    runs, and for JSON that names its machine; a file in a folder EXPERIMENT of a searched one belongs to it, any other
    names its experiment."""
    found = []
    for path in paths:
        files = sorted(file for file in path.rglob("*") if file.suffix in DATA) if path.is_dir() else [path]
        if not files:
            raise InputError(path, "no *.h5 or *.json", "result files")
        for file in files:
            experiment = file.parent.name if path.is_dir() and file.parent != path else file.stem
            found += _parts_of(file, experiment, tree, named=not path.is_dir())
    grouped: dict[tuple[str, str], list[Part]] = {}
    for part in found:
        grouped.setdefault((part.machine, part.experiment), []).append(part)
    return [
        Part(*key, _sum([part.share for part in same]), sum((Counter(part.stale) for part in same), Counter()))
        for key, same in sorted(grouped.items())
    ]


def _parts_of(file: Path, experiment: str, tree: SourceTree, named: bool) -> list[Part]:
    held = "JSON" if file.suffix == ".json" else in_child(file, _rows, file, named)
    if not isinstance(held, Results):
        if held == "katt experiments" or (held == "JSON" and (named or _names_machine(file))):
            source = open_source(file)
            return [Part(source.about["machine"], experiment, share_of_runs(source, tree))]
        return []  # a log, or JSON of another program
    results = merge([held])
    states = freshness(results, tree)
    keys = results.points.tuples(["op", "pass", "variant", "dtype"])
    return [
        Part(
            machine,
            experiment,
            share(results, tree, indices),
            Counter((*keys[index], states[index]) for index in indices if states[index].state in (STALE, UNKNOWN)),
        )
        for machine, indices in rows_by_machine(results).items()
    ]


def _rows(file: Path, named: bool) -> Results | str | None:
    """The rows of a sweep, else what made the file; one that was named is a sweep unless it holds runs of a model."""
    kind = opened(file, "a result file", lambda held: "" if "points" in held else plain(held.attrs.get("generator")))
    return read(file, file.name, with_samples=False) if kind == "" or (named and kind != "katt experiments") else kind


def _names_machine(file: Path) -> bool:
    try:
        return bool(open_source(file).about["machine"])
    except InputError:
        return False


def share_of_runs(source: Source, tree: SourceTree) -> Share:
    """Share of a file whose rows name their code together, or not at all, as files of earlier versions do."""
    rows, changed = len(source.rows), tree.changed(source.code)
    if source.code and not changed:
        return Share(fresh=rows)
    days, commits = age(source.about["date"], source.about["commit"].partition(",")[0], tree)
    return Share(
        stale=rows if changed else 0, unknown=0 if changed else rows, days=days, commits=commits, changed=changed
    )


def _sum(shares: list[Share]) -> Share:
    def most(name: str) -> int | None:
        return max((value for one in shares if (value := getattr(one, name)) is not None), default=None)

    return Share(
        sum(one.fresh for one in shares),
        sum(one.stale for one in shares),
        sum(one.unknown for one in shares),
        most("days"),
        most("commits"),
        tuple(dict.fromkeys(file for one in shares for file in one.changed)),
    )


def _is_tree(path: Path) -> bool:
    return (path / "src" / "ops").is_dir() and (path / "src" / "op" / "variants.hpp").is_file()


def _is_commit(text: str) -> bool:
    return 7 <= len(text) <= 64 and not set(text) - set("0123456789abcdef")
