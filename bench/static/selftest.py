"""The static gate's test of itself: changes that are planted in a copy of the code, and the same code built anew."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final
from unittest import mock

from warpdrive_min.envs import ENVS
from warpdrive_min.terminal import echo

from ..core.errors import CompareError, NothingMeasured
from ..core.record import Context, Record
from ..judge import planted
from .programs import CORE
from .sides import Taker, Wanted, counted, machine_code
from .verdict import VERDICTS, Row, compared

FLAGS: Final = ("worse", "needs timing")
"""Verdicts that are an alarm."""
SILENT: Final = ("better", "same", "unchanged")
LEAST: Final = 0.05
"""Measured slow-down from which on a change must be flagged."""
REBUILDS: Final = len(ENVS) + len(CORE)
NAMES: Final[Mapping[Taker, tuple[str, ...]]] = {machine_code: (*ENVS, *CORE)}
"""Names that a taker knows; counts are of any."""
WHERE: Final[Mapping[Taker, tuple[str, ...]]] = {machine_code: ("backend=pycuda",)}
"""Conditions on what is looked at: the planted changes are of CUDA C, and of the host."""
CACHE: Final = "WARPDRIVE_MIN_CACHE"
"""Variable of the environment that names the folder of compiled code."""


@dataclass(frozen=True, slots=True)
class Found:
    """Slower changes that were flagged, and what was flagged beside them."""

    caught: int
    n_slower: int
    alarms: int
    n_same: int
    n_built: int

    def holds(self, share: float) -> bool:
        """Return whether such a share of the slower changes is flagged, and nothing else."""
        return self.caught >= share * self.n_slower and not self.alarms

    @property
    def text(self) -> str:
        """All of it in a line."""
        others = f"{self.n_same} changes that cost nothing and {self.n_built} rebuilds"
        return f"{self.caught} of {self.n_slower} slower changes flagged; {self.alarms} alarms in {others}"


def gate_changes(
    slower: Sequence[planted.Change],
    same: Sequence[planted.Change],
    rebuilds: int,
    costs: Mapping[str, planted.Cost],
    threshold: float,
) -> Found:
    """Gate planted changes without a clock, and programs that are built anew; prints a line for each.

    Args:
        slower: Changes that must be flagged; of those that were measured only those that cost `LEAST`.
        same: Changes that must not be.
        rebuilds: Programs that are built in two folders with nothing from before.
        costs: What some changes cost, by their names.
        threshold: That of the gate.

    A change that does not fit, or leaves what cannot be compiled, is neither flagged nor silent.

    Raises:
        NothingMeasured: Nothing can be looked at.
    """
    context = Context.here("default")
    must = [each for each in slower if each.name not in costs or costs[each.name].slower >= LEAST]
    with planted.Copy.of() as copy:
        gate = Gate(copy, context, threshold)
        caught = [_told("slower", each.name, partial(gate.rows, each, is_brief=True)) in FLAGS for each in must]
        wrong = [_told("the same", each.name, partial(gate.rows, each)) not in SILENT for each in same]
    names = list(itertools.islice(itertools.cycle([*ENVS, *CORE]), rebuilds))
    wrong += [_told("built anew", name, partial(rebuilt, name, context, threshold)) not in SILENT for name in names]
    return Found(sum(caught), len(must), sum(wrong), len(same), len(names))


def _told(kind: str, name: str, look: Callable[[], Sequence[Row]]) -> str:
    """Print the most serious row, or what is broken, and return the verdict."""
    try:
        rows = look()
    except CompareError as error:
        echo(f"{kind}: {name}: broken, {error}")
        return "broken"
    if not rows:
        raise NothingMeasured(f"selftest: nothing shows {name!r} here; install what `docs/static.md` names")
    worst = min(rows, key=lambda row: (VERDICTS.index(row.verdict), -row.weight))
    where = "" if worst.verdict == "unchanged" else f", {worst.subject}: {worst.text}"
    echo(f"{kind}: {name}: {worst.verdict}{where}")
    return worst.verdict


class Gate:
    """Judges changes of a copy of the code; what it is without them is looked at once.

    Args:
        copy: The copy.
        context: What the records share.
        threshold: That of the gate.
    """

    def __init__(self, copy: planted.Copy, context: Context, threshold: float) -> None:
        self._copy, self._context, self._threshold = copy, context, threshold
        self._before: dict[tuple[Taker, tuple[str, ...]], list[Record]] = {}

    def rows(self, change: planted.Change, *, is_brief: bool = False) -> list[Row]:
        """Judge all that a change may show in; if brief, machine code that is flagged is enough.

        Raises:
            CompareError: The change does not fit, or what it leaves cannot be compiled.
        """
        rows: list[Row] = []
        for take in (machine_code, counted) if change.is_of_kernels else (counted,):
            place = take, change.programs
            if place not in self._before:
                self._before[place] = _taken(take, change.programs, self._context, self._copy.root)
            with self._copy.changed(change):
                now = _taken(take, change.programs, self._context, self._copy.root)
            found = compared(self._before[place], now, self._threshold)
            if found.failed:
                raise CompareError(f"selftest: {change.name!r} breaks the code: {'; '.join(found.failed)}")
            rows += found.rows
            if is_brief and any(row.verdict in FLAGS for row in rows):
                break
        return rows


def _taken(take: Taker, names: Sequence[str], context: Context, root: Path) -> list[Record]:
    known = [name for name in names if name in NAMES.get(take, names)]
    return take(Wanted(envs=known, where=WHERE.get(take, ())), context, root) if known else []


def rebuilt(name: str, context: Context, threshold: float) -> list[Row]:
    """Build a program's machine code in two folders with nothing from before, and judge the second by the first."""

    def built() -> list[Record]:
        with planted.Copy.of() as copy, _empty_cache():
            return _taken(machine_code, [name], context, copy.root)

    return compared(built(), built(), threshold).rows


@contextmanager
def _empty_cache() -> Iterator[None]:
    """Let nothing be there that was compiled before."""
    with tempfile.TemporaryDirectory(prefix="compiled-") as folder, mock.patch.dict(os.environ, {CACHE: folder}):
        yield
