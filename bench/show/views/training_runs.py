"""Learning curves of the folders that `python -m warpdrive_min train` writes."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pandas as pd
from pydantic import TypeAdapter, ValidationError

from ...core.errors import FileError, ShowError
from ...core.groups import groups_of
from ...core.record import RUN_METRICS as METRICS
from ..charts import PART_COLORS, Chart, DataPoint, Panel, Series, chart

RETURN: Final = "/mean_episodic_return"
"""Metric of a policy, after its name."""
ROW: Final = TypeAdapter(dict[str, float | None])
MOST_QUOTED: Final = 40
"""Maximum bytes of a line in an error."""
RUN_CONFIG: Final = "run_config.json"
"""File with the config of a run."""
AXES: Final = {"env_steps": "environment steps", "seconds": "seconds of training"}


def run_folders(names: Sequence[str]) -> list[Path]:
    """Return the folders of training runs; none if names are of records.

    Raises:
        FileError: Only some names are folders of training runs.
    """
    folders = list(dict.fromkeys(Path(name).absolute() for name in names if (Path(name) / METRICS).is_file()))
    others = [name for name in names if not (Path(name) / METRICS).is_file()]
    if folders and others:
        raise FileError(f"plot: {others[0]} must be a run's folder with {METRICS}, as others are; plot it separately")
    return folders


def training_run_chart(folders: Sequence[Path]) -> Chart:
    """Chart the mean return of each policy, by steps and by seconds.

    Args:
        folders: Run folders; each is a line. Runs of different run configs have their own panels.

    Raises:
        ShowError: No run has a mean return yet.
        FileError: A run's metrics are no lines of numbers.
    """
    metrics = {folder: _metrics(folder) for folder in folders}
    configs, styles, panels = groups_of(folders, _config_name), _styles(folders), list[Panel]()
    for config, of_config in configs.items():
        title, runs = f"{config}, " if len(configs) > 1 else "", {folder: metrics[folder] for folder in of_config}
        policies = dict.fromkeys(name for each in runs.values() for name in each.columns if name.endswith(RETURN))
        panels += [
            Panel(f"{title}policy {name.removesuffix(RETURN)}", _series(runs, styles, axis, name), xlabel=label)
            for name in policies
            for axis, label in AXES.items()
        ]
    made = chart("training-run", panels, (), runs=", ".join(map(str, folders))).with_points()
    if not made.panels:
        raise ShowError(f"plot: {folders[0]} must have the return of an ended episode (got none); train it longer")
    return made


def _config_name(folder: Path) -> str:
    """Return the name of a run's config; a question mark if it cannot be read."""
    try:
        return str(json.loads((folder / RUN_CONFIG).read_bytes())["name"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return "?"


def _metrics(folder: Path) -> pd.DataFrame:
    rows = []
    for number, line in enumerate((folder / METRICS).read_bytes().splitlines(), start=1):
        try:
            rows.append(ROW.validate_json(line))
        except ValidationError as error:
            rule, got = "must be a JSON object of numbers", line[:MOST_QUOTED].decode(errors="replace")
            raise FileError(
                f"{folder / METRICS}: line {number} {rule} (got {got!r}); resume the run to mend it"
            ) from error
    return pd.DataFrame(rows)


def _styles(folders: Sequence[Path]) -> dict[Path, tuple[str, dict[str, str]]]:
    """Return the label and the style of each run's line."""
    names = [folder.name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder.relative_to(os.path.commonpath(folders))) for folder in folders]
    return {
        folder: (name, {"color": PART_COLORS[place % len(PART_COLORS)], "marker": ".", "linestyle": "-"})
        for place, (name, folder) in enumerate(zip(names, folders, strict=True))
    }


def _series(
    metrics: dict[Path, pd.DataFrame], styles: dict[Path, tuple[str, dict[str, str]]], axis: str, name: str
) -> list[Series]:
    """Return a line for each run with the policy."""
    made = []
    for folder, each in metrics.items():
        rows = each.reindex(columns=[axis, name]).dropna().to_numpy(float)
        made.append(Series(*styles[folder], [DataPoint(x, y, y, y) for x, y in rows.tolist()]))
    return made
