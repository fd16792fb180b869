"""Metrics of a run: rows of numbers, read from the device at once, checked, and written to sinks.

A row is ``{"iteration": ..., "env_steps": ..., "seconds": ..., "steps_per_s": ..., "<policy>/<metric>": ...}``.
"""

from __future__ import annotations

import abc
import contextlib
import csv
import functools
import io
import json
import math
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from warpdrive_min.errors import DataError, TrainingError, known, require
from warpdrive_min.files import room_for, write_atomically
from warpdrive_min.packages import optional_package
from warpdrive_min.text import one_line
from warpdrive_min.training.loop import checkpoint

if TYPE_CHECKING:
    from warpdrive_min.training.loop.policies import PolicyGroup
    from warpdrive_min.training.loop.rollout import RolloutRecorder
    from warpdrive_min.training.ranks import World

Row = Mapping[str, float | int]

STEPS_PER_S: Final = "steps_per_s"
"""Steps of all environments together since the last row, 1/s."""
EPISODIC_RETURN: Final = "mean_episodic_return"
"""Mean over episodes since the last row of the rewards of a policy's agents, summed; NaN: no episode ended."""
GRADIENT_NORM: Final = "gradient_norm"
"""Norm of a policy's gradient before it is clipped; DDPG has one of each network, with its name after this."""
SKIPPED_STEPS: Final = "n_skipped_steps"
"""Metric of a policy: steps of its optimisers that were not taken since the gradient was not finite."""
IMPOSSIBLE_ROWS: Final = "n_impossible_rows"
"""Metric of a policy of choices: draws since the last row for which its mask or its numbers left no choice."""
JSONL, CSV = "metrics.jsonl", "metrics.csv"
"""Files of rows in the folder of a run."""
ADVICE: Final = "lower lr or max_grad_norm, or scale down rewards and observations"
MAX_GRADIENT_NORM: Final = 1e8
"""A longer gradient means that training diverges: the next numbers are not finite any more."""


Numbers = dict[str, dict[str, float]]
"""Numbers by policy and name."""
Array = npt.NDArray[np.float64]
Arrays = dict[str, Array]
"""Numbers of the members of a population, (members,), by name."""


def read(
    groups: Iterable[PolicyGroup], recorders: Mapping[str, RolloutRecorder], world: World
) -> tuple[Numbers, Numbers]:
    """Read, in one copy, the metrics of the last updates and the means over episodes; synchronises.

    Of several ranks these are means of metrics, and means over the episodes of all; NaN where none has ended.

    Args:
        groups: Policies; those that do not learn have no metrics.
        recorders: Recorders of the rewards, by the suffix of their array's name.
        world: The ranks, all of which must read.
    """
    groups = list(groups)
    updates: dict[str, Tensor] = {}
    sums: dict[str, Tensor] = {}
    for group in groups:
        statistics, rows = recorders[group.arrays.suffix].statistics(), group.arrays.rows
        returns = statistics["finished_return"]
        sums[f"{group.name}/returns"] = (returns if rows is None else returns[rows]).sum()
        sums[f"{group.name}/steps"] = statistics["finished_steps"]
        sums[f"{group.name}/episodes"] = statistics["finished_episodes"]
        if (impossible := _impossible(group)) is not None:
            sums[f"{group.name}/impossible"] = impossible
        if group.algorithm is not None:
            updates |= {f"{group.name}/{key}": value for key, value in group.algorithm.metrics.items()}
    numbers = fetch(world.averaged(updates) | world.summed(sums))
    metrics = {
        group.name: {key: numbers[f"{group.name}/{key}"] for key in group.algorithm.metrics}
        for group in groups
        if group.algorithm is not None
    }
    episodes = {}
    for group in groups:
        of_group = (numbers[f"{group.name}/{key}"] for key in ("returns", "steps", "episodes"))
        episodes[group.name] = {key: float(mean) for key, mean in _means(group, *of_group).items()}
        if f"{group.name}/impossible" in numbers:
            episodes[group.name][IMPOSSIBLE_ROWS] = numbers[f"{group.name}/impossible"]
    return metrics, episodes


def read_members(group: PolicyGroup, recorder: RolloutRecorder) -> Arrays:
    """Read, in one copy, what `read` reads, of each member of a population, (members,) float64; synchronises."""
    assert group.algorithm is not None, "a population learns"
    sums = recorder.statistics(*group.shape)
    tensors = [sums["finished_return"].sum(1), sums["finished_steps"], sums["finished_episodes"]]
    names, impossible = list(group.algorithm.metrics), _impossible(group, *group.shape)
    tensors += group.algorithm.metrics.values()
    if impossible is not None:
        names.append(IMPOSSIBLE_ROWS)
        tensors.append(impossible)
    returns, steps, episodes, *numbers = torch.stack([tensor.double() for tensor in tensors]).cpu().numpy()
    means = _means(group, returns, steps, episodes)
    return means | dict(zip(names, numbers, strict=True))


def _impossible(group: PolicyGroup, *members: int) -> Tensor | None:
    """Return how often nothing could be drawn for a policy's agents, 0-d or (members,); None: it has no choices."""
    counts = group.actions.impossible
    if counts is None:
        return None
    own = counts if group.arrays.rows is None else counts[:, group.arrays.rows]
    return own.view(*members, -1).sum(-1)


def fetch(numbers: Mapping[str, Tensor]) -> dict[str, float]:
    """Read 0-d tensors from the device in one copy, by their types; synchronises."""

    def kind(name: str) -> str:
        return str(numbers[name].dtype)

    names = sorted(numbers, key=kind)
    of_types = [torch.stack([numbers[name] for name in each]).double() for _, each in groupby(names, kind)]
    read = dict(zip(names, torch.cat(of_types).tolist() if of_types else [], strict=True))
    return {name: read[name] for name in numbers}


def _means(group: PolicyGroup, returns: Any, steps: Any, episodes: Any) -> dict[str, Any]:
    """Return the means over episodes from sums over them; NaN where none has ended."""
    with np.errstate(invalid="ignore"):
        mean_return, mean_steps = np.divide(returns, episodes), np.divide(steps, episodes)
    return {
        EPISODIC_RETURN: mean_return,
        "mean_agent_return": mean_return / group.arrays.n_agents,
        "mean_episodic_steps": mean_steps,
        "episodes": episodes,
    }


class RecentReturns:
    """Mean returns over the latest rows that have a number of steps of all environments together.

    With as many steps as all environments have in an episode of full length, long episodes count as well as short
    ones, which end first.

    Args:
        n_steps: Steps.
    """

    def __init__(self, n_steps: int) -> None:
        self._n_steps = n_steps
        self.restart(0)

    def restart(self, first_step: int) -> None:
        """Forget all rows; ``first_step`` steps are done before the next one."""
        self._rows: list[Mapping[str, Any]] = []
        self._first_step = first_step

    def add(self, row: Row, policies: Iterable[str]) -> dict[str, float | None]:
        """Add a row, and return the mean return of each policy; None: there are too few steps, or no episode ended."""
        means = {policy: float(mean) for policy, mean in self.means(row, policies).items()}
        return {policy: mean if math.isfinite(mean) else None for policy, mean in means.items()}

    def means(self, row: Mapping[str, Any], policies: Iterable[str]) -> dict[str, Any]:
        """Add a row, of a population with arrays (members,), and return the same means; NaN where there is none."""
        self._rows.append(row)
        while len(self._rows) > 1 and row["env_steps"] - self._rows[0]["env_steps"] >= self._n_steps:
            self._first_step = int(self._rows.pop(0)["env_steps"])
        if row["env_steps"] - self._first_step < self._n_steps:
            return {policy: math.nan * row[f"{policy}/episodes"] for policy in policies}
        return {policy: self._mean(policy) for policy in policies}

    def _mean(self, policy: str) -> Any:
        rows = [(row[f"{policy}/episodes"], row[f"{policy}/{EPISODIC_RETURN}"]) for row in reversed(self._rows)]
        with np.errstate(invalid="ignore"):
            return np.divide(sum(np.where(n, n * mean, 0.0) for n, mean in rows), sum(n for n, _ in rows))


def check_finite(
    policy: str, metrics: Mapping[str, float], iteration: int, env_steps: int, last_iteration: int = 0
) -> None:
    """Make sure that an update gave numbers that training can go on with.

    Args:
        policy: Name of the policy.
        metrics: Metrics of its algorithm, by name; not means over episodes, which are NaN if none ended.
        iteration: Iterations done.
        env_steps: Steps done, of all environments together.
        last_iteration: Iterations done at the last check.

    Raises:
        TrainingError: One is not finite, or a gradient is longer than `MAX_GRADIENT_NORM`; names all of them. Or a
            gradient was not finite since the last check, and its step was not taken.
    """
    broken = {name: number for name, number in metrics.items() if not math.isfinite(number)}
    exploding = {
        name: number
        for name, number in metrics.items()
        if name.startswith(GRADIENT_NORM) and number > MAX_GRADIENT_NORM
    }
    for rule, wrong in (("be finite", broken), (f"be at most {MAX_GRADIENT_NORM:g}", exploding)):
        if wrong:
            got = " and ".join(f"{number:g}" for number in wrong.values())
            raise TrainingError(
                f"policy {policy!r}: {' and '.join(wrong)} must {rule} (got {got} at iteration {iteration:,}, "
                f"env step {env_steps:,}); {ADVICE}"
            )
    if n_skipped := sum(number for name, number in metrics.items() if name.startswith(SKIPPED_STEPS)):
        raise TrainingError(
            f"policy {policy!r}: gradients must be finite (got {n_skipped:g} that were not, from iteration "
            f"{last_iteration + 1:,} to {iteration:,}, env step {env_steps:,}); their steps were not taken; {ADVICE}"
        )


def check_return(policy: str, mean_return: float, when: str = "") -> None:
    """Make sure that returns fit into float32, in which environments sum up the rewards of an episode.

    Raises:
        TrainingError: They do not, though each reward may.
    """
    rule, do = f"the return of an episode must be finite{when}", "scale down the rewards"
    require(math.isfinite(mean_return), f"policy {policy!r}", rule, mean_return, do, TrainingError)


def make_row(
    iteration: int, env_steps: int, seconds: float, metrics: Mapping[str, Mapping[str, float]], **more: float
) -> dict[str, float | int]:
    """Return the row of what `read` returned; ``more`` concerns the whole run, such as `STEPS_PER_S`."""
    of_policies = {f"{policy}/{name}": value for policy, values in metrics.items() for name, value in values.items()}
    return {"iteration": iteration, "env_steps": env_steps, "seconds": seconds, **more, **of_policies}


# ------------------------------------------------------------------ where rows go


class Sink(Protocol):
    """Takes the rows of a run; making one checks all that it needs, and writes nothing."""

    def open(self) -> None:
        """Open its files; the first `write` does it too."""
        ...

    def write(self, row: Row) -> None:
        """Add a row; a process that is killed later does not lose it."""
        ...

    def close(self) -> None:
        """Take no more."""
        ...


def open_sinks(
    names: Sequence[str],
    folder: str | Path,
    run_name: str,
    config: Mapping[str, Any],
    resume_iteration: int | None = None,
) -> list[Sink]:
    """Open the named sinks of a run; where one is refused, no file has changed.

    Args:
        names: ``jsonl``, ``csv``, ``tensorboard``, ``wandb``.
        folder: Folder of their files; made if missing.
        run_name: Shown by Weights & Biases.
        config: The run config, in plain values.
        resume_iteration: Iteration of the checkpoint that the run goes on from: rows after it are dropped, for they
            will come again. None: the run is new.

    Raises:
        ConfigError: A name is unknown, a package is missing, or a new run finds the file of another one.
        DataError: A file to be continued is not made of rows.
    """
    folder = Path(folder)
    makers: dict[str, Callable[[], Sink]] = {
        "jsonl": lambda: JsonLines(folder / JSONL, resume_iteration),
        "csv": lambda: Csv(folder / CSV, resume_iteration),
        "tensorboard": lambda: TensorBoard(folder / "tensorboard", config, resume_iteration),
        "wandb": lambda: WeightsAndBiases(folder, run_name, config, resume_iteration),
    }
    for name in names:
        require(name in makers, "saving.sinks", "unknown sink", name, f"known are {known(makers)}")
    sinks = [makers[name]() for name in names]
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as opened:
        for sink in sinks:
            opened.callback(sink.close)
            sink.open()
        opened.pop_all()  # all are open: they stay so
    return sinks


def require_new(folder: Path) -> None:
    """Make sure that a folder has no rows of another run.

    Raises:
        ConfigError: It has.
    """
    for name in (JSONL, CSV):
        _require_empty(folder / name)


def _require_empty(path: Path) -> None:
    is_empty = not path.exists() or not path.stat().st_size
    do = checkpoint.next_step(path.parent, resume="resume that run or choose another folder")
    require(is_empty, "metrics", "a new run needs a file of its own", f"{path}, which has rows already", do)


class _RowFile(abc.ABC):
    """A file with a row a line, below a header of some lines.

    Args:
        path: The file.
        resume_iteration: As of `open_sinks`.
    """

    n_header: ClassVar[int] = 0

    def __init__(self, path: Path, resume_iteration: int | None = None) -> None:
        self._path = path
        self._kept = None if resume_iteration is None else self._lines_until(resume_iteration)
        if resume_iteration is None:
            _require_empty(path)
        self._opened: io.FileIO | None = None

    def open(self) -> None:
        """Open the file; of a run that resumes, first drop the later rows."""
        if self._opened is None:
            if self._kept is not None:
                write_atomically(self._path, "".join(self._kept))
                self._kept = None
            # A line is one write: a kill cuts at most the last one
            self._opened = self._path.open("ab", buffering=0)

    def close(self) -> None:
        """Close the file."""
        if self._opened is not None:
            self._opened.close()
        self._opened = None

    @property
    def _file(self) -> io.FileIO:
        self.open()
        assert self._opened is not None
        return self._opened

    def append(self, line: str) -> None:
        """Add a line, whole or not at all.

        Raises:
            DiskFullError: There is no room for it.
        """
        left, end = memoryview(line.encode()), self._file.seek(0, os.SEEK_END)
        with room_for(self._path, len(left), f"make room and {checkpoint.next_step(self._path.parent)}"):
            try:
                while left:
                    left = left[self._file.write(left) :]  # less than all of it where the room ends
            except OSError:
                self._file.truncate(end)
                raise

    def _lines_until(self, iteration: int) -> list[str]:
        """Return the lines without later iterations, and without a last line that a kill cut short.

        Raises:
            DataError: Another line is not a row.
        """
        lines = self._lines()
        kept = lines[: self.n_header]
        for number, line in enumerate(lines[self.n_header :], start=1 + self.n_header):
            try:
                is_kept = self._iteration(line) <= iteration
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                what, rule = f"{self._path}, line {number}", "must be a row with its iteration"
                raise DataError.of(what, rule, line.strip()[:80], "delete the line") from error
            if is_kept:
                kept.append(line)
        return kept

    def _lines(self) -> list[str]:
        """Return the lines that end, with their ends; a kill may have cut the one that does not."""
        if not self._path.exists():
            return []
        with self._path.open(encoding="utf-8", newline="") as file:
            try:
                return [line for line in file if line.endswith("\n")]
            except UnicodeDecodeError as error:
                do = "resume that run in another folder"
                raise DataError.of(str(self._path), "must be text in UTF-8", f"byte {error.start}", do) from error

    @abc.abstractmethod
    def _iteration(self, line: str) -> int:
        """Return the iteration of a row."""


class JsonLines(_RowFile):
    """A file with one JSON object a line; what is not finite is null; arguments as of `open_sinks`."""

    def write(self, row: Row) -> None:
        """Append a line."""
        plain = {name: value if math.isfinite(value) else None for name, value in row.items()}
        self.append(json.dumps(plain, allow_nan=False) + "\n")

    def _iteration(self, line: str) -> int:
        return int(json.loads(line)["iteration"])


class Csv(_RowFile):
    """A table with a column for each name that a row has had; the cells of rows without it are empty."""

    n_header: ClassVar[int] = 1

    def write(self, *added: Row) -> None:
        """Append rows of the same names; if they have new columns, the file is written anew with them."""
        self.open()
        columns = self._columns
        added = tuple({_csv_cell(name): value for name, value in row.items()} for row in added)
        if new := [name for name in added[0] if name not in columns]:
            rows = self._lines()[1:]
            columns += new
            self.close()
            write_atomically(self._path, "".join([_csv_line(columns), *(_widened(line, len(new)) for line in rows)]))
        self.append("".join(_csv_line([row.get(name, "") for name in columns]) for row in added))

    @functools.cached_property
    def _columns(self) -> list[str]:
        return next(csv.reader(self._lines()[:1]), [])

    def _iteration(self, line: str) -> int:
        return int(dict(zip(self._columns, next(csv.reader([line])), strict=False))["iteration"])


class TensorBoard:
    """Events for TensorBoard, over iterations.

    Args:
        folder: Folder of the events.
        config: Shown as text.
        resume_iteration: As of `open_sinks`: TensorBoard hides what came after it.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any], resume_iteration: int | None = None) -> None:
        self._tensorboard = optional_package(
            "torch.utils.tensorboard", "metrics", 'pip install "warpdrive-min[train]"', "tensorboard"
        )
        self._folder, self._config, self._resume_iteration = folder, config, resume_iteration

    @functools.cached_property
    def _writer(self) -> Any:
        hook = threading.excepthook
        if getattr(hook, "func", None) is not _hide_tensorboard_threads:
            threading.excepthook = functools.partial(_hide_tensorboard_threads, hook)
        purge_step = None if self._resume_iteration is None else self._resume_iteration + 1
        writer = self._tensorboard.SummaryWriter(str(self._folder), purge_step=purge_step)
        if self._resume_iteration is None:
            writer.add_text("run config", f"```json\n{json.dumps(self._config, indent=1)}\n```")
        return writer

    def open(self) -> None:
        """Open the file of events."""
        with room_for(self._folder):
            self._writer  # noqa: B018  (made when it is first asked for)

    def write(self, row: Row) -> None:
        """Add an event for each number."""
        with room_for(self._folder, do=f"make room and {checkpoint.next_step(self._folder.parent)}"):
            for name, value in row.items():
                self._writer.add_scalar(name, value, int(row["iteration"]))
            self._writer.flush()

    def close(self) -> None:
        """Close the file of events."""
        with room_for(self._folder):
            if "_writer" in vars(self):
                self._writer.close()


def _hide_tensorboard_threads(hook: Callable[[Any], Any], failed: Any) -> None:
    """Report an error of a thread, unless `TensorBoard` raises it at its next call."""
    if not type(failed.thread).__module__.startswith("tensorboard."):
        hook(failed)


class WeightsAndBiases:
    """A run at Weights & Biases, whose own environment variables say which project, and whether it is online.

    Args:
        folder: Folder of its files, and the run's id in ``wandb_id``.
        run_name: Shown there.
        config: The run config.
        resume_iteration: As of `open_sinks`: the run of that id goes on; rows that it has already it ignores.
    """

    def __init__(
        self, folder: Path, run_name: str, config: Mapping[str, Any], resume_iteration: int | None = None
    ) -> None:
        self._wandb = optional_package("wandb", "metrics", "pip install wandb")
        self._id_file = folder / "wandb_id"
        is_known = resume_iteration is not None and self._id_file.exists()
        known_id = self._id_file.read_text().strip() if is_known else None
        self._options = {"id": known_id, "name": run_name, "config": dict(config), "dir": str(folder)}

    @functools.cached_property
    def _run(self) -> Any:
        run = self._wandb.init(resume="allow", **self._options)
        write_atomically(self._id_file, f"{run.id}\n")
        return run

    def open(self) -> None:
        """Start or continue the run."""
        self._run  # noqa: B018  (made when it is first asked for)

    def write(self, row: Row) -> None:
        """Log the row as the step of its iteration."""
        self._run.log(dict(row), step=int(row["iteration"]))

    def close(self) -> None:
        """Finish the run."""
        if "_run" in vars(self):
            self._run.finish()


def _widened(line: str, n_new: int) -> str:
    """Return a line of a table with some empty cells more."""
    return line.removesuffix("\n") + "," * n_new + "\n"


def _csv_cell(text: str) -> str:
    """Return a text that no spreadsheet takes for a formula."""
    return f"'{one_line(text)}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else one_line(text)


def _csv_line(cells: Sequence[Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(
        [_csv_cell(each) if isinstance(each, str) else each for each in cells]
    )
    return line.getvalue()
