"""Figures: drawn from evidence alone, in three formats."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.image import imread
from PIL import Image

from bench import report
from bench.core.errors import ShowError
from bench.core.machine import ROOT
from bench.core.point import Metric
from bench.core.record import Host, Record
from bench.show import plots
from bench.show.charts import PART_COLORS
from bench.show.plots import paint
from bench.show.records import by_machine, latest
from bench.show.views.cases import CHARTS
from bench.show.views.env_charts import throughput_chart
from bench.show.views.training_runs import training_run_chart
from tests.bench.builders import bench, point, record, two_backends


@pytest.fixture
def sweep() -> list[Record]:
    found = []
    for backend, rate, threads in (("cpu", 1e4, 1), ("host", 1e5, 2), ("numba", 1e6, None), ("pycuda", 2e6, None)):
        sizes = (1, 100, 10_000)
        found.extend(record(rate * n_envs, point=point(backend, n_envs), threads=threads) for n_envs in sizes)
        found.append(record(rate, point=point(backend, 10, 110, "tag_continuous"), threads=threads))
    return found


def test_every_figure_is_written_in_each_format(tmp_path):
    """Each figure is written in each requested format."""
    kinds = list(plots.Format)
    paths = plots.draw(two_backends(), tmp_path / "figures", formats=kinds)
    assert {path.name for path in paths} == {f"run-{name}.{kind}" for name in ("throughput",) for kind in kinds}
    assert sorted((tmp_path / "figures").iterdir()) == sorted(paths), "no temporary file is left"
    for path in paths:
        if path.suffix == ".png":
            assert imread(path)[..., :3].std() > 0.01


def test_png_keeps_the_exact_colours_of_series():
    """Reducing a PNG's colours keeps the series' colours."""
    pixels = np.random.default_rng(1).integers(0, 256, (100, 100, 3), np.uint8)
    colours = [tuple(round(255 * part) for part in mpl.colors.to_rgb(name)) for name in PART_COLORS]
    for row, colour in enumerate(colours):
        pixels[10 * row, :10] = colour
    pixels[:, 50:] = 255
    png = io.BytesIO()
    Image.fromarray(pixels).save(png, format="png", dpi=(200, 200))
    with Image.open(io.BytesIO(plots._with_few_colours(png))) as image:
        assert image.mode == "P"
        assert [image.convert("RGB").getpixel((5, 10 * row)) for row in range(len(colours))] == colours
        assert image.convert("RGB").getpixel((99, 99)) == (255, 255, 255)


def test_pdf_embeds_its_fonts(tmp_path):
    """A PDF embeds its fonts as TrueType.

    Publishers refuse Type 3.
    """
    paths = plots.draw([record()], tmp_path, ["pdf"])
    (pdf,) = (path for path in paths if path.name == "run-throughput.pdf")
    content = pdf.read_bytes()
    assert b"/FontFile2" in content
    assert not re.search(rb"/Subtype\s*/Type3", content)


def test_figure_names_hardware_commit_and_run(sweep):
    """The footer has the machine, the commit and the run."""
    text = paint(throughput_chart(sweep)).get_supxlabel()
    for word in ("NVIDIA H200", "16 CPU cores", "commit 0123456", "run run"):
        assert word in text


def test_figures_count_points_with_a_sign_of_tables(sweep):
    """Both footers count points on shared cores and unsettled warm-ups."""
    loud = Host(load_before=0.0, pinned_cores=None, others_busy=0.5)
    found = [sweep[0].model_copy(update={"host": loud, "warm_up": {"settled": False}}), *sweep[1:3]]
    drawn = throughput_chart(found)
    counted = report.figure("machine", drawn)["notes"]
    assert counted == [
        "1 of 3 points: times did not stabilise during the warm-up",
        "1 of 3 points: other processes used the cores",
    ]
    assert "; ".join(counted) in paint(drawn).get_supxlabel().replace("\n", " ")
    assert report.figure("machine", throughput_chart(sweep))["notes"] == []


def test_environments_of_one_size_are_named_beside_others():
    """A figure over sizes says which environments it leaves out."""
    found = [record(point=point("cpu", n, 110, "tag_continuous")) for n in (1, 2)]
    assert "not shown" not in throughput_chart(found).statistic
    found += [record(point=point("cpu", 4, env=env)) for env in ("cartpole", "pendulum")]
    assert throughput_chart(found).statistic.endswith("; not shown, as of one size: CartPole, Pendulum")


@pytest.mark.parametrize(("n_runs", "says"), [(8, "run 1, 2, 3, 4, 5, 6, 7, 8"), (9, "9 runs, 1 to 9")])
def test_footer_names_many_runs_by_the_first_and_the_last(n_runs, says):
    """The footer shortens many runs to the first and last."""
    found = [record(1e4 * n, point=point("pycuda", n), run_id=str(n)) for n in range(1, n_runs + 1)]
    assert says in paint(throughput_chart(found)).get_supxlabel().replace("\n", " ")


@pytest.mark.parametrize("n_names", [2, 8])
def test_long_legend_leaves_room_for_its_lines(n_names):
    """A longer legend makes a figure taller, not its panel smaller."""
    chart = throughput_chart([record(point=point("cpu", n, 110, "tag_continuous")) for n in (1, 2)])
    (panel,) = chart.panels
    names = [f"a long name of a series, {n}" for n in range(n_names)]
    figure = paint(replace(chart, panels=[replace(panel, series=[replace(panel.series[0], name=n) for n in names])]))
    FigureCanvasAgg(figure).draw()
    (axes,) = figure.axes
    assert axes.get_position().height * figure.get_figheight() > 1.2
    (legend,) = figure.legends
    assert not legend.get_window_extent().overlaps(axes.get_window_extent())


@pytest.mark.parametrize("ratio", [1.01, 1.7, 3, 8, 20, 60, 1e5])
def test_every_range_of_values_has_several_numbers(ratio):
    """Axes of any range have several numbers."""
    rates = (3.1e3, 3.1e3 * ratio)
    found = [record(rate, point=point("cpu", n, 110, "tag_continuous")) for n, rate in enumerate(rates, start=1)]
    found = [each.model_copy(update={"metrics": exact(each.metrics)}) for each in found]
    figure = paint(throughput_chart(found))
    FigureCanvasAgg(figure).draw()
    (axes,) = figure.axes
    (right,) = axes.child_axes
    for each in (axes, right):
        low, high = each.get_ylim()
        named = [tick for tick in each.yaxis.get_major_ticks() if tick.label1.get_text() or tick.label2.get_text()]
        assert sum(low <= tick.get_loc() <= high for tick in named) >= 2


def exact(metrics: dict[str, Metric]) -> dict[str, Metric]:
    """Return metrics without their intervals."""
    return {name: each.model_copy(update={"low": each.value, "high": each.value}) for name, each in metrics.items()}


def test_what_is_no_evidence_is_not_drawn(tmp_path):
    """Failed, skipped and wrong records are not drawn."""
    refused = [record(status="failed"), record(status="skipped"), record(passed=False)]
    with pytest.raises(ShowError, match="no record is measured and correct"):
        plots.draw(refused, tmp_path)
    assert latest(each for each in [*refused, record()] if each.is_evidence) == [record()]


def test_machines_are_not_mixed_in_a_figure(tmp_path):
    """A figure of records from two machines raises an error."""
    other = record(machine={"gpu": None, "cpu": "AMD EPYC", "cores": 2})
    with pytest.raises(ShowError, match="one machine"):
        plots.draw([record(), other], tmp_path)
    assert set(by_machine([record(), other])) == {"nvidia-h200-16-cores", "amd-epyc-2-cores"}


def test_figure_is_that_of_the_style_alone(tmp_path):
    """Local matplotlib settings do not change a figure."""
    records = [record(point=point("host", n)) for n in (1, 10)]
    drawn = plots.draw(records, tmp_path / "here")
    with mpl.rc_context({"axes.facecolor": "black", "xtick.major.pad": 30, "axes.unicode_minus": False}):
        elsewhere = plots.draw(records, tmp_path / "there")
    (one,), (other,) = (
        [path for path in paths if path.name.endswith("throughput.png")] for paths in (drawn, elsewhere)
    )
    assert one.read_bytes() == other.read_bytes()


def test_other_software_stands_in_the_panel_of_its_environment():
    """Its fastest setting stands beside our many steps per launch."""
    fused = {"mode": "fused", "kept": "last"}
    ours = [record(1e6 * n, point=point("pycuda", n), threads=None) for n in (1, 100)]
    many = [record(9e6 * n, case="many_steps", point=point("pycuda", n, **fused), threads=None) for n in (1, 100)]
    beside = {"case": "many_steps", "point": {}}

    def peer(variant: str, rate: float, n_envs: int) -> Record:
        at = {"peer": "gymnax", "env": "cartpole", "n_envs": n_envs, "n_agents": 1, "work": "simulate"}
        notes = {"ours": beside, "version": "1", "counts": ""}
        made = record(rate, case="peer", point={**at, "variant": variant}, threads=None, notes=notes)
        return made.model_copy(update={"metrics": made.metrics | {"ours_over_peer": made.metrics["env_steps_per_s"]}})

    others = [peer("scan", 2e6, 1), peer("scan-2", 3e6, 1), peer("scan", 4e8, 100)]
    (panel,) = (chart := throughput_chart([*ours, *many, *others])).panels
    drawn = {series.name: [(dot.x, dot.y) for dot in series.points] for series in panel.series}
    assert drawn["CUDA C (PyCUDA), many steps per launch"] == [(1, 9e6), (100, 9e8)]
    assert drawn["gymnax, fastest setting"] == [(1, 3e6), (100, 4e8)]
    assert chart.statistic.endswith("; many steps per launch store the last one")
    alone = throughput_chart([*ours, *others])
    assert "per launch" not in alone.caption + alone.statistic, "no such series"


def test_default_folder_is_ignored_by_git(tmp_path, monkeypatch):
    """`plot` without `--out` overwrites no committed figures."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").write_text("".join(each.to_line() for each in two_backends()))
    said = bench("plot", "a.jsonl")
    (drawn,) = tmp_path.rglob("*.png")
    assert said == f"figure: {drawn.relative_to(tmp_path)}\n"
    assert f"/{drawn.relative_to(tmp_path).parents[1]}/" in (ROOT / ".gitignore").read_text().splitlines()


def test_a_set_has_at_most_eight_figures():
    """Each has its own case of evidence."""
    assert len(CHARTS) <= 8


def test_training_run_has_a_learning_curve(tmp_path):
    """`plot RUN` draws each policy by steps and seconds."""
    rows = [{"env_steps": n, "seconds": n / 10, "a/mean_episodic_return": n or None} for n in (0, 10, 20)]
    runs = [tmp_path / name for name in ("one", "two")]
    for run in runs:
        run.mkdir()
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    steps, seconds = training_run_chart(runs).panels
    assert [(series.name, [(point.x, point.y) for point in series.points]) for series in steps.series] == [
        (run.name, [(10, 10), (20, 20)]) for run in runs
    ]
    assert [point.x for point in seconds.series[0].points] == [1, 2]
    assert bench("plot", *runs, *runs, "--out", tmp_path) == f"figure: {tmp_path}/one-training-run.png\n"
    assert f"name one or several runs, as {runs[1]}" in bench("plot", tmp_path, exits=1)
    (runs[0] / "metrics.jsonl").write_text(json.dumps(rows[0]))
    assert f"{runs[0]} must have the return of an ended episode" in bench("plot", runs[0], exits=1)


def test_runs_of_one_name_are_told_apart(tmp_path):
    """Labels of equal names are paths."""
    runs = [tmp_path / tag / "1" for tag in ("a", "b")]
    for run in runs:
        run.mkdir(parents=True)
        (run / "metrics.jsonl").write_text('{"env_steps": 1, "seconds": 1, "a/mean_episodic_return": 2}\n')
    panel, _ = training_run_chart(runs).panels
    assert [series.name for series in panel.series] == ["a/1", "b/1"]


def test_runs_of_other_configs_have_their_own_panels(tmp_path):
    """Returns of different environments have different scales."""
    runs = [tmp_path / name for name in ("one", "two", "three")]
    for run, config in zip(runs, ("cartpole", "tag", "cartpole"), strict=True):
        run.mkdir()
        (run / "metrics.jsonl").write_text('{"env_steps": 1, "seconds": 1, "a/mean_episodic_return": 2}\n')
        (run / "run_config.json").write_text(json.dumps({"name": config}))
    shown = [(panel.title, [series.name for series in panel.series]) for panel in training_run_chart(runs).panels[::2]]
    assert shown == [("cartpole, policy a", ["one", "three"]), ("tag, policy a", ["two"])]
    colors = [series.style["color"] for panel in training_run_chart(runs).panels[::2] for series in panel.series]
    assert len(set(colors)) == 3, "the legend is that of all panels"


@pytest.mark.parametrize(
    "line", ["{", "3", "[1]", '{"env_steps": {}}', '{"a/mean_episodic_return": "x"}', "\N{DAGGER}"]
)
def test_line_of_metrics_must_have_numbers(line, tmp_path):
    """`plot RUN` names the line."""
    (tmp_path / "metrics.jsonl").write_text(
        f'{{"env_steps": 1}}\n{line}\n', encoding="utf-16" if line > "~" else "utf-8"
    )
    got = bench("plot", tmp_path, exits=1)
    assert "metrics.jsonl: line" in got
    assert "must be a JSON object of numbers" in got
