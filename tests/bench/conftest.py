"""Fixtures of all tests of the benchmark."""

from __future__ import annotations

import functools
import gc
import itertools
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.core import case, machine, record
from bench.process import interleaved, server
from bench.static import sides
from bench.workloads import memory

A_LITTLE = 1 << 30
"""Bytes of a shared GPU's memory that a test may fill."""

dependencies_hash = functools.cache(machine.dependencies_hash)


@pytest.fixture
def context():
    """Context of a smoke run named "test"."""
    return record.Context.here("smoke", run_id="test")


@pytest.fixture(autouse=True)
def _no_simulator(monkeypatch):
    """Turn off Numba's simulator, which other tests use."""
    monkeypatch.delenv("NUMBA_ENABLE_CUDASIM", raising=False)


@pytest.fixture(autouse=True)
def _packages_stay(monkeypatch):
    """Read the installed packages only once.

    It takes 1/3 s, and each record asks.
    """
    monkeypatch.setattr(machine, "dependencies_hash", dependencies_hash)


git_state, at_start = machine.git_state, {}


def checkout_once(root):
    """Return the commit of a checkout; ask git about ours once."""
    if root != machine.ROOT or "BENCH_GIT_SHA" in os.environ:
        return git_state(root)
    if not at_start:
        at_start.update(git_state(root))
    return dict(at_start)


@pytest.fixture(autouse=True)
def _checkout_stays(monkeypatch):
    """Read our checkout's commit only once.

    It takes three processes of git, and each server and round asks.
    """
    for module in (machine, interleaved, sides):
        monkeypatch.setattr(module, "git_state", checkout_once)


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch):
    """Do not wait for idle threads: fakes have none."""
    monkeypatch.setattr(server, "wait_until_idle", lambda: None)


@pytest.fixture(autouse=True)
def _young_garbage(monkeypatch):
    """Collect only young objects after a point.

    All objects of the tests take 40 ms, and each round asks.
    """
    young = SimpleNamespace(collect=functools.partial(gc.collect, 1), freeze=gc.freeze, disable=gc.disable)
    for module in (case, server):
        monkeypatch.setattr(module, "gc", young)


RESULTS = machine.ROOT / "results"
read, kept = record._read, {}


def read_once(paths, skipped_lines):
    """Return records and comparisons of files; cache the shipped ones."""
    records, comparisons = [], []
    for file in itertools.chain(*map(record.files_in, paths)):
        path, n_cut = Path(str(file)), len(skipped_lines or ())  # it may lie in an archive
        place = path.resolve()
        found = kept.get(place) or read([path], skipped_lines)
        if RESULTS in place.parents and len(skipped_lines or ()) == n_cut:
            kept[place] = found
        records += found[0]
        comparisons += found[1]
    return records, comparisons


@pytest.fixture(autouse=True)
def _shipped_records_stay(monkeypatch):
    """Read each shipped record file once.

    Tables of results/README.md read them 26 times.
    """
    monkeypatch.setattr(record, "_read", read_once)


list_axes, listed = case.Case.axes, {}


def axes_once(one, preset="default"):
    """Return the axes of a case; list those of each function of points once."""
    if (one.points, preset) not in listed:
        listed[one.points, preset] = list_axes(one, preset)
    return {axis: list(values) for axis, values in listed[one.points, preset].items()}


@pytest.fixture(autouse=True)
def _axes_stay(monkeypatch):
    """List the axes of each case only once.

    It takes 1/6 s, and each command with conditions asks.
    """
    monkeypatch.setattr(case.Case, "axes", axes_once)


@pytest.fixture(autouse=True)
def _memory_is_short(monkeypatch):
    """Limit the GPU memory that a test may fill."""
    of_card = memory.free_bytes
    monkeypatch.setattr(memory, "free_bytes", lambda point, backend: min(of_card(point, backend), A_LITTLE))
