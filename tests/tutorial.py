"""Run a documentation page: its fenced blocks in order.

The blocks share one namespace and one folder.

| fence | action |
|---|---|
| `python` | runs |
| `python gpu` | runs on a machine with an NVIDIA GPU, with those before it |
| `python excerpt` | must compile; does not run |
| `LANGUAGE title="NAME"` | is the file `NAME` of the folder |
| `text` right after a `python` block | is the expected output of that block |

A page with the comment `<!-- continues OTHER.md -->` starts where the other page ends.
"""

from __future__ import annotations

import contextlib
import functools
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: Path
    line: int
    """Line number of its text, from 1."""
    language: str
    words: tuple[str, ...]
    """Words after the language."""
    text: str
    printed: str | None = None
    """Expected output on the page."""

    @property
    def title(self) -> str | None:
        """Name of the block's file, or None."""
        titles = [word.removeprefix('title="').removesuffix('"') for word in self.words if word.startswith('title="')]
        return titles[0] if titles else None

    @property
    def runs(self) -> bool:
        """The block is Python to run, on a GPU at least."""
        return self.language == "python" and self.title is None and "excerpt" not in self.words

    @property
    def needs_gpu(self) -> bool:
        """The block runs on a GPU only."""
        return "gpu" in self.words

    def compiled(self) -> Any:
        """Return its compiled code, with the page's line numbers."""
        return compile("\n" * (self.line - 1) + self.text, str(self.page), "exec", dont_inherit=True)


@functools.cache
def blocks(page: Path) -> list[Block]:
    """Read a page's blocks, after those of the page it continues."""
    text = page.read_text()
    found = []
    if before := re.search(r"<!-- continues (\S+) -->", text):
        found = [*blocks(page.parent / before[1])]
    fences = [token for token in MarkdownIt().parse(text) if token.type == "fence"]
    for fence, after in zip(fences, [*fences[1:], None], strict=False):
        assert fence.map is not None
        language, *words = fence.info.split() or [""]
        shown = after.content if after is not None and after.info.split() == ["text"] else None
        block = Block(page, fence.map[0] + 2, language, tuple(words), fence.content, shown)
        unknown = [word for word in words if word not in ("gpu", "excerpt") and not word.startswith('title="')]
        assert not unknown, f"{page}:{block.line}: unknown words {unknown} after {language!r}"
        found.append(block)
    return found


def links(page: Path) -> list[str]:
    """Return the targets of a page's links and images."""
    inline = [child for token in MarkdownIt().parse(page.read_text()) for child in token.children or ()]
    return [str(target) for each in inline if (target := each.attrGet("href") or each.attrGet("src"))]


def run(page: Path, folder: Path, namespace: dict[str, Any], *, has_gpu: bool) -> int:
    """Run a page; returns how many of its blocks ran.

    Args:
        page: Markdown file.
        folder: Where its files are written; the current one.
        namespace: In which its blocks run.
        has_gpu: Whether the blocks that need a GPU run.

    Raises:
        AssertionError: A block prints something else than the page shows.
    """
    n_run = 0
    for block in blocks(page):
        if block.title is not None:
            (folder / block.title).write_text(block.text)
        elif block.language == "python":
            code = block.compiled()
            if block.runs and (has_gpu or not block.needs_gpu):
                with contextlib.redirect_stdout(io.StringIO()) as output:
                    exec(code, namespace)
                got, want = output.getvalue(), block.printed
                assert want in (None, got), f"{block.page}:{block.line} prints\n{got}\nand the page shows\n{want}"
                n_run += 1
    return n_run
