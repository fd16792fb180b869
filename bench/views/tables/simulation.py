"""Tables of steps, kernels, starts and memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table

from bench.record import Metric, Record
from bench.views.tables.cells import (
    axes_of,
    backend_name,
    device,
    half_width,
    new_table,
    number,
    ratio,
    three_digits,
    value_of,
)


def env_steps(records: Sequence[Record]) -> Table:
    """Return throughput over the NumPy baseline of the same environment and size."""
    baseline = {
        axes_of(record, "env", "n_envs", "n_agents"): record for record in records if record.point["backend"] == "cpu"
    }
    threads = {record.threads for record in baseline.values()}
    name = f"x NumPy\n({device(next(iter(threads)))})" if len(threads) == 1 else "x NumPy"
    columns = [
        "env",
        "agents",
        "envs",
        "backend",
        "env-steps/s",
        "+-",
        "agent-steps/s",
        "ns/env-step",
        name,
        "max error",
    ]
    table = new_table("env_step: sample + step + restart; graph replays on a GPU, eager calls on a CPU", columns)
    for record in sorted(records, key=lambda record: axes_of(record, "env", "n_agents", "n_envs", "exact")):
        point, metrics = record.point, record.metrics or {}
        table.add_row(
            str(point["env"]),
            f"{point['n_agents']:,}",
            f"{point['n_envs']:,}",
            backend_name(record),
            number(metrics["env_steps_per_s"].value),
            half_width(metrics["env_steps_per_s"]),
            number(metrics["agent_steps_per_s"].value),
            three_digits(metrics["ns_per_env_step"].value),
            ratio(record, baseline.get(axes_of(record, "env", "n_envs", "n_agents")), "env_steps_per_s"),
            f"{record.correctness.max_error:.0e}" if record.correctness else "",
        )
    return table


def env_steps_in_documents(records: Sequence[Record]) -> Table:
    """Return throughput with its interval, the share of the roofline and, where it was read, energy."""
    energy = ["J per million env-steps"] if any((record.telemetry or {}).get("energy_j") for record in records) else []
    columns = ["environment", "agents", "environments", "backend", "env-steps/s (95 % interval)", "agent-steps/s"]
    table = new_table("env_step: sample + step + restart", [*columns, *energy, "share of the roofline", "set-up, s"])
    for record in sorted(records, key=lambda record: axes_of(record, "env", "n_agents", "n_envs", "exact", "backend")):
        metrics, point = record.metrics or {}, record.point
        steps = metrics["env_steps_per_s"]
        table.add_row(
            str(point["env"]),
            f"{point['n_agents']:,}",
            f"{point['n_envs']:,}",
            backend_name(record),
            f"{number(steps.value)} ({number(steps.low)} to {number(steps.high)})",
            number(metrics["agent_steps_per_s"].value),
            *([_joules(record, steps)] if energy else []),
            "" if record.roofline is None else f"{record.roofline:.1%}",
            f"{record.notes['setup_s']:.2g}" if "setup_s" in record.notes else "",
        )
    return table


def _joules(record: Record, steps: Metric) -> str:
    telemetry = record.telemetry or {}
    if telemetry.get("energy_j") is None:
        return ""
    return f"{telemetry['energy_j'] / (steps.value * telemetry['duration_s'] / 1e6):.3g}"


def samplers(records: Sequence[Record]) -> Table:
    """Return samples a second over `torch.multinomial` on the same device."""
    axes = ("n_agents", "n_envs", "n_actions")
    baseline = {
        (record.threads is None, axes_of(record, *axes)): record
        for record in records
        if record.point["implementation"] == "torch.multinomial"
    }
    columns = ["agents", "envs", "actions", "implementation", "backend", "samples/s", "+-", "ns/sample"]
    table = new_table("sampler: one action for every agent", [*columns, "x torch.multinomial\n(same device)"])
    for record in sorted(records, key=lambda record: axes_of(record, *axes)):
        point, metrics = record.point, record.metrics or {}
        table.add_row(
            *(f"{point[axis]:,}" for axis in axes),
            str(point["implementation"]),
            backend_name(record),
            number(metrics["samples_per_s"].value),
            half_width(metrics["samples_per_s"]),
            three_digits(metrics["ns_per_sample"].value),
            ratio(record, baseline.get((record.threads is None, axes_of(record, *axes))), "samples_per_s"),
        )
    return table


def neighbor_searches(records: Sequence[Record]) -> Table:
    """Return the search in a grid of cells over that of all pairs."""
    axes = ("env", "backend", "n_envs", "n_agents")
    baseline = {axes_of(r, *axes): r for r in records if r.point["neighbor_search"] == "all_pairs"}
    columns = ["env", "agents", "envs", "backend", "search", "env-steps/s", "+-", "agent-steps/s", "x all pairs"]
    table = new_table("neighbor_search: env_step, neighbours from cells or from all pairs", columns)
    for record in sorted(records, key=lambda record: axes_of(record, "n_agents", "backend", "neighbor_search")):
        point, metrics = record.point, record.metrics or {}
        table.add_row(
            str(point["env"]),
            f"{point['n_agents']:,}",
            f"{point['n_envs']:,}",
            backend_name(record),
            str(point["neighbor_search"]),
            number(metrics["env_steps_per_s"].value),
            half_width(metrics["env_steps_per_s"]),
            number(metrics["agent_steps_per_s"].value),
            ratio(record, baseline.get(axes_of(record, *axes)), "env_steps_per_s"),
        )
    return table


SINGULAR = {"indice": "index"}
"""Where a name of work without its s is none."""


def repeated(title: str, baseline: str, axis: str, value: str) -> Callable[[Sequence[Record]], Table]:
    """Return what makes the table of a case with a rate: its axes, and each point over a baseline of equal axes.

    Args:
        title: Of the table.
        baseline: Its name in the header.
        axis: By which the baseline is told: ``backend``, whatever the device; ``implementation``, whatever the backend
            on its device; or ``mode``.
        value: Of the baseline on that axis.
    """
    apart = {"backend": {"backend", "mode"}, "implementation": {"backend", "implementation"}, "mode": {"mode"}}[axis]

    def make(records: Sequence[Record]) -> Table:
        rate = next(iter(records[0].metrics or {}))
        kind = rate.removesuffix("_per_s")
        unit = kind.removesuffix("s")
        axes = list(dict.fromkeys(name for record in records for name in record.point))
        shown = [name for name in axes if name != "backend"]

        def key(record: Record) -> tuple[Any, ...]:
            device = axis == "backend" or record.threads is None
            return (device, *(record.point.get(name) for name in axes if name not in apart))

        bases = {key(record): record for record in records if record.point[axis] == value}
        table = new_table(
            title, [*shown, "backend", f"{kind}/s", "+-", f"ns/{SINGULAR.get(unit, unit)}", f"x {baseline}"]
        )
        for record in sorted(records, key=lambda record: [_order(record.point.get(name)) for name in shown]):
            metrics = record.metrics or {}
            table.add_row(
                *(value_of(record.point.get(name)) for name in shown),
                backend_name(record),
                number(metrics[rate].value),
                half_width(metrics[rate]),
                three_digits(metrics[f"ns_per_{unit}"].value),
                ratio(record, bases.get(key(record)), rate),
            )
        return table

    return make


def _order(value: Any) -> tuple[float, str]:
    """Let numbers go by their size, and words after them."""
    return (value, "") if isinstance(value, int | float) else (float("inf"), str(value))


def starts(records: Sequence[Record]) -> Table:
    """Return the seconds of each part of a start, medians over processes."""
    axes = ("until", "env", "n_agents", "n_envs", "cache")
    table = new_table("startup: in a fresh process", [*axes, "backend", "part", "s", "+-"])
    for record in sorted(records, key=lambda record: axes_of(record, *axes)):
        of_point = [*(value_of(record.point[axis]) for axis in axes), backend_name(record)]
        for name, seconds in (record.metrics or {}).items():
            table.add_row(*of_point, name.removesuffix("_s"), f"{seconds.value:.3g}", half_width(seconds))
            of_point = [""] * len(of_point)
    return table


def memories(records: Sequence[Record]) -> Table:
    """Return the bytes of an environment and of its agents, and how many environments fit."""
    axes = ("env", "n_agents", "backend")
    columns = ("bytes/env", "bytes/agent", "fixed bytes", "free bytes", "envs that fit", "started and stepped")
    table = new_table("memory: of an environment's arrays", [*axes, *columns])
    for record in sorted(records, key=lambda record: axes_of(record, *axes)):
        metrics, notes = record.metrics or {}, record.notes
        table.add_row(
            *(value_of(record.point[axis]) for axis in axes),
            f"{metrics['bytes_per_env'].value:,.0f}",
            three_digits(metrics["bytes_per_agent"].value),
            f"{notes['fixed_bytes']:,}",
            number(notes["free_bytes"]),
            number(metrics["largest_n_envs"].value),
            value_of(notes.get("stepped_envs")),
        )
    return table
