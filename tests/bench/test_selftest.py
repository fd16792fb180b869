"""The gate's test of itself: its judge under noise that hangs together, and gates that are measured, slowed down."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bench import selftest
from bench.core.case import Job
from bench.core.record import Record, append, read_all, read_comparisons
from bench.core.stats import Ratio, autoregressive
from bench.judge import compare, planted
from bench.judge.calibrate import NoiseFloor, read, store
from bench.process import server
from bench.process.server import Server
from bench.process.worker import Worker
from bench.selftest import simulated, simulated_pair, tallied
from tests.bench.builders import FakeWatch, bench, case, point, record, timed

PLANTED, TIMES = 0.03, 20
WITHIN, CORRELATION = 0.002, 0.9
"""Scatter of the blocks of a process, each of which hangs together with the one before."""
BETWEEN = 0.0015
"""Scatter of comparisons over four rounds: three times that of the point that is calibrated on an H200."""


def points(n: int) -> list[Record]:
    """Return records of an H200 whose samples are an AR(1) process."""
    random = np.random.default_rng(1)
    samples = [list(np.exp(autoregressive(40, WITHIN, CORRELATION, random)) * 1e6) for _ in range(n)]
    return [record(samples_ns=each, point=point("pycuda", size)) for size, each in enumerate(samples, 1)]


def floor(each: Record, pair: float = BETWEEN) -> NoiseFloor:
    """Return the calibrated noise of a point."""
    known = each.model_dump(include={"case", "case_version", "point", "preset"})
    return NoiseFloor(**known, rounds=12, run=2 * pair, pair=pair, smallest=6 * pair, smallest_in_turns=3 * pair)


def test_judge_catches_3_percent_and_passes_the_same_under_correlated_noise(tmp_path):
    """In gates of 12 points each catches the slow-down 19 times in 20, and each of 20 passes where nothing changed."""
    some = points(12)
    store([floor(each) for each in some], some[0], "", tmp_path)
    calibration = read(some[0].machine, tmp_path)
    trials = simulated(some, calibration, PLANTED, TIMES, np.random.default_rng(0))
    tallies = tallied(trials, selftest.THRESHOLD, tmp_path)
    assert len(tallies) == 12
    for tally in tallies:
        assert tally.verdicts[0.0] == {"ok": TIMES}
        assert tally.verdicts[PLANTED]["regression"] >= 0.95 * TIMES
        assert tally.holds(PLANTED)


def test_interval_over_rounds_holds_what_turns_do_not():
    """95 % intervals over rounds hold a ratio of 1 in 95 % of 300 comparisons, those over all turns in far fewer."""
    (each,), random = points(1), np.random.default_rng(2)
    held = {"rounds": 0, "turns": 0}
    for _ in range(300):
        pair = simulated_pair(each, floor(each, 0.01), 0.0, random)
        logs = [log for turns in pair.comparison.log_ratios for log in turns]
        for name, ratio in (("rounds", pair.ratio), ("turns", Ratio.of_logs(logs, between_processes=False))):
            held[name] += ratio.low <= 1 <= ratio.high
    assert held["rounds"] >= 0.92 * 300
    assert held["turns"] <= 0.75 * 300


def test_stored_records_are_gated_on_paper(tmp_path):
    """The command says of each point how often it is caught, passed and neither, and whether that is enough."""
    for each in points(2):
        append(tmp_path / "records.jsonl", each)
    words = ["selftest", "--records", tmp_path / "records.jsonl", "--calibrations", tmp_path, "--times", 5]
    said = bench(*words)
    assert "is not calibrated" in said
    assert "2 of 2 points: always passed if the same, caught in 95% at +3.0%" in said
    assert "0 of 2 points" in bench(*words, "--planted", "0.1%", exits=1)
    assert "no point can be gated" in bench(*words, "--case", "train", exits=3)


# ------------------------------------------------------------------ measured


@pytest.fixture
def fake(monkeypatch):
    """Let a point take 1 ms a run and the host's delays as long as they say, by one fake clock."""
    watch = FakeWatch(lambda run: 1e6 + 100 * (run % 3))

    def spin() -> int:
        watch.now += 1000.0
        return round(watch.now)

    monkeypatch.setattr(server, "time", SimpleNamespace(perf_counter_ns=spin))
    made = case(lambda _: timed(watch.run, stopwatch=watch), 1)
    monkeypatch.setattr(compare, "chosen", lambda *_: [Job(made, each) for each in made.points("smoke")])
    monkeypatch.setattr(Worker, "copy", lambda: nullcontext(Server({"fake": made})))
    monkeypatch.setattr(
        selftest, "sides_of", lambda *words, **more: compare.sides_of(*words, [server.start] * 2, **more)
    )
    return made


def run_in(folder: Path) -> str:
    """Return the id of the only run that has files in a folder."""
    (file,) = folder.glob("*-comparisons.jsonl")
    return file.name.removesuffix("-comparisons.jsonl").removesuffix("-planted")


def test_measured_gates_see_the_slow_down_that_was_planted(fake, tmp_path):
    """Of 3 gates of each all are caught and passed; all are kept, and a run that was stopped goes on with them."""
    words = ["selftest", "--case", "fake", "--times", 3, "--out", tmp_path, "--calibrations", tmp_path / "none"]
    said = bench(*words)
    run = run_in(tmp_path)
    assert re.search(r"1 of 1 points: always passed", said)
    assert re.search(r"6/6 fake\[.*\]: 1\.03", said)
    kept = read_all([tmp_path / f"{run}-b.jsonl"])
    assert [each.notes.get("planted") for each in kept] == [None, PLANTED] * 3
    logs = [
        each.ratio().value
        for each in read_comparisons([tmp_path / f"{run}-{name}.jsonl" for name in ("a", "b", "comparisons")])
    ]
    assert logs == [pytest.approx(1, abs=2e-4), pytest.approx(1 + PLANTED, abs=2e-3)] * 3
    assert "always passed" in bench(*words, "--resume", run)
    assert len(read_all([tmp_path / f"{run}-b.jsonl"])) == 6


def test_costs_of_planted_changes_are_measured_and_kept(fake, monkeypatch, tmp_path):
    """The code as it is takes 1 ms a run and its copy with the change 1.2 ms; a change that cannot run is said."""
    watch = FakeWatch(lambda run: 1.2e6)
    changed = case(lambda _: timed(watch.run, stopwatch=watch), 1)
    monkeypatch.setattr(
        Worker, "on", lambda root: nullcontext(Server({"fake": fake if root == planted.ROOT else changed}))
    )
    monkeypatch.setattr(planted, "CASES", {"fake": fake})
    (one, *_) = planted.read(planted.SAME)
    where = {axis: str(value) for axis, value in fake.points("smoke")[0].items()}
    change = replace(one, case="fake", where=where)
    all_of_them = [replace(change, name=name) for name in ("one", "other", "third")]
    monkeypatch.setattr(planted, "read", lambda _: all_of_them)
    words = ["selftest", "--measure", "--preset", "smoke", "--out", tmp_path, "--at-once", 2]
    assert "3 of 3 changes measured" in bench(*words)
    run = run_in(tmp_path)
    found = planted.costs(tmp_path / planted.COSTS)
    assert [(cost.change, cost.run_id) for cost in found.values()] == [(each.name, run) for each in all_of_them]
    assert [cost.slower for cost in found.values()] == [pytest.approx(0.2, abs=1e-3)] * 3
    n_runs = watch.runs
    bench(*words, "--resume", run)
    assert watch.runs == n_runs, "what is kept is not measured again"
    monkeypatch.setattr(Worker, "on", lambda _: nullcontext(Server({})))
    assert "this code has no case fake" in bench(*words, exits=5)


def test_delay_of_a_run_is_waited_for():
    """The host is busy for as long as it was told after each run."""
    runs = []
    slow = server.slowed(timed(lambda: runs.append(1)), 2e5)
    start = server.time.perf_counter_ns()
    slow.run()
    assert server.time.perf_counter_ns() - start >= 2e5
    assert runs == [1]


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["numba", "pycuda"])
def test_planted_slow_down_is_there_on_a_gpu(backend, tmp_path):
    """Half as much again, planted into CartPole on a device, is seen, though other processes use the GPU."""
    words = ["--case", "env_step", "--where", "env=cartpole", "--where", f"backend={backend}"]
    words += ["--where", "n_envs=100000", "--where", "exact=False", "--planted", "50%"]
    words += ["--times", 2, "--out", tmp_path, "--calibrations", tmp_path / "none"]
    said = bench("selftest", *words, exits=(0, 1))
    assert "4/4 env_step" in said
    seen = [each.ratio().value - 1 for each in read_comparisons(tmp_path.glob("*-comparisons.jsonl"))]
    assert seen[1::2] == [pytest.approx(0.5, abs=0.25)] * 2
