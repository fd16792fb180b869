"""The same training in another process: `determinism`, to the bit."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ...core.errors import Skip
from ...core.machine import visible_cards
from ...core.measure import Once
from ...core.point import HOST, Check, Facts, Measurement, Metric, Point
from ...core.schema import MOST
from ...core.stats import median
from ..setups.starts import ROOT, StartError, run_process, scratch_folder
from ..shared import FP32

if TYPE_CHECKING:
    from warpdrive_min.processes import Child

AGAIN: Final = "again"
BLOCK: Final = "block"
THREADS: Final = "threads"
BUSY: Final = "busy"
CARD: Final = "card"
ON_A_CPU: Final = "host"
VARIATIONS: Final[Mapping[str, str]] = {
    AGAIN: "a new process",
    BLOCK: "blocks of other sizes",
    THREADS: "other CPU threads",
    BUSY: "a busy device",
    CARD: "the second GPU",
    ON_A_CPU: "a CPU",
}
"""Differences between a run and the reference run, besides the process."""
UNTIMED: Final = 2
"""First iterations, which compile and capture."""
PROGRAM: Final = f"{__package__}.program"
OCCUPY: Final = """
import torch
on_gpu = {device!r} == "cuda"
matrix = torch.rand((8192 if on_gpu else 1024,) * 2, device={device!r})
print("busy", flush=True)
while True:
    for _ in range(10):
        matrix @ matrix
    on_gpu and torch.cuda.synchronize()
"""
"""Program that keeps a device busy."""
Digests = Sequence[Mapping[str, str]]
"""Hash of each tensor, or group of tensors, after each iteration; first before any."""


def default_point(point: Point) -> Point:
    """Return a point in the default arithmetic."""
    return {name: value for name, value in point.items() if name not in ("exact", "fused")} | {"precision": FP32}


# ------------------------------------------------------------------ comparison


def first_difference(one: Digests, other: Digests) -> tuple[int, list[str]] | None:
    """Return the first differing iteration, and the names that differ there.

    None: all are equal. A missing iteration or name counts as different.
    """
    for iteration in range(max(len(one), len(other))):
        a, b = (each[iteration] if iteration < len(each) else {} for each in (one, other))
        if names := [name for name in {**a, **b} if a.get(name) != b.get(name)]:
            return iteration, names
    return None


def group_of(name: str) -> str:
    """Return the group of a tensor of a training state, by its name."""
    if name == "env/observations":
        return "observations"
    section, _, *parts = name.split("/")
    if section != "policy":
        return {"env": "environment"}.get(section, section)
    return {"algorithm": "optimiser", "own": "buffers"}.get(parts[0], "weights")


def size_of_difference(one: Any, other: Any) -> dict[str, float]:
    """Return the largest absolute and relative difference of two arrays.

    `MOST` if not finite, of other shapes, or if one is missing (None).
    """
    import numpy as np

    if one is None or other is None or one.shape != other.shape:
        return dict.fromkeys(("absolute", "relative"), MOST)
    a, b = one.astype(np.float64), other.astype(np.float64)
    with np.errstate(invalid="ignore"):  # infinities
        error = np.abs(a - b)
        relative = error / np.maximum(np.maximum(np.abs(a), np.abs(b)), 1e-300)
    sizes = {"absolute": error, "relative": relative}
    return {name: min(float(np.nan_to_num(each, nan=MOST).max()), MOST) for name, each in sizes.items()}


# ------------------------------------------------------------------ set-up


class Run:
    """Finished run of a process: its report and states.

    Args:
        folder: Folder that the process wrote, see `program.play`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        report = json.loads((folder / "report.json").read_text())
        self.digests: list[dict[str, str]] = report.pop("digests")
        self.iteration_s: float = median(report.pop("seconds")[UNTIMED:])
        self.facts: dict[str, Any] = report
        """Blocks, threads, processor and card of the run."""

    def state(self, iteration: int) -> dict[str, Any]:
        """Return the arrays after an iteration."""
        import numpy as np

        return dict(np.load(self._folder / f"{iteration}.npz"))

    def delete(self) -> None:
        """Delete its files, which are large with a replay buffer."""
        shutil.rmtree(self._folder)

    def by_group(self) -> dict[str, list[str]]:
        """Return a short hash of each group of tensors, after each iteration."""

        def short_hash(digests: Mapping[str, str], group: str) -> str:
            text = "".join(digest for name, digest in sorted(digests.items()) if group_of(name) == group)
            return hashlib.sha256(text.encode()).hexdigest()[:16]

        groups = sorted({group_of(name) for name in self.digests[0]})
        return {group: [short_hash(each, group) for each in self.digests] for group in groups}


Play = Callable[[Point, str, Path, Mapping[str, str]], None]
"""Trains a point in a new process, which writes into a folder.

The arguments are the point, the variation, the folder and environment variables."""


class Runs:
    """Runs of a point, each in a new process.

    Args:
        point: The point.
        device: Type of its device.
        play: Trains in a new process.
        default: The point in its default arithmetic, whose speed is the base.
    """

    def __init__(self, point: Point, device: str, play: Play, default: Point) -> None:
        self._point, self._device, self._play, self._default = point, device, play, default
        self._folder = scratch_folder(self, "determinism")
        self._n_runs = 0

    @cached_property
    def reference(self) -> Run:
        """Run without variation."""
        return self._run(self._point)

    def check(self) -> Check:
        """Check that weights still change, and that one flipped bit is noticed."""
        import torch

        from warpdrive_min.training.record.certificate import tensor_hash

        run, last = self.reference, self._point["n_iterations"]
        planted = run.state(last)
        name = next(each for each, array in reversed(planted.items()) if array.size)
        planted[name].reshape(-1).view("u1")[-1] ^= 1
        hashes = {each: tensor_hash(torch.from_numpy(array)) for each, array in planted.items()}
        other = [*run.digests[:-1], hashes]
        noticed, weights = first_difference(run.digests, other), run.by_group()["weights"]
        return Check(
            passed=noticed == (last, [name]) and weights[-1] != weights[-2],
            max_error=0.0,
            oracle="the run itself with one bit flipped",
            detail=f"noticed: {noticed}; weights changed in {len({*weights}) - 1} of {last} iterations",
        )

    def measure(self) -> Measurement:
        """Vary the run, and compare the tensors after each iteration.

        Raises:
            Skip: The variation is not possible here.
            StartError: A process failed, or the variation had no effect on it.
        """
        point, one = self._point, self.reference
        is_timed = point["variation"] == AGAIN and self._default != point
        defaults_s = [self._default_s() for _ in range(2 if is_timed else 0)]  # B A A B: `one` and `other` are B
        other = self._varied()
        difference, notes = found_difference(one, other), dict[str, Any]()
        equal = max(0, difference["iteration"] - 1) if difference else point["n_iterations"]
        metrics = {
            "equal_iterations": Metric.exact(equal, "iterations", "higher"),
            "iteration_s": Metric.exact(one.iteration_s, "s", "lower"),
        }
        if is_timed:
            ratios = sorted(own.iteration_s / default_s for own in (one, other) for default_s in defaults_s)
            metrics["times_default"] = Metric(
                value=median(ratios), unit="x", direction="lower", low=ratios[0], high=ratios[-1]
            )
            notes["speed"] = "medians of two processes of each, in the order B A A B: no benchmark ratio"
        facts = {"digests": one.by_group(), "reference": one.facts, "varied": other.facts}
        return Measurement(metrics=metrics, notes={"difference": difference, **facts, **notes})

    def _default_s(self) -> float:
        """Return the time of an iteration in the default arithmetic, s."""
        run = self._run(self._default)
        run.delete()
        return run.iteration_s

    def _varied(self) -> Run:
        """Run the point's variation."""
        variation, variables = self._point["variation"], dict[str, str]()
        if variation == THREADS:
            variables["OMP_NUM_THREADS"] = str(self.reference.facts["threads"] // 2 or 2)
        if variation == CARD:
            variables["CUDA_VISIBLE_DEVICES"] = second_card()
        on_cpu = {"backend": HOST, "mode": "eager"} if variation == ON_A_CPU else {}
        with occupied(self._device) if variation == BUSY else nullcontext():
            other = self._run({**self._point, **on_cpu}, variation, **variables)
        value = self.reference.facts.get(variation)
        if variation in (BLOCK, THREADS, CARD) and other.facts[variation] == value:
            raise StartError(f"determinism: {variation} must differ between both runs (got {value} twice)")
        return other

    def _run(self, point: Point, variation: str = AGAIN, **variables: str) -> Run:
        folder = self._folder / str(self._n_runs)
        self._n_runs += 1
        folder.mkdir()
        self._play(point, variation, folder, variables)
        return Run(folder)


def play(point: Point, variation: str, folder: Path, variables: Mapping[str, str]) -> None:
    """Train a point of ours in a new process.

    Raises:
        StartError: The process failed.
    """
    import torch

    from warpdrive_min.backends import cache

    program = [sys.executable, "-m", PROGRAM, json.dumps({**point, "variation": variation}), str(folder)]
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    run_process("determinism", program, cache.folder(), ROOT, **{**threads, **variables})


def found_difference(one: Run, other: Run) -> dict[str, Any] | None:
    """Return the first differing iteration and tensor, and by how much."""
    if (difference := first_difference(one.digests, other.digests)) is None:
        return None
    iteration, (name, *more) = difference
    states = [run.state(iteration) for run in (one, other)]
    size = size_of_difference(*(state.get(name) for state in states))
    return {"iteration": iteration, "tensor": name, "n_tensors": 1 + len(more), **size}


def second_card() -> str:
    """Return the id of the second visible GPU; raises Skip without one."""
    cards = visible_cards()
    if len(cards) < 2:
        raise Skip(f"determinism: variation {CARD} needs 2 GPUs (got {len(cards)}); run it on a host with two")
    return cards[1]


@contextmanager
def occupied(device: str) -> Iterator[Child]:
    """Keep a device busy with products of matrices, in another process; yield it.

    Raises:
        StartError: That process ended early.
    """
    from warpdrive_min.processes import Child

    with Child([sys.executable, "-c", OCCUPY.format(device=device)], stdout=-1, encoding="utf-8") as child:
        try:
            assert child.stdout, "it is a pipe"
            if is_busy := child.stdout.readline().strip() == "busy":
                yield child
            if not is_busy or child.poll() is not None:
                raise StartError(f"determinism: the process that keeps {device} busy must not end; run the point again")
        finally:
            child.kill()


def determinism(point: Point) -> Once:
    """Train in two new processes, and compare all tensors of their states."""
    from ..setups.timing import available, torch_threads

    backend = available(point["backend"])
    if point["variation"] == ON_A_CPU:
        available(HOST)
    if point["variation"] == CARD:
        second_card()
    runs = Runs(point, backend.device.type, play, default_point(point))
    return Once(
        run=runs.measure,
        check=runs.check,
        facts=Facts(mode=point["mode"], device=backend.device, threads=torch_threads(backend)),
    )
