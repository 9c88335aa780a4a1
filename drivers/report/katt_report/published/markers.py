"""Numbers of documents, filled in from result files:

    <!-- katt: FILE QUANTITY [NAME=VALUE …] -->2.4<!-- /katt -->

docs/published_results.md says what QUANTITY and NAME may be.
"""

import math
import re
import shlex
from collections.abc import Callable
from pathlib import Path

from katt_report.errors import InputError
from katt_report.published.source import Source, open_source
from katt_report.statistics import Interval, geometric_mean
from katt_report.text import bytes_text, error_text, rate_text, seconds_text, significant, value_text

_MARKER = re.compile(r"<!-- katt: (?P<query>[^\n]*?) -->(?P<text>.*?)<!-- /katt -->", re.DOTALL)
_CODE = re.compile(r"^ {4}.*$|`[^`\n]*<!--[^`\n]*`", re.MULTILINE)
"""Text that shows a marker: an indented line, or one between backticks."""
_BEGINNING = re.compile(r"<!-- (/?)katt\b")
_OPTIONS = ("over", "of", "with", "digits", "down", "across", "value")
_OF = ("range", "median", "min", "max", "geomean", "count")
ABOUT = ("machine", "device", "commit", "date", "command", "rows", "about")


def fill(text: str, document: Path) -> str:
    """The document with every marker's text made again."""

    def filled(found: re.Match) -> str:
        line = text.count("\n", 0, found.start()) + 1
        query = found["query"]
        made = answer(query, document, f"{document}:{line}")
        if "\n" in made:
            made = f"\n\n{made}\n\n"
        return f"<!-- katt: {query} -->{made}<!-- /katt -->"

    shown = {found.span() for found in _CODE.finditer(_closed(text, document))}

    def unless_shown(found: re.Match) -> str:
        is_code = any(first <= found.start() < last for first, last in shown)
        return found[0] if is_code else filled(found)

    return _MARKER.sub(unless_shown, text)


def fill_template(text: str, template: Path, folder: Path, answers: dict[str, Callable[[], str]]) -> str:
    """The template with answers for its markers: by `answers`, else from the files in `folder`; "–" where these lack
    the rows."""

    def filled(found: re.Match) -> str:
        query = found["query"]
        if query in answers:
            return answers[query]()
        return answer(query, folder / "README.md", str(template), missing="–")

    return _MARKER.sub(filled, _closed(text, template))


def _closed(text: str, document: Path) -> str:
    told = _CODE.sub("", text)
    if len(_BEGINNING.findall(told)) != 2 * len(_MARKER.findall(told)):
        raise InputError(document, "a marker that is not closed", "<!-- katt: FILE QUANTITY … -->…<!-- /katt -->")
    return text


def answer(query: str, document: Path, place: str, missing: str | None = None) -> str:
    """The text for the words of a marker; `missing` stands for numbers whose rows the file lacks, else an error."""
    try:
        words = shlex.split(query)
    except ValueError as error:
        raise InputError(place, f"{query} ({error})", "FILE QUANTITY [NAME=VALUE …]") from error
    named = dict(word.split("=", 1) for word in words[2:] if "=" in word)
    if len(words) < 2 or len(named) < len(words) - 2:
        raise InputError(place, query, "FILE QUANTITY [NAME=VALUE …], each NAME once")
    options = {name: named.pop(name) for name in _OPTIONS if name in named}
    source, quantity = open_source(_found(words[0], document, place)), words[1]
    if quantity in ABOUT:
        if words[2:]:
            raise InputError(place, query, f"FILE {quantity} alone")
        return about(source) if quantity == "about" else source.about.get(quantity) or "not recorded"
    value = options.get("value", "speedup") if quantity == "table" else quantity
    table = source.summary if value.startswith("summary/") else source.rows
    value = value.removeprefix("summary/")
    down, across = _listed(options, "down"), _listed(options, "across")
    over = options.get("over", "")
    moved = [part.partition("=")[0] for part in over.split(",")] if "=" in over else []
    _known(place, table, [*(name.removesuffix("!") for name in named), *down, *across, *moved])
    rows = [row for row in table if all(_is(row, name, wanted) for name, wanted in named.items())]
    if not rows:
        if missing is not None:
            return missing
        raise InputError(place, f"{query}, which no row of {words[0]} is", "values of a measured row")
    if _is_paired(source, value):
        if "over" not in options:
            raise InputError(place, query, "ratio over=VARIANT")
        known = source.results.points.values("variant")
        if missing is None and not moved and over not in known:
            raise InputError(place, f"over={over}", f"a variant of {words[0]}: {', '.join(map(str, known))}")
    else:
        _known(place, rows, [value])
    used = ["of", "with", "digits", *["over"] * _is_paired(source, value)]
    used += ["down", "across", "value"] * (quantity == "table")
    unused = [f"{name}={text}" for name, text in options.items() if name not in used]
    unused += [f"with={text}" for text in [options.get("with", "interval")] if text != "interval"]
    if unused:
        raise InputError(place, f"{query}, to which {unused[0]} says nothing", ", ".join(used) + ", with=interval")
    if quantity == "table":
        return _table(source, rows, value, options, place)
    return _number(source, rows, value, options, place)


def _is_paired(source: Source, value: str) -> bool:
    """A ratio of samples; in a file without samples "ratio" is a column."""
    return value == "ratio" and source.results is not None


def about(source: Source) -> str:
    """A line about the making of a file, for the head of its README."""
    held = source.about
    device = f" ({held['device']})" if held.get("device") else ""
    parts = [f"{held['machine']}{device}" if held.get("machine") else ""]
    parts += [f"commit {held['commit']}" if held.get("commit") else "commit not recorded"]
    parts += [held.get("date") or "date not recorded", held.get("rows")]
    return "; ".join(part for part in parts if part)


def _found(name: str, document: Path, place: str) -> Path:
    """./FILE lies beside the document, any other below the nearest folder above it that holds it."""
    folders = [document.parent] if name.startswith("./") else document.absolute().parents
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    raise InputError(place, f"{name}, which does not exist", "a result file, from the root of the tree or ./beside")


def _listed(options: dict, name: str) -> list[str]:
    return options[name].split(",") if name in options else []


def _known(place: str, rows: list[dict], names: list[str]) -> None:
    held = dict.fromkeys(name for row in rows for name in row)  # those of JSON may differ
    for name in names:
        if rows and name not in held:
            raise InputError(place, f"an unknown name {name}", "one of " + ", ".join([*_OPTIONS, *held]))


def _is(row: dict, name: str, wanted: str) -> bool:
    """NAME=VALUE, or NAME!=VALUE."""
    return _equal(row.get(name.removesuffix("!")), wanted) != name.endswith("!")


def _equal(value, wanted: str) -> bool:
    """A column's value is one of those listed: numbers as numbers."""
    for text in wanted.split(","):
        try:
            if float(text) == float(value):
                return True
        except (TypeError, ValueError):
            if text == str(value):
                return True
    return str(value) == wanted  # a text with a comma


def _values(source: Source, rows: list[dict], value: str, options: dict) -> list:
    if _is_paired(source, value):
        found = [source.ratio(row, options["over"]).mid for row in rows if row["variant"] != options["over"]]
    else:
        found = [row[value] for row in rows if row.get(value) is not None]
    return [item for item in found if not isinstance(item, float) or math.isfinite(item)]


def _number(source: Source, rows: list[dict], value: str, options: dict, place: str) -> str:
    of = options.get("of", "range")
    if of not in _OF:
        raise InputError(place, f"of={of}", ", ".join(_OF))
    if not re.fullmatch("[0-9]{1,2}", options.get("digits", "2")):
        raise InputError(place, f"digits={options['digits']}", "a whole number below 100")
    digits = int(options.get("digits", 2))
    if options.get("with") == "interval":
        if len(rows) != 1:
            raise InputError(place, f"with=interval for {len(rows)} rows", "one row")
        row = rows[0]
        found = source.ratio(row, options["over"]) if _is_paired(source, value) else _interval(row, value, place)
        mid, low, high = (_text(value, end, digits) for end in (found.mid, found.lo, found.hi))
        return f"{mid} ({low} to {high})"
    values = _values(source, rows, value, options)
    if of == "count":
        return str(len(values))
    if not values:
        return "–"
    if any(isinstance(one, str) for one in values):
        return ", ".join(dict.fromkeys(map(str, values)))
    if of == "geomean":
        if min(values) <= 0:
            return "–"
        return _text(value, geometric_mean(values), digits)
    if of == "median":
        ordered = sorted(values)
        return _text(value, (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2, digits)
    ends = {"min": [min(values)], "max": [max(values)]}.get(of, [min(values), max(values)])
    return " to ".join(dict.fromkeys(_text(value, end, digits) for end in ends))


def _interval(row: dict, value: str, place: str) -> Interval:
    stem, unit = (value[:-2], "_s") if value.endswith("_s") else (value, "")
    names = [f"{stem}_lo{unit}", f"{stem}_hi{unit}"]
    _known(place, [row], names)
    ends = [row[value], *(row[name] for name in names)]
    if not all(isinstance(end, int | float) for end in ends):
        raise InputError(place, f"with=interval of {ends}", "three numbers")
    return Interval(*ends)


def _text(name: str, value, digits: int) -> str:
    """A number in the unit of its column."""
    if isinstance(value, str | bool):
        return str(value)
    if name == "gbytes_s" or name == "busbw_gbytes_s":
        return rate_text(value * 1e9, "B/s", digits)
    if name == "tflops":
        return rate_text(value * 1e12, "FLOP/s", digits)
    if name.endswith("_bytes") or name == "bytes":
        return bytes_text(value, digits)
    if name.endswith("_err"):
        return error_text(value)
    if name.endswith("tokens_s") or name.startswith("tokens_per_s"):
        return significant(value, max(digits, 3))
    if name.endswith("_s"):
        return seconds_text(value, digits)
    return value_text(value) if isinstance(value, int) else significant(value, digits)


def _table(source: Source, rows: list[dict], value: str, options: dict, place: str) -> str:
    """Rows by the values of `down`, columns by those of `across`, in the order of the file."""
    down, across = _listed(options, "down"), _listed(options, "across")
    if not down or not across:
        raise InputError(place, "a table", "down=NAMES and across=NAMES")
    cells: dict[tuple, list[dict]] = {}
    for row in rows:
        if not _is_paired(source, value) or row["variant"] != options["over"]:
            cells.setdefault(tuple(tuple(row.get(n, "") for n in names) for names in (down, across)), []).append(row)
    lines, heads = (list(dict.fromkeys(key[n] for key in cells)) for n in (0, 1))
    shown = [f"{', '.join(down)}", *(_names(across, head) for head in heads)]
    made = ["| " + " | ".join(shown) + " |", "|" + "---|" * len(shown)]
    for line in lines:
        held = [cells.get((line, head), []) for head in heads]
        texts = [_number(source, rows, value, options, place) if rows else "" for rows in held]
        made.append("| " + " | ".join([", ".join(value_text(v) for v in line), *texts]) + " |")
    return "\n".join(made)


def _names(names: list[str], values: tuple) -> str:
    """Texts speak for themselves, numbers need their name."""
    pairs = zip(names, values, strict=True)
    return ", ".join(v if isinstance(v, str) and v else f"{n} {value_text(v) or '–'}" for n, v in pairs)
