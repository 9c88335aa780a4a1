"""What the program says for people, on stderr: progress and what it wrote. Results go to stdout, whatever the volume is."""

import sys

from katt_report.text import printable

QUIET, USUAL, VERBOSE = range(3)
_volume = USUAL


def set_volume(volume: int) -> None:
    global _volume
    _volume = volume


def tell(line: str, volume: int = USUAL) -> None:
    """Says one line where the volume is at least this one: not with --quiet, or with --verbose alone."""
    if _volume >= volume:
        print(printable(line), file=sys.stderr, flush=True)


def tell_more(line: str) -> None:
    tell(line, VERBOSE)
