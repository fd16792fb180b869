"""What a run logs: rows of numbers, read from the device at once, checked, and written to sinks.

A row is ``{"iteration": ..., "env_steps": ..., "seconds": ..., "steps_per_s": ..., "<policy>/<metric>": ...}``.
"""

from __future__ import annotations

import contextlib
import csv
import importlib
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from warpdrive_min.errors import ConfigError, DataError, TrainingError, known
from warpdrive_min.files import write_atomically

Row = Mapping[str, float | int]

STEPS_PER_S: Final = "steps_per_s"
"""Steps of all environments together since the last row, 1/s."""
EPISODIC_RETURN: Final = "mean_episodic_return"
"""Of a policy: mean over the episodes that ended since the last row of its agents' rewards, summed; NaN: none ended."""
GRADIENT_NORM: Final = "gradient_norm"
"""Of a policy: norm before it is clipped; DDPG has one of each network, with its name after this."""
SKIPPED_STEPS: Final = "n_skipped_steps"
"""Of a policy: steps of its optimisers that were not taken since the gradient was not finite."""
ADVICE: Final = "lower lr or max_grad_norm, or scale down rewards and observations"
MAX_GRADIENT_NORM: Final = 1e8
"""A longer gradient means that training diverges: the next numbers are not finite any more."""


def fetch(metrics: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, float]]:
    """Read every policy's 0-d tensors from the device in one copy; synchronises."""
    tensors = [tensor for of_policy in metrics.values() for tensor in of_policy.values()]
    numbers = iter(torch.stack([tensor.double() for tensor in tensors]).tolist() if tensors else [])
    return {policy: {name: next(numbers) for name in of_policy} for policy, of_policy in metrics.items()}


def check_finite(
    policy: str, metrics: Mapping[str, float], iteration: int, env_steps: int, last_iteration: int = 0
) -> None:
    """Make sure that an update gave numbers that training can go on with.

    Args:
        policy: Name of the policy.
        metrics: Of its algorithm, by name; a mean over episodes, which is NaN if none ended, is not one of them.
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
        if name.startswith(GRADIENT_NORM) and number > MAX_GRADIENT_NORM and name not in broken
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


def make_row(
    iteration: int, env_steps: int, seconds: float, metrics: Mapping[str, Mapping[str, float]], **more: float
) -> dict[str, float | int]:
    """Return the row of what `fetch` read; ``more`` concerns the whole run, such as `STEPS_PER_S`."""
    of_policies = {f"{policy}/{name}": value for policy, values in metrics.items() for name, value in values.items()}
    return {"iteration": iteration, "env_steps": env_steps, "seconds": seconds, **more, **of_policies}


# ------------------------------------------------------------------ where rows go


class Sink(Protocol):
    """Takes the rows of a run."""

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
    """Open the named sinks of a run.

    Args:
        names: ``jsonl``, ``csv``, ``tensorboard``, ``wandb``.
        folder: Where they put their files; made if missing.
        run_name: Shown by Weights & Biases.
        config: The run config, in plain values.
        resume_iteration: Of the checkpoint that the run goes on from: rows after it are dropped, for they will come
            again. None: the run is new.

    Raises:
        ConfigError: A name is unknown, a package is missing, or a new run finds the file of another one.
        DataError: A file to be continued is not made of rows.
    """
    folder = Path(folder)
    makers: dict[str, Callable[[], Sink]] = {
        "jsonl": lambda: JsonLines(folder / "metrics.jsonl", resume_iteration),
        "csv": lambda: Csv(folder / "metrics.csv", resume_iteration),
        "tensorboard": lambda: TensorBoard(folder / "tensorboard", config, resume_iteration),
        "wandb": lambda: WeightsAndBiases(folder, run_name, config, resume_iteration),
    }
    for name in names:
        if name not in makers:
            raise ConfigError(f"saving.sinks: unknown sink {name!r}; known are {known(makers)}")
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as opened:
        sinks = []
        for name in names:
            sinks.append(makers[name]())
            opened.callback(sinks[-1].close)
        opened.pop_all()  # all are open: they stay so
    return sinks


class JsonLines:
    """A file with one JSON object a line; what is not finite is null.

    Args:
        path: The file.
        resume_iteration: As of `open_sinks`.
    """

    def __init__(self, path: Path, resume_iteration: int | None = None) -> None:
        self._path = path
        _require_new(path, resume_iteration)
        if resume_iteration is not None:
            self.truncate_after(resume_iteration)
        self._file = path.open("ab", buffering=0)  # a line is one write: a kill cuts at most the last one

    def write(self, row: Row) -> None:
        """Append a line."""
        plain = {name: value if math.isfinite(value) else None for name, value in row.items()}
        self._file.write(json.dumps(plain, allow_nan=False).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def truncate_after(self, iteration: int) -> None:
        """Drop the rows of later iterations, and a last line that a kill cut short.

        Raises:
            DataError: Another line is not a row.
        """
        kept = []
        for number, line in enumerate(_whole_lines(self._path), start=1):
            try:
                is_kept = json.loads(line)["iteration"] <= iteration
            except (ValueError, KeyError, TypeError) as error:
                raise _not_a_row(self._path, number, line) from error
            if is_kept:
                kept.append(line)
        write_atomically(self._path, "".join(kept))


class Csv:
    """A table with a column for each name that a row has had; the cells of rows without it are empty.

    Args:
        path: The file.
        resume_iteration: As of `open_sinks`.
    """

    def __init__(self, path: Path, resume_iteration: int | None = None) -> None:
        self._path = path
        _require_new(path, resume_iteration)
        self._columns: list[str] = []
        if resume_iteration is not None:
            self.truncate_after(resume_iteration)
        self._file = path.open("ab", buffering=0)

    def write(self, row: Row) -> None:
        """Append a row; if it has new columns, the file is written anew with them."""
        new = [name for name in row if name not in self._columns]
        if new:
            before = self._rows()
            self._columns += new
            self._file.close()
            self._rewrite([*before, row])
            self._file = self._path.open("ab", buffering=0)
        else:
            self._file.write(_csv_line([row.get(name, "") for name in self._columns]).encode())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def truncate_after(self, iteration: int) -> None:
        """Drop the rows of later iterations, and a last line that a kill cut short.

        Raises:
            DataError: Another line is not a row.
        """
        rows = self._rows()
        self._columns = list(rows[0]) if rows else []
        kept = []
        for number, row in enumerate(rows, start=2):
            try:
                is_kept = int(row["iteration"]) <= iteration
            except (ValueError, KeyError, TypeError) as error:
                raise _not_a_row(self._path, number, str(row)) from error
            if is_kept:
                kept.append(row)
        self._rewrite(kept)

    def _rows(self) -> list[dict[str, Any]]:
        return list(csv.DictReader(_whole_lines(self._path)))

    def _rewrite(self, rows: Sequence[Mapping[str, Any]]) -> None:
        lines = [[row.get(name, "") for name in self._columns] for row in rows]
        write_atomically(self._path, "".join(map(_csv_line, [self._columns, *lines] if self._columns else [])))


class TensorBoard:
    """Events for TensorBoard, over iterations.

    Args:
        folder: Of the events.
        config: Shown as text.
        resume_iteration: As of `open_sinks`: TensorBoard hides what came after it.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any], resume_iteration: int | None = None) -> None:
        tensorboard = _package("torch.utils.tensorboard", "tensorboard", '"warpdrive-min[train]"')
        purge_step = None if resume_iteration is None else resume_iteration + 1
        self._writer = tensorboard.SummaryWriter(str(folder), purge_step=purge_step)
        if resume_iteration is None:
            self._writer.add_text("run config", f"```json\n{json.dumps(config, indent=1)}\n```")

    def write(self, row: Row) -> None:
        """Add an event for each number."""
        for name, value in row.items():
            self._writer.add_scalar(name, value, int(row["iteration"]))
        self._writer.flush()

    def close(self) -> None:
        """Close the file of events."""
        self._writer.close()


class WeightsAndBiases:
    """A run at Weights & Biases, whose own environment variables say which project, and whether it is online.

    Args:
        folder: Where it keeps its files, and the run's id in ``wandb_id``.
        run_name: Shown there.
        config: The run config.
        resume_iteration: As of `open_sinks`: the run of that id goes on; rows that it has already it ignores.
    """

    def __init__(
        self, folder: Path, run_name: str, config: Mapping[str, Any], resume_iteration: int | None = None
    ) -> None:
        wandb = _package("wandb", "wandb", "wandb")
        id_file = folder / "wandb_id"
        known_id = id_file.read_text().strip() if resume_iteration is not None and id_file.exists() else None
        self._run = wandb.init(id=known_id, resume="allow", name=run_name, config=dict(config), dir=str(folder))
        id_file.write_text(f"{self._run.id}\n")

    def write(self, row: Row) -> None:
        """Log the row as the step of its iteration."""
        self._run.log(dict(row), step=int(row["iteration"]))

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


# ------------------------------------------------------------------ files of rows


def _require_new(path: Path, resume_iteration: int | None) -> None:
    if resume_iteration is None and path.exists() and path.stat().st_size:
        raise ConfigError(
            f"metrics: a new run needs a file of its own (got {path}, which has rows already); "
            "resume that run or choose another folder"
        )


def _whole_lines(path: Path) -> list[str]:
    """Return the lines that end, with their ends; a kill may have cut the one that does not."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as file:
        return [line for line in file if line.endswith("\n")]


def _not_a_row(path: Path, number: int, line: str) -> DataError:
    return DataError(
        f"{path}, line {number}: must be a row with its iteration (got {line.strip()!r:.80}); delete the line"
    )


def _csv_line(cells: Sequence[Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()


def _package(module: str, package: str, requirement: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"metrics: needs the package {package} (got {error}); pip install {requirement}") from error
