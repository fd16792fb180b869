"""The charts of a machine's records."""

from __future__ import annotations

from collections.abc import Iterable

from ...core.record import Record
from .. import across, peers
from ..charts import Chart
from ..records import by_machine, measured_alone
from .cases import VIEWS


def charts(records: Iterable[Record], past: Iterable[Record] = ()) -> list[Chart]:
    """Return every chart that has evidence in the records of one machine.

    Args:
        records: Records to show.
        past: Other records, of any machine, for the history of this one.
    """
    evidence = measured_alone(record for record in records if record.is_evidence)
    machines = set(by_machine(evidence))
    before = [each for name, group in by_machine(past).items() if name in machines for each in group]
    ordered = _by_case(evidence)
    with_past = _by_case([*measured_alone(each for each in before if each.is_evidence), *evidence])
    declared = {name: view.charts for name, view in VIEWS.items()} | {"peer": peers.CHARTS}
    made = [
        make([record for record in evidence if record.case == name])
        for name, of_case in declared.items()
        for make in of_case
    ]
    made += [make(with_past if make is across.history else ordered) for make in across.CHARTS]
    return [chart for each in made if (chart := each.with_points()).panels]


def _by_case(records: Iterable[Record]) -> list[Record]:
    order = {name: place for place, name in enumerate(VIEWS)}
    return sorted(records, key=lambda record: order.get(record.case, len(order)))
