"""README.md of published results, made from a template: experiments/EXPERIMENT/results.md, else this module's."""

import math
import re
from collections.abc import Iterable
from pathlib import Path
from posixpath import normpath

from katt_report import schema
from katt_report.groups import sort_dtypes
from katt_report.load import text_of
from katt_report.published.markers import about, fill_template
from katt_report.published.repeats import readme_text
from katt_report.published.source import DATA, open_source
from katt_report.statistics import geometric_mean
from katt_report.text import significant

TEMPLATE = """<!-- katt: title --><!-- /katt -->

<!-- katt: question --><!-- /katt -->

<!-- katt: files --><!-- /katt -->

<!-- katt: figures --><!-- /katt -->

<!-- katt: speedups --><!-- /katt -->
"""
INDEX = "- Has the code changed since? [All results](../../README.md)"
"""katt-report index knows which rows are fresh; that changes with the sources, this README only with the files."""
_BESIDE = re.compile(r"<!-- katt: (\./\S+)|\]\(((?!\w+:|\.\./|#)[^)\s]+)\)")
"""A file beside the README that a paragraph needs: of a marker, or of a link."""


def is_experiment(folder: Path) -> bool:
    """True for results/MACHINE/EXPERIMENT with a file in it."""
    return folder.is_dir() and folder.parent.parent.name == "results" and bool(_data(folder))


def experiments_below(folder: Path) -> list[Path]:
    """The folders MACHINE/EXPERIMENT at or below a folder."""
    folder = folder.absolute()
    places = (folder, *sorted(folder.glob("*/")), *sorted(folder.glob("*/*/")))
    return [place for place in places if is_experiment(place)]


def readme(folder: Path) -> str:
    """The text of README.md of a folder results/MACHINE/EXPERIMENT."""
    folder = folder.absolute()
    experiment = folder.parents[2] / "experiments" / folder.name
    path = experiment / "results.md"
    template = text_of(path, "a template") if path.exists() else TEMPLATE
    answers = {
        "title": lambda: f"# {folder.name} on {folder.parent.name}",
        "question": lambda: _question(experiment),
        "files": lambda: "\n".join([*(_file_line(path) for path in _data(folder)), INDEX]),
        "figures": lambda: "\n\n".join(f"![{_words(path)}]({path.name})" for path in sorted(folder.glob("*.png"))),
        "speedups": lambda: _speedups(folder),
        "calibration": lambda: readme_text(folder / "calibration.h5"),
    }
    text = "\n\n".join(_paragraphs(template, folder)) + "\n"
    return re.sub(r"\n{3,}", "\n\n", fill_template(text, path, folder, answers)).rstrip() + "\n"


def _data(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in DATA)


def _is_there(paragraph: str, folder: Path) -> bool:
    return all((folder / (one or two)).exists() for one, two in _BESIDE.findall(paragraph))


def _paragraphs(template: str, folder: Path) -> list[str]:
    """Paragraphs that have their files, without headings and lines ("Times:") that would stand before nothing."""
    kept: list[str] = []  # from the last to the first
    follows = False  # the paragraph after this one is kept
    for paragraph in reversed(re.split(r"\n{2,}", template.strip())):
        if paragraph.startswith("##"):
            is_kept = bool(kept) and not kept[-1].startswith("#")
        else:
            is_kept = _is_there(paragraph, folder) and (follows or not paragraph.endswith(":"))
        if is_kept:
            kept.append(paragraph)
        follows = is_kept
    return kept[::-1]


def _question(experiment: Path) -> str:
    """The paragraph **Question.** of the experiment's README, and a link to the rest."""
    name = experiment.name
    link = f"[experiments/{name}](../../../experiments/{name})"
    path = experiment / "README.md"
    text = text_of(path, "the README of an experiment") if path.exists() else ""
    found = re.search(r"^\*\*Question\.\*\* (.*?)(?:\n\n|\Z)", text, re.DOTALL | re.MULTILINE)
    if not found:
        return f"What it asks: {link}."
    there = f"../../../experiments/{name}"  # links are those of the experiment's README
    text = re.sub(r"\]\((?!\w+:|#)([^)]+)", lambda link: f"]({normpath(f'{there}/{link[1]}')}", found[1].strip())
    return f"{text}\n\nMethod and expectation: {link}."


def _file_line(path: Path) -> str:
    source = open_source(path)
    # A semicolon behind a file parts the commands of two runs.
    command = re.sub(r" (-o|--peer-program|--score-rule-file) \S+?(?=;?(?:\s|$))| --(overwrite|resume)", "",
                     source.about.get("command", ""))  # fmt: skip
    return f"- [{path.name}]({path.name}): {about(source)}" + (f"; `{command}`" if command else "")


def _speedups(folder: Path) -> str:
    """Tables of the sweeps in the folder: Katt's variants, each with its fastest tile, against naive, and the fastest of
    them against each peer."""
    parts = []
    for path in _data(folder):
        source = open_source(path)
        if source.results is None:
            continue
        ours = [row for row in source.fastest.values() if row["variant"] not in (schema.BASELINE, *source.peers)]
        where = f" ({path.name})" if len(_data(folder)) > 1 else ""
        parts.append(_ranges(
            f"Times as fast as `{schema.BASELINE}`{where}: least to most, geometric mean (points)",
            ((f"{row['op']} {row['pass']}, `{row['variant']}`", row["dtype"], row["speedup"]) for row in ours),
        ))  # fmt: skip
        slowest_first = sorted(ours, key=lambda row: -row["time_s"])
        fastest = {source.point_of(row): row for row in slowest_first}.values()
        parts.append(_ranges(
            f"Katt's fastest variant, times as fast as others in the same rounds{where}",
            ((f"{row['op']} {row['pass']}, over `{peer}`", row["dtype"], source.ratio(row, peer).mid)
             for peer in source.peers for row in fastest),
        ))  # fmt: skip
    return "\n\n".join(part for part in parts if part)


def _ranges(title: str, entries: Iterable[tuple[str, str, float]]) -> str:
    """A table of (line, dtype, value)."""
    cells: dict[tuple[str, str], list[float]] = {}
    for line, dtype, value in entries:
        if math.isfinite(value):
            cells.setdefault((line, dtype), []).append(value)
    if not cells:
        return ""
    dtypes = sort_dtypes({dtype for _, dtype in cells})
    made = [f"{title}:", "", "| | " + " | ".join(dtypes) + " |", "|---" * (1 + len(dtypes)) + "|"]
    for line in sorted({line for line, _ in cells}):
        made.append(f"| {line} | " + " | ".join(_range(cells.get((line, dtype), [])) for dtype in dtypes) + " |")
    return "\n".join(made)


def _range(values: list[float]) -> str:
    if not values:
        return ""
    low, high = significant(min(values), 2), significant(max(values), 2)
    middle = significant(geometric_mean(values), 2)
    return low if len(values) == 1 else f"{low if low == high else f'{low} to {high}, {middle}'} ({len(values)})"


def _words(path: Path) -> str:
    return path.stem.replace("_", " ")
