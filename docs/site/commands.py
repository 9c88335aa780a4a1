"""Pages of the commands and operators, from what the programs themselves print."""

import ast
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

from katt_report.commands import NAMES as REPORT_COMMANDS

QUESTIONS = {  # what the reader wants when a command is the answer
    "sweep": "measure an operator over many points",
    "merge": "put result files together",
    "run": "run one operator on the tensors of a file",
    "referee": "judge a kernel of others",
    "tune": "find the fastest tiles",
    "info": "what this build and this machine can run",
    "completion": "complete commands and options in a shell",
    "logits": "logits of a LLaMA",
    "generate": "continue a prompt",
    "train": "train a LLaMA",
    "memory": "forecast memory",
}


def output(*command: str) -> str:
    environment = {**os.environ, "COLUMNS": "100", "LC_ALL": "C.UTF-8"}
    environment.pop("XDG_CONFIG_HOME", None)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        sys.exit(f"docs: {' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.replace(str(Path.home()), "~")


def cell(text: str) -> str:
    """A text as a cell of a table."""
    return re.sub(r"([|*_<>])", r"\\\1", text.strip())


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def code(text: str, language: str = "text") -> str:
    return f"```{language}\n{text.rstrip()}\n```\n"


# katt


def commands_of(program: Path) -> list[str]:
    found = re.findall(r"^  (\w+)  +\S", output(str(program), "--help"), re.MULTILINE)
    if not found:
        sys.exit(f"docs: {program} --help lists no commands")
    return found


def command_page(program: Path, name: str) -> str:
    """`katt NAME --help` as a page: its first lines, a table for each list of options, its last lines, its examples."""
    blocks, rows, title = [], [], "Options"
    said, _, examples = output(str(program), name, "--help").partition("\nExamples:\n")
    if not examples:
        sys.exit(f"docs: katt {name} --help ends with no examples")
    lines = said.rstrip().split("\n")

    def flush():
        if rows:
            blocks.append(f"## {title}\n\n" + table(["option", "meaning"], rows))
            rows.clear()

    for line in lines:
        option = re.match(r"  (\S.*?)  +(\S.*)$", line)
        if option:
            rows.append([f"`{option[1]}`", cell(option[2])])
        elif re.fullmatch(r"[A-Z]\w*:", line):
            flush()
            title = line.rstrip(":")
        elif line.startswith("Usage:"):
            blocks.append(code(line.removeprefix("Usage: "), "console"))
        elif line.strip() and not line.startswith(" "):
            flush()
            blocks.append(re.sub(r"([*_<>])", r"\\\1", line.strip()) + "\n")
        elif line.strip():
            sys.exit(f"docs: katt {name} --help: cannot read the line {line!r}")
    flush()
    if not any("`--help" in block or "--help`" in block for block in blocks):
        sys.exit(f"docs: katt {name} --help lists no option --help")
    blocks.append("## Examples\n\n" + code(textwrap.dedent(examples)))
    return f"# katt {name}\n\n" + "\n".join(blocks)


def report_page(program: Path, name: str) -> str:
    arguments = [name, "--help"] if name else ["--help"]
    title = f"katt-report {name}".strip()
    return f"# {title}\n\n{code(output(str(program), *arguments))}"


def write_commands(katt: Path, report: Path, folder: Path) -> int:
    folder.mkdir(parents=True)
    names = commands_of(katt)
    for name in names:
        (folder / f"{name}.md").write_text(command_page(katt, name))
    for name in ["", *REPORT_COMMANDS]:
        (folder / f"report_{name or 'report'}.md").write_text(report_page(report, name))
    text = "# Commands and options\n\nMade from the programs' own `--help`.\n\n"
    text += table(["command", "for"], [[f"[katt {name}]({name}.md)", QUESTIONS.get(name, "")] for name in names])
    text += "\n`katt --help`:\n\n" + code(output(str(katt), "--help"))
    text += "\n`katt-report` makes reports and judges result files:\n\n"
    rows = []
    for name in ["", *REPORT_COMMANDS]:
        said = output(str(report), *([name] if name else []), "--help")
        purpose = re.search(r"\n\n(.*?)\n\n", said, re.DOTALL)[1].replace("\n", " ")
        rows.append([f"[katt-report {name}](report_{name or 'report'}.md)", cell(purpose)])
    text += table(["command", "for"], rows)
    (folder / "index.md").write_text(
        text + toctree([*names, *(f"report_{name or 'report'}" for name in ["", *REPORT_COMMANDS])])
    )
    return len(names) + len(REPORT_COMMANDS) + 1


def toctree(pages: list[str], caption: str = "", is_hidden: bool = True, depth: int = 1) -> str:
    options = [":hidden:"] if is_hidden else [f":maxdepth: {depth}"]
    options += [f":caption: {caption}"] if caption else []
    options += [":glob:"] if any("*" in page for page in pages) else []
    return "\n```{toctree}\n" + "\n".join([*options, "", *pages]) + "\n```\n"


# The axes and variants of an operator


def operators_of(katt: Path) -> list[dict]:
    return json.loads(output(str(katt), "info", "--json"))["operators"]


def axis_row(axis: dict, named: dict) -> list[str]:
    names = [axis["name"], *([axis["short_name"]] if axis["short_name"] else [])]
    options = ", ".join(f"`--{name.replace('_', '-')}`" for name in names)
    if axis["follows"]:
        default = f"as `{axis['follows']}`"
    else:
        default = "every core" if axis["name"] == "threads" else f"`{axis['default']}`"
    choices = ", ".join(f"`{choice}`" for choice in axis["choices"])
    return [options, f"`{axis['name']}`", default, cell(axis["help"]) + (f" ({choices})" if choices else "")]


def tensors(katt: Path, name: str) -> str:
    """The tensors of `katt run` and the presets of tiles, which only the text has."""
    text = output(str(katt), "info", name)
    found = re.search(rf"tensors of katt run {name} .*?\n((?:    .*\n?)+)", text)
    rows = re.findall(r"^    (inputs|outputs|gradients) +(.*)$", found[1], re.MULTILINE) if found else []
    parts = []
    if rows:
        parts.append(
            "\n## Tensors of katt run\n\n" + table(["", "tensors"], [[kind, cell(names)] for kind, names in rows])
        )
    presets = re.search(r"presets of tiles: (.*)", text)
    if presets:
        parts.append(f"\nPresets of tiles, by device: {', '.join(f'`{name}`' for name in presets[1].split(', '))}.\n")
    return "".join(parts)


def operator_page(katt: Path, operator: dict) -> str:
    name = operator["name"]
    text = f"# Axes and variants of {name}\n\n{cell(operator['summary'])}.\n\n## Axes\n\n"
    text += table(["option of `katt sweep`", "key of a sweep file, column", "default", "meaning"],
                  [axis_row(axis, operator) for axis in operator["axes"]])  # fmt: skip
    for direction in operator["passes"]:
        rows = []
        for variant in operator["variants"]:
            if variant["backend"] == "openmp" and variant["pass"] == direction:
                tiles = ", ".join(
                    tile if isinstance(tile, str) else "x".join(map(str, tile)) for tile in variant["tiles"]
                )
                mark = " (the baseline)" if variant["baseline"] else ""
                rows.append([f"`{variant['name']}`", cell(variant["description"]) + mark, tiles])
        has_tiles = any(row[2] for row in rows)
        text += f"\n## Variants, {direction}\n\n"
        text += table(["variant", "what it does", "tiles"] if has_tiles else ["variant", "what it does"],
                      rows if has_tiles else [row[:2] for row in rows])  # fmt: skip
    return text + tensors(katt, name)


def write_operators(katt: Path, folder: Path) -> int:
    folder.mkdir(parents=True)
    operators = operators_of(katt)
    for operator in operators:
        (folder / f"{operator['name']}.md").write_text(operator_page(katt, operator))
    text = (
        "# Axes and variants by operator\n\nWhat `katt info OP` prints in a build for CPUs: every axis of a sweep with its "
        "default, every variant with its tiles. A build with CUDA lists the variants of a device, too.\n\n"
    )
    rows = [[f"[{operator['name']}]({operator['name']}.md)", cell(operator["summary"])] for operator in operators]
    (folder / "index.md").write_text(
        text + table(["operator", "what"], rows) + toctree([row["name"] for row in operators])
    )
    return len(operators)


# scripts/


def header_of(script: Path) -> str:
    """The comment, or the docstring, that a script begins with."""
    text = script.read_text()
    if "python" in text.split("\n", 1)[0]:
        return ast.get_docstring(ast.parse(text)) or ""
    lines = []
    for line in text.split("\n")[1:]:
        if not line.startswith("#") or line.startswith("# shellcheck"):
            break
        lines.append(line.removeprefix("#").removeprefix(" "))
    return "\n".join(lines)


def flowing(text: str) -> str:
    """Full lines of a paragraph as one, which the page wraps by itself."""
    out: list[str] = []
    for line in text.split("\n"):
        if out and len(out[-1].split("\n")[-1]) > 70 and re.match(r"[^\s-]", line):
            out[-1] += " " + line
        else:
            out.append(line)
    return "\n".join(out)


def write_scripts(folder: Path, page: Path) -> int:
    text = "# Scripts\n\nThe programs in `scripts/`, each as it describes itself. They work in the tree that holds them.\n"
    count = 0
    for script in sorted(folder.iterdir()):
        if script.is_file() and os.access(script, os.X_OK) and not script.suffix:
            header = header_of(script)
            if not header:
                sys.exit(f"docs: {script.name}: begins with no comment that says what it does")
            text += f"\n## scripts/{script.name}\n\n{code(flowing(header))}"
            count += 1
    page.write_text(text)
    return count
