"""How every command reads its options."""

import argparse
import sys
from difflib import get_close_matches

from katt_report.text import printable


class Parser(argparse.ArgumentParser):
    """Complains in one line, with the option that was meant."""

    def error(self, message):
        unknown = message.partition("unrecognized arguments: ")[2].partition(" ")[0].partition("=")[0]
        if unknown.startswith("-"):
            message = f"{unknown}: unknown option{meant(unknown, list(self._option_string_actions))}"
        print(f"katt-report: {printable(message)}; see {self.prog} --help", file=sys.stderr)
        raise SystemExit(2)


def meant(word: str, known) -> str:
    """", did you mean NAME?" for the nearest of the known words, if one is near."""
    near = get_close_matches(word, known, 1)
    return f", did you mean {near[0]}?" if near else ""


def positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"holds {text}, expected a positive number")
    return value


def fraction(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"holds {text}, expected a fraction from 0 to below 1")
    return value
