"""Training in ranks: agreement, time of the slowest, efficiency."""

from __future__ import annotations

import json
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from pydantic import TypeAdapter
from torch import distributed

from bench.core.errors import Skip
from bench.core.exclusive import SIBLINGS
from bench.core.measure import Plan
from bench.core.point import Check, Measurement
from bench.show import plots
from bench.show.views.run_charts import efficiencies, scaling_chart
from bench.workloads import scaling
from bench.workloads.points import point_of, points_of
from bench.workloads.setups import iterations
from tests.bench.builders import FakeWatch, cycle, metric, record
from warpdrive_min.backends import pycuda_driver
from warpdrive_min.backends.base import Availability
from warpdrive_min.training.ranks import World
from warpdrive_min.training.scale import distributed as distributed_training

TINY = Plan(sample_s=1e-4, n_samples=3, max_samples=3, warm_up_cap_s=0.0)


def point(n_ranks: int, backend: str = "cpu", env: str = "cartpole") -> dict:
    return point_of(env=env, backend=backend, n_ranks=n_ranks, n_envs=4, n_steps=8, algorithm="A2C")


# ------------------------------------------------------------------ ranks


def test_one_rank_is_held_against_a_twin_and_its_report_is_json(monkeypatch):
    """A single rank is checked as `train` is.

    Its report survives JSON.
    """
    points = []
    twin = Check(passed=True, max_error=0.0, oracle="a twin")
    monkeypatch.setattr(iterations, "reference_run_check", lambda point, _: points.append(point) or (lambda: twin))
    report = scaling.train_as_rank(point(1), TINY, World(), nullcontext())
    assert report.before.passed
    assert report.after.oracle == "a twin"
    assert points == [point(1)]
    as_json = TypeAdapter(Measurement)
    assert as_json.validate_json(as_json.dump_json(report)) == report


def test_slowest_rank_counts_from_a_common_start(monkeypatch):
    """All ranks report the time of the slowest.

    Both ranks get the slower's time: 9 of 7 and 9 us, 5 of 5 and 3.
    """
    met: list[float] = []
    watch = FakeWatch(cycle([7_000]), device_share=5 / 7)

    class Two(World):
        def wait(self) -> None:
            met.append(watch.now)

    def all_reduce(tensor: torch.Tensor, op: distributed.ReduceOp) -> None:
        assert op == distributed.ReduceOp.MAX
        tensor.copy_(tensor.maximum(torch.tensor([9_000, 3_000])))

    monkeypatch.setattr(distributed, "all_reduce", all_reduce)
    slowest = scaling.SlowestRank(watch, Two(0, 2), torch.device("cpu"))
    assert slowest.time(watch.run) == (9_000, 5_000)
    assert slowest.time(watch.run) == (9_000, 5_000)
    assert met == [0, 7_000]


def test_ranks_time_while_sibling_points_pause(monkeypatch, tmp_path):
    """Siblings pause once all ranks are ready, and go on once all have timed."""
    events = []
    monkeypatch.setattr(SIBLINGS, "ask_for_exclusive", lambda wants: events.append(wants) or 0)
    all_ready = threading.Barrier(2)

    def rank(number: int) -> None:
        with scaling.own_turn(tmp_path, World(number, 2)):
            all_ready.wait()
            events.append("timed")
            all_ready.wait()
        events.append("after")

    with scaling.exclusive_once_ready(tmp_path, 2):
        ranks = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
        for each in ranks:
            each.start()
        for each in ranks:
            each.join()
    assert events == [True, "timed", "timed", False, "after", "after"]


def test_ranks_that_end_before_their_turn_pause_nobody(monkeypatch, tmp_path):
    """If a rank fails during its set-up, no sibling is paused."""
    events = []
    monkeypatch.setattr(SIBLINGS, "ask_for_exclusive", lambda wants: events.append(wants) or 0)
    with scaling.exclusive_once_ready(tmp_path, 2):
        (tmp_path / f"{scaling.READY}-0").touch()
    assert events == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_rank_does_not_wait_for_a_turn_that_never_comes(monkeypatch, tmp_path):
    """If siblings cannot be paused, the ranks fail."""
    monkeypatch.setattr(SIBLINGS, "ask_for_exclusive", lambda wants: 1 / 0)
    folder = tmp_path / "ranks"
    folder.mkdir()
    with (
        pytest.raises(RuntimeError, match="no turn to time"),
        scaling.exclusive_once_ready(folder, 1),
        scaling.own_turn(folder, World()),
    ):
        pass


def test_time_of_a_cpu_has_no_device_time():
    """On a CPU a rank has only its wall time."""
    watch = FakeWatch(cycle([7_000]))
    assert scaling.SlowestRank(watch, World(), torch.device("cpu")).time(watch.run) == (7_000, None)


@pytest.mark.parametrize(
    ("other", "error"), [([1.0, 0.0], 0.0), ([1.0, 0.25], 0.25), ([1.0, -0.0], float("inf")), (None, 0.0)]
)
def test_ranks_are_compared_to_the_bit(other, error):
    """Ranks must have bit-identical weights."""
    ours = torch.tensor([1.0, 0.0])

    class Two(World):
        def gathered(self, own):
            assert torch.equal(own["weights"], ours)
            return None if other is None else {"weights": torch.stack([ours, torch.tensor(other)])}

    backend = SimpleNamespace(device=torch.device("cpu"))
    trainer = SimpleNamespace(weights=lambda: ours, wrapper=SimpleNamespace(backend=backend))
    assert scaling.rank_check(trainer, Two(0, 2))() == (error, "the weights of 2 ranks, to the bit")


# ------------------------------------------------------------------ points


@pytest.mark.parametrize(
    ("n_gpus", "n_ranks", "why"),
    [
        (0, 1, r"needs 2 GPUs, to compare one with; `train` has the point of one alone \(got 0\)"),
        (1, 1, r"needs 2 GPUs, to compare one with; `train` has the point of one alone \(got 1\)"),
        (2, 1, None),
        (2, 2, None),
        (2, 4, r"needs 4 GPUs, one for each rank \(got 2\)"),
    ],
)
def test_each_rank_needs_a_gpu(n_gpus, n_ranks, why, monkeypatch):
    """Too few GPUs skip the point before any process starts."""
    monkeypatch.setattr(pycuda_driver.PyCudaBackend, "availability", lambda backend: Availability(True))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n_gpus)
    monkeypatch.setattr(distributed_training, "launch", lambda *_, **__: pytest.fail("started"))
    if why is not None:
        with pytest.raises(Skip, match=why):
            scaling.scaling(point(n_ranks, "pycuda"))
        return
    facts = scaling.scaling(point(n_ranks, "pycuda")).facts
    assert facts.work["env_steps"] == n_ranks * 4 * 8
    assert (facts.threads, facts.mode, facts.device.type) == (None, "graph", "cuda")


def test_total_work_is_divided_by_the_ranks():
    """Strong scaling divides the environments; weak scaling does not."""
    strong = {**point(4), "n_envs": 64, "scaling": "strong"}
    assert scaling.of_a_rank(strong)["n_envs"] == 16
    assert scaling.of_a_rank(point(4)) == point(4)
    both = {each.get("scaling") for each in points_of("scaling", "default") if each["n_ranks"] == 8}
    assert both == {None, "strong"}


def test_share_of_nccl_is_of_the_time_from_the_first_kernel_to_the_last():
    """Gaps between kernels count; work on the CPU before the first does not."""
    kernels = [("learn", 100, 30), ("ncclDevKernel_AllReduce", 140, 20), ("adam", 190, 10)]
    events = [{"cat": "kernel", "name": name, "ts": ts, "dur": dur} for name, ts, dur in kernels]
    whole = {"traceEvents": [{"cat": "cpu_op", "name": "nccl", "ts": 0, "dur": 50}, {"ph": "M"}, *events]}
    assert scaling.nccl_share(json.dumps(whole).encode()) == 0.2


# ------------------------------------------------------------------ figure


def curve(rates: dict[int, float], backend: str = "pycuda", threads: int | None = None, run_id: str = "run") -> list:
    """Return records of rates (steps/s) in numbers of ranks."""
    return [
        record(
            case="scaling",
            point=point(n_ranks, backend, "tag_gridworld"),
            threads=threads,
            run_id=run_id,
            metrics={"env_steps_per_s": metric(rate)},
        )
        for n_ranks, rate in rates.items()
    ]


def test_efficiency_is_the_share_of_as_many_times_one():
    """Efficiency is the rate over n times one rank's."""
    found = [*curve({1: 100.0, 2: 180.0, 4: 300.0}), *curve({2: 50.0}, run_id="other")]
    efficiency = efficiencies(found)
    assert [efficiency.get(id(each)) for each in found] == [1.0, 0.9, 0.75, None]


def test_figure_is_drawn_with_its_labels():
    """Dots have percentages, and ticks are numbers of ranks."""
    both = curve({1: 100.0, 2: 180.0, 4: 300.0}) + curve({1: 50.0, 2: 75.0, 4: 125.0}, "numba")
    figure = plots.paint(scaling_chart(both))
    (axes,) = figure.axes
    assert {"90%", "75%", "62%"} <= {text.get_text() for text in axes.texts}
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "2", "4"]
    dotted = [line for line in axes.get_lines() if line.get_linestyle() == ":"]
    assert sorted(line.get_ydata()[-1] for line in dotted) == [200, 400]
    (legend,) = figure.legends
    assert {text.get_text() for text in legend.get_texts()} == {"CUDA C (PyCUDA)", "Numba-CUDA", "linear scaling"}
    assert not scaling_chart(curve({1: 100.0})).panels


def test_figure_of_processes_holds_all_of_its_text():
    """The narrow CPU panel shows its complete label."""
    figure = plots.paint(scaling_chart(curve({1: 100.0, 2: 180.0}, "host", threads=2)))
    figure.draw_without_rendering()
    (axes,) = figure.axes
    assert axes.xaxis.label.get_text() == "processes, each with the same number of\nthreads"
    within = axes.xaxis.label.get_window_extent()
    assert 0 <= within.x0 < within.x1 <= figure.bbox.width
