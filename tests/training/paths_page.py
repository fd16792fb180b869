"""Generator of the documentation's tables of paths.

``python -m tests.training.paths_page docs/training-speed.md`` updates the tables of that page.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from warpdrive_min.training.paths.table import PATHS

PLACE = re.compile(r"(<!-- paths: (.+) -->\n)(?:.|\n)*?(<!-- end of paths -->)")
"""Pattern of a table in a page, with the names of its parts."""


MANY = 8
"""Conditions shared with the row above from which on a row lists its differences."""


def table_of(parts: Iterable[str]) -> str:
    """Return a Markdown table of parts' paths, fastest first, with their rules."""
    lines = ["| part | path | needs |", "|---|---|---|"]
    for part in parts:
        above: list[str] = []
        for path in PATHS[part]:
            needs = list(dict.fromkeys(rule.needs for rule in path.rules))
            lines.append(f"| {part} | {path.name} | {needs_of(needs, above)} |")
            part, above = "", needs
    return "\n".join(lines) + "\n"


def needs_of(needs: list[str], above: list[str]) -> str:
    """Return a path's conditions, or their differences from the row above."""
    if len(set(needs) & set(above)) < MANY:
        return "; ".join(needs) or "nothing"
    more = [need for need in needs if need not in above]
    less = "; ".join(need for need in above if need not in needs)
    return "; ".join([*more, "the conditions of the row above"]) + (f", except: {less}" if less else "")


def with_tables(page: str) -> str:
    """Return a page with its tables updated."""
    return PLACE.sub(lambda found: f"{found[1]}\n{table_of(found[2].split(', '))}\n{found[3]}", page)


if __name__ == "__main__":
    for file in map(Path, sys.argv[1:]):
        file.write_text(with_tables(file.read_text()))
