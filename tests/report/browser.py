"""Pages in a browser, where there is one: Chromium or Chrome without a window."""

import html
import json
import re
import shutil
import subprocess

import pytest

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


needs_browser = pytest.mark.skipif(PROGRAM is None, reason="no chromium or google-chrome in PATH")


def _dom(path, folder) -> str:
    """The document after its scripts have run."""
    if not PROGRAM:
        pytest.skip("no chromium or google-chrome in PATH")
    done = subprocess.run(
        [PROGRAM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}",
         "--window-size=1200,900", "--virtual-time-budget=3000", "--dump-dom", path.as_uri()],
        capture_output=True, text=True, timeout=120)  # fmt: skip
    if done.returncode or "<html" not in done.stdout:
        pytest.skip(f"{PROGRAM} does not start here: {done.stderr.strip().splitlines()[-1:]}")
    return done.stdout


def shown(text: str, folder) -> str:
    """A page as it is, after its own scripts."""
    path = folder / "page.html"
    path.write_text(text)
    return _dom(path, folder)


def driven(text: str, actions: str, folder):
    """What the statements `actions`, the body of an async function on the page, return. The page's policy, which admits
    no script but its own, is taken away for this."""
    text = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    driver = ("(async function () {" + actions + "})().catch((error) => 'ERROR ' + error + error.stack).then(function (found) {"
              "const out = document.createElement('pre'); out.id = 'found'; out.textContent = JSON.stringify(found);"
              "document.body.append(out); });")  # fmt: skip
    path = folder / "driven.html"
    path.write_text(text.replace("</body>", f"<script>{driver}</script></body>"))
    found = re.search('<pre id="found">(.*?)</pre>', _dom(path, folder), re.DOTALL)
    return json.loads(html.unescape(found[1]))
