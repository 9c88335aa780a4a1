"""Additions of scripts/measure: figures and README.md beside a measured file, the file's origin in it."""

import fnmatch
import json
import os
from datetime import UTC, datetime
from pathlib import Path


def replace_file(path: Path, data: bytes) -> None:
    """Writes a file that is whole at every instant."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(data)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def draw(step, result: Path, folder: Path) -> None:
    """The chosen ones of the report's figures, into `folder`; removes those that the report has no more."""
    from katt_report.figures import draw_all
    from katt_report.groups import groups
    from katt_report.isolation import load_isolated
    from katt_report.pages.output import render

    if not step.figures:
        return
    plots = {f"{plot.name}.png": plot for group in groups(load_isolated(result)) for plot in draw_all(group)}
    for name, pattern in step.figures.items():
        found = fnmatch.filter(sorted(plots), pattern)
        if found:
            replace_file(folder / name, render(plots[found[0]].figure, ("png",))[0])
        else:
            print(f"  {step.name}: the report has no figure {pattern}")
            (folder / name).unlink(missing_ok=True)


def write_readme(folder: Path) -> None:
    from katt_report.published.readme import readme
    from katt_report.published.source import open_source

    open_source.cache_clear()
    replace_file(folder / "README.md", readme(folder).encode())


def add_origin(step, form, path: Path, info: dict) -> None:
    """Adds what a file without rows of operators lacks: its command and code; machine, build and day of an experiment's
    JSON."""
    from katt_report.published.source import open_source

    def code() -> dict:
        files = info["code"]["files"]
        return {name: files[name] for name in (info["code"]["model"] if step.code == "model" else files)}

    command = f"{step.commands[0].format(folder='.', output=step.output)} {form.options}".strip()
    if path.suffix == ".json":
        held = json.loads(path.read_text())
        date = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        held |= {"machine": info["machine"], "build": info["build"], "date": date, "command": command, "code": code()}
        path.write_text(json.dumps(held, indent=1) + "\n")
    elif open_source(path).results is None:
        import h5py

        with h5py.File(path, "a") as file:
            file.attrs.update({"command": command, "code": json.dumps(code())})


def own_failures(path: Path) -> list[str]:
    """Katt's variants that failed somewhere; that a peer breaks the error rule is a result."""
    from katt_report.published.source import open_source

    source = open_source(path)
    if source.results is None:
        return []
    points = source.results.points
    return sorted(set(points.where(status="failed").values("variant")) - set(source.peers))
