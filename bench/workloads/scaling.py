"""Training in several ranks of one host: `scaling`.

Also the program of a rank, which torchrun starts: ``python -m bench.workloads.scaling JSON FILE``. JSON names the
point, the plan and the CPU threads per rank; the first rank writes to FILE.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

if __name__ == "__main__":  # before imports that take seconds
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends silently: the launching process reports
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])

from ..core.errors import Skip
from ..core.exclusive import exclusive
from ..core.measure import Plan, Ranks, Stopwatch, Timer, stopwatch_for
from ..core.point import Facts, Measurement, Point
from .shared import steps_of

if TYPE_CHECKING:
    import torch

    from warpdrive_min.training.ranks import World

    from .setups.iterations import Comparison
    from .setups.trainers import WatchedTrainer

PROGRAM: Final = f"{__package__}.scaling"
REPORT: Final = "report.json"
READY: Final = "ready"
"""File of a rank that is set up, and the answer that it may time its work."""
TIMED: Final = "timed"
"""File of a rank that has timed its work, and the answer that it may go on."""
POLL_S: Final = 0.002
MOST_ON_A_CPU: Final = 2
"""Maximum number of ranks on a CPU; threads per rank are constant."""


# ------------------------------------------------------------------ set-up


def of_a_rank(point: Point) -> Point:
    """Return the point that each rank trains.

    Strong scaling divides the environments by the ranks.
    """
    is_strong = point.get("scaling") == "strong"
    return {**point, "n_envs": point["n_envs"] // point["n_ranks"]} if is_strong else point


def scaling(point: Point) -> Ranks:
    """Train in several processes, each with its own environments.

    Raises:
        Skip: The backend is not there, or there are too few GPUs, or one alone, which has nothing to be compared with.
    """
    import torch

    from .setups.timing import available

    backend = available(point["backend"])
    n_ranks, on_gpu = point["n_ranks"], backend.captures_graphs
    n_gpus = torch.cuda.device_count() if on_gpu else 0
    if on_gpu and n_gpus < max(2, n_ranks):
        why = "one for each rank" if n_ranks > 1 else "to compare one with; `train` has the point of one alone"
        raise Skip(f"scaling: needs {max(2, n_ranks)} GPUs, {why} (got {n_gpus}); run it on a host with more")
    threads = 1 if on_gpu else max(1, torch.get_num_threads() // MOST_ON_A_CPU)
    env_steps = of_a_rank(point)["n_envs"] * point["n_steps"] * n_ranks
    return Ranks(
        run=lambda plan: start(point, plan, threads),
        facts=Facts(
            mode=point["mode"],
            device=torch.device("cuda" if on_gpu else "cpu"),  # the ranks use the devices; this process uses none
            threads=None if on_gpu else threads * n_ranks,
            work=steps_of(env_steps, point["n_agents"]),
        ),
    )


def start(point: Point, plan: Plan, threads: int) -> Measurement:
    """Start the ranks of a point, and return the first rank's report.

    Args:
        point: The point.
        plan: Amount of sampling.
        threads: CPU threads of torch in each rank.

    Raises:
        TrainingError: A rank failed; its output is on standard error.
    """
    from pydantic import TypeAdapter

    from warpdrive_min.training.scale.distributed import launch

    with tempfile.TemporaryDirectory(prefix="warpdrive-scaling-") as folder:
        report = Path(folder, REPORT)
        task = {"point": dict(point), "plan": asdict(plan), "threads": threads}
        with exclusive_once_ready(Path(folder), point["n_ranks"]):
            launch(point["n_ranks"], [json.dumps(task), str(report)], point["backend"], module=PROGRAM)
        return TypeAdapter(Measurement).validate_json(report.read_text())


@contextlib.contextmanager
def exclusive_once_ready(folder: Path, n_ranks: int) -> Iterator[None]:
    """Pause sibling points while the ranks started inside time their work.

    The ranks write files to the folder and wait for its answers, see `own_turn`.
    """
    has_ended = threading.Event()

    def all_wrote(step: str) -> bool:
        while len(list(folder.glob(f"{step}-*"))) < n_ranks:
            if has_ended.wait(POLL_S):
                return False
        return True

    def answer() -> None:
        try:
            if all_wrote(READY):
                with exclusive():
                    Path(folder, READY).touch()
                    all_wrote(TIMED)
                Path(folder, TIMED).touch()
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)  # ends the ranks, which would wait for ever
            raise

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()


# ------------------------------------------------------------------ in a rank


def main(task: str, file: str) -> None:
    """Train as a rank; the first rank writes the combined result."""
    import torch
    from pydantic import TypeAdapter

    from warpdrive_min.training.scale.distributed import process_group

    asked = json.loads(task)
    with process_group(asked["point"]["backend"]) as world:
        torch.set_num_threads(asked["threads"])
        point, plan = of_a_rank(asked["point"]), Plan(**asked["plan"])
        report = train_as_rank(point, plan, world, own_turn(Path(file).parent, world))
        if world.is_first:
            Path(file).write_bytes(TypeAdapter(Measurement).dump_json(report))


@contextlib.contextmanager
def own_turn(folder: Path, world: World) -> Iterator[None]:
    """Wait for the turn to time, and at the end until others may work again.

    Waits for files: a rank that waited in NCCL would keep its GPU busy.
    """
    wait_for_answer(folder, READY, world.rank)
    yield
    wait_for_answer(folder, TIMED, world.rank)


def wait_for_answer(folder: Path, step: str, rank: int) -> None:
    """Say that a rank has reached a step, and wait for the answer.

    Raises:
        RuntimeError: There is no answer, as its thread has failed.
    """
    own = Path(folder, f"{step}-{rank}")
    own.touch()
    while not Path(folder, step).exists():
        if not own.exists():
            raise RuntimeError(f"scaling: no turn to time (at {step}); the cause is above")
        time.sleep(POLL_S)


TRACED: Final = 5
"""Iterations that show NCCL's share of the time."""


def train_as_rank(point: Point, plan: Plan, world: World, turn: AbstractContextManager[None]) -> Measurement:
    """Set up, check, time within ``turn``, check; all ranks return equal times."""
    import torch

    from warpdrive_min.tracing import trace

    from .setups.iterations import learning_check, reference_run_check, weights_after_training
    from .setups.timing import Repeated, timed
    from .setups.trainers import WatchedTrainer, settings

    trainer = WatchedTrainer(point["env"], settings(point))
    backend = trainer.wrapper.backend
    iterates = Repeated(trainer.iterate, 1, point["mode"])
    if world.size == 1:
        iterations = timed(
            backend,
            iterates,
            learning_check(trainer),
            work={},
            reference_run=reference_run_check(point, weights_after_training),
        )
    else:
        iterations = timed(backend, iterates, learning_check(trainer, rank_check(trainer, world)), work={})
    timer = Timer(replace(iterations, stopwatch=SlowestRank(stopwatch_for(iterations), world, backend.device)))

    def iterate() -> None:
        """Start together: a rank that starts late makes the others wait in NCCL."""
        world.wait()
        for _ in range(TRACED):
            trainer.iterate()

    before = iterations.check()  # a failure seen by the first rank only must not stop it alone
    with turn:
        timer.prepare(plan)
        measurement = timer.measurement(plan)
        notes = trainer.split()
        if world.size > 1 and backend.device.type == "cuda":
            notes["nccl_share"] = nccl_share(trace(iterate, torch.cuda.synchronize, {}))
    after = iterations.check_after()
    if backend.device.type == "cuda":
        notes["peak_bytes"] = torch.cuda.max_memory_allocated()
    return replace(measurement, before=before, after=after, notes=notes | measurement.notes)


def nccl_share(chrome_trace: bytes) -> float:
    """Return NCCL's share of the time between first and last kernel.

    Its kernels also wait for other ranks.
    """
    kernels = [event for event in json.loads(chrome_trace)["traceEvents"] if event.get("cat") == "kernel"]
    whole = max(event["ts"] + event["dur"] for event in kernels) - min(event["ts"] for event in kernels)
    return float(sum(event["dur"] for event in kernels if event["name"].startswith("nccl")) / whole)


class SlowestRank:
    """Stopwatch that starts on all ranks together and returns the slowest time.

    So all ranks also agree on the warm-up and on the number of samples.
    """

    def __init__(self, own: Stopwatch, world: World, device: torch.device) -> None:
        self._own, self._world, self._device = own, world, device

    def time(self, block: Callable[[], None]) -> tuple[int, int | None]:
        """Time a block."""
        import torch
        from torch import distributed

        self._world.wait()
        wall, device = self._own.time(block)
        slowest = torch.tensor([wall, device or 0], dtype=torch.int64, device=self._device)
        if self._world.size > 1:
            distributed.all_reduce(slowest, distributed.ReduceOp.MAX)
        wall, on_device = slowest.tolist()
        return wall, None if device is None else on_device


def rank_check(trainer: WatchedTrainer, world: World) -> Comparison:
    """Return a comparison of all ranks' weights, made by the first rank.

    The error is infinite if only bits differ.
    """
    from warpdrive_min.agreement.compare import BITS

    def compare() -> tuple[float, str]:
        gathered = world.gathered({"weights": trainer.weights().to(trainer.wrapper.backend.device)})
        error = 0.0
        if gathered is not None:
            weights = gathered["weights"].cpu()
            found = BITS.compare(weights[:1].expand_as(weights), weights)
            error = (found.largest.error or float("inf")) if found.n_wrong else 0.0
        return error, f"the weights of {world.size} ranks, to the bit"

    return compare


if __name__ == "__main__":
    main(*sys.argv[1:])
