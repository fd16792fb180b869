"""`python -m bench peers`: other software, interleaved with ours in one run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from warpdrive_min import BACKENDS
from warpdrive_min.files import require_writable

from ..core.point import Preset, PresetName, matches, point_name, unmet_condition
from ..core.record import PEER_RECORDS, Context, append
from ..options import AtOnce, Resume, Where, bounded, other_presets, resumed_or_new_run_id, say
from ..process.local import start
from ..process.stopping import register_outputs
from ..process.sweep import read_existing
from ..show import documents, render
from .catalogue import PEERS, WORKS, Peer, PeerJob, unfinished
from .sides import Run, measure_each

WIDE: Final = 220
"""Width of the table, characters."""


def peers(
    preset: Annotated[PresetName, typer.Option(help="Points, and time to measure each.")] = PresetName.default,
    peer: Annotated[
        list[str] | None, typer.Option(help="Only this peer, or peers of this package; may be repeated.")
    ] = None,
    where: Where = None,
    python: Annotated[
        list[str] | None, typer.Option(help="NAME=PATH: Python interpreter of a peer's package; may be repeated.")
    ] = None,
    backend: Annotated[
        str | None, typer.Option(help="Our backend; by default the first on the peer's kind of device.")
    ] = None,
    timeout: Annotated[float, typer.Option(callback=bounded(1, 1e6), help="Timeout of a peer's answer, s.")] = 600.0,
    out: Annotated[Path, typer.Option(help="Output folder of the records.")] = PEER_RECORDS,
    resume: Resume = None,
    at_once: AtOnce = 1,
) -> None:
    """Measure other software interleaved with ours, on the same work.

    Exits with 1 if a point failed, with 3 if nothing was measured. Software that is not installed is skipped; a line
    names its installation command.
    """
    if backend is not None and backend not in BACKENDS:
        raise typer.BadParameter(f"--backend {backend}: unknown (known: {', '.join(BACKENDS)})")
    wanted = chosen(preset.value, peer or [], where or [])
    if not wanted:
        say("nothing was measured: no point of a peer passes --peer and --where")
        raise typer.Exit(3)
    require_writable(out, "--out")
    context = Context.here(preset.value, resumed_or_new_run_id(resume, out, preset.value))
    pythons = interpreters(python or [])
    run = Run(context=context, ours=start, pythons=pythons, timeout_s=timeout, backend=backend, say=say)
    file = out / f"{context.run_id}.jsonl"
    comparisons = out / f"{context.run_id}-comparisons.jsonl"
    register_outputs(file, words=("--resume", context.run_id))
    records = read_existing(file)[0]
    todo = unfinished(wanted, records, read_existing(comparisons)[1])
    for index, (job, found, comparison) in enumerate(measure_each(todo, run, at_once), start=1):
        for record in found:
            append(file, record)
        if comparison:
            append(comparisons, comparison)
        records += found
        why = f": {found[0].reason}" if found[0].reason else ""
        say(f"{index}/{len(todo)} {point_name(job.case, job.point)}: {found[0].status}{why}")
    cases = {each.name for each in WORKS.values()}
    of_peers = [record for record in records if record.case in cases]
    documents.show(of_peers, render.console(WIDE))
    say(documents.counts(of_peers))
    say(f"records: {file}")
    statuses = {record.status for record in records}
    if "failed" in statuses:
        raise typer.Exit(1)
    if "ok" not in statuses:
        raise typer.Exit(3)


def _any_has_points(peers: Sequence[Peer], preset: Preset) -> bool:
    return any(each.points(preset) for each in peers)


def chosen(preset: Preset, names: Sequence[str], where: Sequence[str]) -> list[PeerJob]:
    """Return the points of peers, all by default, that pass ``AXIS=VALUE`` conditions.

    Raises:
        BadParameter: A name is no peer and no package.
    """
    known = {*PEERS, *(each.package for each in PEERS.values())}
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"--peer {name}: unknown (known: {', '.join(sorted(known))})")
    wanted = [each for each in PEERS.values() if not names or {each.name, each.package} & set(names)]
    for name in names:
        named = [each for each in wanted if name in (each.name, each.package)]
        if not _any_has_points(named, preset):
            do = other_presets(partial(_any_has_points, named))
            raise typer.BadParameter(f"--peer {name}: preset {preset} has no points of it; {do}")
    found = [PeerJob(each, point) for each in wanted for point in each.points(preset) if matches(point, where)]
    if condition := unmet_condition(where, (each.point for each in found)):
        raise typer.BadParameter(f"{condition}: no point of a peer that passes the other options has it; leave it out")
    return found


def interpreters(given: Sequence[str]) -> dict[str, str]:
    """Return the interpreter of each package; the empty name is the default.

    Raises:
        BadParameter: An option is not NAME=PATH, or the package is unknown.
    """
    packages = sorted({each.package for each in PEERS.values()})
    found = {"": sys.executable}
    for each in given:
        name, _, path = each.partition("=")
        if name not in packages or not path:
            raise typer.BadParameter(f"--python {each}: must be NAME=PATH (names: {', '.join(packages)})")
        found[name] = path
    return found
