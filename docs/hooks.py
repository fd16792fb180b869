"""Hooks of MkDocs for what Markdown on GitHub allows and MkDocs does not.

* Links to files outside `docs/`: such a file becomes a part of the site, under its own path.
* The first page has no menu at its sides: its doors lead on.
* Words after the language of a fence: `gpu` becomes a title, `excerpt` is removed.
"""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<=\]\()[^)#\s:]+(?=[)#])")
"""Relative target of a link, without its anchor."""
FENCE = re.compile(r"^( *```python) (gpu|excerpt)$", re.MULTILINE)
TITLES = {"gpu": ' title="needs a GPU"', "excerpt": ""}


def path_of(file: File, target: str) -> str:
    """Return the path in the site of a link's target."""
    folder = dirname(Path(str(file.abs_src_path)).relative_to(ROOT).as_posix())
    return normpath(join(folder, target)).removeprefix("docs/")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the linked files outside `docs/`, and those to which these link."""
    pages = list(files.documentation_pages())
    for page in pages:
        for target in LINK.findall(page.content_string):
            path = path_of(page, target)
            if path not in files.src_uris and (ROOT / path).is_file():
                file = File(path, str(ROOT), config.site_dir, config.use_directory_urls)
                files.append(file)
                pages += [file] if file.is_documentation_page() else []
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to the site's files, and title fences."""

    def in_site(link: re.Match[str]) -> str:
        return relpath(path_of(page.file, link[0]), dirname(page.file.src_uri) or ".")

    if page.file.src_uri == "README.md":
        page.meta["hide"] = ["navigation", "toc"]
    if page.file.src_uri.startswith(("results/", "adr/")):
        page.meta["search"] = {"exclude": True}  # tables and old decisions would hide the pages about them
    return FENCE.sub(lambda fence: fence[1] + TITLES[fence[2]], LINK.sub(in_site, markdown))
