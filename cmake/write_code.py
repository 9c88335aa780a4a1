#!/usr/bin/env python3
"""write_code.py --source DIR --build DIR --objects FILE --nm NM -o FILE [--only OP:PATH:VARIANT,…] [--swept DIR:OP,…]

Run by the build when the libraries are there: writes the source of katt::bench::impl::code_table(), which names the
code that the rows of a sweep are made of (docs/published_results.md, "The code of a row").

  from      the objects that define OP's forward_variants() and backward_variants(); of --swept, an operator of another
            name than its folder or something above the operators that is swept like one, the sources in DIR; of a model
            (MODEL), all of its sources
  followed  an object of one source to those that define the symbols that it asks for; to and from sources that were
            compiled several together, the headers that are included to the sources beside them that include them, too
  counted   the project's files that the compiler read for these sources, as it told Ninja (.d files with other generators)
  left out  what measures, checks and writes (APART); of a variant, the sources that serve others alone (--only)
"""

import argparse
import os
import re
import struct
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "drivers/report/katt_report/published"))
from cpp_tokens import code_digest, token_hash  # noqa: E402

APART = re.compile(
    r"^drivers/|^src/(io|measure|plan|process|record|sweep)/|^src/op/(?!variants\.)|/bench/|/reference/|_ref\.|/schema\."
)
MODEL = re.compile(r"^src/(nn|training)/(?!.*/bench/)")
BASELINE = "naive"
PASSES = ("forward", "backward")


def ninja_dependencies(file):
    """Object → files that the compiler read for it, of Ninja's .ninja_deps, versions 3 and 4 (ninja, src/deps_log.h).

    Read here, since `ninja -t deps` opens the file for writing, while the build writes it.
    """
    data = file.read_bytes()
    head = b"# ninjadeps\n"
    (version,) = struct.unpack_from("<i", data, len(head)) if data.startswith(head) else (0,)
    if version not in (3, 4):
        raise SystemExit(f"{file}: holds version {version}, expected 3 or 4")
    stamp = version - 2  # words of the time of the object
    paths, read = [], {}
    at = len(head) + 4
    while at + 4 <= len(data):
        (size,) = struct.unpack_from("<I", data, at)
        record = data[at + 4 : at + 4 + (size & 0x7FFFFFFF)]
        at += 4 + (size & 0x7FFFFFFF)
        if at > len(data):
            break  # Ninja is writing it
        if size >> 31:
            words = struct.unpack(f"<{len(record) // 4}i", record)
            read[words[0]] = words[1 + stamp :]
        else:
            paths.append(record[:-4].rstrip(b"\0").decode(errors="surrogateescape"))
    return {paths[output]: [paths[file] for file in files] for output, files in read.items()}


def makefile_dependencies(build):
    """The same of the compiler's own .d files, OBJECT: FILE…"""
    found = {}
    for file in build.rglob("*.o.d"):
        target, _, files = file.read_text(errors="surrogateescape").replace("\\\n", " ").partition(": ")
        found[target.strip().replace("\\ ", " ")] = [file.replace("\\ ", " ") for file in re.split(r"(?<!\\)\s+", files.strip())]
    return found


class Code:
    """The project's sources in a build."""

    def __init__(self, source, build, objects, nm):
        self.source, self.root = source, source.resolve()
        log = build / ".ninja_deps"
        self.read = {}  # source → files of the project that the compiler read for its object
        self.objects = {}  # source → object, of a source that was compiled alone
        names = {}
        for name, files in (ninja_dependencies(log) if log.exists() else makefile_dependencies(build)).items():
            if os.path.abspath(build / name) not in objects:
                continue  # of another target, or left behind by an earlier configuration
            for file in files:
                if file not in names:
                    names[file] = self._name(build / file)
            of_project = {names[file] for file in files} - {None}
            sources = [file for file in of_project if file.endswith(".cpp")]
            for path in sources:
                self.read[path] = of_project
                if len(sources) == 1:
                    self.objects[path] = build / name
        self.includes = {file: self._includes(file) for file in set().union(*self.read.values())}
        self.beside = defaultdict(set)
        for path in self.read:
            for file in self.includes[path]:
                if Path(file).parent == Path(path).parent:
                    self.beside[file].add(path)
        self.defined, self.asked = self._symbols(nm)
        self.definers = defaultdict(set)
        for path, symbols in self.defined.items():
            for symbol in symbols:
                self.definers[symbol].add(path)

    def _name(self, path):
        path = path.resolve()
        name = path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else ""
        return name if name.startswith(("src/", "drivers/")) else None

    def _includes(self, file):
        lines = re.findall(r'^\s*#\s*include\s*"([^"]+)"', (self.source / file).read_text("utf-8"), re.MULTILINE)
        return [name for line in lines for name in (f"src/{line}", line) if (self.source / name).is_file()]

    def _symbols(self, nm):
        defined, asked = defaultdict(set), defaultdict(set)
        paths = {str(object): path for path, object in self.objects.items()}
        listed = subprocess.run([nm, "-A", "-P", *paths], capture_output=True, text=True, check=True).stdout
        for line in listed.splitlines():
            place, _, rest = line.partition(": ")
            symbol, kind = rest.split()[:2]
            if kind in "UTWVDBRu":
                (asked if kind == "U" else defined)[paths[place]].add(symbol)
        return defined, asked

    def roots(self, op, a_pass):
        """The sources that define the table of variants of a pass."""
        name = f"{a_pass}_variants"
        start = f"_ZN4katt{len(op)}{op}{len(name)}{name}I"
        return [path for path, symbols in self.defined.items() if any(symbol.startswith(start) for symbol in symbols)]

    def closure(self, path):
        """The files that a source includes, itself among them."""
        seen, left = set(), [path]
        while left:
            file = left.pop()
            if file in self.read[path] and file not in seen:
                seen.add(file)
                left += self.includes[file]
        return seen

    def files(self, roots, apart=()):
        """The files of the code that begins in these sources; nothing of `apart`, beginnings of paths, counts."""
        own = {Path(root).parent for root in roots if "/bench/" in root}

        def counts(file):
            return not file.startswith(apart) and (Path(file).parent in own or not APART.search(file))

        seen, left, found = set(), list(roots), set()
        while left:
            path = left.pop()
            if path in seen:
                continue
            seen.add(path)
            new = {file for file in self.closure(path) if counts(file)}
            found |= new
            called = {other for symbol in self.asked[path] for other in self.definers[symbol]}
            # Between objects of one source each the symbols tell.
            beside = {other for file in new for other in self.beside[file]}
            called |= {other for other in beside if not (path in self.objects and other in self.objects)}
            left += [other for other in called if counts(other)]
        return frozenset(found)


def rows_of(code, only, swept):
    """(op, pass, variant, files); variant "" stands for those that have no row of their own, pass "" for both."""
    ops = {match[1] for path in code.read if (match := re.match(r"src/ops/(\w+)/", path))}
    ops -= {folder.removeprefix("src/ops/") for folder, _ in swept}
    for op in sorted(ops):
        for a_pass in PASSES:
            roots = code.roots(op, a_pass)
            if not roots:
                continue
            rooms = {f"src/ops/{op}/{path}": variants for an_op, path, variants in only if an_op == op}
            for variant in ["", *sorted({variant for variants in rooms.values() for variant in variants})]:
                others = tuple(room for room, own in rooms.items() if not {variant, BASELINE} & set(own))
                yield op, a_pass, variant, code.files(roots, others)
    for folder, names in swept:
        is_above = folder.endswith("/bench")
        roots = [path for path in code.read if path.startswith(f"{folder}/") and (is_above or not APART.search(path))]
        for op in names:
            for a_pass in PASSES:
                yield op, a_pass, "", code.files(roots)
    if roots := [path for path in code.read if MODEL.match(path)]:
        yield "model", "", "", code.files(roots)


def text_of(source, rows):
    """The generated source."""
    rows = list(rows)
    if not rows:
        return '#include "op/code.hpp"\n\nkatt::bench::CodeTable katt::bench::impl::code_table() { return {}; }\n'
    files = sorted(set().union(*(row[3] for row in rows)))
    tokens = {file: token_hash((source / file).read_text("utf-8", errors="surrogateescape")) for file in files}
    number = {file: index for index, file in enumerate(files)}
    digests = {held: code_digest({file: tokens[file] for file in held}) for *_, held in rows}
    lines = ["// Generated by cmake/write_code.py.", '#include "op/code.hpp"', "", "namespace katt::bench::impl {"]
    lines += ["namespace {", "constexpr CodeFile files[] = {"]
    lines += [f'    {{"{file}", "{tokens[file]}"}},' for file in files]
    lines += ["};"]
    for held, digest in sorted({digest: held for held, digest in digests.items()}.items()):
        numbers = ", ".join(str(number[file]) for file in sorted(digest))
        lines += [f"constexpr std::uint16_t of_{held}[] = {{{numbers}}};"]
    lines += ["constexpr Code codes[] = {"]
    for op, a_pass, variant, held in rows:
        lines += [f'    {{"{op}", "{a_pass}", "{variant}", "{digests[held]}", of_{digests[held]}}},']
    lines += ["};", "}  // namespace", "", "CodeTable code_table() { return {files, codes}; }"]
    return "\n".join([*lines, "", "}  // namespace katt::bench::impl", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--objects", type=Path, required=True)
    parser.add_argument("--nm", required=True)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--swept", nargs="*", default=[])
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    only = [(op, path, variants.split(",")) for op, path, variants in (text.split(":") for text in options.only)]
    swept = [(folder, names.split(",")) for folder, names in (text.split(":") for text in options.swept)]
    objects = set(map(os.path.abspath, options.objects.read_text().split("\n")))
    code = Code(options.source, options.build, objects, options.nm)
    text = text_of(options.source, rows_of(code, only, swept))
    if not options.output.exists() or options.output.read_text() != text:
        options.output.write_text(text)


if __name__ == "__main__":
    main()
