"""The error that the user caused."""

from katt_report.text import printable


class InputError(Exception):
    """Bad input: a file or option with a wrong content (exit status 2, one line)."""

    def __init__(self, name, holds: str, expected: str):
        super().__init__(name, holds, expected)

    def __str__(self) -> str:
        name, holds, expected = self.args
        return printable(" ".join(f"{name}: holds {holds}, expected {expected}".split()))
