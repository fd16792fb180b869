"""Environments outside `envs/`: points, errors and runs."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from bench.core.record import read_all
from bench.show.labels import env_name
from bench.workloads.outside import outside_jobs
from bench.workloads.shared import is_outside, outside_sources
from tests.bench.builders import bench
from warpdrive_min.commands.new_env import write_starter

COUNTER = "tests.environments.counter:Counter"


@pytest.fixture
def starter(tmp_path, monkeypatch):
    """Write the starter of an environment, and return its path."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    write_starter("ring_walk", tmp_path)
    yield str(tmp_path / "ring_walk")
    for name in [each for each in sys.modules if each.split(".")[0] == "ring_walk"]:
        del sys.modules[name]


def test_a_class_or_a_path_is_outside(starter):
    """Classes and paths are outside; names of `envs/` are not."""
    assert [is_outside(name) for name in (COUNTER, starter, "cartpole", "no_such_thing")] == [True, True, False, False]


def test_the_author_of_an_environment_measures_it(starter, tmp_path):
    """`bench run --env PATH` measures an outside environment."""
    words = ["--env", starter, "--config", "n_agents=3", "--backend", "cpu", "--backend", "host"]
    shown = bench("run", "--preset", "smoke", *words, "--out", tmp_path / "out", "--no-plot")
    records = read_all(list((tmp_path / "out").glob("*.jsonl")), skipped_lines=[])
    assert "5 measured, 0 failed" in shown
    assert [(each.case, each.point["backend"], each.status) for each in records] == [
        ("env_step", "cpu", "ok"),
        ("env_step", "host", "ok"),
        *[("many_steps", "host", "ok")] * 3,
    ]
    name = str(Path(starter).resolve()) + '{"n_agents": 3}'  # it is in no current folder
    assert {(each.point["n_agents"], each.point["env"]) for each in records} == {(3, name)}
    assert {each.notes["environment_sources"] for each in records} == {*outside_sources(name).values()}
    assert all("NumPy" in each.correctness.before.oracle for each in records)
    _, _, _, *again = shlex.split(records[-1].command)
    assert "1 measured, 0 failed" in bench(*again, "--out", tmp_path / "again", "--no-plot")


def test_records_tell_versions_of_an_environment_apart(starter):
    """Changed sources of its package change the hash; shipped ones have none."""
    found = []
    for change in ("", "\n// faster", ""):
        kernel = Path(starter) / "kernel.cu"
        kernel.write_text(kernel.read_text().removesuffix("\n// faster") + change)
        (Path(starter) / "notes.txt").write_text(change)
        found.append(outside_sources(starter + '{"n_agents": 3}')["environment_sources"])
    assert re.fullmatch("[0-9a-f]{12}", found[0])
    assert found[0] == found[2] != found[1]
    assert outside_sources("cartpole") == {}
    assert outside_sources(COUNTER)


def test_a_class_has_one_name_however_it_is_spelt(starter, monkeypatch):
    """All spellings of a class give one name."""
    monkeypatch.chdir(Path(starter).parent)
    spellings = ("ring_walk", "ring_walk/env.py", "ring_walk:RingWalk", 'ring_walk{"n_agents": 2}')
    names = {outside_jobs(each, ["n_agents=2"], "smoke")[0].point["env"] for each in spellings}
    assert names == {'ring_walk.env:RingWalk{"n_agents": 2}'}


def test_one_after_warpdrives_manual_has_single_steps_alone():
    """An environment without a `reset` kernel has single steps only."""
    jobs = outside_jobs(COUNTER, (), "smoke", backends=["host"])
    assert [(job.case.name, job.point["n_envs"]) for job in jobs] == [("env_step", 64)]


def test_numbers_of_environments_are_those_asked_for():
    """`--n-envs` replaces the preset's numbers of environments."""
    sizes = [{job.point["n_envs"] for job in outside_jobs(COUNTER, (), "full", n_envs=n)} for n in ((), (7,))]
    assert sizes == [{100, 10_000}, {7}]


@pytest.mark.parametrize(
    ("env", "shown"),
    [
        ("cartpole", "CartPole"),
        ("ring_walk.env:RingWalk", "RingWalk"),
        ('ring_walk.env:RingWalk{"n_agents": 2, "n_cells": 5}', "RingWalk(n_agents=2, n_cells=5)"),
    ],
)
def test_tables_and_figures_name_it_by_its_class_and_config(env, shown):
    """Tables and figures name an environment by class and config."""
    assert env_name(env) == shown
