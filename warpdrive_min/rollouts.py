"""Rollouts: many env steps in one launch, or one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

from warpdrive_min.backends.base import (
    ACTIONS,
    FLAGS,
    KEPT,
    Argument,
    Backend,
    Constant,
    Kernel,
    Language,
    Launch,
    Source,
    last_of,
    rows_of,
)
from warpdrive_min.backends.cuda_rollouts import EPISODES, ROLLOUT, ROLLOUT_WITH_POLICY, entries_constant
from warpdrive_min.backends.cuda_source import whole_text
from warpdrive_min.constants import EPISODE, FINAL_OBSERVATIONS, RESET_SEED, Constants
from warpdrive_min.data_manager import CUDADataManager
from warpdrive_min.errors import CompileError, DataError, require, require_int
from warpdrive_min.function_manager import (
    FEW_ENVS_OF_A_POLICY,
    FILLING_BLOCKS_OF_A_POLICY,
    MULTIPROCESSORS,
    CUDAFunctionManager,
    KernelPlan,
    LaunchShape,
)
from warpdrive_min.lazy import LazyModule
from warpdrive_min.perceptron import Layout, Packed, Perceptron, perceptron_of, why_no_kernel
from warpdrive_min.sampler import CUDASampler, finite_bounds
from warpdrive_min.spaces import action_types, category_counts

if TYPE_CHECKING:
    import torch
else:
    torch = LazyModule("torch", globals())

Keep = Literal["last", "all"]
"""Steps whose results are returned: the last, or all."""
RANDOM: Final = "random"
"""Policy that draws uniform actions."""


class Steps(NamedTuple):
    """Results of a rollout, of all steps or of the last.

    Shapes are ``(n_steps, n_envs, ...)`` for all steps, else ``(n_envs, ...)``. Shapes and dtypes follow the data
    manager's arrays; flags of all steps are bool, and ``done`` is ``_done_``. ``final_observations`` are an episode's
    last observations if it ended with the step. Entries of other environments are stale. With all steps, so are those
    in the data manager's array.
    """

    sampled_actions: torch.Tensor
    observations: torch.Tensor
    final_observations: torch.Tensor
    rewards: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor
    done: torch.Tensor
    log_probs: torch.Tensor | None = None
    """Log-probabilities of a model's actions, ``(n_steps, n_envs, n_agents)``.

    Of the last step only: ``(n_envs, n_agents)``.
    """
    values: torch.Tensor | None = None
    """A model's values of the observations before each step, shaped as ``log_probs``."""
    first_observations: torch.Tensor | None = None
    """Observations before a model's first step, ``(n_envs, n_agents, ...)``.

    Those before a later step are ``observations`` of the step before.
    """

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors by name, without those of a model where none acted."""
        return {name: tensor for name, tensor in self._asdict().items() if tensor is not None}


class Policy(Protocol):
    """Model with logits, which define the action probabilities.

    It may act within a kernel if it has ``as_perceptron()``, which returns a `Perceptron` or a reason against one. If
    its ``has_value`` is false, ``act(observations)`` returns logits only.
    """

    def __call__(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits ``(..., n_outputs)`` and values ``(...)``.

        Observations are ``(..., n_features)``.
        """
        ...


@dataclass(frozen=True, slots=True)
class RolloutMode:
    """Form of a rollout: one launch (``"fused"``), or stepwise with a reason."""

    name: Literal["fused", "stepwise"]
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}" if self.reason else self.name


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies of an environment, which may not have arrays yet."""

    env: Any
    n_envs: int
    backend: Backend
    sources: Mapping[Language, Source]
    constants: Mapping[str, Constant]
    """Constants of its step."""

    @property
    def spaces(self) -> Sequence[Any]:
        """Action space of each agent."""
        return list(self.env.action_space.values())

    @property
    def n_agents(self) -> int:
        """Number of agents in each environment."""
        return len(self.spaces)

    @property
    def is_on_gpu(self) -> bool:
        """True if a GPU runs the kernels."""
        return self.backend.threads is None

    @property
    def why_no_policy(self) -> str:
        """Reason against a kernel with any policy, or ""."""
        if self.backend.language != "cuda_c":
            return f"backend {self.backend.name!r} has no rollout kernel with a policy; backends for CUDA C have one"
        if len(category_counts(self.spaces[0])) != 1:
            return "kernels with a policy need agents with one discrete action each"
        return "its actions have masks" if getattr(self.env, "masks_actions", False) else ""

    def layout(self, perceptron: Perceptron) -> Layout:
        """Return the order of a policy's weights in a kernel."""
        if not self.is_on_gpu:
            return "rows"
        return "columns" if perceptron.in_order else "tiles"

    def in_warps(self, entries: Mapping[str, int], *, acts: bool = False) -> LaunchShape | None:
        """Return the shape of `LaunchShape.of_warps` for a kernel of many steps."""
        if not self.is_on_gpu or self.backend.language != "cuda_c" or Constants.OBSERVATIONS not in entries:
            return None
        return LaunchShape.of_warps(self.n_agents, self.n_envs, entries[Constants.OBSERVATIONS], acts=acts)

    def with_policy(
        self,
        perceptron: Perceptron,
        entries: Mapping[str, int],
        *,
        keeps_all: bool = False,
        records: bool = False,
        is_tf32: bool = False,
    ) -> KernelPlan:
        """Return the kernel of steps with a policy.

        Args:
            perceptron: Layers of the policy; only their shapes matter.
            entries: As `CUDADataManager.entries`.
            keeps_all: It stores all steps, not the last one.
            records: It writes what training needs.
            is_tf32: Products use TF32.
        """
        how: dict[str, Any] = {"fills": True, "blocks_below": FILLING_BLOCKS_OF_A_POLICY}
        functions = CUDAFunctionManager(self.n_agents, self.n_envs, backend=self.backend, **how)
        is_small = perceptron.sizes[-1] <= 32 and self.n_envs <= FEW_ENVS_OF_A_POLICY
        if self.is_on_gpu and self.n_agents == 1 and is_small:
            functions.shape = LaunchShape.of_rows(1)  # warps with half the rows take less time for a step
        functions.shape = self.in_warps(entries, acts=True) or functions.shape
        functions.fused[ROLLOUT_WITH_POLICY] = "act + draw + env step + reset" + (" + record" if records else "")
        flags = {"KEEP_ALL": keeps_all, "RECORDS": records, "TF32": is_tf32, **POLICY_DRAW_CONSTANTS}
        sizes = perceptron.constants(self.layout(perceptron))
        return self.many_steps(functions, {**flags, **sizes}, entries)

    def episodes(self, network: Mapping[str, Constant], entries: Mapping[str, int]) -> KernelPlan:
        """Return the kernel of `Episodes`."""
        functions = CUDAFunctionManager(self.n_agents, self.n_envs, backend=self.backend)
        functions.shape = LaunchShape.of_rows(self.n_agents)
        functions.fused[EPISODES] = "network + choice + env step"
        draw = {**POLICY_DRAW_CONSTANTS, "ARGMAX": True, "LOG_PROB": False, "N_CATEGORIES": network["N_OUTPUTS"]}
        return self.many_steps(functions, {**draw, **network, "PLAYS_EPISODES": True}, entries)

    def many_steps(
        self, functions: CUDAFunctionManager, own: Mapping[str, Constant], entries: Mapping[str, int]
    ) -> KernelPlan:
        """Return a kernel with constants of its own; for ``entries`` see `with_policy`."""
        if self.backend.language == "cuda_c":  # an array that the source does not name would only change its key
            text = whole_text(Path(self.sources["cuda_c"]))
            entries = {name: n for name, n in entries.items() if name in (ACTIONS, *KEPT) or name in text}
        numbers = {entries_constant(name): n for name, n in {**entries, "draws": 1, "running_steps": 1}.items()}
        return KernelPlan(functions, self.sources, {**self.constants, **own, **numbers})


@dataclass(frozen=True, slots=True)
class RolloutEnvironment(Copies):
    """Environment of a wrapper with its arrays and kernels, for rollouts."""

    data: CUDADataManager
    step: Callable[[], None]
    """Function that takes one env step in all environments."""


class Rollouts:
    """Rollouts of one environment; kernels are compiled on first use.

    Args:
        subject: Environment, arrays and kernels.
        obstacle: Reason against one launch for all steps; empty: none is known.
    """

    def __init__(self, subject: RolloutEnvironment, obstacle: str = "") -> None:
        self._subject = subject
        self._obstacle = obstacle
        self._managers: dict[tuple[bool, bool], CUDAFunctionManager] = {}
        self._of_policies: dict[str, CUDAFunctionManager] = {}

    @property
    def mode(self) -> RolloutMode:
        """Form of rollouts with random actions; compiles the kernel to find out."""
        return self.mode_for(keeps_all=False, is_random=True)

    def mode_for(self, *, keeps_all: bool, is_random: bool) -> RolloutMode:
        """Return the form of rollouts that keep all steps or the last.

        Compiles their kernel to find out.
        """
        self._kernel(keeps_all=keeps_all, is_random=is_random)
        return RolloutMode("stepwise", self._obstacle) if self._obstacle else RolloutMode("fused")

    def mode_of(self, policy: Policy) -> RolloutMode:
        """Return the form of rollouts with a policy; may compile a kernel.

        Raises:
            ConfigError: The policy needs more than observations.
        """
        self._check_policy(policy)
        perceptron = perceptron_of(policy)
        kernel = self._kernel_of(perceptron, is_tf32=_allows_tf32(perceptron))
        return RolloutMode("stepwise", kernel) if isinstance(kernel, str) else RolloutMode("fused")

    def bound(
        self, n_steps: int, policy: str | torch.Tensor | Policy, keep: Keep, sampler: CUDASampler | None
    ) -> tuple[Launch, Steps]:
        """Return a launch of ``n_steps`` steps, and its output tensors.

        The tensors are the same each time. Only a tensor of actions needs no sampler.

        Raises:
            ConfigError: A rule about an argument is broken, or the policy needs more than observations.
            DataError: The actions have another shape, dtype or device.
        """
        require_int("rollout.n_steps", n_steps)
        require(keep in ("last", "all"), "rollout", "keep must be 'last' or 'all'", keep)
        if isinstance(policy, str):
            rule = "policy must be 'random', a tensor of actions or a model"
            require(policy == RANDOM, "rollout", rule, policy)
        elif not isinstance(policy, torch.Tensor):
            self._check_policy(policy)
        arrays = {name: self._subject.data.tensor(name) for name in (ACTIONS, *KEPT)}
        given = {name: _zeros(n_steps, name, array) for name, array in arrays.items() if keep == "all"}
        said: dict[str, Any] = {}
        if isinstance(policy, str | torch.Tensor):
            actions = None if isinstance(policy, str) else policy.detach()
            launch = self._bound_actions(n_steps, actions, given, sampler)
            if keep == "all" and actions is not None:
                said[ACTIONS] = actions
        else:
            assert sampler is not None
            launch, said = self._bound_policy(n_steps, policy, given, sampler)
        return launch, Steps(**{name.strip("_"): each for name, each in (arrays | given | said).items()})

    def _bound_actions(
        self,
        n_steps: int,
        actions: torch.Tensor | None,
        given: Mapping[str, torch.Tensor],
        sampler: CUDASampler | None,
    ) -> Launch:
        """Return a launch with given actions, or with random ones for None."""
        data, keeps_all = self._subject.data, bool(given)
        if actions is not None:
            array = data.tensor(ACTIONS)
            want = (n_steps, *array.shape), array.dtype, data.device
            got = tuple(actions.shape), actions.dtype, actions.device
            rule = f"actions must be contiguous {want[1]} of shape {want[0]} on {want[2]}"
            require(got == want and actions.is_contiguous(), "rollout", rule, got, error=DataError)
            given, sampler = {**given, ACTIONS: actions}, None
        kernel = self._kernel(keeps_all=keeps_all, is_random=actions is None)
        if kernel is None:
            return self._stepwise(n_steps, given, sampler)
        untouched: dict[str, Argument] = {"draws": data.tensor(EPISODE), "seed": data.tensor(RESET_SEED), "stream": 0}
        return self._fused(kernel, n_steps, given, sampler.counters(data) if sampler is not None else untouched)

    # -------------------------------------------------------------- with a policy

    def _bound_policy(
        self, n_steps: int, policy: Policy, given: Mapping[str, torch.Tensor], sampler: CUDASampler
    ) -> tuple[Launch, dict[str, torch.Tensor | None]]:
        """Return a launch with a policy, and its tensors among those of `Steps`."""
        data, keeps_all = self._subject.data, bool(given)
        observations, n_rows = data.tensor(Constants.OBSERVATIONS), n_steps if given else 1
        said = {
            name: torch.zeros(n_rows, *data.tensor(Constants.REWARDS).shape, device=data.device, dtype=torch.float32)
            for name in POLICY_OUTPUTS
        }
        seen = observations.new_zeros((n_rows + 1, *observations.shape))
        if keeps_all:
            given = {**given, Constants.OBSERVATIONS: seen[1:]}
        perceptron = perceptron_of(policy)
        kernel = self._kernel_of(perceptron, keeps_all=keeps_all, is_tf32=_allows_tf32(perceptron))
        if isinstance(kernel, str):
            act = self._act_stepwise(n_steps, policy, given, said, sampler)
        else:
            assert isinstance(perceptron, Perceptron)
            rows = {**given, **said}
            act = self._act_fused(kernel, n_steps, perceptron, rows, seen if keeps_all else None, sampler, {})

        def launch() -> None:
            seen[0].copy_(observations)
            act()

        log_probs, values = (each if keeps_all else each[0] for each in said.values())
        has_values = getattr(policy, "has_value", True)
        said_or_none = {"log_probs": log_probs, "values": values if has_values else None}
        return launch, {**given, **said_or_none, "first_observations": seen[0]}

    def bound_collection(
        self,
        policy: Policy,
        sampler: CUDASampler,
        seen: torch.Tensor,
        rows: Mapping[str, torch.Tensor],
        recorder: Mapping[str, Argument],
        *,
        is_tf32: bool = False,
    ) -> Launch | str:
        """Return a launch of training steps, or a reason against one.

        One launch takes all steps.

        Args:
            policy: Model that acts; its values are not computed.
            sampler: Sampler whose count of draws continues.
            seen: Observations before each step and after the last, ``(n_steps + 1, n_envs, n_agents, n_features)``.
            rows: Arrays with a row for each step, ``(n_steps, n_envs, ...)``: actions, ``log_probs``, rewards, flags.
            recorder: Further recorded arrays, by the names of the kernel ``record``, and ``successes``.
            is_tf32: Products use TF32, without correction to the precision of float32.

        Raises:
            ConfigError: As `bound`.
        """
        self._check_policy(policy)
        acting = _without_value(policy)
        kernel = self._kernel_of(acting, **_COLLECTS, is_tf32=is_tf32)
        if isinstance(kernel, str):
            return kernel
        assert isinstance(acting, Perceptron)
        given = {**rows, Constants.OBSERVATIONS: seen[1:]}
        act = self._act_fused(kernel, len(seen) - 1, acting, given, seen, sampler, recorder)
        observations = self._subject.data.tensor(Constants.OBSERVATIONS)

        def collect() -> None:
            seen[0].copy_(observations)
            act()

        return collect

    def collection(self, policy: Policy, *, is_tf32: bool = False) -> KernelPlan | None:
        """Return the kernel of `bound_collection` to compile; None if there is none."""
        found = self._planned(_without_value(policy), **_COLLECTS, is_tf32=is_tf32)
        return None if isinstance(found, str) else found

    def _check_policy(self, policy: Policy) -> None:
        spaces, rule = self._subject.spaces, "the actions of a policy must be discrete"
        is_choice, do = not hasattr(spaces[0], "low"), "use a Trainer for a Box"
        require(is_choice, "rollout", rule, spaces[0], do)
        rule, do = "the policy must depend on the current observation only", "use a Trainer for a recurrent policy"
        require(callable(policy) and not hasattr(policy, "state_size"), "rollout", rule, type(policy), do)
        has_array, rule = self._subject.data.is_data_on_device(Constants.OBSERVATIONS), "needs an array 'observations'"
        require(has_array, "rollout", rule, self._subject.data.array_names(), "use a Trainer for a Dict")

    def _kernel_of(self, perceptron: Perceptron | str, **how: bool) -> CUDAFunctionManager | str:
        """Return the manager of a kernel ``rollout_with_policy``, or a reason against one.

        Its options are those of `Copies.with_policy`.
        """
        found = self._planned(perceptron, **how)
        if isinstance(found, str):
            return found
        assert isinstance(perceptron, Perceptron)
        options = sorted(name for name, is_on in how.items() if is_on)
        key = str((options, perceptron.constants(self._subject.layout(perceptron))))
        if key not in self._of_policies:
            try:
                self._of_policies[key] = found.load()
            except CompileError as error:
                return f"it has no rollout kernel with a policy: {error}"
        return self._of_policies[key]

    def _planned(self, perceptron: Perceptron | str, **how: bool) -> KernelPlan | str:
        """Return a planned ``rollout_with_policy``, or a known reason against one."""
        subject = self._subject
        if obstacle := self._obstacle or subject.why_no_policy:
            return obstacle
        if isinstance(perceptron, str):
            return perceptron
        if reason := why_no_kernel(perceptron.sizes, perceptron.activation):
            return reason
        return subject.with_policy(perceptron, subject.data.entries, **how)

    def _act_fused(
        self,
        kernel: CUDAFunctionManager,
        n_steps: int,
        perceptron: Perceptron,
        given: Mapping[str, torch.Tensor],
        seen: torch.Tensor | None,
        sampler: CUDASampler,
        recorder: Mapping[str, Argument],
    ) -> Launch:
        """Return a launch of all steps in one kernel with a policy.

        Args:
            kernel: Manager of the kernel.
            n_steps: Number of env steps.
            perceptron: Layers of the policy.
            given: Arrays with a row for each step, in place of the data manager's.
            seen: Buffer of observations, with a row for those before the first step; None: only the last step's.
            sampler: Sampler whose count of draws continues.
            recorder: Arrays recorded for training; empty: nothing is recorded.
        """
        data = self._subject.data
        weights = Packed(perceptron.parameters, perceptron.order(self._subject.layout(perceptron)))
        loaded = kernel.kernel(ROLLOUT_WITH_POLICY)
        rows = self._flat_rows(loaded, given)
        if seen is not None:
            rows[Constants.OBSERVATIONS] = seen.flatten(0, 1)
        n_features, n_agents = data.tensor(Constants.OBSERVATIONS).shape[2], self._subject.n_agents
        counts = torch.zeros(1, device=data.device, dtype=torch.int32)
        of_agents = torch.zeros(1, n_agents, device=data.device, dtype=torch.float32)
        untouched = dict.fromkeys(
            ("successes", "running_steps", "finished_steps", "finished_episodes", "n_cut"), counts
        )
        arguments: dict[str, Argument] = {
            **untouched,
            **dict.fromkeys(("running_return", "finished_return", "values"), of_agents),
            "cuts": torch.zeros(1, n_features, device=data.device, dtype=torch.float32),
            "n_cuts": 0,
            "faults": torch.zeros(1, 2, device=data.device, dtype=torch.int32),
            **rows,
            **recorder,
            **sampler.counters(data),
        }
        launch = kernel.bind(ROLLOUT_WITH_POLICY, data, **arguments, weights=weights.numbers, n_steps=n_steps)
        keep_last = self._last_row_copier(loaded, {} if seen is None else given)

        def act() -> None:
            weights.pack()
            launch()
            keep_last()

        return act

    def _act_stepwise(
        self,
        n_steps: int,
        policy: Policy,
        given: Mapping[str, torch.Tensor],
        said: Mapping[str, torch.Tensor],
        sampler: CUDASampler,
    ) -> Launch:
        data, step = self._subject.data, self._subject.step
        act_alone = None if getattr(policy, "has_value", True) else getattr(policy, "act", None)
        n_outputs = sum(category_counts(self._subject.spaces[0]))
        head = torch.zeros(data.n_envs, self._subject.n_agents, n_outputs, device=data.device, dtype=torch.float32)
        log_prob = said["log_probs"].new_zeros(head.shape[:2])
        mask = data.tensor(Constants.ACTION_MASK) if getattr(self._subject.env, "masks_actions", False) else None
        draw = sampler.bound(data, head, logits=True, log_prob=log_prob, mask=mask)

        @torch.no_grad()
        def act() -> None:
            for index in range(n_steps):
                observations = data.tensor(Constants.OBSERVATIONS).flatten(2).float()
                logits, values = (act_alone(observations), None) if act_alone else policy(observations)
                head.copy_(logits)
                draw()
                step()
                row = index if given else 0
                said["log_probs"][row].copy_(log_prob)
                if values is not None:
                    said["values"][row].copy_(values)
                for name, kept in given.items():
                    kept[index].copy_(data.tensor(name))

        return act

    # -------------------------------------------------------------- one launch

    def _kernel(self, *, keeps_all: bool, is_random: bool) -> CUDAFunctionManager | None:
        """Return a ``rollout`` kernel's manager, or None; stores the obstacle."""
        key, subject = (keeps_all, is_random), self._subject
        if not self._obstacle and key not in self._managers:
            n = _multiprocessors(subject.backend.device) if subject.backend.language != "numpy" else None
            how: dict[str, Any] = {"backend": subject.backend, "fills": True, "multiprocessors": n}
            manager = CUDAFunctionManager(subject.n_agents, subject.data.n_envs, **how)
            manager.shape = subject.in_warps(subject.data.entries) or manager.shape
            flags: dict[str, Constant] = {"KEEP_ALL": keeps_all, "RANDOM": is_random}
            try:
                kernel = subject.many_steps(manager, {**flags, **self._actions()}, subject.data.entries)
                kernel.load().kernel(ROLLOUT)
            except CompileError as error:
                self._obstacle = f"it has no rollout kernel: {error}"
            else:
                manager.fused[ROLLOUT] = "draw + env step + reset" if is_random else "env step + reset"
                self._managers[key] = manager
        return None if self._obstacle else self._managers[key]

    def _actions(self) -> dict[str, Constant]:
        """Return the constants that define the random actions."""
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
        kernel, rows, numbers = manager.kernel(ROLLOUT), dict(given), dict[str, torch.Tensor]()
        declared = {each.name for each in kernel.parameters}
        if manager.backend.language == "cuda_c" or not declared.isdisjoint(map(rows_of, FLAGS)):
            rows = self._flat_rows(kernel, given)
        elif any(each.dtype for each in kernel.parameters if each.name in FLAGS):  # int32 flags, as in a single step
            numbers = {name: each.int() for name, each in given.items() if name in FLAGS}
            rows |= numbers
        launch = manager.bind(ROLLOUT, self._subject.data, **rows, **counters, n_steps=n_steps)
        keep_last = self._last_row_copier(kernel, {**given, **numbers})

        def launch_and_keep_last() -> None:
            launch()
            for name, number in numbers.items():
                given[name].copy_(number)
            keep_last()

        return launch_and_keep_last

    def _flat_rows(self, kernel: Kernel, given: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return rows of steps without an axis of steps, as kernels in CUDA C take them.

        They have no axis of steps, and bool rows are named by `rows_of`. Arrays that the kernel takes as `last_of` are
        added.
        """
        data, declared = self._subject.data, {each.name for each in kernel.parameters}
        untouched = torch.zeros(1, dtype=torch.bool, device=data.device)
        flat = {name: tensor.flatten(0, 1) for name, tensor in given.items()}
        named = {rows_of(name) if each.dtype == torch.bool else name: each for name, each in flat.items()}
        arrays = {last_of(name): data.tensor(name) for name in (ACTIONS, *KEPT) if last_of(name) in declared}
        return dict.fromkeys(map(rows_of, FLAGS), untouched) | named | arrays

    def _last_row_copier(self, kernel: Kernel, given: Mapping[str, torch.Tensor]) -> Launch:
        """Return a function that copies last rows to the data manager.

        Arrays that the kernel writes there, too, are skipped.
        """
        declared = {each.name for each in kernel.parameters}
        beside = {name: rows_of(name) if each.dtype == torch.bool else last_of(name) for name, each in given.items()}
        kept = [name for name in given if name in (ACTIONS, *KEPT) and name != FINAL_OBSERVATIONS]
        kept = [name for name in kept if beside[name] not in declared]
        copies = [
            ([self._subject.data.tensor(name) for name in names], [given[name][-1] for name in names])
            for dtype in {given[name].dtype for name in kept}
            if (names := [name for name in kept if given[name].dtype == dtype])
        ]

        def keep_last() -> None:
            for to, last in copies:
                torch._foreach_copy_(to, last)

        return keep_last

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


class Episodes:
    """Whole greedy episodes, one in each environment, in one launch.

    Args:
        subject: Environments, which must not restart by themselves, in CUDA C on a GPU.
        network: Constants of the network, as in `kernels/episodes.cuh`.
    """

    def __init__(self, subject: RolloutEnvironment, network: Mapping[str, Constant]) -> None:
        self._data = subject.data
        self.kernel = subject.episodes(network, subject.data.entries)
        """Kernel, before it is compiled."""

    def bound(self, n_steps: int, **arguments: torch.Tensor) -> Launch:
        """Return a launch of up to ``n_steps`` steps, until all episodes are over.

        Args:
            n_steps: Length of the longest episode.
            arguments: Layers of the network by name, and the results: ``episode_returns``, (n_envs, n_agents) float32,
                and ``episode_steps``, (n_envs,) float32.

        Raises:
            CompileError: The environment's step cannot be repeated in a launch, or the kernel does not compile.
        """
        return self.kernel.load().bind(EPISODES, self._data, n_steps=n_steps, **arguments)


POLICY_DRAW_CONSTANTS: Final[dict[str, Constant]] = {
    "N_TYPES": 1,
    "LOGITS": True,
    "MASKED": False,
    "ARGMAX": False,
    "LOG_PROB": True,
    "ENTROPY": False,
}
"""Constants for a policy's draws: one choice from logits, with log-probability."""
POLICY_OUTPUTS: Final = ("log_probs", "values")
"""Outputs of a policy for each step, apart from its actions."""
_COLLECTS: Final = {"keeps_all": True, "records": True}
"""Options of a kernel that collects training steps."""


def _zeros(n_steps: int, name: str, array: torch.Tensor) -> torch.Tensor:
    """Return rows of steps of an array, ``(n_steps, *array.shape)``.

    Zeros of its dtype, or of bool for a flag.
    """
    return array.new_zeros((n_steps, *array.shape), dtype=torch.bool if name in FLAGS else array.dtype)


def _without_value(policy: Policy) -> Perceptron | str:
    """Return the layers that choose actions, or a reason against kernels."""
    found = perceptron_of(policy)
    return found if isinstance(found, str) else replace(found, value=())


def _multiprocessors(device: torch.device) -> int:
    """Return a GPU's number of multiprocessors, or an H100's without one."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else MULTIPROCESSORS


def _allows_tf32(policy: Perceptron | str) -> bool:
    """True if a policy may use TF32, as torch; never if exact."""
    return torch.get_float32_matmul_precision() != "highest" and isinstance(policy, Perceptron) and not policy.in_order


def known_obstacle(functions: CUDAFunctionManager, step: str, sequences: Mapping[str, Any]) -> str:
    """Return the known reason against one launch for all steps, or ""."""
    if functions.backend.language == "numpy":
        return f"backend {functions.backend.name!r} runs NumPy, which has no launches"
    if "step" in sequences or functions.blocks_per_env > 1:
        return "its step is a sequence of kernels, and all blocks wait for each other between them"
    if functions.has_agent_threads(step):
        return "its kernel has a thread for each agent, and does not declare the environments of a block"
    return ""


def own_sampler(data: CUDADataManager, functions: CUDAFunctionManager, env: Any, seed: int) -> CUDASampler:
    """Return a sampler of an environment's actions that counts draws from 0.

    Raises:
        ConfigError: There is one already, which must be passed: two would share its count.
    """
    space = next(iter(env.action_space.values()))
    sampler = CUDASampler(functions)
    is_drawn, rule = data.is_data_on_device(f"{ACTIONS}_draws"), "these actions have a sampler already"
    require(not is_drawn, "rollout", rule, do="pass it as sampler=; a random_policy has it as .sampler")
    sampler.register_actions(data, ACTIONS, action_types(space), is_deterministic=hasattr(space, "low"))
    sampler.init_random(seed)
    return sampler
