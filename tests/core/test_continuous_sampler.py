"""Continuous actions: noise around a mean, and what it refuses."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.support import BACKENDS_HERE, OTHER_BACKENDS, is_simulated, managers, push
from warpdrive_min import BACKENDS, CUDADataManager, CUDASampler, capture, rng
from warpdrive_min.backends import cuda_c
from warpdrive_min.errors import ConfigError, DataError
from warpdrive_min.function_manager import LaunchShape, core_sources
from warpdrive_min.kernels import noise_numpy

on_every_backend = pytest.mark.parametrize("backend", BACKENDS_HERE)
on_every_other_backend = pytest.mark.parametrize("backend", OTHER_BACKENDS)
on_every_fast_backend = pytest.mark.parametrize(
    "backend", [each for each in BACKENDS_HERE if not is_simulated(each.values[0])]
)

N_ENVS, N_AGENTS, N_TYPES = 2, 3, 3
NORMAL = {"damping": 1.0, "stddev": 1.0}
"""Plain standard normals."""


def sampler_of(
    backend: str, n_envs: int = N_ENVS, n_agents: int = N_AGENTS, n_types: int = N_TYPES, seed: int | None = 0
) -> tuple[CUDADataManager, CUDASampler]:
    """Return a sampler of continuous ``sampled_actions``, seeded unless the seed is None."""
    data, functions = managers(backend, n_agents, n_envs)
    push(data, "sampled_actions", np.full((n_envs, n_agents, n_types), np.nan, np.float32))
    sampler = CUDASampler(functions)
    sampler.register_actions(data, "sampled_actions", n_types, is_deterministic=True)
    if seed is not None:
        sampler.init_random(seed)
    return data, sampler


def mean_of(data: CUDADataManager, value: float = 0.0) -> torch.Tensor:
    """Return the same mean for every action."""
    return torch.full_like(data.tensor("sampled_actions"), value)


def draw(data: CUDADataManager, sampler: CUDASampler, n: int, mean: float = 0.0, **params: object) -> np.ndarray:
    """Return n draws, (n, n_envs, n_agents, n_types)."""
    means, draws = mean_of(data, mean), []
    for _ in range(n):
        sampler.sample(data, means, "sampled_actions", **params)
        draws.append(data.pull_data_from_device("sampled_actions"))
    return np.stack(draws)


def assert_same_bits(got: np.ndarray, want: np.ndarray) -> None:
    """Compare floats as integers, so that -0 is not 0."""
    np.testing.assert_array_equal(got.view(np.int32), want.view(np.int32))


# ------------------------------------------------------------------ normals


@on_every_backend
def test_normals_are_box_muller_of_the_documented_words(backend):
    """Draw d of type j of J: radius from word 2 (dJ + j), angle from the next one, by the formula in double."""
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


def test_every_uniform_gives_a_finite_normal():
    """All 2^24 radii and cosines are those of double precision; over them the mean is 0 and the variance 1."""
    totals = np.zeros(3)
    for start in range(0, 2**24, 2**20):
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
    mean_square, mean_cosine, mean_square_cosine = totals / 2**24
    assert mean_cosine == pytest.approx(0, abs=1e-6)
    # A grid of 2^24 cuts the tail off at 2^-24.
    assert mean_square * mean_square_cosine == pytest.approx(1, abs=3e-6)


@on_every_fast_backend
def test_normals_have_the_normal_distribution(backend):
    """Chi-square over 100 bins of equal probability and Kolmogorov-Smirnov stay below their 0.01 % bounds."""
    data, sampler = sampler_of(backend, n_envs=1000, n_agents=5, n_types=2, seed=1)
    values = draw(data, sampler, 30, **NORMAL).ravel()
    below = np.sort(torch.special.ndtr(torch.from_numpy(values).double()).numpy())
    counts = np.histogram(below, 100, (0, 1))[0]
    expected = len(below) / 100
    assert ((counts - expected) ** 2 / expected).sum() < 160.2  # 99 degrees of freedom
    steps = np.arange(len(below) + 1) / len(below)
    distance = max((steps[1:] - below).max(), (below - steps[:-1]).max())
    assert distance < 2.225 / math.sqrt(len(below))
    assert 4 < np.abs(values).max() < 5.77


@on_every_fast_backend
def test_normals_are_independent_over_draws_environments_agents_and_types(backend):
    """Neighbours in each direction fall into the 16 pairs of quarters evenly: chi-square, 15 degrees, 0.01 %: 44.3."""
    data, sampler = sampler_of(backend, n_envs=100, n_agents=5, n_types=4, seed=2)
    quarters = np.searchsorted([-0.67448975, 0, 0.67448975], draw(data, sampler, 50, **NORMAL))
    for axis in range(4):
        first, second = (
            np.take(quarters, range(start, quarters.shape[axis] + start - 1), axis).ravel() for start in (0, 1)
        )
        counts = np.bincount(4 * first + second, minlength=16)
        expected = len(first) / 16
        assert ((counts - expected) ** 2 / expected).sum() < 44.3, f"axis {axis}"


# ------------------------------------------------------------------ the process


@on_every_backend
def test_noise_follows_the_recurrence(backend):
    """State and action are those of the two formulas in double, on the normals that the same seed gives."""
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
@pytest.mark.parametrize("params", [{}, {"damping": 0.3, "stddev": 0.25}])
def test_noise_is_stationary_as_in_the_closed_form(backend, params):
    """5,000 processes: deviation stddev / sqrt(1 - (1 - damping)^2), and lag 10 keeps (1 - damping)^10 of variance."""
    damping, stddev = params.get("damping", 0.15), params.get("stddev", 0.2)
    data, sampler = sampler_of(backend, n_envs=1000, n_agents=5, n_types=1, seed=4)
    values = draw(data, sampler, 1560, **params)[60:].astype(np.float64)  # what the start was, 0.85^60, is forgotten
    want = stddev / math.sqrt(1 - (1 - damping) ** 2)
    assert values.std() == pytest.approx(want, abs=0.001)
    assert np.mean(values[10:] * values[:-10]) == pytest.approx(want**2 * (1 - damping) ** 10, abs=0.001)
    assert values.mean() == pytest.approx(0, abs=0.005)


@on_every_backend
def test_defaults_are_those_of_warpdrive(backend):
    """Without keywords: damping 0.15, standard deviation 0.2, scale 1."""
    got, want = ([*sampler_of(backend)] for _ in range(2))
    assert_same_bits(draw(*got, 2), draw(*want, 2, damping=0.15, stddev=0.2, scale=1.0))


@on_every_backend
@pytest.mark.parametrize("silence", [{"scale": 0}, {"scale": 9e-9}, {"use_argmax": True}])
def test_silent_draw_is_the_mean_and_leaves_no_trace(backend, silence):
    """Actions are the mean to the bit, and noise and counters go on as if the draw had not been."""
    data, sampler = sampler_of(backend)
    want = draw(data, sampler, 2)
    data, sampler = sampler_of(backend)
    first = draw(data, sampler, 1)
    state = data.pull_data_from_device("sampled_actions_ou_state")
    assert_same_bits(draw(data, sampler, 1, mean=0.3, **silence), np.full_like(first, 0.3))
    assert_same_bits(data.pull_data_from_device("sampled_actions_ou_state"), state)
    assert data.pull_data_from_device("sampled_actions_draws").tolist() == [1, 1]
    assert_same_bits(np.concatenate([first, draw(data, sampler, 1)]), want)


def test_numbers_may_change_from_draw_to_draw():
    """Annealed noise: each draw uses the numbers it is given, on the same mean."""
    data, sampler = sampler_of("cpu")
    mean = mean_of(data)
    normals = draw(data, sampler, 3, **NORMAL)
    sampler.init_random(0)
    for normal, stddev in zip(normals, (1.0, 0.5, 0.25), strict=True):
        sampler.sample(data, mean, damping=1, stddev=stddev)
        assert_same_bits(data.pull_data_from_device("sampled_actions"), np.float32(stddev) * normal)


@on_every_backend
@pytest.mark.parametrize("names", [("damping", "stddev", "scale"), ("scale",), ("damping", "stddev")])
def test_numbers_on_the_device_are_read_when_the_kernel_runs(backend, names):
    """Written into the same tensors, a schedule gives the bits of the same floats; the others stay floats."""
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
    """The host does not see it: a draw is consumed, and the noise is that of any other scale."""
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
    """The mean, no draw, and the noise stays, as with floats."""
    data, sampler = sampler_of(backend)
    got = draw(data, sampler, 1, mean=0.3, use_argmax=True, scale=torch.full((), math.nan, device=data.device))
    assert_same_bits(got, np.full_like(got, 0.3))
    assert data.pull_data_from_device("sampled_actions_draws").tolist() == [0, 0]


@on_every_backend
def test_only_reset_noise_clears_the_noise(backend):
    """Seeding again repeats the normals around the noise that is there; cleared too, the actions repeat."""
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
    """Seed, array, environment, agent, type and count of the draw decide alone, on uneven counts too."""
    n_agents = 2 if is_simulated(backend) else 70
    second = min(2**31 // n_types - 2, 2**31 - 5)
    ends = []
    for name, n_envs in ((backend, 2), ("cpu", 5)):
        data, sampler = sampler_of(name, n_envs, n_agents, n_types, seed=6)
        # The first counts as 2^32 - 9; with several types the second one's number of a word soon passes 2^32.
        data.tensor("sampled_actions_draws")[:2] = torch.tensor([-9, second])
        ends.append(draw(data, sampler, 4, mean=0.1)[:, :2])
        assert data.pull_data_from_device("sampled_actions_draws")[:2].tolist() == [-5, second + 4]
    assert_same_bits(*ends)
    assert len(np.unique(ends[0])) > 0.99 * ends[0].size


@on_every_backend
def test_counters_on_the_device_decide_which_draw_comes(backend):
    """Enqueued again, the same launch draws on; with the counters set back it repeats itself."""
    data, sampler = sampler_of(backend)
    first, second = draw(data, sampler, 1, **NORMAL), draw(data, sampler, 1, **NORMAL)
    assert (first != second).all()
    data.tensor("sampled_actions_draws").sub_(1)
    assert_same_bits(draw(data, sampler, 1, **NORMAL), second)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["numba", "pycuda"])
def test_replay_goes_on_drawing(backend):
    """A captured graph of noise, means and uniform draws leaves the same bits as the eager calls."""
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
    """After other floats were used eagerly, a replay draws with those captured, and with what the tensor now holds."""
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
    """Each has its stream and counters; the draws of one do not move the other."""
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


@pytest.mark.skipif(cuda_c.gpu_compiler() is None, reason="found neither NVRTC nor nvcc")
@pytest.mark.parametrize("flags", [{"ARGMAX": False, "LOG_PROB": True, "ENTROPY": True}, {"ARGMAX": True}])
def test_noise_compiles_for_the_gpu(flags):
    """All kernels give machine code, with every flag on and off."""
    constants = {"N_AGENTS": 110, "N_TYPES": 3, "EXACT": True, **LaunchShape.of(110).constants()}
    constants |= {"LOG_PROB": False, "ENTROPY": False, **flags}
    cubin = cuda_c.compile_cubin(core_sources("noise")["cuda_c"], constants, "sm_90").read_bytes()
    assert cubin[:4] == b"\x7fELF"
    for name in (b"noise", b"gaussian", b"uniform_actions"):
        assert name in cubin


# ------------------------------------------------------------------ what is refused


def test_unknown_keyword_is_an_error_that_names_the_known_ones():
    """Keywords of discrete draws are none of continuous ones, and the other way round."""
    data, sampler = sampler_of("cpu")
    push(data, "choices", np.zeros((N_ENVS, N_AGENTS, 1), np.int32))
    sampler.register_actions(data, "choices", 2)
    with pytest.raises(
        ConfigError, match="'sampled_actions' has no keyword 'logits'; known are damping, scale, stddev"
    ):
        sampler.sample(data, mean_of(data), logits=True)
    with pytest.raises(
        ConfigError, match="'choices' has no keyword 'scale'; known are entropy, log_prob, logits, mask"
    ):
        sampler.sample(data, torch.ones((N_ENVS, N_AGENTS, 2)), "choices", scale=1.0)


@pytest.mark.parametrize("name", ["damping", "stddev", "scale"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_must_be_finite(name, value):
    """Else every later action would be NaN."""
    data, sampler = sampler_of("cpu")
    with pytest.raises(ConfigError, match=f"{name} of 'sampled_actions' must be finite .got {value}"):
        sampler.sample(data, mean_of(data), **{name: value})
    assert not data.tensor("sampled_actions_ou_state").any()


@pytest.mark.parametrize("name", ["damping", "stddev", "scale"])
@pytest.mark.parametrize(
    "number", [torch.ones(1), torch.ones((), dtype=torch.float64), torch.ones((), device="meta"), torch.ones((2, 3))]
)
def test_numbers_on_the_device_must_be_scalars(name, number):
    """One 0-d float32 tensor on the backend's device for each; the error names it, and no draw is consumed."""
    data, sampler = sampler_of("cpu")
    with pytest.raises(DataError, match=rf"{name} must be contiguous torch.float32 of shape \(\) on cpu .got"):
        sampler.sample(data, mean_of(data), **{name: number})
    assert data.pull_data_from_device("sampled_actions_draws").tolist() == [0, 0]


@pytest.mark.parametrize("change", [lambda mean: mean[:1], lambda mean: mean.double(), lambda mean: mean[..., :1]])
@pytest.mark.parametrize("params", [{}, {"use_argmax": True}])
def test_mean_must_be_shaped_as_the_actions(change, params):
    """Nothing is broadcast or cast silently, without noise either."""
    data, sampler = sampler_of("cpu")
    with pytest.raises(DataError, match=r"distribution must be contiguous torch.float32 of shape \(2, 3, 3\)"):
        sampler.sample(data, change(mean_of(data)), **params)


@pytest.mark.parametrize(
    ("shape", "dtype", "num_actions", "message"),
    [
        ((2, 3, 1), np.int32, 1, r"must be float32 of shape \(2, n_agents, 1\) .got int32"),
        ((2, 3, 1), np.float32, 2, r"of shape \(2, n_agents, 2\) .got float32 \(2, 3, 1\)"),
        ((2, 3), np.float32, 1, r"got float32 \(2, 3\)"),
        ((3, 3, 1), np.float32, 1, r"got float32 \(3, 3, 1\)"),
    ],
)
def test_registration_checks_the_array(shape, dtype, num_actions, message):
    """Continuous actions are float32, one for each environment, agent and type."""
    data, functions = managers("cpu", N_AGENTS, N_ENVS)
    push(data, "actions", np.zeros(shape, dtype))
    with pytest.raises(ConfigError, match=f"'actions'.*{message}"):
        CUDASampler(functions).register_actions(data, "actions", num_actions, is_deterministic=True)


def test_discrete_arrays_have_no_noise():
    """What is for continuous actions alone refuses discrete ones, and says how to register the others."""
    data, sampler = sampler_of("cpu")
    push(data, "choices", np.zeros((N_ENVS, N_AGENTS, 1), np.int32))
    sampler.register_actions(data, "choices", 2)
    bound = torch.ones((N_AGENTS, 1))
    for who, call in (
        ("reset_noise", lambda: sampler.reset_noise(data, "choices")),
        ("sample_uniform", lambda: sampler.sample_uniform(data, bound, bound, "choices")),
    ):
        with pytest.raises(ConfigError, match=f"{who}: 'choices' must be continuous .*is_deterministic=True"):
            call()


def test_continuous_draws_need_seed_and_registration():
    """As discrete ones do."""
    data, sampler = sampler_of("cpu", seed=None)
    bound = torch.ones((N_AGENTS, N_TYPES))
    for call in (lambda: sampler.sample(data, mean_of(data)), lambda: sampler.sample_uniform(data, bound, bound)):
        with pytest.raises(ConfigError, match="has no seed"):
            call()
    with pytest.raises(ConfigError, match="'other' is not registered; known are sampled_actions"):
        sampler.reset_noise(data, "other")
