"""Sweeps on Ray: local nodes with simulated GPUs."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.core import machine
from bench.core.case import Job
from bench.core.machine import hash_below, sources_hash
from bench.core.measure import Ranks
from bench.core.record import Context, read_all
from bench.process import ray_cluster
from bench.process.sweep import run
from tests.bench.builders import bench, case, timed
from tests.bench.ray_points import deadly, exclusive, gated, stuck, wait_for

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray; pip install ray")


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """Yield a cluster: a head with 2 CPUs and 2 GPUs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("NUMBA_ENABLE_CUDASIM", raising=False)  # nodes pass their environment to measuring processes
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "num_gpus": 2})
        yield cluster
        cluster.shutdown()


def jobs_of(setup: Any, backends: list[str]) -> list[Job]:
    """Return a point for each backend, numbered by ``index``."""
    fake = case(setup, len(backends))
    return [
        Job(fake, {**point, "backend": backend}) for point, backend in zip(fake.points("smoke"), backends, strict=True)
    ]


# ------------------------------------------------------------------ on a cluster


@needs_ray
def test_points_have_their_gpu_or_their_node_alone(nodes, context, tmp_path):
    """Points have a GPU or a node to themselves.

    Two GPU points run concurrently, none next to a CPU point.
    """
    todo = jobs_of(partial(exclusive, tmp_path), ["pycuda", "pycuda", "cpu", "pycuda"])
    with ray_cluster.connected(nodes.address) as cluster:
        assert all(state.available for state in cluster.availability().values())
        records = list(run(todo, context, tmp_path / "r.jsonl", cluster.measure))
    assert [record.reason for record in records if not record.is_evidence] == []
    assert sorted(record.point["index"] for record in records) == [0, 1, 2, 3]
    assert read_all([tmp_path / "r.jsonl"]) == records
    gpus = {record.point["index"]: record.notes["gpu"] for record in records}
    assert {gpus[0], gpus[1]} == {"0", "1"}
    assert gpus[3] in {"0", "1"}
    assert {record.git["sha"] for record in records} == {context.git["sha"]}


@needs_ray
def test_dead_worker_is_tried_again_and_at_last_given_up(nodes, context, tmp_path, monkeypatch):
    """A point whose worker died is retried, then fails."""
    monkeypatch.setattr(ray_cluster, "RETRIES", 1)
    todo = jobs_of(partial(deadly, tmp_path), ["pycuda", "pycuda"])
    with ray_cluster.connected(nodes.address) as cluster:
        records = list(run(todo, context, tmp_path / "r.jsonl", cluster.measure))
    once, always = sorted(records, key=lambda record: record.point["index"])
    assert once.is_evidence
    assert once.notes["lost"] == ["WorkerCrashedError"]
    assert always.status == "failed"
    assert always.reason == "its worker or node died 2 times (WorkerCrashedError, WorkerCrashedError)"
    assert always.machine == {}
    assert [len((tmp_path / f"tried-{index}").read_text()) for index in (0, 1)] == [2, 2]


@needs_ray
def test_point_of_a_dead_node_is_measured_on_another(nodes, context, tmp_path):
    """A point of a removed node moves to another."""
    second = nodes.add_node(num_cpus=1, num_gpus=1)
    todo = jobs_of(partial(stuck, tmp_path, second.node_id), ["pycuda"] * 2)

    def remove() -> None:
        wait_for((tmp_path / "there").exists, "no point came to the second node")
        nodes.remove_node(second, allow_graceful=False)

    remover = threading.Thread(target=remove)
    with ray_cluster.connected(nodes.address) as cluster:
        remover.start()
        records = list(run(todo, context, tmp_path / "r.jsonl", cluster.measure))
    remover.join()
    assert all(record.is_evidence for record in records)
    undisturbed, lost = records
    assert "lost" not in undisturbed.notes
    assert 1 <= len(lost.notes["lost"]) <= ray_cluster.RETRIES


@needs_ray
def test_killed_driver_goes_on_where_it_was(nodes, context, tmp_path):
    """A killed sweep resumes without repeating records."""
    file = tmp_path / "r.jsonl"
    program = f"from tests.bench.test_ray_sweep import drive; drive({nodes.address!r}, {str(tmp_path)!r})"
    driver = subprocess.Popen([sys.executable, "-c", program], cwd=machine.ROOT, env={**os.environ, "PYTHONPATH": "."})
    tried = [tmp_path / f"tried-{index}" for index in (0, 1)]
    wait_for(lambda: file.exists() and tried[1].exists(), "the driver got nowhere")
    driver.send_signal(signal.SIGKILL)
    assert driver.wait() == -signal.SIGKILL
    (before,) = read_all([file])
    (tmp_path / "go").touch()
    with ray_cluster.connected(nodes.address) as cluster:
        todo = jobs_of(partial(gated, tmp_path), ["pycuda"] * 2)
        after = list(run(todo, context, file, cluster.measure))
    assert before.point["index"] == 0
    assert [record.point["index"] for record in after] == [1]
    assert [len(each.read_text()) for each in tried] == [1, 2]
    assert all(record.is_evidence for record in read_all([file]))


def drive(address: str, folder: str) -> None:
    """Sweep in a new process, which is killed."""
    os.environ.pop("NUMBA_ENABLE_CUDASIM", None)
    todo = jobs_of(partial(gated, Path(folder)), ["pycuda"] * 2)
    with ray_cluster.connected(address) as cluster:
        list(run(todo, Context.here("smoke", "test"), Path(folder, "r.jsonl"), cluster.measure))


@needs_ray
def test_node_with_other_sources_is_refused(nodes):
    """A node with different sources is refused."""
    with ray_cluster.connected(nodes.address) as cluster:
        other = ray_cluster.Cluster(sys.modules["ray"], "0123456789abcdef")
        with pytest.raises(ray_cluster.ClusterError, match=r"0123456789abcdef \(got [0-9a-f]{16} on node"):
            other.nodes()
        assert len(cluster.nodes()) == 1


@needs_ray
def test_command_line_sweeps_on_a_cluster(nodes, tmp_path):
    """`run --ray` writes records with the measuring machine."""
    where = ("--case", "env_step", "--env", "cartpole", "--backend", "host")
    said = bench("run", "--preset", "smoke", *where, "--no-plot", "--ray", nodes.address, "--out", tmp_path)
    (file,) = tmp_path.glob("*.jsonl")
    (record,) = read_all([file])
    assert record.is_evidence
    assert record.machine["cores"] == len(os.sched_getaffinity(0))
    assert "s left" in said


# ------------------------------------------------------------------ without one


def test_missing_ray_is_an_error_with_the_install_line(monkeypatch, tmp_path):
    """Without Ray the command prints the install line and exits."""
    monkeypatch.setitem(sys.modules, "ray", None)
    where = ("--case", "sampler", "--backend", "cpu")
    said = bench("run", "--preset", "smoke", *where, "--ray", "local", "--out", tmp_path, exits=2)
    assert 'pip install -e ".[ray]"' in said
    assert not list(tmp_path.iterdir())


@needs_ray
@pytest.mark.parametrize(("address", "why"), [("127.0.0.1:1", "refused"), ("nonsense", "not HOST:PORT")])
def test_address_without_a_cluster_is_refused_at_once(address, why):
    """An address without a cluster is an error with a remedy."""
    with (
        pytest.raises(ray_cluster.ClusterError, match=rf"got '{address}'.*{why}.*ray start"),
        ray_cluster.connected(address),
    ):
        pass


def test_node_without_the_package_says_so(monkeypatch):
    """A node without this package names the missing module."""
    monkeypatch.setitem(sys.modules, "bench.core.machine", None)
    assert "bench.core.machine" in ray_cluster._sources_there()()


def test_hash_of_the_sources_changes_with_names_and_contents(tmp_path):
    """The sources' hash depends on names and contents only."""

    def hashed(**files: str) -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        for name, text in files.items():
            (folder / "bench" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "bench" / name).write_text(text)
        return hash_below(folder)

    assert hashed(a="1", b="2") == hashed(b="2", a="1") == hashed(a="1", b="2", **{"__pycache__/a": "3"})
    assert len({hashed(a="1", b="2"), hashed(a="2", b="1"), hashed(a="12"), hashed(a="1", c="2")}) == 4
    assert sources_hash() == hash_below(machine.ROOT)


def task(backend: str, **changes: Any) -> ray_cluster.Task:
    (job,) = jobs_of(lambda point: timed(), [backend])
    return ray_cluster.Task(Job(replace(job.case, **changes), {**job.point, "n_ranks": 4}))


@pytest.mark.parametrize(
    ("n_cpus", "n_gpus", "on_gpu", "on_cpu"),
    [(16, 1, [16, 1], [16, 0]), (16, 4, [4, 1], [16, 0]), (2, 8, [1, 1], [2, 0]), (8, 0, None, [8, 0])],
)
def test_node_is_shared_by_its_gpus_and_given_whole_to_a_point_of_the_cpu(n_cpus, n_gpus, on_gpu, on_cpu):
    """GPU points share a node's CPUs; a CPU point takes all."""
    node = ray_cluster.Node("id", "host", n_cpus, n_gpus)
    for point, want in ((task("numba"), on_gpu), (task("host"), on_cpu)):
        assert node.could_run(point) == (want is not None)
        if want is not None:
            assert node.share(point) == dict(zip(("num_cpus", "num_gpus"), want, strict=True))
            n_beside = 1 if point.n_gpus == 0 else min(n_cpus, n_gpus)
            assert node.has_room_for(point, [point] * (n_beside - 1))
            assert not node.has_room_for(point, [point] * n_beside)


def test_point_in_ranks_takes_as_many_gpus_of_one_node(context):
    """Four ranks take four GPUs of one node, or skip."""
    ranks = task("pycuda", workload=Ranks)
    assert ray_cluster.Node("id", "host", 8, 8).share(ranks) == {"num_cpus": 4, "num_gpus": 4}
    assert not ray_cluster.Node("id", "host", 8, 8).has_room_for(ranks, [ranks, task("pycuda")])
    entry = {"NodeID": "id", "NodeManagerAddress": "host", "Alive": True, "Resources": {"CPU": 8.0, "GPU": 2.0}}
    cluster = ray_cluster.Cluster(SimpleNamespace(nodes=lambda: [entry]), "0")
    cluster._checked.add("id")
    (record,) = cluster.measure([ranks.job], context)
    assert (record.status, record.reason) == ("skipped", "no node of the cluster has 4 GPUs")
