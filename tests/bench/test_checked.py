"""Checks that README and docs claim match the records."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bench.core.archive import ARCHIVE, glob_paths
from bench.core.record import RESULTS, Record, read_all
from bench.workloads.cases import CASES
from bench.workloads.setups.iterations import NO_TWIN
from tests.bench.checked import Declared, declared

README = Path(__file__).parents[2] / "README.md"
SAME_STATE = "NumPy, # environments, # steps from the same state"


@pytest.fixture(scope="module")
def table() -> dict[str, Declared]:
    return declared()


@pytest.fixture(scope="module")
def evidence() -> list[Record]:
    """Return the repository's valid records: sweeps, peers and sets."""
    archived = [path for path in glob_paths(str(RESULTS / ARCHIVE / "*")) if path.name not in ("comparisons", "static")]
    files = [RESULTS, *archived]
    return [record for record in read_all(files, skipped_lines=[]) if record.is_evidence]


def test_each_case_has_its_oracle(table):
    """The page has a reference for every case and peer case."""
    assert set(table) == {*CASES, "peer", "peer_learn", "peer_solution", "peer_determinism"}
    assert all(row.words for row in table.values())


def test_records_have_the_oracles_of_their_case(table, evidence):
    """Records have the references that the page names.

    Of the processes of a point only the first one compares a run after the timing.
    """

    def point(record: Record) -> tuple[str, ...]:
        return record.run_id, record.case, json.dumps(dict(record.point), sort_keys=True)

    compared = {point(each) for each in evidence if each.correctness.after.oracle != NO_TWIN}
    for record in evidence:
        checks, row = record.correctness, table[record.case]
        if checks.after.oracle == NO_TWIN:
            assert point(record) in compared, (record.id, checks)
        elif checks.before.oracle:
            assert row.holds(checks.before.oracle, checks.after.oracle), (record.id, checks)
        else:
            assert row.names(checks.oracle), (record.id, checks.oracle)


def test_no_oracle_is_named_that_records_do_not_have(table, evidence):
    """The page names only references that records have."""
    seen = {(each.case, table[each.case].names(str(each.correctness and each.correctness.oracle))) for each in evidence}
    of_steps = {case for case, row in table.items() if SAME_STATE in row.words}
    recorded = {each.case for each in evidence}
    named = {(case, words) for case, row in table.items() for words in row.words if case in recorded}
    assert named == {each for each in seen if each[1]}
    assert len(of_steps) > 1


def test_readme_says_no_more(table):
    """README's list of checks matches the page.

    It names the cases compared with NumPy, and those unchecked before timing.
    """
    (said,) = re.findall(
        r"^\* \*\*No figure without its check.*?(?=^\* )", README.read_text(), re.DOTALL | re.MULTILINE
    )
    steps, rest = said.split("every other case", 1)
    before, _ = rest.split("after it", 1)
    names = re.compile(r"`(\w+)`")
    assert set(names.findall(steps)) == {case for case, row in table.items() if row.words == (SAME_STATE,)}
    assert set(names.findall(before)) == {case for case, row in table.items() if row.may_lack_before}
    assert all(table[case].before == "the same" for case in names.findall(steps))
