"""Content of figures: records, series and values, for any painter."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from bench import report
from bench.core.record import Record
from bench.show import plots
from bench.show.charts import Chart
from bench.show.documents import TABLES
from bench.show.labels import number
from bench.show.views.cases import charts
from bench.show.views.peers import LAPS, peers_table
from bench.workloads.shared import training_point
from tests.bench import shown
from tests.bench.builders import metric, point, record


def chart(records: list[Record], name: str) -> Chart:
    (found,) = (each for each in charts(records) if each.name == name)
    return found


@pytest.mark.parametrize("file", shown.TEXTS)
def test_published_records_show_what_was_reviewed(file: str) -> None:
    """Figures and tables of published records match the reviewed text.

    The text has captions, cells, panels, values, looks and verdicts.
    """
    assert "\n".join(shown.TEXTS[file]()).splitlines() == (shown.GOLDEN / file).read_text().splitlines()


def test_bars_follow_each_other() -> None:
    """Stacked bars follow each other; other software has the same parts."""
    axes = {"env": "cartpole", "n_envs": 64, "algorithm": "PPO", "threshold": 475.0, "caches": "cold"}
    parts = {"total_s": metric(4.0), "import_torch_s": metric(3.0), "ours_s": metric(1.0)}
    of_peer = {"total_s": metric(9.0), "import_s": metric(4.0), "theirs_s": metric(5.0)}
    ours = record(case="time_to_solution", scope="startup", point={**axes, "backend": "pycuda"}, metrics=parts)
    beside = {"case": "time_to_solution", "point": {}}
    at = {**axes, "peer": "slow", "n_agents": 1, "work": "solve", "variant": "a"}
    notes = {"ours": beside, "version": "1", "samples_s": {}}
    theirs = record(case="peer_solution", scope="startup", point=at, metrics=of_peer, notes=notes)
    made = chart([ours.model_copy(update={"taken": "in turns with a peer"}), theirs], "time-to-solution")
    assert [series.points[0].label for series in made.panels[0].series[:2]] == ["3 s", "1 s"]
    (axes_,) = plots.paint(made).axes
    drawn = [(bar.get_x(), bar.get_width()) for bars in axes_.containers[:2] for bar in bars]
    assert drawn == [(0, 3), (0, 4), (3, 1), (4, 5)]


SOLVED = {"env": "cartpole", "n_envs": 64, "algorithm": "PPO", "threshold": 475.0, "caches": "cold"}
TRAINED = training_point(env="cartpole", backend="cpu", n_envs=9, n_agents=1, n_steps=8)
OF_PEER = {"peer": "slow", "n_agents": 1, "variant": "a"}


@pytest.mark.parametrize(
    ("case", "axes", "text"),
    [
        ("train", TRAINED, lambda found: chart(found, "training").statistic),
        ("peer", point("cpu", 9) | OF_PEER | {"work": "simulate"}, lambda found: chart(found, "peers").statistic),
        ("time_to_solution", SOLVED | {"backend": "cpu"}, lambda found: chart(found, "time-to-solution").statistic),
        ("time_to_solution", SOLVED | {"backend": "cpu"}, lambda found: TABLES["time_to_solution"](found).caption),
        ("peer_solution", SOLVED | OF_PEER, lambda found: TABLES["peer_solution"](found).caption),
    ],
)
def test_one_process_has_no_mean_over_processes(
    case: str, axes: dict[str, object], text: Callable[[list[Record]], str]
) -> None:
    """Texts name the mean over processes only if there are several."""
    rates = {name: metric(1e6, unit="1/s") for name in ("env_steps_per_s", "ours_env_steps_per_s")}
    metrics = {"total_s": metric(4.0, unit="s"), **rates, "ours_over_peer": metric(1.0)}
    several = record(case=case, point=axes, metrics=metrics, notes={"ours": {"case": case, "point": axes}})
    one = several.model_copy(update={"process": None})
    assert ["eometric means of processes" in text([each]) for each in (several, one)] == [True, False]


def test_ours_of_a_peers_turns_is_no_point_of_another_figure() -> None:
    """Our side of a peer's pair appears only with the peer."""
    rates = {"env_steps_per_s": metric(1e6), "ours_env_steps_per_s": metric(2e6), "ours_over_peer": metric(2.0)}
    notes = {"ours": {"case": "env_step", "point": point("pycuda", 1000)}}
    where = {"peer": "slow", "env": "cartpole", "n_envs": 1000, "n_agents": 1, "work": "simulate"}
    theirs = record(case="peer", point=where, metrics=rates, notes=notes, threads=None)
    found = [theirs, record(point=point("pycuda", 1000), taken="in turns with a peer")]
    assert [each.name for each in charts(found)] == ["peers"]
    assert report.commands(chart(found, "peers").records) == [
        "python -m bench peers --preset default --where env=cartpole"
    ]


def test_fastest_variant_of_a_peer_is_its_opponent() -> None:
    """A peer's figure shows only its fastest variant, and another game as such.

    The table has all variants and marks that one.
    """
    found = []
    loud = ["theirs: it was loud"]
    for variant, rate, times, remarks in (("sync", 1e6, 2.0, []), ("scan", 4e6, 9.0, loud), ("other", 2e6, 3.0, [])):
        rates = {"env_steps_per_s": rate, "ours_env_steps_per_s": rate * times, "ours_over_peer": times}
        ours = point("pycuda", 1000, **({"mode": "fused"} if variant == "scan" else {}))
        notes = {"ours": {"case": "a case", "point": ours}, "version": "1", "counts": "all: another game"}
        notes |= {"remarks": remarks} | ({"laps": "the fastest"} if variant == "other" else {})
        where = {"peer": "slow", "env": "cartpole", "n_envs": 1000, "n_agents": 1, "work": "simulate"}
        metrics = {name: metric(value) for name, value in rates.items()}
        found.append(
            record(case="peer", point=where | {"variant": variant}, metrics=metrics, notes=notes, threads=None)
        )
    table = peers_table(found)
    names = [column.name for column in table.columns]
    cells = [dict(zip(names, row, strict=True)) for row in table.cells]
    shown = {row["variant"]: (row["fastest variant"], row["our steps per launch"], row["remarks"]) for row in cells}
    assert shown == {
        "sync": ("no", "one", ""),
        "scan": ("yes", "many", "theirs: it was loud"),
        "other": ("no", "one", LAPS),
    }
    (panel,) = chart(found, "peers").panels
    assert panel.ticks == ["slow, scan, another game, 1,000 environments: 9x"]
    assert [series.name for series in panel.series][1:] == ["ours, CUDA C (PyCUDA), many steps per launch"]


def test_both_painters_draw_the_same_values() -> None:
    """The web page and matplotlib draw the same values."""
    found = [
        record(rate * n, point=point(backend, n), threads=None)
        for backend, rate in (("numba", 1e6), ("pycuda", 3e6))
        for n in (1, 10, 100)
    ]
    for each in charts(found):
        told = json.loads(json.dumps(report.drawn(each)))
        axes = plots.paint(each).axes
        assert len(told["panels"]) == len(axes) == len(each.panels)
        for panel, of_panel in zip(told["panels"], axes, strict=True):
            want = [[tuple(place[:2]) for place in series["points"]] for series in panel["series"]]
            got = [list(zip(*line.get_data(), strict=True)) for line in of_panel.get_lines()[: len(want)]]
            assert got == want
            assert of_panel.get_xlabel() == panel["x"]
    assert {each.name for each in charts(found)} == {"throughput"}


def test_legend_of_long_names_has_fewer_columns(two_directions: list[Record]) -> None:
    """A legend of long names fits the paper's width."""
    figure = plots.paint(chart(two_directions, "limits"))
    figure.canvas.draw()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert len(figure.legends[0].get_texts()) == 4


@pytest.fixture
def two_directions() -> list[Record]:
    """Return records of two backends over environments and agents."""
    sizes = ((1, 5), (10, 5), (10, 50))
    return [
        record(rate, point=point(backend, n_envs, n_agents, "tag_continuous"), threads=None, roofline=0.1)
        for backend, rate in (("numba", 1e6), ("pycuda", 2e6))
        for n_envs, n_agents in sizes
    ]


@pytest.mark.parametrize(
    ("value", "text"), [(999.7, "1 k"), (999_600, "1 M"), (17.9e9, "17.9 G"), (2.5e12, "2,500 G"), (0.5, "0.5")]
)
def test_rate_has_three_digits_and_no_exponent(value, text):
    """A rate has three digits and a unit, but no exponent."""
    assert number(value) == text
