"""Planted changes: that they fit the code as it is, and that a copy has one at a time."""

from __future__ import annotations

import pytest

from bench import planted
from bench.errors import CompareError
from bench.machine import ROOT
from bench.planted import SAME, SLOWER, Change, Copy

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
