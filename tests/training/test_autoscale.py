"""Memory model against torch's allocations; search for a number of environments."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch._dynamo  # noqa: F401  (optimisers would import it in the midst of a test)

from envs import CartPole, Pendulum, TagContinuous
from tests.support import by_day
from warpdrive_min import EnvWrapper
from warpdrive_min.errors import ConfigError, DeviceMemoryError
from warpdrive_min.training.config import RunConfig
from warpdrive_min.training.scale import autoscale
from warpdrive_min.training.scale.autoscale import MemoryModel, ScalingTrial, auto_scale, live_storages, peak_bytes
from warpdrive_min.training.trainer import Trainer

MARGIN = 0.04
"""Permitted relative error of a prediction."""
SLACK = 1.5
"""Largest permitted overestimate of temporary memory, as a factor."""


@dataclass
class Case:
    """Run config and its environment."""

    env: Callable[[], Any]
    policy: dict[str, Any]
    trainer: dict[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] = ("shared",)
    n_envs: int = 50
    n_steps: int = 40

    @property
    def config(self) -> RunConfig:
        """Run config."""
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
        {"algorithm": "PPO", "n_epochs": 1, "n_minibatches": 2},
        names=("runner", "tagger"),
        n_envs=20,
        n_steps=12,
    ),
}


@pytest.fixture(scope="module", autouse=True)
def _frozen():
    """Restrict the memory model's object search to these tests' objects."""
    gc.collect()
    gc.freeze()


@pytest.mark.parametrize("name", by_day(CASES, ("A2C in parts", "PPO, reset pool")))
def test_memory_model_predicts_a_larger_trainer(name):
    """Small probes predict memory: permanent within 4 %, temporary bounded."""
    case = CASES[name]
    want = MemoryModel(case.config, case.wrapper).parts(case.n_envs)
    before = live_storages()
    trainer = Trainer(case.wrapper(case.n_envs), case.config, verbose=False)
    kept = sum(storage.nbytes() for place, storage in live_storages().items() if place not in before)
    trainer.iterate()  # prepares launches
    passing = peak_bytes(trainer.iterate, trainer.wrapper.backend.device)
    assert want["kept"] == pytest.approx(kept, rel=MARGIN)
    assert (1 - MARGIN) * passing <= want["passing"] <= SLACK * passing
    assert kept > 50_000, "the buffers must outweigh single numbers"


def test_memory_model_finds_the_largest_number():
    """The memory model finds the largest number that fits."""
    case = CASES["A2C"]
    model = MemoryModel(case.config, case.wrapper)
    free = 10_000_000
    n = model.largest(free)
    assert n > 100
    assert model.total(n) <= free < model.total(n + 1)
    assert model.largest(1000) == 0
    assert model.largest(2**60) == autoscale.MAX_ENVS
    ddpg = CASES["DDPG"]
    assert MemoryModel(ddpg.config, ddpg.wrapper).largest(2**60) == 20_000 // 40


# ------------------------------------------------------------------ search


def scaled(monkeypatch: pytest.MonkeyPatch, rates: list[float | Exception], **options: Any) -> autoscale.Scaling:
    """Search over points with given rates, or failures."""
    left = iter(rates)

    def measure(config: RunConfig, *_: Any) -> ScalingTrial:
        rate = next(left)
        if isinstance(rate, Exception):
            raise rate
        return ScalingTrial(config.trainer.num_envs, config.trainer.train_batch_size, 1, rate, None)

    monkeypatch.setattr(autoscale, "_measure", measure)
    case = CASES["A2C"]
    return auto_scale(case.config, case.wrapper, free_bytes=10**9, **options)


def test_search_ends_where_more_gain_little(monkeypatch):
    """The search ends where more environments gain little.

    310 and 305 are not 5 % above 300: 1,024 is skipped. 64 has 90 % of 310, and 32 has not. Steps of a rollout stay
    40, so the batch is 40 times the environments.
    """
    seen = []
    scaling = scaled(monkeypatch, [100, 190, 300, 310, 305, math.inf], on_point=seen.append)
    assert [point.num_envs for point in scaling.points] == [16, 32, 64, 128, 256]
    assert seen == list(scaling.points)
    assert (scaling.best.num_envs, scaling.saturation.num_envs) == (128, 64)
    assert scaling.recommended == {"trainer.num_envs": 64, "trainer.train_batch_size": 2560}


def test_search_ends_where_memory_does(monkeypatch, caplog):
    """The search ends at the first number that does not fit.

    At the first point it is an error.
    """
    full = DeviceMemoryError("full")
    scaling = scaled(monkeypatch, [100, 190, full])
    assert [point.num_envs for point in scaling.points] == [16, 32]
    assert "64 environments do not fit, contrary to the memory model: full" in caplog.text
    with pytest.raises(DeviceMemoryError, match=r"auto_scale: 16 environments must fit \(got full\)"):
        scaled(monkeypatch, [full])


@pytest.mark.parametrize(
    "name", ["PPO, reset pool", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("DDPG", "two policies"))]
)
def test_search_measures_and_changes_nothing(name, tmp_path, monkeypatch):
    """The search doubles until memory ends, without changing anything.

    Real trainers; no file, and an unchanged config.
    """
    monkeypatch.chdir(tmp_path)
    case = CASES[name]
    config, before = case.config, case.config.to_dict()
    free = int(MemoryModel(config, case.wrapper).total(9) / autoscale.USABLE_SHARE) + 1
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
    with pytest.raises(ConfigError, match=r"rollouts of 40 steps must fit into 1,000 free bytes"):
        auto_scale(case.config, case.wrapper, free_bytes=1000)
