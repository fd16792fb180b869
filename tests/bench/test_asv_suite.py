"""Cases as benchmarks of ASV and pytest-benchmark."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch

from bench import options, test_throughput
from bench.core.case import Job
from bench.core.errors import Skip
from bench.core.groups import groups_of
from bench.core.measure import Stamp
from bench.core.point import Check, point_name
from bench.suite import throughput
from tests.bench.builders import case, timed
from warpdrive_min.errors import ConfigError

ROOT = Path(__file__).parents[2]


def views() -> dict[str, type]:
    """Return ASV's benchmarks of the suite."""
    return {name: each for name, each in vars(throughput).items() if hasattr(each, "param_names")}


def view_of(fake, points=None):
    """Return ASV's benchmark of a fake case."""
    return throughput._time_view(fake, [Job(fake, each) for each in points or fake.points("smoke")])


def test_suite_has_a_class_for_every_case_that_repeats():
    """Each timed case is a benchmark class of ASV with a preset's points.

    It has ten minutes to compile. A CPU has no points of GPU backends.
    """
    _, chosen = options.points_of_tools()
    of_cases = groups_of(chosen, lambda job: job.case.name)
    assert len([name for name in views() if not name.endswith("Gpu")]) == len(of_cases) >= 10
    for name, jobs in of_cases.items():
        view = views()[name.title().replace("_", "")]
        assert view.version == str(jobs[0].case.version)
        assert view.timeout == 600
        points = {(throughput._without_backend(job.point), job.point["backend"]) for job in jobs}
        assert len(points) == len(jobs)
        assert points <= set(itertools.product(*view.params))


@pytest.mark.parametrize(
    ("name", "gpu", "want"),
    [("", True, "gated"), ("", False, "smoke"), ("full", False, "full"), ("gated", False, "gated")],
)
def test_preset_chooses_the_points_of_tools(name, gpu, want, monkeypatch):
    """A GPU has the points of a gate, a CPU those of smoke."""
    monkeypatch.setenv("BENCH_PRESET", name)
    monkeypatch.setattr(options, "has_gpu", lambda: gpu)
    got, points = options.points_of_tools()
    assert got == want
    assert any(job.point["backend"] == "pycuda" for job in points) == gpu
    assert all(options.is_gated(job) for job in points) == (want == "gated")
    assert max(job.point["n_envs"] for job in points if job.case.name == "env_step") >= (
        64 if want == "smoke" else 100_000
    )


def test_pytest_benchmark_has_the_same_points():
    """Points of pytest-benchmark have a clock of their device."""
    assert [each.id for each in test_throughput.POINTS] == [
        point_name(job.case.name, job.point) for job in options.points_of_tools()[1]
    ]
    timer = test_throughput.POINTS[0].marks[0].kwargs["timer"]
    first = timer()
    assert timer() - first > 0


def test_unknown_preset_of_tools_is_refused(monkeypatch):
    """A preset that does not exist is one line."""
    monkeypatch.setenv("BENCH_PRESET", "big")
    with pytest.raises(ConfigError, match=r"must be one of gated, smoke, .* \(got big\)"):
        options.points_of_tools()


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
    view = view_of(case(lambda point: tries.append(point["index"]) or timed()))
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

    view = view_of(case(setup))
    with pytest.raises(NotImplementedError, match="buy one"):
        view().setup(view.params[0][0], "cpu")
    with pytest.raises(ArithmeticError, match="off by one"):
        view().setup(view.params[0][1], "cpu")


def test_point_that_a_backend_lacks_is_left_out():
    """A missing combination of point and backend is omitted."""
    points = [{"n_envs": 1, "backend": "cpu"}, {"n_envs": 2, "backend": "cpu"}, {"n_envs": 1, "backend": "host"}]
    view = view_of(case(lambda point: timed()), points)
    assert view.params == [["n_envs=1", "n_envs=2"], ["cpu", "host"]]
    view().setup("n_envs=1", "host")
    with pytest.raises(NotImplementedError, match="there is no such point on host"):
        view().setup("n_envs=2", "host")


def test_asv_times_one_unit_of_work():
    """The clock of a sample gives seconds per env step.

    ASV takes one sample with `--quick`; the point is checked after the first one, too.
    """
    checks, runs = [], []
    work = timed(lambda: runs.append(None), check=lambda: checks.append(len(runs)) or Check(True, 0.0, "by hand", ""))
    view = view_of(case(lambda point: work))
    instance = view()
    assert (view.rounds, view.repeat, view.number) == (1, (9, 60, 2.0), 1)
    instance.setup(view.params[0][0], "cpu")
    before = len(runs)
    first = instance.timer()
    instance.time_unit(view.params[0][0], "cpu")
    second = instance.timer()
    n = len(runs) - before
    assert second - first == pytest.approx((second._s - first._s) / (1_000 * n))
    instance.teardown(view.params[0][0], "cpu")
    instance.teardown(view.params[0][0], "cpu")
    assert checks == [0, before + n]


def test_gpu_tracks_idle_time_and_energy(monkeypatch):
    """Tracked values of a GPU are lower-is-better."""
    watched = {"utilisation_percent": {"mean": 97.5}, "joules_per_env_step": 2e-9}
    monkeypatch.setattr(throughput._Timer, "measure_telemetry", lambda *_: (watched, ""))
    fake = case(lambda point: timed())
    view = throughput._gpu_view(fake, [Job(fake, each) for each in fake.points("smoke")])
    assert view.__name__ == "FakeGpu"
    instance, name = view(), view.params[0][0]
    instance.setup(name, "cpu")
    assert instance.track_idle(name, "cpu") == 2.5
    assert instance.track_energy(name, "cpu") == pytest.approx(2e-3)
    assert view.track_energy.unit == "microjoules"


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

    monkeypatch.setattr(torch.cuda, "Event", Event)
    start, end = Stamp(torch.device("cuda")), Stamp(torch.device("cuda"), 10)
    assert end - start == pytest.approx(0.0003)
    assert waited == [6.0]
