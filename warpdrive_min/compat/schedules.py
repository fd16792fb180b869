"""Parameters that change with training time: constant, or linear between given points."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from warpdrive_min.errors import ConfigError

Schedule = float | Sequence[Sequence[float]]
"""A constant, or points ``[timestep, value]`` in the order of time."""


class ParamScheduler:
    """A parameter's value by timestep: linear between the points of its schedule, constant before and after them.

    Raises:
        ConfigError: The schedule is neither a number nor a list of ``[timestep, value]`` in the order of time.
    """

    def __init__(self, schedule: Schedule) -> None:
        points = [[0, schedule]] if isinstance(schedule, int | float) else schedule
        is_list = isinstance(points, list) and points and all(isinstance(p, list) and len(p) == 2 for p in points)
        if not is_list or sorted(point[0] for point in points) != [point[0] for point in points]:
            raise ConfigError(
                f"schedule: must be a number, or a list of [timestep, value] in the order of time (got {schedule!r})"
            )
        self.schedule = schedule
        self.type = "constant" if isinstance(schedule, int | float) else "piecewise_linear"
        self._times, self._values = zip(*points, strict=True)

    def get_param_value(self, timestep: int) -> float:
        """Return the value at a timestep.

        Raises:
            ConfigError: The timestep is negative.
        """
        if timestep < 0:
            raise ConfigError(f"schedule: timestep must not be negative (got {timestep})")
        return float(np.interp(timestep, self._times, self._values))


class LRScheduler(ParamScheduler, LambdaLR):
    """A schedule of an optimizer's learning rate, as torch's schedulers are used; `step` counts iterations.

    The optimizer's own learning rate is the schedule's value at ``init_timestep``.

    Args:
        schedule: Of the learning rate.
        optimizer: Whose learning rate is set.
        init_timestep: Timestep of iteration 0.
        timesteps_per_iteration: Timesteps of one iteration.

    Raises:
        ConfigError: The schedule is malformed or starts from 0, or an argument is missing or out of range.
    """

    def __init__(
        self,
        schedule: Schedule,
        optimizer: Optimizer | None = None,
        init_timestep: int = 0,
        timesteps_per_iteration: int = 1,
    ) -> None:
        if optimizer is None or init_timestep < 0 or timesteps_per_iteration < 1:
            raise ConfigError(
                "schedule: needs an optimizer, init_timestep >= 0 and timesteps_per_iteration >= 1 "
                f"(got {optimizer}, {init_timestep} and {timesteps_per_iteration})"
            )
        ParamScheduler.__init__(self, schedule)
        self.init_timestep, self.timesteps_per_iteration = init_timestep, timesteps_per_iteration
        first = self.get_param_value(init_timestep)
        if first == 0:
            raise ConfigError(f"schedule: the learning rate must not start from 0 (got {schedule!r})")

        def factor(iteration: int) -> float:
            return self.get_param_value(init_timestep + iteration * timesteps_per_iteration) / first

        LambdaLR.__init__(self, optimizer, factor)
