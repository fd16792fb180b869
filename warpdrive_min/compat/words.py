"""WarpDrive's words for what both have; ``words.toml`` is the table of them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

_WORDS: Final[dict[str, dict[str, str]]] = tomllib.loads(Path(__file__).with_name("words.toml").read_text())

ENVIRONMENTS: Final = _WORDS["environments"]
"""Environment of each run config of WarpDrive, ``module:attribute``, by its ``name``."""
RUN_CONFIGS: Final = _WORDS["run_configs"]
"""File of an environment's run config, by its ``name``, where it is not ``run_config.yaml``."""
STEPPED: Final = _WORDS["stepped"]
"""Module whose name begins that of its kernels' file, ``x`` of ``x_step.cu``, by the name of an environment."""
METRICS: Final = _WORDS["metrics"]
"""WarpDrive's word for each metric of a policy that both have."""
