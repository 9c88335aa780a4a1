#!/usr/bin/env python3
"""stage.py BUILD_DIR OUT [--source-url URL]: writes the pages of the site as Sphinx reads them into OUT.

The Markdown of docs/ and of what it links to, with links of the site; the pages of commands, operators and scripts, made
from the programs of BUILD_DIR; the pages of the Python and C++ names. contents.toml says where each page stands.
"""

import argparse
import shutil
import sys
import tomllib
from pathlib import Path

import commands
import cpp_api
import python_api
from links import Rewriter, page_of, picture_of

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def stage_documents(rewriter: Rewriter, out: Path) -> set[str]:
    """Writes docs/ and every document that a page links to; returns the pages."""
    documents = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")}
    documents |= {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"}
    documents |= {str(path.relative_to(ROOT)) for path in (ROOT / "experiments").glob("*/README.md")}
    done = set()
    while documents - done:
        for path in sorted(documents - done):
            page = out / page_of(path)
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(rewriter.rewritten(path, (ROOT / path).read_text()))
            done.add(path)
        documents |= rewriter.pages
    for path in rewriter.pictures:
        picture = out / picture_of(path)
        picture.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, picture)
    return {page_of(path).removesuffix(".md") for path in done}


def write_lists(out: Path):
    """Pages that only list others: operators and experiments."""
    operators = sorted(path.stem for path in (out / "ops").glob("*.md"))
    rows = [[f"[{name}]({name}.md)", first_paragraph(out / "ops" / f"{name}.md")] for name in operators]
    text = "# Operators\n\nFormula, shapes, masks, errors and variants of each.\n\n"
    (out / "ops/index.md").write_text(text + commands.table(["operator", "what"], rows) + commands.toctree(operators))
    names = sorted(path.parent.name for path in (out / "experiments").glob("*/README.md"))
    text = "# Experiments\n\nSweeps worth repeating, each with the question that it answers.\n"
    text += commands.toctree([f"{name}/README" for name in names], is_hidden=False)
    (out / "experiments/index.md").write_text(text)


def first_paragraph(page: Path) -> str:
    lines = []
    for line in page.read_text().split("\n")[1:]:
        if line.strip():
            lines.append(line.strip())
        elif lines:
            break
    return " ".join(lines).split(". ")[0].rstrip(".:").replace("|", "\\|")


def add_contents(contents: dict, out: Path):
    """Appends the lists of pages that contents.toml names: of parts to the first page, of pages to themselves."""
    with (out / "index.md").open("a") as index:
        for part in contents["part"]:
            index.write(commands.toctree(part["pages"], part["caption"]))
    for page in contents["page"]:
        place = out / f"{page['name']}.md"
        if not place.exists():
            sys.exit(f"docs: contents.toml: holds the page {page['name']}, which does not exist")
        folder = Path(page["name"]).parent
        pages = [f"/{name}" for name in page["pages"]] if str(folder) != "." else page["pages"]
        with place.open("a") as text:
            text.write(commands.toctree(pages))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--source-url", default="")
    arguments = parser.parse_args()
    out = arguments.out
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)

    pages = stage_documents(Rewriter(ROOT, arguments.source_url), out)
    katt, report = arguments.build / "katt", arguments.build / "katt-report"
    counts = {
        "documents": len(pages),
        "commands": commands.write_commands(katt, report, out / "reference/commands"),
        "operators": commands.write_operators(katt, out / "reference/axes"),
        "scripts": commands.write_scripts(ROOT / "scripts", out / "reference/scripts.md"),
        "Python names": python_api.write(ROOT, out / "reference/python"),
        "C++ headers": cpp_api.write_pages(out / "reference/cpp"),
    }
    write_lists(out)
    add_contents(tomllib.loads((HERE / "contents.toml").read_text()), out)
    print("-- " + ", ".join(f"{count} {name}" for name, count in counts.items()))


if __name__ == "__main__":
    main()
