"""Shared parts of the commands: environments, settings, backends, messages."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import torch
import typer

from warpdrive_min.backends import BACKENDS
from warpdrive_min.backends.numba_cuda import simulated
from warpdrive_min.environment import Environment, supports
from warpdrive_min.errors import BackendUnavailable, WarpDriveError, known, require
from warpdrive_min.terminal import Console, OutputError, echo, error_line

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


def environments() -> dict[str, type[Environment]]:
    """Return the known environments by name, and add them to the registrar."""
    table: dict[str, type[Environment]] = importlib.import_module("warpdrive_min.envs").ENVS
    return table


def environment_name(name: str, who: str) -> str:
    """Return the key in `environments` for a key, class name or WarpDrive name.

    Raises:
        ConfigError: The environment is unknown.
    """
    table = environments()
    by_class = {cls.name: each for each, cls in table.items()}
    found = by_class.get(name, name.removeprefix(PREFIX))
    require(found in table, who, "unknown environment", name, f"known are {known(table)}")
    return found


def make_environment(name: str, config: Mapping[str, Any], who: str) -> Environment:
    """Make an environment by name.

    Raises:
        ConfigError: A key of the config is unknown, or a value breaks a rule.
    """
    cls: Any = environments()[name]
    keys = type(cls().config).model_fields
    for key in config:
        require(key in keys, who, f"{key!r} is not a key of {name}", do=f"keys of {name} are {known(keys)}")
    environment: Environment = cls(**config)
    return environment


def run_config_path(name: str) -> Path:
    """Return the path of an environment's own run config."""
    return Path(inspect.getfile(environments()[name])).with_name("run_config.yaml")


# ------------------------------------------------------------------ settings


def read_settings(settings: Sequence[str], who: str) -> dict[str, Any]:
    """Return KEY=VALUE settings by key; values are JSON, Python literals or text.

    Args:
        settings: Settings as typed.
        who: Name for errors.

    Raises:
        ConfigError: A setting is not KEY=VALUE.
    """
    read = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        require(key and equals, who, "must be KEY=VALUE", setting)
        read[key] = _value(text)
    return read


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
