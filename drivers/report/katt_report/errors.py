"""The error that the user caused, and those that the machine did."""

import errno

from katt_report.text import printable

FAILURES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
"""Errors without a fault of the named file or folder."""


class InputError(Exception):
    """Bad input: a file or option with a wrong content (exit status 2, one line)."""

    def __init__(self, name, holds: str, expected: str):
        super().__init__(name, holds, expected)

    def __str__(self) -> str:
        name, holds, expected = self.args
        return printable(" ".join(f"{name}: holds {holds}, expected {expected}".split()))
