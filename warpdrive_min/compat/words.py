"""WarpDrive's words for what both have; ``words.toml`` is the table of them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

_WORDS: Final[dict[str, dict[str, str]]] = tomllib.loads(Path(__file__).with_name("words.toml").read_text())

ENVIRONMENTS: Final = _WORDS["environments"]
"""Environment of each run config of WarpDrive, ``module:attribute``, by its ``name``."""
METRICS: Final = _WORDS["metrics"]
"""WarpDrive's word for each metric of a policy that both have."""
