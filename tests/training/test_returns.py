"""Returns and advantages: the scan by hand, and against float64 loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.support import BACKENDS_HERE, OTHER_BACKENDS, is_simulated
from tests.training.builders import refused
from warpdrive_min import BACKENDS
from warpdrive_min.errors import DataError
from warpdrive_min.training.algorithms.returns import ReturnScan

Arrays = dict[str, Any]


def _scan(
    backend: str,
    arrays: Arrays,
    gamma: float,
    lam: float = 1.0,
    *,
    compat: bool = False,
    scan: ReturnScan | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return advantages (NaN without values), returns: (n_steps, n_envs, n_agents)."""
    device = BACKENDS[backend].device
    given = {
        name: None if value is None else torch.from_numpy(np.ascontiguousarray(value)).to(device)
        for name, value in arrays.items()
    }
    shape = given["rewards"].shape
    returns = torch.full(shape, torch.nan, device=device)
    advantages = torch.full(shape, torch.nan, device=device)
    scan = scan or ReturnScan(backend, *shape[1:], gamma, lam, compat=compat)
    scan.scan(**given, advantages=None if given["values"] is None else advantages, returns=returns)
    return advantages.cpu().numpy(), returns.cpu().numpy()


def _column(
    rewards: list[float],
    values: list[float] | None,
    last: float,
    terminated: list[int] | None = None,
    truncated: list[int] | None = None,
    cuts: list[float] | None = None,
) -> Arrays:
    """Return the arrays of one environment with one agent."""
    zeros = [0] * len(rewards)
    return {
        "rewards": np.float32(rewards)[:, None, None],
        "values": None if values is None else np.float32(values)[:, None, None],
        "terminated": np.int32(terminated or zeros)[:, None],
        "truncated": np.int32(truncated or zeros)[:, None],
        "last_values": np.float32([[last]]),
        "cut_values": None if cuts is None else np.float32(cuts)[:, None, None],
    }


def _random(n_steps: int, n_envs: int, n_agents: int, *, with_values: bool = True, with_cuts: bool = True) -> Arrays:
    """Return arrays with several ends of both kinds per environment."""
    generator = np.random.default_rng(n_steps)
    kind = generator.integers(0, 4, (n_steps, n_envs))
    truncated = (kind == 3).astype(np.int32)
    n_cuts = int(truncated.sum(axis=0).max())

    def normal(*shape: int) -> np.ndarray:
        return generator.normal(size=shape).astype(np.float32)

    rows = (n_envs, n_agents)
    return {
        "rewards": normal(n_steps, *rows),
        "values": normal(n_steps, *rows) if with_values else None,
        "terminated": (kind == 2).astype(np.int32),
        "truncated": truncated,
        "last_values": normal(*rows),
        "cut_values": normal(n_cuts, *rows) if with_cuts else None,
    }


def in_float64(arrays: Arrays, gamma: float, lam: float) -> tuple[np.ndarray, np.ndarray]:
    """Return advantages and returns by definition.

    They are forward sums to an episode's end.
    """
    rewards, values, last = (arrays[name].astype(np.float64) for name in ("rewards", "values", "last_values"))
    advantages = np.zeros_like(rewards)
    for start, env, agent in np.ndindex(rewards.shape):
        weight = 1.0
        for t in range(start, len(rewards)):
            terminated, truncated = arrays["terminated"][t, env], arrays["truncated"][t, env]
            if terminated:
                follow = 0.0
            elif truncated:
                slot = int(arrays["truncated"][:t, env].sum())
                follow = float(arrays["cut_values"][slot, env, agent])
            else:
                follow = values[t + 1, env, agent] if t + 1 < len(rewards) else last[env, agent]
            advantages[start, env, agent] += weight * (rewards[t, env, agent] + gamma * follow - values[t, env, agent])
            weight *= gamma * lam
            if terminated or truncated:
                break
    return advantages, advantages + values


@pytest.mark.parametrize("backend", BACKENDS_HERE)
def test_warp_drives_rule_gives_its_golden_numbers(backend: str) -> None:
    """WarpDrive's rule gives its golden numbers.

    The last return is its undiscounted value, or an end's reward.
    """
    golden = {"rewards": [1, 2, 3], "values": [0.5, 0.6, 0.7], "last": 99}
    for flags in ({"terminated": [0, 1, 0]}, {"truncated": [0, 1, 0], "cuts": [99]}):
        advantages, returns = _scan(backend, _column(**golden, **flags), gamma=0.9, compat=True)
        np.testing.assert_allclose(returns.ravel(), [2.8, 2.0, 0.7], rtol=1e-6)
        np.testing.assert_allclose(advantages.ravel(), [2.3, 1.4, 0.0], rtol=1e-6)
    _, returns = _scan(backend, _column(**golden, terminated=[0, 0, 1]), gamma=0.9, compat=True)
    np.testing.assert_allclose(returns.ravel(), [1 + 0.9 * (2 + 0.9 * 3), 2 + 0.9 * 3, 3], rtol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS_HERE)
def test_a_time_limit_without_values_of_cuts_ends_like_the_dynamics(backend: str) -> None:
    """Without values of cuts, a time limit has no future value."""
    by_limit = _column([1, 2, 3], [4, 5, 6], 7, truncated=[0, 1, 0])
    by_dynamics = _column([1, 2, 3], [4, 5, 6], 7, terminated=[0, 1, 0])
    assert _scan(backend, by_limit, 0.9, 0.8)[1].tolist() == _scan(backend, by_dynamics, 0.9, 0.8)[1].tolist()


@pytest.mark.parametrize("backend", BACKENDS_HERE)
def test_nothing_leaks_over_an_end(backend: str) -> None:
    """A NaN after an episode's end does not affect earlier steps."""
    nan = float("nan")
    arrays = _column([1, 2, nan], [1, 1, nan], nan, terminated=[0, 1, 0])
    advantages, returns = _scan(backend, arrays, 0.5, 0.5)
    assert advantages.ravel()[:2].tolist() == [0.75, 1]
    assert np.isnan(returns.ravel()[2])


@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_scan_agrees_with_the_definition_in_float64(lam: float) -> None:
    """The scan agrees with the definition in float64.

    Discounted one-step errors to the episode's end, 39 rows of three environments.
    """
    arrays = _random(40, 3, 13)
    assert arrays["truncated"].sum(axis=0).min() >= 3
    want = in_float64(arrays, 0.9, lam)
    got = _scan("cpu", arrays, 0.9, lam)
    for array, wanted in zip(got, want, strict=True):
        np.testing.assert_allclose(array, wanted, rtol=1e-5, atol=1e-5)
    if lam == 1:  # then they are returns less values
        np.testing.assert_allclose(_scan("cpu", {**arrays, "values": None}, 0.9)[1], want[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", OTHER_BACKENDS)
@pytest.mark.parametrize(
    ("with_values", "with_cuts", "compat"),
    [(True, True, False), (True, False, False), (False, True, False), (False, False, False), (True, True, True)],
)
def test_languages_agree_to_the_bit(backend: str, with_values: bool, with_cuts: bool, compat: bool) -> None:
    """Each mode is bit-identical on every backend.

    The run has several blocks and a remainder.
    """
    shape = (6, 2, 3) if is_simulated(backend) else (9, 29, 11)
    arrays = _random(*shape, with_values=with_values, with_cuts=with_cuts)
    assert arrays["terminated"].any()
    assert arrays["truncated"].any()
    lam = 0.95 if with_values and not compat else 1.0
    got, want = (_scan(name, arrays, 0.99, lam, compat=compat) for name in (backend, "cpu"))
    for array, wanted in zip(got, want, strict=True):
        assert array.tobytes() == wanted.tobytes()
    assert np.isfinite(want[1]).all()


def test_other_tensors_are_scanned_anew() -> None:
    """One scan accepts rollouts of other tensors and lengths."""
    scan = ReturnScan("cpu", 2, 3, 0.9, 0.8)
    for arrays in (_random(5, 2, 3), _random(8, 2, 3), _random(8, 2, 3, with_cuts=False)):
        for _ in range(2):
            got, want = _scan("cpu", arrays, 0.9, 0.8, scan=scan), _scan("cpu", arrays, 0.9, 0.8)
            assert got[1].tobytes() == want[1].tobytes()


def test_scan_refuses_what_does_not_fit() -> None:
    """The scan refuses wrong numbers, shapes, types and incomplete pairs."""
    with refused("returns.gamma", 1.5):
        ReturnScan("cpu", 1, 1, 1.5)
    with refused("returns.lam", 0.5):
        ReturnScan("cpu", 1, 1, 0.9, 0.5, compat=True)
    arrays = _random(4, 2, 3)
    with pytest.raises(DataError, match=r"values: must be contiguous torch.float32 of shape \(4, 2, 3\)"):
        _scan("cpu", {**arrays, "values": arrays["values"][:3]}, 0.9)
    with pytest.raises(DataError, match=r"terminated: must be contiguous torch.int32 of shape \(4, 2\)"):
        _scan("cpu", {**arrays, "terminated": arrays["terminated"].astype(np.int64)}, 0.9)
    with pytest.raises(DataError, match=r"lam=0.5 needs values"):
        _scan("cpu", {**arrays, "values": None}, 0.9, 0.5)
    given = {name: torch.from_numpy(array) for name, array in arrays.items()}
    with pytest.raises(DataError, match="pass both or neither"):
        ReturnScan("cpu", 2, 3, 0.9).scan(**given, advantages=None, returns=torch.zeros(4, 2, 3))
