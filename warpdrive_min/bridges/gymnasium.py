"""Gymnasium bridges: a vector environment of all copies, or one copy.

`gymnasium.make` and `gymnasium.make_vec` call `make` and `make_vec`.
"""

from __future__ import annotations

import operator
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from warpdrive_min.bridges.batched import BatchedEnvironment, Bridge, joint_seed, map_parts
from warpdrive_min.bridges.packages import needed_by
from warpdrive_min.bridges.spaces import mask_for_sample, to_gymnasium
from warpdrive_min.constants import Constants
from warpdrive_min.conversion import as_tensor
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.errors import ConfigError, require, require_type
from warpdrive_min.registrar import load_class
from warpdrive_min.rng import seed_words

with needed_by(__name__, "gymnasium"):
    import gymnasium
    from gymnasium.envs.registration import EnvSpec
    from gymnasium.vector import AutoresetMode
    from gymnasium.vector.utils import batch_space


WRAPPER_OPTIONS = ("blocks_per_env", "debug", "exact", "seed")
"""Options of `make` and `make_vec` for the `EnvWrapper`; others are the environment's."""


class ResetNeeded(ConfigError, gymnasium.error.ResetNeeded):  # noqa: N818  (Gymnasium's name)
    """Step without a required reset; also a Gymnasium `ResetNeeded`."""


class RenderModeUnavailable(ConfigError, TypeError):  # noqa: N818  (a state, not a mistake)
    """Render mode that no environment has.

    It is a TypeError, like an unknown argument: Stable-Baselines3 then creates the environment without rendering.
    """


class GymnasiumBridge(Bridge):
    """Bridge whose spec tells the length of its episodes."""

    _spec: EnvSpec | None = None

    @property
    def spec(self) -> EnvSpec | None:
        """Gymnasium's spec, with the episode length as ``max_episode_steps``.

        Gymnasium sets it without one, and programs and wrappers read it there.
        """
        return self._spec

    @spec.setter
    def spec(self, given: EnvSpec | None) -> None:
        if given is not None and given.max_episode_steps is None:
            given = replace(given, max_episode_steps=self.wrapper.episode_length)
        self._spec = given


class GymnasiumVectorEnv(GymnasiumBridge, gymnasium.vector.VectorEnv[Any, Any, Any]):
    """All copies of an environment as Gymnasium's vector environment.

    ``metadata["autoreset_mode"]`` is ``SAME_STEP`` with ``auto_reset``, else ``DISABLED``, or ``NEXT_STEP`` if asked
    for. With ``DISABLED``, call ``reset(options={"reset_mask": mask})`` to restart copies that ended. With
    ``NEXT_STEP``, the next step restarts them: it ignores their actions, and their reward is 0.

    Observations, rewards (float32), terminations and truncations are new tensors on the environments' device. Actions
    may be tensors there too. Then `step`, and `reset` without a seed, enqueue and do not synchronise. With ``to_numpy``
    all are NumPy arrays, and every call synchronises.

    A Dict of observations stays a Dict, also in ``final_obs``. An action mask is int8, 0 or 1, with shape ``(num_envs,
    n_choices)``; choices of all types are concatenated. It is the entry ``action_mask`` of the Dict, or else of the
    infos.

    In ``SAME_STEP`` mode infos hold the final observations. With ``to_numpy`` they are Gymnasium's: ``final_obs``,
    ``_final_obs``, ``final_info`` and ``_final_info``, in steps that ended an episode. Tensors cannot show an end
    without synchronising. So ``final_obs`` (batched like the observations) and its mask ``_final_obs`` are present in
    every step, and rows outside the mask are invalid.

    Args:
        env: An environment with arrays; or an `EnvWrapper` of one.
        to_numpy: Return NumPy arrays, as Gymnasium's wrappers expect.
        agents_as_envs: Expose every agent as an environment, row ``env * n_agents + agent``. Agents of one
            environment end together; a reset mask with any of them restarts the environment.
        autoreset_mode: Gymnasium's mode or its value, such as ``"NextStep"``; None: see above.
        options: Keyword arguments of `EnvWrapper`, if ``env`` is not one; ``auto_reset`` defaults to True, or to the
            one that ``autoreset_mode`` needs.

    Raises:
        ConfigError: The environment has roles, several agents without ``agents_as_envs``, agents with different
            spaces, or no record of the final observations that ``auto_reset`` needs; ``autoreset_mode`` is unknown, or
            does not fit ``auto_reset``.
    """

    def __init__(
        self,
        env: Any,
        *,
        to_numpy: bool = False,
        agents_as_envs: bool = False,
        autoreset_mode: AutoresetMode | str | None = None,
        **options: Any,
    ) -> None:
        mode = _as_mode(autoreset_mode)
        if not isinstance(env, EnvWrapper):
            options = {"auto_reset": mode in (None, AutoresetMode.SAME_STEP), **options}
        self.batched = batched = BatchedEnvironment(
            "GymnasiumVectorEnv", env, options, synchronises=to_numpy, reset_needed=ResetNeeded
        )
        batched.require_no_roles()
        self._to_numpy = to_numpy
        self._restarts_itself = batched.wrapper.auto_reset
        if mode is None:
            mode = AutoresetMode.SAME_STEP if self._restarts_itself else AutoresetMode.DISABLED
        needs_auto_reset = mode is AutoresetMode.SAME_STEP
        rule = f"must be {needs_auto_reset} for autoreset_mode {mode.value!r}"
        is_consistent = self._restarts_itself == needs_auto_reset
        require(is_consistent, "GymnasiumVectorEnv.auto_reset", rule, self._restarts_itself)
        if not agents_as_envs:
            batched.require_one(agent=True)
        if self._restarts_itself:
            batched.require_final_observations()
        self.num_envs = batched.n_envs * batched.n_agents
        self.single_observation_space = to_gymnasium(batched.observation_space)
        self.single_action_space = to_gymnasium(batched.action_space)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {"autoreset_mode": mode, "render_modes": []}
        self._is_next_step = mode is AutoresetMode.NEXT_STEP
        self._ended: torch.Tensor | None = None
        """Mask of copies that ended and need a reset, ``(n_envs,)`` bool.

        None: no copy ended, or the user resets them and the bridge does not check.
        """

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start new episodes; a seed starts its first ones and synchronises.

        Args:
            seed: Seed of all starts; each copy draws its own start. A list has one seed per row: a row's first start
                depends on this seed alone, and rows of None continue their sequence. None: all continue.
            options: ``"reset_mask"``, ``(num_envs,)`` bool, an array or a tensor: restart only these copies.

        Returns:
            Observations and infos.

        Raises:
            ConfigError: The mask has a wrong shape or dtype, or the number or range of seeds is wrong.
        """
        what = "GymnasiumVectorEnv.reset: options"
        mask = self._mask(require_type(what, {} if options is None else options, Mapping).get("reset_mask"))
        seeds = seed if seed is None or isinstance(seed, int) else self._seeds(seed)
        super().reset(seed=joint_seed(seeds) if isinstance(seeds, list) else seeds)
        self.batched.restart(seeds, mask)
        self._ended = self._ended & ~mask if mask is not None and self._ended is not None else None
        return map_parts(self._rows, self.batched.observations()), self._masks()

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take one step in every copy.

        Args:
            actions: Shaped as ``action_space``; a tensor on the environments' device is not copied to it.

        Returns:
            Observations, rewards, terminations, truncations and infos; see the class.

        Raises:
            ResetNeeded: No reset yet; or a copy has ended without a reset (only checked if the bridge synchronises).
            ActionError: A wrong shape, real numbers for discrete actions, or a value outside its space. Values of
                tensors on a GPU are checked only with ``to_numpy`` or ``debug``, because a check synchronises.
        """
        shape = self.action_space.shape
        assert shape is not None
        batched = self.batched
        waiting = self._ended if self._is_next_step else None
        if waiting is None and self._ended is not None and self._ended.any():
            ended, do = self._ended.nonzero()[:, 0].tolist(), "call reset, with them as options['reset_mask']"
            raise ResetNeeded.of("GymnasiumVectorEnv.step", "environments that ended must be reset first", ended, do)
        batched.step({"": actions}, {"": shape})
        ends, rewards = batched.terminated_and_truncated(), batched.rewards()
        if waiting is not None:
            batched.restart(mask=waiting)
            ends, rewards = (ends[0] & ~waiting, ends[1] & ~waiting), rewards.masked_fill(waiting[:, None], 0)
        if self._is_next_step or (batched.checks and not self._restarts_itself):
            self._ended = ends[0] | ends[1]
        terminated, truncated = (self._rows(self._of_agents(each)) for each in ends)
        infos = self._final(terminated | truncated) if self._restarts_itself else {}
        infos |= self._masks()
        observations = map_parts(self._rows, batched.observations())
        return observations, self._rows(rewards), terminated, truncated, infos

    def _final(self, ended: Any) -> dict[str, Any]:
        if not self._to_numpy:
            return {"final_obs": map_parts(self._rows, self.batched.final_observations()), "_final_obs": ended}
        infos: dict[str, Any] = {}
        if ended.any():
            parts = {key: self._rows(part) for key, part in self.batched.final_observations().items()}
            for row in np.flatnonzero(ended).tolist():
                final = map_parts(operator.itemgetter((row, ...)), parts)
                infos = self._add_info(infos, {"final_obs": final, "final_info": {}}, row)
        return infos

    def _masks(self) -> dict[str, Any]:
        """Return the infos of action masks, with Gymnasium's presence flags (all True)."""
        mask = self.batched.action_masks().get("")
        if mask is None:
            return {}
        present = torch.ones_like(mask[..., 0], dtype=torch.bool)
        return {Constants.ACTION_MASK: self._rows(mask), f"_{Constants.ACTION_MASK}": self._rows(present)}

    def _mask(self, given: Any) -> torch.Tensor | None:
        if given is None:
            return None
        what, rule = "GymnasiumVectorEnv.reset: options['reset_mask']", f"must be bool of shape ({self.num_envs},)"
        try:
            mask = as_tensor(given).to(self.batched.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigError.of(what, rule, type(given).__name__) from error
        is_mask = mask.shape == (self.num_envs,) and mask.dtype == torch.bool
        require(is_mask, what, rule, f"{mask.dtype} {tuple(mask.shape)}")
        return mask.reshape(self.batched.n_envs, self.batched.n_agents).any(1)

    def _seeds(self, given: Any) -> list[int | None]:
        """Return the seed of each environment from the seeds of the rows."""
        what, rule = "GymnasiumVectorEnv.reset: seed", f"must be an integer, or a list of {self.num_envs}"
        is_list = isinstance(given, Sequence | np.ndarray) and not isinstance(given, str | bytes)
        require(is_list, what, rule, given)
        require(len(given) == self.num_envs, what, rule, f"{len(given)} of them")
        for each in given:
            if each is not None:
                seed_words(each)
        seeds = [None if each is None else int(each) for each in given]
        n_agents, rule = (
            self.batched.n_agents,
            "must be the same for all agents of an environment, which start together",
        )
        of_envs = [seeds[row : row + n_agents] for row in range(0, self.num_envs, n_agents)]
        for of_agents in of_envs:
            require(len(set(of_agents)) == 1, what, rule, of_agents)
        return [of_agents[0] for of_agents in of_envs]

    def _of_agents(self, per_env: torch.Tensor) -> torch.Tensor:
        return per_env[:, None].expand(-1, self.batched.n_agents)

    def _rows(self, per_agent: torch.Tensor) -> Any:
        """Merge the axes of environments and agents."""
        rows = per_agent.flatten(0, 1)
        return rows.cpu().numpy() if self._to_numpy else rows


class GymnasiumEnv(GymnasiumBridge, gymnasium.Env[Any, Any]):
    """One copy of a single-agent environment; every call synchronises.

    It uses NumPy and restarts only on ``reset()``. ``reset(seed=...)`` takes no options. An action mask outside the
    observations is ``info["action_mask"]``, in the form that ``action_space.sample`` takes.

    Args:
        env: An environment with arrays; or an `EnvWrapper` with one copy of one.
        options: Keyword arguments of `EnvWrapper`, if ``env`` is not one.

    Raises:
        ConfigError: The environment has roles, several agents or copies, or ``auto_reset``.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  (Gymnasium's own declaration)

    def __init__(self, env: Any, **options: Any) -> None:
        self.batched = BatchedEnvironment("GymnasiumEnv", env, options, synchronises=True, reset_needed=ResetNeeded)
        self._has_ended = self._has_warned = False
        self.batched.require_no_roles()
        self.batched.require_one(env=True, agent=True)
        self.batched.require_no_auto_reset()
        self.observation_space = to_gymnasium(self.batched.observation_space)
        self.action_space = to_gymnasium(self.batched.action_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start a new episode, a seed's first one if given; return observation, infos."""
        super().reset(seed=seed)
        self.batched.restart(seed)
        self._has_ended = self._has_warned = False
        return self._observation(), self._infos()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one step; return observation, reward, terminated, truncated, infos.

        After the end of an episode the reward is 0, and the first such step warns, as in Gymnasium's CartPole.

        Raises:
            ResetNeeded: No reset yet.
            ActionError: The action is outside its space.
        """
        shape = self.action_space.shape
        assert shape is not None
        self.batched.step({"": action}, {"": shape})
        reward = 0.0 if self._has_ended else float(self.batched.rewards().item())
        if self._has_ended and not self._has_warned:
            self._has_warned = True
            gymnasium.logger.warn("GymnasiumEnv.step: the episode has ended; call reset()")
        terminated, truncated = (bool(ends.item()) for ends in self.batched.terminated_and_truncated())
        self._has_ended |= terminated or truncated
        return self._observation(), reward, terminated, truncated, self._infos()

    def _infos(self) -> dict[str, Any]:
        mask = self.batched.action_masks().get("")
        if mask is None:
            return {}
        return {Constants.ACTION_MASK: mask_for_sample(mask[0, 0].cpu().numpy(), self.action_space)}

    def _observation(self) -> Any:
        return map_parts(lambda part: part[0, 0].cpu().numpy(), self.batched.observations())


def make(env_class: str, *, backend: str = "cpu", render_mode: None = None, **options: Any) -> GymnasiumEnv:
    """Create one copy of an environment, for `gymnasium.make`.

    Args:
        env_class: Path of the class, ``package.module:ClassName``.
        backend: Backend of `EnvWrapper`.
        render_mode: Accepted for Gymnasium's calls; must be None.
        options: `WRAPPER_OPTIONS`, and the config of the environment. Without a ``seed``, the operating system gives
            one, as in Gymnasium's environments.

    Raises:
        ConfigError: An option is unknown or wrong; or the class is missing.
        RenderModeUnavailable: A ``render_mode`` is given.
    """
    env, of_wrapper = _created("gymnasium.make", env_class, render_mode, options)
    return GymnasiumEnv(env, env_backend=backend, **of_wrapper)


def make_vec(
    env_class: str,
    *,
    num_envs: int = 1,
    backend: str = "cpu",
    to_numpy: bool = True,
    agents_as_envs: bool = False,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    max_episode_steps: int | None = None,
    render_mode: None = None,
    **options: Any,
) -> GymnasiumVectorEnv:
    """Create copies of an environment, for `gymnasium.make_vec`.

    Args:
        env_class: Path of the class, ``package.module:ClassName``.
        num_envs: Number of copies.
        backend: Backend of `EnvWrapper`.
        to_numpy: Return NumPy arrays; False: tensors on the device.
        agents_as_envs: Expose every agent as an environment; see `GymnasiumVectorEnv`.
        autoreset_mode: Gymnasium's mode or its value; ``"SameStep"`` needs no launch for resets.
        max_episode_steps: Steps until truncation; the config's ``episode_length``.
        render_mode: Accepted for Gymnasium's calls; must be None.
        options: As for `make`.

    Raises:
        ConfigError: As for `make` and `GymnasiumVectorEnv`.
        RenderModeUnavailable: A ``render_mode`` is given.
    """
    if max_episode_steps is not None:
        what, rule = "gymnasium.make_vec: episode_length", f"must equal max_episode_steps, {max_episode_steps}"
        length = options.setdefault("episode_length", max_episode_steps)
        require(length == max_episode_steps, what, rule, length, "give one of them")
    env, of_wrapper = _created("gymnasium.make_vec", env_class, render_mode, options)
    return GymnasiumVectorEnv(
        env,
        num_envs=num_envs,
        env_backend=backend,
        to_numpy=to_numpy,
        agents_as_envs=agents_as_envs,
        autoreset_mode=autoreset_mode,
        **of_wrapper,
    )


def _created(who: str, env_class: str, render_mode: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the environment and the options of its wrapper."""
    do = "record episodes with `python -m warpdrive_min render`"
    what, error = f"{who}: render_mode", RenderModeUnavailable
    require(render_mode is None, what, "must be None", render_mode, do, error=error)
    of_wrapper = {name: options.pop(name) for name in WRAPPER_OPTIONS if name in options}
    if of_wrapper.get("seed") is None:
        of_wrapper["seed"] = secrets.randbits(64)
    return load_class(env_class)(**options), of_wrapper


def _as_mode(given: AutoresetMode | str | None) -> AutoresetMode | None:
    try:
        return None if given is None else AutoresetMode(given)
    except ValueError as error:
        rule = f"must be one of {', '.join(repr(mode.value) for mode in AutoresetMode)}"
        raise ConfigError.of("GymnasiumVectorEnv.autoreset_mode", rule, given) from error
