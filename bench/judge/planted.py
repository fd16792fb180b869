"""Changes of our own code, planted in a copy of it: those that make it slower, and those that cost nothing.

The static gate must flag the first, and be silent at the second; the timing gate says what they cost.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Self

from warpdrive_min.files import locked, write_atomically

from ..core.case import Job
from ..core.errors import CompareError
from ..core.machine import ROOT
from ..core.point import Preset, conditions, passes, point_name
from ..core.schema import load, read_toml
from ..process.counts import FOLDERS
from ..process.pairs import Kept, Measured, Pair, Side, measure_all, sides_of
from ..process.worker import Worker
from ..workloads.cases import CASES
from ..workloads.shared import EPISODE_LENGTHS
from .evidence import worker

SLOWER: Final = Path(__file__).with_name("planted_slower.toml")
SAME: Final = Path(__file__).with_name("planted_same.toml")
PROGRAMS: Final[Mapping[str, tuple[str, ...]]] = {
    "sample.cu": ("sampling", "sampler", "cartpole"),
    "choice.cuh": ("sampling", "sampler", "cartpole"),
    "noise.cu": ("noise", "pendulum"),
    "scan.cu": ("scanning", "return_scan"),
    "shuffle.cu": ("shuffling", "shuffle"),
    "record.cu": ("cartpole",),
    "reset.cu": ("resetting", "reset"),
}
"""Programs of machine code, and cases, that show a change of a kernel of the core, by its file."""
OTHERS: Final = ("cartpole", "tag_continuous", "sampler", "reset", "launch")
"""Those that show a change of any other file that is of no environment."""
AXES: Final[Mapping[str, str]] = {"backend": "pycuda", "implementation": "ours", "exact": "False"}
"""Values of the points at which a change is measured, unless it says others."""
COSTS: Final = "planted.json"
"""Name of the file of what changes cost, beside the records of their comparisons."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Replaces a text of one file."""

    name: str
    file: str
    """Path from the folder of the code."""
    old: str
    new: str
    everywhere: bool = False
    """Replace it wherever it stands; else it stands once."""
    kind: str = "refactoring"
    case: str = ""
    """Case whose points show what the change costs; empty: it costs nothing."""
    where: Mapping[str, str] = field(default_factory=dict)
    """Values of these points on some axes."""

    def applied(self, text: str) -> str:
        """Return the changed text.

        Raises:
            CompareError: The old text does not stand there, or not once.
        """
        n, wanted = text.count(self.old), "at all" if self.everywhere else "once"
        if n < 1 or (n > 1 and not self.everywhere):
            raise CompareError(
                f"planted change {self.name!r}: {self.file} must have the old text {wanted} (got {n}); write it for "
                "the code as it is now"
            )
        return text.replace(self.old, self.new)

    @property
    def env(self) -> str | None:
        """Environment whose file is changed; None: the file is of several."""
        folders = Path(self.file).parent
        return folders.name if folders.parts[0] == "envs" and folders.name != "_common" else None

    @property
    def programs(self) -> tuple[str, ...]:
        """Environments, kinds of machine code and cases that show the change."""
        if self.env:
            return (self.env,)
        file = Path(self.file)
        return tuple(EPISODE_LENGTHS) if file.parts[0] == "envs" else PROGRAMS.get(file.name, OTHERS)

    @property
    def is_of_kernels(self) -> bool:
        """Say whether the change may be one of a GPU's machine code."""
        return Path(self.file).suffix in (".cu", ".cuh")

    def job(self, preset: Preset) -> Job:
        """Return the largest point at which the change is to be measured.

        Raises:
            CompareError: There is none.
        """
        case, axes = CASES[self.case], {**AXES, **self.where}
        points = [
            point
            for point in case.points(preset)
            if passes(point, conditions({axis: value for axis, value in axes.items() if axis in point}))
            and self.where.keys() <= point.keys()
        ]
        if not points:
            raise CompareError(
                f"planted change {self.name!r}: case {self.case} must have such a point of preset {preset} "
                f"(got {axes}); name another"
            )
        sizes = [math.prod(n for name, n in point.items() if name.startswith("n_")) for point in points]
        return Job(case, points[sizes.index(max(sizes))])


def read(file: Path) -> list[Change]:
    """Return the changes of a file."""
    return [Change(**each) for each in read_toml(file)["change"]]


class Copy:
    """A copy of the code, in which one thing at a time is changed.

    Args:
        folder: Has the copy.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder.resolve()

    @classmethod
    @contextmanager
    def of(cls, root: Path = ROOT) -> Iterator[Self]:
        """Lend a copy of the code under a folder; raises CompareError where that is no checkout."""
        if not all((root / name).is_dir() for name in FOLDERS):
            raise CompareError(f"planted changes: need a checkout (got {root}); run them in a clone")
        with tempfile.TemporaryDirectory(prefix="planted-") as folder:
            for name in FOLDERS:
                shutil.copytree(root / name, Path(folder, name), ignore=shutil.ignore_patterns("__pycache__"))
            yield cls(Path(folder))

    @contextmanager
    def changed(self, change: Change) -> Iterator[None]:
        """Let the copy have a change meanwhile; raises CompareError where it does not fit."""
        file = self.root / change.file
        before = file.read_text()
        self._write(file, change.applied(before))
        try:
            yield
        finally:
            self._write(file, before)

    def _write(self, file: Path, text: str) -> None:
        """Write a file, and forget what Python has made of it: it would take a file of that second for the same."""
        file.write_text(text)
        for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            compiled.unlink()


def measured(
    changes: Sequence[Change], preset: Preset, run_id: str, kept: Kept, at_once: int = 1
) -> Iterator[tuple[Change, Measured]]:
    """Measure what changes cost: the code as it is in turns with its copy that has the change.

    Args:
        changes: Each with a case.
        preset: How much is measured.
        run_id: Run of the records; those of a change have its place in their names.
        kept: Files of the records; what they have is not measured again.
        at_once: Most changes that have a copy at the same time, and rounds of them that are set up together.
    """
    with ExitStack() as lent:
        copies = [lent.enter_context(Copy.of()) for _ in range(min(at_once, len(changes)))]
        for first in range(0, len(changes), at_once):
            batch = changes[first : first + at_once]
            todo = []
            with ExitStack() as changed:
                for index, (change, copy) in enumerate(zip(batch, copies, strict=False), start=first):
                    changed.enter_context(copy.changed(change))
                    job, starts = change.job(preset), (partial(Worker.on, ROOT), partial(Worker.on, copy.root))
                    todo.append(sides_of(f"{run_id}-{index:02}", job.case, (job.point, job.point), starts))
                seen = measure_all(todo, preset, kept=kept, at_once=at_once)
            for change, (a, _) in zip(batch, todo, strict=True):
                yield change, _of(a, seen)


def _of(a: Side, seen: Measured) -> Measured:
    """Return what is of one side's run: its pair, else what is said of its point."""
    pairs = [pair for pair in seen.pairs if pair.a.run_id == a.run_id]
    name = point_name(a.case.name, a.point)
    skipped, failed = ([text for text in texts if text.startswith(name)] for texts in (seen.skipped, seen.failed))
    return Measured(pairs, *([], []) if pairs else (skipped, failed))


# ------------------------------------------------------------------ what they cost


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Slow-down by a change, measured by the clock: a share, with its 95 % interval."""

    change: str
    point: str
    on: str
    """Hardware that did the work."""
    slower: float
    low: float
    high: float
    run_id: str

    @classmethod
    def of(cls, change: Change, pair: Pair, run_id: str) -> Self:
        """Return the cost that a pair shows."""
        ratio = pair.ratio
        return cls(
            change=change.name,
            point=point_name(pair.b.case, pair.b.point),
            on=worker(pair.b),
            slower=ratio.value - 1,
            low=ratio.low - 1,
            high=ratio.high - 1,
            run_id=run_id,
        )


def costs(file: Path) -> dict[str, Cost]:
    """Return what a file has of costs, by the name of the change; none where there is no file."""
    return {each.change: each for each in load(file, list[Cost])} if file.exists() else {}


def keep(found: Mapping[str, Cost], file: Path) -> None:
    """Put costs into a file, in place of older ones of the same changes; it is replaced whole."""
    with locked(file.parent):
        both = {**costs(file), **found}
        write_atomically(file, json.dumps([asdict(cost) for cost in both.values()], indent=1) + "\n")
