"""Rows of a log: reading, checks, writing and resumption."""

from __future__ import annotations

import csv
import json
import math
import sys
import threading
import types
from pathlib import Path

import pytest
import torch

from tests.training.builders import limited, refused
from warpdrive_min.errors import ConfigError, DataError, DiskFullError, TrainingError
from warpdrive_min.training.loop.metrics import (
    GRADIENT_NORM,
    MAX_GRADIENT_NORM,
    RecentReturns,
    check_finite,
    fetch,
    make_row,
)
from warpdrive_min.training.loop.sinks import Csv, JsonLines, TensorBoard, WeightsAndBiases, open_sinks

CONFIG = {"name": "tag_continuous", "trainer": {"num_envs": 4}}


def row(iteration: int, **more) -> dict[str, float | int]:
    return {"iteration": iteration, "env_steps": 100 * iteration, "tagger/loss": iteration / 8, **more}


def rows_in(path: Path) -> list[dict]:
    """Return a file's rows; a table's cells are strings."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file)) if path.suffix == ".csv" else [json.loads(line) for line in file]


FILES = [(JsonLines, "metrics.jsonl"), (Csv, "metrics.csv")]


# ------------------------------------------------------------------ reading and checking


def test_fetch_reads_numbers_of_every_dtype():
    """Numbers of every dtype are fetched exactly, in order."""
    numbers = {"half": torch.tensor(-1.5, dtype=torch.bfloat16), "n": torch.tensor(2**53 - 1), "on": torch.tensor(True)}
    got = fetch(numbers)
    assert got == {"half": -1.5, "n": 2**53 - 1, "on": 1.0}
    assert list(got) == list(numbers)
    assert fetch({}) == {}


@pytest.mark.gpu
def test_fetch_reads_from_several_devices():
    """Gathered states of ranks are on the CPU, shared weights on a GPU."""
    host = torch.tensor([2.0, 3.0])
    assert fetch({"a": torch.tensor(1.0, device="cuda"), "b": host.sum(), "c": host.mean()}) == {
        "a": 1,
        "b": 5,
        "c": 2.5,
    }


def test_row_names_policy_and_metric():
    """A row has run metrics, then each policy's by name."""
    got = make_row(12, 34_000, 1.5, {"tagger": {"loss": 0.5}, "runner": {"loss": 2.0}}, steps_per_s=1e6)
    want = {"iteration": 12, "env_steps": 34_000, "seconds": 1.5, "steps_per_s": 1e6, "tagger/loss": 0.5}
    assert list(got.items()) == list({**want, "runner/loss": 2.0}.items())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_check_finite_names_policy_metric_and_step(value):
    """A metric that is not finite stops training.

    The error has policy, metric, step and a remedy.
    """
    with pytest.raises(TrainingError) as caught:
        check_finite("tagger", {"loss": value, "entropy": 1.0}, 12, 34_000)
    assert str(caught.value) == (
        f"policy 'tagger': loss must be finite (got {value:g} at iteration 12, env step 34,000); "
        "lower lr or max_grad_norm, or scale down rewards and observations"
    )


@pytest.mark.parametrize("name", [GRADIENT_NORM, f"{GRADIENT_NORM}_actor"])
def test_check_finite_stops_exploding_gradients(name):
    """A gradient above the limit stops training."""
    check_finite("tagger", {name: MAX_GRADIENT_NORM, "loss": -1e30}, 1, 2)
    with pytest.raises(TrainingError, match=rf"policy 'tagger': {name} must be at most 1e\+08 \(got 2e\+08 at"):
        check_finite("tagger", {name: 2 * MAX_GRADIENT_NORM}, 1, 2)


# ------------------------------------------------------------------ JSON lines


def test_json_lines_writes_whole_rows(tmp_path):
    """Each JSON row is on disk after `write`.

    Values that are not finite are null.
    """
    path = tmp_path / "metrics.jsonl"
    sink = JsonLines(path)
    sink.write(row(1))
    assert rows_in(path) == [row(1)]
    sink.write(row(2, a=math.nan, b=math.inf, c=-math.inf))
    sink.close()
    assert rows_in(path) == [row(1), row(2, a=None, b=None, c=None)]


# ------------------------------------------------------------------ CSV


def test_csv_grows_columns(tmp_path):
    """A new name adds a column to the CSV table.

    Rows without it have an empty cell.
    """
    path = tmp_path / "metrics.csv"
    sink = Csv(path)
    sink.write(row(1))
    sink.write(row(2, **{"a, b/return": 0.1}))
    sink.write(row(3, other=math.nan))
    sink.write(row(4))
    sink.close()
    assert path.read_text().splitlines() == [
        'iteration,env_steps,tagger/loss,"a, b/return",other',
        "1,100,0.125,,",
        "2,200,0.25,0.1,",
        "3,300,0.375,,nan",
        "4,400,0.5,,",
    ]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("name", ["=1+1", "+a", "-a", "@a", "\t=a", "\r=a", "a\nb", "a\x1b[2Jb"])
def test_csv_has_no_formulas(tmp_path, name):
    """Names in a CSV table cannot be formulas.

    This holds after a resume too. Numbers stay numbers.
    """
    for iteration in (1, 2):
        sink = Csv(tmp_path / "metrics.csv", iteration - 1)
        sink.write({"iteration": iteration, name: -1.5})
        sink.close()
    header, *rows = (tmp_path / "metrics.csv").read_text().splitlines()
    assert rows == ["1,-1.5", "2,-1.5"]
    assert header.removeprefix("iteration,")[0] not in "=+-@\t\r"
    assert header.isprintable()


@pytest.mark.parametrize(("sink", "name"), FILES)
def test_file_resumes_at_a_checkpoint(tmp_path, sink, name):
    """A resumed file loses later and incomplete rows.

    Columns still grow.
    """
    path = tmp_path / name
    first = sink(path)
    for iteration in range(5):
        first.write(row(iteration))
    first.close()
    with path.open("a") as file:
        file.write("2,200,0.2" if sink is Csv else '{"iteration": 5, "env_st')  # of 0.25
    second = sink(path, resume_iteration=2)
    second.write(row(3))
    second.write(row(4, other=7))
    second.close()
    got = rows_in(path)
    assert [int(cells["iteration"]) for cells in got] == [0, 1, 2, 3, 4]
    assert [float(cells["tagger/loss"]) for cells in got] == [0, 1 / 8, 2 / 8, 3 / 8, 4 / 8]
    assert [cells.get("other") or "" for cells in got][:-1] == [""] * 4
    assert int(got[-1]["other"]) == 7
    assert [file.name for file in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("sink", "name", "text"),
    [
        *((*FILES[0], line) for line in ('{"iteration": 1', "[1]", '{"env_steps": 3}', '{"iteration": null}')),
        (*FILES[1], "3,x"),
        (*FILES[1], "5"),
    ],
)
def test_file_refuses_what_is_no_row(tmp_path, sink, name, text):
    """A broken row before the last is an error.

    The error has file and line number.
    """
    path = tmp_path / name
    first = "loss,iteration" if sink is Csv else json.dumps(row(0))
    path.write_text(f"{first}\n{text}\n{json.dumps(row(2))}\n")
    before = path.read_text()
    with refused(f"{path}, line 2", text, DataError):
        sink(path, resume_iteration=2)
    assert path.read_text() == before


@pytest.mark.parametrize("sink", [JsonLines, Csv])
def test_file_is_of_one_run(tmp_path, sink):
    """A new run does not write into another's file."""
    path = tmp_path / "metrics"
    first = sink(path)
    first.write(row(0))
    first.close()
    with refused("metrics", f"{path}, which already has rows"):
        sink(path)
    again = sink(path, resume_iteration=-1)
    again.write(row(0))
    again.close()
    assert path.read_text().count("0.0") == 1


@pytest.mark.parametrize("sink", [JsonLines, Csv])
def test_file_may_start_at_a_checkpoint(tmp_path, sink):
    """A resumed run with a new sink begins a new file."""
    opened = sink(tmp_path / "metrics", resume_iteration=7)
    opened.write(row(8))
    opened.close()
    assert "800" in (tmp_path / "metrics").read_text()


# ------------------------------------------------------------------ services


def test_tensorboard_on_a_full_disk_is_one_error(tmp_path, monkeypatch):
    """TensorBoard on a full disk raises one error.

    Its thread prints no traceback; those of other threads are reported as before.
    """
    pytest.importorskip("tensorboard")
    told = []
    monkeypatch.setattr(threading, "excepthook", lambda failed: told.append(failed.exc_type))
    opened = TensorBoard(tmp_path, CONFIG)
    opened.write(row(0))
    with limited(sum(path.stat().st_size for path in tmp_path.iterdir()) + 100), pytest.raises(DiskFullError):
        [opened.write(row(iteration)) for iteration in range(1, 1_000)]
    with pytest.raises(DiskFullError):
        opened.close()
    assert told == []
    other = threading.Thread(target=lambda: 1 // 0)
    other.start()
    other.join()
    assert told == [ZeroDivisionError]


def test_tensorboard_shows_each_iteration_once(tmp_path):
    """TensorBoard has each iteration of a resumed run once."""
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    first = TensorBoard(tmp_path, CONFIG)
    for iteration in range(4):
        first.write(row(iteration))
    first.close()
    second = TensorBoard(tmp_path, CONFIG, resume_iteration=1)
    for iteration in (2, 3, 4):
        second.write(row(iteration, **{"tagger/loss": iteration * 10}))
    second.close()
    shown = accumulators.EventAccumulator(str(tmp_path)).Reload()
    assert set(shown.Tags()["scalars"]) == {"iteration", "env_steps", "tagger/loss"}
    got = [(event.step, event.value) for event in shown.Scalars("tagger/loss")]
    assert got == [(0, 0), (1, 0.125), (2, 20), (3, 30), (4, 40)]
    text = shown.Tensors("run config/text_summary")[0].tensor_proto.string_val[0].decode()
    assert '"num_envs": 4' in text


class FakeRun:
    """Fake of `wandb.init`'s result that records its calls."""

    def __init__(self, **options) -> None:
        self.options, self.id = options, options["id"] or "abc123"
        self.logged, self.is_finished = [], False

    def log(self, values, step) -> None:
        self.logged.append((step, values))

    def finish(self) -> None:
        self.is_finished = True


def test_weights_and_biases_continues_its_run(tmp_path, monkeypatch):
    """Weights & Biases continues a resumed run by its id."""
    runs: list[FakeRun] = []

    def init(**options) -> FakeRun:
        runs.append(FakeRun(**options))
        return runs[-1]

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    (first,) = open_sinks(["wandb"], tmp_path, "tag/seed 3", CONFIG)
    assert isinstance(first, WeightsAndBiases)
    first.write(row(6))
    first.close()
    (second,) = open_sinks(["wandb"], tmp_path, "tag/seed 3", CONFIG, resume_iteration=6)
    second.close()
    options = {"resume": "allow", "name": "tag/seed 3", "config": CONFIG, "dir": str(tmp_path)}
    assert [run.options for run in runs] == [{"id": None, **options}, {"id": "abc123", **options}]
    assert runs[0].logged == [(6, row(6))]
    assert all(run.is_finished for run in runs)


@pytest.mark.parametrize(
    ("sink", "module", "install"),
    [
        ("tensorboard", "torch.utils.tensorboard", r'tensorboard .*pip install -e ".*\[train\]"'),
        ("wandb", "wandb", "wandb .*pip install wandb"),
    ],
)
def test_missing_package_names_the_install_line(tmp_path, monkeypatch, sink, module, install):
    """A sink without its package raises with install instructions."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=f"metrics: needs the package {install}"):
        open_sinks(["jsonl", sink], tmp_path / "run", "run", CONFIG)
    assert not (tmp_path / "run").exists()


def test_refused_sink_leaves_the_rows_of_the_others(tmp_path, monkeypatch):
    """A refused sink leaves the other sinks' rows."""
    sink = JsonLines(tmp_path / "metrics.jsonl")
    for iteration in range(4):
        sink.write(row(iteration))
    sink.close()
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError):
        open_sinks(["jsonl", "wandb"], tmp_path, "run", CONFIG, resume_iteration=1)
    assert len(rows_in(tmp_path / "metrics.jsonl")) == 4


# ------------------------------------------------------------------ all of them


def test_open_sinks_opens_what_is_named(tmp_path):
    """Each name opens its sink, in a new folder."""
    folder = tmp_path / "a" / "run"
    sinks = open_sinks(["csv", "jsonl"], folder, "run", CONFIG)
    assert [type(sink) for sink in sinks] == [Csv, JsonLines]
    for sink in sinks:
        sink.write(row(2))
        sink.close()
    assert rows_in(folder / "metrics.jsonl") == [row(2)]
    assert rows_in(folder / "metrics.csv") == [{"iteration": "2", "env_steps": "200", "tagger/loss": "0.25"}]
    assert open_sinks([], folder, "run", CONFIG) == []


# ------------------------------------------------------------------ recent returns


def test_recent_returns_take_rows_until_every_environment_had_an_episode():
    """Recent returns cover enough rows for one episode per environment.

    By hand, rows of 50 steps: two for 100, three for 101, weighted.
    """
    rows = [
        {"env_steps": 50, "p/episodes": 1.0, "p/mean_episodic_return": 90.0},
        {"env_steps": 100, "p/episodes": 0.0, "p/mean_episodic_return": float("nan")},
        {"env_steps": 150, "p/episodes": 3.0, "p/mean_episodic_return": 10.0},
    ]

    def means(n_steps, rows=rows, first_step=0):
        recent = RecentReturns(n_steps)
        recent.restart(first_step)
        return [recent.add(row, ["p"])["p"] for row in rows]

    assert means(50) == [90, None, 10]
    assert means(100) == [None, 90, 10]
    assert means(101) == means(150) == [None, None, (90 + 3 * 10) / 4]
    assert means(151) == [None] * 3
    assert means(100, rows[1:], first_step=50) == [None, 10]
    assert means(101, rows[1:], first_step=50) == [None, None]


@pytest.mark.parametrize("kind", [JsonLines, Csv])
def test_row_that_finds_no_room_is_left_out_whole(kind, tmp_path):
    """A row without space is removed, and the error names the file."""
    path = tmp_path / "metrics"
    sink = kind(path)
    row = {"iteration": 1, "loss": 0.5}
    sink.write(row)
    before = path.read_bytes()
    message = r"metrics: needs \d+ more bytes, and a file may .* \(ulimit -f\); file too large: raise the limit and"
    with limited(len(before) + 2), pytest.raises(DiskFullError, match=f"{message} start again after removing"):
        sink.write(row)
    (tmp_path / "checkpoints" / "checkpoint_000000001").mkdir(parents=True)
    with limited(len(before) + 2), pytest.raises(DiskFullError, match=f"{message} resume from the last checkpoint"):
        sink.write(row)
    sink.close()
    assert path.read_bytes() == before
