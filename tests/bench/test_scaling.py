"""The case `scaling`: ranks that train together, the time of the slowest one, and the share of the ideal they reach."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from pydantic import TypeAdapter
from torch import distributed

from bench import documents, plots, sweep
from bench.case import Check, Facts, Skip
from bench.cases import CASES, rank
from bench.cases import scaling_case as scaling
from bench.cases.environments import ON_GPU
from bench.measure import MeasureError, Plan, Ranks, Timed
from bench.record import Context, Measurement, Metric, Record
from bench.views.train import scaling as scaling_chart
from bench.views.train import scalings
from tests.bench.builders import record
from tests.bench.fakes import FakeWatch, case, cycle, in_this_process
from warpdrive_min.backends import pycuda_driver
from warpdrive_min.backends.base import Availability
from warpdrive_min.training.ranks import World

TINY = Plan(sample_s=1e-4, n_samples=3, max_samples=3, warm_up_cap_s=0.0)
RIGHT = Check(True, 0.0, "by hand")


def point(n_ranks: int, backend: str = "cpu", env: str = "cartpole") -> dict:
    return scaling._point(env, backend, n_ranks, n_envs=4, n_agents=1, n_steps=8)


@pytest.fixture(autouse=True)
def _no_simulator(monkeypatch):
    monkeypatch.delenv("NUMBA_ENABLE_CUDASIM", raising=False)


# ------------------------------------------------------------------ ranks


def test_two_ranks_train_together_and_the_first_reports():
    """Real processes: three samples, the weights of both equal to the bit and moving, and the work of both counted."""
    ranks = scaling.scaling(point(2))
    report = ranks.run(TINY)
    for seen in (report.before, report.after):
        assert seen.passed, seen
        assert (seen.max_error, seen.oracle) == (0, "the weights of 2 ranks, to the bit")
    assert len(report.samples_ns) == 3
    assert min(report.samples_ns) > 0
    assert report.device_ns is None
    assert min(report.notes["rollout_s"], report.notes["update_s"]) > 0
    assert ranks.facts.work == {"env_steps": 2 * 4 * 8, "agent_steps": 2 * 4 * 8}
    assert ranks.facts.threads == 2 * max(1, torch.get_num_threads() // 2)


def test_one_rank_is_held_against_a_twin_and_its_report_is_json(monkeypatch):
    """Alone it has no other rank to be compared with, so it is checked as `train` is; JSON gives all of it back."""
    twins: list[dict] = []
    monkeypatch.setattr(rank, "twins", lambda point: twins.append(point) or (0.0, "a twin"))
    report = rank.train(point(1), TINY, World())
    assert report.before.passed, report.before
    assert report.before.oracle.startswith("none before the timing")
    assert report.after.oracle == "a twin"
    assert twins == [point(1)]
    as_json = TypeAdapter(Measurement)
    assert as_json.validate_json(as_json.dump_json(report)) == report


def test_slowest_rank_counts_from_a_common_start(monkeypatch):
    """Of 7 and 9 us both ranks get 9, of device times 5 and 3 both get 5; no clock starts before all ranks are here."""
    met: list[float] = []
    watch = FakeWatch(cycle([7_000]), device_share=5 / 7)

    class Two(World):
        def wait(self) -> None:
            met.append(watch.now)

    def all_reduce(tensor: torch.Tensor, op: distributed.ReduceOp) -> None:
        assert op == distributed.ReduceOp.MAX
        tensor.copy_(tensor.maximum(torch.tensor([9_000, 3_000])))

    monkeypatch.setattr(distributed, "all_reduce", all_reduce)
    slowest = rank.SlowestRank(watch, Two(0, 2), torch.device("cpu"))
    assert slowest.time(watch.run) == (9_000, 5_000)
    assert slowest.time(watch.run) == (9_000, 5_000)
    assert met == [0, 7_000]


def test_time_of_a_cpu_has_no_device_time():
    """One rank alone keeps its own wall time."""
    watch = FakeWatch(cycle([7_000]))
    assert rank.SlowestRank(watch, World(), torch.device("cpu")).time(watch.run) == (7_000, None)


@pytest.mark.parametrize(
    ("other", "error"), [([1.0, 0.0], 0.0), ([1.0, 0.25], 0.25), ([1.0, -0.0], float("inf")), (None, 0.0)]
)
def test_ranks_are_compared_to_the_bit(other, error):
    """A quarter more is an error of 0.25, the other zero an infinite one; who is not the first sees nothing."""
    ours = torch.tensor([1.0, 0.0])

    class Two(World):
        def gathered(self, own):
            assert torch.equal(own["weights"], ours)
            return None if other is None else {"weights": torch.stack([ours, torch.tensor(other)])}

    assert rank.apart(ours, torch.device("cpu"), Two(0, 2)) == (error, "the weights of 2 ranks, to the bit")


@pytest.mark.parametrize("after", [[1.0, 2.0], [float("nan"), 2.0], [1.0, float("inf")], [1.0, 2.5]])
def test_weights_that_stand_still_or_are_not_finite_are_refused(after, monkeypatch):
    """Equal on all ranks is not enough: an iteration must teach something."""

    class Trainer:
        iterations = 0

        def iterate(self) -> None:
            self.iterations += 1

        def weights(self) -> torch.Tensor:
            return torch.tensor(after if self.iterations else [1.0, 2.0])

    monkeypatch.setattr(rank, "twins", lambda _: (0.0, "by hand"))
    assert rank.checks(point(1), Trainer(), World())().passed == (after == [1.0, 2.5])


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
    """Too few are a skip with the reason, before a process is started; enough are the work of all of them."""
    monkeypatch.setattr(pycuda_driver.PyCudaBackend, "availability", lambda backend: Availability(True))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n_gpus)
    monkeypatch.setattr(scaling, "launch", lambda *_, **__: pytest.fail("started"))
    if why is not None:
        with pytest.raises(Skip, match=why):
            scaling.scaling(point(n_ranks, "pycuda"))
        return
    facts = scaling.scaling(point(n_ranks, "pycuda")).facts
    assert facts.work["env_steps"] == n_ranks * 4 * 8
    assert (facts.threads, facts.mode, facts.device.type) == (None, "graph", "cuda")


@pytest.mark.parametrize("preset", ["default", "full", "paper"])
def test_environments_of_a_rank_stay_while_ranks_double(preset):
    """Both tags on 1, 2, 4 and 8 GPUs of both backends, Tag Continuous in tf32, and nothing else differs."""
    curves: dict[tuple, list[int]] = {}
    for each in scaling.scaling_points(preset):
        if each["backend"] in ON_GPU:
            place = tuple(value for axis, value in each.items() if axis != "n_ranks")
            curves.setdefault(place, []).append(each["n_ranks"])
            assert each["precision"] == {"tag_gridworld": "fp32", "tag_continuous": "tf32"}[each["env"]]
    assert list(curves.values()) == [[1, 2, 4, 8]] * 4
    assert all(2_000 in place for place in curves)


def test_only_our_sweep_starts_ranks():
    """ASV and pytest-benchmark repeat a run in their own process, which this one has not."""
    assert CASES["scaling"].workload is Ranks
    assert CASES["train"].workload is Timed


# ------------------------------------------------------------------ records


def recorded(report: Measurement, tmp_path, device: str = "cpu") -> Record:
    """Return the record of a point whose two ranks report so."""
    work = {"env_steps": 1_000, "agent_steps": 5_000}
    fake = Ranks(run=lambda plan: report, facts=Facts(mode="eager", device=torch.device(device), threads=2, work=work))
    ranked = case(lambda _: fake, scope="train", workload=Ranks, points=lambda _: [point(2)])
    context = Context.here("smoke", run_id="test")
    (found,) = sweep.run(sweep.jobs("smoke", {}, {"fake": ranked}), context, tmp_path / "r.jsonl", in_this_process)
    return found


REPORT = Measurement(
    samples_ns=(1e6, 2e6, 3e6),
    runs_per_sample=4,
    stop_reason="3 samples",
    warm_up={"settled": True},
    before=RIGHT,
    after=RIGHT,
    notes={"rollout_s": 1.0, "clocks": "agree"},
)


def test_record_has_what_the_ranks_measured(tmp_path):
    """A median of 2 ms for 1,000 steps is half a million a second; samples, warm-up and notes are the ranks' own."""
    found = recorded(REPORT, tmp_path)
    assert found.is_evidence, found.reason
    assert found.metrics["env_steps_per_s"].value == 5e5
    assert found.metrics["ns_per_env_step"].value == 2_000
    assert (found.samples_ns, found.n, found.runs_per_sample) == ([1e6, 2e6, 3e6], 3, 4)
    assert (found.work_per_run["env_steps"], found.threads, found.warm_up) == (1_000, 2, {"settled": True})
    assert found.notes.items() >= {"rollout_s": 1.0, "clocks": "agree"}.items()
    assert "processes of its own" in found.unread["telemetry"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_ranks_that_differ_are_no_evidence(when, tmp_path):
    """A report whose check failed, before or after its timing, fails the point."""
    wrong = Check(False, 0.25, "the weights of 2 ranks", "moved")
    found = recorded(replace(REPORT, **{when: wrong}), tmp_path)
    assert found.status == "failed"
    assert f"{when} the timing, against the weights of 2 ranks" in found.reason


def test_ranks_are_not_timed_in_the_simulator(tmp_path, monkeypatch):
    """No process is started under it."""
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    found = recorded(REPORT, tmp_path)
    assert found.reason.startswith(MeasureError.__name__)


# ------------------------------------------------------------------ views


def curve(rates: dict[int, float], backend: str = "pycuda", run_id: str = "run") -> list[Record]:
    """Return the records of so many steps a second in so many ranks."""
    return [
        record(
            case="scaling",
            point=point(n_ranks, backend, "tag_gridworld"),
            threads=None,
            run_id=run_id,
            metrics={"env_steps_per_s": Metric(value=rate, unit="", direction="higher", low=rate, high=rate)},
            notes={"rollout_s": 1.0, "update_s": 3.0},
        )
        for n_ranks, rate in rates.items()
    ]


def test_efficiency_is_the_share_of_as_many_times_one():
    """Of 100, 180 and 300 in 1, 2 and 4 ranks: 1, 0.9 and 0.75; without one rank of the same run there is none."""
    found = curve({1: 100.0, 2: 180.0, 4: 300.0})
    lonely = curve({2: 50.0}, run_id="other")
    efficiency = scaling.efficiencies([*found, *lonely])
    assert [efficiency.get(id(each)) for each in (*found, *lonely)] == [1.0, 0.9, 0.75, None]


def test_table_shows_rate_and_efficiency():
    """In the order of the ranks, each backend by itself."""
    made = scalings(curve({4: 300.0, 1: 100.0}) + curve({1: 50.0, 2: 50.0}, "numba"))
    columns = {
        column.name: list(cells) for column, cells in zip(made.columns, zip(*made.cells, strict=True), strict=True)
    }
    assert columns["ranks"] == ["1", "2", "1", "4"]
    assert columns["env-steps/s"] == ["50", "50", "100", "300"]
    assert columns["efficiency"] == ["100.0%", "50.0%", "100.0%", "75.0%"]
    assert columns["of it rollout"] == ["25%"] * 4
    assert "| 75.0% |" in documents.markdown(curve({4: 300.0, 1: 100.0}))


def test_figure_has_the_ideal_and_labels_what_is_reached():
    """The dotted line goes from 100 to four times 100; two and four ranks are labelled with their efficiency."""
    (panel,) = scaling_chart(curve({1: 100.0, 2: 180.0, 4: 300.0})).panels
    reached, ideal = panel.series
    assert [(point.x, point.y, point.label) for point in reached.points] == [
        (0, 100, ""),
        (1, 180, "90%"),
        (2, 300, "75%"),
    ]
    assert [(point.x, point.y) for point in ideal.points] == [(0, 100), (1, 200), (2, 400)]
    assert (panel.ticks, panel.xlabel) == (["1", "2", "4"], "GPUs")
    assert not scaling_chart(curve({1: 100.0})).panels
    assert not scaling_chart([]).panels


def test_a_figure_of_processes_holds_all_of_its_text():
    """Alone on its figure the panel of the CPU is narrow, and its label stays within."""
    both = [record.model_copy(update={"threads": 2}) for record in curve({1: 100.0, 2: 180.0}, "host")]
    figure = plots.paint(scaling_chart(both))
    figure.draw_without_rendering()
    (axes,) = figure.axes
    label = axes.xaxis.label
    assert label.get_text() == "processes, each with as many threads"
    within = label.get_window_extent()
    assert 0 <= within.x0 < within.x1 <= figure.bbox.width


def test_figure_is_drawn_with_its_labels():
    """On paper the percentages stand beside the dots, and the ticks are the numbers of ranks."""
    both = curve({1: 100.0, 2: 180.0, 4: 300.0}) + curve({1: 50.0, 2: 75.0, 4: 125.0}, "numba")
    figure = plots.paint(scaling_chart(both))
    (axes,) = figure.axes
    assert {"90%", "75%", "62%"} <= {text.get_text() for text in axes.texts}
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "2", "4"]
    dotted = [line for line in axes.get_lines() if line.get_linestyle() == ":"]
    assert sorted(line.get_ydata()[-1] for line in dotted) == [200, 400]
    (legend,) = figure.legends
    assert {text.get_text() for text in legend.get_texts()} == {"CUDA C (PyCUDA)", "Numba-CUDA", "as many times one"}
