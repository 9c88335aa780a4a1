"""Links of the tree's Markdown, as links of the site.

A document links to files of the tree. On the site a Markdown file is a page, a folder is its README, a picture comes
along, and every other file is at the address of the source, or without an address plain text.
"""

import posixpath
import re
from pathlib import Path
from urllib.parse import quote, unquote

LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(\s*<?([^)\s>]+)>?\s*\)")
CODE = re.compile(r"(`+)(?:(?!\1).)+?\1", re.DOTALL)
MARKER = re.compile(r"<!-- /?katt\b.*?-->", re.DOTALL)
PICTURES = {".png", ".svg", ".jpg"}


def page_of(path: str) -> str:
    """The page of a Markdown file of the tree: docs/ is the top of the site."""
    if path == "README.md":
        return "readme.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return path if "/" in path else path.lower()


def segments(text):
    """(is code, text): blocks of code and code within lines, and the rest."""
    lines, fence, last_blank, indented = text.split("\n"), None, True, False
    prose = []
    for line in lines:
        opening = re.match(r" {0,3}(```+|~~~+)", line)
        is_code = fence is not None or opening is not None
        if opening and fence is None:
            fence = opening[1]
        elif opening and fence and line.strip().startswith(fence):
            fence = None
        elif fence is None:
            indented = line.startswith("    ") and (last_blank or indented)
            is_code = indented
        last_blank = not line.strip()
        if is_code:
            if prose:
                yield from inline("\n".join(prose) + "\n")
                prose = []
            yield True, line + "\n"
        else:
            prose.append(line)
    if prose:
        yield from inline("\n".join(prose))


def inline(text):
    at = 0
    for code in CODE.finditer(text):
        yield False, text[at : code.start()]
        yield True, code[0]
        at = code.end()
    yield False, text[at:]


class Rewriter:
    """Rewrites the links of documents and notes which pages and pictures they lead to."""

    def __init__(self, root: Path, source_url: str):
        self.root, self.source_url = root, source_url.rstrip("/")
        self.pages, self.pictures = set(), set()

    def rewritten(self, path: str, text: str) -> str:
        """The text of the Markdown file `path`, for its page."""
        masked, kept = [], []
        for is_code, part in segments(text):
            if is_code:
                kept.append(part)
                masked.append(f"\0{len(kept) - 1}\0")
            else:
                masked.append(MARKER.sub("", part))
        linked = LINK.sub(lambda found: self.link(path, *found.groups()), "".join(masked))
        return re.sub(r"\0(\d+)\0", lambda found: kept[int(found[1])], linked)

    def link(self, path: str, sign: str, text: str, target: str) -> str:
        if re.match(r"[a-z][a-z0-9+.-]*:", target) or target.startswith("#"):
            return f"{sign}[{text}]({target})"
        name, _, anchor = unquote(target).partition("#")
        place = posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
        file = self.root / place
        if file.is_dir() and (file / "README.md").exists():
            place, file = f"{place}/README.md", file / "README.md"
        here = posixpath.dirname(page_of(path))
        if file.suffix == ".md" and file.exists():
            self.pages.add(place)
            page = posixpath.relpath(page_of(place), here or ".")
            return f"{sign}[{text}]({page}{'#' + anchor if anchor else ''})"
        if sign and file.suffix in PICTURES:
            self.pictures.add(place)
            return f"![{text}]({posixpath.relpath(picture_of(place), here or '.')})"
        if self.source_url:
            return f"[{text}]({self.source_url}/{quote(place)})"
        return text


def picture_of(path: str) -> str:
    return path.removeprefix("docs/")
