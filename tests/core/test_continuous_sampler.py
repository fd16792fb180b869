"""Continuous actions: noise around a mean."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.agreement import assert_same_bits
from tests.core.builders import N_AGENTS, N_ENVS, N_TYPES, draw, mean_of, sampler_of
from tests.support import by_night, is_simulated, on_every_backend, on_every_fast_backend, on_every_other_backend, push
from warpdrive_min import BACKENDS, capture, rng
from warpdrive_min.kernels import noise_numpy

NORMAL = {"damping": 1.0, "stddev": 1.0}
"""Standard normals."""


# ------------------------------------------------------------------ normals


@on_every_backend
def test_normals_are_box_muller_of_the_documented_words(backend):
    """Normals are the documented Box-Muller transform of Philox words.

    Draw d of type j of J: radius of word 2 (dJ + j), angle of the next.
    """
    data, sampler = sampler_of(backend, seed=(7 << 32) + 5)
    got = draw(data, sampler, 3, **NORMAL)
    for d, env, agent, j in np.ndindex(*got.shape):
        number = 2 * (d * N_TYPES + j)
        words = rng.philox(number // 4, env, agent, rng.STREAM_ACTIONS, 5, 7)
        first, second = (int(words[number % 4 + k]) >> 8 for k in range(2))
        want = math.sqrt(-2 * math.log1p(-first / 2**24)) * math.cos(2 * math.pi * second / 2**24)
        # The angle is rounded to float32, up to 2.4e-7, and the radius is at most 5.8.
        assert got[d, env, agent, j] == pytest.approx(want, rel=5e-7, abs=3e-6)
    assert got.std() > 0.5


@pytest.mark.parametrize("parts", [(0, 7, 15), by_night(range(16))], ids=["some", "all"])
def test_every_uniform_gives_a_finite_normal(parts):
    """Each uniform gives a finite normal; mean 0, variance 1.

    All 2^24 radii and cosines equal double precision; by day those of three sixteenths, with both ends.
    """
    totals = np.zeros(3)
    for start in (part * 2**20 for part in parts):
        upper = np.arange(start, start + 2**20, dtype=np.uint32)
        radius = noise_numpy.normal(upper << 8, np.zeros_like(upper))  # the cosine of 0 is 1
        product = noise_numpy.normal(np.full_like(upper, 0xFFFFFFFF), upper << 8)
        cosine = product.astype(np.float64) / math.sqrt(48 * math.log(2))
        fraction = upper / 2**24
        # One ulp of a float32 is up to 1.2e-7 of it, and of an angle up to 4.8e-7.
        np.testing.assert_allclose(radius, np.sqrt(-2 * np.log1p(-fraction)), rtol=2.4e-7, atol=0)
        np.testing.assert_allclose(cosine, np.cos(2 * np.pi * fraction), rtol=0, atol=7e-7)
        assert radius.dtype == product.dtype == np.float32
        totals += (radius.astype(np.float64) ** 2).sum(), cosine.sum(), (cosine**2).sum()
    if len(parts) < 16:
        return
    mean_square, mean_cosine, mean_square_cosine = totals / 2**24
    assert mean_cosine == pytest.approx(0, abs=1e-6)
    # A grid of 2^24 cuts the tail off at 2^-24.
    assert mean_square * mean_square_cosine == pytest.approx(1, abs=3e-6)


# ------------------------------------------------------------------ the process


@on_every_backend
def test_noise_follows_the_recurrence(backend):
    """Noise and action follow their formulas, computed in double."""
    data, sampler = sampler_of(backend, seed=3)
    normals = draw(data, sampler, 6, **NORMAL).astype(np.float64)
    sampler.init_random(3)
    sampler.reset_noise(data)
    got = draw(data, sampler, 6, mean=10.0, damping=0.3, stddev=0.5, scale=2.0)
    state = np.zeros_like(normals[0])
    for action, normal in zip(got, normals, strict=True):
        state = 0.7 * state + 0.5 * normal
        np.testing.assert_allclose(action, 10 + 2 * state, rtol=1e-6, atol=2e-6)
    np.testing.assert_allclose(data.pull_data_from_device("sampled_actions_ou_state"), state, rtol=1e-6, atol=1e-6)


@on_every_fast_backend
@pytest.mark.parametrize("params", [by_night({}), {"damping": 0.3, "stddev": 0.25}])
def test_noise_is_stationary_as_in_the_closed_form(backend, params):
    """Noise has the closed form's deviation and autocorrelation.

    5,000 processes: deviation stddev / sqrt(1 - (1 - damping)^2). Lag 10 keeps (1 - damping)^10 of the variance.
    """
    damping, stddev = params.get("damping", 0.15), params.get("stddev", 0.2)
    data, sampler = sampler_of(backend, n_envs=1000, n_agents=5, n_types=1, seed=4)
    values = draw(data, sampler, 1560, **params)[60:].astype(np.float64)  # the start has the weight 0.85^60
    want = stddev / math.sqrt(1 - (1 - damping) ** 2)
    assert values.std() == pytest.approx(want, abs=0.001)
    assert np.mean(values[10:] * values[:-10]) == pytest.approx(want**2 * (1 - damping) ** 10, abs=0.001)
    assert values.mean() == pytest.approx(0, abs=0.005)


@on_every_backend
def test_defaults_are_those_of_warpdrive(backend):
    """Defaults are WarpDrive's: damping 0.15, stddev 0.2, scale 1."""
    got, want = ([*sampler_of(backend)] for _ in range(2))
    assert_same_bits(draw(*got, 2), draw(*want, 2, damping=0.15, stddev=0.2, scale=1.0))


@on_every_backend
@pytest.mark.parametrize("silence", [{"scale": 0}, {"scale": 9e-9}, {"use_argmax": True}])
def test_silent_draw_is_the_mean_and_leaves_no_trace(backend, silence):
    """A silent draw gives the mean, and changes no noise."""
    data, sampler = sampler_of(backend)
    want = draw(data, sampler, 2)
    data, sampler = sampler_of(backend)
    first = draw(data, sampler, 1)
    state = data.pull_data_from_device("sampled_actions_ou_state")
    assert_same_bits(draw(data, sampler, 1, mean=0.3, **silence), np.full_like(first, 0.3))
    assert_same_bits(data.pull_data_from_device("sampled_actions_ou_state"), state)
    assert data.pull_data_from_device("sampled_actions_draws").tolist() == [1, 1]
    assert_same_bits(np.concatenate([first, draw(data, sampler, 1)]), want)


@on_every_backend
@pytest.mark.parametrize("names", [("damping", "stddev", "scale"), ("scale",), ("damping", "stddev")])
def test_numbers_on_the_device_are_read_when_the_kernel_runs(backend, names):
    """Tensor parameters give the same bits as floats."""
    schedule = [
        {"damping": 0.3, "stddev": 0.5, "scale": 2.0},
        {"damping": 0.1, "stddev": 0.4, "scale": 0.7},
        {"damping": 1.0, "stddev": 0.1, "scale": 0.2},
    ]
    want_data, want_sampler = sampler_of(backend)
    data, sampler = sampler_of(backend)
    tensors = {name: torch.zeros((), device=data.device) for name in names}
    for numbers in schedule:
        want = draw(want_data, want_sampler, 1, mean=0.1, **numbers)
        for name, tensor in tensors.items():
            tensor.fill_(numbers[name])
        assert_same_bits(draw(data, sampler, 1, mean=0.1, **{**numbers, **tensors}), want)
    # A float again, where a tensor was.
    assert_same_bits(draw(data, sampler, 1, **schedule[0]), draw(want_data, want_sampler, 1, **schedule[0]))


@on_every_backend
def test_silent_scale_on_the_device_is_the_mean_but_moves_the_noise(backend):
    """A silent scale on the device gives the mean, but uses a draw.

    The noise is that of any other scale.
    """
    want_data, want_sampler = sampler_of(backend)
    draw(want_data, want_sampler, 2)
    data, sampler = sampler_of(backend)
    got = draw(data, sampler, 2, mean=0.3, scale=torch.zeros((), device=data.device))
    assert_same_bits(got, np.full_like(got, 0.3))
    assert data.pull_data_from_device("sampled_actions_draws").tolist() == [2, 2]
    state = data.pull_data_from_device("sampled_actions_ou_state")
    assert_same_bits(state, want_data.pull_data_from_device("sampled_actions_ou_state"))
    assert state.all()


@on_every_backend
def test_argmax_leaves_numbers_on_the_device_unread(backend):
    """Argmax gives the mean, without a draw or noise."""
    data, sampler = sampler_of(backend)
    got = draw(data, sampler, 1, mean=0.3, use_argmax=True, scale=torch.full((), math.nan, device=data.device))
    assert_same_bits(got, np.full_like(got, 0.3))
    assert data.pull_data_from_device("sampled_actions_draws").tolist() == [0, 0]


@on_every_backend
def test_only_reset_noise_clears_the_noise(backend):
    """Only `reset_noise` clears the noise; a new seed keeps it."""
    data, sampler = sampler_of(backend, seed=5)
    first = draw(data, sampler, 2)
    sampler.init_random(5)
    assert data.pull_data_from_device("sampled_actions_ou_state").any()
    assert (draw(data, sampler, 2) != first).any()
    sampler.init_random(5)
    sampler.reset_noise(data, "sampled_actions")
    assert not data.pull_data_from_device("sampled_actions_ou_state").any()
    assert_same_bits(draw(data, sampler, 2), first)


# ------------------------------------------------------------------ the same everywhere


@on_every_other_backend
@pytest.mark.parametrize("n_types", [1, 2, 5])
def test_noise_is_bit_identical_on_every_backend_and_for_any_number_of_environments(backend, n_types):
    """Only seed, array, environment, agent, type and draw count matter.

    Counts may be uneven.
    """
    n_agents = 2 if is_simulated(backend) else 70
    second = min(2**31 // n_types - 2, 2**31 - 5)
    ends = []
    for name, n_envs in ((backend, 2), ("cpu", 5)):
        data, sampler = sampler_of(name, n_envs, n_agents, n_types, seed=6)
        # The first counter is 2^32 - 9; with several types the second one's word index soon passes 2^32.
        data.tensor("sampled_actions_draws")[:2] = torch.tensor([-9, second])
        ends.append(draw(data, sampler, 4, mean=0.1)[:, :2])
        assert data.pull_data_from_device("sampled_actions_draws")[:2].tolist() == [-5, second + 4]
    assert_same_bits(*ends)
    assert len(np.unique(ends[0])) > 0.99 * ends[0].size


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["numba", "pycuda"])
def test_replay_goes_on_drawing(backend):
    """A captured graph of draws is bit-identical to eager runs."""
    ends = []
    for is_captured in (False, True):
        data, sampler = sampler_of(backend, n_envs=300)
        mean = mean_of(data, 0.5)
        low, high = (torch.full((N_AGENTS, N_TYPES), bound, device=data.device) for bound in (-1.0, 2.0))
        seen = torch.zeros((3, *mean.shape), device=data.device)

        def block(data=data, sampler=sampler, mean=mean, low=low, high=high, seen=seen):
            sampler.sample(data, mean)
            seen[0].copy_(data.tensor("sampled_actions"))
            sampler.sample(data, mean, use_argmax=True)
            seen[1].copy_(data.tensor("sampled_actions"))
            sampler.sample_uniform(data, low, high)
            seen[2].copy_(data.tensor("sampled_actions"))

        block()
        run = capture(BACKENDS[backend], block) if is_captured else block
        for _ in range(4):
            run()
        torch.cuda.synchronize()
        ends.append(seen.cpu().numpy())
        assert (data.pull_data_from_device("sampled_actions_draws") == 10).all()
    assert_same_bits(*ends)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["numba", "pycuda"])
def test_replay_keeps_floats_and_follows_tensors(backend):
    """A replay uses captured floats and current tensors."""
    data, sampler = sampler_of(backend, n_envs=300)
    mean, scale = mean_of(data), torch.ones((), device=data.device)

    def work():
        sampler.sample(data, mean, damping=1, stddev=0.5, scale=scale)

    work()
    run = capture(BACKENDS[backend], work)
    sampler.sample(data, mean, damping=0.5, stddev=3.0, scale=4.0)
    sampler.init_random(0)
    got = []
    for number in (1.0, 0.25):
        scale.fill_(number)
        run()
        torch.cuda.synchronize()
        got.append(data.pull_data_from_device("sampled_actions"))
    normals = draw(*sampler_of(backend, n_envs=300), 2, **NORMAL)
    assert_same_bits(np.stack(got), normals * np.float32([0.5, 0.125])[:, None, None, None])


@on_every_backend
def test_discrete_and_continuous_arrays_share_a_sampler(backend):
    """Discrete and continuous arrays have independent streams and counters."""
    data, sampler = sampler_of(backend)
    push(data, "choices", np.zeros((N_ENVS, N_AGENTS, 1), np.int32))
    push(data, "more", np.zeros((N_ENVS, N_AGENTS, N_TYPES), np.float32))
    sampler.register_actions(data, "choices", 4)
    sampler.register_actions(data, "more", [1, 1, 1], is_deterministic=True)
    sampler.init_random(0)
    first = draw(data, sampler, 1)
    sampler.sample(data, mean_of(data), "more")
    sampler.sample(data, torch.full((N_ENVS, N_AGENTS, 4), 0.25, device=data.device), "choices")
    assert (data.pull_data_from_device("more") != first).all()
    second = draw(data, sampler, 1)
    assert data.pull_data_from_device("sampled_actions_draws").tolist() == [2, 2]
    assert data.pull_data_from_device("more_draws").tolist() == [1, 1]
    assert_same_bits(np.concatenate([first, second]), draw(*sampler_of(backend), 2))
