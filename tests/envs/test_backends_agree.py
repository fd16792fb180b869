"""Every backend here against the NumPy reference, over the shipped environments."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

from envs import ENVS
from tests.agreement import assert_same_bits, free_run, random_actions, start, step_from_same_state
from tests.envs.builders import SINGLE
from tests.support import (
    BACKENDS_HERE,
    COMPILERS,
    KINDS,
    OTHER_BACKENDS,
    QUICK_KINDS,
    SCENARIOS,
    TAG_CONFIGS,
    by_day,
    is_simulated,
    on_backends,
)
from warpdrive_min.agreement import Agreement
from warpdrive_min.policies import random_policy

LARGE = ("covid19_economy", "rice")
"""Environments for few CPU copies, because of their size.

Each costs as much as hundreds of others.
"""


QUICKLY_BUILT = ("pendulum", "tag_gridworld")


def size(backend: str, n_envs: int, n_steps: int, name: str = "") -> dict[str, int]:
    """Return the run size, which is small in the simulator."""
    if torch.cuda.is_available():
        return {"n_envs": n_envs, "n_steps": n_steps}
    if is_simulated(backend):
        return {"n_envs": 1 if name in LARGE else min(n_envs, 3), "n_steps": 2 if name in LARGE else min(n_steps, 5)}
    return {"n_envs": n_envs // (50 if name in LARGE else 3), "n_steps": n_steps // 3}


def check(result: Agreement, tolerance: float) -> None:
    """Check that every array agrees, with few rows in doubt."""
    assert result.max_error <= tolerance, str(result)
    assert result.n_in_doubt <= 0.1 * result.n_rows  # agents that slide along an edge are all in doubt


MODES = {f"tag_continuous, {mode}": ("tag_continuous", config) for mode, config in TAG_CONFIGS.items()}
"""Configs of WarpDrive's own test of Tag Continuous."""
STEPPED = SCENARIOS | {case: run for case, run in MODES.items() if run not in SCENARIOS.values()}


FEWER = ("cartpole, pool", "rice", "rice, trade", "tag_continuous, full, exits", "tag_continuous, partial, stays")
"""Nightly on a CPU: cases whose code other cases run, too."""
STEPPED_ON_HOST = [case for case in STEPPED if case not in FEWER]
STEPPED_ON_NUMBA = [case for case in KINDS if case != "tag_continuous, spread"]
"""By day; `test_tag_spread` compares many agents then."""


@on_backends("case", STEPPED, numba=STEPPED_ON_NUMBA, host=STEPPED_ON_HOST)
def test_step_agrees_from_the_same_state(case, backend):
    """Each step from the same state gives the reference's arrays."""
    name, config = STEPPED[case]
    result, n_tagged = step_from_same_state(name, config, backend, **size(backend, 200, 150, name))
    check(result, ENVS[name].tolerance)
    if not is_simulated(backend):
        assert result.n_done > 0, "the run must end episodes"
        assert n_tagged > 0 or not name.startswith("tag"), "the run must exercise a tag"


FREE_ON_NUMBA = (*QUICK_KINDS, "cartpole", "tag_continuous")
"""Cases that run freely on Numba by day; for the others, slow to compile, single steps are compared then."""


FEWER_RUN = (
    "cartpole, pool",
    "rice",
    "rice, trade",
    "tag_gridworld",
    "tag_continuous, cells",
    "tag_continuous, spread",
)
"""Nightly on a CPU: cases whose code other cases run freely, too."""


@functools.cache
def oracles_run(case, n_envs, n_steps):
    """Run a scenario exactly on the reference, cached for all backends."""
    name, config = SCENARIOS[case]
    return free_run(name, config, "cpu", exact=True, n_envs=n_envs, n_steps=n_steps)


@pytest.mark.parametrize(
    ("backend", "case"),
    [
        pytest.param(*backend.values, case, marks=[*backend.marks, *more], id=f"{case}-{backend.values[0]}")
        for backend in OTHER_BACKENDS
        for case in SCENARIOS
        for more in [
            [pytest.mark.as_shipped] * (not is_simulated(backend.values[0]) or case == "cartpole")
            + [pytest.mark.nightly] * (backend.values == ("numba",) and case not in FREE_ON_NUMBA)
            + [pytest.mark.nightly] * (backend.values == ("host",) and case in FEWER_RUN)
        ]
    ],
)
def test_exact_runs_are_bit_identical(case, backend):
    """1,000 free-running environments match the reference's bits for 400 steps.

    With auto-reset; on a CPU a third of both. Kernels are as shipped. Numba's simulator runs one environment, as blocks
    of 128 threads take long there.
    """
    name, config = SCENARIOS[case]
    run = size(backend, 1000, 400, name)
    want, want_sums = oracles_run(case.removesuffix(", cells"), **run)
    got, got_sums = free_run(name, config, backend, exact=True, **run)
    assert is_simulated(backend) or want["_episode_"].max() > 3, "the run must restart episodes"
    np.testing.assert_array_equal(got_sums, want_sums, err_msg="checksums of (observations, rewards) by step")
    assert_same_bits(got, want)


@pytest.mark.as_shipped
@pytest.mark.parametrize("compiler", COMPILERS[1:], indirect=True)
@pytest.mark.parametrize("case", by_day(SCENARIOS, QUICKLY_BUILT))
def test_exact_runs_do_not_depend_on_the_compiler(case, compiler):
    """Exact kernels of another C++ compiler are bit-identical too."""
    name, config = SCENARIOS[case]
    run = size("host", 200, 120, name)
    want, want_sums = oracles_run(case.removesuffix(", cells"), **run)
    got, got_sums = free_run(name, config, "host", exact=True, **run)
    np.testing.assert_array_equal(got_sums, want_sums, err_msg="checksums of (observations, rewards) by step")
    assert_same_bits(got, want)


AS_SHIPPED = [
    pytest.param(*each.values, marks=[*each.marks, *([pytest.mark.as_shipped] * (each.values == ("host",)))])
    for each in BACKENDS_HERE
]
"""Backends; `host` has the kernels that exact runs build, too."""


@on_backends("case", SCENARIOS, AS_SHIPPED, numba=QUICK_KINDS, host=KINDS, cpu=KINDS)
def test_environment_does_not_depend_on_how_many_there_are(case, backend):
    """More environments do not change the first ones' bits.

    On a CPU with `exact` alone: else a compiler may round those that do not fill a vector of SIMD in another way.
    """
    name, config = SCENARIOS[case]
    n_envs, n_more, n_steps = (2, 9 if name in SINGLE else 3, 2) if is_simulated(backend) else (5, 16, 40)
    n_steps = n_steps if name not in LARGE else n_steps // 2
    exact = backend == "host"
    few, more = (free_run(name, config, backend, exact=exact, n_envs=n, n_steps=n_steps)[0] for n in (n_envs, n_more))
    keys = [
        key for key in few if key.startswith(("observations", "rewards", "sampled_actions", "_timestep_", "_episode_"))
    ]
    assert len(keys) >= 5
    for key in keys:
        np.testing.assert_array_equal(more[key][:n_envs], few[key], err_msg=key)


LIBRARY_DECIDES = ("unemployment", "productivity", "national")
"""Start arrays from library functions, equal in exact builds only."""
SHARED = ("tag_gridworld", "tag_gridworld, partial, pool", "tag_continuous, spread")
"""Scenarios whose environments can be shared by several blocks."""


@on_backends(
    "shared",
    [*((case, None) for case in SCENARIOS), *((case, 3) for case in SHARED)],
    BACKENDS_HERE,
    numba=[*((case, None) for case in QUICK_KINDS), (SHARED[-1], 3)],
    host=[*((case, None) for case in SCENARIOS if case not in FEWER), *((case, 3) for case in SHARED)],
)
def test_finished_episode_keeps_its_last_observation_and_shows_the_new_start(shared, backend):
    """A step with auto-reset equals a step and a reset.

    Final observations are those before the reset.
    """
    case, blocks = shared
    name, config = SCENARIOS[case]
    n_envs = 1 if is_simulated(backend) else 4
    options = {"seed": 3, "exact": True, "blocks_per_env": blocks}
    config = {**config, "episode_length": 2}
    auto = start(name, config, backend, n_envs, auto_reset=True, **options)
    plain = start(name, config, "cpu", n_envs, auto_reset=False, **options)
    got, want = auto.cuda_data_manager, plain.cuda_data_manager
    draw, flags = random_actions(plain, 0), ("terminated", "truncated", "_done_")

    def arrays(prefix: str) -> list[str]:
        """Return the names of the arrays of all roles."""
        return [array for array in want.array_names() if array.startswith(prefix)]

    def is_same(array: str, expected: torch.Tensor) -> bool:
        """True if the backend has the expected array."""
        return torch.equal(got.tensor(array).cpu(), expected)

    for _ in range(2):
        draw()
        for array in arrays("sampled_actions"):
            got.tensor(array).copy_(want.tensor(array))
        auto.step()
        plain.step()
    assert got.tensor("_done_").all()
    rewards, last = arrays("rewards"), arrays("final_observations")
    for array in (*flags, *rewards):
        assert is_same(array, want.tensor(array)), array
    for array in last:
        before = want.tensor(array.removeprefix("final_"))
        assert is_same(array, before), array
        assert not is_same(array.removeprefix("final_"), before), array
    plain.reset_only_done_envs()
    for array in set(want.array_names()) - {*flags, *rewards, *last}:
        if not want.attribute(array, "scratch", False):
            assert is_same(array, want.tensor(array)), array
    auto.step()
    assert not got.tensor("_done_").any()


@on_backends("case", SCENARIOS, numba=QUICK_KINDS, host=[case for case in SCENARIOS if case not in FEWER])
def test_same_seed_draws_the_same_actions_and_starts(case, backend):
    """Equal seeds draw the reference's actions and starts; others differ."""
    name, config = SCENARIOS[case]
    drawn = {}
    n_envs, n_draws = (1, 2) if is_simulated(backend) and name in LARGE else (4, 6)
    for key, (each, seed) in {"got": (backend, 7), "want": ("cpu", 7), "other": ("cpu", 8)}.items():
        wrapper = start(name, config, each, n_envs, seed=seed)
        data = wrapper.cuda_data_manager
        starts = {array: data.pull_data_from_device(array) for array in data.array_names()}
        draw = random_policy(wrapper, seed)
        actions, names = [], [array for array in starts if array.startswith("sampled_actions")]
        for _ in range(n_draws):
            draw()
            actions += [data.pull_data_from_device(array).ravel() for array in names]
        drawn[key] = (np.concatenate(actions), starts)
    (actions, starts), (want_actions, want_starts) = drawn["got"], drawn["want"]
    np.testing.assert_array_equal(actions, want_actions)
    for array, want in want_starts.items():
        # An observation may be a sine, which is not the same in every library.
        tolerance = ENVS[name].tolerance if array in LIBRARY_DECIDES or array.startswith("observations") else 0
        np.testing.assert_allclose(starts[array], want, rtol=0, atol=tolerance, err_msg=array)
    assert (drawn["other"][0] != want_actions).any()
    has_one_start = name == "tag_gridworld" and not config.get("reset_pool_size")
    other_starts = drawn["other"][1]
    seen = [array for array in want_starts if array.startswith("observations")]
    assert has_one_start or any((other_starts[array] != want_starts[array]).any() for array in seen)
