"""Command `render`: play an episode and write it to a file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.progress import Progress

from warpdrive_min.commands.environments import (
    Backend,
    console,
    environments,
    first_available,
    given_environment,
    make_environment,
    played_environment,
    read_settings,
    report_errors,
    say,
)
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.errors import ConfigError, known, require
from warpdrive_min.policies import random_policy
from warpdrive_min.rendering.recording import record
from warpdrive_min.rendering.writing import FORMATS, MAX_FPS, require_format, scene_of, write
from warpdrive_min.training.loop import checkpoint
from warpdrive_min.training.record.trained import find_policies, load_policies

POLICIES: Final[dict[str, Callable[[EnvWrapper, int], Callable[[], None]]]] = {"random": random_policy}
"""Factories of policies by name; each takes a started wrapper and a seed."""
RECORD: Final = ".npz"
"""Suffix of a file that stores the episode's arrays."""


def render(
    out: Annotated[Path, typer.Option(help=f"File; its suffix is the format: {', '.join([*FORMATS, RECORD])}.")],
    env: Annotated[
        str | None,
        typer.Argument(help="Environment: name, path or module:Class; default: that of the checkpoint, by name."),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(help=f"Policy: {', '.join(POLICIES)}, or the path of a checkpoint or run (its best checkpoint)."),
    ] = "random",
    backend: Backend = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Largest number of steps; default: the whole episode.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**64 - 1, help="Seed of initial states and actions.")] = 0,
    n_envs: Annotated[int, typer.Option(min=1, max=2**31 - 1, help="Number of environments.")] = 1,
    env_id: Annotated[int, typer.Option(min=0, help="Index of the environment to draw.")] = 0,
    fps: Annotated[int, typer.Option(min=1, max=MAX_FPS, help="Frames per second.")] = 20,
    config: Annotated[list[str] | None, typer.Option(help="KEY=VALUE of the environment's config.")] = None,
    member: Annotated[int | None, typer.Option(min=0, help="Member of a population; default: the best one.")] = None,
    sampled: Annotated[
        bool, typer.Option("--sampled", help="Sample a trained policy's actions; default: greedy actions.")
    ] = False,
) -> None:
    """Play one episode and write a web page, video, image or its arrays.

    Exits with 1 on failure.
    """
    with report_errors():
        if out.suffix != RECORD:
            require_format(out, RECORD)
        name, settings, found = _environment(policy, env, sampled, member)
        given = read_settings(config or [], "render.config")
        made = make_environment(name, {**settings, **given}, "render.config")
        chosen = backend or first_available(made, "render")
        say(f"backend: {chosen}")
        if found is None:
            wrapper = EnvWrapper(made, num_envs=n_envs, env_backend=chosen, seed=seed)
            wrapper.reset()
            act = POLICIES[policy](wrapper, seed)
        else:
            envs = load_policies(found, made, member).envs(chosen, n_envs, seed)
            wrapper, act = envs.wrapper, partial(envs.act, greedy=not sampled)
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
    end = episode.outcome or "not ended"
    steps_text = "1 step" if episode.n_frames == 2 else f"{episode.n_frames - 1:,} steps"
    say(f"{out}: {episode.env_name}, {steps_text}, {end}, {out.stat().st_size:,} bytes")


def _environment(
    policy: str, env: str | None, sampled: bool, member: int | None
) -> tuple[str, dict[str, Any], Path | None]:
    """Return the environment's name and config, and a trained policy's checkpoint."""
    if policy in POLICIES:
        if env is None:
            do = f"known are {known(environments())}"
            raise ConfigError.of("render.env", "is required without a checkpoint", do=do)
        for option, is_given in (("sampled", sampled), ("member", member is not None)):
            require(
                not is_given, f"render.{option}", "is for a trained policy, not a named one", policy, "leave it out"
            )
        return given_environment(env, "render.env"), {}, None
    do = f"known are {known(POLICIES)}, and paths of checkpoints and runs"
    require(Path(policy).exists(), "render.policy", "unknown policy", policy, do)
    found = find_policies(policy)
    _, header = checkpoint.load(found)
    name = played_environment(env, header.environment["name"], "render.env")
    return name, header.config.env, found
