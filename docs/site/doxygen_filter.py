#!/usr/bin/env python3
"""doxygen_filter.py FILE: prints a header as Doxygen reads it.

formulas   lines of a comment that stand two blanks or more to the right of its text are literal blocks; as text they
           would run together
requires   a constraint of C++20 between a template's head and its declaration, which Doxygen 1.9.4 takes for a name,
           goes; the reader finds it in the header
group      a header is a group with the comment before its namespace: several headers share a namespace
lists      `int a, b;` are two members, each with the comment
values     designated initialisers, which Breathe does not know, are {}
signs      < > # @ \\ and % of a comment are themselves, no commands
"""

import re
import sys

LIST = re.compile(
    r"^(\s+)([\w:]+(?:<[\w:, ]+>)?) (\w+(?: = [^,;()]+|{})?(?:, \w+(?: = [^,;()]+|{})?)+);(?:\s*///< ?(.*))?$"
)
COMMENT = re.compile(r"^(\s*)///(<?)(.*)$")


def escaped(text):
    return re.sub(r"([\\@<>#%&])", r"\\\1", text)


def comment(lines):
    """The lines of one comment, without their slashes."""
    widths = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    left = min(widths, default=0)
    is_literal = False
    for index, line in enumerate(lines):
        deep = line.strip() and len(line) - len(line.lstrip()) >= left + 2
        bullet = re.match(r"\s*([-*]|\d+\.) ", line)
        if deep and not bullet and not is_literal:
            yield "~~~{.unparsed}"
            is_literal = True
        elif is_literal and not deep and (line.strip() or not following_is_deep(lines[index:], left)):
            yield "~~~"
            is_literal = False
        yield line[left:] if is_literal else escaped(line[left:])
    if is_literal:
        yield "~~~"


def following_is_deep(lines, left):
    for line in lines:
        if line.strip():
            return len(line) - len(line.lstrip()) >= left + 2
    return False


def without_requires(text):
    """Takes `requires …` before the declaration that follows."""
    out, at = [], 0
    for match in re.finditer(r"(?<=\n)[ \t]*requires\b", text):
        if match.start() < at:
            continue
        out.append(text[at : match.start()])
        at = end_of_constraint(text, match.end())
    return "".join([*out, text[at:]])


def end_of_constraint(text, at):
    """Behind `requires`: primary expressions (…) or names<…>, joined by && and ||."""
    while True:
        at = re.compile(r"\s*!?\s*").match(text, at).end()
        if text[at] != "(":
            at = re.compile(r"[\w:]+").match(text, at).end()
        while text[at] in "<(":
            at = closing(text, at)
            at = re.compile(r"(::\w+)*").match(text, at).end()
        joined = re.compile(r"\s*(&&|\|\|)").match(text, at)
        if not joined:
            return at
        at = joined.end()


def closing(text, at):
    """Behind the bracket that closes the one at `at`."""
    opening, ending = text[at], {"<": ">", "(": ")"}[text[at]]
    depth = 0
    while True:
        depth += (text[at] == opening) - (text[at] == ending and text[at - 1] != "-")
        at += 1
        if depth == 0:
            return at


def group_of(path):
    """The name of a header's group: of src/op/variants.hpp op_variants_hpp."""
    return re.sub(r"\W", "_", re.sub(r".*?\b(?:src/|(?=drivers/))", "", path, count=1))


def filtered(text, path):
    out, block, indent, name, depth = [], [], "", group_of(path), 0

    def flush():
        if block:
            out.extend(f"{indent}/// {line}".rstrip() for line in comment(block))
            block.clear()

    for line in without_requires(text).split("\n"):
        found = COMMENT.match(line)
        if found and not found[2]:
            indent = found[1]
            block.append(found[3])
            continue
        members = LIST.match(line)
        if members:
            texts = block or ([f" {members[4]}"] if members[4] else [])
            for member in members[3].split(", "):
                out.extend(f"{members[1]}/// {text}".rstrip() for text in comment(texts))
                out.append(f"{members[1]}{members[2]} {member};")
            block.clear()
            continue
        opens = re.match(r"namespace (katt\S*) {$", line)
        if opens:
            out.append(f"/// @addtogroup {name}" if block else "")
            if block:
                out.append("///")
            flush()
            out += [line, f"/// @addtogroup {name}", "/// @{", ""]
            depth += 1
            continue
        flush()
        if depth and re.match(r"}  // namespace katt", line):
            out += ["/// @}", line]
            depth -= 1
            continue
        line = re.sub(r"\{\.[^{}]*\}", "{}", line)
        trailing = re.search(r"///< ?(.*)$", line)
        if trailing:
            line = line[: trailing.start(1)] + escaped(trailing[1])
        out.append(line)
    flush()
    return "\n".join(out)


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        print(filtered(file.read(), sys.argv[1]))
