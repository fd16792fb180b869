"""Tables and figures of single cases."""

from __future__ import annotations

import pytest

from bench import documents, plots
from bench.documents import TABLES
from bench.plots import paint
from bench.record import Metric, Record
from bench.workloads import scaling
from bench.workloads.memory import memory_chart
from bench.workloads.scaling import scaling_chart, scaling_table
from bench.workloads.startup import COLD, first_step_point, starts_chart, starts_table
from tests.bench.builders import record


@pytest.mark.parametrize(
    ("case", "axes", "want"),
    [
        ("return_scan", {"implementation": ("torch loop", "ours")}, ["1", "4"]),
        ("graph", {"mode": ("eager", "graph")}, ["1", "4"]),
        ("step", {"backend": ("cpu", "host")}, ["1", "4"]),
    ],
)
def test_tables_show_rates_over_their_baseline(case, axes, want):
    """Four times the baseline's rate reads 4, whichever axis tells the baseline."""
    ((axis, values),) = axes.items()
    plain = {"implementation": "ours", "backend": "host", "mode": "eager", "n_envs": 10}
    records = [
        record(rate, case=case, point={**plain, axis: value}).model_copy(update={"metrics": rates(rate)})
        for value, rate in zip(values, (1e6, 4e6), strict=True)
    ]
    assert sorted(cells[-1] for cells in TABLES[case](records).cells) == want


def rates(rate: float) -> dict[str, Metric]:
    """Return a rate and the time of one of it."""
    return {
        "calls_per_s": Metric(value=rate, unit="calls/s", direction="higher", low=rate, high=rate),
        "ns_per_call": Metric(value=1e9 / rate, unit="ns", direction="lower", low=1e9 / rate, high=1e9 / rate),
    }


def test_bars_and_rows_show_every_part():
    """Of two parts of 1 and 3 s the second bar begins where the first ends, and the table has a row each."""

    def seconds(value: float) -> Metric:
        return Metric(value=value, unit="s", direction="lower", low=value, high=value)

    metrics = {"total_s": seconds(4.0), "import_s": seconds(1.0), "build_s": seconds(3.0)}
    notes = {"samples_s": {"import_s": [1.0], "build_s": [3.0]}}
    place = first_step_point("cartpole", 4, 1, "host", COLD)
    started = record(case="startup", scope="startup", point=place, metrics=metrics, notes=notes)
    (axes,) = paint(starts_chart([started])).axes
    assert [(bar.get_x(), bar.get_width()) for bars in axes.containers for bar in bars] == [(0, 1), (1, 3)]
    assert not starts_chart([]).panels
    assert [cells[-3:-1] for cells in starts_table([started]).cells] == [
        ["total", "4"],
        ["import", "1"],
        ["build", "3"],
    ]


def test_bytes_are_drawn_over_agents():
    """An environment of two sizes gets a panel, one of a single size none."""

    def measured(env: str, n_agents: int, value: float) -> Record:
        metric = Metric(value=value, unit="bytes", direction="lower", low=value, high=value)
        point = {"env": env, "backend": "host", "n_envs": 1_000 // n_agents, "n_agents": n_agents}
        return record(case="memory", scope="memory", point=point, metrics={"bytes_per_env": metric})

    found = [measured("tag_continuous", 5, 100.0), measured("tag_continuous", 10, 200.0), measured("cartpole", 1, 76.0)]
    (axes,) = paint(memory_chart(found)).axes
    (line,) = axes.get_lines()
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([5, 10], [100.0, 200.0])
    assert not memory_chart(found[2:]).panels


# ------------------------------------------------------------------ scaling


def curve(rates: dict[int, float], backend: str = "pycuda", run_id: str = "run") -> list[Record]:
    """Return the records of so many steps a second in so many ranks."""
    return [
        record(
            case="scaling",
            point=scaling.ranks_point("tag_gridworld", backend, n_ranks, n_envs=4, n_agents=1, n_steps=8),
            threads=None,
            run_id=run_id,
            metrics={"env_steps_per_s": Metric(value=rate, unit="", direction="higher", low=rate, high=rate)},
            notes={"rollout_s": 1.0, "update_s": 3.0},
        )
        for n_ranks, rate in rates.items()
    ]


def test_efficiency_is_the_share_of_as_many_times_one():
    """Of 100, 180 and 300 in 1, 2 and 4 ranks: 1, 0.9 and 0.75; without one rank of the same run there is none."""
    found = curve({1: 100.0, 2: 180.0, 4: 300.0})
    lonely = curve({2: 50.0}, run_id="other")
    efficiency = scaling.efficiencies([*found, *lonely])
    assert [efficiency.get(id(each)) for each in (*found, *lonely)] == [1.0, 0.9, 0.75, None]


def test_table_shows_rate_and_efficiency():
    """In the order of the ranks."""
    made = scaling_table(curve({4: 300.0, 1: 100.0}) + curve({1: 50.0, 2: 50.0}, "numba"))
    columns = {
        column.name: list(cells) for column, cells in zip(made.columns, zip(*made.cells, strict=True), strict=True)
    }
    assert columns["ranks"] == ["1", "1", "2", "4"]
    assert columns["env steps/s"] == ["50", "100", "50", "300"]
    assert columns["efficiency"] == ["100.0%", "100.0%", "50.0%", "75.0%"]
    assert "| 75.0%" in documents.markdown(curve({4: 300.0, 1: 100.0}))


def test_figure_has_the_ideal_and_labels_what_is_reached():
    """The dotted line goes from 100 to four times 100; two and four ranks are labelled with their efficiency."""
    (panel,) = scaling_chart(curve({1: 100.0, 2: 180.0, 4: 300.0})).panels
    reached, ideal = panel.series
    assert [(point.x, point.y, point.label) for point in reached.points] == [
        (0, 100, ""),
        (1, 180, "90%"),
        (2, 300, "75%"),
    ]
    assert [(point.x, point.y) for point in ideal.points] == [(0, 100), (1, 200), (2, 400)]
    assert (panel.ticks, panel.xlabel) == (["1", "2", "4"], "GPUs")
    assert not scaling_chart(curve({1: 100.0})).panels
    assert not scaling_chart([]).panels


def test_a_figure_of_processes_holds_all_of_its_text():
    """Alone on its figure the panel of the CPU is narrow, and its label stays within."""
    both = [record.model_copy(update={"threads": 2}) for record in curve({1: 100.0, 2: 180.0}, "host")]
    figure = plots.paint(scaling_chart(both))
    figure.draw_without_rendering()
    (axes,) = figure.axes
    label = axes.xaxis.label
    assert label.get_text() == "processes, each with as many threads"
    within = label.get_window_extent()
    assert 0 <= within.x0 < within.x1 <= figure.bbox.width


def test_figure_is_drawn_with_its_labels():
    """On paper the percentages stand beside the dots, and the ticks are the numbers of ranks."""
    both = curve({1: 100.0, 2: 180.0, 4: 300.0}) + curve({1: 50.0, 2: 75.0, 4: 125.0}, "numba")
    figure = plots.paint(scaling_chart(both))
    (axes,) = figure.axes
    assert {"90%", "75%", "62%"} <= {text.get_text() for text in axes.texts}
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "2", "4"]
    dotted = [line for line in axes.get_lines() if line.get_linestyle() == ":"]
    assert sorted(line.get_ydata()[-1] for line in dotted) == [200, 400]
    (legend,) = figure.legends
    assert {text.get_text() for text in legend.get_texts()} == {"CUDA C (PyCUDA)", "Numba-CUDA", "as many times one"}
