"""`python -m bench static`: cost of each kernel's machine code, without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from warpdrive_min.files import require_writable
from warpdrive_min.terminal import echo

from ..core.errors import Code
from ..core.record import RESULTS, Context, append
from ..options import MOST_COUNT, Archs
from ..process import callgrind as counts
from ..show import render
from ..workloads.outside import config_of
from .programs import BACKENDS, chosen
from .records import INSTRUCTIONS, TABLES
from .sides import Work, architectures, compile_programs, count_instructions, counted_jobs, print_size

STATIC: Final = RESULTS / "static"
WIDE: Final = 200
HOST: Final = counts.BACKEND
"""Backend whose instructions are counted; only if named."""


def static(
    env: Annotated[
        list[str] | None,
        typer.Option(help="Only this environment, part of the core, or module:Class; may be repeated."),
    ] = None,
    backend: Annotated[
        list[str] | None, typer.Option(help=f"Only {', '.join(BACKENDS)} or {HOST}; by default the first two.")
    ] = None,
    arch: Archs = None,
    n_envs: Annotated[int | None, typer.Option(min=1, max=MOST_COUNT, help="Number of environments.")] = None,
    n_agents: Annotated[
        int | None, typer.Option(min=1, max=MOST_COUNT, help="Number of agents, where an environment lets you choose.")
    ] = None,
    config: Annotated[list[str] | None, typer.Option(help="Argument of a user's environment, as KEY=VALUE.")] = None,
    out: Annotated[Path, typer.Option(help="Output folder of the records.")] = STATIC,
) -> None:
    """Compile every kernel as launched, and record and show its machine code's cost.

    Exits with 1 if a kernel could not be compiled or read, with 5 if an option is wrong.
    """
    require_writable(out, "--out")
    on_gpu = [name for name in backend or [] if name != HOST]
    own = config_of(config or ())
    programs = chosen(env or [], on_gpu, n_envs, n_agents, own) if on_gpu or not backend else []
    context = Context.here("default")
    archs = architectures(arch) if programs else []
    print_size(Work(programs=programs, archs=archs))
    records = compile_programs(programs, archs, context)
    if HOST in (backend or []):
        records += count_instructions(counted_jobs(env or []), context)
    file = out / f"{context.run_id}.jsonl"
    for record in records:
        append(file, record)
    console = render.console(WIDE)
    for case, show in TABLES.items():
        if of_case := [record for record in records if record.case == case and record.is_evidence]:
            console.print(render.terminal(show(of_case)))
    for record in records:
        if record.case == INSTRUCTIONS.name and record.reason:
            echo(f"{record.status}: {record.reason}", err=True)
    echo(f"records: {file}")
    if any(record.status == "failed" for record in records):
        raise typer.Exit(Code.FAILED)
