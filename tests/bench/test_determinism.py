"""Determinism: differing runs are named, to the iteration and tensor."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bench.core.errors import Skip
from bench.core.measure import PLANS
from bench.core.schema import MOST
from bench.show.views.determinism import LEVELS, determinism_table
from bench.workloads import determinism
from bench.workloads.cases import CASES, jobs
from bench.workloads.determinism import AGAIN, BLOCK, BUSY, CARD, ON_A_CPU, THREADS, Runs, default_point, program
from bench.workloads.setups.starts import StartError
from bench.workloads.setups.trainers import WatchedTrainer
from tests.bench.builders import metric, record
from tests.support import by_night
from warpdrive_min.agreement.changes import other_blocks
from warpdrive_min.function_manager import LaunchShape

(SMOKE,) = CASES["determinism"].points("smoke")
WEIGHT = "policy/shared/model/vf_head.bias"


@pytest.fixture
def runs(monkeypatch):
    """Train in this process instead of new ones; return a function that plants faults.

    A fault is applied to the state of the second run, before its iteration 2.
    """

    def start(point, fault):
        iterate = WatchedTrainer.iterate

        def play(point, variation, folder, variables):

            def faulty(trainer):
                if trainer.iteration == 1 and folder.name == "1":
                    fault(trainer.state()[0])
                iterate(trainer)

            with monkeypatch.context() as patched:
                patched.setattr(WatchedTrainer, "iterate", faulty)
                program.play(point, folder)

        return Runs(point, "cpu", play, default_point(point))

    return start


def test_runs_of_one_seed_are_equal(runs):
    """Two runs of the default point have the same bits in all iterations."""
    made = runs(SMOKE, lambda state: None)
    assert made.check().passed
    seen = made.measure()
    assert seen.notes["difference"] is None
    assert seen.metrics["equal_iterations"].value == SMOKE["n_iterations"] == 3
    assert {*seen.notes["digests"]} == {*("weights", "optimiser", "observations", "environment", "recorder", "buffers")}
    assert {len(hashes) for hashes in seen.notes["digests"].values()} == {4}
    assert seen.notes["reference"]["architecture"] == torch.backends.cpu.get_cpu_capability()


@pytest.mark.parametrize(
    ("planted", "change", "named"),
    [("env/_sampler_seed_", 1, "policy/shared/model/"), ("env/final_observations", 1e-3, "env/final_observations")],
)
def test_planted_difference_is_named(runs, planted, change, named):
    """Another seed from iteration 2 on, and another number, are found there."""
    difference = runs(SMOKE, lambda state: state[planted].add_(change)).measure().notes["difference"]
    assert difference["iteration"] == 2
    assert difference["tensor"].startswith(named)
    assert difference["n_tensors"] >= 1
    assert 0 < difference["absolute"] < 1
    assert 0 < difference["relative"] <= 2


@pytest.mark.gpu
@pytest.mark.parametrize("variation", [BLOCK, by_night(THREADS), by_night(BUSY), ON_A_CPU])
def test_exact_training_has_the_same_bits_on_a_gpu(variation):
    """Exact training differs in no variation on one GPU, nor on the CPU."""
    point = {**SMOKE, "backend": "pycuda", "mode": "graph", "exact": True, "variation": variation}
    seen = CASES["determinism"].setup(point).measure(PLANS["smoke"])
    assert seen.rejection_reason is None
    assert seen.notes["difference"] is None


def test_sizes_of_differences():
    """Differences are absolute and relative; those without a number are the largest."""
    one, other = np.array([1.0, -4.0]), np.array([1.0, -5.0])
    assert determinism.size_of_difference(one, other) == {"absolute": 1.0, "relative": 0.2}
    assert determinism.size_of_difference(one, one[:1])["absolute"] == MOST
    assert determinism.size_of_difference(one, None)["absolute"] == MOST
    assert determinism.size_of_difference(one, np.array([1.0, np.nan]))["relative"] == MOST


def test_training_that_does_not_learn_fails_its_check(runs, monkeypatch):
    """Equal bits of weights that never change prove nothing."""
    monkeypatch.setattr(WatchedTrainer, "update", lambda trainer: None)
    assert not runs(SMOKE, lambda state: None).check().passed


def fake_runs(monkeypatch, point, facts=lambda variation: {"block": "128", "threads": 2, "card": "a"}):
    """Return runs that start no process, and the list of what they started."""
    made, started = Runs(point, "cpu", determinism.play, default_point(point)), []

    def run(point, variation=AGAIN, **variables):
        started.append((point, variation, variables))
        iteration_s = 2.0 if point.get("exact") else 1.0
        return SimpleNamespace(digests=[], iteration_s=iteration_s, facts=facts(variation), by_group=dict, delete=bool)

    monkeypatch.setattr(made, "_run", run)
    return made, started


def test_cost_is_over_the_default_arithmetic(monkeypatch):
    """Runs of exact training and of fp32 alternate: B A A B."""
    exact = {**SMOKE, "exact": True, "precision": "fp32"}
    made, started = fake_runs(monkeypatch, exact)
    cost = made.measure().metrics["times_default"]
    assert (cost.low, cost.value, cost.high) == (2.0, 2.0, 2.0)
    assert ["exact" in point for point, *_ in started] == [True, False, False, True]
    assert "times_default" not in fake_runs(monkeypatch, SMOKE)[0].measure().metrics


@pytest.mark.parametrize("variation", [BLOCK, THREADS, CARD])
def test_variation_without_effect_is_refused(monkeypatch, variation):
    """A variation that changed nothing must not count as determinism."""
    monkeypatch.setattr(determinism, "second_card", lambda: "1")
    made, started = fake_runs(monkeypatch, {**SMOKE, "variation": variation})
    with pytest.raises(StartError, match=f"{variation} must differ between both runs"):
        made.measure()
    variables = {BLOCK: {}, THREADS: {"OMP_NUM_THREADS": "1"}, CARD: {"CUDA_VISIBLE_DEVICES": "1"}}
    assert started[-1][1:] == (variation, variables[variation])


def test_second_card(monkeypatch):
    """The second visible GPU is used; without one the point is skipped."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert determinism.second_card() == "5"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with pytest.raises(Skip, match="needs 2 GPUs"):
        determinism.second_card()


def test_device_must_be_busy(monkeypatch):
    """A process that does not keep the device busy is an error."""
    with determinism.occupied("cpu"):
        pass
    monkeypatch.setattr(determinism, "OCCUPY", "print('busy')")
    with pytest.raises(StartError, match="must not end"), determinism.occupied("cpu") as ended:
        ended.wait()


def test_blocks_change():
    """Blocks are halved, and a single warp becomes two."""
    before = [LaunchShape.of(1), LaunchShape.of(1, n_envs=100), LaunchShape.of(5), LaunchShape.of(110)]
    with other_blocks():
        after = [LaunchShape.of(1), LaunchShape.of(1, n_envs=100), LaunchShape.of(5), LaunchShape.of(110)]
    assert [(each.threads, each.envs_per_block) for each in before] == [(128, 128), (32, 32), (128, 25), (128, 1)]
    assert [(each.threads, each.envs_per_block) for each in after] == [(64, 64), (64, 64), (64, 12), (64, 1)]


def test_points_have_the_variations_of_their_backend():
    """GPUs have two variations more, and TF32 has none on a CPU."""

    def found(**axes):
        points = [job.point for job in jobs("default", ["case=determinism"])]
        return [each["variation"] for each in points if axes.items() <= each.items()]

    assert found(backend="host", exact=True) == [AGAIN, BLOCK, THREADS, BUSY]
    assert found(backend="pycuda", exact=True) == [AGAIN, BLOCK, THREADS, BUSY, CARD, ON_A_CPU]
    assert found(backend="pycuda", precision="tf32") == [AGAIN, BLOCK, THREADS, BUSY, CARD]
    assert not found(backend="host", precision="tf32")


# ------------------------------------------------------------------ table


def measured(variation, gpu="NVIDIA H100", card="a", weights="00", difference=None, **changes):
    """Return a record of CUDA C with the hash of its weights."""
    run = {"processor": gpu, "architecture": "sm_90"}
    fields = {
        "scope": "determinism",
        "samples_ns": None,
        "threads": None,
        "point": {**SMOKE, "backend": "pycuda", "mode": "graph", "variation": variation},
        "machine": {"gpu": gpu, "gpu_uuid_hash": card, "driver": "570.1", "cpu": "Xeon"},
        "metrics": {"equal_iterations": metric(3), "times_default": metric(1.5, unit="x")},
        "notes": {
            "digests": {"weights": ["00", weights], "observations": ["01", "02"]},
            "difference": difference,
            "reference": run,
            "varied": run,
        },
    }
    return record(case="determinism", **{**fields, **changes})


APART = {"iteration": 2, "tensor": WEIGHT, "n_tensors": 3, "absolute": 1e-7, "relative": 1e-6}


def cells(*records):
    """Return the single row of a table, by column."""
    table = determinism_table(records)
    (row,) = table.cells
    return dict(zip((column.name for column in table.columns), row, strict=True))


def test_level_is_the_last_before_a_difference():
    """Levels follow each other; those without a measurement are named."""
    equal = [measured(variation) for variation in (AGAIN, BUSY, ON_A_CPU)]
    row = cells(*equal)
    assert row["run to run"] == "none in 3 iterations (a new process, a busy device)"
    assert row["machine to machine"] == row["GPU to GPU"] == "\N{EN DASH}"
    assert row["level reached"] == "GPU to CPU (not measured: machine to machine, GPU to GPU)"
    assert row["time over default"] == "1.5"
    row = cells(*equal[:2], measured(ON_A_CPU, difference=APART))
    assert row["GPU to CPU"] == f"a CPU: iteration 2, `{WEIGHT}`, 1.0e-07"
    assert row["level reached"] == "run to run"
    assert cells(measured(AGAIN, difference=APART), equal[2])["level reached"] == "none"


def test_records_of_two_machines_are_compared_by_their_hashes():
    """Another card of a model, and another model, add outcomes of their own."""
    here = measured(AGAIN)
    row = cells(here, measured(AGAIN, card="b"), measured(AGAIN, "NVIDIA H200", "c", weights="ff"))
    assert row["machine to machine"] == "none in 3 iterations (another card)"
    assert row["GPU to GPU"].startswith("NVIDIA H100 and NVIDIA H200: iteration 1, `weights`")
    assert row["level reached"] == "machine to machine"
    table = determinism_table([here, measured(AGAIN, card="b", git={"sha": "abc", "dirty": False})])
    assert len(table.rows) == 2, "runs of two commits are not compared"
    assert "NVIDIA H100 (sm_90, driver 570.1)" in table.caption
    assert {*LEVELS} < {column.name for column in table.columns}
