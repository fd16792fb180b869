"""The command `render`: play an episode of an environment and write it to a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.progress import Progress

from warpdrive_min.commands.environments import (
    PREFERRED,
    config_keys,
    console,
    environment_name,
    environments,
    errors_told,
    first_available,
    make_environment,
    read_settings,
    say,
)
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.errors import ConfigError, known
from warpdrive_min.policies import random_policy
from warpdrive_min.rendering.recording import record
from warpdrive_min.rendering.writing import FORMATS, require_format, scene_of, write
from warpdrive_min.training import checkpoint
from warpdrive_min.training.trained import find_checkpoint, load_policies

POLICIES: Final[dict[str, Callable[[EnvWrapper, int], Callable[[], None]]]] = {"random": random_policy}
"""Makes a policy from a started wrapper and a seed, by name."""
RECORD: Final = ".npz"
"""Suffix of the episode itself, to be drawn elsewhere."""

Play = tuple[EnvWrapper, Callable[[], None]]
"""A started wrapper, and what writes the actions of all its agents."""


def render(
    out: Annotated[Path, typer.Option(help=f"File; its suffix is the format: {', '.join([*FORMATS, RECORD])}.")],
    env: Annotated[str | None, typer.Argument(help="Environment; by default that of the checkpoint.")] = None,
    policy: Annotated[
        str, typer.Option(help=f"Who acts: {', '.join(POLICIES)}, or the path of a checkpoint or run.")
    ] = "random",
    backend: Annotated[str | None, typer.Option(help=f"By default the first of {', '.join(PREFERRED)}.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps at most; by default the whole episode.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**64 - 1, help="Of starts and actions.")] = 0,
    n_envs: Annotated[int, typer.Option(min=1, help="Copies of the environment.")] = 1,
    env_id: Annotated[int, typer.Option(min=0, help="Which copy is drawn.")] = 0,
    fps: Annotated[int, typer.Option(help="Frames a second.")] = 20,
    config: Annotated[list[str] | None, typer.Option(help="KEY=VALUE of the environment's config.")] = None,
    sampled: Annotated[bool, typer.Option("--sampled", help="A trained policy draws; else it does its best.")] = False,
) -> None:
    """Play one episode and write it as a player, a film, a picture or a record; exits with 1 if that fails."""
    with errors_told():
        if out.suffix != RECORD:
            require_format(out)
        play = _random_play if policy in POLICIES else _trained_play
        wrapper, act = play(policy, env, config or [], backend, n_envs, seed, sampled)
        episode = record(wrapper, act, steps, env_id)
        if out.suffix == RECORD:
            episode.save(out)
        else:
            with Progress(console=console, disable=not console.is_terminal) as progress:
                task = progress.add_task("frames")
                write(
                    scene_of(wrapper.env, episode),
                    out,
                    fps,
                    lambda done, n: progress.update(task, completed=done, total=n),
                )
    end = episode.outcome or "still going on"
    say(f"{out}: {episode.env_name}, {episode.n_frames - 1} steps, {end}, {out.stat().st_size:,} bytes")


def _random_play(
    policy: str, env: str | None, settings: list[str], backend: str | None, n_envs: int, seed: int, sampled: bool
) -> Play:
    if env is None:
        raise ConfigError(f"render.env: must be named where no checkpoint says it; known are {known(environments())}")
    if sampled:
        raise ConfigError(f"render.sampled: is for a trained policy (got policy {policy!r}); leave it out")
    made = _environment(env, {}, settings)
    wrapper = EnvWrapper(made, num_envs=n_envs, env_backend=_chosen(backend, made), seed=seed)
    wrapper.reset()
    return wrapper, POLICIES[policy](wrapper, seed)


def _trained_play(
    policy: str, env: str | None, settings: list[str], backend: str | None, n_envs: int, seed: int, sampled: bool
) -> Play:
    if not Path(policy).exists():
        raise ConfigError(
            f"render.policy: unknown policy (got {policy!r}); known are {known(POLICIES)}, "
            "and paths of checkpoints and runs"
        )
    found = find_checkpoint(policy)
    _, header = checkpoint.load(found)
    name = header.environment["name"]
    made = _environment(env or name, header.run_config["env"], settings)
    trained = load_policies(found, made)
    envs = trained.envs(_chosen(backend, made), n_envs, seed)
    return envs.wrapper, lambda: envs.act(greedy=not sampled)


def _environment(name: str, config: dict[str, Any], settings: list[str]) -> Any:
    """Make the environment of that name, with KEY=VALUE settings over a config."""
    name = environment_name(name, "render.env")
    given = read_settings(settings, "render.config", config_keys(name), name)
    return make_environment(name, {**config, **given}, "render.config")


def _chosen(backend: str | None, env: Any) -> str:
    chosen = backend or first_available(env, "render")
    say(f"backend: {chosen}")
    return chosen
