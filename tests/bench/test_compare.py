"""Two sides: measured in turns on a fake machine, on the code of two commits, and from records."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from bench import cli, machine
from bench.case import Check, Skip
from bench.errors import NotComparable
from bench.judge import Evidence
from bench.record import append, read
from bench.stats import median
from bench.verdicts import turns, worker
from bench.verdicts.compare import judge
from bench.verdicts.pairing import Pair, paired_up, samples
from bench.verdicts.turns import in_turns, measure_all
from bench.verdicts.worker import RemoteSide, Side, SideError
from tests.bench.fakes import FakeWatch, case, timed
from tests.bench.test_plots import record

runner = CliRunner()
POINT = {"env": "fake", "backend": "cpu", "n_envs": 10, "n_agents": 1, "index": 0}


@pytest.fixture(autouse=True)
def _no_simulator(monkeypatch):
    monkeypatch.delenv("NUMBA_ENABLE_CUDASIM", raising=False)


class Machine:
    """A machine on which every run takes longer than the one before, by the same time."""

    def __init__(self, drift: float) -> None:
        self._watch = FakeWatch(lambda run: 1e6 * (1 + drift * run))

    def side(self, slower: float = 1.0, version: int = 1, **changes) -> Side:
        """Return a side whose runs take so many times as long as those of others."""
        watch = self._watch

        def run() -> None:
            before = watch.now
            watch.run()
            watch.now = before + slower * (watch.now - before)

        return Side({"fake": case(lambda point: timed(run, stopwatch=watch, **changes), 1, version=version)})


def pair_of(times_a, times_b, in_turns=False, **fields) -> Pair:
    """Return a pair of samples, in ns a step."""
    a = record(samples_ns=list(times_a), **fields)
    return Pair(
        name="point",
        a=a,
        b=record(samples_ns=list(times_b), **fields),
        times_a=tuple(times_a),
        times_b=tuple(times_b),
        in_turns=in_turns,
    )


FAKE = case(lambda point: timed(), 1)


@pytest.mark.parametrize("slower", [1.0, 1.05, 0.5])
def test_linear_drift_of_the_machine_cancels(slower):
    """While every run takes longer than the last, the ratio of two sides in turns stays what it is."""
    fake = Machine(drift=0.001)
    got = in_turns(FAKE, (POINT, POINT), (fake.side(), fake.side(slower)), "default", "run")
    assert got.times_a[-1] > 1.2 * got.times_a[0]
    assert len(got.times_a) == turns.QUADS["default"]
    # The later side is set up slower, so it runs less often in a block: as long in time, which this drift does not see.
    assert got.ratio.value == pytest.approx(slower, rel=2e-3)


def test_blocks_are_taken_in_turns():
    """A turn is A B B A, and a turn's time the mean of a side's two blocks over its work.

    Where the side changes, a block goes before that does not count.
    """
    order = []

    class Noted:
        def __init__(self, name):
            self.name = name

        def sample(self):
            order.append(self.name)
            return {"wall_ns": 1000.0 * len(order), "device_ns": None}

    a, b = turns.quads(Noted("a"), Noted("b"), 2)
    assert "".join(order) == "aabbbaa" + "abbbaa"
    assert turns.by_quad(a, 1000) == (4.5, 10.5)
    assert turns.by_quad(b, 1000) == (4.5, 10.5)


def test_pair_has_a_record_of_each_side():
    """Both sides leave evidence that says how it was taken, with its samples, and that survives its file."""
    fake = Machine(drift=0.0)
    got = in_turns(FAKE, (POINT, POINT), (fake.side(), fake.side(2.0)), "smoke", "run")
    for side, run_id, ns in ((got.a, "run-a", 1000.0), (got.b, "run-b", 2000.0)):
        assert side.is_evidence
        assert side.run_id == run_id
        assert len(side.samples_ns) == 2 * turns.QUADS["smoke"]
        assert side.metrics["ns_per_env_step"].value == ns
        assert side.unread["telemetry"].startswith("no telemetry")


@pytest.mark.parametrize(
    ("times_b", "verdict"),
    [
        ([1.05, 1.051, 1.049, 1.05, 1.0505, 1.0495], "slower"),
        ([0.95, 0.951, 0.949, 0.95, 0.9505, 0.9495], "faster"),
        ([1.001, 1.0, 0.999, 1.0, 1.0005, 0.9995], "same"),
        ([1.2, 0.9, 1.1, 0.8, 1.3, 0.95], "inconclusive"),
    ],
)
def test_verdict_of_each_kind(times_b, verdict):
    """5 % at 0.1 % noise is told, none at 0.1 % is the same, and none at 20 % is not told."""
    (row,) = judge([pair_of([1.0, 1.0005, 0.9995, 1.0, 1.001, 0.999], times_b, in_turns=True)])
    assert row.verdict == verdict


def test_verdicts_are_adjusted_for_the_number_of_rows():
    """What is significant alone is not among a hundred that are not."""
    one = pair_of([1.0, 1.0, 1.0, 1.0], [1.01, 1.05, 1.03, 1.06], in_turns=True)
    none = pair_of([1.0, 1.1, 1.0, 1.1], [1.1, 1.0, 1.1, 1.0], in_turns=True)
    assert judge([one])[0].verdict == "slower"
    assert judge([one, *[none] * 99])[0].verdict == "inconclusive"


def test_skipped_and_failing_points_do_not_end_the_others():
    """Of three points one cannot run, one is wrong, and the third is measured."""

    def setup(point):
        if point["index"] == 0:
            raise Skip("no device; buy one")
        return timed(watch.run, stopwatch=watch, check=lambda: Check(point["index"] != 1, 0.5, "by hand", "off by 0.5"))

    watch = FakeWatch(lambda run: 1e6)
    fake = case(setup)
    sides = tuple(Side({"fake": fake}) for _ in "ab")
    got = measure_all([(fake, point, point) for point in fake.points("smoke")], sides, "smoke", "run")
    assert [text.endswith("no device; buy one") for text in got.skipped] == [True]
    assert ["off by 0.5" in text for text in got.failed] == [True]
    assert [pair.a.point["index"] for pair in got.pairs] == [2]


def test_sides_of_different_versions_are_not_compared():
    """A case that times something else on the other side is refused."""
    fake = Machine(drift=0.0)
    with pytest.raises(NotComparable, match=r"case versions \[1, 2\]"):
        in_turns(FAKE, (POINT, POINT), (fake.side(), fake.side(version=2)), "smoke", "run")


# ------------------------------------------------------------------ records


def test_contended_and_throttled_records_are_left_out():
    """What another process or a slowed clock may have spoilt is named; idling and set clocks spoil nothing."""
    telemetry = [
        {"contended": True, "throttle_reasons": {}},
        {"contended": False, "throttle_reasons": {"software thermal": 0.25}},
        {"contended": False, "throttle_reasons": {"idle": 1.0, "application clocks": 1.0}},
    ]
    records = [record(telemetry=each, point={**POINT, "index": index}) for index, each in enumerate(telemetry)]
    got = Evidence.of(records)
    assert [each.point["index"] for each in got.kept.values()] == [2]
    assert "another process used the GPU" in got.left_out[0]
    assert "software thermal in 25% of the samples" in got.left_out[1]


def test_newest_evidence_of_a_point_counts():
    """A later run replaces an earlier one, and a good one a spoilt one."""
    old = record(started_at="2026-01-01T00:00:00", run_id="old")
    new = record(started_at="2026-01-02T00:00:00", run_id="new")
    spoilt = record(started_at="2026-01-03T00:00:00", run_id="spoilt", telemetry={"contended": True})
    got = Evidence.of([new, spoilt, old])
    assert [each.run_id for each in got.kept.values()] == ["new"]
    assert got.left_out == []


@pytest.mark.parametrize("field", ["case_version", "preset", "machine.gpu", "machine.torch"])
def test_records_that_differ_in_what_matters_do_not_pair(field):
    """The difference is named with both values, and pairs where it is allowed."""
    name, _, part = field.partition(".")
    other = record(
        **{name: {"gpu": "NVIDIA H200", "cores": 16, part: "other"} if part else 7 if "_" in name else "full"}
    )
    sides = [Evidence.of([each]).kept for each in (record(), other)]
    pairs, refused = paired_up(*sides, [])
    assert pairs == []
    assert f"{field}: " in refused[0]
    pairs, refused = paired_up(*sides, [field])
    assert refused == []
    assert pairs[0].mismatched[0].startswith(f"{field}: ")


def test_command_compares_two_files(tmp_path):
    """The table, the result and the records of both sides are written; what is allowed to differ is printed."""
    samples = [100.0 + each for each in range(20)]
    append(tmp_path / "a.jsonl", record(samples_ns=samples))
    append(tmp_path / "b.jsonl", record(samples_ns=[2 * each for each in samples], preset="full"))
    arguments = ["compare", str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl"), "--out", str(tmp_path / "out")]
    refused = runner.invoke(cli.app, arguments)
    assert refused.exit_code == 4
    assert "preset: 'default' against 'full'" in refused.output
    got = runner.invoke(cli.app, [*arguments, "--allow-mismatch", "preset"])
    assert got.exit_code == 0, got.output
    assert "slower" in got.output
    assert "allowed mismatch: preset" in got.output
    (file,) = (tmp_path / "out").glob("*.json")
    result = json.loads(file.read_text())
    assert result["rows"][0]["ratio"]["value"] == 2
    assert result["allow_mismatch"] == ["preset"]
    assert len(list((tmp_path / "out").glob("*.jsonl"))) == 2


def test_command_measures_two_values_of_an_axis(tmp_path):
    """C++ and NumPy are paired where all else is the same, and leave records."""
    arguments = ["compare", "--axis", "backend=cpu,host", "--preset", "smoke", "--case", "env_step"]
    got = runner.invoke(cli.app, [*arguments, "--where", "env=cartpole", "--out", str(tmp_path)])
    assert got.exit_code == 0, got.output
    (file_a,), (file_b,) = tmp_path.glob("*-a.jsonl"), tmp_path.glob("*-b.jsonl")
    assert [each.point["backend"] for file in (file_a, file_b) for each in read(file)] == ["cpu", "host"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--axis", "backend"], 4, "must be AXIS=A,B"),
        (["HEAD"], 4, "takes either A and B or --axis"),
        (["HEAD", __file__], 4, "both sides must be records, or both revisions"),
        (["--axis", "backend=cpu,host", "--where", "env=chess"], 3, "no point is on both sides"),
        (["no-such-revision", "."], 4, "git must have 'no-such-revision'"),
    ],
)
def test_what_cannot_be_compared_says_so(arguments, code, message, tmp_path):
    """Each misuse has its exit code and names what is wrong."""
    got = runner.invoke(cli.app, ["compare", *arguments, "--out", str(tmp_path)])
    assert got.exit_code == code, got.output
    assert message in got.output


# ------------------------------------------------------------------ revisions


FAKE_CASES = """
from bench.case import Case, Check, Facts
from bench.measure import Timed
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
    """A repository with this suite around a fake case, that says which of two commits it is of."""
    root = tmp_path / "checkout"
    for package in ("bench", "warpdrive_min"):
        shutil.copytree(machine.ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    git = ["git", "-C", str(root), "-c", "user.name=nobody", "-c", "user.email=nobody@example.org"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    for name in ("first", "second"):
        (root / "bench" / "cases.py").write_text(FAKE_CASES.replace("NAME", name))
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "--quiet", "--no-gpg-sign", "-m", name], check=True)
        subprocess.run([*git, "tag", name], check=True)
    return root


def test_revisions_are_measured_on_their_own_code(checkout):
    """Each side runs the code of its commit in a process of its own and leaves a record of it; no worktree stays."""
    with turns.revisions("first", "second", root=checkout) as (first, second):
        got = in_turns(FAKE, (POINT, POINT), (first, second), "smoke", "run")
        with pytest.raises(SideError, match="this code has no case env_step"):
            first.set_up("env_step", POINT, 0.001, 0.1)
    assert [got.a.notes["code"], got.b.notes["code"]] == ["first", "second"]
    shas = [
        subprocess.run(
            ["git", "-C", checkout, "rev-parse", tag], capture_output=True, text=True, check=True
        ).stdout.strip()
        for tag in ("first", "second")
    ]
    assert [got.a.git["sha"], got.b.git["sha"]] == shas
    assert min(*got.times_a, *got.times_b) > 0
    assert "two processes take turns" in got.a.unread["telemetry"]
    trees = subprocess.run(["git", "-C", checkout, "worktree", "list"], capture_output=True, text=True, check=True)
    assert len(trees.stdout.splitlines()) == 1


@pytest.mark.parametrize("slower", [1.0, 1.05])
def test_what_the_second_process_loses_cancels(slower, monkeypatch):
    """Whoever starts second is 2 % slower throughout; either side is in half of the turns, so their ratio is exact."""
    started = []

    class Steady:
        def __init__(self, scale):
            self.scale = scale

        def time(self, block):
            return round(1e9 * self.scale), None

    @contextmanager
    def sides(*names):
        started.append(names)
        scales = [order * (slower if name == "now" else 1.0) for order, name in zip((1.0, 1.02), names, strict=True)]
        yield [Side({"fake": case(lambda _, s=scale: timed(stopwatch=Steady(s)), 1)}) for scale in scales]

    monkeypatch.setattr(turns, "revisions", sides)
    (got,) = turns.measure_revisions([(FAKE, POINT)], ("before", "now"), "default", "run").pairs
    assert started == [("before", "now"), ("now", "before")]
    assert got.ratio.value == pytest.approx(slower, rel=1e-6)
    assert got.ratio.high - got.ratio.low < 1e-6
    assert len(got.times_a) == turns.QUADS["default"] // 2
    assert len(got.a.samples_ns) == len(got.b.samples_ns) == 2 * turns.QUADS["default"]


def test_code_from_elsewhere_is_refused(tmp_path):
    """A folder without the code cannot stand for it: the process ends, and that is an error."""
    with pytest.raises(SideError), RemoteSide(tmp_path):
        pass


def test_worker_finds_packages_where_its_caller_does(monkeypatch, tmp_path):
    """What is installed by $PYTHONPATH is there, behind the code of the side; a commit's name is not another's."""
    monkeypatch.setenv("PYTHONPATH", "/packages")
    monkeypatch.setenv("BENCH_GIT_SHA", "abc")
    there = worker._environment(tmp_path)
    assert there["PYTHONPATH"] == f"{tmp_path}{os.pathsep}/packages"
    assert "BENCH_GIT_SHA" not in there


def test_median_of_a_record_is_that_of_its_samples():
    """Times of one unit are wall times over the work of a run."""
    assert median(samples(record(samples_ns=[10.0, 20.0, 60.0], work_per_run={"env_steps": 10}))) == 2
    assert math.isclose(pair_of([1.0, 1.0], [3.0, 3.0]).ratio.value, 3)


def test_set_up_lets_go_of_the_point_before():
    """A side holds one point at a time, also after one that failed."""
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
    side = Side({"fake": case(setup)})
    side.set_up("fake", {**POINT, "index": 0}, 0.001, 0.1)
    assert alive
    with pytest.raises(SideError, match="RuntimeError: out of luck"):
        side.set_up("fake", {**POINT, "index": 1}, 0.001, 0.1)
    side.set_up("fake", {**POINT, "index": 2}, 0.001, 0.1)
    assert side.sample()["wall_ns"] == 1e6
    assert side.finish()["check"]["passed"]
    assert not alive
