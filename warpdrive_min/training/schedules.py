"""Numbers that change with training time: constant, or linear between given points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from warpdrive_min.errors import ConfigError

Points = Sequence[Sequence[float]]
"""``[timestep, value]`` in the order of time; lists, as YAML and JSON have them."""
Schedule = float | Points
"""A constant, or points between which the value is linear."""

RULE: Final = "a number, or a list of [timestep, value] in the order of time"


class ParamScheduler:
    """A number by timestep: linear between the points of its schedule, constant before and after them.

    Two points at one timestep are a step.

    Raises:
        ConfigError: The schedule is neither a number nor a list of ``[timestep, value]`` in the order of time.
    """

    def __init__(self, schedule: Schedule) -> None:
        if not is_schedule(schedule):
            raise ConfigError(f"schedule: must be {RULE} (got {schedule!r})")
        points = schedule if isinstance(schedule, Sequence) else [[0, schedule]]
        self.schedule = schedule
        self.type = "piecewise_linear" if isinstance(schedule, Sequence) else "constant"
        self._times, self.values = zip(*points, strict=True)
        """`values`: those of the points, between which all others lie."""

    def get_param_value(self, timestep: int) -> float:
        """Return the value at a timestep.

        Raises:
            ConfigError: The timestep is negative.
        """
        if timestep < 0:
            raise ConfigError(f"schedule: timestep must not be negative (got {timestep})")
        return float(np.interp(timestep, self._times, self.values))


def is_schedule(value: Any) -> bool:
    """Tell whether a value is a finite number, or a list of ``[timestep, value]`` in the order of time."""
    if is_number(value):
        return True
    is_list = isinstance(value, list) and bool(value)
    if not is_list or not all(isinstance(point, list) and len(point) == 2 for point in value):
        return False
    times = [point[0] for point in value]
    return all(is_number(number) for point in value for number in point) and times == sorted(times)


def is_number(value: Any) -> bool:
    """Tell whether a value is an integer or float, of Python's or NumPy's, and finite; true and false are none."""
    return (
        isinstance(value, int | float | np.integer | np.floating)
        and not isinstance(value, bool)
        and math.isfinite(value)
    )
