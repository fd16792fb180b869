"""The memory model against what torch allocates, and the search for a number of environments."""

from __future__ import annotations

import gc
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from envs import CartPole, Pendulum, TagContinuous
from warpdrive_min import EnvWrapper
from warpdrive_min.errors import ConfigError, DeviceMemoryError
from warpdrive_min.training import autoscale
from warpdrive_min.training.autoscale import MemoryModel, Point, auto_scale
from warpdrive_min.training.config import RunConfig
from warpdrive_min.training.trainer import Trainer

MARGIN = 0.02
"""Of all that a trainer keeps: single numbers (metrics, counters, seeds) are not in the model."""
SLACK = 3
"""Largest factor by which what comes and goes may be overestimated."""


@dataclass
class Case:
    """A run config and its environment."""

    env: Callable[[], Any]
    policy: dict[str, Any]
    trainer: dict[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] = ("shared",)
    n_envs: int = 50
    n_steps: int = 40

    @property
    def config(self) -> RunConfig:
        """The run config."""
        size = {"num_envs": self.n_envs, "train_batch_size": self.n_envs * self.n_steps, "env_backend": "cpu"}
        policy = {"to_train": True, **self.policy}
        return RunConfig.from_dict({"trainer": {**size, **self.trainer}, "policy": dict.fromkeys(self.names, policy)})

    def wrapper(self, n_envs: int) -> EnvWrapper:
        """Return a wrapper, not started."""
        return EnvWrapper(self.env(), num_envs=n_envs, env_backend="cpu", auto_reset=True)


DDPG = {
    "algorithm": "DDPG",
    "tau": 0.05,
    "buffer_size": 20_000,
    "model": {"actor": {"fc_dims": [32]}, "critic": {"fc_dims": [48, 32]}},
}
CASES = {
    "A2C": Case(CartPole, {"algorithm": "A2C"}),
    "A2C in parts": Case(CartPole, {"algorithm": "A2C", "model": {"shared": False}}, {"max_rows": 300}),
    "A2C, cuts": Case(lambda: CartPole(episode_length=9), {"model": {"fc_dims": [16, 24, 8], "activation": "tanh"}}),
    "PPO, reset pool": Case(lambda: CartPole(reset_pool_size=200), {"algorithm": "PPO"}, n_envs=200),
    "PPO of a box": Case(Pendulum, {"algorithm": "PPO", "n_minibatches": 2}),
    "PPO, WarpDrive's rule": Case(CartPole, {"algorithm": "PPO"}, {"compat": "warpdrive"}),
    "DDPG": Case(Pendulum, DDPG, {"n_step": 3}),
    "DDPG, WarpDrive's rule": Case(Pendulum, DDPG, {"n_step": 3, "compat": "warpdrive"}),
    "two policies": Case(
        lambda: TagContinuous(num_taggers=2, num_runners=8, grid_length=10.0, episode_length=15),
        {"algorithm": "PPO"},
        names=("runner", "tagger"),
        n_envs=20,
    ),
}


@pytest.fixture(autouse=True)
def _one_thread():
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


def live_storages() -> dict[int, torch.UntypedStorage]:
    """Return the memory of all tensors that are alive, by address."""
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of modules that complain when their attributes are looked at
        tensors = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
    storages = [tensor.untyped_storage() for tensor in tensors if tensor.device.type == "cpu"]
    return {storage.data_ptr(): storage for storage in storages if storage.nbytes()}


def peak_bytes(work: Callable[[], None]) -> int:
    """Return how much more memory than before was there at most while something ran."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    present = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        present += event.nbytes()
        peak = max(peak, present)
    return peak


@pytest.mark.parametrize("name", CASES)
def test_memory_model_counts_what_a_trainer_keeps(name):
    """All but ``passing`` is the sum of the buffers of a trainer, within 2 % and for that never more."""
    case = CASES[name]
    want = MemoryModel(case.config, case.wrapper).parts(case.n_envs, case.n_steps)
    before = live_storages()
    trainer = Trainer(case.wrapper(case.n_envs), case.config, verbose=False)
    after = live_storages()
    got = sum(storage.nbytes() for address, storage in after.items() if address not in before)
    kept = sum(want.values()) - want["passing"]
    assert trainer.learners
    assert (1 - MARGIN) * got <= kept <= got, want
    assert got > 50_000, "the buffers must outweigh single numbers"


@pytest.mark.parametrize("name", CASES)
def test_memory_model_bounds_what_comes_and_goes(name):
    """An iteration never has more than ``passing`` besides, and not much less at its peak."""
    case = CASES[name]
    trainer = Trainer(case.wrapper(case.n_envs), case.config, verbose=False)
    trainer.iterate()  # prepares launches
    got = peak_bytes(trainer.iterate)
    bound = MemoryModel(case.config, case.wrapper).parts(case.n_envs, case.n_steps)["passing"]
    assert got <= bound <= SLACK * got


def test_memory_model_finds_the_largest_number():
    """One environment more would not fit; with no memory none does, and DDPG's buffer is a limit as well."""
    case = CASES["A2C"]
    model = MemoryModel(case.config, case.wrapper)
    free = 10_000_000
    n = model.largest(free, case.n_steps)
    assert n > 100
    assert model.total(n, case.n_steps) <= free < model.total(n + 1, case.n_steps)
    assert model.largest(1000, case.n_steps) == 0
    assert model.largest(2**60, case.n_steps) == autoscale.MAX_ENVS
    ddpg = CASES["DDPG"]
    assert MemoryModel(ddpg.config, ddpg.wrapper).largest(2**60, ddpg.n_steps) == 20_000 // 40


# ------------------------------------------------------------------ search


def scaled(monkeypatch: pytest.MonkeyPatch, rates: list[float | Exception], **options: Any) -> autoscale.Scaling:
    """Search where points have given rates, or fail."""
    left = iter(rates)

    def measure(config: RunConfig, *_: Any) -> Point:
        rate = next(left)
        if isinstance(rate, Exception):
            raise rate
        return Point(config.trainer.num_envs, config.trainer.train_batch_size, 1, rate, None)

    monkeypatch.setattr(autoscale, "_measure", measure)
    case = CASES["A2C"]
    return auto_scale(case.config, case.wrapper, free_bytes=10**9, **options)


def test_search_ends_where_more_gain_little(monkeypatch):
    """310 and 305 are not 5 % more than 300, so 1,024 is not tried; 64 has 90 % of 310, and 32 has not.

    Steps of a rollout stay 40, so the batch is 40 times the environments.
    """
    seen = []
    scaling = scaled(monkeypatch, [100, 190, 300, 310, 305, math.inf], on_point=seen.append)
    assert [point.num_envs for point in scaling.points] == [16, 32, 64, 128, 256]
    assert seen == list(scaling.points)
    assert (scaling.best.num_envs, scaling.knee.num_envs) == (128, 64)
    assert scaling.recommended == {"trainer.num_envs": 64, "trainer.train_batch_size": 2560}


def test_search_ends_where_memory_does(monkeypatch, caplog):
    """What does not fit ends the search, with a word in the log; at the first point it is an error."""
    full = DeviceMemoryError("full")
    scaling = scaled(monkeypatch, [100, 190, full])
    assert [point.num_envs for point in scaling.points] == [16, 32]
    assert "64 environments do not fit, against the memory model: full" in caplog.text
    with pytest.raises(DeviceMemoryError, match=r"auto_scale: 16 environments must fit \(got full\)"):
        scaled(monkeypatch, [full])


@pytest.mark.parametrize("name", ["PPO, reset pool", "DDPG", "two policies"])
def test_search_measures_and_changes_nothing(name, tmp_path, monkeypatch):
    """Real trainers of twice as many environments each time, as far as memory lets; no file, the config as it was."""
    monkeypatch.chdir(tmp_path)
    case = CASES[name]
    config, before = case.config, case.config.to_dict()
    free = int(MemoryModel(config, case.wrapper).total(9, case.n_steps) / autoscale.USABLE) + 1
    scaling = auto_scale(config, case.wrapper, start=2, n_iterations=1, free_bytes=free)
    assert scaling.largest == 9
    assert [point.num_envs for point in scaling.points] == [2, 4, 8]
    for point in scaling.points:
        assert point.train_batch_size == case.n_steps * point.num_envs
        assert point.steps_per_s > 0
        assert point.predicted_bytes < free
        assert point.peak_bytes is None, "of a GPU only"
    assert config.to_dict() == before
    assert not list(tmp_path.iterdir())


def test_search_refuses_what_cannot_be(monkeypatch):
    """Numbers must be positive, and one environment must fit."""
    case = CASES["A2C"]
    with pytest.raises(ConfigError, match=r"auto_scale.start: must be at least 1 \(got 0\)"):
        auto_scale(case.config, case.wrapper, start=0)
    with pytest.raises(ConfigError, match=r"rollouts of 40 steps must fit into memory .* 1,000 are free"):
        auto_scale(case.config, case.wrapper, free_bytes=1000)
