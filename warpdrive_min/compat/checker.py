"""WarpDrive's consistency checker, based on our checker."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from warpdrive_min import env_wrapper
from warpdrive_min.agreement import checker
from warpdrive_min.compat.env_wrapper import EnvWrapper, UserWrapperAdapter
from warpdrive_min.compat.functions import Argfix, registrar_renamed
from warpdrive_min.dialect import layout
from warpdrive_min.environment import Observations
from warpdrive_min.errors import require
from warpdrive_min.sampler import finite_bounds


class EnvironmentCPUvsGPU(checker.EnvironmentCPUvsGPU):
    """Our checker with WarpDrive's actions and placeholders.

    It pushes the arrays that WarpDrive's environments leave to the trainer. Arguments are those of our class, also by
    their names before WarpDrive 1.5. With a seed the actions repeat at every step, as in WarpDrive, so a WarpDrive test
    plays the same episodes. Our class draws new ones.
    """

    _seed: int | None = None

    @registrar_renamed
    @Argfix({"env_class": "dual_mode_env_class"})
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._chosen: type[Any] = self._wrapper_class
        chosen = self._chosen
        arrays = {
            "policy_tag_to_agent_id_map": self._policies,
            "create_separate_placeholders_for_each_policy": self._separate,
            "obs_dim_corresponding_to_num_agents": self._agents_axis,
            "push_data_batch_placeholders": False,
        }
        self._wrapper_class = functools.partial(  # type: ignore[assignment]  # a factory
            _checked, EnvWrapper if chosen is env_wrapper.EnvWrapper else chosen, arrays
        )

    def python_object(self, env: Any) -> Any:
        """Return the environment in the user's wrapper.

        The wrapper may rename agents or reshape observations. One without ``reset`` and ``step`` runs on GPUs only.
        """
        is_own = not issubclass(env_wrapper.EnvWrapper, self._chosen) and self._chosen is not EnvWrapper
        if is_own and all(hasattr(self._chosen, name) for name in ("reset", "step")):
            return self._chosen(**accepted_arguments(self._chosen, {"env_obj": env, "env_backend": "cpu"}))
        return env

    def test_env_reset_and_step(
        self, consistency_threshold_pct: float = 1, seed: int | None = None, **more: Any
    ) -> float:
        """Run every scenario as our class; ``seed`` also fixes each step's actions."""
        self._seed = seed
        return super().test_env_reset_and_step(consistency_threshold_pct, seed, **more)

    def draw_actions(self, env: Any, num_envs: int, generator: np.random.Generator) -> list[dict[Hashable, Any]]:
        """Return WarpDrive's actions of a step; drawn configs use our own."""
        if callable(self._configs):
            return super().draw_actions(env, num_envs, generator)
        return generate_random_actions(env, num_envs, self._seed)


def generate_random_actions(env: Any, num_envs: int, seed: int | None = None) -> list[dict[Hashable, Any]]:
    """Draw uniform actions by NumPy's global generator, as WarpDrive does.

    One action for each agent of each environment.

    Args:
        env: Environment with an ``action_space`` by agent.
        num_envs: Number of environments.
        seed: Seed of the generator, which repeats the same actions; None: continue.

    Raises:
        ConfigError: A box has no finite bounds.
    """
    if seed is not None:
        np.random.seed(seed)  # noqa: NPY002  (WarpDrive's generator)
    return [{agent: _draw(space) for agent, space in env.action_space.items()} for _ in range(num_envs)]


def _draw(space: Any) -> Any:
    if hasattr(space, "low"):
        finite_bounds([space])
        return np.random.uniform(space.low, space.high, space.shape)  # noqa: NPY002
    counts = space.nvec if hasattr(space, "nvec") else int(space.n)
    return np.random.randint(0, counts, dtype=np.int32)  # noqa: NPY002


def _checked(
    chosen: type[Any], arrays: Mapping[str, Any], env: Any, *, seed: int, exact: bool, **named: Any
) -> env_wrapper.EnvWrapper:
    """Make a wrapper; a user's class gets the arguments of WarpDrive's checker."""
    if chosen.__init__ in (EnvWrapper.__init__, env_wrapper.EnvWrapper.__init__):
        return _with_placeholders(chosen, arrays)(env, seed=seed, exact=exact, **named)
    require(not exact, f"wrapper {chosen.__name__}", "has no exact builds", do="leave exact off")
    return _with_placeholders(UserWrapperAdapter, arrays)(
        chosen(**accepted_arguments(chosen, {"env_obj": env, **named}))
    )


def accepted_arguments(chosen: type[Any], named: dict[str, Any]) -> dict[str, Any]:
    """Return the checker's arguments that a user's wrapper accepts.

    Before 2.0 it had ``use_cuda``. An argument without effect is omitted if not accepted.
    """
    parameters = inspect.signature(chosen).parameters
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return named
    if "use_cuda" in parameters and "env_backend" not in parameters:
        named = {**named, "use_cuda": named["env_backend"] != "cpu"}
        del named["env_backend"]
    return {name: value for name, value in named.items() if name in parameters or value not in (None, False)}


def _with_placeholders(
    wrapper: type[env_wrapper.EnvWrapper], arrays: Mapping[str, Any]
) -> type[env_wrapper.EnvWrapper]:
    """Return a wrapper class whose first reset pushes a trainer's arrays.

    It also pushes the table of actions if one exists.

    Args:
        wrapper: Base class.
        arrays: Keyword arguments of `create_and_push_data_placeholders`.
    """

    class Checked(wrapper):  # type: ignore[misc, valid-type]  # the base class is a variable
        def reset_all_envs(self) -> Observations:
            """Start a new episode in every copy."""
            is_first = self.reset_on_host
            observations: Observations = super().reset_all_envs()
            if is_first and self.vectorised:
                layout.create_and_push_data_placeholders(self, **arrays)
                if hasattr(self.env, "step_actions") and self.backend.language == "cuda_c":
                    self.cuda_data_manager.add_shared_constants({ACTION_TABLE: self.env.step_actions})
                    self.cuda_function_manager.initialize_shared_constants(self.cuda_data_manager, [ACTION_TABLE])
            return observations

        reset = reset_all_envs

    return Checked


ACTION_TABLE = "kIndexToActionArr"
"""Name of the table of moves by action in WarpDrive's CUDA C."""
