"""Compares two folders of files, and holds what differs against what is expected to differ."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

N_LINES = 12
"""Lines of a difference that are shown."""
N_LETTERS = 160
"""Letters of a line that are shown."""
ROW = re.compile(r"^\|([^|]+)\|([^|]+)\|([^|]+)\|\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Expected:
    """A row of `docs/golden.md`: items of a part that differ on purpose."""

    part: str
    item: str
    """Path of a file, or a pattern with ``*``."""
    reason: str

    def covers(self, part: str, item: str) -> bool:
        """Tell whether an item of a part is meant."""
        return self.part == part and fnmatch.fnmatchcase(item, self.item)


def expected_in(text: str) -> list[Expected]:
    """Return the rows of the tables in a Markdown document: part, item, reason."""
    rows = [[cell.strip().strip("`") for cell in cells] for cells in ROW.findall(text)]
    return [Expected(*row) for row in rows if row[0] != "part" and set(row[0]) - set("-: ")]


def items_of(folder: Path) -> set[str]:
    """Return the paths of all files below a folder."""
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def differing(before: Path, after: Path) -> list[str]:
    """Return the paths of the files below two folders that only one has, or that are not the same bytes."""
    items = items_of(before) | items_of(after)
    return sorted(item for item in items if _bytes(before / item) != _bytes(after / item))


def unexplained(part: str, items: Sequence[str], expected: Iterable[Expected]) -> tuple[list[str], list[Expected]]:
    """Return the differing items of a part that no row expects, and the part's rows that nothing fits."""
    of_part = [row for row in expected if row.part == part]
    new = [item for item in items if not any(row.covers(part, item) for row in of_part)]
    idle = [row for row in of_part if not any(row.covers(part, item) for item in items)]
    return new, idle


def difference(before: Path, after: Path) -> list[str]:
    """Return some lines on how two files differ."""
    if not (before.is_file() and after.is_file()):
        return ["only before" if before.is_file() else "only now"]
    old, new = _bytes(before) or b"", _bytes(after) or b""
    try:
        lines = [text.decode().splitlines() for text in (old, new)]
    except UnicodeDecodeError:
        place = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
        return [f"{len(old)} and {len(new)} bytes, the first that differs is number {place}"]
    found = [
        line for line in difflib.unified_diff(*lines, lineterm="", n=0) if not line.startswith(("---", "+++", "@@"))
    ]
    if len(found) == 2:
        found = _around(*found)
    cut = [line if len(line) <= N_LETTERS else f"{line[:N_LETTERS]}..." for line in found[:N_LINES]]
    return [*cut, f"... {len(found) - N_LINES} lines more"] if len(found) > N_LINES else cut or ["line ends"]


def _around(old: str, new: str) -> list[str]:
    """Return two long lines from shortly before they part."""
    same = next((i for i, (a, b) in enumerate(zip(old[1:], new[1:], strict=False)) if a != b), 0)
    start = max(0, same - N_LETTERS // 3)
    return [line[0] + ("..." if start else "") + line[1 + start :] for line in (old, new)]


def _bytes(file: Path) -> bytes | None:
    return file.read_bytes() if file.is_file() else None
