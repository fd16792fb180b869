"""Subject of a validation: an environment class, a config and a backend."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from warpdrive_min import backends
from warpdrive_min.agreement.stepping import Actions, Trace, play
from warpdrive_min.backends.base import Language
from warpdrive_min.constants import TIMESTEP, Constants
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.environment import CUDAEnvironmentContext, agent_sets
from warpdrive_min.policies import random_policy

STAGGER: Final = 3
"""Steps between the ends of neighbouring environments' first episodes.

Environment `i` starts ``1 + STAGGER * i`` steps before the end of its episode.
"""


class CheckFailedError(Exception):
    """Failure of a check; the message locates it."""


class CheckSkippedError(Exception):
    """Check that does not apply; the message gives the reason."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Environment with one config on one backend, and the length of the run."""

    target: str
    """Import path as for `load_class`, for a separate process."""
    cls: type[CUDAEnvironmentContext]
    backend: str
    config: Mapping[str, Any] = field(default_factory=dict)
    n_envs: int = 37
    n_steps: int = 40
    seed: int = 0
    tolerance: float = 1e-4
    """Largest absolute difference from the reference in a build that is not exact."""

    @property
    def language(self) -> Language:
        """Language of the backend's kernels."""
        return backends.get(self.backend).language

    @property
    def has_reference(self) -> bool:
        """True if the environment has NumPy kernels."""
        return "numpy" in self.cls.kernel_sources

    def wrapper(self, **options: Any) -> EnvWrapper:
        """Build a wrapper without starting it; ``options`` are `EnvWrapper`'s."""
        cls: Any = self.cls
        defaults = {"num_envs": self.n_envs, "env_backend": self.backend, "seed": self.seed}
        return EnvWrapper(cls(**self.config), **{**defaults, **options})

    def start(self, **options: Any) -> EnvWrapper:
        """Build and start a wrapper with environments at different steps.

        So a run shorter than an episode contains ends too. An environment's step depends only on its index, not on the
        number of environments.
        """
        wrapper = self.wrapper(**options)
        wrapper.reset()
        timestep = wrapper.cuda_data_manager.tensor(TIMESTEP)
        timestep.copy_((-1 - STAGGER * torch.arange(wrapper.n_envs, device="cpu")) % wrapper.episode_length)
        return wrapper

    def start_exact(self) -> EnvWrapper:
        """Build and start an exact wrapper with auto-reset."""
        return self.start(exact=True, auto_reset=True)

    @functools.cached_property
    def trace(self) -> Trace:
        """Trace used by most checks: exact, with auto-reset."""
        return self.play()

    def play(self, **options: Any) -> Trace:
        """Run random actions, exact and with auto-reset; ``options`` as for `start`."""
        wrapper = self.start(**{"exact": True, "auto_reset": True, **options})
        return play(wrapper, draw_actions(wrapper, self.n_steps, int(options.get("seed", self.seed))))

    def numbered_actions(self, wrapper: EnvWrapper) -> Iterator[tuple[int, Actions]]:
        """Yield the number of each step, from 1, and its random actions."""
        return iter(enumerate(draw_actions(wrapper, self.n_steps, self.seed), start=1))

    def skip_reference(self, why: str = "backend cpu runs the reference itself") -> None:
        """Raise `CheckSkippedError` on the reference's backend."""
        if self.backend == "cpu":
            raise CheckSkippedError(why)


def draw_actions(wrapper: EnvWrapper, n_steps: int, seed: int) -> list[Actions]:
    """Draw the random actions of several steps; call once per wrapper."""
    draw, data = random_policy(wrapper, seed), wrapper.cuda_data_manager
    arrays = {name: data.tensor(name) for name in (Constants.ACTIONS + each for each in agent_sets(wrapper.env))}
    drawn = []
    for _ in range(n_steps):
        draw()
        drawn.append({name: array.clone() for name, array in arrays.items()})
    return drawn
