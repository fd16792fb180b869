"""`python -m bench static`: what every kernel costs, as far as its machine code says, on a machine without a GPU."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from warpdrive_min.files import require_writable
from warpdrive_min.terminal import echo

from ..core.errors import CompareError, exiting
from ..core.machine import ROOT
from ..core.record import RESULTS, Context, Record, append
from ..process import counts
from ..show import render
from ..show.columns import MakeTable
from . import instructions
from . import records as machine_code
from .capability import CAPABILITIES
from .instructions import INSTRUCTIONS
from .programs import BACKENDS, Program, chosen
from .records import MACHINE_CODE, records_of

STATIC: Final = RESULTS / "static"
WIDE: Final = 200
ARCHITECTURES: Final = ("90",)
HOST: Final = counts.BACKEND
"""Backend whose instructions are counted; it is not among those that are looked at where none is named."""
TABLES: Final[Mapping[str, MakeTable]] = {
    MACHINE_CODE.name: machine_code.table_of,
    INSTRUCTIONS.name: instructions.table_of,
}
"""By the case of the records."""
Archs = Annotated[list[str] | None, typer.Option(help="GPU architectures, as 90 or sm_90; may be given several times.")]


def static(
    env: Annotated[list[str] | None, typer.Option(help="Environment, part of the core, or module:Class.")] = None,
    backend: Annotated[
        list[str] | None, typer.Option(help=f"Of {', '.join(BACKENDS)}, {counts.BACKEND}; else the first two.")
    ] = None,
    arch: Archs = None,
    n_envs: Annotated[int | None, typer.Option(min=1, max=2**31 - 1, help="Number of environments.")] = None,
    n_agents: Annotated[
        int | None, typer.Option(min=1, max=2**31 - 1, help="Agents, where that can be chosen.")
    ] = None,
    config: Annotated[list[str] | None, typer.Option(help="Argument of a user's environment, as KEY=VALUE.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the records.")] = STATIC,
) -> None:
    """Compile every kernel as it would be launched, read its machine code, record it, and show a table.

    Exits with 1 if a kernel could not be compiled or read, with 5 if an option is wrong.
    """
    require_writable(out, "--out")
    on_gpu = [name for name in backend or [] if name != HOST]
    with exiting(5, CompareError, to_stderr=True):
        programs = chosen(env or [], on_gpu, n_envs, n_agents, config or ()) if on_gpu or not backend else []
        context = Context.here("default")
        records = taken(programs, architectures(arch), context) if programs else []
        if HOST in (backend or []):
            records += instructions.records_of(instructions.chosen(env or []), context)
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
        raise typer.Exit(1)


def architectures(given: Sequence[str] | None) -> list[str]:
    """Return architectures as compilers name them; raises CompareError of one that is not known here."""
    names = [each if each.startswith("sm_") else f"sm_{each}" for each in given or ARCHITECTURES]
    for name in names:
        if name not in CAPABILITIES:
            raise CompareError(f"--arch: must be one of {', '.join(CAPABILITIES)} (got {name}); give one of these")
    return names


def taken(programs: Sequence[Program], archs: Sequence[str], context: Context, root: Path = ROOT) -> list[Record]:
    """Return the records of programs, of the code under a folder; prints a line for each program, and what failed."""
    records: list[Record] = []
    start = time.monotonic()
    for index, found in enumerate(records_of(programs, archs, context, root), start=1):
        records += found
        program = programs[index - 1]
        echo(
            f"{index}/{len(programs)} {program['name']} on {program['backend']}: "
            f"{sum(record.status == 'ok' for record in found)} kernels, {time.monotonic() - start:.0f} s",
            err=True,
        )
        for reason in dict.fromkeys(record.reason for record in found if record.reason):
            echo(f"  {found[0].status}: {reason}", err=True)
    return records
