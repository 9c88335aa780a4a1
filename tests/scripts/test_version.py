"""One version everywhere: CMakeLists.txt says it, and what cannot read it there says the same."""

import re
import subprocess
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


def test_documents_name_no_other():
    version = found("CMakeLists.txt", r"^  VERSION (\S+)$")
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "notebooks").glob("*.ipynb")]
    named = [(page.name, other) for page in pages
             for other in re.findall(r"(?:\bkatt[_-]|release_notes v)(\d+\.\d+\.\d+)", page.read_text())]
    assert len(named) > 3
    assert [page for page in named if page[1] != version] == []


def test_the_package_of_python_reads_it_there():
    held = tomllib.loads((ROOT / "pyproject.toml").read_text())
    source = held["tool"]["scikit-build"]["metadata"]["version"]
    assert re.search(source["regex"], (ROOT / source["input"]).read_text())["value"] == found(source["input"], r"^  VERSION (\S+)$")
    assert held["project"]["dynamic"] == ["version"]


def release_notes(*arguments):
    return subprocess.run([ROOT / "scripts" / "release_notes", *arguments], capture_output=True, text=True)


def test_the_changes_of_the_version_are_its_notes():
    version = found("CMakeLists.txt", r"^  VERSION (\S+)$")
    notes = release_notes(f"v{version}")
    assert notes.returncode == 0
    section = re.search(rf"^## {re.escape(version)}\n\n(.*?)(?=^## |\Z)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE | re.DOTALL)
    assert notes.stdout.strip() == section[1].strip()
    assert release_notes().stdout == notes.stdout


def test_links_of_the_notes_lead_to_the_tree():
    url = "https://host.example/katt/blob/v1"
    version = found("CMakeLists.txt", r"^  VERSION (\S+)$")
    plain, linked = release_notes().stdout, release_notes(f"v{version}", url).stdout
    links = re.findall(r"\]\(([^)]+)\)", plain)
    assert any(link.startswith("docs/") for link in links)
    expected = [link if re.match(r"\w+:|#", link) else f"{url}/{link}" for link in links]
    assert re.findall(r"\]\(([^)]+)\)", linked) == expected


def test_a_tag_of_another_version_is_refused():
    refused = release_notes("v0.0.1")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.count("\n") == 1 and "v0.0.1" in refused.stderr
