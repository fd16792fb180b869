"""Figures of what is made of the device: CUDA C against Numba, the share of its limit, and its roofline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from bench.machine import LIMITS
from bench.record import Metric, Record
from bench.stats import median, median_interval
from bench.views.figures.chart import BACKEND_STYLE, GREY, Chart, Dot, Panel, Series
from bench.views.figures.records import baselines, env_order, grouped, latest, metric, plain, size, times_baseline
from bench.views.figures.series import by_maker, dots_along
from bench.views.figures.words import BACKEND_NAME, ENV_NAME, environment, said

DIRECTION: Final = {"n_envs": "more environments", "n_agents": "more agents"}


def languages(records: Sequence[Record]) -> Chart:
    """Return CUDA C over Numba, at the same size in the same run."""
    bases = baselines(records, "backend", "numba")
    of_cuda_c = latest(record for record in records if record.point["backend"] == "pycuda" and size(record) in bases)
    return Chart(
        name="languages",
        title="CUDA C against Numba",
        explains="Both run the same phases as CUDA graphs, at the same size in the same run. Above the line at 1 "
        "CUDA C is faster; the interval reaches as far as theirs allow.",
        xlabel="agents in all environments",
        ylabel="times Numba-CUDA",
        log_y=False,
        panels=_panels_of_directions(of_cuda_c, lambda record: times_baseline(record, bases[size(record)])),
        records=[*of_cuda_c, *(bases[size(record)] for record in of_cuda_c)],
    )


def limits(records: Sequence[Record]) -> Chart:
    """Return the share of the machine's limit that each backend reaches."""
    shown = [record for record in latest(records) if record.roofline is not None]

    def share(record: Record) -> Metric | None:
        rate = metric(record, "env_steps_per_s")
        if rate is None or record.roofline is None:
            return None
        per_rate = record.roofline / rate.value
        return Metric(
            value=record.roofline, unit="", direction="higher", low=rate.low * per_rate, high=rate.high * per_rate
        )

    return Chart(
        name="limits",
        title="Share of the machine's limit",
        explains="The shortest time in which the device could move the least bytes, or do the least operations, of a "
        "step, over the time that it takes. 1 is the machine's limit.",
        xlabel="agents in all environments",
        ylabel="share of the machine's limit",
        panels=_panels_of_directions(shown, share),
        records=shown,
    )


def _panels_of_directions(records: Sequence[Record], value: Callable[[Record], Metric | None]) -> list[Panel]:
    """Return a panel for each environment over all its agents: series for more environments and for more agents."""
    panels = []
    for (env,), of_env in grouped(plain(records), "env").items():
        series = []
        for backend, style in BACKEND_STYLE.items():
            of_backend = [record for record in of_env if record.point["backend"] == backend]
            for fixed, other, dash in (("n_agents", "n_envs", "-"), ("n_envs", "n_agents", ":")):
                lines = grouped(of_backend, fixed)
                if not lines:
                    continue
                longest = max(lines.values(), key=lambda line: len({record.point[other] for record in line}))
                if len({record.point[other] for record in longest}) > 1:
                    name = f"{BACKEND_NAME[backend]}, {DIRECTION[other]}"
                    series.append(Series(name, style | {"linestyle": dash}, dots_along(longest, value, _all_agents)))
        if series:
            panels.append(Panel(environment(str(env)), series, level=1))
    return panels


def _all_agents(record: Record) -> float:
    return float(record.point["n_envs"]) * float(record.point["n_agents"])


def roofline(records: Sequence[Record]) -> Chart:
    """Return the operations a second over the operations for each byte, below what the device allows."""
    shown = [r for r in plain(latest(records)) if r.roofline is not None and r.samples_ns and _intensity(r)]
    groups: dict[str, list[Record]] = {}
    for record in sorted(shown, key=lambda record: (record.case != "env_step", record.case, env_order(record))):
        env = ENV_NAME.get(str(record.point.get("env")), "")
        groups.setdefault(env if record.case == "env_step" else f"{record.case}{env and ', '}{env}", []).append(record)
    ends = [scale * end(map(_intensity, shown)) for end, scale in ((min, 0.5), (max, 2))] if shown else []
    panels = []
    for title, found in groups.items():
        series = []
        for name, (look, own) in by_maker(found).items():
            points = sorted(((_intensity(record), _ops_per_s(record), record) for record in own), key=lambda p: p[:1])
            dots = [Dot(x, each.value, each.low, each.high, said(record)) for x, each, record in points]
            series.append(Series(name, look | {"linestyle": "none"}, dots))
        allowed = LIMITS[str(found[0].machine["gpu"])]
        ridge = allowed.ops_per_s / allowed.bytes_per_s
        corners = [(x, min(allowed.ops_per_s, x * allowed.bytes_per_s)) for x in sorted({*ends, max(ends[0], ridge)})]
        ceiling = [Dot(x, y, y, y, allowed.source) for x, y in corners]
        series.append(Series("the device", {"color": GREY["color"], "marker": "", "linestyle": "-"}, ceiling))
        panels.append(Panel(title, series))
    return Chart(
        name="roofline",
        title="Roofline",
        explains="Bytes and operations are the least that the work needs, so what a run does beyond that lowers its "
        "dot. On the slope memory is the limit, on the flat part arithmetic.",
        xlabel="operations for each byte",
        ylabel="operations per second",
        columns=3,
        panels=panels,
        records=shown,
    )


def _intensity(record: Record) -> float:
    """Return the operations for each byte; 0 where a record does not say, or does not count them."""
    n_bytes = record.notes.get("bytes_per_run")
    return record.notes["ops_per_run"] / n_bytes if n_bytes else 0.0


def _ops_per_s(record: Record) -> Metric:
    assert record.samples_ns is not None
    low_ns, high_ns = median_interval(record.samples_ns)
    value, low, high = (1e9 * record.notes["ops_per_run"] / ns for ns in (median(record.samples_ns), high_ns, low_ns))
    return Metric(value=value, unit="ops/s", direction="higher", low=low, high=high)
