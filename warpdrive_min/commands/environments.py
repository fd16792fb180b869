"""Shared parts of the commands: environments, settings, backends, messages."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from warpdrive_min.backends import BACKENDS
from warpdrive_min.backends.numba_cuda import simulated
from warpdrive_min.environment import Environment, supports
from warpdrive_min.errors import BackendUnavailable, ConfigError, WarpDriveError, known, near_or_known, require
from warpdrive_min.lazy import ImportedTable, LazyModule
from warpdrive_min.packages import is_class_path
from warpdrive_min.registrar import load_class
from warpdrive_min.terminal import Console, OutputError, echo, error_line

if TYPE_CHECKING:
    import torch
else:
    torch = LazyModule("torch", globals())

PREFERRED: Final = ("pycuda", "numba", "host", "cpu")
"""Backends in order of preference; the first available one is used."""
PYTHON: Final = {"True": True, "False": False, "None": None}
OUT_OF_MEMORY_TEXT: Final = "DefaultCPUAllocator"
"""Marker in torch's error when a CPU runs out of memory."""
PREFIX: Final = "single_"
"""Prefix of single-agent environment names in WarpDrive's run configs."""

Backend = Annotated[
    str | None, typer.Option(help=f"Backend; default: the first that runs here of {', '.join(PREFERRED)}.")
]
"""Backend option of a command; `first_available` supplies the default."""

console = Console()

# ------------------------------------------------------------------ environments


def environments() -> ImportedTable[type[Environment]]:
    """Return the known environments by name, and add them to the registrar."""
    table: ImportedTable[type[Environment]] = importlib.import_module("warpdrive_min.envs").ENVS
    return table


def environment_name(name: str, who: str) -> str:
    """Return the key in `environments` for a key, class name or WarpDrive name.

    Raises:
        ConfigError: The environment is unknown.
    """
    table = environments()
    found = name.removeprefix(PREFIX)
    if found not in table:
        found = {path.rpartition(":")[2]: each for each, path in table.paths.items()}.get(name, found)
    do = f"{near_or_known(name, table)}; give others as a path or module:Class; in `train` and `evaluate` after -e"
    require(found in table, who, "unknown environment", name, do)
    return found


def given_environment(name: str, who: str) -> str:
    """Return an environment's name from the command line, once its class is found.

    It is a name as for `environment_name`, which it returns as a key; or a path or ``module:Class`` as for
    `load_class`, which stays. Names in files are for `environment_name` alone, as a class's module runs here.

    Raises:
        ConfigError: The environment or its class does not exist.
    """
    if name in environments() or not is_class_path(name):
        return environment_name(name, who)
    environment_class(name)
    return name


def played_environment(given: str | None, trained_in: str, who: str) -> str:
    """Return the environment's name: as given, else that of a checkpoint.

    Raises:
        ConfigError: The environment or its class does not exist.
    """
    return environment_name(trained_in, who) if given is None else given_environment(given, who)


def environment_class(name: str) -> type[Environment]:
    """Return the class of a name that `environment_name` or `given_environment` gave.

    Raises:
        ConfigError: The class does not exist.
    """
    cls: Any = environments().get(name) or load_class(name)
    return cls  # type: ignore[no-any-return]


def make_environment(name: str, config: Mapping[str, Any], who: str) -> Environment:
    """Make an environment by name.

    Raises:
        ConfigError: A key of the config is unknown, a value breaks a rule, or the constructor failed.
    """
    cls: Any = environment_class(name)
    try:
        environment: Environment = cls(**config)
    except WarpDriveError:
        raise
    except Exception as error:  # a constructor from outside may raise anything
        rule, do = f"{name} must accept the arguments {dict(config)}", "set them with `env` of the run config"
        raise ConfigError.of(who, rule, f"{type(error).__name__}: {error}", do) from error
    return environment


def run_config_path(name: str, which: str = "") -> Path:
    """Return the path of a run config next to an environment's class.

    Args:
        name: Environment, as for `environment_class`.
        which: Part of the file's name after `run_config_`, such as `ppo`; empty: the environment's default.

    Raises:
        ConfigError: There is none.
    """
    folder = Path(inspect.getfile(environment_class(name))).parent
    path = folder / f"run_config{which and f'_{which}'}.yaml"
    names = [each.stem.removeprefix("run_config_") for each in folder.glob("run_config_*.yaml")]
    do = f"give one with --config FILE or a name (known: {known(names)})"
    require(path.is_file(), "train.config", f"{name} has no run config {path}", do=do)
    return path


# ------------------------------------------------------------------ settings


def read_settings(
    settings: Sequence[str], who: str, options: Mapping[str, tuple[str, Any]] = MappingProxyType({})
) -> dict[str, Any]:
    """Return KEY=VALUE settings by key; values are JSON, Python literals or text.

    Args:
        settings: Settings as typed.
        who: Name for errors.
        options: Name and value of each option that sets a key, too; without a value it was not given.

    Raises:
        ConfigError: A setting is not KEY=VALUE, or an option gives it another value.
    """
    read = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        require(key and equals, who, "must be KEY=VALUE", setting)
        read[key] = _value(text)
    for key, (option, value) in options.items():
        is_one = value is None or read.get(key, value) == value
        require(is_one, who, f"{key} must be that of {option}, {value}", read.get(key), "give one of them")
    return read | {key: value for key, (_, value) in options.items() if value is not None}


def _value(text: str) -> Any:
    if text in PYTHON:
        return PYTHON[text]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # invalid JSON, an integer of thousands of digits, or too deep nesting
        return text


def first_available(env: Environment, who: str) -> str:
    """Return the first backend that can run the environment on this machine.

    Numba's simulator is excluded: it is too slow.

    Raises:
        BackendUnavailable: No backend can run it.
    """
    for name in PREFERRED:
        available = BACKENDS[name].availability().available and not (name == "numba" and simulated())
        if available and supports(env, BACKENDS[name], env.kernel_sources):
            return name
    raise BackendUnavailable(f"{who}: no backend here runs {env.name}; its kernels are {known(env.kernel_sources)}")


# ------------------------------------------------------------------ output


def say(text: str) -> None:
    """Print a line without markup, colours or line breaks."""
    console.say(text)


@contextlib.contextmanager
def report_errors(exit_code: int = 1) -> Iterator[None]:
    """Turn an expected error into a message on standard error and an exit code."""
    try:
        yield
    except OutputError:
        raise  # `output_required` reports it
    except (WarpDriveError, OSError, MemoryError, torch.OutOfMemoryError) as error:
        echo(error_line(error), err=True)
        raise typer.Exit(exit_code) from error
    except RuntimeError as error:
        if OUT_OF_MEMORY_TEXT not in str(error):
            raise
        echo(
            f"the CPU has too little memory ({str(error).splitlines()[0]}); use fewer environments, or smaller layers",
            err=True,
        )
        raise typer.Exit(exit_code) from error
