"""A/A runs: their noise, and its file."""

from __future__ import annotations

import json
import math
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import numpy as np
import pytest

from bench.core.case import Job
from bench.core.errors import NotComparable
from bench.core.record import Comparison, read_all, read_comparisons
from bench.core.stats import smallest_detectable
from bench.judge.calibration import noise, read, store
from bench.process import interleaved
from bench.process.checkouts import WORKING_TREE
from bench.process.server import Server
from tests.bench.builders import bench, case, cycle, pair_of, point, record
from tests.bench.builders import timed as fake_timed


def steady(a: float, b: float, **fields):
    """Return a pair of interleaved runs without noise within them."""
    return pair_of([a] * 4, [b] * 4, is_interleaved=True, **fields)


def test_noise_by_hand():
    """Noise of runs and of pairs matches hand calculation.

    Runs e^0, e^0.02, e^0.02, e^0: 0.02 / sqrt(3) between runs, 0.02 interleaved.
    """
    up = math.exp(0.02)
    (got,) = noise([steady(1.0, up), steady(up, 1.0)])
    assert got.run == pytest.approx(0.02 / math.sqrt(3))
    assert got.pair == pytest.approx(0.02)
    assert got.rounds == 2
    assert got.smallest == pytest.approx(smallest_detectable(math.sqrt(2) * got.run, 1, 3))
    assert got.smallest_in_turns == pytest.approx(smallest_detectable(0.02, 1, 2))


def test_noise_from_run_to_run_is_that_of_processes():
    """Each process of a record counts as a run."""
    pair = steady(1.0, 1.0)
    change = {"samples_ns": [1.0, 1.0, 1.1, 1.1], "process": [0, 0, 1, 1]}
    a, b = (each.model_copy(update=change) for each in (pair.a, pair.b))
    (got,) = noise([replace(pair, a=a, b=b)] * 2)
    assert got.run == pytest.approx(np.log([1.0, 1.1] * 4).std(ddof=1))


def test_noise_of_a_comparison_is_that_of_its_rounds():
    """A pair's noise is the scatter of its rounds.

    Each round of all comparisons counts; four of 2 % give 1 %.
    """
    pair = steady(1.0, 1.0)
    rounds = [[0.02, 0.02], [-0.02], [0.02], [-0.02]]
    (got,) = noise([replace(pair, comparison=Comparison.of(pair.a, pair.b, rounds))] * 3)
    assert got.rounds == 12
    assert got.pair == pytest.approx(0.01)


def test_turns_take_out_what_both_sides_share():
    """Drift that both sides share is no noise of pairs."""
    (got,) = noise([steady(each, each) for each in (1.0, 1.1, 1.2)])
    assert got.run > 0.05
    assert got.pair == 0
    assert got.smallest_in_turns == 0


def test_calibration_survives_its_file_and_keeps_other_points(tmp_path):
    """Storing a calibration adds or replaces points in one file."""
    some = record()
    first = noise([steady(1.0, 1.1), steady(1.0, 1.0)])
    other = noise([steady(1.0, each, point=point("host", 7)) for each in (1.3, 1.0)])
    path = store(first, some, "python -m bench calibrate", tmp_path)
    assert path.name == "nvidia-h200-16-cores.json"
    store(other, some, "", tmp_path)
    store(first, some, "", tmp_path)
    got = read(some.machine, tmp_path)
    assert sorted(got.noise, key=lambda each: each.pair) == [*first, *other]
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_calibration_of_other_versions_does_not_stay(tmp_path):
    """A new calibration drops values of another driver."""
    old = record(machine={"gpu": "NVIDIA H200", "cores": 16, "driver": "1"})
    new = record(machine={"gpu": "NVIDIA H200", "cores": 16, "driver": "2"})
    store(noise([steady(1.0, 1.1)] * 2), old, "", tmp_path)
    assert not read(old.machine, tmp_path).fits(new.machine)
    store(noise([steady(1.0, 1.1, point=point("host", 7))] * 2), new, "", tmp_path)
    assert [each.point["backend"] for each in read(new.machine, tmp_path).noise] == ["host"]


def test_point_that_was_not_calibrated_has_the_worst_of_its_kind(tmp_path):
    """An uncalibrated point gets the largest noise of its kind.

    Its kind is case, backend and preset; without one it has none.
    """
    found = noise([*(steady(1.0, 1 + size / 100, point=point("host", size)) for size in (1, 5)), steady(1.0, 1.0)] * 2)
    store(found, record(), "", tmp_path)
    calibration = read(record().machine, tmp_path)
    by_size = {each.point["n_envs"]: each for each in found}
    assert calibration.of(record(point=point("host", 1))) == by_size[1]
    assert calibration.of(record(point=point("host", 999))) == by_size[5]
    assert calibration.of(record(point=point("numba", 1))) is None
    assert calibration.of(record(point=point("host", 1), preset="full")) is None


def test_damaged_calibration_names_its_field(tmp_path):
    """A damaged calibration is refused, with its field and a remedy."""
    path = store(noise([steady(1.0, 1.1)] * 2), record(), "", tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "noise": "none"}))
    with pytest.raises(NotComparable, match=r"noise: .*run `python -m bench calibrate` again"):
        read(record().machine, tmp_path)
    assert read({"gpu": "another", "cores": 1}, tmp_path) is None


def test_command_compares_the_code_with_itself(tmp_path, monkeypatch):
    """`bench calibrate` writes the machine's file and all records."""
    lengths = cycle([1e6, 1.1e6, 0.9e6])

    class Watch:
        def time(self, block):
            return round(lengths(0)), None

    fake = case(lambda point: fake_timed(stopwatch=Watch()), 2)

    @contextmanager
    def sides(*names):
        assert names == (WORKING_TREE, WORKING_TREE)
        yield [lambda: nullcontext(Server({"fake": fake})) for _ in names]

    monkeypatch.setattr(interleaved, "revisions", sides)
    monkeypatch.setattr("bench.options.chosen", lambda *_: [Job(fake, each) for each in fake.points("smoke")])
    folders = ["--out", tmp_path / "calibration", "--records", tmp_path / "records"]
    bench("calibrate", "--preset", "smoke", "--rounds", 2, *folders)
    (file,) = (tmp_path / "calibration").iterdir()
    found = json.loads(file.read_text())
    assert [each["rounds"] for each in found["noise"]] == [2, 2]  # a smoke test has one in each comparison
    assert found["command"] == "python -m bench calibrate --preset smoke --rounds 2"
    (records,) = (tmp_path / "records").iterdir()
    assert len(read_all([records])) == 2 * 2 * 2
    assert len(read_comparisons([records])) == 2 * 2
