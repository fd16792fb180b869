"""Command `train`: train the policies of a run config."""

from __future__ import annotations

import contextlib
import gzip
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.filesize import decimal

from warpdrive_min import backends, cores, tracing
from warpdrive_min.backends import cache, numba_server
from warpdrive_min.commands.environments import (
    PREFERRED,
    console,
    environments,
    first_available,
    make_environment,
    read_settings,
    report_errors,
    say,
)
from warpdrive_min.commands.plan import LATEST, PROGRAM, Plan, make_plan, unfused_settings, with_settings
from warpdrive_min.config import MAX_SEED
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.errors import require
from warpdrive_min.files import remove_unused, require_writable, write_atomically
from warpdrive_min.lazy import LazyModule
from warpdrive_min.packages import bench_package
from warpdrive_min.processes import is_rank
from warpdrive_min.stopping import NOTHING_SAVED, RANK_SIGNALS, SIGNALS, Stopped, set_handlers, set_saved_work_report
from warpdrive_min.training.config import RunConfig
from warpdrive_min.training.loop import checkpoint
from warpdrive_min.training.loop.progress import ProgressLine
from warpdrive_min.training.paths import early
from warpdrive_min.training.paths.table import explain as explained
from warpdrive_min.training.ranks import World
from warpdrive_min.training.run_folder import reserve, runs_of
from warpdrive_min.training.scale.distributed import launch, process_group, require_processes
from warpdrive_min.training.scale.population import PopulationTrainer, trainer_class
from warpdrive_min.training.trainer import Trainer

if TYPE_CHECKING:
    from warpdrive_min.training.record import certificate
    from warpdrive_min.training.scale import autoscale
else:  # used by few runs
    certificate = LazyModule("warpdrive_min.training.record.certificate", globals(), "certificate")
    autoscale = LazyModule("warpdrive_min.training.scale.autoscale", globals(), "autoscale")

STANDARD_ERROR: Final = 2
STOPPING: Final = b"\nstopping and saving after this iteration; a second signal stops without saving\n"


def train(
    env: Annotated[
        str | None,
        typer.Option(
            "--env",
            "-e",
            help="Environment: name, path or module:Class; uses its own run config unless --config is given.",
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Run config: a YAML file, or the name of one of the environment's, such as ppo.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE changes a setting, e.g. trainer.num_envs=64.")
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            help=f"Backend; default: the first that runs here of {', '.join(PREFERRED)}; a resumed run keeps its own."
        ),
    ] = None,
    n_gpus: Annotated[
        int | None, typer.Option("--gpus", "-n", min=1, help="Number of GPUs; default: trainer.num_gpus.")
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(help="Resume from this checkpoint or run folder; `latest`: the newest run of the run config."),
    ] = None,
    results_dir: Annotated[
        str | None, typer.Option(help="Name of the run's folder in saving.basedir/name/tag; default: the current time.")
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(min=1, help="Stop after this many iterations; the run can be resumed.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=MAX_SEED, help="Sets trainer.seed.")] = None,
    population: Annotated[
        int | None,
        typer.Option("--population", "-p", min=1, help="Number of agents trained at once; sets population.size."),
    ] = None,
    auto_scale: Annotated[
        bool,
        typer.Option(
            "--auto-scale",
            help="Measure env steps/s while doubling the number of environments, and recommend one; trains nothing.",
        ),
    ] = False,
    certify: Annotated[
        bool,
        typer.Option(
            "--certify",
            help="Write certificate.json with hashes of the run, so that `verify` can replay and compare it.",
        ),
    ] = False,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Print the implementation of each part of training, and why no faster one is used; trains nothing.",
        ),
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Write a trace of 3 iterations, or of --iterations, after 2 others; ui.perfetto.dev opens it. "
            "Saves nothing else.",
        ),
    ] = None,
    unfused: Annotated[
        bool, typer.Option("--unfused", help="With --trace: run separate kernels instead of fused ones.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the run's folder.")] = False,
) -> None:
    """Train the policies of a run config; Ctrl-C saves after the iteration.

    Exits with 1 on failure; if a signal stopped it, with 128 + its number, as a shell does.
    """
    if env is None and config is None and resume in (None, LATEST):
        raise typer.BadParameter(f"one of -e ENV, --config FILE and --resume PATH must say what to train ({_known()})")
    if not quiet:
        cache.report_with = say
    with report_errors(), contextlib.ExitStack() as at_end:
        at_end.callback(numba_server.stop)
        plan = make_plan(env, config, _given(settings or [], seed, n_gpus, population), resume, results_dir)
        run = plan.run_config
        made = make_environment(plan.env_name, run.env, "train")
        of_backend = {"trainer.env_backend": ("--backend", backend)}
        is_chosen = resume is not None or "trainer.env_backend" in read_settings(
            settings or [], "train.set", of_backend
        )
        chosen = backend or (run.trainer.env_backend if is_chosen else first_available(made, "train"))
        run = with_settings(run, {"trainer.env_backend": chosen})
        rule, do = "exact training has kernels in CUDA C", "use backend host or pycuda"
        is_exact = not run.trainer.exact or backends.get(chosen).language == "cuda_c"  # before ranks start
        require(is_exact, "run config trainer.exact", rule, chosen, do)
        if chosen == "numba":
            numba_server.start()
        if chosen in ("host", "cpu") or (run.trainer.num_gpus > 1 and not is_rank()):
            early.release()  # the command's words did not say it
        is_on_cpu, is_shown = chosen in ("host", "cpu"), not (quiet or explain or is_rank())
        if is_on_cpu and is_shown:
            warnings = cores.busy(cores.load(), cores.n_cores()), cores.shared(run.trainer.num_gpus, cores.n_cores())
            for warning in filter(None, warnings):
                say(warning)
        trains = not (auto_scale or explain)
        is_one = run.trainer.num_gpus == 1 and not is_rank() and trains
        require(is_one or trace is None, "train.trace", "needs a training run of one process", do="leave --trace out")
        most, runs = tracing.MOST_RUNS, iterations or tracing.N_RUNS
        is_short, held = trace is None or runs <= most, "with --trace, which holds all events in memory"
        require(is_short, "train.iterations", f"must be at most {most:,} {held}", runs, "trace fewer")
        for option, is_given in (("certify", certify), ("results-dir", results_dir is not None)):
            refused = "cannot be used with --trace, which saves no run"
            require(trace is None or not is_given, f"train.{option}", refused, do="leave it out")
        require(trace is not None or not unfused, "train.unfused", "needs --trace FILE", do="leave --unfused out")
        if certify:
            require(trains, "train.certify", "needs a training run", do="leave --certify out")
            certificate.require_replayable("train.certify", run, run.trainer.num_gpus)
        rule, do = "is for an environment that `verify` knows by name", "leave --certify out, or certify it in Python"
        require(plan.env_name in environments() or not certify, "train.certify", rule, plan.env_name, do)

        def make_wrapper(num_envs: int) -> EnvWrapper:
            fresh = make_environment(plan.env_name, run.env, "train")
            numbers: dict[str, Any] = (
                {"exact": True, "envs_before": World.of().rank * num_envs} if run.trainer.exact else {}
            )
            return EnvWrapper(fresh, num_envs=num_envs, env_backend=chosen, auto_reset=True, **numbers)

        size = run.population.size
        kind = trainer_class(run)
        if trace is not None:
            require_writable(trace, "--trace", is_file=True)
            run = with_settings(run, unfused_settings(run)) if unfused else run
            with tracing.ranges():
                trainer = kind(make_wrapper(run.trainer.num_envs * (size or 1)), run, verbose=False)
                _trace(trainer, plan, trace, runs, is_fused=not unfused)
        elif explain:
            require(not auto_scale, "train.explain", "cannot be used with --auto-scale", do="leave one of them out")
            _explain(kind(make_wrapper(run.trainer.num_envs * (size or 1)), run, verbose=False), plan)
        elif auto_scale:
            for option, value in (("results-dir", results_dir), ("iterations", iterations)):
                rule = "cannot be used with --auto-scale, which trains nothing"
                require(value is None, f"train.{option}", rule, value, "leave it out")
            rule, do = "must be null with --auto-scale, which is for one agent", "leave one of them out"
            require(size is None, "run config population.size", rule, size, do)
            _scale(run, make_wrapper)
        elif run.trainer.num_gpus > 1 and not is_rank():
            require_processes(run.trainer.num_gpus, chosen)  # before creating a folder
            folder = runs_of(run) / plan.folder if plan.folder else reserve(runs_of(run))
            words = [*sys.argv[1:], "--results-dir", plan.folder or folder.name]
            try:
                set_saved_work_report(partial(_saved, folder, plan))
                launch(run.trainer.num_gpus, words, chosen)
            finally:
                remove_unused(folder)
        else:
            with process_group(chosen):
                wrapper = make_wrapper(run.trainer.num_envs * (size or 1))
                trainer = kind(wrapper, run, folder=plan.folder, verbose=False)
                set_saved_work_report(partial(_saved, trainer.folder, plan))
                try:
                    caught = _train(trainer, plan, iterations, quiet, certify)
                finally:
                    trainer.graceful_close()
                if caught is not None:
                    raise Stopped(caught)


def _known() -> str:
    return f"known environments are {', '.join(sorted(environments()))}"


def _given(settings: list[str], seed: int | None, n_gpus: int | None, population: int | None) -> dict[str, Any]:
    """Return the command line's overrides of the run config, by dotted key."""
    options = {
        "trainer.seed": ("--seed", seed),
        "trainer.num_gpus": ("--gpus", n_gpus),
        "population.size": ("--population", population),
    }
    return read_settings(settings, "train.set", options)


# ------------------------------------------------------------------ training


def _train(trainer: Trainer, plan: Plan, iterations: int | None, quiet: bool, certify: bool) -> int | None:
    """Train and save; return the number of the signal that stopped it, or None.

    Trains to the end, or for some iterations.
    """
    talks = trainer.world.is_first and not quiet
    if plan.checkpoint is not None:
        trainer.load_checkpoint(plan.checkpoint)
    certifier = certificate.Certifier(trainer, plan.env_name, plan.resumed_run) if certify else None
    last = trainer.n_iterations if iterations is None else min(trainer.n_iterations, trainer.iteration + iterations)
    if talks:
        _say_start(trainer, plan)
        if plan.checkpoint is not None and certifier is None and (trainer.folder / certificate.NAME).exists():
            say(f"{certificate.NAME} ends before this run does; add --certify to continue it")
    is_alone, is_on_cpu = trainer.world.size == 1, trainer.wrapper.backend.device.type == "cpu"
    n_episodes = trainer.config.trainer.num_episodes
    advice = f" on this CPU; Ctrl-C saves, and --set trainer.num_episodes=N trains for fewer than {n_episodes:,}"
    progress = ProgressLine(last, trainer.iteration, talks, advice=advice if is_on_cpu else "")
    with _signals(once=is_alone, talks=talks) as caught, progress:
        is_stopped = False
        while trainer.iteration < last and not trainer.is_finished and not is_stopped:
            row = trainer.train(1, wait=False)
            if row:
                progress.update(row)
            elif is_on_cpu:
                progress.advance(trainer.iteration)
            if certifier is not None:
                certifier.note(row)
            # All ranks must stop together, or they wait for each other; they synchronise when metrics are logged.
            if is_alone or row:
                is_stopped = trainer.world.agreed(bool(caught))
    if not trainer.is_finished:
        trainer.save_checkpoint()  # at the end of a run the trainer saves
    trainer.wait_for_checkpoints()
    if certifier is not None:
        certifier.end()
    if talks:
        _say_end(trainer, plan, is_stopped)
        if certifier is not None:
            _say_certificate(certifier)
    elif trainer.world.is_first:
        say(str(trainer.folder))
    return caught[0] if is_stopped and caught else None


def _saved(folder: Path, plan: Plan) -> str:
    """Return the last checkpoint in a run's folder, and the resume command."""
    last = checkpoint.latest(folder / checkpoint.FOLDER)
    if last is not None:
        return f"last checkpoint: {last}; resume with `{plan.resume(folder)}`"
    is_taken = plan.folder is not None and folder.is_dir() and any(folder.iterdir())
    return f"nothing was saved; {checkpoint.next_step(folder)}" if is_taken else NOTHING_SAVED


@contextlib.contextmanager
def _signals(*, once: bool, talks: bool) -> Iterator[list[int]]:
    """Collect stop signals; with ``once`` the second one stops immediately.

    Each of several processes may receive a signal twice: from the terminal and from its parent. With ``talks`` the
    first one is acknowledged, as an iteration may take long.
    """
    caught: list[int] = []

    def restore() -> None:
        for each, before in earlier.items():
            signal.signal(each, before)

    def note(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        if once:
            restore()
            if talks:
                with contextlib.suppress(OSError):  # a closed standard error
                    os.write(STANDARD_ERROR, STOPPING)  # a buffer may be in use

    # A surviving rank receives SIGTERM, and must not start its next iteration.
    earlier = set_handlers(note, SIGNALS if once else RANK_SIGNALS)
    try:
        yield caught
    finally:
        restore()


def _say_start(trainer: Trainer, plan: Plan) -> None:
    settings, size = trainer.config.trainer, trainer.config.population.size
    of_each = f"{size:,} members of " if size is not None else ""
    n_ranks = trainer.world.size
    of_ranks = f"{n_ranks:,} ranks of " if n_ranks > 1 else ""
    say(
        f"{plan.env_name}: backend {settings.env_backend}, {of_ranks}{of_each}{settings.num_envs:,} environments, "
        f"{trainer.n_iterations:,} iterations of {trainer.steps_per_iteration:,} {_unit_of_steps(trainer)}, "
        f"seed {trainer.seed}"
    )
    if plan.checkpoint is not None:
        say(f"resuming from {plan.checkpoint}, after {trainer.iteration:,} iterations")
    say(f"run folder: {trainer.folder}")
    n_steps, of_all = trainer.n_iterations * trainer.steps_per_iteration, " (all ranks)" if n_ranks > 1 else ""
    for key, end in trainer.config.early_zeros(n_steps).items():
        do = "stretch its points, or lower trainer.num_episodes"
        say(f"{key} is 0 from env step {end:,.0f} to the run's last, {n_steps:,}{of_all}; {do}")


def _unit_of_steps(trainer: Trainer) -> str:
    return "env steps a member" if isinstance(trainer, PopulationTrainer) else "env steps"


def _say_end(trainer: Trainer, plan: Plan, is_stopped: bool) -> None:
    why = "stopped" if is_stopped else "finished"
    if trainer.has_reached_return and not is_stopped:
        names = [] if isinstance(trainer, PopulationTrainer) else trainer.target_returns  # members stop one by one
        means = ", ".join(f"{name} {trainer.recent_return[name]:.4g}" for name in names)
        n_steps, n_last = trainer.recent_steps
        last = f"; that of the line above is over {n_last:,} steps" if n_last < n_steps else ""
        span = f"mean return over the last {n_steps:,} env steps"
        why = "target return reached" + (f" ({span}: {means}{last})" if means else "")
    folder = shlex.quote(str(trainer.folder))
    if isinstance(trainer, PopulationTrainer):
        n_members, least = len(trainer.members), trainer.config.trainer.stop_return
        if trainer.failed:
            say(f"{len(trainer.failed):,} of {n_members:,} members failed")
        if least is not None:
            say(f"{len(trainer.reached_at):,} of {n_members:,} members reached the target return")
    all_of = "" if trainer.is_finished or is_stopped else "the run's "
    steps = f"{trainer.env_steps:,} {_unit_of_steps(trainer)}"
    say(f"{why} after {trainer.iteration:,} of {all_of}{trainer.n_iterations:,} iterations, {steps}; checkpoint saved")
    if is_stopped:
        return  # the stop message shows the resume command
    env = plan.env_option.removeprefix(" -e")
    say(f"  evaluate: {PROGRAM} evaluate {folder}{plan.env_option}")
    say(f"  render:   {PROGRAM} render{env} --policy {folder} --out episode.html")
    say(f"  plot:     python -m {bench_package()} plot {folder}")
    twice = f" --set trainer.num_episodes={2 * trainer.config.trainer.num_episodes}"
    say(f"  resume:   {plan.resume(trainer.folder)}{twice if trainer.iteration == trainer.n_iterations else ''}")


def _say_certificate(certifier: certificate.Certifier) -> None:
    points = certifier.certificate.points
    at = ", ".join(f"{point.iteration:,}" for point in points)
    n_tensors = len(points[-1].tensors)
    say(f"certificate: {certifier.path}, hashes of {n_tensors} tensors after iterations {at}")
    say(f"  verify:   {PROGRAM} verify {shlex.quote(str(certifier.path))}")


def _explain(trainer: Trainer, plan: Plan) -> None:
    if plan.checkpoint is not None:
        saved, header = checkpoint.load(plan.checkpoint)
        here = header.environment | {"ranks": trainer.world.size}  # one process explains a run of several
        trainer.load_state(saved, replace(header, environment=here), plan.checkpoint)
    for policy, choices in trainer.choices.items():
        say(f"policy {policy}:")
        for line in explained(choices):
            say(f"  {line}")
    trainer.graceful_close()


# ------------------------------------------------------------------ trace


def _trace(trainer: Trainer, plan: Plan, file: Path, n_iterations: int, *, is_fused: bool) -> None:
    if plan.checkpoint is not None:
        trainer.load_checkpoint(plan.checkpoint)
    facts = {
        "environment": plan.env_name,
        "kernels": "as in training" if is_fused else "separate (--unfused): slower than in training",
        "paths": {name: list(explained(choices)) for name, choices in trainer.choices.items()},
        "config": trainer.config.to_dict(),
    }
    name = "iteration" if is_fused else "iteration by separate kernels"
    synchronize = trainer.wrapper.backend.synchronize
    content = tracing.trace(trainer.iterate, synchronize, facts, name=name, n_runs=n_iterations)
    write_atomically(file, gzip.compress(content) if file.suffix == ".gz" else content)
    say(f"trace of {n_iterations:,} iterations: {file}; open it at https://ui.perfetto.dev")
    trainer.graceful_close()


# ------------------------------------------------------------------ auto-scale


def _scale(run: RunConfig, make_wrapper: Callable[[int], EnvWrapper]) -> None:
    from rich.table import Table  # noqa: PLC0415  (slow to import)

    scaling = autoscale.auto_scale(
        run,
        make_wrapper,
        on_point=lambda point: say(f"{point.num_envs:,} environments: {point.steps_per_s:,.0f} env steps/s"),
    )
    table = Table(
        "environments", "batch, env steps", "env steps/s", "share of best", "predicted memory", "measured memory"
    )
    for point in scaling.points:
        table.add_row(
            f"{point.num_envs:,}",
            f"{point.train_batch_size:,}",
            f"{point.steps_per_s:,.0f}",
            f"{point.steps_per_s / scaling.best.steps_per_s:.0%}",
            decimal(point.predicted_bytes),
            "" if point.peak_bytes is None else decimal(point.peak_bytes),
        )
    console.print(table)
    say(f"at most {scaling.largest:,} environments fit into {decimal(scaling.free_bytes)} of free memory (predicted)")
    say(f"recommended: {' '.join(f'--set {key}={value}' for key, value in scaling.recommended.items())}")
