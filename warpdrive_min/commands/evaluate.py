"""Command `evaluate`: play episodes with a checkpoint and print their returns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from warpdrive_min.commands.environments import (
    Backend,
    console,
    first_available,
    make_environment,
    played_environment,
    report_errors,
    say,
)
from warpdrive_min.terminal import echo
from warpdrive_min.training.loop import checkpoint, evaluation
from warpdrive_min.training.record.trained import TrainedPolicies, find_policies, load_policies, load_population


def evaluate(
    path: Annotated[
        Path, typer.Argument(help="Checkpoint or run folder; of a run its best checkpoint if saved, else the latest.")
    ],
    episodes: Annotated[
        int, typer.Option(min=1, max=2**31 - 1, help="Number of episodes, each in its own environment.")
    ] = 100,
    env: Annotated[
        str | None,
        typer.Option("--env", "-e", help="Environment, as path or module:Class; by default the checkpoint's, by name."),
    ] = None,
    backend: Backend = None,
    seed: Annotated[int, typer.Option(min=0, max=2**64 - 1, help="Seed of initial states and sampled actions.")] = 0,
    member: Annotated[int | None, typer.Option(min=0, help="Evaluate only this member of a population.")] = None,
    sampled: Annotated[bool, typer.Option("--sampled", help="Sample actions; default: greedy actions.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Play episodes; print each policy's mean return and its standard error.

    Exits with 1 on failure. In a population each member plays this number of episodes, and the best one is printed.
    """
    with report_errors():
        _, header = checkpoint.load(find_policies(path))
        name = played_environment(env, header.environment["name"], "evaluate.env")
        made = make_environment(name, header.config.env, "evaluate.env")
        is_whole = member is None and header.config.population.size is not None
        trained = load_population(path, made) if is_whole else load_policies(path, made, member)
        chosen = backend or first_available(trained.env, "evaluate")
        wrapper = trained.wrapper(chosen)
        given: tuple[Any, ...] = (trained.policies, trained.layout, episodes, not sampled, seed)
        how = {"backend": chosen, "seed": seed, "greedy": not sampled}
        about = {**_about(trained), **how, **({} if member is None else {"member": member})}
        if not as_json:
            say(", ".join(f"{key} {value}" for key, value in about.items()))
            actions = "sampled actions" if sampled else "greedy actions (with --sampled they are drawn, as in training)"
            of_each = " for each member" if is_whole else ""
            say(f"{episodes:,} episodes{of_each} of at most {wrapper.episode_length:,} steps, {actions}")
        as_graph = trained.run_config.trainer.mode != "eager"
        scores = evaluation.evaluate(wrapper, trained.models, *given, as_graph=as_graph)
    if is_whole:
        _print_members(trained, list(scores.values()), about, as_json)
        return
    if as_json:
        echo(json.dumps(about | {"policies": {name: asdict(s) for name, s in scores.items()}}))
        return
    console.print(_table("policy", {(name,): score for name, score in scores.items()}))


def _print_members(
    trained: TrainedPolicies, scores: list[evaluation.Score], about: Mapping[str, object], as_json: bool
) -> None:
    """Print the score of each member, and the best member."""
    members = trained.run_config.population.members(trained.header.seed)
    best = max(range(len(scores)), key=lambda member: scores[member].mean_return)
    if as_json:
        rows = [
            {"member": index, "seed": member.seed, **member.setting, **asdict(score)}
            for index, (member, score) in enumerate(zip(members, scores, strict=True))
        ]
        echo(json.dumps({**about, "best_member": best, "members": rows}))
        return
    keys = members[0].setting
    named = {
        (str(index), str(member.seed), *(str(member.setting[key]) for key in keys)): score
        for index, (member, score) in enumerate(zip(members, scores, strict=True))
    }
    console.print(_table("member", named, "seed", *keys))
    score = scores[best]
    say(f"best: member {best}, mean return {score.mean_return:.4g} (standard error {score.standard_error:.2g})")


def _about(trained: TrainedPolicies) -> dict[str, str | int]:
    return {
        "checkpoint": str(trained.path),
        "environment": trained.environment_name,
        "iteration": trained.header.iteration,
        "env_steps": trained.header.env_steps,
    }


def _table(first: str, scores: Mapping[tuple[str, ...], evaluation.Score], *further: str) -> Table:
    """Return a table of scores by the cells of its first columns."""
    table = Table(first, *further, "mean return", "standard error", "per agent", "mean steps", "episodes")
    for cells, score in scores.items():
        table.add_row(
            *cells,
            f"{score.mean_return:.4g}",
            f"{score.standard_error:.2g}",
            f"{score.mean_agent_return:.4g}",
            f"{score.mean_steps:.1f}",
            f"{score.n_episodes:,}",
        )
    return table
