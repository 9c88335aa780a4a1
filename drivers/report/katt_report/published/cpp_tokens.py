"""Tokens of C++ sources, and names for code that are made of them: what comments and layout leave as it is.

Needs the standard library alone, since the build runs it, too (cmake/write_code.py).
"""

import hashlib
import re
from collections.abc import Mapping

_SPLICE = "\ue000"
"""Stands for a backslash at the end of a line, which joins the next one to it (C++20, [lex.phases])."""

_TOKEN = re.compile(
    rf"""
    (?P<directive>(?:(?<=\n)|\A)[ \t]*\#[ \t{_SPLICE}]*(?:define[ \t{_SPLICE}]+\w+\(?)?)  # "#", "# define NAME("
  | (?P<newline>\n)
  | (?P<nothing>[^\S\n]+|{_SPLICE}|//[^\n]*|/\*.*?(?:\*/|\Z))
  | (?P<raw>(?:u8|[uUL])?R"(?P<end>[^\s()\\]*)\(.*?\)(?P=end)")
  | (?:u8|[uUL])?(?:"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')  # a text, a character
  | \.?\d(?:'?[\w.]|(?<=[eEpP])[+-]|{_SPLICE}(?=\w))*  # a number
  | [^\W\d](?:\w|{_SPLICE}(?=\w))*  # a word
  | <=>|<<=|>>=|->\*|\.\.\.|[-+*/%&|^<>=!]=|<<|>>|&&|\|\||\+\+|--|->|::|\.\*|\#\#|.
    """,
    re.VERBOSE | re.DOTALL,
)


def tokens(text: str) -> list[str]:
    """The tokens of a C++ source, of every branch of its #if. A line that begins with # ends with the token "\\n".

    Raw strings are kept as they are; `#define F(x)` differs from `#define F (x)`.
    """
    text = re.sub(r"\\[ \t]*\n", _SPLICE, text.replace("\r\n", "\n"))
    found = []
    in_directive = False
    for token in _TOKEN.finditer(text):
        kind, value = token.lastgroup, token[0]
        if kind == "newline":
            if in_directive:
                found.append("\n")
            in_directive = False
        elif kind == "directive":
            in_directive = True
            found.append(" ".join(value.replace(_SPLICE, " ").replace("#", " # ").split()))
        elif kind != "nothing":
            found.append(value.replace(_SPLICE, "\\\n" if kind == "raw" else ""))
    return found


def token_hash(text: str) -> str:
    """16 hex digits that name the tokens of a source."""
    return _digest("\0".join(tokens(text)))


def code_digest(files: Mapping[str, str]) -> str:
    """16 hex digits that name sources, given as path → token_hash()."""
    return _digest("".join(f"{tokens} {path}\n" for path, tokens in sorted(files.items())))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]
