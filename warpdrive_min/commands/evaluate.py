"""The command `evaluate`: play whole episodes with the policies of a checkpoint and say how they did."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from warpdrive_min.commands.environments import Backend, console, environments, errors_told, first_available, say
from warpdrive_min.training import evaluation
from warpdrive_min.training.trained import TrainedPolicies, load_policies

Scores = dict[str, evaluation.Score]


def evaluate(
    path: Annotated[Path, typer.Argument(help="Checkpoint, or a run: its best one, if it keeps one, or the latest.")],
    episodes: Annotated[int, typer.Option(min=1, help="Episodes, each in an environment of its own.")] = 100,
    backend: Backend = None,
    seed: Annotated[int, typer.Option(min=0, max=2**64 - 1, help="Of starts and draws.")] = 0,
    sampled: Annotated[bool, typer.Option("--sampled", help="Draw actions; else the policies do their best.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Play whole episodes and print each policy's mean return and its standard error; exits with 1 if that fails."""
    with errors_told():
        environments()  # puts them in the registrar
        trained = load_policies(path)
        chosen = backend or first_available(trained.env, "evaluate")
        wrapper = trained.wrapper(chosen)
        scores = evaluation.evaluate(
            wrapper, trained.models, trained.policies, trained.layout, episodes, greedy=not sampled, seed=seed
        )
    how = {"backend": chosen, "seed": seed, "greedy": not sampled}
    if as_json:
        typer.echo(json.dumps(_about(trained) | how | {"policies": {name: asdict(s) for name, s in scores.items()}}))
        return
    say(", ".join(f"{key} {value}" for key, value in (_about(trained) | how).items()))
    console.print(_table(scores))


def _about(trained: TrainedPolicies) -> dict[str, str | int]:
    return {
        "checkpoint": str(trained.path),
        "environment": trained.environment_name,
        "iteration": trained.header.iteration,
        "env_steps": trained.header.env_steps,
    }


def _table(scores: Scores) -> Table:
    table = Table("policy", "mean return", "standard error", "of one agent", "steps", "episodes")
    for name, score in scores.items():
        table.add_row(
            name,
            f"{score.mean_return:.4g}",
            f"{score.standard_error:.2g}",
            f"{score.mean_agent_return:.4g}",
            f"{score.mean_steps:.1f}",
            f"{score.n_episodes:,}",
        )
    return table
