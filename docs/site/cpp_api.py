#!/usr/bin/env python3
"""cpp_api.py BUILD_DIR: reads the public headers of api.toml with Doxygen into BUILD_DIR/xml and checks them.

  names    every namespace member, class, public member, macro and enumerator of a public header has a docstring
  shapes   a tensor among the arguments of an operator says its shape
  formulas the header of an operator says what it computes

What lacks one is printed, a line each; exit status 1. The pages, made by write_pages(), show the XML through Breathe.
"""

import re
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

from doxygen_filter import group_of

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

CONFIGURATION = """
PROJECT_NAME = katt
OUTPUT_DIRECTORY = {out}
INPUT = {inputs}
INPUT_FILTER = "{python} {filter}"
FULL_PATH_NAMES = NO
GENERATE_HTML = NO
GENERATE_LATEX = NO
GENERATE_XML = YES
XML_PROGRAMLISTING = NO
EXTRACT_ALL = YES
EXTRACT_STATIC = YES
EXCLUDE_SYMBOLS = *::impl *::impl::* Kokkos
JAVADOC_AUTOBRIEF = NO
AUTOLINK_SUPPORT = NO
ENABLE_PREPROCESSING = YES
MACRO_EXPANSION = YES
EXPAND_ONLY_PREDEF = YES
SEARCH_INCLUDES = NO
PREDEFINED = KOKKOS_FUNCTION= KOKKOS_INLINE_FUNCTION=inline KOKKOS_FORCEINLINE_FUNCTION=inline KATT_BUILDING=1
WARN_IF_UNDOCUMENTED = NO
QUIET = YES
"""


def pages() -> list[dict]:
    return tomllib.loads((HERE / "api.toml").read_text())["page"]


def path_of(header: str) -> Path:
    for path in (ROOT / "src" / header, ROOT / header):
        if path.exists():
            return path
    sys.exit(f"docs: api.toml: holds {header}, which does not exist")


def read_headers(out: Path) -> list[str]:
    """Runs Doxygen; returns its warnings."""
    inputs = " ".join(str(path_of(header)) for page in pages() for header in page["headers"])
    configuration = CONFIGURATION.format(
        out=out, inputs=inputs, python=sys.executable, filter=HERE / "doxygen_filter.py", root=ROOT
    )
    done = subprocess.run(["doxygen", "-"], input=configuration, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"docs: doxygen: {done.stderr}")
    return [line for line in done.stderr.splitlines() if line.strip()]


def qualify(xml: Path):
    """Gives the members of a group their namespace, which Breathe leaves out."""
    for file in xml.glob("group__*.xml"):
        tree = ET.parse(file)
        for member in tree.getroot().iter("memberdef"):
            qualified = member.findtext("qualifiedname")
            if qualified:
                member.find("name").text = qualified
        tree.write(file, encoding="utf-8")


# Descriptions of the names


def said(element) -> str:
    return " ".join(
        "".join(element.find(part).itertext()).strip() for part in ("briefdescription", "detaileddescription")
    ).strip()


def is_public(name: str) -> bool:
    return "::impl" not in name and "@" not in name


def names(xml: Path):
    """(file, qualified name, kind, type, docstring) of every public name."""
    seen = set()
    for file in sorted(xml.glob("*.xml")):
        for compound in ET.parse(file).getroot().iter("compounddef"):
            kind, owner = compound.get("kind"), compound.findtext("compoundname")
            if kind not in ("struct", "class", "namespace", "group", "file") or compound.get("prot") == "private":
                continue
            if kind in ("struct", "class") and is_public(owner):
                yield compound.find("location").get("file"), owner, kind, "", said(compound)
            for member in compound.iter("memberdef"):
                full = member.findtext("qualifiedname") or member.findtext("name")
                hidden = member.get("prot") in ("private", "protected") or member.get("kind") == "friend"
                if member.get("id") in seen or hidden or not is_public(full) or is_given(member):
                    continue
                seen.add(member.get("id"))
                place = member.find("location").get("file")
                written = "".join(member.find("type").itertext()) if member.find("type") is not None else ""
                yield place, full, member.get("kind"), written, said(member)
                for value in member.iter("enumvalue"):
                    yield place, f"{full}::{value.findtext('name')}", "enumvalue", "", said(value)


def is_given(member) -> bool:
    """True for what the language gives every class: copies, moves, defaults, the destructor."""
    name, arguments = member.findtext("name"), member.findtext("argsstring") or ""
    if arguments.rstrip().endswith(("=default", "=delete", "= default", "= delete")) or name.startswith("~"):
        return True
    return False


def missing(xml: Path):
    headers = {str(path_of(header).relative_to(ROOT)): header for page in pages() for header in page["headers"]}
    for place, name, kind, written, doc in names(xml):
        file = place.removeprefix(f"{ROOT}/")
        file = file if file in headers else f"src/{file}"
        if file not in headers:
            continue
        if not doc:
            yield f"{file}: {name}: has no docstring"
        elif re.search(r"\bTensorRef|ConstTensorRef", written) and kind == "variable" and "Args" in name:
            if not re.search(r"\(.*\)|shape|as `?\w+`?", doc):
                yield f"{file}: {name}: its docstring does not say its shape"
    for file in headers:
        match = re.fullmatch(r"src/ops/(\w+)/\1\.hpp", file)
        if match and not re.search(r"^///.*[=←]", (ROOT / file).read_text(), re.MULTILINE):
            yield f"{file}: says no formula"


# Pages


def write_pages(out: Path) -> int:
    out.mkdir(parents=True)
    text = (
        "# C++\n\nThe public headers, as Doxygen reads them. A program includes them as `katt/…`, such as "
        "`<katt/ops/attention/attention.hpp>`, and links `katt::ops`, `katt::nn`, `katt::katt` or `katt::driver` "
        "([architecture](../../architecture.md)). Every other header, and every namespace `impl`, is Katt's own. What a "
        "new operator is made of has a page of its own, [adding an operator](../../add_an_op.md). Formulas stand at the "
        "head of a header, shapes beside the tensors, fastest axis last; times are in seconds, sizes in bytes.\n\n"
    )
    rows, count = [], 0
    for page in pages():
        lines = [page["title"], "=" * len(page["title"]), ""]
        for header in page["headers"]:
            title = f"``katt/{header}``"
            group = f".. doxygengroup:: {group_of(header)}"
            lines += [title, "-" * len(title), "", group, "   :desc-only:", ""]
            lines += [group, "   :content-only:", "   :members:", ""]
            count += 1
        (out / f"{page['name']}.rst").write_text("\n".join(lines))
        rows.append(
            f"| [{page['title']}]({page['name']}.rst) | {', '.join(f'`{header}`' for header in page['headers'])} |\n"
        )
    text += "| page | headers |\n| --- | --- |\n" + "".join(rows)
    listed = "\n".join(page["name"] for page in pages())
    (out / "index.md").write_text(f"{text}\n```{{toctree}}\n:hidden:\n\n{listed}\n```\n")
    return count


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out = Path(sys.argv[1]).resolve()
    problems = [*read_headers(out), *missing(out / "xml")]
    count = sum(1 for _ in names(out / "xml"))
    qualify(out / "xml")
    print(*problems, sep="\n", end="\n" if problems else "")
    print(f"-- {count} public C++ names, {len(problems)} objections")
    sys.exit(bool(problems) or not count)


if __name__ == "__main__":
    main()
