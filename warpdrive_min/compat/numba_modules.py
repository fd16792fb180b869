"""WarpDrive's step modules in Numba: kernels at module level that take their sizes from a config module.

They say ``from warp_drive.numba_includes.env_config import *`` (or import the module) and use `wkNumberEnvs`,
`wkNumberAgents` and `wkBlocksPerEnv`. That module exists while a step module is loaded. Each load executes the step
module afresh, and whatever it imports that depends on the config, so that several sizes live in one process.
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
    """Execute a step module for the manager's sizes and keep its kernels; returns their names.

    Raises:
        ConfigError: The environment is spread over several blocks.
        CompileError: A kernel with explicit signatures does not compile, or a name is taken.
    """
    return keep(functions, execute(functions, name))


def execute(functions: CUDAFunctionManager, name: str) -> ModuleType:
    """Execute a module that may import the config, for the manager's sizes; not for several threads at once.

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
        with _offered(config, name):
            return importlib.import_module(name)
    except NumbaError as error:
        raise CompileError(f"step module {name!r}: does not compile (Numba):\n{excerpt(str(error))}") from error


def keep(functions: CUDAFunctionManager, module: ModuleType) -> list[str]:
    """Keep the kernels of an executed module, which have a thread for each agent; returns their names.

    Raises:
        ConfigError: The environment is spread over several blocks.
        CompileError: A name is taken.
    """
    what, got = f"step module {module.__name__!r}", functions.blocks_per_env
    rule = "blocks_per_env must be 1 for a Numba kernel with a thread for each agent"
    require(got == 1, what, rule, got, "use 1, with at most 1,024 agents")
    from numba import cuda  # noqa: PLC0415  (optional)

    def probe() -> None: ...

    dispatcher = type(cuda.jit(probe))  # another class in the simulator
    return functions.keep(
        {
            name: NumbaKernel(name, value, exact=False, owns_environments=False)
            for name, value in vars(module).items()
            if isinstance(value, dispatcher) and not _is_device_function(value)
        }
    )


def _is_device_function(function: Any) -> bool:
    simulated: bool | None = getattr(function, "_device", None)
    return bool(function.targetoptions.get("device") if simulated is None else simulated)


# ------------------------------------------------------------------ a module that is there for a while


@contextlib.contextmanager
def _offered(config: ModuleType, main: str) -> Iterator[None]:
    """Let the config be imported, then forget it and every module that was imported meanwhile and depends on it."""
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
        modules = [_forget(name) for name in dependent]
        _freeze(config, package, modules)
        if earlier is not None:
            sys.modules[main] = earlier


def _recording(imports: set[tuple[str, str]]) -> Any:
    """Return ``__import__`` that also notes who imports what."""
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
    """Return the modules that import one, directly or through others."""
    found: set[str] = set()
    new = {name}
    while new:
        new = {importer for importer, imported in imports if imported in new} - found
        found |= new
    return found


def _forget(name: str) -> ModuleType:
    """Remove a module from where ``import`` would find it again."""
    module = sys.modules.pop(name)
    parent, _, child = name.rpartition(".")
    if parent in sys.modules and vars(sys.modules[parent]).get(child) is module:
        delattr(sys.modules[parent], child)
    return module


def _freeze(config: ModuleType, package: ModuleType, modules: Sequence[ModuleType]) -> None:
    """Give modules that hold the packages on the way to the config copies of them, which hold it for good.

    Numba compiles at the first launch, when the real packages no longer have it, or have another one.
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
