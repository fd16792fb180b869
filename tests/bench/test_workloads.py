"""All workloads: points, measurements, and checks that find errors."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import math
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bench.core.errors import Skip
from bench.core.measure import Plan, Ranks, Timed, Timer
from bench.core.point import PLAIN, PLAIN_CASES, Preset, matches, point_name
from bench.judge.published.ledger import CLAIMS
from bench.peers.catalogue import PEERS, PeerJob
from bench.process import local
from bench.workloads import cases, env_step, learn
from bench.workloads.cases import CASES, IN_PAPER, jobs
from bench.workloads.setups import environments, every, kernels, many_steps, stepping
from bench.workloads.setups.kernels import GAMMA, SCANNERS, Rollout
from bench.workloads.setups.timing import EAGER_STEPS, repeated, snapshot_of
from bench.workloads.setups.trainers import shipped
from bench.workloads.shared import ON_GPU, OURS, env_point
from envs import ENVS
from tests.bench.checked import declared
from tests.support import on_backends
from warpdrive_min import BACKENDS, EnvWrapper
from warpdrive_min.agreement.compare import errors
from warpdrive_min.backends.host import HostKernel
from warpdrive_min.errors import WarpDriveError
from warpdrive_min.policies import random_policy

DECLARED = declared()
TINY = Plan(sample_s=1e-4, n_samples=3, max_samples=3, warm_up_cap_s=0.0, n_starts=1, n_long_starts=1, watch_s=0.0)
PRESETS: tuple[Preset, ...] = ("smoke", "default", "full", "paper")


ELSEWHERE = ("time_to_solution", "startup", "learn")
"""Cases that start processes or train to a threshold; `test_time_to_solution` and `test_learn` do so by day."""
LATE_ON_NUMBA = [("many_steps", "tag_gridworld"), ("env_step", "rice")]


def smoke_points():
    """Return the smoke points that one process can test.

    Training cases have one point per backend, `Ranks` only two ranks.
    """
    for case in CASES.values():
        points = list(case.points("smoke"))
        if case.workload is Ranks:
            points = points[-1:]  # two ranks
        elif case.scope in ("rollout", "train", "learn", "startup"):
            points = points[:1] + [{**points[0], "backend": backend, "mode": "graph"} for backend in ON_GPU]
        for point in points:
            marks = [pytest.mark.gpu] if point["backend"] in ON_GPU else []
            if case.name in ELSEWHERE:
                marks.append(pytest.mark.nightly)
            is_late = case.scope in ("rollout", "learn", "startup") or point.get("kept") == "last"
            is_late |= case.name == "neighbor_search" or (case.name, point.get("env")) in LATE_ON_NUMBA
            if point["backend"] == "numba" and is_late:
                marks.append(pytest.mark.nightly)  # long compilation; `train`, and stored steps, are alike
            yield pytest.param(case, point, id=point_name(case.name, point), marks=marks)


@pytest.mark.parametrize(("case", "point"), list(smoke_points()))
def test_smoke_point_is_measured_and_right(case, point):
    """A smoke point passes its checks before and after measuring."""
    workload = case.setup(point)
    assert type(workload) is case.workload
    got = workload.measure(TINY)
    assert got.rejection_reason is None
    assert got.before.passed
    assert got.after.passed
    assert DECLARED[case.name].holds(got.before.oracle, got.after.oracle), "docs/sweeps.md says what is checked"
    assert min(metric.value for metric in got.metrics.values()) > 0
    assert case.name != "startup" or next(iter(got.notes["samples_s"])) == "import_s"
    assert workload.facts.threads is None or workload.facts.threads >= 1
    if case.workload is Timed:
        assert workload.facts.mode == point.get("mode", workload.facts.mode)
        assert min(workload.facts.work.values()) >= 1
        assert len(got.samples_ns) == 3
        is_alike = case.scope == "kernel" and case.name != "step"  # each run does the same
        assert (workload.snapshot is None) == is_alike


@on_backends(
    "run",
    [("cartpole", 1), ("tag_continuous", 5)],
    [pytest.param("host"), *(pytest.param(each, marks=pytest.mark.gpu) for each in ON_GPU)],
    numba=[("cartpole", 1)],
)
def test_steps_go_on_from_a_snapshot_to_the_bit(run, backend):
    """Steps from a restored snapshot are bit-identical.

    This includes random draws, from any state in between.
    """
    env, n_agents = run
    wrapper = environments.start_env(env_point(env, backend, 64, n_agents, exact=False), backend, 64)
    data, draw = wrapper.cuda_data_manager, random_policy(wrapper)
    steps = repeated(wrapper.backend, lambda: (draw(), wrapper.step()))
    steps.run()
    restore = snapshot_of(data)
    seen = []
    for n_runs in (1, 3, 1):
        restore()
        for _ in range(n_runs):
            steps.run()
        wrapper.backend.synchronize()
        seen.append(
            {name: data.tensor(name).cpu().clone() for name in ("observations", "sampled_actions", "_timestep_")}
        )
    first, other, again = seen
    assert max(errors(first, again).values()) == 0
    assert min(errors(first, other).values()) > 0


ON_HOST = [
    pytest.param(case, next(point for point in case.points("smoke") if point["backend"] == "host"), id=case.name)
    for case in CASES.values()
    if case.workload is Timed
]
ON_HOST += [
    pytest.param(CASES["many_steps"], point, id=f"many_steps with a policy, {point['mode']}")
    for point in CASES["many_steps"].points("smoke")
    if point["backend"] == "host" and "policy" in point
]


@pytest.mark.parametrize(("case", "point"), ON_HOST)
def test_kernels_that_do_nothing_are_refused(case, point, monkeypatch):
    """A point with kernels that do nothing fails its checks."""
    prepare, is_broken = HostKernel.prepare, False

    def breakable(*arguments):
        launch = prepare(*arguments)
        return lambda: None if is_broken else launch()

    monkeypatch.setattr(HostKernel, "prepare", breakable)
    workload = case.setup(point)
    is_broken = True
    try:
        fault = workload.measure(TINY).rejection_reason
    except WarpDriveError as error:
        fault = str(error)
    assert fault


def test_steps_that_do_not_fit_the_gpu_are_skipped(monkeypatch):
    """A point that needs more GPU memory is skipped."""
    wrapper = EnvWrapper(ENVS["cartpole"](), num_envs=3, env_backend="cpu", auto_reset=True)
    wrapper.reset()
    data = SimpleNamespace(device=torch.device("cuda"), tensor=wrapper.cuda_data_manager.tensor)
    total = 100 * 2 * 3 * 4 * 4
    gpu = SimpleNamespace(total_memory=total)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    many_steps.require_room(SimpleNamespace(cuda_data_manager=data))
    gpu.total_memory = total - 1
    with pytest.raises(Skip, match="all observations of 100 steps must fit the GPU"):
        many_steps.require_room(SimpleNamespace(cuda_data_manager=data))
    many_steps.require_room(wrapper)


HEAVY = ("torch", "numpy", "envs", "warpdrive_min")
LIGHT = ("warpdrive_min.constants", "warpdrive_min.errors", "warpdrive_min.packages")
"""Modules without torch; `warpdrive_min.BACKENDS` imports backends on first use."""


@pytest.mark.parametrize("file", sorted(Path(cases.__file__).parent.glob("*.py")), ids=lambda file: file.stem)
def test_case_files_import_what_measures_inside_functions(file):
    """Listing points imports neither torch, NumPy nor environments."""
    imported = []
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            imported += [f"{module}.{alias.name}" for alias in node.names]
    allowed = ("warpdrive_min.BACKENDS", "warpdrive_min.backends.BACKENDS")
    heavy = [name for name in imported if name.split(".")[0] in HEAVY and not name.startswith(LIGHT)]
    assert [name for name in heavy if name not in allowed] == []
    assert [name for name in imported if name.startswith(".setups")] == []


def test_processes_that_measure_start_with_all_setups():
    """The fork server imports every set-up in advance."""
    files = {file.stem for file in Path(every.__file__).parent.glob("*.py")}
    assert {f"{every.__package__}.{each}" for each in files - {"__init__"}} <= sys.modules.keys()
    assert local.every is every


def test_run_configs_of_tasks_say_their_environments():
    """A task's number of environments is that of its run config."""
    for task in learn.WHOLE_TASKS:
        assert task.n_envs == shipped(task.env, f"_{task.algorithm.lower()}").trainer.num_envs


def test_points_of_a_set_are_few_enough_to_be_measured_again():
    """Each row of the selection has points, with the sizes of other software."""
    points = [{"case": job.case.name, **job.point} for job in jobs("full")]
    assert [row for row in IN_PAPER if not any(matches(point, row) for point in points)] == []
    chosen = jobs("paper")
    assert 120 <= len(chosen) <= 200
    assert {"train", "many_steps", "env_step", "rollout", "learn"} <= {job.case.name for job in chosen}
    ours = [(job.case.name, dict(job.point)) for job in chosen]
    searched = [PeerJob(PEERS["gymnax"], axes).ours("pycuda") for axes in PEERS["gymnax"].points("paper")]
    assert [each for each in searched if each not in ours] == []


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("has_gpu", [True, False])
@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_points_are_told_apart_by_their_axes(case, preset, has_gpu, monkeypatch):
    """A case has unique points, on all backends beyond smoke.

    Torch is measured once per device; both sides of a pair are points.
    """
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    points = case.points(preset)
    places = {tuple(point.items()) for point in points}
    assert len(places) == len(points)
    if preset == "paper":
        return
    assert points
    backends = {point["backend"] for point in points}
    codes = {*BACKENDS, *([PLAIN] if case.name in PLAIN_CASES else [])}
    assert backends <= codes
    if preset != "smoke" and case.name not in ("neighbor_search", "many_steps") and case.scope in ("kernel", "env"):
        assert backends == codes
    of_torch = [point for point in points if str(point.get("implementation")).startswith("torch")]
    assert {point["backend"] for point in of_torch} <= {"cpu", "pycuda"}
    pairs = case.pairs(preset)
    assert case.workload is Timed or not pairs
    for pair in pairs:
        assert pair[0] != pair[1]
        assert {tuple(point.items()) for point in pair} <= places
    assert len({tuple(map(str, pair)) for pair in pairs}) == len(pairs)


@pytest.mark.parametrize(
    ("case", "base", "other"),
    [
        ("env_step", {"env": "cartpole", "backend": "host", "exact": False}, {"backend": "numba"}),
        ("env_step", {"env": "cartpole", "backend": PLAIN, "n_envs": 1_000_000}, {"backend": "pycuda"}),
        ("published", {"backend": PLAIN}, {"backend": "host"}),
        ("graph", {"mode": "eager"}, {"mode": "graph"}),
        ("neighbor_search", {"neighbor_search": "all_pairs"}, {"neighbor_search": "grid"}),
        ("return_scan", {"implementation": "torch loop"}, {"implementation": OURS, "backend": "numba"}),
        ("rollout", {"env": "cartpole", "backend": "cpu"}, {"backend": "host"}),
    ],
)
def test_ratios_that_are_shown_have_pairs(case, base, other):
    """Each ratio of a table or figure has a pair."""
    assert any(
        base.items() <= first.items() and {**base, **other}.items() <= second.items()
        for first, second in CASES[case].pairs("full")
    )


def test_ratios_that_are_claimed_have_pairs():
    """Each claimed ratio of timed points has a pair."""
    ratios = [claim.query for claim in CLAIMS if claim.query and claim.query.over]
    timed = [query for query in ratios if CASES[query.of.case].workload is Timed]
    assert timed
    for query in timed:
        pairs = CASES[query.of.case].pairs("full")
        assert any(query.over.matches_point(base) and query.of.matches_point(other) for base, other in pairs), query


@pytest.mark.parametrize("got", [{}, {"a": [0.0] * 3}, {"a": [0.0, float("nan")]}])
def test_arrays_that_are_missing_or_not_numbers_differ(got):
    """Missing arrays, other shapes and NaN differ infinitely."""
    assert errors({"a": torch.zeros(2)}, got) == {"a": float("inf")}
    assert errors({"a": torch.tensor([0.0, 6.0])}, {"a": [0.5, 0.5]}, {"a": 6.0}) == {"a": 0.5}


# ------------------------------------------------------------------ steps


def test_step_alone_draws_nothing(monkeypatch):
    """`step` reuses one draw of actions; `env_step` draws each step."""
    draws = []
    monkeypatch.setattr(stepping, "random_policy", lambda wrapper, seed: lambda: draws.append(seed))
    point = {"env": "cartpole", "backend": "host", "n_envs": 8, "n_agents": 1}
    alone = env_step.step(point)
    n_before = len(draws)
    alone.run()
    assert len(draws) == n_before
    env_step.env_step(point).run()
    assert len(draws) >= n_before + EAGER_STEPS
    assert alone.facts.work == {"env_steps": 8 * EAGER_STEPS, "agent_steps": 8 * EAGER_STEPS}


@pytest.mark.parametrize(("n_envs", "n_episodes"), [(1, 1), (2, 0)])
def test_a_sample_of_one_environment_takes_whole_episodes(n_envs, n_episodes):
    """One environment is timed over whole episodes, several over any number of steps."""
    point = {"env": "tag_continuous", "backend": "cpu", "n_envs": n_envs, "n_agents": 5}
    workload = env_step.env_step(point)
    episode, n_steps = environments.start_env(point, "cpu", 1).episode_length, workload.facts.notes["steps_per_run"]
    assert workload.period == max(1, n_episodes * (episode // math.gcd(episode, n_steps)))


@pytest.mark.skipif(BACKENDS["host"].own_cores is None, reason="threads cannot be pinned here")
def test_threads_of_the_compiled_baseline_have_cores_of_their_own():
    """Host threads are pinned to cores during a sample."""
    host, allowed, seen = BACKENDS["host"], os.sched_getaffinity(0), []
    workload = env_step.env_step({"env": "cartpole", "backend": "host", "n_envs": 300, "n_agents": 1})

    def look() -> None:
        workload.run()
        seen.append(affinities())

    got = Timer(dataclasses.replace(workload, run=look)).runs_per_sample(0.0)
    assert got >= 1
    assert host.own_cores is not None
    assert len(set(host.own_cores)) == host.threads == workload.facts.threads
    assert workload.facts.notes["threads_pinned_to"] == host.own_cores
    assert all({core} in found for found in seen for core in host.own_cores)
    assert all(affinity == allowed for affinity in affinities())


def affinities() -> list[set[int]]:
    """Return the cores that each thread of this process may use."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # it has ended
            found.append(os.sched_getaffinity(int(task.name)))
    return found


# ------------------------------------------------------------------ kernels


def test_all_scans_sum_up_to_the_end_of_the_episode():
    """Return scans stop at the end of an episode.

    The value of the last state follows the last step.
    """
    played = Rollout(
        rewards=torch.tensor([1.0, 2.0, 3.0, 4.0])[:, None, None],
        terminated=torch.zeros(4, 1, dtype=torch.int32),
        truncated=torch.tensor([0, 1, 0, 0], dtype=torch.int32)[:, None],
        last_values=torch.tensor([[10.0]]),
        returns=torch.zeros(4, 1, 1),
    )
    last = 4 + GAMMA * 10
    want = [1 + GAMMA * 2, 2, 3 + GAMMA * last, last]
    assert kernels.returns_in_float64(played).flatten().tolist() == pytest.approx(want, rel=1e-6)
    for set_up in SCANNERS.values():
        played.returns.zero_()
        set_up(BACKENDS["cpu"], played)()
        assert played.returns.flatten().tolist() == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize("n_filled", [0, 3])
def test_scan_that_fills_in_too_little_is_refused(monkeypatch, n_filled):
    """A scan that leaves rows unwritten fails its check."""

    def lazy(backend, played):
        return lambda: played.returns[:n_filled].copy_(kernels.returns_in_float64(played)[:n_filled])

    monkeypatch.setitem(SCANNERS, OURS, lazy)
    point = {"implementation": OURS, "backend": "cpu", "n_steps": 8, "n_envs": 4, "n_agents": 1}
    assert not CASES["return_scan"].setup(point).check().passed


@pytest.mark.parametrize("wrong", [[0, 1, 2, 2] * 25, list(range(100))], ids=["twice", "always the same"])
def test_shuffle_that_is_none_is_refused(monkeypatch, wrong):
    """A shuffle that repeats an index or never changes fails."""
    monkeypatch.setattr(torch, "randperm", lambda n, out: out.copy_(torch.tensor(wrong)))
    point = {"implementation": "torch.randperm", "backend": "cpu", "n_indices": 100}
    assert not CASES["shuffle"].setup(point).check().passed


def test_sampler_with_wrong_frequencies_is_refused(monkeypatch):
    """A sampler with wrong frequencies fails its check."""
    monkeypatch.setattr(torch, "multinomial", lambda rows, n, out: out.zero_())
    point = {"implementation": "torch.multinomial", "backend": "cpu", "n_envs": 8, "n_agents": 1, "n_actions": 2}
    check = CASES["sampler"].setup(point).check()
    assert not check.passed
    assert check.max_error > 6


def test_record_of_several_agents_has_truncated_episodes():
    """Recording several agents counts the steps of all."""
    point = {"implementation": OURS, "backend": "host", "env": "tag_continuous", "n_envs": 4, "n_agents": 5}
    workload = CASES["record"].setup(point)
    assert workload.facts.work == {"env_steps": 4 * EAGER_STEPS, "agent_steps": 20 * EAGER_STEPS}
    assert workload.check().passed
