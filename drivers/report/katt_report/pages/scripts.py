"""The scripts of a page: plain JavaScript that travels inside it, and the data that it reads."""

import base64
import hashlib
import json
from pathlib import Path

_FILES = ("tables.js", "figures.js")


def script() -> str:
    """All scripts as one element. Without scripts a page is whole: they add controls, and no content."""
    return f"<script>{_text()}</script>"


def policy() -> str:
    """The element that lets a page run this script alone, and fetch nothing: whatever a file's strings hold."""
    digest = base64.b64encode(hashlib.sha256(_text().encode()).digest()).decode()
    rules = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return f'<meta http-equiv="Content-Security-Policy" content="{rules}">'


def data(css: str, value) -> str:
    """Data for the scripts as JSON that no text in it can end."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f'<script type="application/json" class="{css}">{text}</script>'


def _text() -> str:
    folder = Path(__file__).parent
    return "\n" + "".join((folder / name).read_text(encoding="utf-8") for name in _FILES)
