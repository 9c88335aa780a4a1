"""Pages of the public names of the Python packages: katt, katt.torch and katt_report.

Public is what `__all__` names, and of a class its methods and properties without an underscore. Every name has a
docstring, which of katt and katt.torch names every parameter; what lacks one ends the build.
"""

import ast
import importlib
import inspect
import re
import sys
from pathlib import Path

PARAMETERS_NAMED = {"katt", "katt.torch"}
UNNAMED = {"self", "cls", "args", "kwargs"}


class Name:
    """A public name: its signature without a default's address, its docstring, and its members."""

    def __init__(self, name, kind, signature="", doc="", members=()):
        self.name, self.kind, self.signature, self.doc = name, kind, signature, inspect.cleandoc(doc or "")
        self.members = list(members)
        self.parameters = (
            re.findall(r"(?:^|[(,])\s*\*{0,2}(\w+)(?=\s*[:=,)])", signature.split("->")[0]) if signature else []
        )


# Docstrings as reStructuredText


def escaped(text):
    """Prose of a docstring: only `code` is marked up."""
    parts = re.split(r"`([^`]+)`", text)
    out = []
    for index, part in enumerate(parts):
        out.append(f"``{part}``" if index % 2 else re.sub(r"([\\*_|`])", r"\\\1", part))
    return "".join(out)


def rst(doc):
    """Paragraphs; `name: text` with an indented continuation is an entry of a list, other indented lines are literal."""
    out, lines = [], doc.split("\n")
    entry = re.compile(r"^(\*{0,2}[a-z]\w*(?:, \*{0,2}\w+)*(?: \(.*?\))?): (.+)$")
    index = 0
    while index < len(lines):
        line = lines[index]
        found = entry.match(line)
        if found:
            text = [found[2]]
            while index + 1 < len(lines) and lines[index + 1].startswith("    "):
                index += 1
                text.append(lines[index].strip())
            out += ["", f"* **{escaped(found[1])}**: {escaped(' '.join(text))}", ""]
        elif line.startswith("    "):
            out += ["", "::", ""]
            while index < len(lines) and (lines[index].startswith("    ") or not lines[index].strip()):
                out.append(lines[index])
                index += 1
            out.append("")
            continue
        else:
            out.append(escaped(line))
        index += 1
    return re.sub(r"\n{3,}", "\n\n", "\n".join(out)).strip()


# Signatures and docstrings of the packages


def signature_text(function):
    try:
        text = str(inspect.signature(function))
    except ValueError:
        return "()"
    text = re.sub(r"<object object at [^>]*>|<\w+ object at [^>]*>", "…", text)
    text = re.sub(r"(: |-> )'([^']*)'(?=,| = |\)|$)", r"\1\2", text)  # annotations that are texts
    return re.sub(r"\b(?:collections\.abc|typing|katt\.\w+|pathlib|katt_report\.[\w.]+)\.", "", text)


def described(name, thing):
    """A Name of an object of an imported package."""
    if inspect.isclass(thing):
        members = []
        for key, member in sorted(vars(thing).items()):
            if key.startswith("_"):
                continue
            if isinstance(member, property):
                members.append(Name(key, "property", "", member.__doc__))
            elif isinstance(member, (staticmethod, classmethod)) or inspect.isroutine(member):
                function = getattr(thing, key)
                members.append(Name(key, "method", without_self(signature_text(function)), function.__doc__))
        bases = inspect.signature(thing.__init__) if "__init__" in vars(thing) else None
        doc = thing.__doc__ if thing.__doc__ and not thing.__doc__.startswith(f"{thing.__name__}(") else ""
        return Name(name, "class", without_self(signature_text(thing)) if bases else "", doc, members)
    return Name(name, "function", signature_text(thing), thing.__doc__)


def without_self(text):
    return re.sub(r"^\(self(?:, )?", "(", text)


def imported(module):
    package = importlib.import_module(module)
    names = [name for name in package.__all__ if not name.startswith("__")]
    if module == "katt":
        names.append("open")
    return inspect.cleandoc(package.__doc__ or ""), [described(name, getattr(package, name)) for name in sorted(names)]


def parsed(folder: Path, stub: str):
    """The names of a package that cannot be imported without its libraries, from its source and its stub."""
    package = ast.parse((folder / "__init__.py").read_text())
    definitions, listed = {}, []
    for source in [*(module.read_text() for module in folder.glob("_*.py")), stub]:
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                signature = f"({ast.unparse(node.args)})" + (f" -> {ast.unparse(node.returns)}" if node.returns else "")
                definitions[node.name] = Name(node.name, "function", signature, ast.get_docstring(node))
    for node in package.body:
        if isinstance(node, ast.Assign) and node.targets[0].id == "__all__":
            listed = [item.value for item in node.value.elts if isinstance(item, ast.Constant)]
    listed += [node.name for node in ast.parse(stub).body if isinstance(node, ast.FunctionDef)]
    missing = [name for name in listed if name not in definitions]
    if missing:
        sys.exit(f"docs: katt.torch: names {', '.join(missing)}, which no module defines")
    return ast.get_docstring(package), [definitions[name] for name in sorted(set(listed))]


# Pages


def lacks(module, name, owner=""):
    """Gaps in the docstring of a public name, a line each."""
    full = ".".join(part for part in (module, owner, name.name) if part)
    if not name.doc:
        yield f"{full}: has no docstring"
    for parameter in name.parameters if name.kind in ("function", "method") else []:
        if (
            module in PARAMETERS_NAMED
            and parameter not in UNNAMED
            and not re.search(rf"\b{re.escape(parameter)}\b", name.doc)
        ):
            yield f"{full}: its docstring does not name {parameter}"
    for member in name.members:
        yield from lacks(module, member, name.name)


def directive(module, name, indent=""):
    lines = [f"{indent}.. py:{name.kind}:: {name.name}{name.signature}", ""]
    lines += [f"{indent}   {line}".rstrip() for line in rst(name.doc).split("\n")]
    for member in name.members:
        lines += ["", *directive(module, member, indent + "   ")]
    return lines


def page(module, doc, names):
    title = f"The package {module}"
    lines = [title, "=" * len(title), "", rst(doc), "", f".. py:module:: {module}", ""]
    for name in names:
        lines += [name.name, "-" * len(name.name), "", *directive(module, name), ""]
    return "\n".join(lines)


def write(root: Path, out: Path) -> int:
    """Writes the pages and returns the number of names; ends the program where a name lacks its docstring."""
    out.mkdir(parents=True)
    schema = importlib.import_module("katt._schema")
    stub = schema.stub(schema.plans(importlib.import_module("katt._katt").passes()), in_torch=True)
    packages = {
        "katt": imported("katt"),
        "katt.torch": parsed(root / "python/katt/torch", stub),
        "katt_report": imported("katt_report"),
    }
    text = "# Python\n\nEvery public name of the packages, from their docstrings. How to use them: "
    text += "[Katt from Python](../../python.md).\n"
    for module, (doc, names) in packages.items():
        (out / f"{module.replace('.', '_')}.rst").write_text(page(module, doc, names))
    (out / "index.md").write_text(
        text + __import__("commands").toctree([name.replace(".", "_") for name in packages], is_hidden=False)
    )
    missing = [line for module, (_, names) in packages.items() for name in names for line in lacks(module, name)]
    if missing:
        sys.exit("\n".join(f"docs: {line}" for line in missing))
    return sum(1 + len(name.members) for _, names in packages.values() for name in names)
