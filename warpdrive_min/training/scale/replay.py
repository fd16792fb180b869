"""Trainers of a run or a population that write no files, for replays."""

from __future__ import annotations

from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.environment import CUDAEnvironmentContext
from warpdrive_min.training.config import RunConfig
from warpdrive_min.training.loop.sinks import Sink
from warpdrive_min.training.scale.population import PopulationTrainer
from warpdrive_min.training.trainer import Trainer


def replay_trainer(env: CUDAEnvironmentContext, config: RunConfig) -> Trainer:
    """Return a run at its start, on its config's backend, that writes no files."""
    trainer, size = config.trainer, config.population.size
    wrapper = EnvWrapper(
        env,
        num_envs=trainer.num_envs * (size or 1),
        env_backend=trainer.env_backend,
        auto_reset=True,
        exact=trainer.exact,
    )
    kind = _Replay if size is None else _ReplayOfPopulation
    return kind(wrapper, config, verbose=False)


class _Replay(Trainer):
    def save_checkpoint(self, *, wait: bool = True) -> None:
        """Save nothing."""

    def _open_sinks(self) -> list[Sink]:
        return []


class _ReplayOfPopulation(_Replay, PopulationTrainer):
    pass
