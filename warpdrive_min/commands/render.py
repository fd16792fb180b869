"""The command `render`: play an episode of an environment and write it to a file."""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import Progress

from warpdrive_min.backends import BACKENDS
from warpdrive_min.backends.numba_cuda import simulated
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.environment import supports
from warpdrive_min.errors import BackendUnavailable, ConfigError, WarpDriveError, known
from warpdrive_min.policies import random_policy
from warpdrive_min.rendering.recording import record
from warpdrive_min.rendering.writing import FORMATS, require_format, scene_of, write

POLICIES: Final[dict[str, Callable[[EnvWrapper, int], Callable[[], None]]]] = {"random": random_policy}
"""Makes a policy from a started wrapper and a seed, by name."""
PREFERRED: Final = ("pycuda", "numba", "host", "cpu")
"""Backends in the order in which the first available one is taken."""
RECORD: Final = ".npz"
"""Suffix of the episode itself, to be drawn elsewhere."""
PYTHON: Final = {"True": True, "False": False, "None": None}

console = Console()


def render(
    env: Annotated[str, typer.Argument(help="Environment.")],
    out: Annotated[Path, typer.Option(help=f"File; its suffix is the format: {', '.join([*FORMATS, RECORD])}.")],
    policy: Annotated[str, typer.Option(help=f"Who acts: {', '.join(POLICIES)}.")] = "random",
    backend: Annotated[str | None, typer.Option(help=f"By default the first of {', '.join(PREFERRED)}.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps at most; by default the whole episode.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**64 - 1, help="Of starts and actions.")] = 0,
    n_envs: Annotated[int, typer.Option(min=1, help="Copies of the environment.")] = 1,
    env_id: Annotated[int, typer.Option(min=0, help="Which copy is drawn.")] = 0,
    fps: Annotated[int, typer.Option(help="Frames a second.")] = 20,
    config: Annotated[list[str] | None, typer.Option(help="KEY=VALUE of the environment's config.")] = None,
) -> None:
    """Play one episode and write it as a player, a film, a picture or a record; exits with 1 if that fails."""
    try:
        if out.suffix != RECORD:
            require_format(out)
        make_policy = _policy(policy)
        made = _environment(env, config or [])
        chosen = backend or _first_available(made)
        _say(f"backend: {chosen}")
        wrapper = EnvWrapper(made, num_envs=n_envs, env_backend=chosen, seed=seed)
        wrapper.reset()
        episode = record(wrapper, make_policy(wrapper, seed), steps, env_id)
        if out.suffix == RECORD:
            episode.save(out)
        else:
            with Progress(console=console, disable=not console.is_terminal) as progress:
                task = progress.add_task("frames")
                write(
                    scene_of(made, episode),
                    out,
                    fps,
                    lambda done, n: progress.update(task, completed=done, total=n),
                )
    except WarpDriveError as error:
        _say(str(error))
        raise typer.Exit(1) from error
    end = episode.outcome or "still going on"
    _say(f"{out}: {episode.env_name}, {episode.n_frames - 1} steps, {end}, {out.stat().st_size:,} bytes")


def _policy(name: str) -> Callable[[EnvWrapper, int], Callable[[], None]]:
    if name not in POLICIES:
        raise ConfigError(f"render.policy: unknown policy (got {name!r}); known are {known(POLICIES)}")
    return POLICIES[name]


def _environment(name: str, settings: list[str]) -> Any:
    """Make the environment of that name with KEY=VALUE settings."""
    table = importlib.import_module("envs").ENVS  # by name: the core does not depend on environments
    if name not in table:
        raise ConfigError(f"render.env: unknown environment (got {name!r}); known are {known(table)}")
    fields = [field.name for field in dataclasses.fields(table[name]().config)]
    config = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or key not in fields:
            raise ConfigError(f"render.config: must be KEY=VALUE (got {setting!r}); keys of {name} are {known(fields)}")
        config[key] = _value(text)
    return table[name](**config)


def _value(text: str) -> Any:
    """Return the value of a JSON or Python literal; what is none is the text itself."""
    if text in PYTHON:
        return PYTHON[text]
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _first_available(env: Any) -> str:
    """Return the first backend that can run the environment here; Numba's simulator is too slow to count."""
    for name in PREFERRED:
        available = BACKENDS[name].availability().available and not (name == "numba" and simulated())
        if available and supports(env, BACKENDS[name], env.kernel_sources):
            return name
    raise BackendUnavailable(f"render: no backend here runs {env.name}; its kernels are {known(env.kernel_sources)}")


def _say(text: str) -> None:
    """Print a line as it is: no markup, no colours, no breaks."""
    console.print(text, soft_wrap=True, highlight=False, markup=False)
