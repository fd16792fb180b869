"""What the figures are: which records, series, axes, levels and words, as numbers that two painters draw.

`plots.py` draws them with matplotlib and `charts.py` in the report. Nothing is measured, and only evidence is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from bench.record import Record
from bench.views.figures.chart import Chart, Dot, Panel
from bench.views.figures.components import kernels, samplers, starting
from bench.views.figures.hardware import languages, limits, roofline
from bench.views.figures.iterations import rollouts, scaling, split, training
from bench.views.figures.over_agents import agents, memory, neighbors
from bench.views.figures.over_environments import crossover, energy, joules, knee, speedup_over, throughput
from bench.views.figures.over_time import history, learning_over
from bench.views.figures.peers import peers
from bench.views.figures.records import alone, by_machine, latest, metric, size
from bench.views.figures.words import ENV_NAME, backend_label, commit_label, notes, times

__all__ = [
    "CHARTS",
    "ENV_NAME",
    "Chart",
    "Dot",
    "Panel",
    "agents",
    "alone",
    "backend_label",
    "by_machine",
    "charts",
    "commit_label",
    "crossover",
    "joules",
    "knee",
    "latest",
    "memory",
    "metric",
    "neighbors",
    "notes",
    "scaling",
    "size",
    "speedup_over",
    "starting",
    "throughput",
    "times",
    "training",
]


CHARTS: Final[tuple[tuple[str, Callable[[Sequence[Record]], Chart]], ...]] = (
    ("env_step", throughput),
    ("env_step", speedup_over("cpu")),
    ("env_step", speedup_over("host")),
    ("env_step", agents),
    ("env_step", languages),
    ("env_step", limits),
    ("", roofline),
    ("env_step", energy),
    ("neighbor_search", neighbors),
    ("sampler", samplers),
    ("", kernels),
    ("startup", starting),
    ("memory", memory),
    ("rollout", rollouts),
    ("train", training),
    ("train", split),
    ("scaling", scaling),
    ("peer", peers),
    ("learn", learning_over("learning", "environment steps", lambda curve: curve.env_steps, log_x=False)),
    ("learn", learning_over("learning-seconds", "seconds of training", lambda curve: curve.seconds, log_x=True)),
    ("", history),
)
"""What is shown of which case; "" is all of them."""


def charts(records: Iterable[Record]) -> list[Chart]:
    """Return every figure for which the records, all of one machine, have evidence."""
    evidence = alone(record for record in records if record.is_evidence)
    made = [make([record for record in evidence if case in (record.case, "")]) for case, make in CHARTS]
    return [chart for chart in made if chart.panels]
