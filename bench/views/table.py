"""The table at the end of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from bench.cases.scaling_case import efficiencies
from bench.record import Metric, Record
from bench.reference import SOURCES, anchor
from bench.stats import median


def show(records: Sequence[Record], console: Console) -> None:
    """Print a table for each case, with the speed-up over its baseline, which its header names."""
    for case, make in TABLES.items():
        measured = [record for record in records if record.case == case and record.is_evidence]
        if measured:
            console.print(make(measured))
    failed = [record for record in records if record.status == "failed"]
    skipped = [record for record in records if record.status == "skipped"]
    console.print(f"{len(records) - len(failed) - len(skipped)} measured, {len(failed)} failed, {len(skipped)} skipped")


def env_steps(records: Sequence[Record]) -> Table:
    """Return throughput over the NumPy baseline of the same environment and size."""
    baseline = {
        _same(record, "env", "n_envs", "n_agents"): record for record in records if record.point["backend"] == "cpu"
    }
    threads = {record.threads for record in baseline.values()}
    name = f"x NumPy\n({_threads(next(iter(threads)))})" if len(threads) == 1 else "x NumPy"
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
    table = _table("env_step: sample + step + restart; graph replays on a GPU, eager calls on a CPU", columns)
    for record in sorted(records, key=lambda record: _same(record, "env", "n_agents", "n_envs", "exact")):
        point, metrics = record.point, record.metrics or {}
        table.add_row(
            str(point["env"]),
            f"{point['n_agents']:,}",
            f"{point['n_envs']:,}",
            _backend(record),
            number(metrics["env_steps_per_s"].value),
            _half_width(metrics["env_steps_per_s"]),
            number(metrics["agent_steps_per_s"].value),
            three_digits(metrics["ns_per_env_step"].value),
            _ratio(record, baseline.get(_same(record, "env", "n_envs", "n_agents")), "env_steps_per_s"),
            f"{record.correctness.max_error:.0e}" if record.correctness else "",
        )
    return table


def samplers(records: Sequence[Record]) -> Table:
    """Return samples a second over `torch.multinomial` on the same device."""
    axes = ("n_agents", "n_envs", "n_actions")
    baseline = {
        (record.threads is None, _same(record, *axes)): record
        for record in records
        if record.point["implementation"] == "torch.multinomial"
    }
    columns = ["agents", "envs", "actions", "implementation", "backend", "samples/s", "+-", "ns/sample"]
    table = _table("sampler: one action for every agent", [*columns, "x torch.multinomial\n(same device)"])
    for record in sorted(records, key=lambda record: _same(record, *axes)):
        point, metrics = record.point, record.metrics or {}
        table.add_row(
            *(f"{point[axis]:,}" for axis in axes),
            str(point["implementation"]),
            _backend(record),
            number(metrics["samples_per_s"].value),
            _half_width(metrics["samples_per_s"]),
            three_digits(metrics["ns_per_sample"].value),
            _ratio(record, baseline.get((record.threads is None, _same(record, *axes))), "samples_per_s"),
        )
    return table


def neighbor_searches(records: Sequence[Record]) -> Table:
    """Return the search in a grid of cells over that of all pairs."""
    axes = ("env", "backend", "n_envs", "n_agents")
    baseline = {_same(r, *axes): r for r in records if r.point["neighbor_search"] == "all_pairs"}
    columns = ["env", "agents", "envs", "backend", "search", "env-steps/s", "+-", "agent-steps/s", "x all pairs"]
    table = _table("neighbor_search: env_step, neighbours from cells or from all pairs", columns)
    for record in sorted(records, key=lambda record: _same(record, "n_agents", "backend", "neighbor_search")):
        point, metrics = record.point, record.metrics or {}
        table.add_row(
            str(point["env"]),
            f"{point['n_agents']:,}",
            f"{point['n_envs']:,}",
            _backend(record),
            str(point["neighbor_search"]),
            number(metrics["env_steps_per_s"].value),
            _half_width(metrics["env_steps_per_s"]),
            number(metrics["agent_steps_per_s"].value),
            _ratio(record, baseline.get(_same(record, *axes)), "env_steps_per_s"),
        )
    return table


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
    table = _table("train: rollout + update", [*columns, "of it rollout", "x reference\n(on an H200)", "reference"])
    for record in sorted(records, key=lambda record: _same(record, "env", "n_agents", "n_envs", "algorithm")):
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
            f"{_backend(record)}, {point['precision']}, {point['mode']}{fused}",
            number(rate.value),
            _half_width(rate),
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
    table = _table("scaling: rollout + update of all ranks", columns)
    efficiency = efficiencies(records)
    for record in sorted(records, key=lambda record: _same(record, *axes, "backend", "n_ranks")):
        rate, notes = (record.metrics or {})["env_steps_per_s"], record.notes
        table.add_row(
            *(_value(record.point[axis]) for axis in axes),
            _backend(record),
            _value(record.point["n_ranks"]),
            number(rate.value),
            _half_width(rate),
            f"{notes['rollout_s'] / (notes['rollout_s'] + notes['update_s']):.0%}",
            f"{efficiency[id(record)]:.1%}" if id(record) in efficiency else "",
        )
    return table


def peers(records: Sequence[Record]) -> Table:
    """Return other people's software, and how many times as fast ours is on the same work, measured in turns."""
    columns = ["peer", "version", "work", "env", "agents", "envs", "on", "counts as a step", "env-steps/s", "+-"]
    columns += ["ours", "ours, env-steps/s", "ours / peer", "95 % interval"]
    table = _table("peer: other people's software in turns with ours", columns)
    for record in sorted(records, key=lambda record: _same(record, "work", "env", "n_agents", "n_envs", "peer")):
        point, notes, metrics = record.point, record.notes, record.metrics or {}
        rate, times = metrics["env_steps_per_s"], metrics["ours_over_peer"]
        table.add_row(
            str(point["peer"]),
            notes["version"] or "unnamed",
            " ".join(str(point[axis]) for axis in ("work", "algorithm", "precision") if axis in point),
            str(point["env"]),
            f"{point['n_agents']:,}",
            f"{point['n_envs']:,}" + (f" x {point['n_steps']}" if "n_steps" in point else ""),
            _threads(record.threads),
            notes["counts"],
            number(rate.value),
            _half_width(rate),
            str(notes["ours"]["point"]["backend"]),
            number(metrics["ours_env_steps_per_s"].value),
            three_digits(times.value),
            f"{three_digits(times.low)} to {three_digits(times.high)}",
        )
    return table


def learning(records: Sequence[Record]) -> Table:
    """Return the time and the steps to the threshold, the median over seeds, and the returns before and after."""
    columns = ["env", "algorithm", "learner", "envs", "backend", "threshold", "reached", "env-steps to it", "s to it"]
    table = _table("learn: training to a threshold; medians over seeds", [*columns, "return before", "after"])
    axes = ("env", "algorithm", "learner", "n_envs", "backend", "threshold", "precision")
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in sorted(records, key=lambda record: _same(record, *axes)):
        groups.setdefault(_same(record, *axes), []).append(record)
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
            *(str(env), str(algorithm), str(learner), f"{n_envs:,}", _backend(seeds[0]) + how, f"{threshold:g}"),
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
        table = _table(title, [*shown, "backend", f"{kind}/s", "+-", f"ns/{SINGULAR.get(unit, unit)}", f"x {baseline}"])
        for record in sorted(records, key=lambda record: [_order(record.point.get(name)) for name in shown]):
            metrics = record.metrics or {}
            table.add_row(
                *(_value(record.point.get(name)) for name in shown),
                _backend(record),
                number(metrics[rate].value),
                _half_width(metrics[rate]),
                three_digits(metrics[f"ns_per_{unit}"].value),
                _ratio(record, bases.get(key(record)), rate),
            )
        return table

    return make


def _order(value: Any) -> tuple[float, str]:
    """Let numbers go by their size, and words after them."""
    return (value, "") if isinstance(value, int | float) else (float("inf"), str(value))


def _value(value: Any) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def starts(records: Sequence[Record]) -> Table:
    """Return the seconds of each part of a start, medians over processes."""
    axes = ("until", "env", "n_agents", "n_envs", "cache")
    table = _table("startup: in a fresh process", [*axes, "backend", "part", "s", "+-"])
    for record in sorted(records, key=lambda record: _same(record, *axes)):
        of_point = [*(_value(record.point[axis]) for axis in axes), _backend(record)]
        for name, seconds in (record.metrics or {}).items():
            table.add_row(*of_point, name.removesuffix("_s"), f"{seconds.value:.3g}", _half_width(seconds))
            of_point = [""] * len(of_point)
    return table


def memories(records: Sequence[Record]) -> Table:
    """Return the bytes of an environment and of its agents, and how many environments fit."""
    axes = ("env", "n_agents", "backend")
    columns = ("bytes/env", "bytes/agent", "fixed bytes", "free bytes", "envs that fit", "started and stepped")
    table = _table("memory: of an environment's arrays", [*axes, *columns])
    for record in sorted(records, key=lambda record: _same(record, *axes)):
        metrics, notes = record.metrics or {}, record.notes
        table.add_row(
            *(_value(record.point[axis]) for axis in axes),
            f"{metrics['bytes_per_env'].value:,.0f}",
            three_digits(metrics["bytes_per_agent"].value),
            f"{notes['fixed_bytes']:,}",
            number(notes["free_bytes"]),
            number(metrics["largest_n_envs"].value),
            _value(notes.get("stepped_envs")),
        )
    return table


TABLES: Mapping[str, Callable[[Sequence[Record]], Table]] = {
    "env_step": env_steps,
    "published": repeated("published: env_step at sizes that others were measured at", "NumPy", "backend", "cpu"),
    "neighbor_search": neighbor_searches,
    "sampler": samplers,
    "graph": repeated("graph: env_step, launch by launch or as a graph", "eager", "mode", "eager"),
    "step": repeated("step: the kernel alone", "NumPy", "backend", "cpu"),
    "reset": repeated("reset: every environment", "NumPy", "backend", "cpu"),
    "return_scan": repeated("return_scan: discounted returns", "torch loop", "implementation", "torch loop"),
    "shuffle": repeated("shuffle: a permutation", "torch.randperm", "implementation", "torch.randperm"),
    "record": repeated("record: a step of a rollout", "NumPy", "backend", "cpu"),
    "launch": repeated("launch: next to nothing", "torch", "implementation", "torch"),
    "rollout": repeated("rollout: policies play", "NumPy", "backend", "cpu"),
    "startup": starts,
    "memory": memories,
    "train": training,
    "scaling": scaling,
    "learn": learning,
    "peer": peers,
}
"""The table of each case."""


def markdown(records: Sequence[Record]) -> str:
    """Return the records of each case as a Markdown table, for documents; in whatever order they were measured."""
    parts = []
    ordered = sorted(records, key=lambda record: (str(sorted(record.point.items())), record.started_at))
    for case, make in (TABLES | {"env_step": _env_step_markdown}).items():
        shown = [record for record in ordered if record.case == case and record.is_evidence and record.metrics]
        if shown:
            made = make(shown)
            parts.append(made if isinstance(made, str) else _as_markdown(made))
    return "\n\n".join(parts)


def _as_markdown(table: Table) -> str:
    columns = [[str(column.header).replace("\n", " "), *map(str, column.cells)] for column in table.columns]
    head, *rows = zip(*columns, strict=True)
    return "\n".join([_row(*head), "|---" * len(head) + "|", *(_row(*row) for row in rows)])


def _env_step_markdown(shown: Sequence[Record]) -> str:
    """Return a table with a column of energy where it was read."""
    energy = ["J per million env-steps"] if any((record.telemetry or {}).get("energy_j") for record in shown) else []
    names = ("environment", "agents", "environments", "backend", "env-steps/s (95 % interval)", "agent-steps/s")
    head = [*names, *energy, "share of the roofline", "set-up, s"]
    lines = [_row(*head), "|---" * len(head) + "|"]
    for record in sorted(shown, key=lambda record: _same(record, "env", "n_agents", "n_envs", "exact", "backend")):
        metrics, point = record.metrics or {}, record.point
        steps = metrics["env_steps_per_s"]
        lines.append(
            _row(
                str(point["env"]),
                f"{point['n_agents']:,}",
                f"{point['n_envs']:,}",
                _backend(record),
                f"{number(steps.value)} ({number(steps.low)} to {number(steps.high)})",
                number(metrics["agent_steps_per_s"].value),
                *([_joules(record, steps)] if energy else []),
                "" if record.roofline is None else f"{record.roofline:.1%}",
                f"{record.notes['setup_s']:.2g}" if "setup_s" in record.notes else "",
            )
        )
    return "\n".join(lines)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _joules(record: Record, steps: Metric) -> str:
    telemetry = record.telemetry or {}
    if telemetry.get("energy_j") is None:
        return ""
    return f"{telemetry['energy_j'] / (steps.value * telemetry['duration_s'] / 1e6):.3g}"


def number(value: float) -> str:
    """Write a rate with three digits and its SI letter."""
    for letter, unit in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 0.9995 * unit:
            return f"{value / unit:.3g} {letter}" if value < 999.5 * unit else f"{value / unit:,.0f} {letter}"
    return f"{value:.3g}"


def three_digits(value: float) -> str:
    """Write a number with three digits, or with all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ratio(record: Record, base: Record | None, metric: str) -> str:
    if base is None or base.metrics is None or record.metrics is None:
        return ""
    return three_digits(record.metrics[metric].value / base.metrics[metric].value)


def _same(record: Record, *axes: str) -> tuple[Any, ...]:
    return tuple(record.point.get(axis, "") for axis in axes)


def _backend(record: Record) -> str:
    """Name the backend, on a CPU its threads, and an exact build."""
    threads = "" if record.threads is None else f" ({_threads(record.threads)})"
    return f"{record.point['backend']}{threads}{', exact' if record.point.get('exact') else ''}"


def _threads(count: int | None) -> str:
    return "GPU" if count is None else f"{count} thread{'s' if count > 1 else ''}"


def _half_width(metric: Metric) -> str:
    """Write half the 95 % interval as a share of the value."""
    return f"{(metric.high - metric.low) / 2 / metric.value:.1%}"


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1))
    words = {
        "env",
        "backend",
        "until",
        "cache",
        "mode",
        "precision",
        "part",
        "implementation",
        "search",
        "algorithm",
        "network",
        "learner",
        "reference",
        "peer",
        "version",
        "work",
        "on",
        "counts as a step",
        "ours",
    }
    for column in columns:
        table.add_column(column, justify="left" if column in words else "right", no_wrap=True)
    return table
