"""Many steps of all environments at once: in one launch where their kernels allow it, else one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import torch

from warpdrive_min.backends.base import ACTIONS, KEPT, Argument, Backend, Constant, Language, Launch, Source
from warpdrive_min.constants import DONE, EPISODE, FINAL_OBSERVATIONS, RESET_SEED
from warpdrive_min.data_manager import CUDADataManager
from warpdrive_min.errors import CompileError, DataError, require
from warpdrive_min.function_manager import CUDAFunctionManager
from warpdrive_min.sampler import CUDASampler, finite_bounds
from warpdrive_min.spaces import action_types, category_counts

Keep = Literal["last", "all"]
"""Steps whose observations, rewards and flags are kept."""
RANDOM: Final = "random"
"""Policy whose actions are all as likely."""


class Steps(NamedTuple):
    """Results of steps: ``(n_steps, n_envs, ...)`` where all are kept, else ``(n_envs, ...)`` of the last one.

    Shapes and types are those of the data manager's arrays; ``done`` is ``_done_``. ``final_observations`` are the last
    ones of an episode where one ended with the step; of other environments they are stale, and where all steps are kept
    so are the data manager's.
    """

    sampled_actions: torch.Tensor
    observations: torch.Tensor
    final_observations: torch.Tensor
    rewards: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor
    done: torch.Tensor


@dataclass(frozen=True, slots=True)
class RolloutMode:
    """Form of steps: many in a launch (``"fused"``), or one by one, and then why."""

    name: Literal["fused", "stepwise"]
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}" if self.reason else self.name


@dataclass(frozen=True, slots=True)
class Subject:
    """Subject of rollouts: a wrapper's environment, its arrays, and its kernels."""

    env: Any
    data: CUDADataManager
    backend: Backend
    sources: Mapping[Language, Source]
    constants: Mapping[str, Constant]
    step: Callable[[], None]
    """Takes one step of all environments."""

    @property
    def spaces(self) -> Sequence[Any]:
        """Space of each agent's actions."""
        return list(self.env.action_space.values())

    @property
    def n_agents(self) -> int:
        """Agents in each environment."""
        return len(self.spaces)


class Rollouts:
    """Rollouts of a subject, whose kernels are compiled when they are first asked for.

    Args:
        subject: What is stepped.
        obstacle: Why its steps cannot be taken in one launch; empty: nothing is known.
    """

    def __init__(self, subject: Subject, obstacle: str = "") -> None:
        self._subject = subject
        self._obstacle = obstacle
        self._managers: dict[tuple[bool, bool], CUDAFunctionManager] = {}

    @property
    def mode(self) -> RolloutMode:
        """Form in which steps are taken; compiles the kernel for random actions to tell."""
        if not self._obstacle:
            self._kernel(keeps_all=False, is_random=True)
        return RolloutMode("stepwise", self._obstacle) if self._obstacle else RolloutMode("fused")

    def bound(
        self, n_steps: int, policy: str | torch.Tensor, keep: Keep, sampler: CUDASampler | None
    ) -> tuple[Launch, Steps]:
        """Return what enqueues ``n_steps`` steps, and the tensors that they are written to, the same each time.

        Raises:
            ConfigError: A rule about an argument is broken.
            DataError: The actions have another shape, dtype or device.
        """
        data, is_random = self._subject.data, isinstance(policy, str)
        require(n_steps >= 1, "rollout", "n_steps must be at least 1", n_steps)
        require(keep in ("last", "all"), "rollout", "keep must be 'last' or 'all'", keep)
        if is_random:
            rule, do = "policy must be 'random' or a tensor of actions", "write actions of a policy, or use a Trainer"
            require(policy == RANDOM, "rollout", rule, policy, do)
        arrays = {name: data.tensor(name) for name in (ACTIONS, *KEPT)}
        given: dict[str, torch.Tensor] = {}
        if keep == "all":
            given = {name: array.new_zeros((n_steps, *array.shape)) for name, array in arrays.items()}
        if isinstance(policy, torch.Tensor):
            want = (n_steps, *arrays[ACTIONS].shape), arrays[ACTIONS].dtype, data.device
            got = tuple(policy.shape), policy.dtype, policy.device
            rule = f"actions must be contiguous {want[1]} of shape {want[0]} on {want[2]}"
            require(got == want and policy.is_contiguous(), "rollout", rule, got, error=DataError)
            given[ACTIONS] = policy
        kernel = self._kernel(keeps_all=keep == "all", is_random=is_random)
        if kernel is None:
            launch = self._stepwise(n_steps, given, sampler if is_random else None)
        else:
            untouched: dict[str, Argument] = {
                "draws": data.tensor(EPISODE),
                "seed": data.tensor(RESET_SEED),
                "stream": 0,
            }
            more = sampler.counters(data) if sampler is not None and is_random else untouched
            launch = self._fused(kernel, n_steps, given, more)
        last = {**arrays, **(given if keep == "all" else {})}
        return launch, Steps(**{name.strip("_"): tensor for name, tensor in last.items()})

    # -------------------------------------------------------------- one launch

    def _kernel(self, *, keeps_all: bool, is_random: bool) -> CUDAFunctionManager | None:
        """Return the manager of a kernel ``rollout``; None: there is an obstacle, which is noted."""
        key, subject = (keeps_all, is_random), self._subject
        if not self._obstacle and key not in self._managers:
            manager = CUDAFunctionManager(subject.n_agents, subject.data.n_envs, backend=subject.backend)
            flags: dict[str, Constant] = {"KEEP_ALL": keeps_all, "RANDOM": is_random, **self._actions()}
            try:
                manager.load(subject.sources, {**subject.constants, **flags})
                manager.kernel("rollout")
            except CompileError as error:
                self._obstacle = f"it has no kernel of many steps: {error}"
            else:
                self._managers[key] = manager
        return None if self._obstacle else self._managers[key]

    def _actions(self) -> dict[str, Constant]:
        """Return the constants that say what actions may be drawn."""
        spaces = self._subject.spaces
        if hasattr(spaces[0], "low"):
            low, high = finite_bounds(spaces)
            sides: dict[str, Constant] = {"LOW": low.ravel().tolist(), "HIGH": high.ravel().tolist()}
            return {"N_TYPES": low.shape[1], "CATEGORIES": (), **sides}
        categories = category_counts(spaces[0])
        return {"N_TYPES": len(categories), "CATEGORIES": categories, "LOW": (), "HIGH": ()}

    def _fused(
        self,
        manager: CUDAFunctionManager,
        n_steps: int,
        given: Mapping[str, torch.Tensor],
        counters: Mapping[str, Argument],
    ) -> Launch:
        data = self._subject.data
        rows = dict(given)
        if manager.backend.language == "cuda_c":  # whose kernels know no axis of steps, but more environments
            rows = {name: tensor.flatten(0, 1) for name, tensor in given.items()}
        entries = {f"{name}_entries": data.tensor(name)[0].numel() for name in (ACTIONS, *KEPT)}
        launch = manager.bind("rollout", data, **rows, **counters, **entries, n_steps=n_steps)
        kept = [name for name in given if name != FINAL_OBSERVATIONS]
        if DONE not in kept:
            return launch
        copies = [
            ([data.tensor(name) for name in names], [given[name][-1] for name in names])
            for dtype in {given[name].dtype for name in kept}
            if (names := [name for name in kept if given[name].dtype == dtype])
        ]

        def launch_and_keep_last() -> None:
            launch()
            for to, last in copies:
                torch._foreach_copy_(to, last)

        return launch_and_keep_last

    # -------------------------------------------------------------- one by one

    def _stepwise(self, n_steps: int, given: Mapping[str, torch.Tensor], sampler: CUDASampler | None) -> Launch:
        data, step = self._subject.data, self._subject.step
        draw = None if sampler is None else sampler.bound_random(data, self._subject.spaces)

        def step_one_by_one() -> None:
            for index in range(n_steps):
                if draw is None:
                    data.tensor(ACTIONS).copy_(given[ACTIONS][index])
                else:
                    draw()
                step()
                for name, kept in given.items():
                    if draw is not None or name != ACTIONS:
                        kept[index].copy_(data.tensor(name))

        return step_one_by_one


def obstacle_of(functions: CUDAFunctionManager, step: str, sequences: Mapping[str, Any]) -> str:
    """Say why steps cannot be taken in one launch; empty: nothing is known to stand in the way."""
    if functions.backend.language == "numpy":
        return f"backend {functions.backend.name!r} runs NumPy, which has no launches"
    if "step" in sequences or functions.blocks_per_env > 1:
        return "its step is a sequence of kernels, at whose ends all blocks meet"
    if functions.has_agent_threads(step):
        return "its kernel has a thread for each agent, and does not say which environments a block owns"
    return ""


def own_sampler(data: CUDADataManager, functions: CUDAFunctionManager, env: Any, seed: int) -> CUDASampler:
    """Return a sampler of an environment's actions that counts from 0.

    Raises:
        ConfigError: There is one already, which should be handed over: two would share its count.
    """
    space = next(iter(env.action_space.values()))
    sampler = CUDASampler(functions)
    is_drawn, do = data.is_data_on_device(f"{ACTIONS}_draws"), "hand it over as sampler="
    require(not is_drawn, "rollout", "a sampler draws these actions already", do=do)
    sampler.register_actions(data, ACTIONS, action_types(space), is_deterministic=hasattr(space, "low"))
    sampler.init_random(seed)
    return sampler
