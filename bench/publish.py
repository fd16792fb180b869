"""`python -m bench publish`: create or resume a commit's set of records.

Doctor, sweep, pairs, peers, figures, tables and manifest go to results/sets/KIND-SHA/. Documents are made from that
folder.
"""

from __future__ import annotations

import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer

from warpdrive_min.files import require_writable, write_atomically
from warpdrive_min.processes import Child

from . import doctor
from .core import machine
from .core.archive import with_archived
from .core.case import Job
from .core.errors import Code
from .core.groups import groups_of
from .core.point import Preset, PresetName, command_line, matches, point_name
from .core.record import ALONE, Comparison, Context, Record, append
from .judge.evidence import Key, key, name_of, point_key
from .judge.published.ledger import is_claimed
from .options import AtOnce, CaseNames, Where, bounded, require_known, require_met, say
from .peers import search, sides
from .peers.catalogue import PeerJob, unfinished
from .peers.command import chosen, interpreters
from .process.interleaved import measure_rounds
from .process.local import is_on_gpu, run_points, start
from .process.rounds import Side
from .process.stopping import register_outputs
from .process.sweep import in_processes, missing, read_existing, run
from .process.worker import WorkerError
from .show import documents, plots, sets
from .show.sets import COMPARISONS, RECORDS, Manifest
from .workloads.cases import CASES, jobs
from .workloads.shared import availability

_T = TypeVar("_T")
PROCESSES: Final[dict[Preset, int]] = {"smoke": 1, "default": 1, "full": 1, "paper": 5}
"""Default number of processes of each timed point."""


MOST_WAIT_S: Final = 180.0
"""Longest wait for the load of other programs to fall, s."""
WAIT_S: Final = 10.0


class RefusedError(ValueError):
    """Figures from this machine or checkout cannot be published."""


class TimeIsUp(Exception):  # noqa: N818  (an outcome, not a mistake)
    """The next step may not end in time."""


@dataclass(slots=True)
class Clock:
    """Deadline that assumes measurements as long as the longest so far."""

    until_s: float | None
    start: float = field(default_factory=time.monotonic)
    longest_s: float = 0.0
    last: float = field(default_factory=time.monotonic)

    def tick(self) -> None:
        """End saved measurements; raises TimeIsUp if others may take too long."""
        now = time.monotonic()
        self.longest_s, self.last = max(self.longest_s, now - self.last), now
        if not self.has(self.longest_s):
            raise TimeIsUp(f"the next measurement may take {self.longest_s:.0f} s")

    @property
    def left_s(self) -> float:
        """Time until the deadline, s."""
        return math.inf if self.until_s is None else self.until_s - (time.monotonic() - self.start)

    def has(self, seconds: float) -> bool:
        """True if the deadline is at least that far away."""
        return seconds <= self.left_s


@dataclass(frozen=True, slots=True)
class Publication:
    """Set in progress."""

    folder: Path
    context: Context
    clock: Clock
    points: Sequence[str]
    """AXIS=VALUE conditions, with ``case`` as an axis; empty: all of the preset."""
    peers: Sequence[str]
    """Peers or packages; empty: all."""
    pythons: Sequence[str]
    shard: tuple[int, int] = (1, 1)
    """Index, from 1, and number of shards."""
    at_once: int = 1
    """Maximum number of points that are set up at once."""
    processes: int = 1
    """Number of processes that measure each timed point."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Skipped pairs and steps, with the reason."""
    failed: dict[str, str] = field(default_factory=dict)
    """Failed pairs, with the reason."""

    def jobs(self) -> list[Job]:
        """Return this shard's points of available backends, a job for each process.

        Shards on GPUs leave some points to the call without a shard: those on the CPU, which they would disturb, and
        those of several cards. A case's points of one environment are in one shard, as only rates of one card are
        compared.
        """
        states = availability()
        wanted = jobs(self.context.preset, self.points)
        here = [job for job in wanted if states[str(job.point["backend"])].available]
        if self.is_shard and self.context.machine.get("gpu"):
            here = [job for job in here if is_on_gpu(job) and not takes_several_cards(job)]
        compared = groups_of(here, lambda job: (job.case.name, job.point.get("env"))).values()
        by_size = sorted(compared, key=len, reverse=True)
        return in_processes([job for group in self.of_shard(by_size) for job in group], self.processes)

    def records(self) -> list[Record]:
        """Return all records so far."""
        return read_existing(self.folder / RECORDS)[0]

    def comparisons(self) -> list[Comparison]:
        """Return all comparisons so far."""
        return read_existing(self.folder / COMPARISONS)[1]

    @property
    def searches(self) -> list[Path]:
        """Files of this kind of machine's searches: to append to, and published."""
        name = f"{machine.kind(self.context.machine)}.jsonl"
        published = [folder / name for folder in with_archived(search.SEARCHES)]
        return [self.folder.parent.parent / search.SEARCHES.name / name, *published]

    @property
    def is_shard(self) -> bool:
        """True if the call measures only a part of the set."""
        return self.shard[1] > 1

    def of_shard(self, work: Iterable[_T]) -> list[_T]:
        """Return this shard's part of all points or pairs."""
        number, count = self.shard
        return list(work)[number - 1 :: count]

    def compared(self) -> set[tuple[Key, Key]]:
        """Return the pairs of points with a comparison."""
        keys = {record.id: key(record) for record in self.records()}
        return {(keys[each.a], keys[each.b]) for each in self.comparisons() if {each.a, each.b} <= keys.keys()}

    def add(self, records: Sequence[Record], comparison: Comparison | None = None) -> None:
        """Append records, then their comparison."""
        for record in records:
            append(self.folder / RECORDS, record)
        if comparison:
            append(self.folder / COMPARISONS, comparison)


def publish(
    preset: Annotated[PresetName, typer.Option(help="Points, and time to measure each.")] = PresetName.paper,
    until_s: Annotated[
        float | None,
        typer.Option(
            callback=bounded(0, 1e9), help="Stop cleanly before this many seconds; the same command continues."
        ),
    ] = None,
    skip: Annotated[list[str] | None, typer.Option(help="Step to skip; the manifest lists it.")] = None,
    case: CaseNames = None,
    where: Where = None,
    peer: Annotated[list[str] | None, typer.Option(help="Only this peer; may be repeated.")] = None,
    shards: Annotated[
        int,
        typer.Option(min=1, max=64, help="Parts that are measured at once, each on a GPU and a share of the cores."),
    ] = 1,
    shard: Annotated[
        str, typer.Option(help="K/N: measure only every Nth point, from the Kth on; 0/N: what shards leave.")
    ] = "1/1",
    at_once: AtOnce = 1,
    processes: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="New processes that measure each timed point; in preset paper 5."),
    ] = None,
    python: Annotated[
        list[str] | None, typer.Option(help="NAME=PATH: Python interpreter of a peer's package; may be repeated.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Output folder of the sets.")] = sets.SETS,
) -> None:
    """Make or continue this commit's set on this kind of machine.

    It has records, figures, tables and a manifest. On several GPUs, ``--shards`` measures parts of it at once, and
    then the points that need all GPUs or the CPU. Exits with 1 if a point failed, with 3 if nothing can be published
    from here, with 4 if there is more to do.
    """
    clock, pythons, left_out = Clock(until_s), python or [], skip or []
    require_known(where or [])
    require_writable(out, "--out")
    points, peers = [*(f"case={name}" for name in case or ()), *(where or ())], peer or []
    require_met(points, jobs(preset.value, points))
    chosen(preset.value, peers, [])
    interpreters(pythons)
    if unknown := set(left_out) - set(STEPS):
        raise typer.BadParameter(f"--skip {', '.join(sorted(unknown))}: unknown (known: {', '.join(STEPS)})")
    n_processes = processes or PROCESSES[preset.value]
    options = {"skip": left_out, "case": case or [], "where": where or [], "peer": peers}
    options |= {"processes": [str(processes)] if processes else [], "shards": [str(shards)] if shards > 1 else []}
    command = command_line("publish", preset=preset.value, **options)
    words, part = [*points, *(f"peer={name}" for name in peers)], _shard(shard)
    try:
        if shards > 1 and shard == "1/1":
            more = {"at_once": str(at_once), "python": pythons, "out": str(out)}
            code = run_shards(shards, command_line("publish", preset=preset.value, **options, **more), clock)
            raise typer.Exit(code)
        folder, context, manifest = begin(preset.value, words, command, out, n_processes, clock)
        publication = Publication(folder, context, clock, points, peers, pythons, part, at_once, n_processes)
        if manifest.is_whole:
            say(f"{publication.folder} was finished at {manifest.finished_at}")
            return
        manifest = manifest.model_copy(update={"finished_at": None})
        manifest.write(publication.folder)
        register_outputs(publication.folder / RECORDS, folders=[publication.folder / "figures"])
        publication.skipped.update({f"step {name}": "left out by --skip" for name in left_out})
        for name, step in (STEPS_OF_SHARDS if publication.is_shard else STEPS).items():
            for line in step(publication) if name not in left_out else ():
                say(f"{time.monotonic() - clock.start:5.0f} s  {name}: {line}")
    except (RefusedError, sets.SetError) as error:
        say(str(error))
        raise typer.Exit(Code.NOTHING) from error
    except TimeIsUp as error:
        say(f"stopped: {error}; `{command}` continues")
        raise typer.Exit(Code.UNFINISHED) from error
    if publication.is_shard:
        say(f"shard {shard} is measured; `{command}` continues")
        raise typer.Exit(Code.UNFINISHED)
    manifest = finish(publication, manifest)
    say(f"{publication.folder}: {len(manifest.files)} files, {len(manifest.skipped)} points and steps skipped")
    for name, reason in manifest.failed.items():
        say(f"failed: {name}: {reason}")
    raise typer.Exit(int(bool(manifest.failed)))


# ------------------------------------------------------------------ beginning and end


def run_shards(n: int, command: str, clock: Clock) -> int:
    """Run all shards at once, and then the rest of the set; return its exit code.

    Each runs on a GPU and a share of the cores, the rest on the cores of the first share and on all GPUs. Waits.

    Raises:
        RefusedError: There are fewer GPUs, the cores cannot be shared equally, or a shard was refused.
        TimeIsUp: The shards took all the time.
    """
    cards, own = machine.visible_cards(), sorted(os.sched_getaffinity(0))
    if len(cards) < n or len(own) % n:
        rule = "needs as many GPUs, and cores that can be shared equally"
        raise RefusedError(f"publish --shards {n}: {rule} (got {len(cards)} and {len(own)}); choose another number")

    def start(k: int, **variables: str) -> Child:
        until = [] if clock.until_s is None else ["--until-s", f"{max(clock.left_s, 0):.3f}"]
        first = max(k - 1, 0) * len(own) // n
        os.sched_setaffinity(0, own[first : first + len(own) // n])  # the child inherits them
        words = [sys.executable, *shlex.split(command)[1:], *until, "--shard", f"{k}/{n}"]
        return Child(words, env={**os.environ, **variables})

    children = [start(k, CUDA_VISIBLE_DEVICES=cards[k - 1]) for k in range(1, n + 1)]
    codes = [child.wait() for child in children]
    for k, code in enumerate(codes, start=1):
        if code not in (0, Code.UNFINISHED):
            raise RefusedError(f"publish: shard {k}/{n} has failed (exit code {code}); its last lines have the reason")
    if not clock.has(0):
        raise TimeIsUp("the shards took all the time")
    return start(0).wait()


def begin(
    preset: Preset, words: Sequence[str], command: str, out: Path, processes: int, clock: Clock
) -> tuple[Path, Context, Manifest]:
    """Start or continue a set; return its folder, context and manifest.

    Raises:
        RefusedError: There are changes, the doctor finds a problem, or the set was started with other options.
        SetError: Its manifest breaks the schema.
        TimeIsUp: The load of other programs has not fallen in time.
    """
    context = Context.here(preset)
    commit = context.git["sha"]
    if commit is None:
        why = context.git.get("unread", "git knows none")
        raise RefusedError(f"publish: needs a commit ({why}); run it in a checkout, or set $BENCH_GIT_SHA")
    if context.git["dirty"]:
        raise RefusedError("publish: needs a checkout without changes (got uncommitted ones); commit or stash them")
    kind = machine.kind(context.machine)
    folder = out / f"{kind}-{commit[:7]}"
    manifest = sets.read_manifest(folder)
    if problems := _problems(clock, continues=manifest is not None):
        lines = [f"  {finding.topic}: {finding.says}; {finding.do}" for finding in problems]
        raise RefusedError("\n".join(["publish: `python -m bench doctor` must find no problem (got these)", *lines]))
    if manifest is None:
        manifest = Manifest(
            commit=commit,
            command=command,
            preset=preset,
            processes=processes,
            chosen=list(words),
            run_id=folder.name,  # shards that start at once agree on it
            kind=kind,
            machine=dict(context.machine),
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
    for what, was, got in (
        ("preset {}", manifest.preset, preset),
        ("{} processes of each point", manifest.processes, processes),
        ("{}", " ".join(manifest.chosen) or "all points", " ".join(words) or "all points"),
    ):
        if was != got:
            raise RefusedError(f"publish: {folder} has {what.format(was)} (got {got}); run `{manifest.command}`")
    if differ := machine.difference_texts(machine.differences(manifest.machine, context.machine)):
        raise RefusedError(f"publish: {folder} was started on another machine ({'; '.join(differ)}); continue it there")
    return folder, Context.here(preset, manifest.run_id), manifest


def _problems(clock: Clock, *, continues: bool) -> list[doctor.Finding]:
    """Return the doctor's problems, after waiting for a lower load.

    A set that continues ignores the load, as its records say if others worked.
    """
    end = time.monotonic() + MOST_WAIT_S
    while True:
        problems = [finding for finding in doctor.examine() if finding.level == "problem"]
        if continues:
            return [finding for finding in problems if finding.topic != "load"]
        if {finding.topic for finding in problems} != {"load"} or time.monotonic() > end:
            return problems
        if not clock.has(WAIT_S):
            raise TimeIsUp(f"the load must fall first ({problems[0].says})")
        say(f"waiting for the load to fall: {problems[0].says}")
        time.sleep(WAIT_S)


def _shard(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    if number.isdecimal() and count.isdecimal() and int(number) <= int(count) > 0:
        return (int(number), int(count)) if int(number) else (1, 1)
    raise typer.BadParameter(f"--shard {text}: must be K/N with K from 0 to N, e.g. 1/2")


def finish(publication: Publication, manifest: Manifest) -> Manifest:
    """Write and return the manifest of a set whose steps are done."""
    file = publication.folder / RECORDS
    lacking = {point_key(job.case.name, job.point) for job in missing(publication.jobs(), file)}
    by_point = groups_of(publication.records(), lambda record: (key(record), record.taken))
    records = [
        next((each for each in reversed(found) if each.status != "ok" and taken == ALONE and of in lacking), found[-1])
        for (of, taken), found in by_point.items()
    ]
    absent = {f"backend {name}": str(state) for name, state in availability().items() if not state.available}
    cards = {str(record.machine.get("gpu_uuid_hash")) for record in records if record.machine.get("gpu_uuid_hash")}
    outcomes = {
        status: {name_of(each): search.failure_reason(each, records) for each in records if each.status == status}
        for status in ("skipped", "failed")
    }
    finished = manifest.model_copy(
        update={
            "cards": sorted(cards),
            "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "skipped": absent | outcomes["skipped"] | publication.skipped,
            "failed": outcomes["failed"] | publication.failed,
        }
    )
    sets.write_crate(publication.folder, finished)
    finished = finished.model_copy(update={"files": sets.hashes(publication.folder)})
    finished.write(publication.folder)
    return finished


# ------------------------------------------------------------------ steps


def run_sweep(publication: Publication) -> Iterator[str]:
    """Measure available points without evidence."""
    file = publication.folder / RECORDS
    runner = partial(run_points, at_once=publication.at_once, in_new_processes=publication.processes > 1)
    todo = publication.jobs()
    n = len(missing(todo, file))
    for index, record in enumerate(run(todo, publication.context, file, runner), start=1):
        yield f"{index}/{n} {name_of(record)}: {record.status}"
        publication.clock.tick()


def run_pairs(publication: Publication) -> Iterator[str]:
    """Measure available pairs without a comparison, interleaved on one card.

    Presets below full measure only pairs with a claim: a pair has rounds of two new processes and takes a minute on a
    GPU.
    """
    preset, run_id = publication.context.preset, publication.context.run_id
    states, done = availability(), publication.compared()
    side = partial(Side, start=start, run_id=run_id)
    pairs = [
        (side(case=case, point=base), side(case=case, point=other))
        for case in CASES.values()
        for base, other in case.pairs(preset)
        if preset == "full" or is_claimed(case.name, base, other)
        if all(matches({"case": case.name, **point}, publication.points) for point in (base, other))
        if all(states[str(point["backend"])].available for point in (base, other))
    ]
    todo = [
        sides
        for sides in publication.of_shard(pairs)
        if tuple(point_key(side.case.name, side.point) for side in sides) not in done
    ]
    measured = measure_rounds(todo, preset, publication.at_once, say, after_batch=publication.clock.tick)
    for index, (place, got) in enumerate(measured, start=1):
        name = " : ".join(point_name(side.case.name, side.point) for side in todo[place])
        if isinstance(got, WorkerError):
            reasons = publication.skipped if got.kind == "Skip" else publication.failed
            reasons[f"pair {name}"] = str(got)
            yield f"{index}/{len(todo)} {name}: {got}"
        else:
            publication.add([got.a, got.b], got.comparison)
            yield f"{index}/{len(todo)} {name}: the second takes {got.ratio.value:.3f} x the time of the first"


def run_search(publication: Publication) -> Iterator[str]:
    """Measure variants of peers that no search of their versions has."""
    wanted, run = _peers(publication)
    file, *_ = publication.searches
    for of_peer in by_peer(wanted):
        for job, records, comparison in search.search(of_peer, run, publication.searches, publication.at_once):
            if records[0].status != "skipped":
                for each in [*records, comparison] if comparison else records:
                    append(file, each)
            yield f"{point_name(job.case, job.point)}: {records[0].status}"


def run_peers(publication: Publication) -> Iterator[str]:
    """Measure points of peers without evidence, interleaved with ours.

    After failed checks another pass measures the next fastest variants. Unsearched points are skipped.
    """
    wanted, run = _peers(publication)
    tried: list[PeerJob] = []
    if "step search" in publication.skipped:  # after a search, what has none cannot be measured, and says why
        tried += _skip_unsearched(publication, wanted, run)
    while todo := [job for job in _unfinished_peers(publication, wanted, run) if job not in tried]:
        tried += todo
        measured = (each for of_peer in by_peer(todo) for each in sides.measure_each(of_peer, run, publication.at_once))
        for index, (job, records, comparison) in enumerate(measured, start=1):
            name = point_name(job.case, job.point)
            if search.is_untested(job, records[0], wanted, run, publication.searches):
                publication.skipped[name] = UNSEARCHED
                yield f"{index}/{len(todo)} {name}: skipped: {UNSEARCHED}"
                continue
            theirs = search.if_not_slowed(job, records[0], run, publication.searches)
            is_kept = theirs is records[0]
            publication.add(records if is_kept else [theirs], comparison if is_kept else None)
            yield f"{index}/{len(todo)} {name}: {theirs.status}"


def _skip_unsearched(publication: Publication, wanted: Sequence[PeerJob], run: sides.Run) -> list[PeerJob]:
    """Return all variants of points without a search.

    The manifest lists those without evidence.
    """
    found = search.unsearched(wanted, run, publication.searches)
    measured = {key(record) for record in publication.records() if record.is_evidence}
    for group in found:
        if not measured & {point_key(job.case, job.point) for job in group}:
            publication.skipped[point_name(group[0].case, group[0].point)] = UNSEARCHED
    return [job for group in found for job in group]


def _unfinished_peers(publication: Publication, wanted: Sequence[PeerJob], run: sides.Run) -> list[PeerJob]:
    """Return the points of peers that the set's records still lack."""
    records = publication.records()
    chosen = search.after_search(wanted, run, publication.searches, records)
    return unfinished(chosen, records, publication.comparisons())


def by_peer(wanted: Sequence[PeerJob]) -> list[list[PeerJob]]:
    """Return the points of each peer, which are measured peer by peer."""
    return list(groups_of(wanted, lambda job: job.peer.name).values())


def _peers(publication: Publication) -> tuple[list[PeerJob], sides.Run]:
    """Return this shard's points of the selected peers, and how they run."""
    wanted = chosen(publication.context.preset, publication.peers, [])
    here = [job for group in publication.of_shard(search.groups(wanted)) for job in group]
    pythons = interpreters(publication.pythons)
    run = sides.Run(
        context=publication.context,
        ours=start,
        pythons=pythons,
        timeout_s=PEER_TIMEOUT_S,
        say=say,
        after_batch=publication.clock.tick,
    )
    return here, run


UNSEARCHED: Final = (
    "its version's settings are not searched on this kind of machine; run without `--skip search`, and remove records "
    "of a search in which all failed"
)
"""Reason to skip a peer's point."""
PEER_TIMEOUT_S: Final = 600.0
"""Timeout of a peer's answer, s."""


def draw_figures(publication: Publication) -> Iterator[str]:
    """Draw the figures."""
    evidence = [record for record in publication.records() if record.is_evidence]
    paths = plots.draw(evidence, publication.folder / "figures", stem=machine.kind(publication.context.machine))
    yield f"{len(paths)} files"


def write_tables(publication: Publication) -> Iterator[str]:
    """Write the tables of all cases."""
    write_atomically(publication.folder / "tables.md", documents.markdown(publication.records()) + "\n")
    yield "tables.md"


def takes_several_cards(job: Job) -> bool:
    """True if a point uses more than one card, if there are more."""
    return job.case.name == "scaling" or job.point.get("variation") == "card"


Steps = dict[str, Callable[[Publication], Iterator[str]]]
STEPS_OF_SHARDS: Final[Steps] = {"sweep": run_sweep, "pairs": run_pairs, "search": run_search, "peers": run_peers}
STEPS: Final[Steps] = {**STEPS_OF_SHARDS, "figures": draw_figures, "tables": write_tables}
"""Steps in order; each yields a line per finished piece of work."""
