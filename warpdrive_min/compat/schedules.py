"""WarpDrive's schedule of an optimizer's learning rate."""

from __future__ import annotations

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from warpdrive_min.errors import ConfigError, require
from warpdrive_min.training.config import ParamScheduler, Schedule

__all__ = ["LRScheduler", "ParamScheduler"]


class LRScheduler(ParamScheduler, LambdaLR):
    """Learning rate schedule with the interface of torch's schedulers.

    `step` counts iterations. The optimizer's learning rate is the schedule's value at ``init_timestep``.

    Args:
        schedule: Schedule of the learning rate.
        optimizer: Optimizer to adjust.
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
        require(first != 0, "schedule", "the learning rate must not start from 0", schedule)

        def factor(iteration: int) -> float:
            return self.get_param_value(init_timestep + iteration * timesteps_per_iteration) / first

        LambdaLR.__init__(self, optimizer, factor)
