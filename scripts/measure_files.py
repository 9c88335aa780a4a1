"""Additions of scripts/measure: figures and README.md beside a measured file, the file's origin in it."""

import fnmatch
import json
import os
from datetime import UTC, datetime
from pathlib import Path

PLACE = ("op", "pass", "backend")


def replace_file(path: Path, data: bytes) -> None:
    """Writes a file that is whole at every instant."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(data)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def stale_passes(results, tree) -> frozenset[tuple[str, ...]]:
    """Operator, pass and backend of the rows of a sweep whose code has changed: what a ratio is taken of lies in one."""
    from katt_report.published.fresh import FRESH, NONE, freshness

    places = results.points.tuples(PLACE)
    return frozenset(place for place, row in zip(places, freshness(results, tree), strict=True) if row.state not in (FRESH, NONE))


def copy_without(path: Path, target: Path, passes: frozenset[tuple[str, ...]]) -> None:
    """Copies a sweep's file without the rows of these passes, and without the runs that then have none."""
    import h5py

    with h5py.File(path) as source, h5py.File(target, "w", libver=("v108", "v110")) as kept:
        for name, value in source.attrs.items():
            kept.attrs[name] = value
        points = source["points"][:]
        places = zip(*(points[name].astype(str) for name in PLACE), strict=True)
        points = points[[place not in passes for place in places]]
        runs = {run: f"run-{number:04d}" for number, run in enumerate(sorted(set(points["run"].astype(str))), 1)}
        held = set(zip(points["run"].astype(str), points["point"].astype(str), strict=True))
        for group in ("runs", "ceilings", "samples", "cycles", "profile"):
            for run, name in runs.items() if group in source else ():
                if run not in source[group]:
                    continue
                if group in ("runs", "ceilings"):
                    source.copy(source[group][run], kept.require_group(group), name)
                    continue
                for point in source[group][run]:
                    if (run, point) in held:
                        source.copy(source[group][run][point], kept.require_group(f"{group}/{name}"), point)
        for digest in set(points["code"].astype(str)) & set(source.get("code", ())):
            source.copy(source["code"][digest], kept.require_group("code"), digest)
        points["run"] = [runs[run].encode() for run in points["run"].astype(str)]
        kept.create_dataset("points", data=points, maxshape=(None,), chunks=True)


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
