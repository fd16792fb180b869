"""The cases of single kernels: what is timed is right, and what is wrong is refused."""

from __future__ import annotations

import pytest
import torch

from bench.cases import CASES, env_case
from bench.cases.kernels import launches, records, resets, returns, shuffles
from bench.cases.kernels.returns import GAMMA, Played
from bench.cases.kernels.shared import OURS
from bench.cases.repeats import EAGER_STEPS
from bench.record import Metric
from bench.views import TABLES
from tests.bench.builders import record
from warpdrive_min import BACKENDS, CUDAEnvironmentReset

KERNELS = ("step", "reset", "return_scan", "shuffle", "record", "launch")
ON_CPU = ("cpu", "host")


def smoke(name: str) -> list[dict]:
    """Return the smoke points of a case that run on a CPU."""
    return [point for point in CASES[name].points("smoke") if point["backend"] in ON_CPU]


@pytest.mark.parametrize("name", KERNELS)
def test_checks_pass_before_and_after_runs(name):
    """Runs leave every point as right as it was."""
    points = smoke(name)
    assert {point["backend"] for point in points} == set(ON_CPU)
    for point in points:
        prepared = CASES[name].setup(point)
        for _ in range(2):
            seen = prepared.check()
            assert seen.passed, (point, seen)
            prepared.run()


@pytest.mark.parametrize("name", KERNELS)
def test_points_have_both_gpu_backends_and_torch_once_on_each_device(name):
    """CUDA C and Numba are values of one axis; what is torch's own is measured once on a GPU."""
    for preset in ("default", "full", "paper"):
        points = CASES[name].points(preset)
        assert {point["backend"] for point in points} == set(BACKENDS)
        assert len({tuple(point.items()) for point in points}) == len(points)
        of_torch = [point for point in points if point.get("implementation", "").startswith("torch")]
        assert {point["backend"] for point in of_torch} <= {"cpu", "pycuda"}


def by_hand() -> Played:
    """Return four steps of one environment whose episode is cut off with the second one."""
    return Played(
        rewards=torch.tensor([1.0, 2.0, 3.0, 4.0])[:, None, None],
        terminated=torch.zeros(4, 1, dtype=torch.int32),
        truncated=torch.tensor([0, 1, 0, 0], dtype=torch.int32)[:, None],
        last_values=torch.tensor([[10.0]]),
        returns=torch.zeros(4, 1, 1),
    )


def test_all_scans_sum_up_to_the_end_of_the_episode():
    """Nothing follows an end, and the value of what comes last follows the last step."""
    last = 4 + GAMMA * 10
    want = [1 + GAMMA * 2, 2, 3 + GAMMA * last, last]
    played = by_hand()
    assert returns.returns_in_float64(played).flatten().tolist() == pytest.approx(want, rel=1e-6)
    for scan in (
        returns.our_scan(BACKENDS["cpu"], played),
        lambda: returns.loop_scan(played),
        lambda: returns.cumulative_scan(played),
    ):
        played.returns.zero_()
        scan()
        assert played.returns.flatten().tolist() == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize("n_filled", [0, 3])
def test_scan_that_fills_in_too_little_is_refused(monkeypatch, n_filled):
    """Rows that are not written, whatever was there before, fail the point."""

    def lazy(backend, played):
        return lambda: played.returns[:n_filled].copy_(returns.returns_in_float64(played)[:n_filled])

    monkeypatch.setattr(returns, "our_scan", lazy)
    point = {"implementation": OURS, "backend": "cpu", "n_steps": 8, "n_envs": 4, "n_agents": 1}
    assert not returns.return_scan(point).check().passed


@pytest.mark.parametrize("wrong", [[0, 1, 2, 2] * 25, list(range(100))], ids=["twice", "always the same"])
def test_shuffle_that_is_none_is_refused(monkeypatch, wrong):
    """An index that comes twice fails the point, and so does a permutation that does not change."""
    monkeypatch.setattr(torch, "randperm", lambda n, out: out.copy_(torch.tensor(wrong)))
    point = {"implementation": "torch.randperm", "backend": "cpu", "n_indices": 100}
    assert not shuffles.shuffle(point).check().passed


@pytest.mark.parametrize("implementation", [OURS, "saved arrays"])
def test_reset_that_does_nothing_is_refused(monkeypatch, implementation):
    """Environments that have ended must be restarted, and counted."""
    sizes = {"env": "cartpole", "backend": "host", "n_envs": 8, "n_agents": 1}
    made = resets.reset({"implementation": implementation, **sizes})
    assert made.check().passed
    whole = CUDAEnvironmentReset.reset_when_done

    def numpy_alone(self, data, *more):
        if data.backend.name == "cpu":
            whole(self, data, *more)

    monkeypatch.setattr(CUDAEnvironmentReset, "reset_when_done", numpy_alone)
    assert not made.check().passed


def test_record_counts_steps_of_all_agents(monkeypatch):
    """Tag Continuous is kept with its cut episodes; a recorder that keeps nothing is refused."""
    point = {"implementation": OURS, "backend": "host", "env": "tag_continuous", "n_envs": 4, "n_agents": 5}
    made = records.record(point)
    assert made.facts.work == {"env_steps": 4 * EAGER_STEPS, "agent_steps": 20 * EAGER_STEPS}
    assert made.check().passed
    monkeypatch.setattr(records.Recorder, "record", lambda self, step: None)
    assert not made.check().passed


def test_launches_are_counted():
    """Each of the declared launches has run; one that is missing is refused."""
    made = launches.launch({"implementation": OURS, "backend": "host", "mode": "eager"})
    assert made.facts.work == {"calls": launches.LAUNCHES}
    unseen = torch.full((1,), 7)
    seen = launches.counted(made, unseen)  # a counter that the kernel does not know
    assert not seen.passed
    assert seen.max_error == launches.LAUNCHES


def test_step_alone_draws_nothing(monkeypatch):
    """Many steps take the actions of one draw; with draws there is one for each."""
    draws = []
    monkeypatch.setattr(env_case, "random_policy", lambda wrapper, seed: lambda: draws.append(seed))
    point = {"env": "cartpole", "backend": "host", "n_envs": 8, "n_agents": 1}
    alone = env_case.step(point)
    n_before = len(draws)
    alone.run()
    assert len(draws) == n_before
    env_case.env_step(point).run()
    assert len(draws) >= n_before + EAGER_STEPS
    assert alone.facts.work == {"env_steps": 8 * EAGER_STEPS, "agent_steps": 8 * EAGER_STEPS}


@pytest.mark.parametrize(
    ("case", "axes", "want"),
    [
        ("return_scan", {"implementation": ("torch loop", OURS)}, ["1", "4"]),
        ("graph", {"mode": ("eager", "graph")}, ["1", "4"]),
        ("step", {"backend": ("cpu", "host")}, ["1", "4"]),
    ],
)
def test_tables_show_rates_over_their_baseline(case, axes, want):
    """Four times the baseline's rate reads 4, whichever axis tells the baseline."""
    ((axis, values),) = axes.items()
    plain = {"implementation": "ours", "backend": "host", "mode": "eager", "n_envs": 10}
    records = [
        record(rate, case=case, point={**plain, axis: value}).model_copy(update={"metrics": rates(rate)})
        for value, rate in zip(values, (1e6, 4e6), strict=True)
    ]
    assert sorted(cells[-1] for cells in TABLES[case]["terminal"](records).cells) == want


def rates(rate: float) -> dict[str, Metric]:
    """Return a rate and the time of one of it."""
    return {
        "calls_per_s": Metric(value=rate, unit="calls/s", direction="higher", low=rate, high=rate),
        "ns_per_call": Metric(value=1e9 / rate, unit="ns", direction="lower", low=1e9 / rate, high=1e9 / rate),
    }


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*KERNELS, "graph", "rollout"])
@pytest.mark.parametrize("backend", [name for name in BACKENDS if name not in ON_CPU])
def test_points_on_a_gpu_are_right_as_they_are_replayed(name, backend):
    """The smoke points in CUDA C and Numba, captured where they are, pass their checks before and after runs."""
    points = [point for point in CASES[name].points("smoke") if point["backend"] == backend]
    if name == "rollout":
        points = [{**point, "backend": backend, "mode": "graph"} for point in CASES[name].points("smoke")[:1]]
    assert points
    for point in points:
        prepared = CASES[name].setup(point)
        for _ in range(2):
            seen = prepared.check()
            assert seen.passed, (point, seen)
            prepared.run()
            prepared.synchronize()
