"""Points of an environment outside `envs/`, named by class or path."""

from __future__ import annotations

import inspect
import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from warpdrive_min import BACKENDS
from warpdrive_min.errors import ConfigError, known

from ..core.case import Job
from ..core.errors import CompareError
from ..core.point import ORACLE, Point, Preset, class_and_config
from ..core.record import Record
from .cases import CASES
from .points import POINTS, point_of
from .shared import env_point, is_outside

OUTSIDE_CASES: Final = ("env_step", "many_steps")
"""Cases that can measure such an environment."""
FEW_ENVS: Final = (64,)
"""Default numbers of environments in preset smoke."""
SOME_ENVS: Final = (100, 10_000)
"""Default numbers of environments in the other presets."""


def outside_of(
    envs: Sequence[str], config: Collection[str], n_agents: Sequence[int], others: Sequence[str] = ()
) -> list[str]:
    """Return the names of environments that are outside `envs/`.

    With ``others`` those names are allowed too.

    Raises:
        CompareError: A name is no environment, or an option does not apply to it.
    """
    outside = [name for name in envs if is_outside(name)]
    if shipped := [name for name in envs if name not in (*outside, *others)]:
        from warpdrive_min.envs import ENVS
    for name in shipped:
        if name not in ENVS:
            rule = f"must be one of {', '.join((*ENVS, *others))}, a class as module:Class, or a path that is there"
            raise CompareError(f"--env: {rule} (got {name}); paths start at {Path.cwd()}")
    if config and not outside:
        raise CompareError(
            f"--config: needs an environment outside envs/ (got {', '.join(config)}); name it with --env"
        )
    if n_agents and outside:
        raise CompareError(f"--n-agents: {outside[0]} takes its agents from --config (got {n_agents}); leave it out")
    return outside


def name_of(target: str, arguments: Mapping[str, Any]) -> str:
    """Return an environment's name in records: its class and config.

    Raises:
        ConfigError: The class does not exist.
    """
    from warpdrive_min.registrar import load_class

    cls = load_class(target)
    parts = cls.__module__.split(".")
    places = [Path(*parts).with_suffix(".py").resolve(), Path(*parts, "__init__.py").resolve()]
    is_here = ":" in target or Path(inspect.getfile(cls)).resolve() in places
    name = f"{cls.__module__}:{cls.__qualname__}" if is_here else str(Path(target).resolve())
    return name + (json.dumps(arguments, sort_keys=True) if arguments else "")


def names_of(envs: Sequence[str]) -> set[str]:
    """Return all names in records for environments on the command line.

    Raises:
        CompareError: A name is no environment.
    """
    targets = [name.partition("{")[0] for name in outside_of(envs, (), ())]
    try:
        return {name for each in targets for name in (each, str(Path(each).resolve()), name_of(each, {}))}
    except ConfigError as error:
        raise CompareError(str(error)) from error


def job_of(record: Record, named: Collection[str] = ()) -> Job:
    """Return the point of a record with a known or named environment.

    Args:
        record: Record of a case of today.
        named: Names of environments outside `envs/`, see `names_of`.

    Raises:
        CompareError: The record's environment is outside `envs/`, and not named.
    """
    target = str(record.point.get("env", "")).partition("{")[0]
    if "env" in record.point and is_outside(target) and target not in named:
        rule = "must be in envs/ or named on the command line, as its code would run here"
        do = f"read its code, then name it with --env {shlex.quote(target)}"
        raise CompareError(f"record {record.run_id}: environment {rule} (got {target!r}); {do}")
    return Job(CASES[record.case], record.point)


def outside_jobs(
    name: str,
    config: Sequence[str],
    preset: Preset,
    cases: Sequence[str] = (),
    backends: Sequence[str] = (),
    n_envs: Sequence[int] = (),
) -> list[Job]:
    """Return the points of an environment outside `envs/`.

    Points of `many_steps` need an `Environment`; an environment after WarpDrive's manual takes single steps.

    Args:
        name: Name as for `is_outside`.
        config: Its arguments, each as KEY=VALUE.
        preset: Preset of the number of environments, unless ``n_envs`` is given.
        cases: Names in `OUTSIDE_CASES`; empty: both.
        backends: Backends with kernels for it; empty: all of them.
        n_envs: Numbers of environments.

    Raises:
        CompareError: A case or backend is unknown, NumPy kernels are missing, or the arguments do not fit.
        ConfigError: The class does not exist, or the config breaks its rules.
    """
    from warpdrive_min.environment import Environment

    from .setups.environments import environment_of

    for case in cases:
        if case not in OUTSIDE_CASES:
            raise CompareError(
                f"--case: of {name} must be one of {', '.join(OUTSIDE_CASES)} (got {case}); leave it out"
            )
    try:
        target, own = class_and_config(name)
    except json.JSONDecodeError as error:
        raise CompareError(f"--env: what follows a class must be a JSON object (got {name}); use --config") from error
    arguments = {**own, **config_of(config)}
    name = name_of(target, arguments)
    try:
        env = environment_of({"env": name})
    except ConfigError:
        raise
    except Exception as error:  # its constructor may raise anything
        do = "give its arguments, each as --config KEY=VALUE; `python -m warpdrive_min validate` shows where it breaks"
        raise CompareError(
            f"--env: {target} cannot be made with arguments {arguments} (got {type(error).__name__}: {error}); {do}"
        ) from error
    has = [each for each, backend in BACKENDS.items() if backend.language in env.kernel_sources]
    if ORACLE not in has:
        rule = f"must have NumPy kernels, which others are held against, in its kernel_sources (has {known(has)})"
        raise CompareError(f"--env: {name} {rule}; add them")
    for backend in backends:
        if backend not in has:
            raise CompareError(
                f"--backend: {name} has kernels for {', '.join(has)} (got {backend}); leave it out for all"
            )
    points: dict[str, list[Point]] = {case: [] for case in OUTSIDE_CASES}
    for n in n_envs or (FEW_ENVS if preset == "smoke" else SOME_ENVS):
        for backend in backends or has:
            at = env_point(name, backend, n, env.num_agents)
            points["env_step"].append({**at, "exact": False})
            if backend != ORACLE and isinstance(env, Environment):
                points["many_steps"] += [point_of(**at, **way) for way in POINTS["rows"]["modes"]]
    return [Job(CASES[case], point) for case in cases or OUTSIDE_CASES for point in points[case]]


def config_of(settings: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of an environment's class from KEY=VALUE settings.

    Raises:
        CompareError: A setting is not KEY=VALUE.
    """
    from warpdrive_min.commands.environments import read_settings

    try:
        return read_settings(settings, "--config")
    except ConfigError as error:
        raise CompareError(str(error)) from error
