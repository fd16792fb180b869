"""Time to a solution: the command's caches, its end, and its policy."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.core.measure import Plan
from bench.core.point import HOST
from bench.show import plots
from bench.show.views.cases import TABLES
from bench.show.views.run_charts import solutions_chart
from bench.workloads import time_to_solution
from bench.workloads.setups import starts
from bench.workloads.time_to_solution import WARM, Solver, solution_point
from tests.bench.builders import metric, record
from tests.support import by_night
from warpdrive_min.cli import app

COLD, LOW = "cold", 10.0
"""Return that the untrained policy reaches."""


@pytest.fixture
def commands(monkeypatch):
    """Run each command in this process; return settings, caches and their files.

    A run writes one file there, as a compiler would, if it is missing.
    """
    ran: list[tuple[dict[str, str], Path, int]] = []

    def run_process(case: str, command: list[str], caches: Path, cwd: Path) -> str:
        if command[1] != "-m":  # imports torch
            return ""
        assert command[2:6] == ["warpdrive_min", "train", "-e", "cartpole"]
        ran.append((dict(word.split("=") for word in command if "=" in word), caches, len(list(caches.rglob("*.so")))))
        caches.mkdir(exist_ok=True)
        (caches / "compiled.so").touch()
        done = CliRunner().invoke(app, command[3:])
        assert done.exit_code == 0, done.output
        return done.output

    monkeypatch.setattr(starts, "run_process", run_process)
    return ran


@pytest.mark.parametrize(("caches", "files"), [by_night(COLD, [0, 0]), (WARM, [0, 1])])
def test_cold_runs_find_empty_caches(commands, caches, files):
    """A warm run finds the files of the untimed one, whose seed is another."""
    workload = time_to_solution.time_to_solution(solution_point(HOST, caches, LOW))
    got = workload.measure(Plan(n_long_starts=1))
    assert got.rejection_reason is None
    assert [n_files for *_, n_files in commands] == files
    assert [settings["trainer.seed"] for settings, *_ in commands] == ["0", "1"]
    assert len({folder for _, folder, _ in commands}) == (2 if caches == COLD else 1)
    assert list(got.notes["cache_files_before"]) == files[1:]
    assert list(got.notes["cache_files_after"]) == [1]
    assert list(got.metrics) == ["total_s", "import_torch_s", "ours_s", "env_steps_to_solution"]
    assert got.metrics["env_steps_to_solution"].value >= 64 * 500  # an episode of each environment


def test_policy_below_the_threshold_is_wrong(commands):
    """The policy of the run's folder is evaluated, whatever the command has printed."""
    solver = Solver(solution_point(HOST, WARM, LOW), "cpu")
    solver.train(1, solver._folder / WARM)
    solver._point = {**solver._point, "threshold": 475.0}
    assert not solver.check().passed


@pytest.mark.parametrize(
    ("seed", "end", "message"),
    [
        (
            "3",
            "finished after 244 of 244",
            r"from seed 3 must reach a return of 10 \(got 'finished after 244 of 244'\)",
        ),
        ("4", "target return reached", r"must have the run's settings .*'seed': 3.* \(got .*'seed': 4"),
    ],
)
def test_run_that_does_not_reach_its_return_is_an_error(commands, monkeypatch, seed, end, message):
    """So is a checkpoint of another run."""
    run = starts.run_process

    def other(case, command, *folders):
        run(case, [word.replace("seed=3", f"seed={seed}") for word in command], *folders)
        return f"iteration 2/244\n{end}\n"

    monkeypatch.setattr(starts, "run_process", other)
    solver = Solver(solution_point(HOST, WARM, LOW), "cpu")
    with pytest.raises(starts.StartError, match=message):
        solver.train(3, solver._folder / WARM)


def test_processes_keep_their_bytecode(tmp_path, monkeypatch):
    """The untimed run leaves it for the timed ones, whatever the shell says."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    program = "import sys; print(sys.dont_write_bytecode)"
    assert starts.run_process("case", [sys.executable, "-c", program], tmp_path).strip() == "False"


def test_bars_end_at_the_total_with_its_interval():
    """Cold comes first; the parts are stacked, and the total has the interval."""
    figures = {"total_s": (9.0, 8.0, 11.0), "import_torch_s": (5.0, 4.0, 6.0), "ours_s": (3.5, 3.0, 5.0)}
    found = [
        record(
            case="time_to_solution",
            scope="startup",
            point=solution_point("pycuda", caches),
            threads=None,
            metrics={name: metric(*values, unit="s") for name, values in figures.items()},
        )
        for caches in (WARM, COLD)
    ]
    (panel,) = solutions_chart(found).panels
    assert panel.ticks == ["CUDA C (PyCUDA), cold caches", "CUDA C (PyCUDA), warm caches"]
    assert [each.name for each in panel.series] == ["import of torch or JAX", "all else", "total, with its spread"]
    assert [[each.x for each in series.points] for series in panel.series[:2]] == [[5.0, 5.0], [4.0, 4.0]]
    totals = panel.series[-1].points
    assert [(each.x, each.low, each.high) for each in totals] == [pytest.approx((9.0, 9.0 / 1.1, 9.9), rel=1e-6)] * 2
    assert TABLES["time_to_solution"](found).caption.startswith(
        "Time from the command to a solved environment; each process is new and has its own seed. Geometric means"
    )


def test_panel_without_parts_shows_its_totals(tmp_path):
    """Another panel has bars."""
    whole = record(
        case="time_to_solution",
        scope="startup",
        point=solution_point("pycuda", COLD),
        threads=None,
        metrics={name: metric(value, unit="s") for name, value in {"total_s": 9.0, "import_torch_s": 5.0}.items()},
    )
    without = {"point": {**whole.point, "env": "acrobot"}, "metrics": {"total_s": metric(9.0, unit="s")}}
    (file,) = plots.draw([whole, whole.model_copy(update=without)], tmp_path, stem="two")
    assert file.name == "two-time-to-solution.png"


def test_parts_of_a_start_are_means_over_its_processes():
    """Our own part is averaged like the total."""
    parts = {"import_torch_s": [2.0, 2.0, 2.0], "ours_s": [1.0, 2.0, 4.5]}
    found = record(
        case="time_to_solution",
        scope="startup",
        point=solution_point("pycuda", COLD),
        threads=None,
        samples_ns=[3e9, 4e9, 6.5e9],
        process=[0, 1, 2],
        metrics={"total_s": metric(4.0, unit="s"), "ours_s": metric(2.0, unit="s")},
        notes={"samples_s": parts},
    )
    ours = found.figure("ours_s")
    assert (ours.value, ours.kind) == (pytest.approx(9 ** (1 / 3)), found.figure("total_s").kind)
