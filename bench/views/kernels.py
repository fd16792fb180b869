"""Tables and charts of single kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from bench.record import Record
from bench.show.charts import Axis, Chart, MakeChart, is_ours, maker, rows
from bench.show.columns import MakeTable, Table, axis, backend, interval, measured, over
from bench.show.labels import MEDIANS, plural, three_digits
from bench.show.records import by, grouped, latest, rate_of
from bench.show.tables import over_baseline


def samplers(records: Sequence[Record]) -> Table[Record]:
    """Return samples a second over `torch.multinomial` on the same device."""
    sizes = by("n_agents", "n_envs", "n_actions")
    return Table(
        title="sampler: one action for every agent",
        rows=sorted(records, key=sizes),
        columns=[
            axis("n_agents", "agents"),
            axis("n_envs", "envs"),
            axis("n_actions", "actions"),
            axis("implementation"),
            backend(),
            measured("samples_per_s", "samples/s"),
            interval("samples_per_s"),
            measured("ns_per_sample", "ns/sample", three_digits),
            over(
                "x torch.multinomial\n(same device)",
                "samples_per_s",
                records,
                lambda record: (record.threads is None, sizes(record)),
                lambda record: record.point["implementation"] == "torch.multinomial",
            ),
        ],
    )


TABLES: Final[Mapping[str, Mapping[str, MakeTable]]] = {
    "sampler": {"terminal": samplers},
    "reset": {"terminal": over_baseline("reset: every environment", "NumPy", "backend", "cpu")},
    "return_scan": {
        "terminal": over_baseline("return_scan: discounted returns", "torch loop", "implementation", "torch loop")
    },
    "shuffle": {
        "terminal": over_baseline("shuffle: a permutation", "torch.randperm", "implementation", "torch.randperm")
    },
    "record": {"terminal": over_baseline("record: a step of a rollout", "NumPy", "backend", "cpu")},
    "launch": {"terminal": over_baseline("launch: next to nothing", "torch", "implementation", "torch")},
}


def sampler_rates(records: Sequence[Record]) -> Chart:
    """Return the rate of each sampler in a row of its own, and its ratio to torch on the same device."""
    shown = latest(records)
    panels = []
    for (n_envs, n_agents, n_actions), found in grouped(shown, "n_envs", "n_agents", "n_actions").items():
        by_rate = sorted(found, key=lambda record: (record.threads is not None, -rate_of(record, "samples_per_s")))
        torch = [record for record in found if record.point["implementation"] == "torch.multinomial"]
        base = {record.threads is None: rate_of(record, "samples_per_s") for record in torch}
        title = f"{plural(int(n_envs), 'environment')}, {plural(int(n_agents), 'agent')}, {n_actions} actions"

        def over_torch(record: Record, base: Mapping[bool, float] = base) -> str:
            other = base.get(record.threads is None)
            return f"{rate_of(record, 'samples_per_s') / other:.3g} x" if other else ""

        panels.append(rows(title, by_rate, "samples_per_s", _sampler_name, over_torch))
    return Chart(
        name="sampler",
        title="Samplers",
        caption=f"One action for every agent, drawn from its own probabilities. {MEDIANS}",
        kind="rows",
        x=Axis("samples per second (x: over torch.multinomial on the same device)"),
        has_legend=False,
        panels=panels,
        records=shown,
    )


def _sampler_name(record: Record) -> str:
    return f"ours, {maker(record)}" if is_ours(record) else maker(record)


CHARTS: Final[Mapping[str, Sequence[MakeChart]]] = {"sampler": (sampler_rates,)}
