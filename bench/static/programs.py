"""Programs of the static gate: environments, and the core's kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from warpdrive_min.envs import ENVS

from ..core.archive import read_toml
from ..core.errors import CompareError
from ..workloads.outside import outside_of
from ..workloads.shared import EPISODE_LENGTHS, env_config
from .records import Program

BACKENDS: Final = ("pycuda", "numba")
_PROGRAMS: Final = read_toml(Path(__file__).with_name("programs.toml"))
CORE: Final[Mapping[str, Sequence[Mapping[str, Any]]]] = _PROGRAMS["core"]
"""Core kernels by kind of program."""


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
    outside_of(envs, config, (), others=[*CORE])
    made: list[dict[str, Any]] = []
    for name in envs or (*ENVS, *CORE):
        if name in CORE:
            made += [{"name": name, "kind": name, **each, "n_envs": n_envs or each["n_envs"]} for each in CORE[name]]
        elif name in ENVS:
            sizes = [each for each in _PROGRAMS["environments"] if each["name"] == name]
            if n_agents is not None:
                sizes = [{**sizes[0], "n_agents": sizes[0]["n_agents"] if name in _FIXED else n_agents}]
            for each in sizes:
                own = {
                    "source": f"warpdrive_min.envs:{ENVS[name].__name__}",
                    "config": env_config(name, each["n_agents"]),
                }
                made.append({"kind": "environment", **own, **each, "n_envs": n_envs or each["n_envs"]})
        else:
            own = {"name": name.rpartition(":")[2], "source": name, "config": dict(config)}
            made.append({"kind": "environment", **own, "n_envs": n_envs or 1_000, "n_agents": 0})
    return [{**each, "backend": backend} for backend in backends or BACKENDS for each in made]


_FIXED: Final = (*EPISODE_LENGTHS, "covid19_economy")
"""Environments with a fixed number of agents."""
