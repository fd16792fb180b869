"""WarpDrive's Numba step modules: kernels with sizes from a config module.

They contain ``from warp_drive.numba_includes.env_config import *`` (or import the module) and use `wkNumberEnvs`,
`wkNumberAgents` and `wkBlocksPerEnv`. The config module exists only while a step module is loaded. Each load executes
the step module again, with every imported module that depends on the config. So several sizes work in one process.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, Final
from unittest import mock

from warpdrive_min.backends.cache import excerpt
from warpdrive_min.backends.numba_cuda import NumbaBackend, NumbaKernel
from warpdrive_min.errors import CompileError, require
from warpdrive_min.function_manager import CUDAFunctionManager

PACKAGE: Final = "warp_drive.numba_includes"
CONFIG: Final = f"{PACKAGE}.env_config"


def load(functions: CUDAFunctionManager, name: str) -> list[str]:
    """Execute a step module for the manager's sizes; return its kernels' names.

    Raises:
        ConfigError: An environment spans several blocks.
        CompileError: A kernel with explicit signatures does not compile, or a name is taken.
    """
    return register_kernels(functions, execute(functions, name))


def execute(functions: CUDAFunctionManager, name: str) -> ModuleType:
    """Execute a module that may import the config; not thread-safe.

    Raises:
        CompileError: A kernel with explicit signatures does not compile.
    """
    assert isinstance(functions.backend, NumbaBackend)
    functions.backend.enter()
    from numba.core.errors import NumbaError  # noqa: PLC0415  (optional)

    config = ModuleType(CONFIG, "Sizes of the environments whose step module is being loaded.")
    sizes = {
        "wkNumberEnvs": functions.n_envs,
        "wkNumberAgents": functions.n_agents,
        "wkBlocksPerEnv": functions.blocks_per_env,
    }
    vars(config).update(sizes)
    try:
        with _importable(config, name):
            return importlib.import_module(name)
    except NumbaError as error:
        raise CompileError(f"step module {name!r}: does not compile (Numba):\n{excerpt(str(error))}") from error


def register_kernels(functions: CUDAFunctionManager, module: ModuleType) -> list[str]:
    """Register the kernels of an executed module and return their names.

    Each has one thread per agent.

    Raises:
        ConfigError: An environment spans several blocks.
        CompileError: A name is taken.
    """
    what, got = f"step module {module.__name__!r}", functions.blocks_per_env
    rule = "blocks_per_env must be 1 for a Numba kernel with a thread for each agent"
    require(got == 1, what, rule, got, "use 1, with at most 1,024 agents")
    from numba import cuda  # noqa: PLC0415  (optional)

    def probe() -> None: ...

    dispatcher = type(cuda.jit(probe))  # the simulator has another class
    return functions.add_kernels(
        {
            name: NumbaKernel(name, value, exact=False, owns_environments=False)
            for name, value in vars(module).items()
            if isinstance(value, dispatcher) and not _is_device_function(value)
        }
    )


def _is_device_function(function: Any) -> bool:
    simulated: bool | None = getattr(function, "_device", None)
    return bool(function.targetoptions.get("device") if simulated is None else simulated)


# ------------------------------------------------------------------ a temporary module


@contextlib.contextmanager
def _importable(config: ModuleType, main: str) -> Iterator[None]:
    """Make the config importable, then remove it and all modules that use it."""
    package = importlib.import_module(PACKAGE)
    earlier = sys.modules.pop(main, None)
    before = set(sys.modules)
    imports: set[tuple[str, str]] = set()
    sys.modules[CONFIG] = vars(package)["env_config"] = config
    try:
        with mock.patch.object(builtins, "__import__", _recording(imports)):
            yield
    finally:
        del vars(package)["env_config"]
        dependent = (_importers(CONFIG, imports) | {CONFIG, main}) & (set(sys.modules) - before)
        modules = [_remove_module(name) for name in dependent]
        _freeze(config, package, modules)
        if earlier is not None:
            sys.modules[main] = earlier


def _recording(imports: set[tuple[str, str]]) -> Any:
    """Return an ``__import__`` that records importers and their imports."""
    original = builtins.__import__

    def record(
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        scope = globals or {}
        package = scope.get("__package__") or ""
        imported = importlib.util.resolve_name("." * level + name, package) if level else name
        importer = str(scope.get("__name__"))
        imports.update((importer, each) for each in (imported, *(f"{imported}.{part}" for part in fromlist or ())))
        return original(name, globals, locals, fromlist or (), level)

    return record


def _importers(name: str, imports: set[tuple[str, str]]) -> set[str]:
    """Return the modules that import one, directly or indirectly."""
    found: set[str] = set()
    new = {name}
    while new:
        new = {importer for importer, imported in imports if imported in new} - found
        found |= new
    return found


def _remove_module(name: str) -> ModuleType:
    """Remove a module from ``sys.modules`` and its parent package."""
    module = sys.modules.pop(name)
    parent, _, child = name.rpartition(".")
    if parent in sys.modules and vars(sys.modules[parent]).get(child) is module:
        delattr(sys.modules[parent], child)
    return module


def _freeze(config: ModuleType, package: ModuleType, modules: Sequence[ModuleType]) -> None:
    """Give modules copies of the config's packages that keep the config.

    Numba compiles at the first launch, when the real packages have no config, or another one.
    """
    top = sys.modules[PACKAGE.partition(".")[0]]
    own_package, own_top = ModuleType(package.__name__), ModuleType(top.__name__)
    vars(own_package).update({**vars(package), "env_config": config})
    vars(own_top).update({**vars(top), "numba_includes": own_package})
    copies = {id(package): own_package, id(top): own_top}
    for module in modules:
        for name, value in list(vars(module).items()):
            if id(value) in copies:
                vars(module)[name] = copies[id(value)]
