"""Both sides of a gate that runs nothing: records of the code under a folder, by whatever takes such records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ..core.machine import ROOT, git_state
from ..core.point import passes
from ..core.record import Context, Record, append
from . import instructions
from .command import architectures, taken
from .instructions import INSTRUCTIONS
from .programs import chosen
from .records import MACHINE_CODE


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """Records that are taken, as the options of a command name them."""

    cases: Sequence[str] = ()
    """Names in `TAKERS`; none: all."""
    where: Sequence[str] = ()
    """Conditions on points, as AXIS=VALUE."""
    envs: Sequence[str] = ()
    archs: Sequence[str] = ()
    config: Sequence[str] = ()


def machine_code(wanted: Wanted, context: Context, root: Path) -> list[Record]:
    """Return the records of machine code of the code under a folder."""
    archs = [arch for arch in architectures(wanted.archs) if _may_pass({"arch": arch}, wanted)]
    programs = [
        program
        for program in chosen(wanted.envs, (), None, None, wanted.config)
        if _may_pass({"program": program["name"], "backend": program["backend"]}, wanted)
    ]
    found = taken(programs, archs, context, root) if archs else []
    return [record for record in found if record.status != "ok" or passes(record.point, wanted.where)]


def counted(wanted: Wanted, context: Context, root: Path) -> list[Record]:
    """Return the records of instructions of a CPU, of the code under a folder."""
    conditions = [each for each in wanted.where if each.partition("=")[0] != "kernel"]
    jobs = [job for job in instructions.chosen(wanted.envs) if passes(instructions.point_of(job), conditions)]
    found = instructions.records_of(jobs, context, root)
    return [record for record in found if record.status != "ok" or passes(record.point, wanted.where)]


Taker = Callable[[Wanted, Context, Path], list[Record]]
"""Takes records of scope `static` of the code under a folder."""
TAKERS: Final[Mapping[str, Taker]] = {MACHINE_CODE.name: machine_code, INSTRUCTIONS.name: counted}
"""By case; `verdict.JUDGES` has the rule for each."""


def records_of_side(wanted: Wanted, letter: str, context: Context, file: Path, root: Path = ROOT) -> list[Record]:
    """Take the records of one side, whose run is named after its letter, and keep them in a file."""
    named = replace(context, run_id=f"{context.run_id}-{letter}", git=git_state(root))
    takers = [take for case, take in TAKERS.items() if not wanted.cases or case in wanted.cases]
    with ThreadPoolExecutor(len(takers) or 1) as pool:  # each waits for processes of its own
        records = [record for found in pool.map(lambda take: take(wanted, named, root), takers) for record in found]
    for record in records:
        append(file, record)
    return records


def _may_pass(values: Mapping[str, str], wanted: Wanted) -> bool:
    """Return whether points with these values on their axes may pass the conditions."""
    return passes(values, [each for each in wanted.where if each.partition("=")[0] in values])
