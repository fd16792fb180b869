"""The tour's walks are short, and match the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_FILES = 6
"""Files that a walk may need."""
WALKS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", (ROOT / "docs" / "tour.md").read_text(), re.M | re.S))
"""Text of each walk, by its title."""


def stops(walk: str) -> list[tuple[str, str]]:
    """Return file and excerpt of each stop.

    A stop without a file is in the previous one's.
    """
    file, found = "", []
    for name, excerpt in re.findall(r"^`([\w/]+\.py)`:|^```python excerpt\n(.*?)^```", walk, re.M | re.S):
        file = name or file
        if excerpt:
            found.append((file, excerpt))
    return found


def test_there_are_three_walks():
    """The page has three walks."""
    assert len(WALKS) == 3


@pytest.mark.parametrize("title", WALKS)
def test_walk_is_short(title):
    """A walk opens at most six files."""
    assert 1 < len({file for file, _ in stops(WALKS[title])}) <= MAX_FILES


@pytest.mark.parametrize(("file", "excerpt"), [stop for walk in WALKS.values() for stop in stops(walk)])
def test_excerpts_stand_in_the_code(file, excerpt):
    """Each excerpt is in its file, in order; gaps are allowed."""
    lines = [line.partition("  #")[0].strip() for line in (ROOT / file).read_text().splitlines()]
    place = 0
    for line in map(str.strip, excerpt.splitlines()):
        assert line in lines[place:], f"{file} has no line {line!r} after the one before"
        place = lines.index(line, place) + 1
