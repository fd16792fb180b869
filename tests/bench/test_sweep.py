"""Sweeps: every point ends as a record, whatever happens."""

from __future__ import annotations

import io
import json
import re

import pytest
import typer
from rich.console import Console

from bench import sweep
from bench.core import machine
from bench.core.errors import Skip
from bench.core.point import Check
from bench.core.record import Context, Host, read_all
from bench.judge.published.anchors import ANCHORS
from bench.options import require_known
from bench.process.local import run_points
from bench.process.pace import duration
from bench.process.sweep import run
from bench.show import documents, plots
from bench.show.views.run_charts import training_chart
from bench.workloads.cases import jobs
from bench.workloads.shared import training_point
from tests.bench.builders import bench, case, in_this_process, point, record, timed
from warpdrive_min.backends import Availability


@pytest.mark.parametrize("backend", ["host", pytest.param("pycuda", marks=pytest.mark.gpu)])
def test_run_traces_points_and_measures_nothing(backend, tmp_path):
    """`--trace` writes a file for each repeated point, and no record."""
    once = ("--case", "startup") if backend == "host" else ()  # preset smoke starts up on no GPU
    words = ("--preset", "smoke", "--case", "many_steps", *once, "--env", "cartpole")
    out = bench("run", *words, "--backend", backend, "--where", "policy=absent", "--trace", tmp_path / "traces")
    traces = {path.name: json.loads(path.read_text()) for path in (tmp_path / "traces").iterdir()}
    assert len(traces) == 3, "single steps, and a rollout that keeps the last or all steps"
    for name, trace in traces.items():
        point, events = trace["warpdrive_min"]["point"], trace["traceEvents"]
        assert f"mode={point['mode']},kept={point['kept']}" in name
        fused = point["mode"] == "fused"
        if backend == "host":
            launch = "rollout: draw + env step + reset" if fused else "step: env step + reset"
            assert launch in {event["name"] for event in events if event.get("cat") == "user_annotation"}
        else:
            kernels = {event["name"] for event in events if event.get("cat") == "kernel"}
            assert ("rollout" if fused else "step") in kernels
    assert ("left out: startup[" in out) == bool(once)
    assert "records:" not in out


def some_work() -> None:
    sum(range(3000))


def jobs_of(fake):
    return jobs("smoke", cases={fake.name: fake})


def test_failing_and_skipped_points_do_not_end_the_sweep(context, tmp_path):
    """Failed and skipped points do not stop a sweep."""

    def setup(point):
        if point["index"] == 0:
            raise Skip("no device; buy one")
        if point["index"] == 1:
            raise RuntimeError("out of luck")
        return timed(some_work)

    records = list(run(jobs_of(case(setup)), context, tmp_path / "r.jsonl", in_this_process))
    assert [record.status for record in records] == ["skipped", "failed", "ok"]
    assert records[0].reason == "no device; buy one"
    assert records[1].reason == "RuntimeError: out of luck"
    assert records[2].n >= 5
    assert read_all([tmp_path / "r.jsonl"]) == records
    assert [record.is_evidence for record in records] == [False, False, True]


@pytest.mark.parametrize("wrong_at", [0, 1])
def test_wrong_point_fails_before_or_after_its_timing(context, tmp_path, wrong_at):
    """A point that fails either check is no evidence."""
    checks = iter([index != wrong_at for index in range(2)])
    fake = case(lambda point: timed(some_work, check=lambda: Check(next(checks), 0.5, "by hand", "off by 0.5")), 1)
    (record,) = run(jobs_of(fake), context, tmp_path / "r.jsonl", in_this_process)
    assert record.status == "failed"
    assert "off by 0.5" in record.reason
    assert not record.is_evidence


def test_more_than_the_machine_allows_fails_the_point(context, tmp_path, monkeypatch):
    """A rate above the roofline fails the point."""
    monkeypatch.setattr(machine, "roofline", lambda *_: (1.5, "by hand"))
    (record,) = run(jobs_of(case(lambda point: timed(some_work), 1)), context, tmp_path / "r.jsonl", in_this_process)
    assert record.status == "failed"
    assert "150% of what the machine allows" in record.reason


def test_resumed_sweep_runs_what_is_missing(context, tmp_path):
    """A resumed sweep repeats failed points, not finished ones."""
    tries = []

    def setup(point):
        tries.append(point["index"])
        if point["index"] == 1 and len(tries) < 4:
            raise RuntimeError("not yet")
        return timed(some_work)

    todo = jobs_of(case(setup))
    file = tmp_path / "r.jsonl"
    list(run(todo, context, file, in_this_process))
    again = list(run(todo, context, file, in_this_process))
    assert tries == [0, 1, 2, 1]
    assert [record.status for record in again] == ["ok"]


def test_filters_keep_the_named_values():
    """`--where` selects points by value and drops cases without the axis."""
    found = jobs("full", ["env=cartpole", "backend=host", "n_envs=1", "n_envs=100"])
    assert {(job.point["env"], job.point["backend"], job.point["n_envs"]) for job in found} == {
        ("cartpole", "host", 1),
        ("cartpole", "host", 100),
    }
    assert {job.case.name for job in jobs("default", ["implementation=torch.Categorical"])} == {"sampler"}


@pytest.fixture(scope="module")
def cartpoles(tmp_path_factory):
    """Return records of CartPole on NumPy and in C++."""
    todo = jobs("smoke", ["case=env_step", "env=cartpole", "backend=cpu", "backend=host"])
    file = tmp_path_factory.mktemp("sweep") / "r.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("NUMBA_ENABLE_CUDASIM", raising=False)
        return list(run(todo, Context.here("smoke", run_id="test"), file, run_points))


def test_points_without_an_axis_are_chosen_by_absent():
    """`AXIS=absent` selects points without the axis."""
    require_known(["population=absent", "exact=True"])
    assert {job.point.get("population") for job in jobs("full", ["case=learn", "population=absent"])} == {None}
    with pytest.raises(typer.BadParameter, match=r"population=7: unknown \(known: 256, 1024, absent\)"):
        require_known(["population=7"])


def test_speed_up_is_over_numpy_of_the_same_point(cartpoles):
    """The table's speed-up is over NumPy at the same size."""
    numpy, host = (each.metrics["env_steps_per_s"].value for each in cartpoles)
    text = shown(cartpoles)
    assert "reference (NumPy, 1 thread)" in text
    assert f"{host / numpy:,.3g}" in text


def shown(records) -> str:
    """Return the printed table."""
    console = Console(width=250, file=io.StringIO())
    documents.show(records, console)
    return console.file.getvalue()


def test_training_is_shown_over_the_reference():
    """Training is compared with WarpDrive's published rate."""
    small, crowd = ANCHORS[0], next(each for each in ANCHORS if each.env_steps_per_s is None)
    split = {"rollout_s": 1.0, "update_s": 3.0}
    records = [
        record(rate, case="train", point=training_point(backend="pycuda", **each.axes), notes=split)
        for each, rate in ((small, 2 * small.env_steps_per_s), (crowd, 1e6))
    ]
    lines = documents.markdown(records).splitlines()
    of_small, of_crowd = (next(line for line in lines if name in line) for name in ("CartPole", "Tag Continuous"))
    assert "| 2 | WarpDrive 2.7.1 |" in of_small
    assert "does not run" in of_crowd
    assert [text.get_text() for axes in plots.paint(training_chart(records)).axes for text in axes.texts] == [
        "2x",
        "WarpDrive 2.7.1 does not run",
    ]


def test_command_line_sweeps_records_and_draws(tmp_path, monkeypatch):
    """`run` writes records and figures and prints a table."""
    monkeypatch.delenv("NOX_CURRENT_SESSION", raising=False)
    where = ("--case", "env_step", "--env", "cartpole", "--backend", "cpu", "--backend", "host", "--backend", "pycuda")
    said = bench("run", "--preset", "smoke", *where, "--out", tmp_path)
    assert "times reference (NumPy, 1 thread)" in said
    assert said.count("figure: ") == len(list((tmp_path / "figures").glob("*.png"))) >= 1
    assert ".png" in said
    assert "preset smoke only tests that every case runs" in said
    (file,) = tmp_path.glob("*.jsonl")
    assert len(read_all([file])) >= 2
    names = {path.stem.removeprefix(f"{file.stem}-") for path in (tmp_path / "figures").glob("*.png")}
    assert names == {"throughput"}
    assert f"{len(read_all([file]))} points, about " in said
    assert said.splitlines()[-1] == f"next, all of it on one page: python -m bench report {file}"


def test_smoke_prints_the_table_of_one_case():
    """Without evidence of this case it prints all tables, as other presets do."""
    steps, other, failed = record(case="env_step"), record(case="launch"), record(case="env_step", status="failed")
    assert sweep.in_tables("smoke", [other, failed, steps]) == [failed, steps]
    assert sweep.in_tables("smoke", [other, failed]) == [other, failed]
    assert sweep.in_tables("default", [other, steps]) == [other, steps]


def test_points_of_a_missing_backend_are_counted(monkeypatch, tmp_path):
    """If no backend is available, nothing is measured."""
    states = dict.fromkeys(sweep.availability(), Availability(False, "no compiler", "install one"))
    monkeypatch.setattr(sweep, "availability", lambda: states)
    said = bench("run", "--preset", "smoke", "--backend", "host", "--case", "env_step", "--out", tmp_path, exits=3)
    n = len(jobs("smoke", ["case=env_step", "backend=host"]))
    assert said.startswith(f"{n} points skipped: backend host is not available: no compiler; install one\nnothing was")


def test_points_of_a_missing_backend_are_skipped_in_the_summary(monkeypatch, tmp_path):
    """The summary counts points without a record."""
    states = {**sweep.availability(), "host": Availability(False, "no compiler", "install one")}
    monkeypatch.setattr(sweep, "availability", lambda: states)
    where = ("--case", "env_step", "--env", "cartpole", "--backend", "cpu", "--backend", "host")
    said = bench("run", "--preset", "smoke", *where, "--no-plot", "--out", tmp_path)
    n_measured, n_skipped = (
        len(jobs("smoke", ["case=env_step", "env=cartpole", f"backend={name}"])) for name in ("cpu", "host")
    )
    assert f"\n{n_measured} measured, 0 failed, {n_skipped} skipped\n" in said


def test_next_command_is_for_the_shell_that_started_it(monkeypatch, tmp_path):
    """Under nox the packages are in an environment of its own."""
    file = tmp_path / "my records.jsonl"
    monkeypatch.delenv("NOX_CURRENT_SESSION", raising=False)
    assert sweep._command("report", file) == f"python -m bench report '{file}'"
    monkeypatch.setenv("NOX_CURRENT_SESSION", "bench")
    assert sweep._command("report", file) == f"python3 -m nox -s report -- '{file}'"


@pytest.mark.parametrize(("seconds", "text"), [(70.4, "70 s"), (119, "119 s"), (150, "2 min"), (9000, "2 h")])
def test_duration_has_one_unit(seconds, text):
    """The largest of which there are two."""
    assert duration(seconds) == f"about {text}"


def test_command_of_a_record_repeats_its_point(cartpoles, tmp_path):
    """The command in a record chooses exactly that point."""
    words = cartpoles[1].command.split()
    assert words[:4] == ["python", "-m", "bench", "run"]
    bench(*words[3:], "--no-plot", "--out", tmp_path)
    (file,) = tmp_path.glob("*.jsonl")
    (again,) = read_all([file])
    assert again.point == cartpoles[1].point


def test_resumed_run_measures_the_processes_that_are_missing(tmp_path, monkeypatch):
    """Two of three processes of a point are recorded; one is measured."""
    monkeypatch.setattr(sweep, "run_points", lambda todo, context, **_: in_this_process(todo, context))
    words = ["run", "--preset", "smoke", "--case", "launch", "--where", "backend=host", "--no-plot", "--out", tmp_path]
    bench(*words, "--processes", "2")
    (file,) = tmp_path.iterdir()
    n = len(read_all([file]))
    said = bench(*words, "--processes", "3", "--resume", file.stem)
    assert f"{n // 2} point" in said
    assert len(read_all([file])) == n // 2 * 3


def test_run_of_another_preset_is_not_resumed(tmp_path):
    """A run of another preset is not resumed."""
    conditions = ("--where", "env=cartpole", "--where", "backend=cpu")
    words = ("run", "--case", "env_step", *conditions, "--no-plot", "--out", tmp_path)
    bench(*words, "--preset", "smoke")
    (file,) = tmp_path.glob("*.jsonl")
    before = file.read_bytes()
    said = bench(*words, "--preset", "default", "--resume", file.stem, exits=2)
    assert "must have records of --preset default alone (got smoke)" in " ".join(said.split()).replace("│ ", "")
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "^$"),
        (
            {"warm_up": {"settled": False, "cap_s": 5.0}},
            "^unreliable times: 1 of 2 points, such as env_step.*did not stabilise",
        ),
        (
            {"host": Host(load_before=3.0, pinned_cores=None)},
            r"^unreliable times: 1 of 2 points, .*this machine is busy \(load 48 on 16 cores\): numbers unreliable",
        ),
    ],
)
def test_doubtful_points_are_named(changes, says):
    """Points with an unsettled warm-up or a busy host are marked."""
    assert re.search(says, sweep.doubtful([record(point=point("cpu", 7)), record(**changes)]))


@pytest.mark.parametrize(
    ("threads", "load", "is_marked"), [(2, 3.0, True), (2, 1.0, False), (None, 3.0, False)], ids=["busy", "idle", "GPU"]
)
def test_figure_of_a_busy_machine_has_a_sign(threads, load, is_marked):
    """On a CPU only; the table explains the sign once."""
    rows = [record(), record(threads=threads, host=Host(load_before=0.1, load_after=load, pinned_cores=None))]
    text = documents.markdown(rows)
    *rows, _, footnote = text.splitlines() if is_marked else [*text.splitlines(), "", ""]
    assert ("‡" in rows[-1]) == ("‡" in footnote) == is_marked
    assert text.count("Other processes used the CPU cores") == is_marked
