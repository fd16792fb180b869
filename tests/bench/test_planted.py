"""Planted changes: that they fit the code as it is, and that a copy has one at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.core.errors import CompareError
from bench.core.machine import ROOT
from bench.core.measure import Measurement, Metric
from bench.core.point import Check
from bench.core.record import Context, Record, StartTime
from bench.judge import planted
from bench.judge.planted import SAME, SLOWER, Change, Copy
from bench.static import selftest as static
from bench.static import verdict
from bench.static.records import MACHINE_CODE
from tests.bench.builders import bench

CHANGES = {"slower": planted.read(SLOWER), "the same": planted.read(SAME)}


def test_changes_fit_the_code():
    """Each finds its place in its file as it is now, and leaves another text."""
    for change in [each for some in CHANGES.values() for each in some]:
        before = (ROOT / change.file).read_text()
        assert change.applied(before) != before, change.name


def test_changes_are_as_many_as_are_asked_for():
    """There are 60 of the first kind and 40 of the second, each with a name of its own."""
    assert {kind: len(some) for kind, some in CHANGES.items()} == {"slower": 60, "the same": 40}
    names = [change.name for some in CHANGES.values() for change in some]
    assert len(set(names)) == len(names)


def test_slower_changes_can_be_measured():
    """Each names a point of the default preset, on a GPU or on the host."""
    for change in CHANGES["slower"]:
        job = change.job("default")
        assert job.case.name == change.case, change.name
        assert job.point["backend"] == change.where.get("backend", "pycuda"), change.name


def test_copy_has_a_change_and_then_not_any_more():
    """What is changed in a copy is what it was afterwards, and our code never changes."""
    change = CHANGES["the same"][0]
    before = (ROOT / change.file).read_text()
    with Copy.of() as copy:
        with copy.changed(change):
            assert (copy.root / change.file).read_text() == change.applied(before)
            assert (ROOT / change.file).read_text() == before
        assert (copy.root / change.file).read_text() == before
    assert not copy.root.exists()


def test_changes_that_do_not_fit_are_refused(tmp_path):
    """A text that is not there, or is there twice, and a point that no case has, are errors that name the change."""
    change = Change(name="gone", file="a.cu", old="x", new="y", case="step", where={"env": "chess"})
    with pytest.raises(CompareError, match=r"planted change 'gone': a.cu must have the old text once \(got 2\)"):
        change.applied("x = x")
    with pytest.raises(CompareError, match="case step must have such a point of preset smoke"):
        change.job("smoke")
    with pytest.raises(CompareError, match="need a checkout"), Copy.of(tmp_path):
        pass


# ------------------------------------------------------------------ under the static gate

CONTEXT = Context("a run", "default", {}, {}, "")


def of_kernel(kernel: str, code: str, instructions: float) -> Record:
    """Return the record of a kernel's machine code, of which all but instructions stays."""
    point = {"program": "cartpole", "part": "step", "kernel": kernel, "backend": "pycuda", "arch": "sm_90"}
    names = {name for metrics in verdict.COSTS.values() for name in metrics} | {"registers"}
    metrics = {name: Metric.exactly(instructions if "instructions" in name else 1, "1", "lower") for name in names}
    same = {"blocks": 1, "threads": 1, "launches": 1, "compiler": "a compiler", "access": "", "arrays": {}}
    check = Check(True, 0.0, "by hand")
    seen = Measurement(before=check, after=check, metrics=metrics, notes={**same, "code": code, "shape": code})
    return Record.of(MACHINE_CODE, point, CONTEXT, started=StartTime(), seen=seen)


@pytest.fixture
def looked_at(monkeypatch):
    """Let a kernel have as many instructions as its file has letters but comments; returns what was looked at."""
    looks = []

    def by_length(name):
        def take(wanted, context, root):
            looks.append((name, *wanted.envs))
            text = (root / "envs/classic_control/cartpole/kernel.cu").read_text()
            code = "".join(line for line in text.splitlines() if not line.startswith("//"))
            return [of_kernel(name, code, len(code))]

        return take

    for name in ("machine_code", "counted"):
        taker = by_length(name)
        monkeypatch.setattr(static, name, taker)
    monkeypatch.setattr(static, "NAMES", {})
    monkeypatch.setattr(static, "WHERE", {})
    return looks


LONGER = Change(
    name="longer", file="envs/classic_control/cartpole/kernel.cu", old="theta", new="t" * 100, everywhere=True
)
REMARK = CHANGES["the same"][0]


def test_static_gate_flags_changes_and_is_silent_at_others(looked_at):
    """What grows is flagged by machine code alone; a comment is looked at by both, and so is a build of the same."""
    found = static.gate_changes([LONGER], [REMARK], 1, {}, 0.015)
    assert found.text == "1 of 1 slower changes flagged; 0 alarms in 1 changes that cost nothing and 1 rebuilds"
    assert found.holds(0.95)
    both = ("machine_code", "cartpole"), ("counted", "cartpole")
    assert looked_at == [both[0]] * 3 + [both[1]] * 2 + [both[0]] * 2, "what it is without a change is looked at once"


def test_alarms_and_what_is_missed_are_told(looked_at):
    """An alarm at what costs nothing fails, and so does a miss, unless the clock says that the change costs little."""
    assert not static.gate_changes([], [LONGER], 0, {}, 0.015).holds(0.95)
    broken = replace(LONGER, old="what is not there", everywhere=False)
    assert static.gate_changes([broken], [broken], 0, {}, 0.015).text.startswith(
        "0 of 1 slower changes flagged; 1 alarm"
    )
    missed = static.gate_changes([REMARK], [], 0, {}, 0.015)
    assert (missed.caught, missed.n_slower, missed.holds(0.95)) == (0, 1, False)
    little = planted.Cost(change=REMARK.name, point="", on="", slower=0.01, low=0.0, high=0.02, run_id="a run")
    assert static.gate_changes([REMARK], [], 0, {REMARK.name: little}, 0.015).n_slower == 0


def test_command_gates_the_changes_that_are_named(looked_at):
    """`bench selftest --static --change TEXT` keeps changes by their names, and says whether all is well."""
    said = bench("selftest", "--static", "--change", REMARK.name, "--rebuilds", 0)
    assert f"the same: {REMARK.name}: unchanged" in said
    assert "0 of 0 slower changes flagged; 0 alarms in 1 changes that cost nothing" in said
