"""References of each case, as docs/sweeps.md declares them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).parents[2] / "docs" / "sweeps.md"
NONE_BEFORE: Final = "none before the timing"


@dataclass(frozen=True)
class Declared:
    """A row of the page's table, for each of its cases."""

    words: tuple[str, ...]
    """Words that start a reference's name; # stands for a number."""
    before: str
    """Reference before the timing."""

    @property
    def may_lack_before(self) -> bool:
        """True if some points have no check before the timing."""
        return "no reference" in self.before

    @property
    def always_lacks_before(self) -> bool:
        """True if no point has a check before the timing."""
        return self.before.startswith("no reference")

    def names(self, oracle: str) -> str | None:
        """Return the words that begin a reference's name, or None."""
        return next((words for words in self.words if re.match(_pattern(words), oracle)), None)

    def holds(self, before: str, after: str) -> bool:
        """Return true if a record of schema 2 has the row's references."""
        lacks = before.startswith(NONE_BEFORE)
        own = any(re.match(_pattern(words), before) for words in re.findall(r"`([^`]+)`", self.before))
        is_right = self.may_lack_before if lacks else (own or bool(self.names(before))) and not self.always_lacks_before
        return is_right and self.names(after) is not None


def _pattern(words: str) -> str:
    return re.escape(words).replace(r"\#", r"\d[\d,]*")


def declared() -> dict[str, Declared]:
    """Read the table, by case."""
    section = PAGE.read_text().split("## What is checked")[1].split("\n## ")[0]
    found = {}
    for line in section.splitlines():
        if line.startswith("| `"):
            cases, oracle, before = (cell.strip() for cell in line.strip("|").split("|"))
            words = tuple(word for word in re.findall(r"`([^`]+)`", oracle) if " " in word or word == "frequencies")
            found |= dict.fromkeys(re.findall(r"`(\w+)`", cases), Declared(words, before))
    return found
