"""Published certificates: complete, of a GPU, and bit-identical on a CPU."""

from __future__ import annotations

import inspect
from collections import Counter
from pathlib import Path

import pytest

import envs
from bench.core.record import RESULTS
from warpdrive_min.commands.verify import VERIFIED, replayed
from warpdrive_min.training.config import RunConfig
from warpdrive_min.training.record.certificate import Certificate

PUBLISHED = sorted((RESULTS / "certificates").glob("*.json"))
BY_DAY = ("cartpole-a2c-pycuda", "cartpole-ppo-host-0", "pendulum-ddpg-pycuda")
"""Starts of names that every run replays; the others are nightly."""
ALGORITHMS = {"cartpole": ("A2C", "PPO"), "pendulum": ("A2C", "DDPG", "PPO")}
"""Algorithms trained on a GPU, from five seeds each."""
FEATURES = {
    "normalised": lambda one: (
        (policy := one.run_config["policy"]["shared"])["normalize_rewards"]
        and policy["model"]["normalize_observations"]
    ),
    "gru": lambda one: one.run_config["policy"]["shared"]["model"]["type"] == "gru",
    "population": lambda one: one.run_config["population"]["size"] > 1,
    "ranks": lambda one: one.origin.machine["ranks"] == "2",
}
"""True for a certificate with a feature of exact training, by the end of its name."""
SHIPPED = {
    path: name.upper()
    for path in Path(inspect.getfile(envs)).parent.rglob("run_config_*.yaml")
    for name in ("a2c", "ddpg", "ppo")
    if path.stem.endswith(f"_{name}")
}
"""Run configs of one algorithm and plain networks."""


def algorithm(certificate):
    (name,) = {policy["algorithm"] for policy in certificate.run_config["policy"].values()}
    return name


def test_each_algorithm_has_five_seeds_from_a_gpu():
    """Each algorithm has certificates of five seeds from a GPU.

    Files are complete and named by runs; one commit trained them.
    """
    found, commits, features = Counter(), set(), set()
    for path in PUBLISHED:
        one = Certificate.read(path)
        trainer = one.run_config["trainer"]
        assert trainer["exact"]
        *_, feature = path.stem.split("-")
        ending = f"-{feature}" if feature in FEATURES else ""
        assert path.stem == f"{one.env}-{algorithm(one).lower()}-{trainer['env_backend']}-{trainer['seed']}{ending}"
        if ending:
            assert FEATURES[feature](one), path.stem
            features.add(feature)
        elif trainer["env_backend"] == "pycuda":
            assert one.origin.machine["gpu"].startswith("NVIDIA")
            found[one.env, algorithm(one)] += 1
            commits.add(one.origin.commit)
    assert found == {(env, name): 5 for env, names in ALGORITHMS.items() for name in names}
    assert len(commits) == 1
    assert features == {*FEATURES}


def test_each_shipped_run_has_a_certificate():
    """Each shipped run has a certificate, and is as shipped.

    Only exact training differs.
    """
    whole = [Certificate.read(path) for path in PUBLISHED if path.stem.endswith("-host-0")]
    found = {(one.env, algorithm(one)): one for one in whole}
    for path, name in SHIPPED.items():
        certified = RunConfig.from_dict(found.pop((path.parent.name, name)).run_config).to_dict()
        shipped = RunConfig.load(path).to_dict()
        trained = {**certified["trainer"], "exact": False, "env_backend": shipped["trainer"]["env_backend"]}
        assert {**trained, "seed": shipped["trainer"]["seed"]} == shipped["trainer"]
        assert certified["policy"] == shipped["policy"]
    assert not found


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path,
            id=path.stem,
            marks=[] if path.stem.startswith(BY_DAY) or path.stem.endswith((*FEATURES,)) else [pytest.mark.nightly],
        )
        for path in PUBLISHED
        if path.stem.endswith(("-0", *FEATURES))
    ],
)
def test_beginning_is_replayed_without_a_gpu(path):
    """The first iterations replay without a GPU, bit by bit.

    They have the GPU's bits, or those of its CPU. If a change of exact training means to change them, train again
    with --certify, on any backend.
    """
    n = 4 if path.stem.endswith("pycuda-0") else 1
    verdict = replayed(Certificate.read(path), iterations=n, backend="host")
    assert verdict.name == VERIFIED, "\n".join(verdict.lines()[:3])
    assert verdict.agreement.last == n
