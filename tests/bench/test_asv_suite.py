"""Cases as benchmarks of ASV and pytest-benchmark."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path

import pytest

from bench import test_throughput
from bench.core.errors import Skip
from bench.core.measure import Timed
from bench.core.point import Check, Measurement
from bench.suite import throughput
from bench.workloads.cases import CASES
from tests.bench.builders import case, timed

ROOT = Path(__file__).parents[2]


def views() -> dict[str, type]:
    """Return ASV's benchmarks of the suite."""
    return {name: each for name, each in vars(throughput).items() if hasattr(each, "param_names")}


def test_suite_has_a_class_for_every_case_that_repeats():
    """Each timed case is a benchmark class of ASV.

    Its parameters are the smoke points; it has ten minutes to compile.
    """
    repeating = [each for each in CASES.values() if each.workload is Timed]
    assert len(views()) == len(repeating)
    for each in repeating:
        view = views()[each.name.title().replace("_", "")]
        assert view.version == str(each.version)
        assert view.timeout == 600
        crossed = set(itertools.product(*view.params))
        points = {(throughput._without_backend(point), point["backend"]) for point in each.points("smoke")}
        assert len(points) == len(each.points("smoke"))
        assert points <= crossed


def test_folder_of_the_suite_has_a_name_that_hides_no_package():
    """The suite's folder has no package's name.

    ASV imports it by its last name; git ignores its output.
    """
    conf = json.loads((ROOT / "asv.conf.json").read_text())
    assert Path(conf["benchmark_dir"]).name not in ("asv", "bench", "envs", "warpdrive_min")
    assert (ROOT / conf["benchmark_dir"] / "__init__.py").exists()
    ignored = tuple(line for line in (ROOT / ".gitignore").read_text().split() if line.endswith("/"))
    assert all(f"{conf[folder]}/".startswith(ignored) for folder in ("env_dir", "results_dir", "html_dir"))


def test_point_is_set_up_and_checked_once():
    """A point is set up and checked once.

    ASV calls `setup` before every sample; another point replaces the first.
    """
    tries = []
    view = throughput._view(case(lambda point: tries.append(point["index"]) or timed()))
    first, second, _ = view.params[0]
    instance = view()
    for name in (first, first, second, second):
        instance.setup(name, "cpu")
    assert tries == [0, 1]


def test_wrong_point_is_not_timed_and_absent_one_left_out():
    """A failed check is an error; a skip omits the parameter."""

    def setup(point):
        if point["index"] == 0:
            raise Skip("no device; buy one")
        return timed(check=lambda: Check(False, 1.0, "by hand", "off by one"))

    view = throughput._view(case(setup))
    with pytest.raises(NotImplementedError, match="buy one"):
        view().setup(view.params[0][0], "cpu")
    with pytest.raises(ArithmeticError, match="off by one"):
        view().setup(view.params[0][1], "cpu")


def test_point_that_a_backend_lacks_is_left_out():
    """A missing combination of point and backend is omitted."""
    points = [{"n_envs": 1, "backend": "cpu"}, {"n_envs": 2, "backend": "cpu"}, {"n_envs": 1, "backend": "host"}]
    view = throughput._view(dataclasses.replace(case(lambda point: timed()), points=lambda preset: points))
    assert view.params == [["n_envs=1", "n_envs=2"], ["cpu", "host"]]
    view().setup("n_envs=1", "host")
    with pytest.raises(NotImplementedError, match="fake has no such point on host"):
        view().setup("n_envs=2", "host")


def test_time_of_one_unit_is_tracked_with_its_samples(monkeypatch):
    """ASV gets the time of one env step with all samples."""
    monkeypatch.setattr(throughput._Timer, "prepare", lambda timer, plan: None)
    monkeypatch.setattr(throughput._Timer, "measurement", lambda *_: Measurement(samples_ns=(5_000.0, 6_000.0)))
    view = throughput._view(case(lambda point: timed()))
    instance, name = view(), view.params[0][0]
    instance.setup(name, "cpu")
    assert view.track_time.unit == "seconds"
    assert instance.track_time(name, "cpu") == {"samples": pytest.approx([5e-9, 6e-9]), "number": 1}


def test_stamps_of_a_gpu_subtract_to_seconds(monkeypatch):
    """The difference of two GPU time stamps is in seconds."""
    waited = []

    class Event:
        count = 0

        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            Event.count += 1
            self.ms = 3.0 * Event.count

        def synchronize(self):
            waited.append(self.ms)

        def elapsed_time(self, later):
            return later.ms - self.ms

    monkeypatch.setattr(test_throughput.torch.cuda, "Event", Event)
    start, end = test_throughput.Stamp(), test_throughput.Stamp()
    assert end - start == pytest.approx(0.003)
    assert waited == [6.0]
