"""The code in the project's documents, block by block, and what a test does with each.

| block | what the test does |
|---|---|
| ```console, ```bash, and an indented block that begins with a command | every line by the rules of shell.py |
| ```python | runs it, the blocks of a page one after the other with the same names |
| ```toml | `katt sweep BLOCK --dry-run` for a sweep; a part of another file says which; with the comment
  `<!-- file: NAME -->` before it the commands of the page find it under that name |
| ```cpp, ```cmake | every line stands in the file that the comment above names: `<!-- part of PATH -->` |
| ```text and without a language, other indented blocks | no code: formulas, trees, outputs |

A comment before a block, `<!-- not run: REASON -->`, leaves it out; the REASON says who runs it, or what it needs.
Any other language fails the test.
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMAND = re.compile(
    r"(?:[A-Z_]+=\S+ +)*(?:build/\S+/)?(?:\./)?(?:katt|katt-report|scripts/\w+|mpirun|cmake|pip|python3|ncu|nsys|mine|test_\w+)(?= |$)"
)
PROSE = {"", "text", "json"}


@dataclass
class Block:
    page: str
    line: int
    language: str
    text: str
    note: str  # the comment before it

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def reason_not_run(self) -> str:
        found = re.match(r"not run: (.+)", self.note)
        return found[1] if found else ""

    @property
    def file(self) -> str:
        found = re.match(r"file: (\S+)", self.note)
        return found[1] if found else ""

    @property
    def part_of(self) -> str:
        found = re.match(r"part of (\S+)", self.note)
        return found[1] if found else ""


def documents() -> list[str]:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(str(path.relative_to(ROOT)) for path in pages)


def blocks(page: str) -> list[Block]:
    """Fenced and indented blocks of a document, in order."""
    found, lines = [], (ROOT / page).read_text().split("\n")
    index, note = 0, ""
    while index < len(lines):
        line = lines[index]
        comment = re.fullmatch(r" *<!-- ((?:not run: |part of |file: ).*?) -->", line)
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
            text = "\n".join(line[4:] for line in lines[index:end]).rstrip()
            language = "console" if COMMAND.match(text) else "text"
            found.append(Block(page, first, language, text, note))
            index, note = end - 1, ""
        elif line.strip():
            note = ""
        index += 1
    return found
