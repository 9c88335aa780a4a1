"""One version everywhere: CMakeLists.txt says it, and what cannot read it there says the same."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def found(name, pattern):
    (version,) = re.findall(pattern, (ROOT / name).read_text(), re.MULTILINE)
    return version


def test_all_say_the_version_of_the_project():
    version = found("CMakeLists.txt", r"^  VERSION (\S+)$")
    assert found("CITATION.cff", r"^version: (\S+)$") == version
    assert found("drivers/report/katt_report/__init__.py", r'^__version__ = "(.*)"$') == version
    assert tomllib.loads((ROOT / "drivers/peers/pyproject.toml").read_text())["project"]["version"] == version


def test_the_package_of_python_reads_it_there():
    held = tomllib.loads((ROOT / "pyproject.toml").read_text())
    source = held["tool"]["scikit-build"]["metadata"]["version"]
    assert re.search(source["regex"], (ROOT / source["input"]).read_text())["value"] == found(source["input"], r"^  VERSION (\S+)$")
    assert held["project"]["dynamic"] == ["version"]
