"""Selection, grouping and comparison of records for tables and charts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..core.errors import ShowError
from ..core.machine import kind
from ..core.point import HOST, ORACLE, PLAIN, PLAIN_CASES, PLAIN_ENVS, Figure
from ..core.record import ALONE, Record, merged, oldest_first
from ..core.stats import SpreadKind
from .labels import BACKEND_NAME, ENV_NAME

if TYPE_CHECKING:
    import pandas as pd


def derived(records: Iterable[Record], **columns: Callable[[Record], Any]) -> pd.DataFrame:
    """Return a frame of records with a column for each function."""
    import pandas as pd  # noqa: PLC0415  (claims and gates need none)

    rows = list(records)
    values = {name: pd.Series(map(value, rows), dtype="object") for name, value in columns.items()}
    return pd.DataFrame({"record": pd.Series(rows, dtype="object"), **values})


def latest(records: Iterable[Record]) -> list[Record]:
    """Return the newest record of each point, in its case's newest version."""
    of_record = {"case": lambda record: record.case, "version": lambda record: record.case_version}
    frame = derived(oldest_first(records), **of_record, point=axes_except)
    last = frame.groupby(["case", "point"], sort=False).last().reset_index()
    newest = last.groupby("case")["version"].transform("max")
    return list(last["record"][last["version"] == newest])


def evidence_of(records: Iterable[Record], command: str) -> list[Record]:
    """Return the evidence among records; raises ShowError if empty."""
    found = [record for record in records if record.is_evidence]
    if not found:
        raise ShowError(f"{command}: no record is measured and correct; run `python -m bench run` first")
    return found


def measured_alone(records: Iterable[Record]) -> list[Record]:
    """Return records measured alone, and those of peers and processes; see `merged`."""
    kept = ("peer", "peer_solution", "time_to_solution")
    return merged(record for record in records if record.case in kept or record.taken == ALONE)


def by_machine(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Group records by kind of machine, the one with most records first."""
    groups = derived(records, machine=lambda record: kind(record.machine)).groupby("machine", sort=False)["record"]
    return {machine: list(group) for machine, group in sorted(groups, key=lambda named: -len(named[1]))}


def grouped(records: Iterable[Record], *axes: str) -> dict[tuple[Any, ...], list[Record]]:
    """Group records by sorted axis values; environments in usual order."""
    groups = derived(records, key=by(*axes)).groupby("key", sort=False)["record"]
    order = list(ENV_NAME)

    def place(named: tuple[tuple[Any, ...], pd.Series]) -> tuple[Any, ...]:
        # Values other than text come last: an axis that some points lack, "", is a number on others
        return tuple(
            (order.index(part) if part in order else len(order), not isinstance(part, str), part) for part in named[0]
        )

    return {key: list(group) for key, group in sorted(groups, key=place)}


def by(*axes: str) -> Callable[[Record], tuple[Any, ...]]:
    """Return a key function of records for sorting or grouping, by axes."""
    return lambda record: tuple(record.point.get(axis, "") for axis in axes)


def env_order(record: Record) -> int:
    """Return the index of a record's environment in `ENV_NAME`; others come last."""
    order, env = list(ENV_NAME), record.point.get("env")
    return order.index(str(env)) if env in order else len(order)


def point_order(axes: Sequence[str]) -> Callable[[Record], Any]:
    """Return a sort key for rows: environments, backends, then sizes."""
    order = [*ENV_NAME, *BACKEND_NAME]

    def place(value: Any) -> tuple[float, str]:
        if isinstance(value, int | float):
            return value, ""
        return (order.index(value) if value in order else len(order)), str(value)

    return lambda record: [place(record.point.get(axis, -1)) for axis in (*axes, "backend")]


def plain(records: Iterable[Record]) -> list[Record]:
    """Return records without exact builds."""
    return [record for record in records if not record.point.get("exact")]


def first_metric(record: Record) -> Figure | None:
    """Return the first metric: the rate of the first work."""
    return record.figure(next(iter(record.metrics or {}), ""))


def rate_of(record: Record, name: str) -> float:
    """Return a metric's value by name; 0 if missing."""
    found = record.figure(name)
    return found.value if found else 0.0


def derived_metric(value: float, low: float, high: float, kind: SpreadKind | None) -> Figure:
    """Return a metric derived from others, with its spread."""
    return Figure(value=value, unit="", direction="higher", low=low, high=high, kind=kind)


def axes_except(record: Record, *names: str) -> tuple[tuple[str, Any], ...]:
    """Return a point's sorted axes and values, except some axes."""
    return tuple(sorted((axis, value) for axis, value in record.point.items() if axis not in names))


def size(record: Record, but: str = "backend") -> tuple[Any, ...]:
    """Return the run, the case and all axes but one."""
    return (record.run_id, record.case, *axes_except(record, but))


def baselines(records: Iterable[Record], axis: str, value: Any) -> dict[tuple[Any, ...], Record]:
    """Return baseline records by the key that other records share with them."""
    return {size(record, axis): record for record in records if record.point[axis] == value}


def best_on_cpu(records: Iterable[Record]) -> dict[tuple[Any, ...], Record]:
    """Return the fastest CPU code per run and work, except the reference.

    Peers count if they do the same work. Work has no best code unless vectorised NumPy or C++ was measured; none has
    one unless vectorised NumPy was measured for some work, or C++ for an environment without NumPy code.

    Args:
        records: Records of one case, and of peers.
    """

    def is_code_on_cpu(record: Record) -> bool:
        point = record.point
        is_code = record.threads is not None and point.get("backend") != ORACLE and not point.get("exact")
        return is_code and bool(point.get("work", "simulate") == "simulate")

    codes = list(filter(is_code_on_cpu, records))
    if not any(record.point.get("backend") == required_code(record) for record in codes):
        return {}
    return {
        work: max(each, key=lambda record: rate_of(record, "agent_steps_per_s"))
        for work, each in derived(codes, work=work_of).groupby("work", sort=False)["record"]
        if any(record.point.get("backend") in (HOST, PLAIN) for record in each)
    }


def required_code(record: Record) -> str:
    """Return the backend that the best CPU code must be compared with."""
    env = str(record.point.get("env", ""))
    has_cpp_alone = record.case in PLAIN_CASES and env.isidentifier() and env not in PLAIN_ENVS
    return HOST if has_cpp_alone else PLAIN


def work_of(record: Record) -> tuple[Any, ...]:
    """Return the run and the axes that do not name the code."""
    return (record.run_id, *axes_except(record, "backend", "exact", "peer", "variant", "work"))


def joules(record: Record) -> Figure | None:
    """Return the joules per million env steps; None if unread."""
    rate, telemetry = record.figure("env_steps_per_s"), record.telemetry or {}
    if rate is None or telemetry.get("energy_j") is None:
        return None
    watts = 1e6 * telemetry["energy_j"] / telemetry["duration_s"]
    return derived_metric(watts / rate.value, watts / rate.high, watts / rate.low, rate.kind)
