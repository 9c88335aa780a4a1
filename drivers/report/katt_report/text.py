"""Text for people: bytes, seconds, rates, ratios, names of points, strings of untrusted files, and what the program says
on stderr."""

import math
import re
import sys

# Control characters, characters that change the direction of a line, and characters outside of
# UTF-8 or XML.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def printable(text: str, keep: str = "") -> str:
    """A string of a foreign file in a form that terminals, HTML and SVG can show: other characters,
    except those of `keep`, become U+FFFD."""
    return _UNPRINTABLE.sub(lambda found: found[0] if found[0] in keep else "\N{REPLACEMENT CHARACTER}", text)


def significant(value: float, digits: int = 3) -> str:
    """A number with `digits` significant digits, without an exponent when that stays short.

    0 digits: as many as it needs, without trailing zeros (for ticks).
    """
    if digits == 0:
        return f"{value:g}"
    if not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if -4 <= magnitude < 6:
        return f"{value:.{max(digits - 1 - magnitude, 0)}f}"
    return f"{value:.{digits - 1}e}"


def _scaled(value: float, steps: list[tuple[float, str]], digits: int) -> str:
    for size, unit in steps:
        if abs(value) >= size:
            return f"{significant(value / size, digits)} {unit}"
    return f"{significant(value / steps[-1][0], digits)} {steps[-1][1]}"


def bytes_text(value: float, digits: int = 3) -> str:
    """Bytes in binary units: 75.2 MiB."""
    if not math.isfinite(value):
        return "–"
    if abs(value) < 1024:
        return f"{value:.0f} B"
    return _scaled(value, [(2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB")], digits)


def seconds_text(value: float, digits: int = 3) -> str:
    """Seconds in the unit that suits: 12.3 ms."""
    if not math.isfinite(value):
        return "–"
    return _scaled(value, [(1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")], digits)


def rate_text(value: float, unit: str, digits: int = 3) -> str:
    """FLOP/s, B/s or Hz with a decimal prefix: 412 GFLOP/s."""
    if not math.isfinite(value):
        return "–"
    steps = [(1e12, f"T{unit}"), (1e9, f"G{unit}"), (1e6, f"M{unit}"), (1e3, f"k{unit}"), (1.0, unit)]
    return _scaled(value, steps, digits)


def percent_text(fraction: float) -> str:
    """A fraction as a percentage: 41 %, 0.8 %."""
    if not math.isfinite(fraction):
        return "–"
    value = 100.0 * fraction
    return f"{value:.0f} %" if abs(value) >= 9.95 or value == 0 else f"{significant(value, 2)} %"


def ratio_text(value: float) -> str:
    """A ratio without the sign ×: 3.14, 0.95, 12.3."""
    return significant(value, 3)


def range_text(low: float, high: float, say) -> str:
    """`2.90–3.30`, `12.1–12.4 ms`; empty where an end is not known. `say` gives a value with its unit."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    # Both ends in the unit of the upper end, so that the unit stands once.
    first, last = say(low), say(high)
    same = first.partition(" ")[2] == last.partition(" ")[2]
    return f"{first.partition(' ')[0] if same else first}–{last.partition(' ')[0] if same else last}"


def interval_text(middle: float, low: float, high: float, say) -> str:
    """`3.10× (95 % interval 2.90×–3.30×)`; without the interval where it is none."""
    between = "" if low == high else range_text(low, high, say)
    return f"{say(middle)} (95 % interval {between})" if between else say(middle)


def error_text(value: float) -> str:
    """An error in scientific notation: 2.1e-07."""
    if not math.isfinite(value):
        return "–"
    return "0" if value == 0 else f"{value:.1e}"


def power_text(value: float) -> str:
    """A number for a tick of a logarithmic axis: 10⁻³, 2 × 10⁻³."""
    if not value > 0 or not math.isfinite(value):
        return ""
    exponent = math.floor(math.log10(value) + 1e-9)
    power = "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    factor = f"{value / 10.0**exponent:.3g}"
    return power if factor == "1" else f"{factor} × {power}"


def value_text(value) -> str:
    """An axis value: numbers short, strings as they are."""
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def names_text(names, values) -> str:
    """`causal = 1, head_dim = 64`; a label stands for itself."""
    return ", ".join(
        value_text(value) if name == "label" and value else f"{name} = {value_text(value) or '–'}"
        for name, value in zip(names, values, strict=True)
    )


def usual_value(column: list):
    """The value of an axis that needs no mention: "off" (0, -1 or "") if it occurs, else one that
    nearly all points have.

    None when there is no such value. With only one value an axis left out, different points stay
    distinct.
    """
    least = min(column, key=lambda value: (isinstance(value, str), value))
    if least in (0, -1, ""):
        return least
    common = max(set(column), key=column.count)
    return common if column.count(common) > 0.7 * len(column) else None


def columns_text(lines) -> list[str]:
    """Lines of cells as lines of text whose columns are aligned."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def list_text(items: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


QUIET, USUAL, VERBOSE = range(3)
_volume = USUAL


def set_volume(volume: int) -> None:
    """How much `tell` says. Results go to stdout, whatever the volume is."""
    global _volume
    _volume = volume


def tell(line: str, volume: int = USUAL) -> None:
    """Says one line where the volume is at least this one: not with --quiet, or with --verbose alone."""
    if _volume >= volume:
        print(printable(line), file=sys.stderr, flush=True)


def show(line: str) -> None:
    """Says on stdout where a result lies: not with --quiet."""
    if _volume >= USUAL:
        print(line)


def tell_more(line: str) -> None:
    tell(line, VERBOSE)
