"""The page of WarpDrive's tests is complete and correct."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import tests.compat.conftest  # noqa: F401  (its folder's tests import WarpDrive's module paths)
from tests.support import BACKENDS_HERE, OTHER_BACKENDS, is_simulated

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference-tests.md"
HERE = {parameter.values[0] for parameter in BACKENDS_HERE}
WORDS = {
    "all": HERE,
    "others": {parameter.values[0] for parameter in OTHER_BACKENDS},
    "fast": {name for name in HERE if not is_simulated(name)},
}
"""The page's words for several backends on this machine."""


@dataclass(frozen=True)
class Row:
    """One method of WarpDrive's, in each of its copies."""

    section: str
    method: str
    copies: tuple[str, ...]
    ours: str
    more: str


def read_rows() -> list[Row]:
    """Read the tables of the page."""
    rows, section = [], ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        if line.startswith("| `"):
            method, copies, _, ours, more = (cell.strip() for cell in line.strip("|").split("|"))
            rows.append(Row(section, method.strip("`"), tuple(copies.split()), ours, more))
    return rows


NAMED = sorted(
    {named for row in read_rows() for named in re.findall(r"`(tests/[\w/]+\.py)::(\w+)` \(([\w, ]+)\)", row.ours)}
)
"""File, test and backends."""


def count(section: str, copy: str) -> int:
    """Return a section's number of methods in one copy.

    Copies are PyCUDA, Numba and several blocks.
    """
    return sum(row.copies.count(copy) for row in read_rows() if row.section == section)


def test_page_has_every_method_of_the_reference():
    """The page lists all 45 methods of WarpDrive's tests."""
    rows = read_rows()
    assert len({row.method for row in rows}) == len(rows) == 29
    assert [count("Core", copy) for copy in "PNM"] == [8, 11, 5]
    assert [count("Environments", copy) for copy in "PNM"] == [5, 12, 1]
    assert [count("Training", copy) for copy in "PNM"] == [3, 0, 0]
    assert sum(len(row.copies) for row in rows) == 45


def test_page_names_a_test_for_every_method():
    """The page names tests and their backends for each method."""
    for row in read_rows():
        for line in row.ours.split("<br>"):
            assert re.fullmatch(r"`[\w/.]+::\w+` \([\w, ]+\)", line), f"{row.method}: {line}"
        assert row.more, row.method


@pytest.mark.parametrize(("file", "name", "backends"), NAMED, ids=[f"{file}::{name}" for file, name, _ in NAMED])
def test_named_test_runs_on_the_backends_named(file, name, backends):
    """Each test on the page exists and runs on its backends."""
    assert (ROOT / file).name.startswith("test_")
    assert name.startswith("test_")
    test = getattr(importlib.import_module(file.removesuffix(".py").replace("/", ".")), name)
    if found := backends_of(test):
        assert found == WORDS.get(backends, set(backends.split(", ")))
    else:
        assert backends in ("cpu", "compiler"), "it has no backend as a parameter"


def backends_of(test: Callable[..., None]) -> set[str]:
    """Return the values of a test's parameter ``backend``."""
    found = set()
    for mark in getattr(test, "pytestmark", []):
        names = mark.args[0] if mark.name == "parametrize" else ()
        names = names.split(",") if isinstance(names, str) else names
        if "backend" in names:
            for each in mark.args[1]:
                values = each.values if isinstance(each, PARAMETER) else each if len(names) > 1 else (each,)
                found.add(values[names.index("backend")])
    return found


PARAMETER = type(pytest.param())
"""Type of `pytest.param`'s result."""
