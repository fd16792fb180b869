"""Function manager: compiled kernels by name, launch shapes, argument binding."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from warpdrive_min import backends
from warpdrive_min.backends.base import (
    Argument,
    Backend,
    Constant,
    Kernel,
    Language,
    Launch,
    Source,
    in_order,
)
from warpdrive_min.errors import (
    BindingError,
    CompileError,
    DataError,
    TypeMismatch,
    known,
    require,
    require_int,
)
from warpdrive_min.lazy import LazyModule
from warpdrive_min.tracing import named

if TYPE_CHECKING:
    import torch

    from warpdrive_min.data_manager import CUDADataManager
else:
    torch = LazyModule("torch", globals())

KERNELS: Final = Path(__file__).parent / "kernels"

BLOCK_FROM_AGENTS: Final = 64
"""Fewest agents at which a block has only one environment."""
PACKED_THREADS: Final = 128
ROLLOUT_THREADS: Final = 512
"""Most threads of a block of one-agent environments in kernels of many steps.

A block's writes in one step are contiguous, and memory is faster with longer runs.
"""
MULTIPROCESSORS: Final = 132
"""Multiprocessors of an H100, for which kernels of many steps are compiled without a GPU."""
MOST_IMBALANCE: Final = 1.05
"""Most work of the busiest multiprocessor, divided by the least possible."""
LANES: Final = 256
"""One-agent environments in a CPU block, if there are many environments.

With fewer per block, episodes rarely end in the same step.
"""
BLOCKS_PER_WORKER: Final = 4
"""Fewest such blocks for each CPU thread, for an even load."""
FILLING_BLOCKS: Final = 512
"""Upper bound of blocks for few environments.

Almost four for each multiprocessor of a large GPU, so that all are busy.
"""
FILLING_BLOCKS_OF_A_POLICY: Final = 384
"""Upper bound of blocks for few environments with a policy.

A multiprocessor has registers for three such blocks in float32, and for four in TF32.
"""
FILLING_WARPS: Final = 1024
"""Upper bound of blocks of one warp for few environments.

Almost two for each of the four schedulers of a multiprocessor.
"""
FEW_ENTRIES: Final = 128
"""Most observation entries of an environment in a block of one warp."""
TILE_ROWS: Final = 16
"""Rows of a tile on matrix units; most agents of a block of one warp with a policy."""
FEW_ENVS_OF_A_POLICY: Final = 16 * MULTIPROCESSORS
"""Up to this number of one-agent environments with a policy, a warp takes 16, else 32."""
SPREAD_THREADS: Final = 256
"""Threads of a block that shares its environment.

Several such blocks run on one multiprocessor.
"""
MAX_THREADS: Final = 1024
"""Most threads of a block on every GPU."""
OWNER_THREADS: Final = 256
"""Most threads of a block that owns one environment.

Four such blocks run on one multiprocessor, and some work while others wait.
"""
FEW_OWNER_THREADS: Final = 512
"""Most threads of such a block, if environments do not fill a GPU."""


def _balanced(n_envs: int, multiprocessors: int) -> int:
    """Return the largest block that loads multiprocessors evenly, threads.

    At most a few multiprocessors stay idle.
    """
    blocks = {threads: -(-n_envs // threads) for threads in range(32, ROLLOUT_THREADS + 1, 32)}
    busiest = {threads: -(-n // multiprocessors) * threads for threads, n in blocks.items()}
    most = MOST_IMBALANCE * min(busiest.values())
    even = [k for k, n in blocks.items() if busiest[k] <= most and MOST_IMBALANCE * n >= multiprocessors]
    return max(even, default=32)


@dataclass(frozen=True, slots=True)
class LaunchShape:
    """Layout of environments over blocks and threads."""

    threads: int
    envs_per_block: int
    blocks_per_env: int = 1
    """Blocks that share an environment.

    Above 1, only the end of a kernel synchronises them.
    """

    @classmethod
    def on_cpu(cls, n_agents: int, n_envs: int, n_workers: int) -> LaunchShape:
        """Choose the shape for blocks that ``n_workers`` CPU threads share."""
        is_wide = n_agents == 1 and n_envs >= LANES * BLOCKS_PER_WORKER * n_workers
        return cls(threads=PACKED_THREADS, envs_per_block=LANES) if is_wide else cls.of(n_agents)

    @classmethod
    def of(
        cls,
        n_agents: int,
        blocks_per_env: int | None = None,
        n_envs: int | None = None,
        blocks_below: int = FILLING_BLOCKS,
        multiprocessors: int | None = None,
    ) -> LaunchShape:
        """Choose the shape for environments of ``n_agents`` agents.

        Args:
            n_agents: Agents.
            blocks_per_env: Blocks that share each environment; None: a block owns its environments.
            n_envs: Environments that should fill a GPU; if they are few, a block gets fewer and the grid more blocks.
                None: a block gets as many as fit.
            blocks_below: Upper bound of blocks for few environments.
            multiprocessors: Multiprocessors over which ``n_envs`` environments of one agent are balanced, in larger
                blocks; None: blocks have at most PACKED_THREADS.
        """
        for name, value in (("n_agents", n_agents), ("blocks_per_env", blocks_per_env)):
            if value is not None:
                require_int(name, value)
        if blocks_per_env is not None:
            share = -(-n_agents // blocks_per_env)
            return cls(min(SPREAD_THREADS, -(-share // 32) * 32), envs_per_block=1, blocks_per_env=blocks_per_env)
        if n_agents >= BLOCK_FROM_AGENTS:
            most = OWNER_THREADS if n_envs is None or n_envs >= FILLING_BLOCKS else FEW_OWNER_THREADS
            return cls(threads=min(most, -(-n_agents // 32) * 32), envs_per_block=1)
        if multiprocessors and n_envs is not None and n_agents == 1:
            balanced = _balanced(n_envs, multiprocessors)
            return cls(threads=balanced, envs_per_block=balanced)
        packed, fewest = PACKED_THREADS // n_agents, 32 if n_agents == 1 else 1
        if n_envs is not None:
            packed = min(packed, fewest * (n_envs // (fewest * blocks_below) + 1))
        return cls(threads=packed if n_agents == 1 else PACKED_THREADS, envs_per_block=packed)

    @classmethod
    def of_warps(cls, n_agents: int, n_envs: int, n_entries: int, *, acts: bool = False) -> LaunchShape | None:
        """Choose blocks of one warp for steps of small environments on a GPU.

        Such a block synchronises in a few cycles.

        Args:
            n_agents: Agents.
            n_envs: Environments.
            n_entries: Observation entries of an environment.
            acts: The kernel has a policy. A block then has at most TILE_ROWS agents, for any number of environments.

        Returns:
            None if there are too many agents or entries; without a policy also if there are too many environments.
        """
        packed, most = n_envs // FILLING_WARPS + 1, TILE_ROWS if acts else 32
        if acts:
            packed = max(1, min(packed, most // n_agents))
        is_small = n_agents > 1 and packed * n_agents <= most and n_entries <= FEW_ENTRIES
        return cls(threads=32, envs_per_block=packed) if is_small else None

    @classmethod
    def of_rows(cls, n_agents: int) -> LaunchShape:
        """Choose the shape for kernels whose warps take 16 agents' rows at a time.

        Blocks are small: a warp waits for its own results only.
        """
        if n_agents >= BLOCK_FROM_AGENTS:
            return cls.of(n_agents)
        packed = max(1, 16 // n_agents)
        return cls(threads=-(-packed * n_agents // 16) * 32, envs_per_block=packed)

    def blocks(self, n_envs: int) -> int:
        """Return the number of blocks for ``n_envs`` environments."""
        return -(-n_envs // self.envs_per_block) * self.blocks_per_env

    def constants(self) -> dict[str, Constant]:
        """Return the shape as compile-time constants of kernels."""
        return {
            "THREADS": self.threads,
            "ENVS_PER_BLOCK": self.envs_per_block,
            "BLOCKS_PER_ENV": self.blocks_per_env,
        }


def core_sources(stem: str) -> dict[Language, Source]:
    """Return one of the core's kernel sources in each language."""
    return {
        "numpy": f"warpdrive_min.kernels.{stem}_numpy",
        "cuda_c": KERNELS / f"{stem}.cu",
        "numba": f"warpdrive_min.kernels.{stem}_numba",
    }


KernelCall = tuple[str, Mapping[str, Argument]]
"""Kernel of a sequence: its name, and its scalars."""


class CUDAFunctionManager:
    """Compiler and launcher of kernels for one backend.

    Args:
        num_agents: Agents in each environment.
        num_envs: Environments.
        blocks_per_env: CUDA blocks that share one environment (kernels with a thread for each agent).
        process_id: Accepted for WarpDrive's calls; the cache of compiled code needs no coordination.
        backend: Name of a backend, or the backend.
        spread: Kernels that own environments use ``blocks_per_env`` blocks, too; they need no barrier between blocks.
        fills: Kernels do more work than one row for each agent. Few environments are spread over the whole GPU; on a
            CPU, many one-agent environments get wide blocks.
        blocks_below: Upper bound of the number of blocks for few environments on a GPU, with ``fills``.
        multiprocessors: Multiprocessors over which one-agent environments are balanced, with ``fills``.
    """

    def __init__(
        self,
        num_agents: int = 1,
        num_envs: int = 1,
        blocks_per_env: int = 1,
        process_id: int = 0,
        *,
        backend: str | Backend = "cpu",
        spread: bool = False,
        fills: bool = False,
        blocks_below: int = FILLING_BLOCKS,
        multiprocessors: int | None = None,
    ) -> None:
        self.n_agents, self.n_envs = require_int("num_agents", num_agents), require_int("num_envs", num_envs)
        self.blocks_per_env = require_int("blocks_per_env", blocks_per_env)
        self.backend = backends.get(backend) if isinstance(backend, str) else backend
        self.process_id = process_id
        if fills and not spread and (n_workers := self.backend.threads):
            self.shape = LaunchShape.on_cpu(self.n_agents, self.n_envs, n_workers)
        else:
            few, shared = self.n_envs if fills else None, self.blocks_per_env if spread else None
            self.shape = LaunchShape.of(self.n_agents, shared, few, blocks_below, multiprocessors)
        self.compiled_in: Sequence[str] = ()
        """Shared constants that kernels have compiled in, not copied to symbols."""
        self.debug = False
        """True if samplers check each draw, which synchronises."""
        self.envs_before = 0
        """Number of environments of lower ranks, for random draws."""
        self._kernels: dict[str, Kernel] = {}
        self._sequences: dict[str, Sequence[KernelCall]] = {}
        self.fused: dict[str, str] = {}
        """Parts that a kernel or sequence fuses, by its name; named in its range."""
        self._warned: set[str] = set()

    @property
    def block(self) -> tuple[int, int, int]:
        """Block size of kernels with a thread for each agent."""
        return (-(-self.n_agents // self.blocks_per_env), 1, 1)

    @property
    def grid(self) -> tuple[int, int]:
        """Grid size of kernels with a thread for each agent."""
        return (self.n_envs * self.blocks_per_env, 1)

    # -------------------------------------------------------------- compile

    def load(self, sources: Mapping[Language, Source], constants: Mapping[str, Constant] | None = None) -> list[str]:
        """Compile the source in the backend's language; return its kernels' names.

        These constants have defaults: ``N_AGENTS, THREADS, ENVS_PER_BLOCK, BLOCKS_PER_ENV, EXACT``.

        Raises:
            CompileError: No source for the language, the compiler's message, or a kernel name that is taken.
        """
        return self.add_kernels(self.backend.compile(self._source(sources), self.with_defaults(constants or {})))

    def build(
        self,
        sources: Mapping[Language, Source],
        constants: Mapping[str, Constant] | None = None,
        index: int | None = None,
    ) -> None:
        """Compile what `load` would, into the cache; any thread may call it.

        Args:
            sources: As of `load`.
            constants: As of `load`.
            index: As of `Backend.build`.

        Raises:
            BackendUnavailable: The backend does not run CUDA C on a GPU.
            CompileError: As of `load`.
        """
        self.backend.build(self._source(sources), self.with_defaults(constants or {}), index)

    def _source(self, sources: Mapping[Language, Source]) -> Source:
        language = self.backend.language
        what, rule = f"backend {self.backend.name!r}", f"runs {language} kernels, and there is no source of one"
        require(language in sources, what, rule, do=f"sources: {known(sources)}", error=CompileError)
        return sources[language]

    def with_defaults(self, constants: Mapping[str, Constant]) -> dict[str, Constant]:
        """Return constants, with defaults for those of all kernels."""
        offset = {"ENVS_BEFORE": self.envs_before} if self.envs_before else {}
        return {"N_AGENTS": self.n_agents, "EXACT": False, **self.shape.constants(), **offset, **constants}

    def add_kernels(self, kernels: Mapping[str, Kernel]) -> list[str]:
        """Add compiled kernels; return their names.

        Raises:
            CompileError: A name is taken.
        """
        for name in kernels:
            self._require_free(name)
        self._kernels.update(kernels)
        return list(kernels)

    def define_sequence(self, name: str, stages: Sequence[KernelCall]) -> None:
        """Define ``name`` as several loaded kernels, launched in order.

        All blocks synchronise between two of them.

        Raises:
            CompileError: A kernel is not loaded, or the name is taken.
        """
        self._require_free(name)
        self.initialize_functions([stage for stage, _ in stages])
        self._sequences[name] = tuple(stages)

    def _require_free(self, name: str) -> None:
        is_free, do = not self.has_function(name), "give it another name"
        require(is_free, f"kernel {name!r}", "is loaded already", do=do, error=CompileError)

    def initialize_functions(self, names: Sequence[str]) -> None:
        """Raise `CompileError` unless the kernels of these names are loaded."""
        for name in names:
            if name not in self._sequences:
                self.kernel(name)

    def initialize_shared_constants(self, data_manager: CUDADataManager, constant_names: Sequence[str]) -> None:
        """Copy shared constants to ``__constant__`` symbols of the same names.

        Synchronises. Kernels in NumPy and Numba, and `WD_KERNEL`s on `host`, need no symbol: they take a shared
        constant as a parameter of its name.

        Raises:
            DataError: A constant was not added to the data manager, or no loaded module has the symbol.
        """
        for name in constant_names:
            value = data_manager.shared_constant(name)
            modules = {module for kernel in self._kernels.values() if (module := getattr(kernel, "module", None))}
            n_copied = sum(_copy_to_symbol(module, name, value) for module in modules)
            rule = "no loaded CUDA C source has a __constant__ of this name"
            is_there = n_copied or not modules or name in self.compiled_in
            require(is_there, f"shared constant {name!r}", rule, error=DataError)

    # -------------------------------------------------------------- launch

    def has_function(self, name: str) -> bool:
        """True if a kernel or sequence of that name exists."""
        return name in self._kernels or name in self._sequences

    def has_agent_threads(self, name: str) -> bool:
        """True if a kernel exists and has a thread for each agent."""
        return name in self._kernels and not self._kernels[name].owns_environments

    def kernel(self, name: str) -> Kernel:
        """Return the compiled kernel.

        Raises:
            CompileError: No kernel of that name is loaded.
        """
        if name not in self._kernels:
            raise CompileError(f"kernel {name!r}: is not loaded; known are {known(self._kernels)}")
        return self._kernels[name]

    @property
    def binaries(self) -> dict[str, Path]:
        """Compiled file of each kernel in CUDA C."""
        files = {name: getattr(kernel, "binary", None) for name, kernel in self._kernels.items()}
        return {name: file for name, file in files.items() if file is not None}

    def get_function(self, name: str) -> KernelFunction:
        """Return a launchable handle of a kernel or sequence."""
        return KernelFunction(self, name, None if name in self._sequences else self.kernel(name))

    def bind(self, name: str, data_manager: CUDADataManager, **given: Argument) -> Launch:
        """Bind a kernel's parameters by name; return a launch that enqueues it.

        Args:
            name: Kernel, or sequence of kernels.
            data_manager: Source of arrays, scalars, meta information and shared constants.
            given: Arguments that are passed, not looked up.

        Raises:
            BindingError: A name is missing, or dtype, rank or sizes differ from the declaration.
        """
        if name in self._sequences:
            stages = self._sequences[name]
            launches = [self.bind(stage, data_manager, **{**given, **own}) for stage, own in stages]
            return named(self._range_of(name), in_order(launches))
        kernel = self.kernel(name)
        arguments: list[Argument] = []
        for parameter in kernel.parameters:
            argument = given.get(parameter.name)
            if argument is None:
                argument = data_manager.find(parameter.name)
            if argument is None:
                raise BindingError(
                    f"kernel {name!r}, parameter {parameter.name!r}: there is no data of this name; "
                    f"known are {', '.join(data_manager.names())}"
                )
            arguments.append(argument)
        return self.prepare(kernel, arguments)

    def prepare(self, kernel: Kernel, arguments: Sequence[Argument], grid: Any = None, block: Any = None) -> Launch:
        """Check ordered arguments; return a launch that enqueues the kernel.

        A kernel with a thread for each agent may get data of another type than it declares, as in WarpDrive. CUDA C
        reinterprets an array's bits, and a float is truncated to a declared integer. The first such call warns.

        Args:
            kernel: Compiled kernel.
            arguments: One for each of its parameters.
            grid: Blocks; None: as needed. Ignored for a `WD_KERNEL`, which is compiled for one shape.
            block: Threads of a block; as ``grid``.

        Raises:
            BindingError: The device differs, an array is given for a declared scalar or a scalar for a declared array,
                or a block has too many threads.
            TypeMismatch: Dtype, rank or sizes differ from the declaration of a kernel that owns environments.
        """
        # Kernels are outside torch's autograd graph.
        arguments = [
            each.detach() if isinstance(each, torch.Tensor) and each.requires_grad else each for each in arguments
        ]
        arguments = [each.item() if isinstance(each, np.generic | np.ndarray) else each for each in arguments]
        for index, (parameter, argument) in enumerate(zip(kernel.parameters, arguments, strict=True)):
            is_array = isinstance(argument, torch.Tensor)
            try:
                parameter.check(kernel.name, argument)
            except TypeMismatch as error:
                if kernel.owns_environments or (self.backend.language == "numba" and is_array):
                    raise
                self._warn(error)
                if isinstance(argument, float):
                    arguments[index] = int(argument)
            if isinstance(argument, torch.Tensor) and argument.device != self.backend.device:
                raise BindingError(
                    f"kernel {kernel.name!r}, parameter {parameter.name!r}: must be on {self.backend.device} "
                    f"(got {argument.device})"
                )
        if kernel.owns_environments:
            blocks, threads = self.shape.blocks(self.n_envs), self.shape.threads
        else:
            blocks, threads = self.grid[0], self.block[0]
        if not (kernel.owns_environments and self.backend.language == "cuda_c"):
            blocks, threads = _first(grid or blocks), _first(block or threads)
            rule = f"a block has at most {MAX_THREADS} threads"
            require(threads <= MAX_THREADS, f"kernel {kernel.name!r}", rule, threads, error=BindingError)
        launch = kernel.prepare(arguments, blocks, threads)
        names = (parameter.name for parameter in kernel.parameters)
        return named(self._range_of(kernel.name), launch, zip(names, arguments, strict=True))

    def _range_of(self, name: str) -> str:
        """Return the name of a launch's range."""
        return f"{name}: {self.fused[name]}" if name in self.fused else name

    def _warn(self, mismatch: TypeMismatch) -> None:
        """Warn once of a type mismatch."""
        text = str(mismatch)
        if text not in self._warned:
            self._warned.add(text)
            warnings.warn(text, RuntimeWarning, stacklevel=5)


class KernelPlan(NamedTuple):
    """Kernels to compile, which need no arrays yet."""

    functions: CUDAFunctionManager
    """Manager that will launch them."""
    sources: Mapping[Language, Source]
    constants: Mapping[str, Constant]

    def build(self, index: int | None = None) -> None:
        """Compile into the cache; as `CUDAFunctionManager.build`."""
        self.functions.build(self.sources, self.constants, index)

    def load(self) -> CUDAFunctionManager:
        """Compile and load; as `CUDAFunctionManager.load`."""
        self.functions.load(self.sources, self.constants)
        return self.functions


class KernelFunction:
    """Launchable kernel, bound by name or called with explicit arguments.

    ``f()`` binds by name (after `bound_to`). WarpDrive's two forms ``f(*args, block=, grid=)`` and ``f[grid,
    block](*args)`` take the arguments in order, as a `CUDAFunctionFeed` returns them.
    """

    def __init__(
        self,
        manager: CUDAFunctionManager,
        name: str,
        kernel: Kernel | None,
        data_manager: CUDADataManager | None = None,
    ) -> None:
        self.name = name
        self._manager = manager
        self._kernel = kernel
        self._data_manager = data_manager
        self._bound: Launch | None = None

    def bound_to(self, data_manager: CUDADataManager) -> KernelFunction:
        """Return a handle that binds arguments by name in ``data_manager``."""
        return KernelFunction(self._manager, self.name, self._kernel, data_manager)

    def __call__(
        self, *arguments: Argument, block: Sequence[int] | None = None, grid: Sequence[int] | None = None
    ) -> None:
        """Enqueue one launch; does not synchronise."""
        if arguments:
            self._launch(arguments, block, grid)
            return
        if self._bound is None:
            if self._data_manager is None:
                raise BindingError(f"kernel {self.name!r}: has no data manager to bind by name; pass the arguments")
            self._bound = self._manager.bind(self.name, self._data_manager)
        self._bound()

    def __getitem__(self, configuration: tuple[Any, ...]) -> Callable[..., None]:
        """Return a launcher, for Numba's syntax ``[grid, block]``."""
        grid, block = configuration[:2]
        return lambda *arguments: self._launch(arguments, block, grid)

    def _launch(self, arguments: Sequence[Any], block: Any, grid: Any) -> None:
        if self._kernel is None:
            raise BindingError(f"{self.name!r}: is a sequence of kernels, bound by name; call it without arguments")
        parameters = self._kernel.parameters
        if len(arguments) != len(parameters):
            raise BindingError(
                f"kernel {self.name!r}: takes {len(parameters)} arguments "
                f"({', '.join(parameter.name for parameter in parameters)}) (got {len(arguments)})"
            )
        self._manager.prepare(self._kernel, arguments, grid, block)()


class CUDAFunctionFeed:
    """Converter of names to kernel arguments, in order.

    A name stands for device data. A pair ``(name, source)`` stands for device data ("d", "device"), meta information
    ("m", "meta") or a shared constant ("s", "shared").
    """

    def __init__(self, data_manager: CUDADataManager) -> None:
        self._data_manager = data_manager

    def __call__(self, arguments: Sequence[str | tuple[str, str]]) -> list[Any]:
        """Return the arguments for a list of names or pairs.

        Raises:
            BindingError: An item has neither form, or names an unknown source.
        """
        return [self._argument(item) for item in arguments]

    def _argument(self, item: str | tuple[str, str]) -> Any:
        manager = self._data_manager
        if isinstance(item, str):
            return manager.device_data(item)
        if not (isinstance(item, tuple) and len(item) == 2):
            raise BindingError(f"function feed: an item must be a name or (name, source) (got {item!r})")
        name, source = item
        readers = {"d": manager.device_data, "m": manager.meta_info, "s": manager.shared_argument}
        reader = readers.get(source.lower()[:1]) if source.lower() in SOURCES else None
        if reader is None:
            raise BindingError(
                f"function feed: unknown source of {name!r} (got {source!r}); known are {known(SOURCES)}"
            )
        return reader(name)


SOURCES: Final = ("d", "device", "m", "meta", "s", "shared")


def _first(size: Any) -> int:
    return int(size[0]) if isinstance(size, Sequence) else int(size)


def _copy_to_symbol(module: Any, name: str, value: Any) -> bool:
    """Copy a value to a module's symbol; return False if missing."""
    symbol = module.symbol(name)
    if symbol is None:
        return False
    array = np.ascontiguousarray(value)
    rule = f"the symbol has {symbol.n_bytes} bytes"
    require(array.nbytes == symbol.n_bytes, f"shared constant {name!r}", rule, array.nbytes, error=DataError)
    symbol.write(array)
    return True
