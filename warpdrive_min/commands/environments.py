"""Parts that the commands share: finding environments, reading KEY=VALUE, choosing a backend, and messages."""

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
from warpdrive_min.terminal import Console, OutputError, echo, line_of

PREFERRED: Final = ("pycuda", "numba", "host", "cpu")
"""Backends in the order in which the first available one is taken."""
PYTHON: Final = {"True": True, "False": False, "None": None}
FULL: Final = "DefaultCPUAllocator"
"""Word of torch's error where a CPU's memory ends."""
PREFIX: Final = "single_"
"""Prefix of the names of environments of one agent in WarpDrive's run configs."""

Backend = Annotated[
    str | None, typer.Option(help=f"Backend; by default the first that runs here of {', '.join(PREFERRED)}.")
]
"""Option of a command that needs a backend; `first_available` chooses where it is not given."""

console = Console()

# ------------------------------------------------------------------ environments


def environments() -> dict[str, type[Environment]]:
    """Return the known environments by name; from then on the registrar knows them too."""
    table: dict[str, type[Environment]] = importlib.import_module("warpdrive_min.envs").ENVS
    return table


def environment_name(name: str, who: str) -> str:
    """Return the name in `environments` of what may be called otherwise: by its class, or by WarpDrive's run configs.

    Raises:
        ConfigError: There is none.
    """
    table = environments()
    by_class = {cls.name: each for each, cls in table.items()}
    found = by_class.get(name, name.removeprefix(PREFIX))
    require(found in table, who, "unknown environment", name, f"known are {known(table)}")
    return found


def make_environment(name: str, config: Mapping[str, Any], who: str) -> Environment:
    """Make the environment of that name.

    Raises:
        ConfigError: A key of the config is unknown, or it breaks a rule.
    """
    cls: Any = environments()[name]
    keys = type(cls().config).model_fields
    for key in config:
        require(key in keys, who, f"{key!r} is not a key of {name}", do=f"keys of {name} are {known(keys)}")
    environment: Environment = cls(**config)
    return environment


def run_config_path(name: str) -> Path:
    """Return the run config that an environment comes with."""
    return Path(inspect.getfile(environments()[name])).with_name("run_config.yaml")


# ------------------------------------------------------------------ settings


def read_settings(settings: Sequence[str], who: str) -> dict[str, Any]:
    """Return KEY=VALUE settings by key; a value is a JSON or Python literal, or else the text itself.

    Args:
        settings: As they were typed.
        who: For errors.

    Raises:
        ConfigError: One is no pair.
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
    except (ValueError, RecursionError):  # no JSON, an integer of thousands of digits, or nested too deeply
        return text


def first_available(env: Environment, who: str) -> str:
    """Return the first backend that can run the environment here; Numba's simulator is too slow to count.

    Raises:
        BackendUnavailable: None can.
    """
    for name in PREFERRED:
        available = BACKENDS[name].availability().available and not (name == "numba" and simulated())
        if available and supports(env, BACKENDS[name], env.kernel_sources):
            return name
    raise BackendUnavailable(f"{who}: no backend here runs {env.name}; its kernels are {known(env.kernel_sources)}")


# ------------------------------------------------------------------ talk


def say(text: str) -> None:
    """Print a line as it is: no markup, no colours, no breaks."""
    console.say(text)


@contextlib.contextmanager
def errors_told(exit_code: int = 1) -> Iterator[None]:
    """Turn an error that can be expected into its message, on standard error, and an exit code."""
    try:
        yield
    except OutputError:
        raise  # `output_required` reports it
    except (WarpDriveError, OSError, MemoryError, torch.OutOfMemoryError) as error:
        echo(line_of(error), err=True)
        raise typer.Exit(exit_code) from error
    except RuntimeError as error:
        if FULL not in str(error):
            raise
        echo(f"cpu is full ({str(error).splitlines()[0]}); use fewer environments, or smaller layers", err=True)
        raise typer.Exit(exit_code) from error
