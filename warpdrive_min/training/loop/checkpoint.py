"""Checkpoints: a run's tensors and settings in one folder, written atomically.

A folder of checkpoints has one writer. It holds ``checkpoint_<iteration>/`` of the last iterations and ``best/``, each
with two files. A killed writer leaves names that start with a dot:

* ``.unfinished-NAME``: incomplete; the next save removes it.
* ``.replaced-NAME``: complete; stands for NAME while that is missing, between the two renames that replace it.
* ``.removed-NAME``: partly removed; the next save removes it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import platform
import re
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Final, Self

import torch
from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator, with_config
from pydantic.dataclasses import dataclass as pydantic_dataclass
from torch import Tensor
from typing_extensions import TypedDict  # typing's is enough from Python 3.12

from warpdrive_min.collector import collection_paused
from warpdrive_min.config import MAX_SEED, MAX_SIZE, NonNegativeFloat
from warpdrive_min.errors import CheckpointError, known, require
from warpdrive_min.files import explain_full_disk, last_below
from warpdrive_min.packages import install_command, optional_package
from warpdrive_min.training.config import RunConfig

log = logging.getLogger(__name__)

SCHEMA: Final = 1
"""Schema version, raised if a field or tensor name changes or disappears."""
TENSORS: Final = "state.safetensors"
HEADER: Final = "state.json"
HASH: Final = "header_sha256"
"""Header field with the SHA-256 of all fields but the tensors' hash."""
BEST: Final = "best"
FOLDER: Final = "checkpoints"
"""Folder of checkpoints in a run's folder."""
NAME: Final = re.compile(r"checkpoint_(\d{9,})")
MAX_LISTED: Final = 5
"""Maximum number of names in an error."""

UNFINISHED, REPLACED, REMOVED = ".unfinished-", ".replaced-", ".removed-"
PACKAGES: Final = ("warpdrive-min", "torch", "numpy", "safetensors")


Tensors = dict[str, Tensor]
Count = Annotated[int, Field(ge=0, le=2**53)]
"""Counter of a checkpoint, with room for a resumed run."""
Size = Annotated[int, Field(ge=1, le=MAX_SIZE)]
Axis = Annotated[str, Field(pattern="^(first|last)$")]
STRICT: Final = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


@functools.cache
def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of Python and of installed packages."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"  # run from a checkout
    return found


@with_config(STRICT)
class TrainedIn(TypedDict):
    """Environment of a checkpoint: name, sizes and each policy's agents."""

    name: Annotated[str, Field(min_length=1)]
    n_envs: Size
    n_agents: Size
    episode_length: Size
    arrays: Annotated[list[bool | Axis], Field(min_length=2, max_length=2)]
    """`SharedLayout.saved`."""
    ranks: Size
    policies: dict[str, list[str]]


@pydantic_dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Header:
    """Header of a checkpoint: everything but the tensors, as plain JSON.

    Raises:
        ValidationError: A field has another type, or breaks a rule.
    """

    iteration: Count
    """Number of finished iterations."""
    env_steps: Count
    """Env steps done, over all environments."""
    seconds: NonNegativeFloat
    """Training time, s."""
    run_config: dict[str, Any]
    environment: TrainedIn
    """Name and sizes."""
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)]
    best_return: float | None
    """Mean return of the best checkpoint, finite; None if absent."""
    versions: dict[str, str] = field(default_factory=lambda: dict(_versions(PACKAGES)))
    """Versions of Python and the packages that wrote the checkpoint."""
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    """Time of creation, UTC."""

    @property
    def config(self) -> RunConfig:
        """Run config, with defaults for keys that its release lacked."""
        return RunConfig.from_dict(self.run_config)

    @field_validator("run_config")
    @classmethod
    def _is_a_run_config(cls, given: dict[str, Any]) -> dict[str, Any]:
        RunConfig.from_dict(given)
        return given

    @model_validator(mode="after")
    def _names_its_policies(self) -> Self:
        policies, trained = self.config.policy.keys(), self.environment["policies"].keys()
        if policies != trained:
            raise ValueError(f"environment.policies must be those of run_config, {known(policies)}")
        return self


def read_header(what: str | Path, fields: Mapping[str, Any]) -> Header:
    """Build a header from saved fields.

    Raises:
        CheckpointError: A field is missing, unknown, or breaks a rule.
    """
    try:
        return Header(**fields)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        got: object = listed([f"{'.'.join(map(str, each['loc'])) or 'header'}: {each['msg']}" for each in faults])
    except TypeError as error:  # a field name that is not a string
        got = error
    raise _damaged(what, f"must have the fields of schema {SCHEMA}", got)


class Writer:
    """Thread that writes the checkpoints of one run, one after the other.

    The process does not end before the thread does, unless it is killed. A fork of the process has no such thread.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(self, folder: Path, tensors: Mapping[str, Tensor], header: Header, keep_last: int, is_best: bool) -> Path:
        """Copy the tensors and start to write them; synchronises.

        Waits for the checkpoint before. A process that is killed leaves either the old state of the folder or the new
        one.

        Args:
            folder: Folder of one run's checkpoints; created if missing.
            tensors: Tensors by name, ``section/name``, on any device; views and shared storage are allowed.
            header: All other data of the run.
            keep_last: Number of checkpoints to keep of this and earlier iterations, without ``best``; at least 1.
            is_best: Replace ``best`` too.

        Returns:
            Path of the checkpoint, which exists after `wait`.

        Raises:
            ConfigError: safetensors is not installed.
            DiskFullError: There was no room for the checkpoint before; so for any other error.
        """
        self.wait()
        copies = _copies(tensors)

        def write() -> None:
            try:
                with collection_paused():
                    _save(folder, copies, header, keep_last, is_best)
            except BaseException as error:  # noqa: BLE001  (raised by `wait`)
                self._error = error

        self._thread = threading.Thread(target=write, name="checkpoints")
        self._thread.start()
        return _target(folder, header)

    def wait(self) -> None:
        """Wait until the last checkpoint is on disk.

        Raises:
            DiskFullError: There was no room for it; so for any other error.
        """
        if self._thread is not None:
            self._thread.join()  # returns at once in a fork
        self._thread, error, self._error = None, self._error, None
        if error is not None:
            raise error


def prepare() -> None:
    """Import and read what the first checkpoint needs; any thread may call it.

    Raises:
        ConfigError: safetensors is not installed.
    """
    _safetensors()
    _versions(PACKAGES)


def _target(folder: Path, header: Header) -> Path:
    return folder / f"checkpoint_{header.iteration:09d}"


def _copies(tensors: Mapping[str, Tensor]) -> Tensors:
    """Return copies in host memory, of which none share storage; synchronises."""
    _safetensors()  # an error now, not in a thread
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}


def _save(folder: Path, copies: Tensors, header: Header, keep_last: int, is_best: bool) -> Path:
    target = _target(folder, header)
    n_bytes = (1 + is_best) * sum(tensor.nbytes for tensor in copies.values())
    with (
        explain_full_disk(target, n_bytes, f"make room and {next_step(folder.parent, folder.name)}"),
        _cleaned_up(folder),
    ):
        unfinished = _unfinished(target)
        _write(unfinished, copies, header)
        if is_best:
            # First, so that no kill leaves a checkpoint with a best return that `best` lacks.
            unfinished_best = _unfinished(folder / BEST)
            for file in (TENSORS, HEADER):
                shutil.copy(unfinished / file, unfinished_best / file)
            _rename_into_place(unfinished_best, folder / BEST)
        _rename_into_place(unfinished, target)
    up_to_here = [path for iteration, path in _checkpoints(folder) if iteration <= header.iteration]
    for path in up_to_here[:-keep_last]:
        _remove(path)
    return target


def load(path: str | Path) -> tuple[dict[str, Tensor], Header]:
    """Load tensors (on the CPU) and header of the checkpoint that `find` returns.

    Raises:
        CheckpointError: It is missing or damaged, or has another schema.
        ConfigError: safetensors is not installed.
    """
    checkpoint = find(path)
    header = _verified(checkpoint)
    load_file = _safetensors().load_file
    try:
        tensors: dict[str, Tensor] = load_file(checkpoint / TENSORS)
    except Exception as error:  # safetensors raises many types for foreign files
        raise _damaged(checkpoint / TENSORS, "must be a file of safetensors", error) from error
    return tensors, header


def find(path: str | Path) -> Path:
    """Return the checkpoint at a path, or its folder's latest.

    Raises:
        CheckpointError: There is no checkpoint.
    """
    path = _existing_version(Path(path))
    found = path if (path / HEADER).exists() or (path / TENSORS).exists() else latest(path)
    if found is None:
        rule = f"must be a folder with {HEADER} and {TENSORS}, or hold folders checkpoint_<iteration>"
        got, do = "a folder without" if path.is_dir() else "nothing there", "name one that a run has saved"
        if saved := last_below(path, f"{FOLDER}/checkpoint_*"):  # `path` may be `saving.basedir`
            got, do = "a folder of runs", f"name one of them, as {saved.parents[1]}"
        raise CheckpointError.of(f"checkpoint {path}", rule, got, do)
    return found


def latest(folder: str | Path) -> Path | None:
    """Return the latest intact checkpoint of a folder, or None.

    Damaged ones are skipped with a warning in the log. ``best`` is ignored.

    Raises:
        CheckpointError: All are damaged, or the one to return has another schema.
    """
    damages = []
    for _, path in reversed(_checkpoints(Path(folder))):
        try:
            _verified(path)
        except _DamagedError as error:
            log.warning("%s; looking for an earlier checkpoint", error)
            damages.append(error)
        else:
            return path
    if damages:
        raise damages[0]
    return None


def best(folder: str | Path) -> Path | None:
    """Return the best checkpoint of a folder, unverified; None if absent."""
    path = _existing_version(Path(folder, BEST))
    return path if path.exists() else None


def next_step(
    run: Path, folder: str = FOLDER, resume: str = "resume from the last checkpoint, which is unchanged"
) -> str:
    """Return advice after an early end: ``resume`` if a checkpoint exists."""
    if _checkpoints(run / folder):
        return resume
    return f"start again after removing {run}, or in another folder, as it has no checkpoint"


def discard_after(folder: str | Path, iteration: int) -> None:
    """Remove checkpoints of later iterations, which a resumed run writes again.

    ``best`` stays, whatever its iteration.
    """
    for number, path in _checkpoints(Path(folder)):
        if number > iteration:
            _remove(path)


@torch.no_grad()
def restore(live: Mapping[str, Tensor], saved: Mapping[str, Tensor], path: str | Path) -> None:
    """Copy a checkpoint's tensors into a run's, in place; synchronises.

    Args:
        live: Tensors of the run, by name.
        saved: Tensors that `load` returned.
        path: Path of the checkpoint, for errors.

    Raises:
        CheckpointError: A name is missing or unknown, or a shape or dtype differs; then nothing is copied.
    """
    misfits = [
        f"{name} is {_kind(saved[name])} there and {_kind(live[name])} here"
        for name in sorted(live.keys() & saved.keys())
        if _kind(live[name]) != _kind(saved[name])
    ]
    kinds = {
        "only in the run": sorted(live.keys() - saved.keys()),
        "only in the checkpoint": sorted(saved.keys() - live.keys()),
        "of another shape or dtype": misfits,
    }
    if any(kinds.values()):
        cause = (
            "other policies, algorithms or models, or another environment"
            if live.keys() != saved.keys()
            else "another environment, or other sizes of it, of the rollout or of the models"
        )
        differences = "; ".join(f"{kind}: {listed(names)}" for kind, names in kinds.items() if names)
        raise CheckpointError(
            f"checkpoint {path}: its tensors must be those of the run (got {differences}); likely it was saved with "
            f"{cause}: resume with the run config in its {HEADER}"
        )
    for name, tensor in live.items():
        tensor.copy_(saved[name])


def below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors whose names start with a prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _kind(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def listed(names: Sequence[str]) -> str:
    """List the first `MAX_LISTED` names, and the number of others."""
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(names[:MAX_LISTED]) + more


# ------------------------------------------------------------------ the two files


def _write(folder: Path, copies: Tensors, header: Header) -> None:
    _safetensors().save_file(copies, folder / TENSORS)
    fields = {"schema": SCHEMA, **asdict(header), "sha256": _hash(folder / TENSORS)}
    text = json.dumps({**fields, HASH: _hash_of(fields)}, indent=1, allow_nan=False) + "\n"
    (folder / HEADER).write_text(text)
    shutil.copymode(folder / HEADER, folder / TENSORS)  # safetensors makes it private


class _DamagedError(CheckpointError):
    """Error: a file of a checkpoint is missing, truncated or altered."""


def _verified(path: Path) -> Header:
    """Return the header after verifying both files."""
    header_file, tensor_file = path / HEADER, path / TENSORS
    for file in (header_file, tensor_file):
        if not file.is_file():
            raise _damaged(f"checkpoint {path}", f"needs {file.name}")
    try:
        fields = json.loads(header_file.read_bytes())
        own_hash = fields.pop(HASH, None)  # earlier releases wrote none
        is_whole = own_hash in (None, _hash_of(fields))
        schema, sha256 = fields.pop("schema"), fields.pop("sha256")
    except (OSError, ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(header_file, "must be a whole JSON object with schema and sha256", error) from error
    check_schema(header_file, schema, fields)
    header = read_header(header_file, fields)
    if not is_whole:
        raise _damaged(header_file, "is altered: its fields must have the SHA-256 that it names", own_hash)
    if (actual := _hash(tensor_file)) != sha256:
        raise _damaged(tensor_file, f"is truncated or altered: its SHA-256 must be {sha256}", actual)
    return header


def _damaged(what: str | Path, rule: str, got: object = ...) -> _DamagedError:
    return _DamagedError.of(str(what), rule, got, "remove it and resume from an earlier one or from best")


def check_schema(what: str | Path, schema: object, header: Mapping[str, Any]) -> None:
    """Raise `CheckpointError` unless this release can read a header's schema."""
    do = f"use the release that wrote it: {header.get('versions', 'unknown')}"
    require(schema == SCHEMA, str(what), f"schema must be {SCHEMA}", schema, do, CheckpointError)


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _hash_of(fields: Mapping[str, Any]) -> str:
    """Return the SHA-256 of unordered header fields, without the tensors' hash."""
    as_read = json.loads(json.dumps({name: value for name, value in fields.items() if name != "sha256"}))
    return hashlib.sha256(json.dumps(as_read, sort_keys=True).encode()).hexdigest()


def _safetensors() -> Any:
    return optional_package("safetensors.torch", "checkpoint", install_command("train"))


# ------------------------------------------------------------------ atomic changes of folders


def _checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Return iteration and path of each checkpoint, by iteration."""
    names = {path.name.removeprefix(REPLACED) for path in folder.iterdir()} if folder.is_dir() else set()
    numbered = [(int(match[1]), folder / match[0]) for name in names if (match := NAME.fullmatch(name))]
    return [(iteration, _existing_version(path)) for iteration, path in sorted(numbered)]


def _existing_version(path: Path) -> Path:
    """Return the path, or the version that a killed writer set aside."""
    aside = path.parent / (REPLACED + path.name)  # `with_name` refuses "."
    return aside if aside.exists() and not path.exists() else path


def _unfinished(target: Path) -> Path:
    path = target.with_name(UNFINISHED + target.name)
    path.mkdir()
    return path


def _rename_into_place(unfinished: Path, target: Path) -> None:
    """Sync a folder to disk and give it its final name."""
    for path in (*unfinished.iterdir(), unfinished):
        _sync(path)
    aside = target.with_name(REPLACED + target.name)
    if target.exists():
        target.rename(aside)
    unfinished.rename(target)
    _sync(target.parent)
    if aside.exists():
        shutil.rmtree(aside)


def _remove(path: Path) -> None:
    gone = path.with_name(REMOVED + path.name)
    path.rename(gone)  # atomic, so that a kill leaves no partial checkpoint
    shutil.rmtree(gone)


@contextlib.contextmanager
def _cleaned_up(folder: Path) -> Iterator[None]:
    """Clean up after a killed writer, and after errors in the block."""
    folder.mkdir(parents=True, exist_ok=True)
    _clean_up(folder)
    try:
        yield
    except (Exception, SystemExit, KeyboardInterrupt):  # signals raise the latter two
        _clean_up(folder)
        raise


def _clean_up(folder: Path) -> None:
    """Finish the work of a killed writer."""
    for path in [*folder.glob(f"{UNFINISHED}*"), *folder.glob(f"{REMOVED}*")]:
        shutil.rmtree(path)
    for aside in folder.glob(f"{REPLACED}*"):
        target = folder / aside.name.removeprefix(REPLACED)
        if target.exists():
            shutil.rmtree(aside)
        else:
            aside.rename(target)


def _sync(path: Path) -> None:
    """Wait until a file or a folder's listing is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
