"""The code in the project's documents, block by block, and what a test does with each.

| block | what the test does |
|---|---|
| ```console, ```bash, and an indented block that begins with a command | every line by the rules of shell.py |
| ```python | runs it, the blocks of a page one after the other with the same names |
| ```toml | `katt sweep BLOCK --dry-run` for a sweep; a part of another file says which; with the comment
  `<!-- file: NAME -->` before it the commands of the page find it under that name |
| ```cpp, ```cmake | every line stands in the file that the comment above names: `<!-- part of PATH -->` |
| ```text and without a language, other indented blocks | no code: formulas, trees, outputs |

Indented blocks of Python and of TOML are known by their first line; such Python runs by itself, such TOML is read.
A comment before a block, `<!-- not run: REASON -->`, leaves it out; the REASON says who runs it, or what it needs.
`<!-- exit status N -->` expects that of the block's commands.
Any other language fails the test.
"""

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMAND = re.compile(
    r"#!/bin/sh|(?:[A-Z_]+=\S+ +)*(?:build/\S+/)?(?:\./)?(?:katt|katt-report|scripts/\w+|mpirun|cmake|pip|python3|ncu|nsys|mine|own_kernel|srun|cc|cd|docker|qemu-aarch64|test_\w+)(?= |$)"
)
INDENTED = {  # the language of an indented block, by how it begins
    "console": COMMAND,
    "python": re.compile(r"(?:with|import|from|for) .*"),
    "toml": re.compile(r"\[\[\w+\]\]|\w+ = [\[\x22]"),
}
PROSE = {"", "text", "json"}


@dataclass
class Block:
    page: str
    line: int
    language: str
    text: str
    note: str  # the comment before it
    is_fenced: bool = True

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"

    def _noted(self, pattern: str) -> str:
        found = re.match(pattern, self.note)
        return found[1] if found else ""

    @property
    def reason_not_run(self) -> str:
        return self._noted(r"not run: (.+)")

    @property
    def status(self) -> int:
        return int(self._noted(r"exit status (\d+)") or 0)

    @property
    def file(self) -> str:
        return self._noted(r"file: (\S+)")

    @property
    def part_of(self) -> str:
        return self._noted(r"part of (\S+)")


def documents() -> list[str]:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(str(path.relative_to(ROOT)) for path in pages)


def blocks(page: str) -> list[Block]:
    """Fenced and indented blocks of a document, in order."""
    found, lines = [], (ROOT / page).read_text().split("\n")
    index, note = 0, ""
    while index < len(lines):
        line = lines[index]
        comment = re.fullmatch(r" *<!-- ((?:not run: |part of |file: |exit status ).*?) -->", line)
        fence = re.match(r"( {0,3})(```+)(\w*)", line)
        is_start = line.startswith("    ") and (index == 0 or not lines[index - 1].strip())
        first = index + 1
        if comment:
            note = comment[1]
        elif fence:
            end = next(i for i in range(first, len(lines)) if lines[i].strip() == fence[2])
            found.append(Block(page, first + 1, fence[3], "\n".join(lines[first:end]), note))
            index, note = end, ""
        elif is_start:
            end = index
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            text = textwrap.dedent("\n".join(lines[index:end])).rstrip()
            language = next((name for name, begins in INDENTED.items() if begins.match(text)), "text")
            found.append(Block(page, first, language, text, note, is_fenced=False))
            index, note = end - 1, ""
        elif line.strip():
            note = ""
        index += 1
    return found
