"""How every command reads its options."""

import argparse
import sys
from difflib import get_close_matches
from pathlib import Path

from katt_report.commands.completion import candidates
from katt_report.text import QUIET, USUAL, VERBOSE, list_text, printable, set_volume


class _Formatter(argparse.HelpFormatter):
    """Texts of several lines stay as they are."""

    def _fill_text(self, text, width, indent):
        return text if "\n" in text else super()._fill_text(text, width, indent)


class _Once(argparse._StoreAction):
    """An option with one value refuses a second one, which would replace the first silently."""

    def __call__(self, parser, namespace, values, option_string=None):
        given = namespace.__dict__.setdefault("_given", set())
        if self.option_strings and self.dest in given:
            raise argparse.ArgumentError(self, "holds two values, expected one")
        given.add(self.dest)
        super().__call__(parser, namespace, values, option_string)


class Parser(argparse.ArgumentParser):
    """Complains in one line, with the option that was meant; every command has --verbose, --quiet and examples."""

    completes = False
    """A shell asks what may stand for the last argument: parse_args prints that and ends the program."""
    replaces_nothing = False
    """Without -o DIR."""

    def __init__(self, prog: str, description: str, examples: dict[str, str], more: str = ""):
        """`examples`: command lines, and what each does. `more`: a text before them."""
        shown = "".join(f"  {command}\n      {what}\n" for command, what in examples.items())
        epilog = f"{more}\n\n" * bool(more) + f"Examples:\n{shown}"
        super().__init__(prog=prog, description=description, epilog=epilog, formatter_class=_Formatter)
        self.register("action", None, _Once)
        self.register("action", "store", _Once)
        volume = self.add_mutually_exclusive_group()
        volume.add_argument("-v", "--verbose", action="store_true", help="say more: the files that are read")
        volume.add_argument("-q", "--quiet", action="store_true", help="say nothing but errors and results")

    def add_folder(self, what: str, has_usual: bool = False) -> None:
        """-o DIR for the files of a page, which replace no others without --overwrite; without `has_usual` there is none
        where it is not given."""
        self.replaces_nothing = not has_usual
        self.add_argument("-o", "--output", type=Path, metavar="DIR", help=f"folder for {what}")
        self.add_argument("--overwrite", action="store_true", help="replace files that no earlier page made, too")

    def add_source(self, what: str) -> None:
        found = "that of this program, else the one around the current folder"
        self.add_argument("--source", type=Path, metavar="DIR", help=f"source tree {what} ({found})")

    def parse_args(self, args=None, namespace=None):
        if self.completes:
            print("\n".join(candidates(self, args)))
            raise SystemExit(0)
        options = super().parse_args(args, namespace)
        if self.replaces_nothing and options.overwrite and not (options.output or getattr(options, "figure", None)):
            self.error("--overwrite: holds nothing to replace, expected -o DIR beside it")
        set_volume(VERBOSE if options.verbose else QUIET if options.quiet else USUAL)
        return options

    def _get_value(self, action, arg_string):
        if not arg_string:  # as a path it would be the current folder
            expected = action.metavar or list_text([str(choice) for choice in action.choices or ["a value"]])
            raise argparse.ArgumentError(action, f"holds nothing, expected {expected}")
        return super()._get_value(action, arg_string)

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
