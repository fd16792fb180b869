"""What `scaling` does in each of its ranks: ``python -m bench.cases.rank JSON FILE``, started by torchrun.

JSON says the point, how much is measured, and how many threads of the CPU a rank has; the first rank writes to FILE.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from pydantic import TypeAdapter
from torch import distributed

from bench.case import Check, Facts, Point
from bench.cases.train_case import SPLIT_OVER, iterate, settings, twins
from bench.cases.training import WatchedTrainer, after_the_timing
from bench.measure import Plan, Stopwatch, Timed, Timer, stopwatch_for
from bench.record import Measurement
from warpdrive_min.training.distributed import joined
from warpdrive_min.training.ranks import World, as_bytes


def main(task: str, file: str) -> None:
    """Train as a rank, and if it is the first one write what all have come to."""
    asked = json.loads(task)
    with joined(asked["point"]["backend"]) as world:
        torch.set_num_threads(asked["threads"])
        report = train(asked["point"], Plan(**asked["plan"]), world)
        if world.is_first:
            Path(file).write_bytes(TypeAdapter(Measurement).dump_json(report))


def train(point: Point, plan: Plan, world: World) -> Measurement:
    """Set up, check, time and check again; returns the same times on all ranks."""
    trainer = WatchedTrainer(point["env"], settings(point))
    backend = trainer.wrapper.backend
    iterate(trainer, 2)  # both phases have run eagerly, and are captured
    trainer.log_metrics()
    iterate(trainer, SPLIT_OVER)
    row = trainer.log_metrics()
    notes = {name: row[name] / SPLIT_OVER for name in ("rollout_s", "update_s")} | {"capture_s": trainer.capture_s}
    check = checks(point, trainer, world)
    timed = Timed(
        run=trainer.iterate,
        synchronize=backend.synchronize,
        check=check,
        facts=Facts(mode=point["mode"], device=backend.device, threads=None),
    )
    timer = Timer(replace(timed, stopwatch=SlowestRank(stopwatch_for(timed), world, backend.device)))
    before = check()  # what the first rank alone can see must not stop it alone
    timer.settle(plan)
    seen = timer.measurement(plan)
    after = check()
    if backend.device.type == "cuda":
        notes["peak_bytes"] = torch.cuda.max_memory_allocated()
    return replace(seen, before=before, after=after, notes=notes | seen.notes)


class SlowestRank:
    """A stopwatch that starts on all ranks together, and of which all get the time of the slowest one.

    So they also decide alike how long they warm up and how many samples they take.
    """

    def __init__(self, own: Stopwatch, world: World, device: torch.device) -> None:
        self._own, self._world, self._device = own, world, device

    def time(self, block: Callable[[], None]) -> tuple[int, int | None]:
        """Time a block."""
        self._world.wait()
        wall, device = self._own.time(block)
        slowest = torch.tensor([wall, device or 0], dtype=torch.int64, device=self._device)
        if self._world.size > 1:
            distributed.all_reduce(slowest, distributed.ReduceOp.MAX)
        wall, on_device = slowest.tolist()
        return wall, None if device is None else on_device


def checks(point: Point, trainer: WatchedTrainer, world: World) -> Callable[[], Check]:
    """Return the check of a point: the ranks have the same weights to the bit, which are finite and move.

    One rank alone is held against a small twin, as the case `train` does it. Only the first rank sees the others.
    """
    last = trainer.weights()
    compared = after_the_timing(lambda: twins(point))

    def check() -> Check:
        nonlocal last
        trainer.iterate()
        before, last = last, trainer.weights()
        moved = float((last - before).abs().max())
        error, oracle = compared() if world.size == 1 else apart(last, trainer.wrapper.backend.device, world)
        return Check(
            passed=error == 0 and 0 < moved < float("inf"),
            max_error=error,
            oracle=oracle,
            detail=f"weights moved by up to {moved:.3g} in an iteration",
        )

    return check


def apart(weights: torch.Tensor, device: torch.device, world: World) -> tuple[float, str]:
    """Return how far the weights of the ranks differ, as numbers if not in their bits alone, and what was compared.

    On all but the first rank nothing is compared.
    """
    gathered = world.gathered({"weights": weights.to(device)})
    error = 0.0
    if gathered is not None:
        ours, others = gathered["weights"][:1], gathered["weights"][1:]
        if not torch.equal(as_bytes(others.contiguous()), as_bytes(ours.expand_as(others).contiguous())):
            error = float((others - ours).abs().max()) or float("inf")
    return error, f"the weights of {world.size} ranks, to the bit"


if __name__ == "__main__":
    main(*sys.argv[1:])
