"""Rollout and training cases: sizes, checks, snapshots."""

from __future__ import annotations

import pytest
import torch

from bench.core.point import Check
from bench.judge.published.anchors import ANCHORS, anchor
from bench.workloads import train
from bench.workloads.cases import CASES
from bench.workloads.points import points_of
from bench.workloads.setups import iterations, trainers
from bench.workloads.setups.timing import Repeated, available, timed
from bench.workloads.setups.trainers import WatchedTrainer, shipped
from bench.workloads.shared import ON_GPU, training_point
from tests.support import on_backends
from warpdrive_min.constants import TIMESTEP
from warpdrive_min.errors import TrainingError
from warpdrive_min.training.config import RunConfig

WEIGHTS = 4 * 32 + 32 * 32 + 32 * 2 + 32
"""Weights of CartPole's 32-32 network, which a row meets once."""


def point(backend="host", env="cartpole", n_agents=1, **axes) -> dict:
    """Return a point with 4 environments of 8 steps."""
    return training_point(env, backend, 4, n_agents, 8, algorithm="A2C", **axes)


@pytest.fixture(scope="module")
def trainer():
    return WatchedTrainer("cartpole", trainers.settings(point()))


# ------------------------------------------------------------------ training


def test_run_is_one_iteration_of_the_trainer():
    """A run is one training iteration of the declared size."""
    workload = train.train(point())
    assert workload.facts.work == {"env_steps": 32, "agent_steps": 32}
    trainer = workload.run.__self__
    before = trainer.env_steps
    workload.run()
    assert trainer.env_steps == before + 32
    assert min(workload.facts.notes[name] for name in ("rollout_s", "update_s")) > 0
    assert workload.facts.notes["capture_s"] == 0


def test_twin_is_made_after_the_timing_alone():
    """The reference run is trained only after the timing.

    A second trainer would slow the timing.
    """
    points = []
    check = iterations.reference_run_check(
        point("cpu"), lambda point: points.append(point) or {"weights": [float(len(points))]}
    )
    own = Check(passed=True, max_error=0.0, oracle="itself", detail="moved")
    of_one = timed(available("host"), Repeated(int, 1, "eager"), lambda: own, work={}, reference_run=check)
    assert of_one.check().passed
    assert of_one.check_after(with_reference_run=False).oracle == "itself"
    assert not points
    after = of_one.check_after()
    assert (after.passed, after.max_error, after.detail) == (False, 1.0, "moved")
    assert after.oracle == "3 iterations of 8 environments against host, eager, exact floats: to the bit"
    twin, small = points
    assert twin | {"backend": "cpu"} == small
    assert (small["n_envs"], small["n_steps"]) == (8, 8)
    assert iterations.reference_point(point("pycuda")) == point("pycuda", mode="eager")


@pytest.mark.parametrize(
    ("after", "error", "is_right"),
    [
        ([1.0, 2.5], 0.0, True),
        ([1.0, 2.5], 1e-9, False),
        ([1.0, 2.0], 0.0, False),
        ([float("nan"), 2.0], 0.0, False),
        ([1.0, float("inf")], 0.0, False),
    ],
)
def test_training_that_is_wrong_is_refused(after, error, is_right):
    """Weights must move, stay finite and match the reference."""

    class Moved:
        weight = torch.tensor([1.0, 2.0])

        def iterate(self) -> None:
            self.weight = torch.tensor(after)

        def log_metrics(self) -> None: ...

        def weights(self) -> torch.Tensor:
            return self.weight

    assert iterations.learning_check(Moved(), lambda: (error, "by hand"))().passed == is_right


def test_weights_that_are_not_finite_are_refused():
    """NaN weights end the check with an error."""
    broken = WatchedTrainer("cartpole", trainers.settings(point()))
    with torch.no_grad():
        next(broken.groups["shared"].acting.parameters()).fill_(float("nan"))
    with pytest.raises(TrainingError):
        iterations.learning_check(broken)()


@pytest.mark.parametrize(
    ("env", "n_agents", "algorithm", "network"),
    [
        ("cartpole", 1, "PPO", "32-32"),
        ("pendulum", 1, "DDPG", "64-64"),
        ("tag_gridworld", 5, "A2C", "32-32"),
        ("tag_continuous", 22, "PPO", "32-32"),
        ("cartpole", 1, "A2C", "GRU 64"),
    ],
)
def test_twins_of_all_kinds_agree_to_the_bit(env, n_agents, algorithm, network):
    """Both CPU backends train bit-identical weights.

    Cases: minibatches, replay buffer, two policies.
    """
    of_both = point(env=env, n_agents=n_agents, network=network) | {"algorithm": algorithm}
    check = iterations.reference_run_check(of_both, iterations.weights_after_training)()
    assert check.passed, check
    assert "against cpu" in check.oracle
    start = WatchedTrainer(env, trainers.settings(of_both), exact=True).weights()
    assert (start - iterations.weights_after_training(of_both)["weights"]).abs().max() > 0, "must have learned"


@pytest.mark.parametrize("backend", ["host", pytest.param("pycuda", marks=pytest.mark.gpu)])
def test_exact_training_is_held_against_that_of_a_cpu(backend):
    """Exact training is checked against the backend `host`."""
    exact = {**point(backend, mode="eager"), "algorithm": "PPO", "exact": True}
    workload = train.train(exact)
    after = workload.check_after()
    assert after.passed, after
    assert "against host, eager" in after.oracle
    pairs = [pair for pair in CASES["train"].pairs("default") if "exact" in pair[1]]
    assert {each["backend"] for _, each in pairs} == {"host", "pycuda"}
    assert {each["algorithm"] for _, each in pairs} == {"A2C", "PPO", "DDPG"}
    assert all({**base, "exact": True} == each and base in points_of("train", "default") for base, each in pairs)
    for _, each in pairs:
        assert RunConfig.from_dict(trainers.settings(each)).trainer.exact, "exact kernels have all of it"


@on_backends(
    "run",
    [("pendulum", 1, "DDPG"), ("tag_continuous", 22, "PPO")],
    [pytest.param("host"), *(pytest.param(each, marks=pytest.mark.gpu) for each in ON_GPU)],
    numba=[("pendulum", 1, "DDPG")],
)
def test_training_goes_on_from_a_snapshot_to_the_bit(run, backend):
    """Training from a restored snapshot is bit-identical."""
    env, n_agents, algorithm = run
    of_env = point(backend, env, n_agents) | {"algorithm": algorithm}
    trainer = WatchedTrainer(env, trainers.settings(of_env), exact=True)
    trainer.iterate_times(2)  # captured, where there are graphs
    restore = trainer.snapshot()
    seen = []
    for n in (1, 3, 1):
        restore()
        trainer.iterate_times(n)
        seen.append((trainer.weights(), trainer.wrapper.cuda_data_manager.tensor(TIMESTEP).clone(), trainer.env_steps))
    first, other, again = seen
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert first[2] == again[2]
    assert not torch.equal(first[0], other[0])


def test_only_the_first_rollout_of_a_trainer_is_checked(monkeypatch):
    """Only a trainer's first rollout is checked for unwritten values.

    Timed blocks start from a snapshot; each would time the check again.
    """
    trainer, checked = WatchedTrainer("cartpole", trainers.settings(point())), []
    whole = trainer.check.unwritten_is_nan
    monkeypatch.setattr(trainer.check, "unwritten_is_nan", lambda: checked.append(trainer.iteration) or whole())
    begin = trainer.snapshot()
    trainer.iterate_times(2)
    restore = trainer.snapshot()
    for _ in range(2):
        restore()
        trainer.iterate_times(2)
    assert checked == [0]
    begin()
    trainer.iterate_times(1)
    assert checked == [0, 0]


def test_settings_are_the_shipped_ones_in_other_sizes():
    """Settings that are no axis come from the run config."""
    config = RunConfig.from_dict(trainers.settings(point(network="256-256")))
    own, want = config.policy["shared"], shipped("cartpole", "").policy["shared"]
    assert (own.lr, own.entropy_coeff, own.gamma) == (want.lr, want.entropy_coeff, want.gamma)
    assert own.model.fc_dims == (256, 256)
    assert (config.trainer.num_envs, config.trainer.train_batch_size) == (4, 32)


def test_large_points_go_on_learning():
    """Large points keep a learning rate above 0.

    The schedule would end at once.
    """
    point = training_point("cartpole", "host", 65_536, 1, 128, algorithm="PPO", network="64-64 separate tanh")
    *_, (ended, last) = shipped("cartpole", "_ppo").policy["shared"].lr
    assert last == 0
    assert ended < 65_536 * 128
    assert trainers.settings(point)["policy"]["shared"]["lr"] > 0


@pytest.mark.parametrize("each", ANCHORS, ids=lambda each: f"{each.env}-{each.n_envs}-{each.n_agents}-{each.algorithm}")
def test_point_of_every_reference_is_a_run(each):
    """Each published size has a comparable point."""
    ours = training_point(backend="pycuda", **each.axes)
    config = RunConfig.from_dict(trainers.settings(ours))
    assert config.trainer.train_batch_size == each.n_envs * each.n_steps
    assert {policy.algorithm for policy in config.policy.values()} == {each.algorithm}
    assert anchor(ours) is each
    if each.n_taggers is not None:
        assert config.env["num_taggers"] == each.n_taggers
        assert config.env["num_runners"] == each.n_agents - each.n_taggers
    assert ours in points_of("train", "default")
    assert {**ours, "backend": "numba"} in points_of("train", "full")


def test_least_operations_are_those_of_the_weights(trainer):
    """A sample uses each weight once to act, twice to learn."""
    assert iterations.least_ops(trainer) == 32 * WEIGHTS * 3
    assert iterations.least_ops(trainer, learns=False) == 32 * WEIGHTS
    assert iterations.least_bytes(trainer) == 32 * (trainer.wrapper.env.bytes_per_step + 2 * 4 * 4)


def test_what_all_agents_see_counts_once():
    """Observations that all agents share count once.

    Bytes and products of layer one are one row's; the five agents differ by a mark.
    """
    shared = WatchedTrainer("tag_gridworld", trainers.settings(point(env="tag_gridworld", n_agents=5)))
    n_first, n_others = 32 * 21, 32 * 32 + 32 * 5 + 32
    assert iterations.least_ops(shared, learns=False) == 32 * (n_first + 5 * n_others)
    of_state = shared.wrapper.env.bytes_per_step - 5 * 21 * 4
    assert iterations.least_bytes(shared) == 32 * (of_state + 3 * 21 * 4)


# ------------------------------------------------------------------ rollouts


@pytest.mark.parametrize(
    ("n_played", "rewards", "is_right"),
    [(8, 1.0, True), (7, 1.0, False), (0, 1.0, False), (8, None, False)],
    ids=["right", "a step less", "no step", "no rewards"],
)
def test_rollout_is_whole_and_finite(n_played, rewards, is_right):
    """A rollout with missing steps or NaN rewards fails the check."""
    trainer = trainers.fixed_policy_trainer(point())
    data = trainer.wrapper.cuda_data_manager

    def run() -> None:
        if rewards is not None:
            data.tensor("rewards").fill_(rewards)
        data.tensor(TIMESTEP).add_(n_played)

    assert iterations.rollout_check(point(), trainer, run)().passed == is_right
