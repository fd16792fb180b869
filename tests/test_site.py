"""The documentation builds strictly as a site, which a browser shows."""

from __future__ import annotations

import functools
import http.server
import json
import posixpath
import queue
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from markdown_it import MarkdownIt

import warpdrive_min
from tests.support import CHROMIUM, Page

pytest.importorskip("mkdocstrings", reason="builds the site")

ROOT = Path(__file__).parents[1]
PROBE = Path(__file__).with_name("site_probe.js")
WIDTHS = (1280, 390)
PAGES = ("index.html", "tutorials/training.html", "sweeps.html", "reference/training.html", "results/index.html")
"""Pages opened by day: doors, code, wide tables, signatures, pictures."""


def built(folder):
    """Build the site as `nox -s docs` does; return its pages by path."""
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {path.relative_to(folder).as_posix(): Page(path.read_text()) for path in sorted(folder.rglob("*.html"))}


def broken_links(folder, pages):
    """Return relative links that lead to no file, or to no element of it."""
    ids = {name: {each["id"] for _, each in page.elements if "id" in each} for name, page in pages.items()}
    broken = []
    for name, page in pages.items():
        for target in {*page.links, *page.loaded}:
            address = urlsplit(target or "")
            if address.scheme or name == "404.html":  # a server shows it at any address
                continue
            path = posixpath.normpath(posixpath.join(posixpath.dirname(name), address.path)) if address.path else name
            is_there = (folder / path).is_file() and (not address.fragment or address.fragment in ids.get(path, ()))
            broken += [] if is_there else [f"{name}: {target}"]
    return broken


def counts(html):
    """Count a page's rows, list items and blocks of code."""
    tags = Counter(tag for tag, _ in Page(html).elements)
    return {tag: tags[tag] for tag in ("h2", "img", "li", "pre", "table", "tr")}


def changed_pages(folder):
    """Return pages that MkDocs divides into other elements than GitHub does."""
    changed = []
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix(".html").as_posix().replace("README.html", "index.html")
        article = (folder / name).read_text().partition("<article")[2].partition("</article>")[0]
        here, there = counts(article), counts(MarkdownIt().enable("table").render(page.read_text()))
        if here != there and page.parent.name != "reference":  # whose elements are of docstrings
            changed.append(f"{page}: {here} on the site, {there} on GitHub; lists need an empty line and four spaces")
    return changed


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serve the site with a probe; put what the probe posts into a queue."""

    def __init__(self, *arguments, todo, seen, **keywords):
        self.todo, self.seen = todo, seen
        super().__init__(*arguments, **keywords)

    def do_GET(self):
        if self.path == "/probe":
            return self._say(
                f"<body><script>{PROBE.read_text()}</script><script>probe({json.dumps(self.todo)})</script>"
            )
        if (file := Path(self.translate_path(self.path))).suffix == ".html" and file.is_file():
            return self._say(file.read_text().replace("<head>", f"<head><script>{WATCH}</script>", 1))
        return super().do_GET()

    def do_POST(self):
        self.seen.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._say("")

    def _say(self, text):
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


WATCH = """
window.errors = [];
const note = (...all) => { errors.push(all.map(each => String(each?.stack ?? each)).join(" ")); };
console.error = console.warn = note;
addEventListener("error", event => note(event.message ?? event.target.src ?? event.target.href), true);
addEventListener("unhandledrejection", event => note(event.reason));
"""


def look(site, tmp_path, pages):
    """Open pages in a browser at each width; return what its probe saw."""
    seen = queue.Queue()
    todo = {"pages": pages, "widths": WIDTHS, "words": "rollout"}
    handler = functools.partial(Handler, todo=todo, seen=seen, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
        words = [str(CHROMIUM), *options, "--remote-debugging-port=0", f"http://127.0.0.1:{server.server_port}/probe"]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as browser:
            try:
                return seen.get(timeout=120)
            finally:
                browser.terminate()
                server.shutdown()


PLANTED = """<title>warpdrive-min</title><p style="width: 2000px">wide</p><img src="missing.png">
<script>console.error("planted")</script>"""


def check(folder, tmp_path, pages):
    """Check that pages fit and have no errors, and that the search finds."""
    (folder / "planted.html").write_text(f"<html><head></head><body>{PLANTED}</body></html>")
    seen = look(folder, tmp_path, [*pages, "planted.html"])
    bad = [each for each in seen["pages"] if each["errors"] or each["pictures"] or each["wide"] > 0]
    assert [each["page"] for each in bad] == ["planted.html"] * len(WIDTHS), bad
    assert all(len(each["errors"]) == 2 and each["pictures"] for each in bad)
    assert all("warpdrive-min" in each["title"] for each in seen["pages"])
    assert len(seen["pages"]) == len(WIDTHS) * (len(pages) + 1)
    for width, found in zip(WIDTHS, seen["searches"], strict=True):
        assert found["errors"] == []
        assert any("EnvWrapper.rollout" in address for address in found["found"])
        assert 0 < found["width"] <= width
        assert found["height"] > 0


def test_site_is_complete_and_works_in_a_browser(tmp_path):
    """The site builds strictly, and some pages work in a browser.

    It has the public names and no broken link, requests nothing from elsewhere, and divides pages as GitHub does.
    """
    folder = tmp_path / "site"
    pages = built(folder)
    assert broken_links(folder, pages) == []
    assert {each for page in pages.values() for each in page.loaded if each and "://" in each} == set()
    assert changed_pages(folder) == []
    ids = {each.get("id") for name, page in pages.items() if name.startswith("reference/") for _, each in page.elements}
    assert {name for name in warpdrive_min.__all__ if f"warpdrive_min.{name}" not in ids} == set()
    if CHROMIUM is not None:
        check(folder, tmp_path, PAGES)


@pytest.mark.nightly
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH to open the site in")
def test_every_page_works_in_a_browser(tmp_path):
    """No page has an error or is too wide."""
    folder = tmp_path / "site"
    check(folder, tmp_path, sorted(built(folder), key=lambda name: name != "index.html"))
