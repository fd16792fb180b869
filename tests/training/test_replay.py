"""Replay buffer: transitions of a rollout, storage, and draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.support import BACKENDS_HERE, is_simulated
from tests.training.builders import make_buffer, refused
from warpdrive_min import BACKENDS
from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.algorithms.replay import ReplayBuffer

SPACE = ActionSpace((), 2, (-1.0, 0.0), (1.0, 2.0))


def make(batch, n_transitions, *, n_step=1, gamma=0.5, n_drawn=8, backend="cpu", seed=0):
    """Return a buffer for the batch's rollouts."""
    return ReplayBuffer(batch, SPACE, n_transitions, n_step, gamma, n_drawn, BACKENDS[backend], seed)


def stored(buffer, batch):
    """Return the buffer's arrays, ``(step, env, agent, ...)``, as NumPy."""
    shape = (-1, *batch.rewards.shape[1:])
    names = ("observations", "actions", "rewards", "discounts", "following")
    return {name: buffer.state()[name].reshape(*shape, *buffer.state()[name].shape[1:]).numpy() for name in names}


# ------------------------------------------------------------------ transitions


def test_stored_actions_are_clipped():
    """Stored actions are clipped to their bounds; the batch is unchanged."""
    batch = make_buffer(1, 1, 3)
    drawn = torch.tensor([[-2.0, -2.0], [0.5, 0.5], [3.0, 3.0]])
    batch.actions[0, 0] = drawn
    buffer = make(batch, 3)
    buffer.add(batch)
    assert stored(buffer, batch)["actions"][0, 0].tolist() == [[-1, 0], [0.5, 0.5], [1, 2]]
    assert torch.equal(batch.actions[0, 0], drawn)


@pytest.mark.parametrize("n_step", [1, 2, 3, 8])
def test_transitions_equal_a_plain_loop(n_step):
    """Transitions equal a loop over single windows.

    Ends are random; windows have any length.
    """
    generator = torch.Generator().manual_seed(n_step)
    gamma, n_ends, n_cuts = 0.9, 0, 0
    for n_steps in (1, 2, 6):
        batch = make_buffer(n_steps, 40, 2, n_truncated=n_steps)
        for array in (batch.observations, batch.rewards, batch.truncated_observations):
            array.normal_(generator=generator)
        kind = torch.randint(4, (n_steps, 40), generator=generator)
        batch.terminated.copy_(kind == 0)
        batch.truncated.copy_(kind == 1)
        buffer = make(batch, n_steps * 80, n_step=n_step, gamma=gamma)
        buffer.add(batch)
        got = stored(buffer, batch)
        for env in range(40):
            for first in range(n_steps):
                rewards, discount = np.zeros(2), 1.0
                for step in range(first, min(first + n_step, n_steps)):
                    rewards += discount * batch.rewards[step, env].numpy()
                    discount *= gamma
                    following = batch.observations[step + 1, env]
                    if batch.terminated[step, env]:
                        discount, n_ends = 0.0, n_ends + 1
                        break
                    if batch.truncated[step, env]:
                        following, n_cuts = (
                            batch.truncated_observations[batch.truncated[:step, env].sum(), env],
                            n_cuts + 1,
                        )
                        break
                np.testing.assert_allclose(got["rewards"][first, env], rewards, rtol=1e-5, atol=1e-6)
                np.testing.assert_allclose(got["discounts"][first, env], discount, rtol=1e-6)
                np.testing.assert_array_equal(got["following"][first, env], following)
    assert min(n_ends, n_cuts) > 20, "windows must stop at both kinds of end"


# ------------------------------------------------------------------ ring


def fill(batch, value):
    """Give each step of a rollout a distinct number."""
    n_steps = len(batch.actions)
    numbers = torch.arange(value, value + n_steps + 1.0, device=batch.rewards.device)[:, None, None]
    batch.observations.copy_(numbers[..., None].expand_as(batch.observations))
    batch.rewards.copy_(10 * numbers[:-1].expand_as(batch.rewards))
    batch.actions.copy_(numbers[:-1, ..., None].expand_as(batch.actions) / 1000)


@pytest.mark.parametrize("backend", BACKENDS_HERE)
def test_sample_covers_what_is_filled_and_only_that(backend):
    """Samples cover all filled transitions, and no others.

    This holds in a full ring too.
    """
    batch = make_buffer(2, 2, 1, device=BACKENDS[backend].device)
    n_drawn = 40 if is_simulated(backend) else 200
    buffer = make(batch, 5 * 2 + 1, n_drawn=n_drawn, backend=backend)
    assert buffer.capacity == 10, "rounded down to whole steps"
    for first, want in ((1, [1, 2]), (3, [1, 2, 3, 4]), (5, [2, 3, 4, 5, 6])):
        fill(batch, first)
        buffer.add(batch)
        drawn = buffer.sample()
        assert drawn.observations.unique().tolist() == want
        torch.testing.assert_close(drawn.rewards, 10 * drawn.observations[:, 0])
        torch.testing.assert_close(drawn.following, drawn.observations + 1)
        torch.testing.assert_close(drawn.actions, drawn.observations.expand(-1, 2) / 1000)
        assert buffer.sample().observations.data_ptr() == drawn.observations.data_ptr(), "static buffers"


def test_buffer_must_hold_a_rollout():
    """A buffer too small for a rollout raises, with the need."""
    batch = make_buffer(4, 3, 2)
    make(batch, 24)
    with refused("buffer_size", 23):
        make(batch, 23)


def test_buffer_must_be_countable():
    """More transitions than int32 counts are refused before allocation."""
    with refused("buffer_size", 2**31 - 1):
        make(make_buffer(1, 1, 1), 2**31 - 1)
