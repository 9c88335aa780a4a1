"""The container recipe for CPUs runs the README's two commands and no others, that for CUDA the two of that preset
(scripts/in_bare_root tries the first)."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def steps(name):
    return re.findall(r"^RUN (.*)$", (ROOT / "containers" / name).read_text(), re.MULTILINE)


def test_the_recipe_for_cpus_runs_the_commands_of_the_readme():
    readme = (ROOT / "README.md").read_text()
    start = readme[readme.index("## Start") :]
    commands = re.findall(r"^    (scripts/\w+)", start[: start.index("\n## ", 5)], re.MULTILINE)
    assert commands == ["scripts/demo", "scripts/test"]
    assert steps("cpu.Dockerfile") == commands


@pytest.mark.parametrize("path", sorted((ROOT / "containers").glob("*.Dockerfile")), ids=lambda path: path.name)
def test_steps_are_scripts_of_the_tree(path):
    for step in steps(path.name):
        assert (ROOT / step.split()[0]).is_file(), step
    assert "COPY . /katt\n" in path.read_text()
    assert "build/" in (ROOT / ".dockerignore").read_text().split()
