"""Coverage of a rate's intervals: simulated, and of published processes.

``python -m tests.bench.coverage`` prints the tables of docs/intervals.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from operator import itemgetter

import numpy as np
from scipy.signal import lfilter

from bench.core.groups import groups_of
from bench.core.machine import kind
from bench.core.record import RESULTS, Record, read_all
from bench.core.stats import (
    FEWEST_PROCESSES,
    FEWEST_SEEDS,
    interquartile_band,
    interquartile_mean,
    median,
    median_interval,
    spread_over_processes,
)
from bench.show.columns import Column, Table
from bench.show.render import markdown

SAMPLES = 20
"""Samples of a simulated process."""
WITHIN = 0.005
"""Standard deviation of the logarithms of a simulated process's samples."""
CORRELATIONS = (0.0, 0.2, 0.4, 0.6)
BETWEEN = (0.0, 0.5, 1.0, 2.0)
"""Standard deviations between processes, relative to that of samples."""
SERIES = re.compile(r"-\d+(?=(-planted)?-[ab]$)")
"""Number of a gate among repeated gates."""
Row = tuple[str, ...]


def samples_ns(correlation: float, between: float, random: np.random.Generator) -> list[float]:
    """Return samples of a process around 1: AR(1) noise with Student's tails."""
    noise = random.standard_t(3, 100 + SAMPLES) / math.sqrt(3) * WITHIN * math.sqrt(1 - correlation**2)
    logs = lfilter([1], [1, -correlation], noise)[-SAMPLES:] + random.normal(0, between * WITHIN)
    return list(np.exp(logs))


def covered(correlation: float, between: float, n: int, random: np.random.Generator) -> tuple[float, float]:
    """Return the shares of the old and the new intervals that contain the rate.

    Old: order statistics of the samples of one process. New: Student's over five processes.
    """
    old = new = 0
    for _ in range(n):
        processes = [samples_ns(correlation, between, random) for _ in range(FEWEST_PROCESSES)]
        low, high = median_interval(processes[0])
        found = spread_over_processes(processes)
        old += low <= 1 <= high
        new += found.low <= 1 <= found.high
    return old / n, new / n


def simulated(n: int) -> Table[Row]:
    """Return the table of simulated coverage, from n points a row."""
    random = np.random.default_rng(0)
    rows = [
        (f"{between:g}", f"{correlation:g}", *(f"{share:.1%}" for share in covered(correlation, between, n, random)))
        for between in BETWEEN
        for correlation in CORRELATIONS
    ]
    heads = ("noise between processes / within", "correlation of samples", "samples of one process", "five processes")
    return _table(heads, rows)


def covered_of_half(processes: Sequence[Sequence[float]], n: int, random: np.random.Generator) -> tuple[float, float]:
    """Return the shares of intervals of one half that agree with the other.

    The other half's geometric mean varies too: of m processes it widens an interval of k by sqrt(1 + k / m).
    """
    old = new = 0
    for _ in range(n):
        order = random.permutation(len(processes))
        some, others = order[: len(order) // 2], order[len(order) // 2 :]
        target = float(np.mean([math.log(median(processes[place])) for place in others]))
        low, high = map(math.log, median_interval(processes[some[0]]))
        old += low <= target <= high
        found = spread_over_processes([processes[place] for place in some[:FEWEST_PROCESSES]])
        more = math.sqrt(1 + FEWEST_PROCESSES / len(others))
        new += abs(math.log(found.value) - target) <= more * math.log(found.high / found.value)
    return old / n, new / n


def points(records: Sequence[Record]) -> dict[tuple[object, ...], list[list[float]]]:
    """Return the samples of each process, by point, runs, commit and card."""

    def point(record: Record) -> tuple[object, ...]:
        code = (
            record.git.get("sha"),
            record.git.get("diff_hash"),
            record.case_version,
            SERIES.sub("", record.run_id),
            record.taken,
        )
        return record.case, kind(record.machine), record.card, *code, *sorted(record.point.items())

    timed = (each for each in records if each.is_evidence and each.process and each.scope != "startup" and each.n)
    groups = groups_of(timed, point).items()
    found = {
        key: [times for record in same for times in record.by_process(record.unit_ns) if len(times) > 1]
        for key, same in groups
    }
    return {key: processes for key, processes in found.items() if len(processes) >= 2 * FEWEST_PROCESSES}


def measured(records: Sequence[Record], n: int) -> Table[Row]:
    """Return the table of published coverage, a row for each case and machine."""
    random = np.random.default_rng(0)
    rows = []
    for (case, machine), own in groups_of(points(records).items(), lambda each: each[0][:2]).items():
        shares = np.mean([covered_of_half(processes, n, random) for _, processes in own], axis=0)
        counts = [len(processes) for _, processes in own]
        rows.append((str(case), str(machine), f"{len(own)}", f"{sum(counts)}", *(f"{share:.1%}" for share in shares)))
    heads = ("case", "machine", "points", "processes", "samples of one process", "five processes")
    return _table(heads, sorted(rows))


RETURNS = {
    "normal": lambda random, n: random.normal(1, 0.1, n),
    "one run in five fails": lambda random, n: random.normal(np.where(random.random(n) < 0.2, 0.2, 1), 0.05),
    "log-normal": lambda random, n: np.exp(random.normal(0, 0.5, n)),
    "t, 3 degrees of freedom": lambda random, n: 1 + 0.1 * random.standard_t(3, n),
}
"""Distributions of a return over seeds."""


def of_seeds(n: int) -> Table[Row]:
    """Return the coverage of the interquartile mean over seeds, from n draws."""
    random, rows = np.random.default_rng(0), list[Row]()
    n_seeds = (FEWEST_SEEDS, 10, 20, 50)
    for name, draw in RETURNS.items():
        target = interquartile_mean(draw(random, 10**6))
        bands = [[interquartile_band(draw(random, k)) for _ in range(n)] for k in n_seeds]
        rows.append((name, *(f"{np.mean([low <= target <= high for low, high in each]):.1%}" for each in bands)))
    return _table(("return over seeds", *(f"{k} seeds" for k in n_seeds)), rows)


def _table(heads: Sequence[str], rows: Sequence[Row]) -> Table[Row]:
    columns = [Column(head, itemgetter(place)) for place, head in enumerate(heads)]
    return Table(columns=columns, rows=rows)


def published() -> list[Record]:
    """Return all published records."""
    return read_all([RESULTS / "archive.zip" / name for name in ("sweeps", "comparisons", "peers", "sets")], [])


if __name__ == "__main__":
    print(markdown(simulated(4_000)), markdown(measured(published(), 1_000)), markdown(of_seeds(2_000)), sep="\n\n")
