"""Figures of single parts: samplers, other kernels, and the start of a process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.record import Record
from bench.views.figures.chart import HATCHES, PART_COLORS, Chart, Dot, Panel, Series, part_look
from bench.views.figures.records import env_order, extent, grouped, latest, metric, rate_of
from bench.views.figures.series import is_ours, maker, panel_of_rows
from bench.views.figures.words import MEDIANS, backend_label, counted, environment, quantity, sizes


def samplers(records: Sequence[Record]) -> Chart:
    """Return the rate of each sampler in a row of its own, and how it compares with torch on the same device."""
    shown = latest(records)
    panels = []
    for (n_envs, n_agents, n_actions), found in grouped(shown, "n_envs", "n_agents", "n_actions").items():
        by_rate = sorted(found, key=lambda record: (record.threads is not None, -rate_of(record, "samples_per_s")))
        torch = [record for record in found if record.point["implementation"] == "torch.multinomial"]
        base = {record.threads is None: rate_of(record, "samples_per_s") for record in torch}
        title = f"{counted(int(n_envs), 'environment')}, {counted(int(n_agents), 'agent')}, {n_actions} actions"

        def over_torch(record: Record, base: Mapping[bool, float] = base) -> str:
            other = base.get(record.threads is None)
            return f"{rate_of(record, 'samples_per_s') / other:.3g} x" if other else ""

        panels.append(panel_of_rows(title, by_rate, "samples_per_s", _sampler_name, over_torch))
    return Chart(
        name="sampler",
        title="Samplers",
        explains=f"One action for every agent, drawn from its own probabilities. {MEDIANS}",
        kind="rows",
        xlabel="samples per second (x: over torch.multinomial on the same device)",
        has_legend=False,
        panels=panels,
        records=shown,
    )


def _sampler_name(record: Record) -> str:
    return f"ours, {maker(record)}" if is_ours(record) else maker(record)


def kernels(records: Sequence[Record]) -> Chart:
    """Return the rates of single kernels other than the sampler, a panel for each case and a row for each size."""
    shown = [record for record in latest(records) if record.scope == "kernel" and record.case != "sampler"]
    panels = []
    for case in dict.fromkeys(record.case for record in shown):
        found = sorted((record for record in shown if record.case == case), key=lambda r: (env_order(r), extent(r)))
        name = next(iter(found[0].metrics or {}))
        title, xlabel = case.replace("_", " "), quantity(name)
        panels.append(panel_of_rows(title, found, name, lambda record: sizes(record.point), xlabel=xlabel))
    return Chart(
        name="kernels",
        title="Kernels",
        explains=f"Single kernels, and what torch offers for the same work. {MEDIANS}",
        kind="rows",
        xlabel="",
        panels=panels,
        records=shown,
    )


def starting(records: Sequence[Record]) -> Chart:
    """Return how long each part of a start takes, one after the other, in a row for each point."""
    shown = sorted(latest(records), key=_start_name)
    series = []
    for index, part in enumerate(dict.fromkeys(name for record in shown for name in record.notes["samples_s"])):
        found = [(row, record, metric(record, part)) for row, record in enumerate(shown)]
        dots = [Dot(each.value, row, each.low, each.high, r.run_id) for row, r, each in found if each is not None]
        look = part_look(index % len(PART_COLORS), HATCHES[index // len(PART_COLORS)])
        series.append(Series(part.removesuffix("_s").replace("_", " "), look, dots))
    return Chart(
        name="startup",
        title="Start of a process",
        explains="Each part of the start of a fresh process, one after the other. Medians of each part.",
        statistic="medians of each part",
        kind="bars",
        xlabel="seconds in a fresh process",
        log_x=False,
        panels=[Panel("", series, [_start_name(record) for record in shown])] if shown else [],
        records=shown,
    )


def _start_name(record: Record) -> str:
    point = record.point
    return f"{environment(str(point['env']))}, {point['until']}, {backend_label(record)}, {point['cache']}"
