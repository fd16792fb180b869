"""Tables of training, on one GPU and several, of learning, and of other people's software."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from bench.anchors import SOURCES, anchor
from bench.cases.scaling_case import efficiencies
from bench.record import Record
from bench.stats import median
from bench.views.tables.cells import (
    axes_of,
    backend_name,
    device,
    half_width,
    new_table,
    number,
    three_digits,
    value_of,
)


def training(records: Sequence[Record]) -> Table:
    """Return iterations of training over what others reach on the same point on an H200."""
    columns = [
        "env",
        "agents",
        "envs",
        "steps",
        "algorithm",
        "network",
        "backend",
        "env-steps/s",
        "+-",
        "agent-steps/s",
    ]
    table = new_table("train: rollout + update", [*columns, "of it rollout", "x reference\n(on an H200)", "reference"])
    for record in sorted(records, key=lambda record: axes_of(record, "env", "n_agents", "n_envs", "algorithm")):
        point, metrics = record.point, record.metrics or {}
        other = anchor(point)
        rate, notes = metrics["env_steps_per_s"], record.notes
        fused = "" if point.get("fused", True) else ", not fused"
        table.add_row(
            str(point["env"]),
            f"{point['n_agents']:,}",
            f"{point['n_envs']:,}",
            str(point["n_steps"]),
            str(point["algorithm"]),
            str(point["network"]),
            f"{backend_name(record)}, {point['precision']}, {point['mode']}{fused}",
            number(rate.value),
            half_width(rate),
            number(metrics["agent_steps_per_s"].value),
            f"{notes['rollout_s'] / (notes['rollout_s'] + notes['update_s']):.0%}",
            three_digits(rate.value / other.env_steps_per_s) if other and other.env_steps_per_s else "",
            "" if other is None else other.by if other.env_steps_per_s else f"{other.by} does not run",
        )
    table.caption = "\n".join(f"{name}: {source}" for name, source in SOURCES.items())
    return table


def scaling(records: Sequence[Record]) -> Table:
    """Return iterations of training in several ranks, and what share of as many times one rank's rate they reach."""
    axes = ("env", "n_agents", "n_envs", "n_steps", "algorithm", "network", "precision")
    columns = ["env", "agents", "envs a rank", "steps", "algorithm", "network", "precision", "backend", "ranks"]
    columns += ["env-steps/s", "+-", "of it rollout", "efficiency"]
    table = new_table("scaling: rollout + update of all ranks", columns)
    efficiency = efficiencies(records)
    for record in sorted(records, key=lambda record: axes_of(record, *axes, "backend", "n_ranks")):
        rate, notes = (record.metrics or {})["env_steps_per_s"], record.notes
        table.add_row(
            *(value_of(record.point[axis]) for axis in axes),
            backend_name(record),
            value_of(record.point["n_ranks"]),
            number(rate.value),
            half_width(rate),
            f"{notes['rollout_s'] / (notes['rollout_s'] + notes['update_s']):.0%}",
            f"{efficiency[id(record)]:.1%}" if id(record) in efficiency else "",
        )
    return table


def peers(records: Sequence[Record]) -> Table:
    """Return other people's software, and how many times as fast ours is on the same work, measured in turns."""
    columns = ["peer", "version", "work", "env", "agents", "envs", "on", "counts as a step", "env-steps/s", "+-"]
    columns += ["ours", "ours, env-steps/s", "ours / peer", "95 % interval"]
    table = new_table("peer: other people's software in turns with ours", columns)
    for record in sorted(records, key=lambda record: axes_of(record, "work", "env", "n_agents", "n_envs", "peer")):
        point, notes, metrics = record.point, record.notes, record.metrics or {}
        rate, times = metrics["env_steps_per_s"], metrics["ours_over_peer"]
        table.add_row(
            str(point["peer"]),
            notes["version"] or "unnamed",
            " ".join(str(point[axis]) for axis in ("work", "algorithm", "precision") if axis in point),
            str(point["env"]),
            f"{point['n_agents']:,}",
            f"{point['n_envs']:,}" + (f" x {point['n_steps']}" if "n_steps" in point else ""),
            device(record.threads),
            notes["counts"],
            number(rate.value),
            half_width(rate),
            str(notes["ours"]["point"]["backend"]),
            number(metrics["ours_env_steps_per_s"].value),
            three_digits(times.value),
            f"{three_digits(times.low)} to {three_digits(times.high)}",
        )
    return table


def learning(records: Sequence[Record]) -> Table:
    """Return the time and the steps to the threshold, the median over seeds, and the returns before and after."""
    columns = ["env", "algorithm", "learner", "envs", "backend", "threshold", "reached", "env-steps to it", "s to it"]
    table = new_table("learn: training to a threshold; medians over seeds", [*columns, "return before", "after"])
    axes = ("env", "algorithm", "learner", "n_envs", "backend", "threshold", "precision")
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in sorted(records, key=lambda record: axes_of(record, *axes)):
        groups.setdefault(axes_of(record, *axes), []).append(record)
    for (env, algorithm, learner, n_envs, _, threshold, precision), seeds in groups.items():
        how = f", {precision}" if precision else ""
        found = {
            name: [record.metrics[name].value for record in seeds if record.metrics and name in record.metrics]
            for name in ("env_steps_to_threshold", "seconds_to_threshold", "return_before", "return_after")
        }
        reached = found["seconds_to_threshold"]
        # Half of the seeds or fewer have no median: that of the others would leave out the worst.
        has_median = 2 * len(reached) > len(seeds)
        table.add_row(
            *(str(env), str(algorithm), str(learner), f"{n_envs:,}", backend_name(seeds[0]) + how, f"{threshold:g}"),
            f"{len(reached)} of {len(seeds)}",
            number(_median_of_all(found["env_steps_to_threshold"], len(seeds))) if has_median else "",
            f"{_median_of_all(reached, len(seeds)):.3g}" if has_median else "",
            f"{median(found['return_before']):.4g}",
            f"{median(found['return_after']):.4g}",
        )
    return table


def _median_of_all(reached: Sequence[float], n_seeds: int) -> float:
    """Return the median over all seeds, of which those that did not reach it took longer than those that did."""
    return median([*reached, *[max(reached)] * (n_seeds - len(reached))])
