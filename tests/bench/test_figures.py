"""What the figures say: which records, series and values, whoever draws them."""

from __future__ import annotations

import json

import pytest

from bench import paper, plots, report
from bench.machine import LIMITS
from bench.record import Metric, Record
from bench.show.charts import Chart
from bench.show.labels import number
from bench.show.records import measured_alone
from tests.bench.builders import point, record

H200 = LIMITS["NVIDIA H200"]


def chart(records: list[Record], name: str) -> Chart:
    (found,) = (each for each in plots.charts(records) if each.name == name)
    return found


def measured(n_bytes: int, n_ops: int, ns: float, **changes) -> Record:
    """Return a record whose run needs so much and takes so long."""
    notes = {"bytes_per_run": n_bytes, "ops_per_run": n_ops}
    where = {"point": point("pycuda", 100), "threads": None, **changes}
    return record(notes=notes, samples_ns=[ns] * 9, roofline=0.5, **where)


def test_roofline_has_operations_a_byte_and_a_second() -> None:
    """100 bytes and 200 operations in 50 ns are 2 a byte and 4 G a second; the ceiling bends where both limits meet."""
    (panel,) = chart([measured(100, 200, 50.0)], "roofline").panels
    ours, device = panel.series
    assert [(place.x, place.y, place.low, place.high) for place in ours.points] == [(2, 4e9, 4e9, 4e9)]
    assert "100 environments" in ours.points[0].note
    ridge = H200.ops_per_s / H200.bytes_per_s
    assert [place.x for place in device.points] == [1, 4, ridge]
    assert [place.y for place in device.points] == pytest.approx(
        [H200.bytes_per_s, 4 * H200.bytes_per_s, H200.ops_per_s]
    )


def test_roofline_leaves_out_what_does_not_count() -> None:
    """A record without operations, as one of another precision, or of an old sweep, has no place in it."""
    found = [measured(100, 0, 50.0), record(point=point("pycuda", 10), roofline=0.5)]
    assert "roofline" not in {each.name for each in plots.charts(found)}


def test_kernels_have_a_panel_for_each_case_with_its_unit() -> None:
    """Who did the work is a series, the size is a row; a case of another scope is not among them."""

    def kernel(case: str, value: float, implementation: str, unit: str, **axes) -> Record:
        metrics = {f"{unit}_per_s": Metric(value=value, unit="", direction="higher", low=value, high=value)}
        where = {"implementation": implementation, "backend": "host", **axes}
        return record(case=case, scope="kernel", point=where, metrics=metrics, threads=2)

    found = [
        kernel("shuffle", 1e6, "ours", "indices", n_indices=1000),
        kernel("shuffle", 2e6, "torch.randperm", "indices", n_indices=1000),
        kernel("reset", 3e6, "ours", "env_resets", env="cartpole", n_envs=10, n_agents=1),
    ]
    shuffle, reset = sorted(chart([*found, record()], "kernels").panels, key=lambda panel: -len(panel.series))
    assert (shuffle.title, shuffle.xlabel, shuffle.ticks) == ("shuffle", "indices per second", ["1,000 indices"])
    assert [(series.name, series.points[0].x) for series in shuffle.series] == [
        ("C++ (2 threads)", 1e6),
        ("torch.randperm, CPU", 2e6),
    ]
    assert (reset.xlabel, reset.ticks) == ("environment resets per second", ["CartPole, 10 environments, 1 agent"])


def test_what_we_do_in_another_way_is_ours() -> None:
    """Saved arrays are in a row that says so, with the look of their backend, as ours is; torch's is grey."""
    rate = Metric(value=1e6, unit="", direction="higher", low=1e6, high=1e6)
    found = [
        record(
            case="reset",
            scope="kernel",
            point={"implementation": implementation, "backend": backend, "n_envs": 10, "n_agents": 1},
            metrics={"env_resets_per_s": rate},
        )
        for implementation, backend in (("saved arrays", "cpu"), ("saved arrays", "host"), ("torch", "cpu"))
    ]
    (panel,) = chart(found, "kernels").panels
    assert panel.ticks == ["saved arrays, 10 environments, 1 agent", "10 environments, 1 agent"]
    assert [(series.name, series.style["marker"], series.points[0].y) for series in panel.series] == [
        ("NumPy (1 thread)", "o", 0),
        ("C++ (1 thread)", "s", 0),
        ("torch, CPU", "x", 1),
    ]


def test_rollouts_and_updates_are_bars_that_add_up() -> None:
    """Of 3 and 1 ms the shares are 3 and 1 quarters, and the painter puts the second bar after the first."""
    axes = {"n_steps": 5, "network": "32-32", "precision": "fp32", "mode": "graph"}
    notes = {"rollout_s": 0.003, "update_s": 0.001}
    found = [
        record(2e6, case="rollout", scope="rollout", point=point("pycuda", 10, **axes)),
        record(case="train", scope="train", point=point("pycuda", 10, algorithm="A2C", **axes), notes=notes),
    ]
    (panel,) = chart(found, "rollout").panels
    assert (panel.ticks, panel.series[0].points[0].x) == (["32-32, 10 x 1 agent x 5 steps"], 2e6)
    split = chart(found, "split")
    assert [series.points[0].label for series in split.panels[0].series] == ["3 ms", "1 ms"]
    (axes_,) = plots.paint(split).axes
    assert [(bar.get_x(), bar.get_width()) for bars in axes_.containers for bar in bars] == [(0, 0.75), (0.75, 0.25)]


def test_peers_stand_beside_ours_of_the_same_turns() -> None:
    """A row names the peer and the ratio; what of ours was measured in those turns is no point of another figure."""

    def rate(value: float) -> Metric:
        return Metric(value=value, unit="", direction="higher", low=value, high=value)

    def peer(name: str, theirs: float, ours: float) -> Record:
        where = {"peer": name, "env": "cartpole", "n_envs": 1000, "n_agents": 1, "work": "simulate"}
        metrics = {"env_steps_per_s": theirs, "ours_env_steps_per_s": ours, "ours_over_peer": ours / theirs}
        notes = {"ours": {"case": "env_step", "point": point("pycuda", 1000)}}
        return record(
            case="peer",
            point=where,
            metrics={key: rate(value) for key, value in metrics.items()},
            notes=notes,
            threads=None,
        )

    found = [peer("slow", 1e6, 2.5e6), peer("quick", 4e6, 2e6)]
    found += [record(point=point("pycuda", 1000), taken="in turns with a peer")]
    (panel,) = chart(found, "peers").panels
    assert (panel.title, panel.ticks) == (
        "CartPole, random actions",
        ["quick, 1,000 environments: 0.5 x", "slow, 1,000 environments: 2.5 x"],
    )
    assert {series.name: [place.x for place in series.points] for series in panel.series} == {
        "theirs": [4e6, 1e6],
        "ours, CUDA C (PyCUDA)": [2e6, 2.5e6],
    }
    assert [each.name for each in plots.charts(found)] == ["peers"]
    made = paper.tables(measured_alone(found))["peer"]
    assert [column.name for column in made.columns][-4:] == ["peer", "theirs", "ours", "ours over theirs"]
    assert [row[-4:] for row in made.cells] == [
        ["quick", "4 M", "2 M", "0.5 (0.5 to 0.5)"],
        ["slow", "1 M", "2.5 M", "2.5 (2.5 to 2.5)"],
    ]
    assert report.commands(chart(found, "peers").records) == [
        "python -m bench peers --preset default --where env=cartpole"
    ]


def test_both_painters_draw_the_same_values() -> None:
    """Every dot of a figure of lines stands in the page's numbers and in matplotlib's lines."""
    found = [
        record(rate * n, point=point(backend, n), threads=None)
        for backend, rate in (("numba", 1e6), ("pycuda", 3e6))
        for n in (1, 10, 100)
    ]
    for each in plots.charts(found):
        told = json.loads(json.dumps(report.drawn(each)))
        axes = plots.paint(each).axes
        assert len(told["panels"]) == len(axes) == len(each.panels)
        for panel, of_panel in zip(told["panels"], axes, strict=True):
            want = [[tuple(place[:2]) for place in series["points"]] for series in panel["series"]]
            got = [list(zip(*line.get_data(), strict=True)) for line in of_panel.get_lines()[: len(want)]]
            assert got == want
            assert of_panel.get_xlabel() == panel["x"]
    assert {each.name for each in plots.charts(found)} == {"throughput", "languages"}


def test_ratio_of_languages_is_of_the_same_size_in_the_same_run() -> None:
    """CUDA C at three times Numba's rate is at 3; a size that Numba has not is left out."""
    sizes = {"numba": (1, 10), "pycuda": (1, 10, 100)}
    rates = {"numba": 1e6, "pycuda": 3e6}
    found = [record(rates[b], point=point(b, n), threads=None) for b, of_b in sizes.items() for n in of_b]
    (panel,) = chart(found, "languages").panels
    assert [(place.x, place.y) for place in panel.series[0].points] == [(1, 3), (10, 3)]
    assert panel.level == 1


def test_legend_of_long_names_has_fewer_columns(two_directions: list[Record]) -> None:
    """Names that would not fit side by side stand in more lines, within the paper's width."""
    figure = plots.paint(chart(two_directions, "limits"))
    figure.canvas.draw()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert len(figure.legends[0].get_texts()) == 4


@pytest.fixture
def two_directions() -> list[Record]:
    """Return two GPU backends over environments and over agents, with their share of the limit."""
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
    """Also where rounding takes it to the next unit, and beyond the last one."""
    assert number(value) == text
