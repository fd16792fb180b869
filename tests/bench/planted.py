"""Changes to a copy of the code, slower or equally fast.

The static gate must flag the first and ignore the second. The timing gate must find the first.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from bench.core.archive import read_toml
from bench.core.case import Job
from bench.core.errors import CompareError
from bench.core.machine import PACKAGES_OF_CODE, ROOT
from bench.core.point import Preset, conditions, matches
from bench.workloads.cases import CASES
from bench.workloads.shared import EPISODE_LENGTHS

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
"""Programs and cases affected by a kernel of the core, by its file."""
OTHERS: Final = ("cartpole", "tag_continuous", "sampler", "reset", "launch")
"""Programs and cases affected by any other shared file."""
AXES: Final[Mapping[str, str]] = {"backend": "pycuda", "implementation": "ours", "exact": "False"}
"""Default axes of the points at which a change is measured."""


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
    """Case that shows the cost; empty: none."""
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
        """Environment of the changed file; None for shared files."""
        folders = Path(self.file).parent
        return folders.name if folders.parts[0] == "envs" and folders.name != "_common" else None

    @property
    def programs(self) -> tuple[str, ...]:
        """Programs and cases affected by the change."""
        if self.env:
            return (self.env,)
        file = Path(self.file)
        return tuple(EPISODE_LENGTHS) if file.parts[0] == "envs" else PROGRAMS.get(file.name, OTHERS)

    @property
    def is_of_kernels(self) -> bool:
        """True if the change may affect a GPU's machine code."""
        return Path(self.file).suffix in (".cu", ".cuh")

    def job(self, preset: Preset) -> Job:
        """Return the largest point to measure the change at.

        Raises:
            CompareError: There is none.
        """
        case, axes = CASES[self.case], {**AXES, **self.where}
        points = [
            point
            for point in case.points(preset)
            if matches(point, conditions({axis: value for axis, value in axes.items() if axis in point}))
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
    """Copy of the code with one change at a time.

    Args:
        folder: Has the copy.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder.resolve()

    @classmethod
    @contextmanager
    def of(cls, root: Path = ROOT) -> Iterator[Self]:
        """Copy a checkout temporarily.

        Raises CompareError if it is none.
        """
        if not all((root / name).is_dir() for name in PACKAGES_OF_CODE):
            raise CompareError(f"planted changes: need a checkout (got {root}); run them in a clone")
        with tempfile.TemporaryDirectory(prefix="planted-") as folder:
            for name in PACKAGES_OF_CODE:
                shutil.copytree(root / name, Path(folder, name), ignore=shutil.ignore_patterns("__pycache__"))
            yield cls(Path(folder))

    @contextmanager
    def changed(self, change: Change) -> Iterator[None]:
        """Apply a change temporarily.

        Raises CompareError if it does not fit.
        """
        file = self.root / change.file
        before = file.read_text()
        self._write(file, change.applied(before))
        try:
            yield
        finally:
            self._write(file, before)

    def _write(self, file: Path, text: str) -> None:
        """Write a file and delete its bytecode.

        Python dates bytecode to the second.
        """
        file.write_text(text)
        for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            compiled.unlink()
