"""WarpDrive's names for shared concepts, from ``words.toml``."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

_WORDS: Final[dict[str, dict[str, str]]] = tomllib.loads(Path(__file__).with_name("words.toml").read_text())

ENVIRONMENTS: Final = _WORDS["environments"]
"""Environment ``module:attribute`` by the ``name`` of WarpDrive's run config."""
RUN_CONFIGS: Final = _WORDS["run_configs"]
"""Run config file by ``name``, where it is not ``run_config.yaml``."""
STEPPED: Final = _WORDS["stepped"]
"""Prefix of the kernels' file by environment name: ``x`` of ``x_step.cu``."""
METRICS: Final = _WORDS["metrics"]
"""WarpDrive's names of a policy's metrics by our names."""
