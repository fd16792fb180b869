"""Tables of a documentation page that are generated from the table of paths.

``python -m warpdrive_min.training.paths.page docs/training-speed.md`` brings those of the page up to date.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from warpdrive_min.training.paths.table import PATHS

PLACE = re.compile(r"(<!-- paths: (.+) -->\n)(?:.|\n)*?(<!-- end of paths -->)")
"""Place of a table, with the names of the parts that it shows."""


def table_of(parts: Iterable[str]) -> str:
    """Return the paths of parts, fastest first, with what each of them needs, in Markdown."""
    lines = ["| part | path | what for |", "|---|---|---|"]
    for part in parts:
        for path in PATHS[part]:
            needs = "; ".join(dict.fromkeys(rule.needs for rule in path.rules))
            lines.append(f"| {part} | {path.name} | {needs or 'all others'} |")
            part = ""
    return "\n".join(lines) + "\n"


def with_tables(page: str) -> str:
    """Return a page with current tables."""
    return PLACE.sub(lambda found: f"{found[1]}\n{table_of(found[2].split(', '))}\n{found[3]}", page)


if __name__ == "__main__":
    for file in map(Path, sys.argv[1:]):
        file.write_text(with_tables(file.read_text()))
