"""WarpDrive's wrapper and consistency checker: the core's, for environments that WarpDrive's users wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from warpdrive_min import consistency, env_wrapper
from warpdrive_min.backends.base import Language, Source
from warpdrive_min.compat import numba_modules
from warpdrive_min.compat.project import binary_path, default_source, source_of_binary
from warpdrive_min.dialect.layout import create_and_push_data_placeholders
from warpdrive_min.environment import Observations


class EnvWrapper(env_wrapper.EnvWrapper):
    """The core's wrapper, which also loads WarpDrive's step modules in Numba; arguments as there."""

    first_observations: Observations
    """Observations by agent of the reset whose state every copy started from."""

    def _sources(self) -> dict[Language, Source]:
        sources, language = super()._sources(), self.backend.language
        default = None if language in sources else default_source(self.name, language, type(self.env))
        return sources if default is None else {**sources, language: default}

    def _load(self, sources: Mapping[Language, Source], binary: str | Path | None) -> None:
        self.cuda_function_manager.compiled_in = getattr(self.env, "compiled_in", ())
        if binary is not None and self.backend.language == "cuda_c":
            binary = binary_path(binary)
            if source := source_of_binary(binary):
                sources, binary = {**sources, "cuda_c": source}, None
        own = getattr(self.env, "kernel_sources", {}).get("numba")
        if self.backend.language == "numba" and sources["numba"] != own:
            module = numba_modules.execute(self.cuda_function_manager, str(sources["numba"]))
            if not hasattr(module, "build"):
                numba_modules.keep(self.cuda_function_manager, module)
                return
        super()._load(sources, binary)

    def reset_all_envs(self) -> Observations:
        """Start a new episode in every copy, as in the core."""
        is_first = self.reset_on_host
        observations = super().reset_all_envs()
        if is_first:
            self.first_observations = observations
        return observations

    reset = reset_all_envs

    def like(self, num_envs: int, *, seed: int = 0, auto_reset: bool = False) -> Self:
        """Return a wrapper of other copies, as in the core, with the shared constants that this one was given."""
        made = super().like(num_envs, seed=seed, auto_reset=auto_reset)
        there = made.cuda_data_manager.shared_constants
        given = self.cuda_data_manager.shared_constants
        constants = {name: value for name, value in given.items() if name not in there}
        made.cuda_data_manager.add_shared_constants(constants)
        made.cuda_function_manager.initialize_shared_constants(made.cuda_data_manager, list(constants))
        return made


class EnvironmentCPUvsGPU(consistency.EnvironmentCPUvsGPU):
    """The core's checker, which pushes what WarpDrive's environments leave to the trainer; arguments as there."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        chosen = self._wrapper_class
        arrays = {
            "policy_tag_to_agent_id_map": self._policies,
            "create_separate_placeholders_for_each_policy": self._separate,
            "obs_dim_corresponding_to_num_agents": self._agents_axis,
            "push_data_batch_placeholders": False,
        }
        self._wrapper_class = _with_placeholders(EnvWrapper if chosen is env_wrapper.EnvWrapper else chosen, arrays)


def _with_placeholders(
    wrapper: type[env_wrapper.EnvWrapper], arrays: Mapping[str, Any]
) -> type[env_wrapper.EnvWrapper]:
    """Return a wrapper whose first reset pushes what a trainer would, and the table of actions if there is one.

    Args:
        wrapper: Class to derive from.
        arrays: Keyword arguments of `create_and_push_data_placeholders`.
    """

    class Checked(wrapper):  # type: ignore[misc, valid-type]  # a class that is a variable
        def reset_all_envs(self) -> Observations:
            """Start a new episode in every copy."""
            is_first = self.reset_on_host
            observations: Observations = super().reset_all_envs()
            if is_first and self.vectorised:
                create_and_push_data_placeholders(self, **arrays)
                if hasattr(self.env, "step_actions") and self.env_backend == "pycuda":
                    self.cuda_data_manager.add_shared_constants({ACTION_TABLE: self.env.step_actions})
                    self.cuda_function_manager.initialize_shared_constants(self.cuda_data_manager, [ACTION_TABLE])
            return observations

        reset = reset_all_envs

    return Checked


ACTION_TABLE = "kIndexToActionArr"
"""Name under which WarpDrive's CUDA C reads the moves of the actions."""
