"""docs/commands.md names every option of CMake."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEPT = re.compile(r"^(?:option\(|set\()(KATT_\w+) (?:\"[^\"]*\" [OF]|.*CACHE)", re.MULTILINE)


def test_the_table_has_every_option():
    sources = [ROOT / "CMakeLists.txt", *(ROOT / "cmake").glob("*.cmake"), *(ROOT / "tests").glob("CMakeLists.txt")]
    options = {name for source in sources for name in KEPT.findall(source.read_text())} - {"KATT_SYSROOT"}  # of a toolchain file
    assert len(options) > 12
    page = (ROOT / "docs" / "commands.md").read_text()
    table = set(re.findall(r"`(KATT_\w+)`", page.split("\nOptions of CMake")[1].split("\n\n##")[0]))
    assert table == options
