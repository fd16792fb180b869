"""Arguments of the core's kernels, as named tuples for NumPy and Numba.

Annotations are in Numba's notation. ``Any`` marks arguments that constants may disable. The first axis is the
environment unless noted otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from numba import float32, int32


class Recording(NamedTuple):
    """Arguments of ``record``: a step, its rows, sums over episodes."""

    rewards: float32[:, :]
    done: int32[:]
    terminated: int32[:]
    truncated: int32[:]
    final_observations: float32[:, :]
    reward_row: float32[:, :]
    terminated_row: int32[:]
    truncated_row: int32[:]
    success_row: int32[:]
    running_return: float32[:, :]
    running_steps: int32[:]
    finished_return: float32[:, :]
    finished_steps: int32[:]
    finished_episodes: int32[:]
    cuts: float32[:, :, :]
    n_cut: int32[:]
    n_cuts: int32
    faults: int32[:, :]


class Scan(NamedTuple):
    """Arguments of ``scan``: a rollout and its results.

    Axes are ``[step, row]``, ``[step, env]`` and ``[row]``.
    """

    rewards: float32[:, :]
    values: float32[:, :]
    terminated: int32[:, :]
    truncated: int32[:, :]
    last_values: float32[:]
    cut_values: float32[:, :]
    advantages: float32[:, :]
    returns: float32[:, :]
    gamma: float32
    lam: float32
    n_steps: int32
    n_cuts: int32
    n_rows: int32


class Noise(NamedTuple):
    """Arguments of ``noise``: an Ornstein-Uhlenbeck process around a mean."""

    mean: float32[:, :, :]
    ou_state: float32[:, :, :]
    actions: float32[:, :, :]
    draws: int32[:]
    seed: int32[:]
    damping: float32
    stddev: float32
    scale: float32
    damping_factor: float32[:]
    stddev_factor: float32[:]
    scale_factor: float32[:]
    stream: int32


class Gaussian(NamedTuple):
    """Arguments of ``gaussian``: a draw from Gaussians."""

    mean: float32[:, :, :]
    log_std: float32[:, :]
    actions: float32[:, :, :]
    draws: int32[:]
    seed: int32[:]
    log_prob: float32[:, :]
    entropy: float32[:, :]
    stream: int32


class Uniform(NamedTuple):
    """Arguments of ``uniform_actions``: a draw between bounds."""

    low: float32[:, :]
    high: float32[:, :]
    actions: float32[:, :, :]
    draws: int32[:]
    seed: int32[:]
    stream: int32


class Choices(NamedTuple):
    """Arguments of ``sample``: a draw of discrete actions."""

    distribution: float32[:, :, :]
    mask: Any
    actions: int32[:, :, :]
    draws: int32[:]
    seed: int32[:]
    log_prob: Any
    entropy: Any
    impossible: int32[:, :]
    stream: int32


class UniformChoices(NamedTuple):
    """Arguments of ``uniform_choices``: a draw of discrete actions from equal weights."""

    actions: int32[:, :, :]
    draws: int32[:]
    seed: int32[:]
    stream: int32


class Rows(NamedTuple):
    """Arguments of ``reset_rows``: an array to restore, and its source."""

    target: int32[:, :]
    source: int32[:, :]
    done: int32[:]
    episode: int32[:]
    reset_seed: int32[:]
    n_words: int32
    n_rows: int32
    force: int32
