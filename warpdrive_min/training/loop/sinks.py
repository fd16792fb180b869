"""Sinks of a run's metrics: JSON Lines, CSV, TensorBoard, Weights & Biases."""

from __future__ import annotations

import abc
import contextlib
import csv
import functools
import io
import json
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

from warpdrive_min.errors import DataError, one_line, require
from warpdrive_min.files import append, explain_full_disk, write_atomically
from warpdrive_min.packages import install_command, optional_package
from warpdrive_min.training.loop import checkpoint
from warpdrive_min.training.loop.metrics import Row

JSONL, CSV = "metrics.jsonl", "metrics.csv"
"""Files of metrics in the folder of a run."""


class Sink(Protocol):
    """Sink of a run's rows; construction checks everything and writes nothing."""

    def open(self) -> None:
        """Open its files; the first `write` also does this."""
        ...

    def write(self, row: Row) -> None:
        """Add a row, which survives a later kill of the process."""
        ...

    def close(self) -> None:
        """Close the sink."""
        ...


def open_sinks(
    names: Sequence[str],
    folder: str | Path,
    run_name: str,
    config: Mapping[str, Any],
    resume_iteration: int | None = None,
) -> list[Sink]:
    """Open the named sinks of a run; on errors no file has changed.

    Args:
        names: ``jsonl``, ``csv``, ``tensorboard``, ``wandb``.
        folder: Folder of their files; created if missing.
        run_name: Name of the run in Weights & Biases.
        config: Run config, in plain values.
        resume_iteration: Iteration of the checkpoint to resume from; later rows are dropped, because they
            will be repeated. None: the run is new.

    Raises:
        ConfigError: A package is missing, or a new run finds the file of another one.
        DataError: A file to be continued is not made of rows.
    """
    folder = Path(folder)
    makers: dict[str, Callable[[], Sink]] = {
        "jsonl": lambda: JsonLines(folder / JSONL, resume_iteration),
        "csv": lambda: Csv(folder / CSV, resume_iteration),
        "tensorboard": lambda: TensorBoard(folder / "tensorboard", config, resume_iteration),
        "wandb": lambda: WeightsAndBiases(folder, run_name, config, resume_iteration),
    }
    sinks = [makers[name]() for name in names]
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as opened:
        for sink in sinks:
            opened.callback(sink.close)
            sink.open()
        opened.pop_all()  # all are open
    return sinks


def require_new(folder: Path) -> None:
    """Check that a folder has no rows of another run.

    Raises:
        ConfigError: It has some.
    """
    for name in (JSONL, CSV):
        _require_empty(folder / name)


def _require_empty(path: Path) -> None:
    is_empty = not path.exists() or not path.stat().st_size
    do = checkpoint.next_step(path.parent, resume="resume that run or choose another folder")
    require(is_empty, "metrics", "a new run needs a new file", f"{path}, which already has rows", do)


class _RowFile(abc.ABC):
    """File with one row per line, below header lines.

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

    def open(self) -> None:
        """Create the file; a resumed run first drops the later rows."""
        if self._kept is not None:
            write_atomically(self._path, "".join(self._kept))
            self._kept = None
        self._path.touch()

    def close(self) -> None:  # noqa: B027  (of the protocol)
        """Do nothing: no file stays open."""

    def append(self, lines: str) -> None:
        """Append lines, completely or not at all.

        Raises:
            WriteError: They cannot be written. `DiskFullError` if the disk is full.
        """
        self.open()
        append(self._path, lines, f"make room and {checkpoint.next_step(self._path.parent)}", sync=False)

    def _lines_until(self, iteration: int) -> list[str]:
        """Return lines up to an iteration, without a truncated last line.

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
        """Return complete lines with their ends; a kill may truncate the last one."""
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
    """File with one JSON object per line; non-finite numbers are null."""

    def write(self, row: Row) -> None:
        """Append a line."""
        plain = {name: value if math.isfinite(value) else None for name, value in row.items()}
        self.append(json.dumps(plain, allow_nan=False) + "\n")

    def _iteration(self, line: str) -> int:
        return int(json.loads(line)["iteration"])


class Csv(_RowFile):
    """Table with a column per name; missing cells are empty."""

    n_header: ClassVar[int] = 1

    def write(self, *added: Row) -> None:
        """Append rows of the same names; rewrite the file for new columns."""
        self.open()
        columns = self._columns
        added = tuple({_csv_cell(name): value for name, value in row.items()} for row in added)
        if new := [name for name in added[0] if name not in columns]:
            rows = self._lines()[1:]
            columns += new
            wider = [line.removesuffix("\n") + "," * len(new) + "\n" for line in rows]
            write_atomically(self._path, "".join([_csv_line(columns), *wider]))
        self.append("".join(_csv_line([row.get(name, "") for name in columns]) for row in added))

    @functools.cached_property
    def _columns(self) -> list[str]:
        return next(csv.reader(self._lines()[:1]), [])

    def _iteration(self, line: str) -> int:
        return int(dict(zip(self._columns, next(csv.reader([line])), strict=False))["iteration"])


class TensorBoard:
    """TensorBoard events, by iteration.

    Args:
        folder: Folder of the events.
        config: Run config, logged as text.
        resume_iteration: As of `open_sinks`: TensorBoard hides later events.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any], resume_iteration: int | None = None) -> None:
        self._tensorboard = optional_package(
            "torch.utils.tensorboard", "metrics", install_command("train"), "tensorboard"
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
        """Open the event file."""
        with explain_full_disk(self._folder):
            self._writer  # noqa: B018  (created on first access)

    def write(self, row: Row) -> None:
        """Add an event for each number."""
        with explain_full_disk(self._folder, do=f"make room and {checkpoint.next_step(self._folder.parent)}"):
            for name, value in row.items():
                self._writer.add_scalar(name, value, int(row["iteration"]))
            self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        with explain_full_disk(self._folder):
            if "_writer" in vars(self):
                self._writer.close()


def _hide_tensorboard_threads(hook: Callable[[Any], Any], failed: Any) -> None:
    """Report a thread's error, unless a `TensorBoard` call raises it."""
    if not type(failed.thread).__module__.startswith("tensorboard."):
        hook(failed)


class WeightsAndBiases:
    """Run at Weights & Biases, configured by its environment variables.

    Args:
        folder: Folder of its files, and the run's id in ``wandb_id``.
        run_name: Name of the run there.
        config: Run config.
        resume_iteration: As of `open_sinks`: the run with that id continues, and ignores rows that it already has.
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
        self._run  # noqa: B018  (created on first access)

    def write(self, row: Row) -> None:
        """Log the row as the step of its iteration."""
        self._run.log(dict(row), step=int(row["iteration"]))

    def close(self) -> None:
        """Finish the run."""
        if "_run" in vars(self):
            self._run.finish()


def _csv_cell(text: str) -> str:
    """Return a text that no spreadsheet reads as a formula."""
    return f"'{one_line(text)}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else one_line(text)


def _csv_line(cells: Sequence[Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(
        [_csv_cell(each) if isinstance(each, str) else each for each in cells]
    )
    return line.getvalue()
