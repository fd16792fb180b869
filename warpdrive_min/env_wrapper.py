"""Environment wrapper: many copies of one environment on one backend."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from warpdrive_min import backends, forks
from warpdrive_min.backends.base import Backend, Constant, Language, Launch, Source
from warpdrive_min.backends.cuda_source import warp_drive_sizes, whole_text
from warpdrive_min.constants import DONE, Constants
from warpdrive_min.data_manager import CUDADataManager
from warpdrive_min.environment import (
    CUDAEnvironmentContext,
    Environment,
    Observations,
    PythonEnvironment,
    agent_sets,
    as_actions,
    earliest_truncation,
    environment_constants,
    own_state,
    push_environment,
    require_actions,
    seed_resets,
)
from warpdrive_min.errors import (
    ActionError,
    CompileError,
    ConfigError,
    require,
    require_int,
    require_type,
)
from warpdrive_min.function_manager import CUDAFunctionFeed, CUDAFunctionManager
from warpdrive_min.lazy import LazyModule
from warpdrive_min.registrar import EnvironmentRegistrar
from warpdrive_min.registrar import env_registrar as default_registrar
from warpdrive_min.resetter import OWN_KERNEL, CUDAEnvironmentReset, launch_preserving
from warpdrive_min.rollouts import (
    RANDOM,
    Episodes,
    Keep,
    Policy,
    RolloutEnvironment,
    RolloutMode,
    Rollouts,
    Steps,
    known_obstacle,
    own_sampler,
)
from warpdrive_min.sampler import CUDASampler
from warpdrive_min.spaces import action_bounds, space_of

if TYPE_CHECKING:
    import torch
else:
    torch = LazyModule("torch", globals())

STEP_NAMES: dict[Language, str] = {"numpy": "NumPy{}Step", "cuda_c": "Cuda{}Step", "numba": "Numba{}Step"}
"""Names of step kernels in WarpDrive's convention; ``step`` is looked up first."""


def step_functions(
    env: CUDAEnvironmentContext,
    n_envs: int,
    blocks_per_env: int,
    backend: Backend,
    *,
    auto_reset: bool,
    kind: Callable[..., CUDAFunctionManager] = CUDAFunctionManager,
) -> CUDAFunctionManager:
    """Return the manager of an environment's own kernels, before they are compiled."""
    is_spread = bool(env.kernel_sequences(auto_reset))
    return kind(env.num_agents, n_envs, blocks_per_env, backend=backend, spread=is_spread, fills=True)


class EnvWrapper:
    """Wrapper that runs ``num_envs`` copies of an environment.

    If the environment has kernels in the backend's language, all copies live in arrays of `cuda_data_manager`. `reset`
    starts them. `step` reads ``sampled_actions`` and writes observations, rewards and done flags. On `cpu`,
    ``step(actions)`` with a dict of actions steps the one Python environment instead, as in WarpDrive.

    Args:
        env_obj: Environment; alternatively give ``env_name`` and ``env_config``.
        env_name: Registered name of the environment.
        env_config: Keyword arguments of the environment.
        num_envs: Number of copies.
        blocks_per_env: CUDA blocks that share one copy, if its kernels can; None: chosen automatically.
        env_backend: ``"cpu"``, ``"host"``, ``"numba"`` or ``"pycuda"``; True and False mean `pycuda` and `cpu`. The
            environment's ``env_backend`` is set to it, or to `pycuda` for CUDA C kernels with a thread for each agent.
        testing_mode: Accepted for WarpDrive's calls; ``testing_bin_filename`` must be None, as sources are compiled.
        env_registrar: Registrar of names and sources; None: the shared one.
        event_messenger: Accepted for WarpDrive's calls; the cache of compiled code needs no coordination.
        process_id: Accepted for WarpDrive's calls.
        use_cuda: Old name of ``env_backend``.
        seed: Seed of random starts and reset pools.
        auto_reset: The step restarts finished copies; ``_done_`` still marks them.
        exact: Bit-identical floats on every backend, at some cost in speed.
        debug: Check each draw of choices, and before each step all actions against their spaces; synchronises.
        envs_before: Number of environments of lower ranks; random draws then number environments over all ranks, as
            exact training needs. CUDA C only.

    Raises:
        ConfigError: A rule about an argument or the environment is broken.
        BackendUnavailable: The backend is unknown or cannot run here.
        CompileError: The kernels do not compile.
    """

    data_manager_class: ClassVar[type[CUDADataManager]] = CUDADataManager
    """Class of `cuda_data_manager`, which holds the arrays."""
    function_manager_class: ClassVar[type[CUDAFunctionManager]] = CUDAFunctionManager
    """Class of `cuda_function_manager`, which holds the kernels."""

    def __init__(
        self,
        env_obj: Any = None,
        env_name: str | None = None,
        env_config: Mapping[str, Any] | None = None,
        num_envs: int = 1,
        blocks_per_env: int | None = None,
        env_backend: str | bool = "cpu",
        testing_mode: bool = False,
        testing_bin_filename: str | Path | None = None,
        env_registrar: EnvironmentRegistrar | None = None,
        event_messenger: Any = None,
        process_id: int = 0,
        *,
        use_cuda: str | bool | None = None,
        seed: int = 0,
        auto_reset: bool = False,
        exact: bool = False,
        debug: bool = False,
        envs_before: int = 0,
    ) -> None:
        if use_cuda is not None:
            warnings.warn("EnvWrapper: use_cuda is the old name of env_backend", DeprecationWarning, stacklevel=2)
            env_backend = use_cuda
        if isinstance(env_backend, bool):
            env_backend = "pycuda" if env_backend else "cpu"
        self.backend = backends.get(env_backend)
        forks.threads()  # in a forked process torch must use one thread, too
        self.env_backend = env_backend
        self._registrar = env_registrar or default_registrar
        self.env: Any = env_obj if env_obj is not None else self._create(env_name, env_config)
        check_environment(self.env)
        self._fresh = copy.copy(self.env) if self.can_be_repeated else None
        flags = {"auto_reset": auto_reset, "exact": exact, "debug": debug}
        self.auto_reset, self.exact, self.debug = (require_type(name, value, bool) for name, value in flags.items())
        num_envs, seed = require_int("num_envs", num_envs), require_int("seed", seed, 0, 2**64 - 1)
        if blocks_per_env is not None:
            blocks_per_env = require_int("blocks_per_env", blocks_per_env, do="leave it out for the default")
        self.name: str = self.env.name
        self.n_agents: int = self.env.num_agents
        self.episode_length: int = self.env.episode_length
        self.n_envs = num_envs
        self.envs_before = require_int("envs_before", envs_before, 0)
        """Number of environments of lower ranks."""
        is_numbered, do = not self.envs_before or self.backend.language == "cuda_c", "use backend host or pycuda"
        require(is_numbered, "EnvWrapper.envs_before", "needs kernels in CUDA C", env_backend, do)
        self.env.observation_space = self._observation_space()
        if hasattr(self.env, "env_backend"):
            self.env.env_backend = env_backend
        self.reset_on_host = True
        """True if the next reset runs on the host and pushes arrays."""

        has_context = isinstance(self.env, CUDAEnvironmentContext)
        if has_context:
            self.blocks_per_env = self.env.settle_blocks(blocks_per_env, self.backend.language)
        sources = self._sources()
        self.vectorised = has_context and self.backend.language in sources
        """True if all copies run in kernels, not one Python environment."""
        if not self.vectorised:
            rule = f"has no {self.backend.language} kernels, which backend {env_backend!r} runs"
            do = "derive it from CUDAEnvironmentContext and name a source, or use env_backend='cpu'"
            require(env_backend == "cpu", f"environment {self.name!r}", rule, do=do)
            return
        self._seed = seed
        self.cuda_data_manager = self.data_manager_class(
            self.n_agents, num_envs, self.blocks_per_env, self.episode_length, backend=self.backend
        )
        sequences = self.env.kernel_sequences(self.auto_reset)
        self.cuda_function_manager = step_functions(
            self.env,
            num_envs,
            self.blocks_per_env,
            self.backend,
            auto_reset=self.auto_reset,
            kind=partial(self.function_manager_class, process_id=process_id),
        )
        self.cuda_function_manager.debug = self.debug
        self.cuda_function_manager.envs_before = self.envs_before
        self._load(sources, testing_bin_filename)
        self._rollouts: Rollouts | None = None
        self._of_one_row: CUDAFunctionManager | None = None
        self._bound: dict[tuple[int, Keep, str | Policy, str], tuple[Launch, Steps]] = {}
        self._sampler: CUDASampler | None = None
        for name, stages in sequences.items():
            self.cuda_function_manager.define_sequence(name, stages)
        feed = CUDAFunctionFeed(self.cuda_data_manager)
        step = self._step_name()
        if self.backend.language == "cuda_c" and self.cuda_function_manager.has_agent_threads(step):
            self.env.env_backend = "pycuda"  # WarpDrive's environments test for this name, on `host` too
        self.env.initialize_step_function_context(self.cuda_data_manager, self.cuda_function_manager, feed, step)
        self.env_resetter = CUDAEnvironmentReset(self.cuda_function_manager)
        custom = f"Cuda{self.name}Reset"
        if self.cuda_function_manager.has_function(custom):
            self.env_resetter.register_custom_reset_function(self.cuda_data_manager, custom)
        self.resets_itself = self.cuda_function_manager.has_function(OWN_KERNEL)
        """True if kernels have ``reset``, also run by ``auto_reset`` steps."""
        if self.resets_itself and self.auto_reset:
            self.cuda_function_manager.fused[step] = "env step + reset"

    # -------------------------------------------------------------- construction

    @property
    def can_be_repeated(self) -> bool:
        """True if `like` can create other copies.

        The config then defines the environment, and the wrapper has our constructor.
        """
        return isinstance(self.env, Environment) and type(self).__init__ is EnvWrapper.__init__

    def like(self, num_envs: int, *, seed: int = 0, auto_reset: bool = False) -> Self:
        """Return a new, unreset wrapper of the same environment and backend.

        Its environment has the state of this one's before the first reset; see `own_state`.

        Raises:
            ConfigError: The environment is not an `Environment`, or a subclass has another constructor.
        """
        rule, do = "cannot be copied", "derive it from Environment, or use `BorrowedEnvs`"
        require(self.can_be_repeated, f"environment {self.name!r}", rule, type(self.env), do)
        return type(self)(
            copy.copy(self._fresh),
            num_envs=num_envs,
            blocks_per_env=self.blocks_per_env if self.blocks_per_env > 1 else None,
            env_backend=self.env_backend,
            env_registrar=self._registrar,
            seed=seed,
            auto_reset=auto_reset,
            exact=self.exact,
        )

    def _create(self, name: str | None, config: Mapping[str, Any] | None) -> Any:
        if name is None or config is None:
            raise ConfigError(
                f"EnvWrapper: needs env_obj, or env_name and env_config (got env_name={name!r}, env_config={config!r})"
            )
        env: PythonEnvironment = self._registrar.get(name, self.env_backend)(**config)
        return env

    def _sources(self) -> dict[Language, Source]:
        sources: dict[Language, Source] = dict(getattr(self.env, "kernel_sources", {}))
        registered = self._registrar.get_cuda_env_src_path(self.name, self.env_backend)
        if registered is not None:
            sources[self.backend.language] = registered
        return sources

    def _observation_space(self) -> dict[Hashable, Any]:
        spaces = {agent: space_of(observation) for agent, observation in self.env.reset().items()}
        agents, rule = self.env.action_space, "reset() must return an observation for each agent of action_space"
        require(spaces.keys() == agents.keys(), f"environment {self.name!r}", rule, (list(spaces), list(agents)))
        return spaces

    def _load(self, sources: Mapping[Language, Source], binary: str | Path | None) -> None:
        """Compile the sources; a subclass may take that of ``binary``."""
        do = "leave testing_bin_filename out"
        require(binary is None, "EnvWrapper", "compiles sources and loads no compiled file", binary, do)
        constants = environment_constants(self.env, auto_reset=self.auto_reset, exact=self.exact)
        if self.backend.language == "cuda_c":
            text = whole_text(Path(sources["cuda_c"]))
            constants |= warp_drive_sizes(text, self.n_envs, self.n_agents, self.blocks_per_env)
            rule, do = "must be 0 for kernels that draw by cuRAND, which counts threads", "train in one process"
            is_numbered = not self.envs_before or "curand" not in text
            require(is_numbered, "EnvWrapper.envs_before", rule, self.envs_before, do)
            constants |= {"ENVS_BEFORE": self.envs_before} if self.envs_before else {}
        self._loaded = sources, constants
        self.cuda_function_manager.load(sources, constants)

    def _step_name(self) -> str:
        names = ["step", STEP_NAMES[self.backend.language].format(self.name)]
        for name in names:
            if self.cuda_function_manager.has_function(name):
                return name
        raise CompileError(f"environment {self.name!r}: its source has no kernel {' or '.join(map(repr, names))}")

    # -------------------------------------------------------------- reset

    def reset_all_envs(self) -> Observations:
        """Start a new episode in every copy.

        Returns:
            The first observations of the Python environment by agent, on `cpu` and at the first call. Later calls
            return {}: read the array ``observations``. Enqueues; the first call allocates and synchronises.
        """
        self.env.timestep = 0
        if not self.vectorised:
            return dict(self.env.reset())
        first = self.reset_on_host
        # Before the push: an environment may push data that it drew in reset().
        observations = dict(self.env.reset()) if first or self.env_backend == "cpu" else {}
        if first:
            push_environment(self.env, self.cuda_data_manager)
            seed_resets(self.cuda_data_manager, self._seed)
            self.reset_on_host = False
        if self.resets_itself or not first:
            self.env_resetter.reset_when_done(self.cuda_data_manager, mode="force_reset")
        return observations

    def reset_only_done_envs(self, undo_done_after_reset: bool = True) -> dict[str, Any]:
        """Reset the copies whose ``_done_`` is set; enqueues."""
        self._require_arrays("reset_only_done_envs")
        self.env_resetter.reset_when_done(self.cuda_data_manager, "if_done", undo_done_after_reset)
        return {}

    def init_reset_pool(self, seed: int | None = None) -> None:
        """Check the reset pools and seed their draws; synchronises."""
        self._require_arrays("init_reset_pool")
        self.env_resetter.init_reset_pool(self.cuda_data_manager, seed)

    def custom_reset_all_envs(
        self,
        args: Sequence[str | tuple[str, str]] | None = None,
        block: Sequence[int] | None = None,
        grid: Sequence[int] | None = None,
    ) -> dict[str, Any]:
        """Launch ``Cuda<name>Reset``, or the kernel registered with `env_resetter`."""
        self._require_arrays("custom_reset_all_envs")
        self.env_resetter.custom_reset(args, block, grid)
        return {}

    def obs_at_reset(self) -> Observations:
        """Return the Python environment's first observations."""
        return dict(self.env.reset())

    # -------------------------------------------------------------- step

    def step_all_envs(self, actions: Any = None) -> Any:
        """Take one env step in every copy; enqueues, does not synchronise.

        The actions are read from the array ``sampled_actions``.

        Args:
            actions: On `cpu`, a dict by agent. The Python environment alone takes the step and returns
                ``(observations, rewards, done, info)``.

        Raises:
            ConfigError: Not reset yet, or actions on a backend that reads them from the array.
            ActionError: An action lies outside its space (with ``debug``).
        """
        if actions is not None:
            rule = f"backend {self.env_backend!r} takes no actions: it reads the array 'sampled_actions'"
            require(self.env_backend == "cpu", "step", rule, do="write them with CUDASampler.assign")
            if self.debug:
                self._check_given(actions)
            return self.env.step(actions)
        self._require_arrays("step")
        if self.debug:
            self._check_actions()
        if self.auto_reset and not self.resets_itself:
            # The flags survive the restart for their readers; a kernel that never clears them must start from 0.
            self.cuda_data_manager.tensor(DONE).zero_()
            self.env.step()
            launch_preserving(
                self.cuda_data_manager, [DONE], lambda: self.env_resetter.reset_when_done(self.cuda_data_manager)
            )
        else:
            self.env.step()
        return None

    def bound_step(self, *, of_one_row: bool = False, **arrays: torch.Tensor) -> Launch | None:
        """Return a step of all copies on other tensors.

        A rollout can so have each step's observations written directly to its buffers. Some arrays must not be replaced
        by tensors of other content: those that a kernel reads, and those of which it writes only some rows.

        Args:
            of_one_row: Observations and final observations are one row for all agents; the environment must have
                `own_columns`. Compiles its kernels once more.
            arrays: Tensors by the name of the array that they replace.

        Returns:
            A launch that enqueues the step. None if the step is not one launch or one sequence of an `Environment`, or
            cannot write one row.

        Raises:
            BindingError: A tensor has another dtype, shape or device than the kernel declares.
        """
        if not (self.vectorised and self.auto_reset and self.resets_itself and isinstance(self.env, Environment)):
            return None
        has_rows = self.env.own_columns is not None and self.backend.language != "numpy"
        if self.debug or (of_one_row and not has_rows):
            return None
        functions = self._shared_row_functions() if of_one_row else self.cuda_function_manager
        return functions.bind(self._step_name(), self.cuda_data_manager, **arrays)

    def _shared_row_functions(self) -> CUDAFunctionManager:
        """Return kernels that write one row of observations for all agents.

        The environment must have `own_columns`.
        """
        if self._of_one_row is None:
            sources, constants = self._loaded
            self._of_one_row = self.function_manager_class(
                self.n_agents, self.n_envs, self.blocks_per_env, backend=self.backend, fills=True
            )
            self._of_one_row.load(sources, {**constants, "N_ROWS": 1})
            self._of_one_row.fused = self.cuda_function_manager.fused
        return self._of_one_row

    # -------------------------------------------------------------- many steps

    @property
    def rollout_mode(self) -> RolloutMode:
        """Form of `rollout`: one launch, or stepwise with a reason.

        May compile a kernel to find out.

        Raises:
            ConfigError: As `rollout`.
        """
        return self.prepared_rollouts().mode

    def rollout_mode_of(self, policy: Policy) -> RolloutMode:
        """Return the form of `rollout` with a policy; see `rollout_mode`.

        Raises:
            ConfigError: As `rollout`.
        """
        return self.prepared_rollouts().mode_of(policy)

    def rollout(
        self,
        n_steps: int,
        policy: str | torch.Tensor | Policy = RANDOM,
        *,
        keep: Keep = "last",
        sampler: CUDASampler | None = None,
    ) -> Steps:
        """Take env steps in all copies; enqueues, does not synchronise.

        With ``exact`` the results are bit-identical to single draws and steps on every backend. Without it they are
        where both kernels are compiled to the same arithmetic. On a GPU and on `host` one launch takes all steps where
        possible (`rollout_mode`, `rollout_mode_of`). A policy's outputs differ by rounding, and so may draws that
        rounding decides. On a GPU its products use TF32 where `torch.set_float32_matmul_precision` allows it for torch.
        The first call compiles.

        Args:
            n_steps: Number of env steps.
            policy: One of three. ``"random"`` draws uniform actions, as `random_policy` does. A tensor holds the
                actions of each step, ``(n_steps, n_envs, n_agents, n_types)`` of the dtype of ``sampled_actions``;
                their values are only checked with ``debug``. A model returns logits from which actions are drawn, with
                its weights at the time when the rollout runs.
            keep: ``"last"``: the arrays hold the results of the last step, as after single steps. ``"all"``: the
                results of each step are returned, too; the next rollout of equally many steps overwrites them.
            sampler: Sampler whose count of draws continues; None: the wrapper's own, with its seed.

        Raises:
            ConfigError: Not reset yet, no ``auto_reset``, an environment with roles, one that is not an `Environment`
                with a kernel ``reset``, a sampler that must be passed, or a policy that is recurrent or draws from a
                Box.
            DataError: The actions have another shape, dtype or device.
        """
        launch: Launch
        if isinstance(policy, torch.Tensor) or sampler is not None:
            launch, steps = self.bound_rollout(n_steps, policy, keep=keep, sampler=sampler)
        else:
            key = n_steps, keep, policy, torch.get_float32_matmul_precision()
            if key not in self._bound:
                self._bound[key] = self.bound_rollout(n_steps, policy, keep=keep)
            launch, steps = self._bound[key]
        launch()
        return steps

    def bound_rollout(
        self,
        n_steps: int,
        policy: str | torch.Tensor | Policy = RANDOM,
        *,
        keep: Keep = "last",
        sampler: CUDASampler | None = None,
    ) -> tuple[Launch, Steps]:
        """Return a rollout's launch and output tensors.

        The launch may be called often or captured in a CUDA graph. Arguments and errors are those of `rollout`.
        """
        rollouts = self.prepared_rollouts()
        if sampler is None and not isinstance(policy, torch.Tensor):
            if self._sampler is None:
                data, functions = self.cuda_data_manager, self.cuda_function_manager
                self._sampler = own_sampler(data, functions, self.env, self._seed)
            sampler = self._sampler
        return rollouts.bound(n_steps, policy, keep, sampler)

    def prepared_rollouts(self) -> Rollouts:
        """Return this wrapper's rollouts; it must have ``auto_reset``.

        Raises:
            ConfigError: As `rollout`.
        """
        require(
            self.auto_reset, "rollout", "environments must restart ended episodes themselves", do="pass auto_reset=True"
        )
        return self.restarting_rollouts()

    def restarting_rollouts(self) -> Rollouts:
        """Return rollouts that restart episodes automatically.

        Steps taken one by one restart episodes only with the wrapper's ``auto_reset``.

        Raises:
            ConfigError: As `rollout`, without the rule about ``auto_reset``.
        """
        self._require_arrays("rollout")
        is_ours, do = self.resets_itself and isinstance(self.env, Environment), "derive it from Environment"
        require(is_ours, "rollout", f"{self.name!r} must be an Environment with a kernel 'reset'", do=do)
        rule, do = f"the roles of {self.name!r} have separate arrays", "take single steps after a `random_policy`"
        require(not getattr(self.env, "roles", {}), "rollout", rule, do=do)
        if self._rollouts is None:
            self._rollouts = Rollouts(self._subject(AUTO_RESET=True), self._why_no_launch())
        return self._rollouts

    def episodes(self, network: Mapping[str, Constant]) -> Episodes | str:
        """Return greedy episodes in one launch, or a reason against one.

        The copies must have been reset, and must not restart automatically.

        Args:
            network: Constants of the network, as in `kernels/episodes.cuh`.
        """
        self._require_arrays("episodes")
        if self.backend.language != "cuda_c" or not self.backend.captures_graphs:
            return f"backend {self.env_backend!r} does not run CUDA C on a GPU"
        return self._why_no_launch() or Episodes(self._subject(), network)

    def _subject(self, **constants: Constant) -> RolloutEnvironment:
        sources, loaded = self._loaded
        kernels = self.env, self.n_envs, self.backend, sources, {**loaded, **constants}
        return RolloutEnvironment(*kernels, self.cuda_data_manager, self.step_all_envs)

    def _why_no_launch(self) -> str:
        """Return the known reason against one launch for many steps, or ""."""
        if self.debug:
            return "actions are checked before each step"
        sequences = self.env.kernel_sequences(self.auto_reset)
        return known_obstacle(self.cuda_function_manager, self._step_name(), sequences)

    def _check_given(self, actions: Mapping[Hashable, Any]) -> None:
        for agent, action in actions.items():
            what, spaces = f"step: the action of agent {agent!r}", self.env.action_space
            if agent not in spaces:
                raise ActionError.of(what, f"unknown agent; known are {', '.join(map(repr, spaces))}")
            space = spaces[agent]
            dtype = torch.float32 if hasattr(space, "low") else torch.int32
            given = as_actions(what, action, tuple(space.shape), dtype)
            name = f"{what}{{}}" if given.dim() else what
            require_actions(given, torch.from_numpy(action_bounds([space])), [space], name.format)

    def _check_actions(self) -> None:
        for suffix, agents in agent_sets(self.env).items():
            name = Constants.ACTIONS + suffix
            actions, spaces = self.cuda_data_manager.tensor(name), [self.env.action_space[agent] for agent in agents]
            require_actions(actions, torch.from_numpy(action_bounds(spaces)), spaces, f"{name}{{}}".format)

    def _require_arrays(self, who: str) -> None:
        if not self.vectorised:
            raise ConfigError(
                f"{who}: environment {self.name!r} has no kernels for backend {self.env_backend!r}, only Python; "
                "call step(actions) and reset()"
            )
        require(not self.reset_on_host, who, "the environments have not started", do="call reset() first")

    reset = reset_all_envs
    step = step_all_envs


class BorrowedEnvs:
    """Reset and step the environments temporarily; `restore` restores them.

    For users' environments, which may hold modules, handles or open files that cannot be copied. It saves all arrays
    and the attributes' values, and the environment plays with a copy of its `own_state`. Synchronises.

    Args:
        wrapper: Wrapper of the environments; reset first if it was not.
        seed: Seed of the random starts.

    Raises:
        ConfigError: The wrapper's kernels restart copies automatically.
    """

    def __init__(self, wrapper: EnvWrapper, seed: int) -> None:
        restarts = wrapper.auto_reset and wrapper.resets_itself
        rule = "its kernels restart ended episodes, so the end of an episode cannot be read"
        require(not restarts, f"environment {wrapper.name!r}", rule, do="leave auto_reset off, or derive Environment")
        if wrapper.reset_on_host:
            wrapper.reset_all_envs()
        data = wrapper.cuda_data_manager
        self.wrapper = wrapper
        self._arrays = {name: data.tensor(name).clone() for name in data.array_names()}
        self._attributes = dict(vars(wrapper.env))
        vars(wrapper.env).update(own_state(self._attributes))
        self._auto_reset = wrapper.auto_reset
        wrapper.auto_reset = False
        self.start(seed)

    def start(self, seed: int) -> None:
        """Start an episode in every copy; enqueues."""
        seed_resets(self.wrapper.cuda_data_manager, seed)
        self.wrapper.reset_all_envs()

    def restore(self) -> None:
        """Restore everything; enqueues. A second call does nothing."""
        for name, array in self._arrays.items():
            self.wrapper.cuda_data_manager.tensor(name).copy_(array)
        if self._arrays:
            vars(self.wrapper.env).clear()
            vars(self.wrapper.env).update(self._attributes)
            self.wrapper.auto_reset = self._auto_reset
        self._arrays = {}


def check_environment(env: Any) -> None:
    """Raise `ConfigError` unless ``env`` follows WarpDrive's contract."""
    for attribute in ("name", "num_agents", "episode_length", "action_space", "reset", "step"):
        require(hasattr(env, attribute), f"environment {type(env).__name__}", f"needs the attribute {attribute!r}")
    require_type(f"environment {type(env).__name__}: name", env.name, str)
    what = f"environment {env.name!r}"
    for attribute in ("num_agents", "episode_length"):
        value = getattr(env, attribute)
        require_int(f"{what}: {attribute}", int(value) if isinstance(value, float) and value.is_integer() else value)
    earliest_truncation(env)
    for language, source in require_type(
        f"{what}: kernel_sources", getattr(env, "kernel_sources", {}), Mapping
    ).items():
        is_source, rule = isinstance(source, str | os.PathLike), "must be the path of a file, or the name of a module"
        require(is_source, f"{what}: kernel_sources[{language!r}]", rule, source)
    n_spaces = len(
        require_type(f"{what}: action_space", env.action_space, Mapping, "give each agent's space by its id")
    )
    rule = f"must have a space for each of num_agents = {env.num_agents} agents"
    require(n_spaces == env.num_agents, f"{what}: action_space", rule, n_spaces)
    roles = require_type(f"{what}: roles", getattr(env, "roles", {}), Mapping, "give each role's agents by its name")
    members = [agent for agents in roles.values() for agent in agents]
    is_each_once = len(members) == len(set(members)) and set(members) in (set(), set(env.action_space))
    require(is_each_once, f"environment {env.name!r}", "roles must hold each agent of action_space once", members)
