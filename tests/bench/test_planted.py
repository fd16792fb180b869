"""Both gates separate code changes that cost time from others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from bench.core.case import Job
from bench.core.errors import CompareError
from bench.core.machine import ROOT
from bench.core.record import Context, Record
from bench.judge.gate import THRESHOLD, judge, report_on
from bench.options import Choice
from bench.process.interleaved import Pair, measure_all, sides_of
from bench.process.worker import Worker
from bench.static.programs import CORE
from bench.static.sides import selected_records
from bench.static.verdict import judge_into
from tests.bench import planted
from tests.bench.planted import SAME, SLOWER, Change, Copy
from warpdrive_min.envs import ENVS

CHANGES = {"slower": planted.read(SLOWER), "the same": planted.read(SAME)}


def test_changes_fit_the_code():
    """Each change fits its file."""
    for change in [each for some in CHANGES.values() for each in some]:
        before = (ROOT / change.file).read_text()
        assert change.applied(before) != before, change.name


def test_changes_are_as_many_as_are_asked_for():
    """The lists have 60 slower and 40 equal changes."""
    assert {kind: len(some) for kind, some in CHANGES.items()} == {"slower": 60, "the same": 40}
    names = [change.name for some in CHANGES.values() for change in some]
    assert len(set(names)) == len(names)


def test_slower_changes_can_be_measured():
    """Each slower change names a point on its backend."""
    for change in CHANGES["slower"]:
        job = change.job("default")
        assert job.case.name == change.case, change.name
        assert job.point["backend"] == change.where.get("backend", "pycuda"), change.name


def test_copy_has_a_change_and_then_not_any_more():
    """A copy is restored after its change."""
    change = CHANGES["the same"][0]
    before = (ROOT / change.file).read_text()
    with Copy.of() as copy:
        with copy.changed(change):
            assert (copy.root / change.file).read_text() == change.applied(before)
            assert (ROOT / change.file).read_text() == before
        assert (copy.root / change.file).read_text() == before
    assert not copy.root.exists()


def test_changes_that_do_not_fit_are_refused(tmp_path):
    """A change with wrong text or point raises an error."""
    change = Change(name="gone", file="a.cu", old="x", new="y", case="step", where={"env": "chess"})
    with pytest.raises(CompareError, match=r"planted change 'gone': a.cu must have the old text once \(got 2\)"):
        change.applied("x = x")
    with pytest.raises(CompareError, match="case step must have such a point of preset smoke"):
        change.job("smoke")
    with pytest.raises(CompareError, match="need a checkout"), Copy.of(tmp_path):
        pass


# ------------------------------------------------------------------ under the static gate

FLAGS = ("worse", "needs timing")
CONTEXT = Context("planted", "default", {}, {}, "")


def machine_code_of(names: Sequence[str], root: Path) -> list[Record]:
    """Compile the CUDA C of programs in a folder of code."""
    known = [name for name in names if name in (*ENVS, *CORE)]
    if not known:
        return []
    return selected_records(Choice(cases=["machine_code"], envs=known, where=["backend=pycuda"]), CONTEXT, root)


def counts_of(names: Sequence[str], root: Path) -> list[Record]:
    """Count the CPU instructions of programs in a folder of code."""
    return selected_records(Choice(cases=["instructions"], envs=names), CONTEXT, root)


def compared(before: Sequence[Record], now: Sequence[Record]) -> list[str]:
    """Return the verdicts of the static gate; none may be "broken"."""
    report = report_on("before", THRESHOLD, static=True)
    judge_into(report, before, now)
    assert "broken" not in dict(report.problems)
    return [row.verdict for row in report.rows]


@pytest.fixture(scope="module")
def static_gate():
    """Yield a function from a change to verdicts of the static gate."""
    with Copy.of() as copy:
        baselines = {}

        def verdicts(change, source):
            key = source, change.programs
            if key not in baselines:
                baselines[key] = source(change.programs, copy.root)
            with copy.changed(change):
                return compared(baselines[key], source(change.programs, copy.root))

        yield verdicts


def sources(change: Change):
    """Return the functions that reveal a change.

    They read the machine code, or count CPU instructions.
    """
    return (machine_code_of, counts_of) if change.is_of_kernels else (counts_of,)


def each(kind: str):
    """Parametrise a test with each change of a kind."""
    return pytest.mark.parametrize("change", [pytest.param(change, id=change.name) for change in CHANGES[kind]])


TOOLS = "nothing shows this change here; install what docs/static.md names"


@pytest.mark.nightly
@each("slower")
def test_static_gate_flags_a_slower_change(change, static_gate):
    """Machine code or CPU instructions reveal a slower change."""
    verdicts = []
    for source in sources(change):
        verdicts += static_gate(change, source)
        if any(verdict in FLAGS for verdict in verdicts):
            return
    if not verdicts:
        pytest.skip(TOOLS)
    pytest.fail(f"no kernel is flagged (got {Counter(verdicts)})")


@pytest.mark.nightly
@each("the same")
def test_static_gate_ignores_a_change_that_costs_nothing(change, static_gate):
    """An equally fast change is not flagged."""
    verdicts = [verdict for source in sources(change) for verdict in static_gate(change, source)]
    if not verdicts:
        pytest.skip(TOOLS)
    assert not {*verdicts} & {*FLAGS}


@pytest.mark.nightly
@pytest.mark.parametrize("name", [*ENVS, *CORE])
def test_static_gate_ignores_a_rebuild(name, tmp_path, monkeypatch):
    """Code that is compiled twice is not flagged."""
    builds = []
    for cache in ("a", "b"):
        monkeypatch.setenv("WARPDRIVE_MIN_CACHE", str(tmp_path / cache))
        with Copy.of() as copy:
            builds.append(machine_code_of([name], copy.root))
    verdicts = compared(*builds)
    if not verdicts:
        pytest.skip(TOOLS)
    assert not {*verdicts} & {*FLAGS}


# ------------------------------------------------------------------ under the timing gate


def timed(job: Job, root: Path) -> Pair:
    """Time a point on our code, interleaved with a folder's."""
    sides = sides_of("planted", job.case, (job.point, job.point), [partial(Worker.on, each) for each in (ROOT, root)])
    measured = measure_all([sides], "default")
    assert not [*measured.failed, *measured.skipped]
    return measured.pairs[0]


@pytest.mark.gpu
@pytest.mark.nightly
@each("slower")
def test_clock_finds_a_slower_change(change):
    """A slower change has a cost above 0 with 95 % confidence."""
    with Copy.of() as copy, copy.changed(change):
        assert timed(change.job("default"), copy.root).ratio.low > 1


@pytest.mark.gpu
@pytest.mark.nightly
@pytest.mark.parametrize("env", ["cartpole", "tag_continuous"])
def test_timing_gate_passes_the_same_code(env):
    """An unchanged copy is no regression."""
    change = Change(name="none", file="", old="", new="", case="env_step", where={"env": env})
    with Copy.of() as copy:
        (row,) = judge([timed(change.job("default"), copy.root)], THRESHOLD, None)
    assert row.verdict != "regression"
