"""Programs of the static gate: environments, and the core's kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from warpdrive_min.envs import ENVS

from ..core.errors import CompareError
from ..workloads.shared import EPISODE_LENGTHS, env_config, is_outside
from .records import Program

BACKENDS: Final = ("pycuda", "numba")
SIZES: Final[tuple[tuple[str, int, int, dict[str, Any]], ...]] = (
    *((name, 10_000, 1, {}) for name in EPISODE_LENGTHS),
    ("tag_gridworld", 2_000, 5, {}),
    ("tag_gridworld", 100, 1_000, {"blocks_per_env": 4}),
    ("tag_continuous", 2_000, 110, {}),
    ("tag_continuous", 100, 2_000, {}),
    ("covid19_economy", 1_000, 52, {}),
    ("rice", 1_000, 27, {}),
)
"""Name, number of environments, agents, and further arguments of the wrapper."""
CORE: Final[Mapping[str, tuple[dict[str, Any], ...]]] = {
    "sampling": (
        {"n_envs": 10_000, "n_agents": 1, "categories": [2]},
        {"n_envs": 2_000, "n_agents": 110, "categories": [21, 21]},
    ),
    "noise": ({"n_envs": 10_000, "n_agents": 1, "n_types": 1},),
    "resetting": ({"n_envs": 10_000, "n_agents": 5},),
    "scanning": ({"n_envs": 2_000, "n_agents": 5, "n_steps": 50},),
    "shuffling": ({"n_envs": 1_000_000, "n_agents": 1},),
}
"""Core kernels by program; `shuffling` uses environments as rows."""


def chosen(
    envs: Sequence[str], backends: Sequence[str], n_envs: int | None, n_agents: int | None, config: Mapping[str, Any]
) -> list[Program]:
    """Return the programs selected by options.

    Args:
        envs: Environments, kinds of the core's kernels, or a user's classes as ``module:Class``; none: all of ours.
        backends: Names in `BACKENDS`; empty: both.
        n_envs: Copies, in place of the usual ones.
        n_agents: Agents, in place of the usual ones.
        config: Arguments of a user's environment.

    Raises:
        CompareError: A name is unknown, or no environment takes the config.
    """
    for backend in backends:
        if backend not in BACKENDS:
            raise CompareError(f"--backend: must be one of {', '.join(BACKENDS)} (got {backend}); leave it out for all")
    known = [*ENVS, *CORE]
    for name in envs:
        if name not in known and not is_outside(name):
            raise CompareError(
                f"--env: must be one of {', '.join(known)}, a class as module:Class, or its path (got {name}); give one"
            )
    users = [name for name in envs if name not in known]
    if config and not users:
        raise CompareError(
            f"--config: needs an environment outside envs/ (got {config}); name it with --env module:Class"
        )
    sizes = {
        name: [(one, own) for each, *one, own in SIZES if each == name][: None if n_agents is None else 1]
        for name in ENVS
    }
    made: list[dict[str, Any]] = []
    for name in envs or known:
        if name in CORE:
            made += [{"name": name, "kind": name, **each, "n_envs": n_envs or each["n_envs"]} for each in CORE[name]]
        elif name in ENVS:
            for (copies, agents), own_arguments in sizes[name]:
                agents = n_agents if n_agents and name not in _FIXED else agents
                arguments = own_arguments if n_agents is None else {}
                made.append(environment(name, env_config(name, agents), n_envs or copies, agents) | arguments)
        else:
            made.append(environment(name, config, n_envs or 1_000, 0))
    return [{**each, "backend": backend} for backend in backends or BACKENDS for each in made]


_FIXED: Final = (*EPISODE_LENGTHS, "covid19_economy")
"""Environments with a fixed number of agents."""


def environment(name: str, config: Mapping[str, Any], n_envs: int, n_agents: int) -> dict[str, Any]:
    """Return the program of an environment, or of a class module:Class."""
    return {
        "name": name.rpartition(":")[2],
        "kind": "environment",
        "source": f"warpdrive_min.envs:{ENVS[name].__name__}" if name in ENVS else name,
        "config": dict(config),
        "n_envs": n_envs,
        "n_agents": n_agents,
    }
