"""The documentation builds strictly as a site, which a browser shows."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

import warpdrive_min
from tests.browser import WIDTHS, broken_links, look
from tests.support import CHROMIUM, Page

pytest.importorskip("mkdocstrings", reason="builds the site")

ROOT = Path(__file__).parents[1]
PROBE = Path(__file__).with_name("site_probe.js")


def built(folder):
    """Build the site as `nox -s docs` does; return its pages by path."""
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {path.relative_to(folder).as_posix(): Page(path.read_text()) for path in sorted(folder.rglob("*.html"))}


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


PLANTED = """<title>warpdrive-min</title><p style="width: 2000px">wide</p><img src="missing.png">
<script>console.error("planted")</script>"""


def check(folder, tmp_path, pages):
    """Check that pages fit and have no errors, and that the search finds."""
    (folder / "planted.html").write_text(f"<html><head></head><body>{PLANTED}</body></html>")
    todo = {"pages": [*pages, "planted.html"], "widths": WIDTHS, "words": "rollout"}
    seen = look(folder, tmp_path, PROBE, todo)
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


@pytest.mark.nightly
def test_site_is_complete(tmp_path):
    """The site builds strictly.

    It has the public names and no broken link, requests nothing from elsewhere, and divides pages as GitHub does.
    """
    folder = tmp_path / "site"
    pages = built(folder)
    assert broken_links(folder, pages) == []
    assert {each for page in pages.values() for each in page.loaded if each and "://" in each} == set()
    assert changed_pages(folder) == []
    ids = {each.get("id") for name, page in pages.items() if name.startswith("reference/") for _, each in page.elements}
    assert {name for name in warpdrive_min.__all__ if f"warpdrive_min.{name}" not in ids} == set()


@pytest.mark.nightly
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH to open the site in")
def test_every_page_works_in_a_browser(tmp_path):
    """No page has an error or is too wide."""
    folder = tmp_path / "site"
    check(folder, tmp_path, sorted(built(folder), key=lambda name: name != "index.html"))
