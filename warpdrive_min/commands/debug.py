"""Command `debug`: repeat a run under changes that must leave all bits equal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from warpdrive_min import backends, memory
from warpdrive_min.agreement import Subject
from warpdrive_min.agreement.bisect import Fault, Run, environment_run, first_fault
from warpdrive_min.agreement.changes import Change, changes
from warpdrive_min.backends import cache
from warpdrive_min.commands.environments import (
    Backend,
    first_available,
    given_environment,
    make_environment,
    read_settings,
    report_errors,
    say,
)
from warpdrive_min.commands.plan import make_plan, unfused_settings, with_settings
from warpdrive_min.config import MAX_SEED
from warpdrive_min.errors import known, one_line, require
from warpdrive_min.terminal import echo
from warpdrive_min.training.config import RunConfig
from warpdrive_min.training.scale.population import replay_trainer

ITERATIONS = 3
"""Default iterations of a training."""
SAMPLE = 1024
"""Environments by which the memory of more is estimated."""
PEAK = 6
"""Memory of a comparison, in sizes of one run's arrays: two runs, copies before and after a step, and work space."""
ROUNDING_HINT = "a float sum whose order changes, such as atomicAdd of floats; or "


def debug(
    path: Annotated[
        str, typer.Argument(help="Name of a shipped environment, package folder, module, or package.module:ClassName.")
    ],
    bisect: Annotated[
        bool, typer.Option("--bisect", help="Compare after each launch; names the kernel. A training runs unfused.")
    ] = False,
    backend: Backend = None,
    train: Annotated[
        str | None, typer.Option(help="Repeat a training: run config, a YAML file or a name such as ppo.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE sets an argument of the class; with --train, a setting."),
    ] = None,
    change: Annotated[list[str] | None, typer.Option(help="Make only this change; may be repeated.")] = None,
    envs: Annotated[int | None, typer.Option(min=2, max=2**31 - 1, help="Environments; default: 37.")] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, max=2**31 - 1, help=f"Steps, default 40; with --train iterations, default {ITERATIONS}."),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=MAX_SEED, help="Seed of both runs; default: 0.")] = None,
    fused: Annotated[bool, typer.Option("--fused", help="With --train --bisect: keep fused kernels.")] = False,
) -> None:
    """Repeat a run under changes that must leave all its bits equal.

    It runs twice for each change: nothing, other contents of fresh memory, reverse order of threads, delayed warps,
    other blocks, other CPU threads. Names the first array and element that differ, and with --bisect the kernel. Exits
    with 1 if a run differs, with 2 if it cannot run.
    """
    with report_errors(2):
        is_both, do = train is not None and bisect, "give both, or leave it out"
        require(is_both or not fused, "debug.fused", "is for --train with --bisect", do=do)
        cache.report_with = partial(echo, err=True)
        if train is None:
            given, seed = read_settings(settings or [], "debug.set"), seed or 0
            start, chosen, is_exact = _steps(path, backend, given, envs, seed, steps)
        else:
            options = {
                "trainer.num_envs": ("--envs", envs),
                "trainer.seed": ("--seed", seed),
                "trainer.env_backend": ("--backend", backend),
            }
            given = read_settings(settings or [], "debug.set", options)
            given["trainer.seed"] = seed = given.get("trainer.seed") or 0
            start, chosen, is_exact = _training(path, given, train, is_located=bisect, is_fused=fused)
        table = {each.name: each for each in changes(backends.get(chosen), exact=is_exact)}
        for name in change or []:
            why = "" if is_exact else " of a run that is not exact"
            require(name in table, "debug.change", f"unknown for {chosen}{why}", name, f"known are {known(table)}")
        n = steps or (Subject.n_steps if train is None else ITERATIONS)
        unit = "steps" if train is None else "iterations"
        say(f"{path} on {chosen}, {n:,} {unit}, seed {seed}: each change must leave all bits equal")
        if not is_exact:
            say("not exact: other builds, blocks and threads may round differently, and are left out")
        names = [name for name in table if not change or name in change]
        found = [_report(table[name], first_fault(start, table[name], n, is_located=bisect), bisect) for name in names]
        if any(found):
            raise typer.Exit(1)
        if chosen == "host":
            say(UNSEEN)


def _report(change: Change, fault: Fault | None, is_located: bool) -> bool:
    """Print the result of a change; return True if the runs differ."""
    if fault is None:
        say(f"{change.name:<9} equal    {change.what}")
        return False
    say(f"{change.name:<9} DIFFERS  {change.what}")
    say(f"  {one_line(str(fault))}")
    more = "" if is_located else "; --bisect names the kernel"
    say(f"  look for {ROUNDING_HINT if fault.is_rounding else ''}{change.hint}{more}")
    return True


UNSEEN: Final = (
    "host runs the phases of a WD_KERNEL one after the other, so a missing WD_SYNC shows no difference here; run "
    "Numba's simulator for the Numba kernel, and compute-sanitizer on a GPU (docs/authoring.md)"
)
"""Note on a fault that no change of the run on `host` can show."""
Started = tuple[Callable[[], Run], str, bool]
"""Function that starts a run, the backend, and if the run is exact."""


def _steps(
    path: str, backend: str | None, config: Mapping[str, Any], envs: int | None, seed: int, steps: int | None
) -> Started:
    name = given_environment(path, "debug")
    env = make_environment(name, config, "debug")
    chosen = backends.get(backend).name if backend else first_available(env, "debug")
    sizes = {name: size for name, size in (("n_envs", envs), ("n_steps", steps)) if size is not None}
    subject = Subject(target=name, cls=type(env), backend=chosen, config=config, seed=seed, **sizes)
    rule = f"{name} must have {subject.language} kernels for backend {chosen!r}"
    require(subject.language in env.kernel_sources, "debug", rule, known(env.kernel_sources), "name another backend")
    if subject.n_envs > SAMPLE:
        _require_room(subject)
    return partial(environment_run, subject), chosen, True


def _require_room(subject: Subject) -> None:
    """Raise DeviceMemoryError unless a CPU has room for both runs and their copies."""
    data = replace(subject, n_envs=SAMPLE).start_exact().cuda_data_manager
    n_bytes = sum(data.tensor(name).nbytes for name in data.array_names()) // SAMPLE * subject.n_envs
    memory.require_room("debug --envs", PEAK * n_bytes, data.device, "use fewer environments")


def _training(path: str, given: Mapping[str, Any], config: str, *, is_located: bool, is_fused: bool) -> Started:
    run = make_plan(path, Path(config), given, None, None)
    name, settings = run.env_name, run.run_config
    n_gpus = settings.trainer.num_gpus
    require(n_gpus == 1, "run config trainer.num_gpus", "must be 1 for debug", n_gpus, "set it so with --set")
    is_chosen = "trainer.env_backend" in given
    env = make_environment(name, settings.env, "debug")
    chosen = settings.trainer.env_backend if is_chosen else first_available(env, "debug")
    backends.get(chosen)
    # A graph copies nothing to the host.
    located = {"trainer.mode": "eager"} if is_fused else unfused_settings(settings)
    settings = with_settings(settings, {"trainer.env_backend": chosen, **(located if is_located else {})})
    return partial(training_run, name, settings), chosen, settings.trainer.exact


def training_run(name: str, config: RunConfig) -> Run:
    """Start a training that writes no files."""
    trainer = replay_trainer(make_environment(name, config.env, "debug"), config)

    def arrays() -> Mapping[str, Any]:
        state = trainer.state()
        assert state is not None, "a trainer of one rank has all of its state"
        return state[0]

    return Run(advance=trainer.iterate, arrays=arrays, wrapper=trainer.wrapper, unit="iteration")
