"""Certificates that are published: whole, of a GPU, and still replayed to the bit on a CPU."""

from __future__ import annotations

from collections import Counter

import pytest

from bench.record import RESULTS
from warpdrive_min.commands.verify import VERIFIED, replayed
from warpdrive_min.training.certificate import Certificate

PUBLISHED = sorted((RESULTS / "certificates").glob("*.json"))
ALGORITHMS = {"cartpole": ("A2C", "PPO"), "pendulum": ("A2C", "DDPG", "PPO")}


def algorithm(certificate):
    (policy,) = certificate.run_config["policy"].values()
    return policy["algorithm"]


def test_each_algorithm_has_five_seeds_from_a_gpu():
    """No file is cut or altered, each is named after its run, and all were trained exactly on a GPU by one commit."""
    found, commits = Counter(), set()
    for path in PUBLISHED:
        one = Certificate.read(path)
        trainer = one.run_config["trainer"]
        assert trainer["exact"]
        assert one.origin.machine["gpu"].startswith("NVIDIA")
        assert path.stem == f"{one.env}-{algorithm(one).lower()}-{trainer['env_backend']}-{trainer['seed']}"
        found[one.env, algorithm(one)] += 1
        commits.add(one.origin.commit)
    assert found == {(env, name): 5 for env, names in ALGORITHMS.items() for name in names}
    assert len(commits) == 1


@pytest.mark.parametrize("path", [path for path in PUBLISHED if path.stem.endswith("-0")], ids=lambda path: path.stem)
def test_beginning_is_replayed_without_a_gpu(path):
    """The first iterations have the bits of the GPU.

    Where a change of exact training means to change them, train again with --certify, on any backend.
    """
    verdict = replayed(Certificate.read(path), iterations=4, backend="host")
    assert verdict.name == VERIFIED, "\n".join(verdict.lines()[:3])
    assert verdict.agreement.last == 4
