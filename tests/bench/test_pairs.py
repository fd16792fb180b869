"""Paired runs, on a fake machine and on two commits."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import os
import shutil
import signal
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bench.core import machine
from bench.core.errors import NotComparable, Skip
from bench.core.measure import ColdStart
from bench.core.point import Check
from bench.judge.evidence import remarks
from bench.process import interleaved, local, rounds, server, worker
from bench.process.checkouts import revisions
from bench.process.interleaved import ROUNDS, PairFiles, measure_all, measure_rounds, sides_of
from bench.process.rounds import TURNS, Round, abba_turns
from bench.process.server import MOST_POLLS, Server, n_running, wait_until_idle
from bench.process.worker import Worker, WorkerError
from bench.workloads.cases import CASES
from tests.bench.builders import FakeWatch, case, git, timed
from warpdrive_min.stopping import Stopped

POINT = {"env": "fake", "backend": "cpu", "n_envs": 10, "n_agents": 1, "index": 0}
FAKE = case(lambda point: timed(), 1)


def serving(fake, started=None, name=""):
    """Return a start function for a side in this process.

    Each start adds ``name`` to ``started``.
    """

    def start():
        if started is not None:
            started.append(name)
        return contextlib.nullcontext(Server({fake.name: fake}))

    return start


class Machine:
    """Fake machine with a set time per run.

    Runs grow longer by a constant share (``drift``), or last ``run_ns``.
    """

    def __init__(self, drift: float = 0.0, run_ns=None) -> None:
        self._watch = FakeWatch(run_ns or (lambda run: 1e6 * (1 + drift * run)))

    def case(self, slower: float = 1.0, version: int = 1, name: str = "fake", **changes):
        """Return a case that is ``slower`` times as slow."""
        watch = self._watch

        def run() -> None:
            before = watch.now
            watch.run()
            watch.now = before + slower * (watch.now - before)

        return case(lambda point: timed(run, stopwatch=watch, **changes), 1, version=version, name=name)

    def side(self, slower: float = 1.0, version: int = 1):
        """Return a function that starts a side with that case."""
        return serving(self.case(slower, version))


def measure(sides, preset):
    """Measure one pair; raise its error if it failed."""
    ((_, got),) = measure_rounds([sides], preset)
    if isinstance(got, WorkerError):
        raise got
    return got


def measured(one, other, preset="default"):
    """Return the pair of two sides of one point."""
    return measure(sides_of("run", FAKE, (POINT, POINT), (one, other)), preset)


@pytest.mark.parametrize("slower", [1.0, 1.05, 0.5])
def test_linear_drift_of_the_machine_cancels(slower):
    """Linear drift of run times does not change the ratio."""
    fake = Machine(drift=0.0002)
    got = measured(fake.side(), fake.side(slower))
    assert got.a.unit_ns[-1] > 1.2 * got.a.unit_ns[0]
    assert [len(turns) for turns in got.comparison.log_ratios] == [TURNS] * ROUNDS["default"]
    # The later side is set up slower and runs less often in a block, for the same time: this drift ignores it.
    assert got.ratio.value == pytest.approx(slower, rel=2e-3)
    assert got.ratio.between_processes


def test_rounds_of_new_processes_start_one_for_each_side():
    """Both sides get the index of their round; the parts of each process are kept."""
    started = []

    def side(name, seconds):
        def start_process(index):
            started.append((name, index))
            return {"import_s": 1.0, "rest_s": seconds + index}

        check = Check(passed=True, max_error=0.0)
        work = ColdStart(run=start_process, check=lambda: check, facts=replace(timed().facts, work={"starts": 1}))
        return serving(case(lambda point: work, 1, workload=ColdStart))

    got = measured(side("a", 1.0), side("b", 3.0), "default")
    assert started == [("a", 0), ("b", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2), ("b", 3), ("a", 3)]
    assert got.a.samples_ns == [2e9, 3e9, 4e9, 5e9]
    assert got.b.notes["samples_s"] == {"import_s": [1.0] * 4, "rest_s": [3.0, 4.0, 5.0, 6.0]}
    assert got.b.metrics["rest_s"].value == 4.5
    assert got.ratio.between_processes
    assert got.ratio.value == pytest.approx(math.prod([4 / 2, 5 / 3, 6 / 4, 7 / 5]) ** 0.25)


def test_blocks_are_taken_in_turns():
    """Blocks run in the order A B B A.

    Of the two samples of a block, the faster counts.
    """
    order, slow = [], {1, 3, 6, 7, 11, 13, 17}

    class Noted:
        def __init__(self, name):
            self.name = name

        def ask(self, method):
            order.append(self.name if method == "sample" else self.name.upper())
            return {"wall_ns": len(order) + 10.0 * (len(order) in slow), "device_ns": None}

    a, b = abba_turns(Noted("a"), Noted("b"), 2)
    assert "".join(order) == "aabbbbaa" + "BA" + "aabbbbaa"
    assert [each["wall_ns"] for each in a] == [2, 8, 12, 18]
    assert [each["wall_ns"] for each in b] == [4, 5, 14, 15]


def test_block_starts_when_the_process_is_idle(monkeypatch):
    """A block starts after all threads that restored its state.

    OpenMP threads poll for work after each copy of torch, and take a core from the timed threads.
    """
    order = []
    monkeypatch.setattr(server, "wait_until_idle", lambda: order.append("idle"))
    work = replace(
        timed(lambda: order.append("run"), synchronize=lambda: order.append("synchronize")),
        snapshot=lambda: lambda: order.append("restore"),
    )
    one = Server({"fake": case(lambda point: work)})
    one.ask("set_up", case="fake", point={"index": 0})
    one.ask("warm_up", sample_s=0.0, warm_up_cap_s=0.0, goes_back=True)
    order.clear()
    one.ask("sample")
    runs = ["run"] * (len(order) - 5)
    assert order == ["restore", "idle", "synchronize", *runs, "synchronize", "idle"]


@pytest.mark.parametrize(("running", "n_pauses"), [([0], 0), ([2, 1, 1, 0], 3), ([1] * 9999, MOST_POLLS)])
def test_process_is_idle_when_no_other_thread_wants_a_core(running, n_pauses):
    """The wait ends with the last running thread.

    It also ends after the largest number of looks.
    """
    left, pauses = iter(running), []
    wait_until_idle(lambda: next(left), pauses.append)
    assert len(pauses) == n_pauses


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are listed on Linux")
def test_thread_that_spins_is_running():
    """A thread in a loop counts, one that waits for a lock does not."""
    before, lock = n_running(), threading.Event()
    threads = [threading.Thread(target=lambda: hashlib.pbkdf2_hmac("sha512", b"", b"", 200_000)) for _ in range(2)]
    threads.append(threading.Thread(target=lock.wait))
    for thread in threads:
        thread.start()
    counts = [n_running() for _ in range(20)]
    lock.set()
    for thread in threads:
        thread.join()
    assert max(counts) >= before + 2
    assert any(n_running() <= before or time.sleep(0.05) for _ in range(100)), "threads end soon after they are joined"


def test_block_is_the_fastest_sample_of_a_time(monkeypatch):
    """The fastest sample within the block's time counts.

    A block has at least two samples.
    """
    now = [0.0]
    monkeypatch.setattr("bench.process.rounds.time.monotonic", lambda: now[0])

    class Slow:
        def __init__(self, *walls_ns):
            self.walls_ns = list(walls_ns)

        def ask(self, method):
            assert method == "sample"
            now[0] += 0.1
            return {"wall_ns": self.walls_ns.pop(0), "device_ns": None}

    a, b = Slow(9, 8, 3, 7, 5, 6), Slow(4, 4, 2, 1, 1, 1)
    of_a, of_b = abba_turns(a, b, 1, 0.25)
    assert [each["wall_ns"] for each in of_a] == [3, 5]
    assert [each["wall_ns"] for each in of_b] == [2, 1]
    assert not a.walls_ns + b.walls_ns


@pytest.mark.parametrize("is_ever_quiet", [True, False])
def test_fastest_block_of_each_round_counts(is_ever_quiet):
    """A round compares the undisturbed blocks of both sides.

    The machine runs at half speed most of the time. A round, which gives one pair, lasts until a second block is as
    fast as the fastest. Without such a block it reports that none was undisturbed.
    """
    varied = iter(np.random.default_rng(0).uniform(1e6, 1e8, 10**6))

    def run_ns(run: int) -> float:
        if not is_ever_quiet:
            return next(varied)
        return 1e6 if run % 1_500 >= 1_000 else 2e6

    fake = Machine(run_ns=run_ns)
    pair = sides_of("run", FAKE, (POINT, POINT), (fake.side(), fake.side(1.5)))
    got = measure(tuple(replace(each, block_s=1e-9) for each in pair), "default")
    n_rounds = ROUNDS["default"]
    assert (len(got.a.samples_ns), len(got.b.samples_ns)) == (n_rounds, n_rounds)
    assert [len(turns) for turns in got.comparison.log_ratios] == [1] * n_rounds
    assert got.ratio.between_processes
    assert got.a.stop_reason == f"{n_rounds} rounds of {TURNS} turns A B B A or more, of each the fastest block"
    if is_ever_quiet:
        assert got.ratio.value == pytest.approx(1.5)
        assert got.a.notes["undisturbed_rounds"] == n_rounds
        assert not [text for text in remarks(got.a) if "block" in text]
    else:
        assert got.a.notes["undisturbed_rounds"] < n_rounds
        assert any("no second block confirms the fastest" in text for text in remarks(got.a))


class Episodes:
    """Point with runs that depend on the step of the episode.

    An episode has 500 runs; each is 0.1 % cheaper than the last. ``timed_runs`` lists the timed ones.

    It notes which runs were timed.

    Args:
        slower: Factor of all times.
        has_snapshot: It can restore an earlier state.
    """

    def __init__(self, slower: float = 1.0, *, has_snapshot: bool = True) -> None:
        self._slower, self._has_snapshot = slower, has_snapshot
        self.timed_runs: list[int] = []

    def start(self):
        """Start a process with its first episode."""
        self.done = 0
        return contextlib.nullcontext(Server({"fake": case(lambda _: self._timed(), 1)}))

    def _timed(self):
        fake = timed(self._run, stopwatch=self)
        return replace(fake, snapshot=self._snapshot) if self._has_snapshot else fake

    def _run(self) -> None:
        self._spent += self._slower * 1e6 * (1 - 0.001 * (self.done % 500))
        self.timed_runs.append(self.done)
        self.done += 1

    def _snapshot(self):
        there = self.done
        return lambda: setattr(self, "done", there)

    def time(self, block):
        """Return the times of a block's runs."""
        self._spent = 0.0
        block()
        return round(self._spent), None


@pytest.mark.parametrize("slower", [1.0, 1.03])
def test_load_that_follows_the_episode_cancels_to_the_bit(slower):
    """Both sides time the same steps of an episode.

    All ratios are therefore equal, although runs become cheaper.
    """
    got = measured(Episodes().start, Episodes(slower).start)
    assert got.a.unit_ns[-1] < 0.9 * got.a.unit_ns[0]
    assert [log for turns in got.comparison.log_ratios for log in turns] == [
        pytest.approx(math.log(slower), abs=1e-6)
    ] * (TURNS * ROUNDS["default"])
    assert got.a.notes["turns_from_one_state"]


def test_turns_follow_each_other_through_the_episodes():
    """Each block starts where the previous one ended."""
    side, other = Episodes(), Episodes()
    got = measured(side.start, other.start)
    n_runs, n_turns = got.a.runs_per_sample, TURNS * ROUNDS["default"]
    assert (
        side.timed_runs[-n_runs:] == list(range((n_turns - 1) * n_runs, n_turns * n_runs)) == other.timed_runs[-n_runs:]
    )


def test_neither_side_goes_back_unless_both_can():
    """Without snapshots on both sides, neither restores a state.

    Peers and old revisions have no snapshots.
    """
    side = Episodes()
    got = measured(side.start, Episodes(has_snapshot=False).start)
    assert not got.b.notes["turns_from_one_state"]
    last = side.timed_runs[-2 * got.a.runs_per_sample :]
    assert last == list(range(last[0], last[0] + len(last)))


def test_sides_start_in_turn_in_processes_of_their_own():
    """Each round has new processes, in alternating order."""
    started, fake = [], Machine().case()
    measured(serving(fake, started, "a"), serving(fake, started, "b"))
    assert "".join(started) == "abbaabba"


def test_pair_has_a_record_of_each_side():
    """Each record names the method and the other side."""
    fake = Machine()
    got = measured(fake.side(), fake.side(2.0), "full")
    for side, run_id, ns in ((got.a, "run-a", 1000.0), (got.b, "run-b", 2000.0)):
        assert side.is_evidence
        assert (side.run_id, side.taken) == (run_id, "in turns with another side")
        assert side.process == [number for number in range(6) for _ in range(2 * TURNS)]
        assert side.host.load_after >= 0
        assert side.metrics["ns_per_env_step"].value == ns
        assert side.stop_reason == "6 rounds of 3 turns A B B A"
    assert (got.comparison.a, got.comparison.b) == (got.a.id, got.b.id)


def test_host_is_that_of_the_round_in_which_others_were_busiest(monkeypatch):
    """Records report the host load of the busiest round."""
    shares = iter([0.01, 0.4, 0.02, None])
    times = iter([1000, 1001, 1000, 2100, 1000, 1002, 999, 1000])
    monkeypatch.setattr(rounds, "OtherProcesses", lambda: SimpleNamespace(busy=lambda: next(shares)))
    monkeypatch.setattr(rounds, "loop_ns", lambda: next(times))
    fake = Machine()
    got = measured(fake.side(), fake.side())
    for record in (got.a, got.b):
        assert (record.host.others_busy, record.host.loop_ns) == (0.4, [999, 2100])
        assert remarks(record) == [
            "other processes used 40% of our cores",
            "the cores varied: one Python loop took 1 to 2.1 times its shortest time",
        ]


def test_one_round_says_that_processes_were_not_compared():
    """A single round's interval does not cover processes."""
    fake = Machine()
    got = measured(fake.side(), fake.side(), "smoke")
    assert not got.ratio.between_processes
    assert "not measured" in got.comparison.unread["process_noise"]


def test_what_differs_between_processes_is_in_the_interval():
    """The interval includes differences between processes.

    Equal sides run in processes that differ by 2 %.
    """
    speeds = iter([1.0, 1.02, 1.0, 1.02, 1.02, 1.0, 1.02, 1.0])

    def start():
        scale = next(speeds)
        watch = FakeWatch(lambda run: 1e6 * scale)
        return contextlib.nullcontext(Server({"fake": case(lambda point: timed(watch.run, stopwatch=watch), 1)}))

    ratio = measured(start, start).ratio
    assert ratio.low < 1 < ratio.high
    assert ratio.error > 0.005


def test_skipped_and_failing_points_do_not_end_the_others():
    """Skipped and failed points do not stop the run."""

    def setup(point):
        if point["index"] == 0:
            raise Skip("no device; buy one")
        return timed(watch.run, stopwatch=watch, check=lambda: Check(point["index"] != 1, 0.5, "by hand", "off by 0.5"))

    watch = FakeWatch(lambda run: 1e6)
    fake = case(setup)
    todo = [sides_of("run", fake, (point, point), [serving(fake)] * 2) for point in fake.points("smoke")]
    got = measure_all(todo, "smoke")
    assert [text.endswith("no device; buy one") for text in got.skipped] == [True]
    assert ["off by 0.5" in text for text in got.failed] == [True]
    assert [pair.a.point["index"] for pair in got.pairs] == [2]


def test_rounds_at_once_are_set_up_together_and_timed_alone():
    """Concurrent rounds are set up together, but timed alone."""
    order, lock = [], threading.Lock()

    def note(what):
        with lock:
            order.append(what)

    def setup(point):
        note("set up")
        watch = FakeWatch(lambda run: 1e6 * (1 + point["index"]))

        def run():
            note("timed")
            watch.run()

        return timed(run, stopwatch=watch, check=lambda: note("checked") or Check(True, 0.0))

    fake = case(setup, 3)
    todo = [sides_of("run", fake, (point, point), [serving(fake)] * 2) for point in fake.points("default")]
    got = measure_all(todo, "default", at_once=5)
    assert [pair.a.metrics["ns_per_env_step"].value for pair in got.pairs] == pytest.approx([1e3, 2e3, 3e3])
    assert all(len(pair.comparison.log_ratios) == ROUNDS["default"] for pair in got.pairs)
    assert all(pair.b.notes["at_once"] == 5 for pair in got.pairs)
    for_batch = [name for name, _ in itertools.groupby(each for each in order if each != "checked")]
    assert for_batch == ["set up", "timed"] * 3, "3 x 4 rounds, 5 at once"
    assert order[: 2 * 2 * 5].count("timed") == 0, "five rounds of two sides, each set up and checked"


def test_rounds_that_do_not_fit_are_measured_fewer_at_once():
    """Rounds that run out of memory are retried at half concurrency.

    Memory fits two rounds: eight and four at once fail, two succeed.
    """
    n_there, lock = 0, threading.Lock()

    def setup(point):
        nonlocal n_there
        with lock:
            if n_there == 4:
                raise MemoryError("too many")
            n_there += 1
        watch = FakeWatch(lambda run: 1e6)
        return timed(watch.run, stopwatch=watch)

    class Leaving(Server):
        def _free(self):
            nonlocal n_there
            with lock:
                n_there -= self._work is not None
            super()._free()

    @contextlib.contextmanager
    def start():
        server = Leaving({"fake": fake})
        try:
            yield server
        finally:
            server._free()

    fake = case(setup, 2)
    todo = [sides_of("run", fake, (point, point), [start] * 2) for point in fake.points("default")]
    got = measure_all(todo, "default", at_once=8)
    assert [pair.b.notes["at_once"] for pair in got.pairs] == [2, 2]
    assert not got.failed


def sides_that_break(errors, n, started):
    """Return sides of ``n`` pairs; some fail.

    Each start adds its pair to ``started``.
    """

    def setup(point):
        if point["index"] in errors:
            raise errors[point["index"]]
        watch = FakeWatch(lambda run: 1e6)
        return timed(watch.run, stopwatch=watch)

    fake = case(setup, n)
    starts = [[serving(fake, started, index)] * 2 for index in range(n)]
    points = fake.points("smoke")
    return [sides_of("run", fake, (point, point), start) for point, start in zip(points, starts, strict=True)]


def test_pair_that_fails_beside_others_is_measured_by_itself():
    """A pair that failed in a batch is retried alone.

    Others may have had the memory. If it fails alone too, it has failed; a pair that cannot run is not retried.
    """
    started, said = [], []
    todo = sides_that_break({1: MemoryError("too many"), 2: Skip("no device; buy one")}, 3, started)
    got = dict(measure_rounds(todo, "smoke", at_once=3, say=said.append))
    assert [type(got[place]).__name__ for place in range(3)] == ["Pair", "WorkerError", "WorkerError"]
    assert [started.count(index) for index in range(3)] == [2, 4, 2], "both sides of the one are started again"
    (line,) = said
    assert "index=1" in line
    assert "too many" in line


def test_want_of_memory_halves_the_crowd():
    """A memory error halves the concurrency of later rounds."""
    todo = sides_that_break({0: MemoryError("too many")}, 7, [])
    got = dict(measure_rounds(todo, "smoke", at_once=4))
    assert [got[place].a.notes.get("at_once") for place in range(1, 7)] == [2] * 6


def test_end_of_a_batch_is_told_after_its_pairs_and_not_after_a_signal():
    """All pairs of a batch are yielded before it.

    After a signal only `Stopped` is raised.
    """
    seen = list[int | str]()
    for place, _ in measure_rounds(sides_that_break({}, 3, []), "smoke", 2, after_batch=lambda: seen.append("end")):
        seen.append(place)
    assert seen == [0, 1, "end", 2, "end"], "a smoke pair has one round"
    with pytest.raises(Stopped):
        list(
            measure_rounds(sides_that_break({0: Stopped(2)}, 1, []), "smoke", after_batch=lambda: pytest.fail("called"))
        )


@pytest.mark.parametrize("n_finished", [0, 1])
def test_round_that_a_signal_kills_has_not_failed(n_finished, monkeypatch):
    """A pair that lacks rounds is neither yielded nor postponed."""
    said = list[str]()
    monkeypatch.setitem(ROUNDS, "smoke", n_finished + 1)

    def run_batch(batch, limit):
        for each in batch[:n_finished]:
            each.is_finished = True
        for each in batch[n_finished:]:
            each.error = WorkerError("Died", "killed")
        raise Stopped(2)

    monkeypatch.setattr(interleaved, "_run_batch", run_batch)
    with pytest.raises(Stopped):
        next(measure_rounds(sides_that_break({}, 1, []), "smoke", n_finished + 1, said.append))
    assert said == []


def test_rounds_that_end_when_a_signal_comes_end_once(monkeypatch):
    """Their pair is yielded; a second request to end would fail."""
    ended, finish = list[Round](), Round.finish

    def slowly(round_):
        ended.append(round_)
        if round_.number == 0:
            signal.raise_signal(signal.SIGUSR1)
        time.sleep(0.2)
        finish(round_)

    def stop(*_):
        raise Stopped(signal.SIGUSR1)

    monkeypatch.setattr(Round, "finish", slowly)
    monkeypatch.setitem(ROUNDS, "smoke", 2)
    before = signal.signal(signal.SIGUSR1, stop)
    got = []
    try:
        with pytest.raises(Stopped):
            got.extend(measure_rounds(sides_that_break({}, 1, []), "smoke", 2))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(ended) == len(set(ended)) == 2
    ((place, pair),) = got
    assert (place, pair.n_rounds) == (0, 2)


def test_sides_of_different_versions_are_not_compared():
    """Two versions of a case are not compared."""
    fake = Machine()
    with pytest.raises(NotComparable, match=r"version of the case \(got \[1, 2\]"):
        measured(fake.side(), fake.side(version=2), "smoke")


def test_versions_of_different_cases_are_their_own():
    """Paired cases of different names keep their own versions."""
    ours_case, peer = Machine().case(), Machine().case(version=7, name="peer")
    ours, theirs = sides_of("run", ours_case, (POINT, POINT), [serving(ours_case)] * 2)
    theirs = replace(theirs, case=peer, start=serving(peer))
    got = measure((ours, theirs), "smoke")
    assert (got.a.case_version, got.b.case_version) == (1, 7)


@pytest.mark.parametrize(("card", "shared"), [("one", True), ("another", False), (None, False)])
def test_sides_share_a_card(card, shared):
    """Both sides must run on the same GPU.

    Two GPUs of one model may differ more than the sides do.
    """

    def reply(uuid):
        return {"case_version": 1, "facts": {"device": "cuda"}, "machine": {"gpu_uuid_hash": uuid}}

    with contextlib.nullcontext() if shared else pytest.raises(NotComparable, match="must share a card"):
        rounds._require_one_card(reply("one"), reply(card))


def test_stopped_comparison_goes_on_with_what_it_kept(tmp_path):
    """A resumed run measures only unfinished pairs.

    A pair with a truncated line in the file is unfinished.
    """
    started, fake = [], Machine().case()
    points = [POINT | {"index": index} for index in range(3)]
    todo = [sides_of("run", fake, (point, point), [serving(fake, started, "a")] * 2) for point in points]
    kept = PairFiles.of(tmp_path, "run")

    def stop_at_second(text):
        if text.startswith("2/"):
            raise Stopped(2)

    with pytest.raises(Stopped):
        measure_all(todo, "smoke", stop_at_second, kept)
    first, _ = kept.pairs()
    assert kept.files == [kept.a, kept.b, kept.comparisons]
    whole = kept.comparisons.read_bytes()
    kept.comparisons.write_bytes(whole[:-100])
    started.clear()
    got = measure_all(todo, "smoke", outputs=kept)
    assert len(started) == 2 * 2
    assert [pair.a.point["index"] for pair in got.pairs] == [0, 1, 2]
    assert got.pairs[0] == first
    assert kept.pairs() == got.pairs


def test_comparison_goes_on_only_with_the_code_it_began_with(tmp_path):
    """A run cannot be resumed with different code."""
    fake, said = Machine().case(), list[str]()
    points = [POINT | {"index": index} for index in range(2)]
    todo = [sides_of("run", fake, (point, point), [serving(fake)] * 2) for point in points]
    kept = PairFiles.of(tmp_path, "run")
    (pair,) = measure_all(todo[:1], "smoke").pairs
    of_another = [each.model_copy(update={"git": {"sha": "0", "diff_hash": None}}) for each in (pair.a, pair.b)]
    kept.add(replace(pair, a=of_another[0], b=of_another[1]))
    with pytest.raises(NotComparable, match="run-a must continue on the code it started with"):
        measure_all(todo, "smoke", outputs=kept)
    assert len(kept.pairs()) == 1
    of_this_checkout = [sides_of("run", fake, (each, each), (local.start, local.start)) for each in points]
    with pytest.raises(NotComparable, match="run-a must continue on the code it started with"):
        measure_all(of_this_checkout, "smoke", said.append, kept)
    assert said == ["1 of 2 pairs were measured before"], "nothing is measured that could not be kept"


# ------------------------------------------------------------------ revisions


FAKE_CASES = """
from bench.core.case import Case
from bench.core.point import Check, Facts
from bench.core.measure import Timed
import torch

def setup(point):
    facts = Facts(
        mode="eager", device=torch.device("cpu"), threads=1, work={"env_steps": 1000}, notes={"code": "NAME"}
    )
    check = lambda: Check(True, 0.0, "by hand")
    return Timed(run=lambda: sum(range(2000)), synchronize=lambda: None, check=check, facts=facts)

print("this must not end up among the replies")
CASES = {
    "fake": Case(
        name="fake", title="", scope="env", version=1, workload=Timed, points=lambda preset: [], setup=setup
    )
}
"""


@pytest.fixture
def checkout(tmp_path):
    """Repository of this suite with two tagged commits.

    A fake case tells them apart.
    """
    root = tmp_path / "checkout"
    for package in ("bench", "envs", "warpdrive_min"):
        shutil.copytree(machine.ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    git(root, "init", "--quiet")
    for name in ("first", "second"):
        (root / "bench" / "workloads" / "cases.py").write_text(FAKE_CASES.replace("NAME", name))
        git(root, "add", ".")
        git(root, "commit", "--quiet", "--no-gpg-sign", "-m", name)
        git(root, "tag", name)
    return root


@pytest.mark.nightly
def test_revisions_are_measured_on_their_own_code(checkout):
    """Each side runs its commit's code and records it."""
    before = {path: path.stat().st_mtime_ns for path in (checkout / ".git").rglob("*")}
    with revisions("first", "second", root=checkout) as starts:
        got = measure(sides_of("run", FAKE, (POINT, POINT), starts), "smoke")
    assert [got.a.notes["code"], got.b.notes["code"]] == ["first", "second"]
    for side, tag in ((got.a, "first"), (got.b, "second")):
        assert side.git["sha"] == git(checkout, "rev-parse", tag).strip()
    assert min(*got.a.unit_ns, *got.b.unit_ns) > 0
    assert "two processes share the device" in got.a.unread["telemetry"]
    assert {path: path.stat().st_mtime_ns for path in (checkout / ".git").rglob("*")} == before


@pytest.mark.nightly
@pytest.mark.parametrize("commit", ["7b60f33", "73ae61c"])
def test_older_commits_answer_our_requests(commit):
    """Servers of older commits answer today's requests."""
    if subprocess.run(["git", "cat-file", "-e", f"{commit}^{{commit}}"], cwd=machine.ROOT, check=False).returncode:
        pytest.skip(f"{commit} is not in this clone")
    env_step = CASES["env_step"]
    point = next(each for each in env_step.points("smoke") if each["backend"] == "cpu")
    with revisions(commit, commit) as starts:
        got = measure(sides_of("run", env_step, (point, point), starts), "smoke")
    for side in (got.a, got.b):
        assert side.is_evidence
        assert side.git["sha"].startswith(commit)
        assert side.notes["turns_from_one_state"]
    assert got.comparison.log_ratios


def test_code_from_elsewhere_is_refused(tmp_path):
    """A folder without the code raises an error."""
    with pytest.raises(WorkerError), Worker.on(tmp_path):
        pass


def test_worker_finds_packages_where_its_caller_does(monkeypatch, tmp_path):
    """Workers find packages of $PYTHONPATH after their own code.

    The caller's commit does not leak into them.
    """
    monkeypatch.setenv("PYTHONPATH", "/packages")
    monkeypatch.setenv("BENCH_GIT_SHA", "abc")
    there = worker._environment(tmp_path)
    assert there["PYTHONPATH"] == f"{tmp_path}{os.pathsep}/packages"
    assert "BENCH_GIT_SHA" not in there


def test_set_up_lets_go_of_the_point_before():
    """A side frees its point before setting up the next.

    This holds after a failed set-up too.
    """
    alive = []

    def setup(point):
        assert not alive, "the point before is still held"
        if point["index"] == 1:
            raise RuntimeError("out of luck")
        token = Token()
        alive.append(1)
        return timed(lambda: token.work(watch), stopwatch=watch)

    class Token:
        def work(self, watch):
            watch.run()

        def __del__(self):
            alive.pop()

    watch = FakeWatch(lambda run: 1e6)
    side = Server({"fake": case(setup)})
    side.ask("set_up", case="fake", point={**POINT, "index": 0})
    assert alive
    with pytest.raises(WorkerError, match="RuntimeError: out of luck"):
        side.ask("set_up", case="fake", point={**POINT, "index": 1})
    with pytest.raises(WorkerError, match="this code has no case env_step"):
        side.ask("set_up", case="env_step", point=POINT)
    side.ask("set_up", case="fake", point={**POINT, "index": 2})
    side.ask("warm_up", sample_s=0.001, warm_up_cap_s=0.1, goes_back=False)
    assert side.ask("sample")["wall_ns"] == 1e6
    assert side.ask("finish", with_twin=True)["check"]["passed"]
    assert not alive
