"""A rollout in one launch records the data of single steps."""

from __future__ import annotations

import pytest
import torch

from tests.training.builders import (
    A2C,
    CLASSIC,
    NORMALISED,
    ON_GPU,
    PPO,
    everything,
    log_prob_and_entropy,
    make_run,
    require_same_weights,
    require_that_it_goes_on,
    weights,
)
from warpdrive_min.errors import ConfigError

DEEP = {"fc_dims": [20, 12], "activation": "tanh", "shared": False, "init_method": "xavier"}
BACKENDS = ["host", *(each for each in ON_GPU if each.values == ("pycuda",))]
TWO_LAYERS = {"shared": {**A2C, "model": {"fc_dims": [20, 12]}}}
ROLLOUTS = {
    "PPO": ("cartpole", {"episode_length": 15}, {"shared": PPO}),
    "A2C, deep": ("mountain_car", {"episode_length": 5, "reset_pool_size": 3}, {"shared": {**A2C, "model": DEEP}}),
    "A2C, five agents": ("tag_gridworld", {"num_taggers": 4, "grid_length": 4, "episode_length": 6}, TWO_LAYERS),
}


def trainers(run, backend, **given):
    """Return a one-launch trainer and a step-by-step one."""
    options = {"n_envs": 70, "n_steps": 13, "wrapper": {"exact": True}, **given}
    return [make_run(run, backend, trainer={"fused_rollout": fused}, **options) for fused in (True, False)]


def assert_acted(group, within):
    """Assert that a rollout's log-probabilities are those of the current network."""
    with torch.no_grad():  # nothing remains in autograd for the capture of the update
        head = group.acting.act(group.buffer.observations[:-1])
    want, _ = log_prob_and_entropy(group.arrays.space, head, group.buffer.actions)
    torch.testing.assert_close(group.buffer.log_probs, want, rtol=0, atol=within)


@pytest.mark.parametrize("run", ROLLOUTS.values(), ids=list(ROLLOUTS))
@pytest.mark.parametrize("backend", BACKENDS)
def test_rollout_at_once_is_that_of_single_steps(backend, run):
    """All arrays equal those of single steps.

    Log-probabilities are equal within rounding.
    """
    one, other = trainers(run, backend)
    assert callable(one.fused_rollout)
    before = weights(one)
    for _ in range(2):
        for trainer in (one, other):
            trainer.collect()
        buffers = [next(iter(trainer.groups.values())).buffer for trainer in (one, other)]
        for name in ("observations", "actions", "rewards", "terminated", "truncated", "successes"):
            assert torch.equal(*(getattr(buffer, name) for buffer in buffers)), name
        torch.testing.assert_close(*(buffer.log_probs for buffer in buffers), rtol=0, atol=1e-5)
        cuts = [trainer.recorders[""].n_truncated for trainer in (one, other)]
        assert torch.equal(*cuts)
        for env, n_cuts in enumerate(cuts[0].tolist()):
            assert torch.equal(*(buffer.truncated_observations[:n_cuts, env] for buffer in buffers))
    assert cuts[0].any()
    assert buffers[0].terminated.any() == (run[0] != "mountain_car")
    states = [everything(trainer) for trainer in (one, other)]
    assert [name for name in states[0] if not torch.equal(states[0][name], states[1][name])] == []
    for trainer in (one, other):
        trainer.update()
    require_same_weights(one, other, before, 1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_iterations_follow_what_they_have_learned(backend):
    """Each rollout uses the latest weights, in CUDA graphs too."""
    trainer = trainers(ROLLOUTS["PPO"], backend)[0]
    (group,) = trainer.groups.values()
    for _ in range(3):
        before = [parameter.detach().clone() for parameter in group.acting.parameters()]
        trainer.iterate()
        now = [parameter.detach().clone() for parameter in group.acting.parameters()]
        for parameter, old in zip(group.acting.parameters(), before, strict=True):
            parameter.data.copy_(old)
        assert_acted(group, 1e-5)
        for parameter, new in zip(group.acting.parameters(), now, strict=True):
            parameter.data.copy_(new)
        assert not all(map(torch.equal, before, now))


@pytest.mark.parametrize("backend", BACKENDS)
def test_training_in_tf32_acts_in_it(backend):
    """On TF32, log-probabilities are within its rounding.

    A CPU has no TF32.
    """
    run = ("cartpole", CLASSIC, {"shared": {**PPO, "model": DEEP}})
    trainer = make_run(run, backend, n_envs=70, n_steps=4, trainer={"fused_rollout": True, "precision": "tf32"})
    trainer.collect()
    (group,) = trainer.groups.values()
    assert_acted(group, 1e-5 if backend == "host" else 5e-3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_run_that_goes_on_has_the_same_bits(backend, tmp_path):
    """A resumed run and single launches equal an uninterrupted run."""
    modes = iter(("auto", "eager", "eager"))

    def make(**given):
        trainer = {"fused_rollout": True, "mode": next(modes)}
        return make_run("PPO", backend, n_envs=4, n_steps=6, trainer=trainer, **given)

    require_that_it_goes_on(make, tmp_path)


@pytest.mark.parametrize(
    ("run", "backend", "given", "why"),
    [
        ("PPO, continuous", "host", {}, "actions are continuous"),
        ("two policies", "host", {}, "several policies"),
        ("shared", "host", {}, "one discrete action each"),
        ("PPO", "cpu", {}, "has no launches"),
        ("PPO", "host", {"wrapper": {"auto_reset": False}}, "do not write observations"),
        (("cartpole", CLASSIC, {"shared": {**PPO, "model": {"fc_dims": [129]}}}), "host", {}, "129 units"),
        (("cartpole", CLASSIC, {"shared": {**PPO, "model": {"type": "gru"}}}), "host", {}, "recurrent"),
        (("cartpole", CLASSIC, {"shared": {**PPO, "model": NORMALISED}}), "host", {}, "normalises observations"),
    ],
)
def test_what_cannot_be_one_launch_says_why(run, backend, given, why):
    """A rollout that needs several launches has a reason.

    A run that requires one launch is refused.
    """
    with pytest.raises(ConfigError, match=f"fused_rollout.*{why}"):
        make_run(run, backend, trainer={"fused_rollout": True}, **given)


def test_runs_on_a_cpu_are_played_step_by_step_unless_told():
    """On a CPU, rollouts are step by step by default.

    Thus all CPU backends give the same results.
    """
    assert "does not run on a GPU" in make_run("PPO", "host").fused_rollout
    assert make_run("PPO", "host", trainer={"fused_rollout": False}).fused_rollout == "trainer.fused_rollout is false"
