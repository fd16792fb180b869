"""Published rates of other software, from anchors.toml."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from ...core.archive import read_toml
from ...core.point import Point
from ...core.schema import Model

FILE: Final = Path(__file__).with_suffix(".toml")
_TABLES: Final = read_toml(FILE)
WARPDRIVE: Final = str(_TABLES["warpdrive"]["name"])
JAX: Final = str(_TABLES["purejaxrl"]["name"])
CARD: Final = "NVIDIA H200"
"""GPU of all figures."""
SOURCES: Final[dict[str, str]] = {table["name"]: table["source"] for table in _TABLES.values()}


class Anchor(Model):
    """Rate of other software at a point of `train`."""

    env: str
    n_envs: int
    n_agents: int
    n_taggers: int | None = None
    """Number of taggers in Tag Continuous."""
    n_steps: int
    algorithm: str
    network: str
    env_steps_per_s: float | None = None
    """Median rate; None: the software does not run there."""
    by: str
    backend: str = ""
    """Backend of WarpDrive's environments; the faster one at each size."""
    note: str = ""
    """Deviation from the usual measurement."""

    @property
    def axes(self) -> dict[str, Any]:
        """Axes that it shares with our points."""
        names = ("env", "n_envs", "n_agents", "n_steps", "algorithm", "network", "n_taggers")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


def rows() -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each list "table.list", with their texts."""

    def filled(row: dict[str, Any], table: dict[str, Any]) -> dict[str, Any]:
        return {name: value.format_map(table) if isinstance(value, str) else value for name, value in row.items()}

    return {
        f"{table_name}.{name}": [filled(row, table) | {"by": table["name"]} for row in content]
        for table_name, table in _TABLES.items()
        for name, content in table.items()
        if isinstance(content, list)
    }


ANCHORS: Final = tuple(Anchor(**row) for of_list in rows().values() for row in of_list if "n_steps" in row)
"""WarpDrive's points, then JAX's on CartPole."""


def anchor(point: Point) -> Anchor | None:
    """Return the anchor of a point, ignoring its precision."""
    return next((each for each in ANCHORS if each.axes.items() <= point.items()), None)
