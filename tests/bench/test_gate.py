"""The gate's exit codes, on H200 records with simulated slow-downs."""

from __future__ import annotations

import math
import re
import signal
import time
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from bench.core import machine
from bench.core.archive import ARCHIVE, glob_paths
from bench.core.case import Job
from bench.core.errors import Code
from bench.core.point import matches
from bench.core.record import Comparison, Context, Host, Record, append, read_all, read_comparisons
from bench.judge import gate
from bench.judge.calibration import Calibration, NoiseFloor
from bench.judge.evidence import Evidence, name_of
from bench.judge.gate import THRESHOLD, from_records, judge, report_on
from bench.judge.outcomes import Report
from bench.judge.pairing import caveat_lines
from bench.process import interleaved
from bench.process.local import run_points
from bench.process.rounds import Round
from bench.process.server import Server
from bench.process.sweep import run
from bench.workloads.cases import jobs
from tests.bench.builders import bench, case, cycle, pair_of, point, record, timed
from warpdrive_min.stopping import Stopped, saved

STORED = machine.ROOT / "results" / ARCHIVE / "sweeps" / "20261121T053731-4c1f3f7-8c0b.jsonl"


@pytest.fixture(scope="module")
def h200() -> list[Record]:
    """Return H200 records with medians known to 0.1 to 1 %."""
    files = glob_paths(str(STORED.parent / "20261121T0*.jsonl"))
    kept = Evidence.of(read_all(files)).comparable.values()
    found = [each for each in kept if each.point["backend"] == "pycuda" and 0.001 < half_width(each) < 0.01]
    assert len(found) >= 10
    return found


def half_width(each: Record) -> float:
    metric = next(metric for name, metric in each.metrics.items() if name.startswith("ns_per_"))
    return (metric.high - metric.low) / 2 / metric.value


def again(records: list[Record], seed: int, slower: float = 0.0, noise: float = 0.0) -> list[Record]:
    """Return records of another run: resampled, slower and noisier."""
    random = np.random.default_rng(seed)

    def samples(each: Record) -> list[float]:
        drawn = random.choice(each.samples_ns, len(each.samples_ns))
        return list(drawn * (1 + slower) * np.exp(random.normal(0, noise, len(drawn))))

    return [each.model_copy(update={"run_id": f"again-{seed}", "samples_ns": samples(each)}) for each in records]


def report_of(baseline: list[Record], now: list[Record], tmp_path, threshold: float = 0.03) -> Report:
    report = report_on("baseline", threshold)
    from_records(report, baseline, now, tmp_path)
    return report


def run_gate(tmp_path, *arguments: object, exits: int | tuple[int, ...] = Code.OK) -> str:
    """Run the gate; return its output."""
    folders = ["--out", tmp_path / "out", "--calibrations", tmp_path / "calibration"]
    return bench("gate", *folders, *arguments, exits=exits)


@pytest.mark.parametrize(("slower", "verdict"), [(1.04, "ok"), (1.25, "regression")])
def test_noisy_case_has_its_own_least_threshold(slower, verdict):
    """4 % pass in `time_to_solution` at --threshold 1.5 %, and fail elsewhere."""
    times = [99.0, 100.0, 101.0, 100.0] * 3

    def judged(case):
        pair = pair_of(times, [slower * time for time in times], is_interleaved=True, case=case)
        return judge([pair], 0.015, None)[0].verdict

    assert judged("time_to_solution") == verdict
    assert judged("env_step") == "regression"


@pytest.mark.parametrize(
    ("processes", "verdict"),
    [([1.25] * 5, "regression"), ([0.9, 1.6, 1.1, 1.25, 1.4], "inconclusive"), ([1.0] * 5, "ok")],
)
def test_processes_are_the_replicates_of_records(processes, verdict, tmp_path):
    """Samples of a process are not replicates."""

    def side(times):
        samples = [time * wiggle for time in times for wiggle in (0.999, 1.0, 1.001)]
        return record(samples_ns=samples, process=[number for number in range(5) for _ in range(3)])

    (row,) = report_of([side([0.99, 1.0, 1.01, 1.0, 1.0])], [side(processes)], tmp_path).rows
    assert row.verdict == verdict
    assert "5 processes" in row.estimate.note


def test_load_on_one_side_is_inconclusive(tmp_path):
    """Records of a busy machine decide nothing; a line names them."""
    calm, late = record(), record(samples_ns=[1.6, 1.6, 1.61, 1.6, 1.6], process=list(range(5)))
    busy = {"load_before": 0.1, "pinned_cores": None, "others_busy": 0.7}
    report = report_of([calm], [late.model_copy(update={"host": Host(**busy)})], tmp_path)
    assert [(row.verdict, row.why) for row in report.rows] == [
        ("inconclusive", "other processes used 70% of our cores: numbers unreliable")
    ]
    assert any("other processes used 70% of our cores" in note for note in report.notes)


@pytest.fixture
def files(tmp_path):
    """Return a function that runs the gate on two record files."""

    def run(baseline: list[Record], now: list[Record], *more: object, exits: int = Code.OK) -> str:
        for name, records in (("baseline", baseline), ("now", now)):
            for each in records:
                append(tmp_path / f"{name}.jsonl", each)
        sides = ["--baseline", tmp_path / "baseline.jsonl", "--records", tmp_path / "now.jsonl"]
        return run_gate(tmp_path, *sides, *more, exits=exits)

    return run


# ------------------------------------------------------------------ exit codes


def test_planted_slow_down_is_a_regression(h200, files, tmp_path):
    """A 5 % slow-down of one point exits with 1."""
    outputs = ["--summary", tmp_path / "out.md", "--junit", tmp_path / "out.xml", "--annotations"]
    now = [*again(h200[1:], 1), *again(h200[:1], 2, slower=0.05)]
    said = files(h200, now, *outputs, exits=Code.REGRESSION)
    (line,) = (line for line in said.splitlines() if line.startswith("::error"))
    assert line.startswith("::error title=bench gate%3A regression::")
    assert "+5." in line or "+4." in line
    assert "## Gate: regression" in (tmp_path / "out.md").read_text()
    suite = ElementTree.parse(tmp_path / "out.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == (str(len(h200)), "1")
    (failed,) = (each for each in suite if each.find("failure") is not None)
    assert failed.get("name") == name_of(h200[0])


@pytest.mark.parametrize("n_slower", [0, 1, 9])
def test_comment_has_regressions_first_in_ten_lines(n_slower, h200, files, tmp_path, monkeypatch):
    """A comment counts points, shows regressions first, and links to the rest."""
    run = {"GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "me/it", "GITHUB_RUN_ID": "7"}
    for name, value in run.items():
        monkeypatch.setenv(name, value)
    now = [*again(h200[n_slower:-1], 1), *again(h200[:n_slower], 2, slower=0.05)]
    files(h200, now, "--comment", tmp_path / "comment.md", exits=Code.NOTHING)  # the last point is missing
    text = (tmp_path / "comment.md").read_text()
    lines = text.splitlines()
    kinds = [line.split("**")[1] for line in lines if line.startswith("* ")]
    assert len(lines) <= 10
    assert lines[0].startswith(f"**Gate: nothing measured, or the set of points changed.** {len(now)} points against")
    assert kinds[: n_slower + 1] == (["regression"] * n_slower + ["changed"])[:6]
    assert re.match(r"\d+ more; ", lines[-1]) or n_slower < 6
    assert lines[-1].endswith("[the whole report](https://github.com/me/it/actions/runs/7)")


@pytest.mark.parametrize(
    ("slower", "noise", "verdict", "wrong"),
    [(0.0, 0.0, "ok", "regression"), (0.05, 0.0, "regression", "ok"), (0.0, 0.2, "inconclusive", "regression")],
)
def test_verdict_is_right_every_time(slower, noise, verdict, wrong, h200, tmp_path):
    """Codes of 20 pairs of runs are right, and verdicts of 90 % of points."""
    pairs = [(again(h200, 100 + i, noise=noise), again(h200, 200 + i, slower, noise)) for i in range(20)]
    reports = [report_of(*pair, tmp_path) for pair in pairs]
    assert {report.code for report in reports} == {Code[verdict.upper()]}
    verdicts = [row.verdict for report in reports for row in report.rows]
    assert verdicts.count(verdict) >= 0.9 * len(verdicts)
    assert wrong not in verdicts


def test_noise_is_inconclusive(h200, files):
    """Scatter above the threshold makes points inconclusive.

    Scatter is 10 %, the threshold 3 %; the exit code is neither 0 nor 1.
    """
    noisy = again(h200, 4, noise=0.2), again(h200, 5, noise=0.2)
    said = files(*noisy, "--annotations", exits=Code.INCONCLUSIVE)
    assert "::warning title=bench gate%3A inconclusive::" in said
    assert "::error" not in said


def test_broken_records_are_broken(tmp_path):
    """A file without records exits with 5, and names the place."""
    assert "is cut short" in run_gate(tmp_path, "--baseline", __file__, "--records", __file__, exits=Code.BROKEN)


def test_exception_is_broken_and_still_reported(h200, files, tmp_path, monkeypatch):
    """An internal error exits with 5 and appears in reports."""

    def breaks(*_):
        raise ZeroDivisionError("by hand")

    monkeypatch.setattr(gate, "judge", breaks)
    said = files(h200, h200, "--junit", tmp_path / "out.xml", exits=Code.BROKEN)
    assert "ZeroDivisionError: by hand" in said
    assert ElementTree.parse(tmp_path / "out.xml").getroot().get("errors") == "1"


@pytest.mark.parametrize("side", ["the baseline", "the records"])
def test_changed_set_of_points_is_not_passed(side, h200, files):
    """A point on one side only exits with 3."""
    sides = (h200, h200[1:]) if side == "the baseline" else (h200[1:], h200)
    said = files(*sides, exits=Code.NOTHING)
    assert f"{name_of(h200[0])} is only in {side}" in said


def test_wrong_point_is_broken(h200, files):
    """A point that fails its check exits with 5."""
    failed = h200[0].model_copy(update={"status": "failed", "reason": "off by 0.5"})
    assert "off by 0.5" in files(h200, [failed, *h200[1:]], exits=Code.BROKEN)


def test_other_machine_is_not_comparable(h200, files):
    """Records of another driver exit with 4 unless allowed."""
    other = [each.model_copy(update={"machine": {**each.machine, "driver": "1.0"}}) for each in h200]
    files(h200, other, exits=Code.NOT_COMPARABLE)
    said = files(h200, other, "--allow-mismatch", "machine.driver", "--threshold", "3%")
    assert "allowed mismatch: machine.driver: '580.159.04' against '1.0'" in said


def test_contended_and_throttled_records_are_left_out_and_named(h200, files):
    """Contended and throttled records are ignored and named.

    They are 50 % slower: without their telemetry the gate would find a regression.
    """
    spoilt = again(h200[:2], 6, slower=0.5)
    told = [{"contended": True}, {"throttle_reasons": {"hardware thermal": 0.5}}]
    now = [each.model_copy(update={"telemetry": seen}) for each, seen in zip(spoilt, told, strict=True)]
    said = files(h200, [*now, *again(h200[2:], 7)], exits=Code.INCONCLUSIVE)
    assert "another process used the GPU (in the records)" in said
    assert "hardware thermal in 50% of the samples (in the records)" in said
    assert f"{len(h200) - 2} points against" in said


def test_most_serious_outcome_decides():
    """The most serious outcome sets the exit code.

    Order: broken, not comparable, changed set, regression, noise.
    """
    slow, noisy, same = (
        judge([pair_of(np.linspace(99, 101, 20), each)], 0.03, None)[0]
        for each in (np.linspace(109, 111, 20), np.linspace(50, 150, 20), np.linspace(99, 101, 20))
    )
    report = Report(baseline="", threshold=0.03)
    codes = [report.code]
    for change in (
        lambda: report.rows.append(same),
        lambda: report.rows.append(noisy),
        lambda: report.rows.append(slow),
        lambda: report.add("changed", "a point"),
        lambda: report.add("not comparable", "a point"),
        lambda: report.add("broken", "a point"),
    ):
        change()
        codes.append(report.code)
    assert codes == [3, 0, 2, 1, 3, 4, 5]


# ------------------------------------------------------------------ calibration


def calibrated(each: Record, run: float, smallest: float) -> Calibration:
    noise = NoiseFloor(
        **each.model_dump(include={"case", "case_version", "point", "preset"}),
        rounds=5,
        run=run,
        pair=run / 2,
        smallest=smallest,
        smallest_in_turns=smallest / 2,
    )
    return Calibration(machine=each.machine, git={}, made_at="", command="", noise=[noise])


def test_threshold_is_never_below_the_smallest_detectable(h200):
    """A slow-down below the smallest detectable one is inconclusive.

    A/A runs detect 8 % at least: 5 % is inconclusive, 20 % a regression.
    """
    calibration = calibrated(h200[0], run=0.01, smallest=0.08)
    outcomes = {}
    for slower in (0.0, 0.05, 0.2):
        ((now,), (before,)) = (again(h200[:1], seed, by) for seed, by in ((8, slower), (9, 0.0)))
        pair = pair_of(before.unit_ns, now.unit_ns, case=now.case, point=now.point, preset=now.preset)
        (row,) = judge([pair], 0.03, calibration)
        assert row.limit >= 0.08
        outcomes[slower] = row.verdict
    assert outcomes[0.05] == "inconclusive"
    assert outcomes[0.2] == "regression"


def test_noise_between_runs_widens_the_interval():
    """Calibrated noise between runs widens the interval.

    Samples agree to 0.1 %, but calibrated runs differ by 5 %.
    """
    times = np.linspace(99.9, 100.1, 20)
    pair = pair_of(times, times)
    assert judge([pair], 0.03, None)[0].verdict == "ok"
    assert judge([pair], 0.03, calibrated(pair.b, run=0.05, smallest=0.01))[0].verdict == "inconclusive"


def measure_rounds(*logs: float):
    """Return a pair with a number of rounds."""
    pair = pair_of([1.0] * 4, [1.1] * 4, is_interleaved=True)
    return replace(pair, comparison=Comparison.of(pair.a, pair.b, [[log] for log in logs]))


@pytest.mark.parametrize(("n", "verdict"), [(14, "inconclusive"), (15, "regression")])
def test_fifteen_rounds_find_a_slow_down_among_twenty_points(n, verdict):
    """Among 20 points 15 rounds find 3 %; 14 cannot, without noise either."""
    same = [measure_rounds(*[0.0] * 6) for _ in range(19)]
    slower = measure_rounds(*[math.log1p(0.03)] * n)
    first, *others = judge([slower, *same], THRESHOLD, None)
    assert (first.verdict, first.estimate.note) == (verdict, f"{n} rounds")
    assert {row.verdict for row in others} == {"ok"}


def test_calibrated_noise_raises_the_smallest_slow_down_that_is_found():
    """Rounds that agree by luck do not promise more than the calibration."""
    pair = measure_rounds(*[0.0001, -0.0001] * 3)
    (alone,) = judge([pair], THRESHOLD, None)
    (together,) = judge([pair], THRESHOLD, calibrated(pair.b, run=0.02, smallest=0.04))
    assert THRESHOLD < alone.limit < 0.02 < together.limit < 0.05
    assert alone.verdict == together.verdict == "ok"
    assert together.estimate.note == "6 rounds, calibrated"


def test_gate_says_which_slow_down_it_would_have_found():
    """The report names the smallest slow-down that any point would show."""
    report = report_on("main", THRESHOLD)
    pairs = [measure_rounds(*[scatter, -scatter] * 5) for scatter in (0.001, 0.01)]
    gate.judge_into(report, pairs, Path("none"))
    largest = max(row.limit for row in report.rows)
    (note,) = report.notes
    assert note.startswith(f"a slow-down of {largest:.2%} of any one point would have been found")
    assert report.rows[0].limit < report.rows[1].limit
    report = report_on("main", THRESHOLD)
    gate.judge_into(report, [measure_rounds(0.0, 0.1)], Path("none"))
    (note,) = report.notes
    assert note.startswith("too few rounds or processes: only a slow-down of more than 100 % would be found; the least")
    assert "too few rounds or processes: only a slow-down" in report.rows[0].why


def test_point_that_is_not_calibrated_says_whose_noise_stands_in():
    """An uncalibrated point names the point that supplies its noise.

    Rounds need no substitute.
    """
    known = calibrated(record(point=point("cpu", 7)), run=0.05, smallest=0.4)
    (row,) = judge([pair_of([1.0] * 4, [1.1] * 4)], 0.03, known)
    assert (row.limit, row.verdict) == (0.4, "inconclusive")
    assert row.estimate.note.startswith("one process, calibrated at env_step[env=cartpole,backend=cpu,n_envs=7")
    pair = measure_rounds(0.099, 0.1, 0.1, 0.101)
    (row,) = judge([pair], 0.03, known)
    assert (row.estimate.low, row.estimate.high) == (pair.ratio.low, pair.ratio.high)
    assert row.estimate.note == "4 rounds"
    file = machine.ROOT / "results" / "calibration"
    (stored,) = (Calibration.model_validate_json(each.read_text()) for each in file.glob("nvidia-h200-*.json"))
    (floor,) = (each for each in stored.noise if each.case == "env_step")
    other = pair.b.model_copy(update={"machine": stored.machine, "point": {**floor.point, "n_envs": 7}})
    _, notes = gate.calibration_of([other], file)
    assert notes == [
        "1 of 1 points are not calibrated; their noise is that of the noisiest calibrated "
        "point of their case, backend and preset: "
        "env_step[env=cartpole,backend=pycuda,n_envs=100000,n_agents=1,exact=False]"
    ]


def test_smallest_and_noise_are_those_of_how_it_was_measured():
    """Interleaved measurements use the smaller, paired noise."""
    times = np.linspace(99.9, 100.1, 20)
    calibration = calibrated(pair_of(times, times).b, run=0.02, smallest=0.2)
    apart, interleaved = (
        judge([pair_of(times, times, is_interleaved=each)], 0.03, calibration)[0] for each in (False, True)
    )
    assert (apart.limit, interleaved.limit) == (0.2, 0.1)
    assert apart.estimate.high > interleaved.estimate.high


# ------------------------------------------------------------------ the rest


def test_gate_measures_the_baseline_again(tmp_path):
    """Without `--records` the gate measures the baseline's points.

    On two cores the result may be any of three verdicts.
    """
    todo = jobs("smoke", ["case=env_step", "backend=host", "env=cartpole"])
    for _ in run(todo, Context.here("smoke"), tmp_path / "baseline.jsonl", run_points):
        pass
    judged = (Code.OK, Code.REGRESSION, Code.INCONCLUSIVE)
    said = run_gate(tmp_path, "--baseline", tmp_path / "baseline.jsonl", "--where", "env=cartpole", exits=judged)
    assert "1 point against" in said
    (file,) = (tmp_path / "out").glob("*.jsonl")
    assert [each.point for each in read_all([file])] == [
        job.point for job in todo if matches(job.point, ["env=cartpole"])
    ]


def test_gate_measures_as_many_processes_as_the_baseline_has(monkeypatch, tmp_path):
    """A baseline of five processes is measured again in five, each new."""
    asked = []

    def run_points(todo, context, **how):
        asked.extend((job.point, job.is_brief, how) for job in todo)
        return iter(())

    monkeypatch.setattr("bench.process.local.run_points", run_points)
    context = Context.here("default")
    baseline = record(machine=dict(context.machine))
    gate.measure_again([baseline], tmp_path / "now.jsonl", allowed=())
    new = {"in_new_processes": True}
    assert asked == [(baseline.point, is_brief, new) for is_brief in (True, True, True, True, False)]


@pytest.fixture
def sides(monkeypatch):
    """Return a function that fakes two revisions.

    It sets the speeds of the present code's processes; the baseline's is 1. It returns the list of measured sides.
    """

    def set_speeds(*slower: float, n_points: int = 1, on_start=lambda: None) -> list[tuple[str, str]]:
        fake, speeds, measured = case(lambda point: timed(), n_points), cycle(list(slower)), []

        class Watch:
            def __init__(self, scale):
                self.lengths = cycle([3e7 * scale, 3.003e7 * scale, 2.997e7 * scale])

            def time(self, block):
                return round(self.lengths(0)), None

        def start(name):
            on_start()
            scale = speeds(0) if name == "." else 1.0
            return nullcontext(Server({"fake": case(lambda _: timed(stopwatch=Watch(scale)), n_points)}))

        @contextmanager
        def revisions(*names):
            measured.append(names)
            yield [lambda name=name: start(name) for name in names]

        monkeypatch.setattr(interleaved, "revisions", revisions)
        monkeypatch.setattr("bench.options.chosen", lambda *_: [Job(fake, each) for each in fake.points("smoke")])
        return measured

    return set_speeds


@pytest.mark.parametrize(
    ("slower", "code", "n_rounds"),
    [((1.1,), Code.REGRESSION, 11), ((1.0, 1.1), Code.INCONCLUSIVE, 12), ((1.0,), Code.OK, 6)],
)
def test_rounds_are_measured_until_a_point_is_decided(slower, code, n_rounds, sides, tmp_path):
    """A gate stops at a verdict, or at the limit of rounds."""
    sides(*slower)
    said = run_gate(tmp_path, "--baseline", "main", "--case", "fake", "--most-rounds", 12, exits=code)
    assert f"| {n_rounds} rounds, calibrated |" in said
    (file,) = (tmp_path / "out").glob("*-comparisons.jsonl")
    (comparison,) = read_comparisons([file])
    assert len(comparison.rounds) == n_rounds


def test_machine_without_calibration_calibrates_itself_once(sides, tmp_path):
    """The first gate compares the baseline with itself and stores the noise."""
    measured = sides(1.0)
    said = run_gate(tmp_path, "--baseline", "main", "--case", "fake")
    assert re.search(r"calibrated 1 points with main against itself in \d+\.\d minutes", said)
    (file,) = (tmp_path / "calibration").iterdir()
    (floor,) = Calibration.model_validate_json(file.read_text()).noise
    assert (floor.case, floor.rounds) == ("fake", 4)
    run_gate(tmp_path, "--baseline", "main", "--case", "fake")
    assert measured == [("main", "main"), ("main", "."), ("main", ".")]
    file.unlink()
    assert "| 6 rounds |" in run_gate(tmp_path, "--baseline", "main", "--case", "fake", "--no-calibrate")
    assert measured[3:] == [("main", ".")]
    assert not file.exists()


def test_gate_and_calibration_say_how_long_they_take(sides, tmp_path, monkeypatch):
    """Their first lines have the size, a calibration's points the remaining time."""
    started, monotonic = [], time.monotonic
    sides(1.0, n_points=3, on_start=lambda: started.append(None))
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + 60 * len(started))
    said = run_gate(tmp_path, "--baseline", "main", "--case", "fake")
    assert "compares main with itself first; --no-calibrate" in said
    assert re.findall(r"3 pairs in .*", said) == [
        "3 pairs in 12 rounds: about 2 min",
        "3 pairs in 120 rounds, 18 if all are quiet: about 3 min to about 20 min",
    ]
    assert re.findall(r"B takes .* in 4 rounds(.*)", said) == ["; about 16 minutes left", "; about 8 minutes left", ""]


def test_time_limit_judges_what_is_measured(sides, tmp_path, monkeypatch):
    """After the time limit finished points are judged.

    `--resume` measures the others.
    """
    started, monotonic = [], time.monotonic
    sides(1.0, n_points=3, on_start=lambda: started.append(None))
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + 3600 * len(started))
    words = ["--baseline", "main", "--case", "fake", "--no-calibrate"]
    said = run_gate(tmp_path, *words, "--time-limit", 60 * 19.5, exits=Code.INCONCLUSIVE)
    assert "2 of 3 points against `main`" in said
    assert "1 ok, 1 inconclusive" in said
    assert "left out: not measured: 1 of 3 points (fake[" in said
    assert len(started) == 20
    (file,) = (tmp_path / "out").glob("*-comparisons.jsonl")
    assert len(read_comparisons([file])) == 1, "a point that was cut short is measured again"
    run_id = file.name.removesuffix("-comparisons.jsonl")
    assert "3 ok" in run_gate(tmp_path, *words, "--resume", run_id)
    assert len(started) == 20 + 2 * 2 * 6


def test_time_limit_of_smoke_leaves_points_out(sides, tmp_path):
    """Preset smoke has one round a point, and stops at the limit, too."""
    sides(1.0, n_points=3)
    words = ["--baseline", "main", "--case", "fake", "--preset", "smoke"]
    said = run_gate(tmp_path, *words, "--time-limit", 0, exits=(Code.INCONCLUSIVE, Code.NOTHING))
    assert "not measured: 3 of 3 points" in said
    assert "3 pairs in 3 rounds\n" in said, "no time is left"
    said = run_gate(tmp_path, *words, "--time-limit", 60)
    assert "3 ok" in said
    (pattern,) = re.findall(r"^\* records: (.*)$", said, re.MULTILINE)
    assert len(list(Path("/").glob(pattern.lstrip("/")))) == 3
    assert "3 pairs in 3 rounds: about 18 s\n" in said
    assert "3 pairs in 3 rounds: about 6 s, by the time limit\n" in run_gate(tmp_path, *words, "--time-limit", 0.1)


def test_stopped_gate_reports_finished_points(sides, tmp_path):
    """A signal ends the gate with the judgements of its points so far."""
    started = []

    def on_start():
        started.append(None)
        if len(started) == 20:
            raise Stopped(signal.SIGTERM)

    sides(1.0, n_points=3, on_start=on_start)
    words = ["--baseline", "main", "--case", "fake", "--no-calibrate", "--junit", tmp_path / "out.xml"]
    said = run_gate(tmp_path, *words, exits=128 + signal.SIGTERM)
    assert "1 ok" in said
    assert "left out: stopped by SIGTERM" in said
    assert "1 inconclusive" in said, "of a few rounds"
    assert "left out: not measured: 1 of 3 points (fake[" in said
    assert ElementTree.parse(tmp_path / "out.xml").getroot().get("skipped") == "3"


def test_stopped_gate_reports_rounds_of_a_batch(sides, monkeypatch, tmp_path):
    """A signal between two rounds that are set up at once keeps those that were timed."""
    time, timed = Round.time, []

    def time_two(self):
        if len(timed) == 2:
            raise Stopped(signal.SIGTERM)
        time(self)
        timed.append(self)

    monkeypatch.setattr(Round, "time", time_two)
    sides(1.0, n_points=1)
    words = ["--baseline", "main", "--case", "fake", "--no-calibrate", "--at-once", 4]
    said = run_gate(tmp_path, *words, exits=128 + signal.SIGTERM)
    assert "2 rounds" in said
    assert "left out: stopped by SIGTERM" in said
    assert "not measured" not in said
    assert saved().startswith("no record was saved, as no point has all its rounds")


@pytest.mark.parametrize(("text", "share"), [("5%", 0.05), ("0.05", 0.05), ("2.5%", 0.025)])
def test_threshold_is_a_percentage_or_a_share(text, share):
    """A threshold is a percentage or a fraction."""
    assert gate.parse_threshold(text) == pytest.approx(share)


def test_annotation_escapes_what_github_reads():
    """Annotations escape percent signs and line breaks."""
    report = Report(baseline="", threshold=0.03, problems=[("broken", "100 %\nwrong")])
    assert report.annotations() == ["::error title=bench gate%3A broken::100 %25%0Awrong"]


def test_pairs_with_the_same_caveats_share_a_line():
    """A gate of many points is read by people."""
    warm_ups = {"a": {"settled": False, "cap_s": 0.1}, "b": {}, "c": {"settled": False, "cap_s": 20.0}}
    times = [1.0, 2.0]
    pairs = [replace(pair_of(times, times, warm_up=warm_up), name=name) for name, warm_up in warm_ups.items()]
    (line,) = caveat_lines(pairs)
    assert line.startswith("unreliable times: 2 points, such as a: side A: times did not stabilise in 0.1 s")
    assert "; side B: times did not stabilise" in line
