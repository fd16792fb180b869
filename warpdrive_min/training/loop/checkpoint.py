"""Checkpoints: all tensors and settings of a run in one folder, which is there whole or not at all.

A folder of checkpoints has one writer. It holds ``checkpoint_<iteration>/`` of the last iterations and ``best/``, each
with two files. What a killed writer leaves behind has a name that starts with a dot:

* ``.unfinished-NAME``: not yet whole; the next `save` removes it.
* ``.replaced-NAME``: whole; stands for NAME while that is missing, between the two renames that replace it.
* ``.removed-NAME``: on its way out; the next `save` removes it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import platform
import re
import shutil
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
from typing_extensions import TypedDict  # that of typing is enough from Python 3.12 on

from warpdrive_min.config import MAX_SEED, MAX_SIZE, NonNegativeFloat
from warpdrive_min.errors import CheckpointError, known, require, whole
from warpdrive_min.files import room_for
from warpdrive_min.packages import optional_package
from warpdrive_min.training.config import RunConfig

log = logging.getLogger(__name__)

SCHEMA: Final = 1
"""Raised when a field of `Header` or the name of a tensor changes its meaning or goes."""
TENSORS: Final = "state.safetensors"
HEADER: Final = "state.json"
HASH: Final = "header_sha256"
"""Field of the header's file: the SHA-256 of all others but that of the tensors."""
MAX_HEADER: Final = 2**26
"""Longest header, bytes."""
BEST: Final = "best"
FOLDER: Final = "checkpoints"
"""Folder of a run that holds its checkpoints."""
NAME: Final = re.compile(r"checkpoint_(\d{9,})")
MAX_LISTED: Final = 5
"""Names that an error lists, at most."""

UNFINISHED, REPLACED, REMOVED = ".unfinished-", ".replaced-", ".removed-"
PACKAGES: Final = ("warpdrive-min", "torch", "numpy", "safetensors")


MAX_COUNT: Final = 2**53
"""Largest counter of a checkpoint that is read; a run that resumes must be able to count on."""

Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
Size = Annotated[int, Field(ge=1, le=MAX_SIZE)]
Axis = Annotated[str, Field(pattern="^(first|last)$")]
STRICT: Final = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


@with_config(STRICT)
class TrainedIn(TypedDict):
    """Environment of a checkpoint: its name, its sizes, and the agents of each policy."""

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
    """All of a checkpoint but its tensors, as plain JSON.

    Raises:
        ValidationError: A field has another type, or breaks a rule.
    """

    iteration: Count
    """Iterations done."""
    env_steps: Count
    """Steps done, of all environments together."""
    seconds: NonNegativeFloat
    """Time spent on training, s."""
    run_config: dict[str, Any]
    environment: TrainedIn
    """Name and sizes."""
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)]
    best_return: float | None
    """Mean return of the best checkpoint up to now, finite; None: there is none."""
    versions: dict[str, str] = field(default_factory=lambda: _versions())
    """Versions of Python and the packages that wrote it."""
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    """When, in UTC."""

    @property
    def config(self) -> RunConfig:
        """Run config, with the defaults of keys that its release did not have."""
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
    """Make a header of fields that were saved.

    Raises:
        CheckpointError: One is missing, unknown, or breaks a rule.
    """
    try:
        header = Header(**fields)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        got: object = listed([f"{'.'.join(map(str, each['loc'])) or 'header'}: {each['msg']}" for each in faults])
    except TypeError as error:  # a name that is no string
        got = error
    else:
        for name, count in (("iteration", header.iteration), ("env_steps", header.env_steps)):
            if count > MAX_COUNT:
                raise _damaged(what, f"{name} must be at most {MAX_COUNT:,}", count)
        return header
    raise _damaged(what, f"must have the fields of schema {SCHEMA}", got)


def save(
    folder: str | Path, tensors: Mapping[str, Tensor], header: Header, keep_last: int = 3, is_best: bool = False
) -> Path:
    """Write a checkpoint and return its path; synchronises.

    A process that is killed meanwhile leaves either the old state of the folder or the new one.

    Args:
        folder: Of the checkpoints of one run; made if missing.
        tensors: By name, ``section/name``; on any device, views and shared storage included.
        header: What else is to be known.
        keep_last: Checkpoints of this and earlier iterations that stay; ``best`` is not counted.
        is_best: Replace ``best`` too.

    Raises:
        ConfigError: ``keep_last`` is below 1, or safetensors is not installed.
        DiskFullError: There is no room for it; the checkpoints that are there stay.
    """
    whole("checkpoint.keep_last", keep_last, high=2**63 - 1)
    folder = Path(folder)
    target = folder / f"checkpoint_{header.iteration:09d}"
    n_bytes = (1 + is_best) * sum(tensor.nbytes for tensor in tensors.values())
    with room_for(target, n_bytes, f"make room and {next_step(folder.parent, folder.name)}"), _tidied(folder):
        unfinished = _unfinished(target)
        _write(unfinished, tensors, header)
        if is_best:
            # First: were it killed between the two, a run that resumes would know of a best return that `best` has not.
            unfinished_best = _unfinished(folder / BEST)
            for file in (TENSORS, HEADER):
                shutil.copy(unfinished / file, unfinished_best / file)
            _put(unfinished_best, folder / BEST)
        _put(unfinished, target)
    up_to_here = [path for iteration, path in _checkpoints(folder) if iteration <= header.iteration]
    for path in up_to_here[:-keep_last]:
        _remove(path)
    return target


def load(path: str | Path) -> tuple[dict[str, Tensor], Header]:
    """Return the tensors, on the CPU, and the header of what `find` finds.

    Raises:
        CheckpointError: There is no checkpoint, it is damaged, or another schema wrote it.
        ConfigError: safetensors is not installed.
    """
    checkpoint = find(path)
    header = _verified(checkpoint)
    load_file = _safetensors().load_file
    try:
        tensors: dict[str, Tensor] = load_file(checkpoint / TENSORS)
    except Exception as error:  # whatever it raises of a file that it did not write
        raise _damaged(checkpoint / TENSORS, "must be a file of safetensors", error) from error
    return tensors, header


def find(path: str | Path) -> Path:
    """Return the checkpoint that a path means: its own, or else the latest of the folder.

    Raises:
        CheckpointError: There is none.
    """
    path = _standing(Path(path))
    found = path if (path / HEADER).exists() or (path / TENSORS).exists() else latest(path)
    if found is None:
        rule = f"must be a folder with {HEADER} and {TENSORS}, or hold folders checkpoint_<iteration>"
        got, do = "a folder without" if path.is_dir() else "nothing there", "name one that a run has saved"
        raise CheckpointError.of(f"checkpoint {path}", rule, got, do)
    return found


def latest(folder: str | Path) -> Path | None:
    """Return the whole checkpoint of the highest iteration; None: the folder holds none.

    Damaged ones are passed over with a warning in the log. ``best`` is not looked at.

    Raises:
        CheckpointError: All are damaged, or another schema wrote the one that is to be returned.
    """
    damages = []
    for _, path in reversed(_checkpoints(Path(folder))):
        try:
            _verified(path)
        except _DamagedError as error:
            log.warning("%s; an earlier one is looked for", error)
            damages.append(error)
        else:
            return path
    if damages:
        raise damages[0]
    return None


def best(folder: str | Path) -> Path | None:
    """Return the best checkpoint of a folder, whole or not; None: the folder has none."""
    path = _standing(Path(folder, BEST))
    return path if path.exists() else None


def next_step(run: Path, folder: str = FOLDER, resume: str = "go on from the last checkpoint, which stays") -> str:
    """Return how to repeat a run that ended early: ``resume``, unless it has no checkpoint."""
    if _checkpoints(run / folder):
        return resume
    return f"start again after removing {run}, or in another folder, as it has no checkpoint"


def discard_after(folder: str | Path, iteration: int) -> None:
    """Remove the checkpoints of later iterations: a run that goes on from ``iteration`` writes its own.

    ``best`` stays, whichever iteration it is of.
    """
    for number, path in _checkpoints(Path(folder)):
        if number > iteration:
            _remove(path)


@torch.no_grad()
def restore(live: Mapping[str, Tensor], saved: Mapping[str, Tensor], path: str | Path) -> None:
    """Copy the tensors of a checkpoint into those of a run, in place; synchronises.

    Args:
        live: What the run reads and writes, by name.
        saved: What `load` returned.
        path: Of the checkpoint, for errors.

    Raises:
        CheckpointError: A name is missing or too many, or a shape or dtype differs; then nothing is copied.
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
    """Return the tensors whose names begin with a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _kind(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def listed(names: Sequence[str]) -> str:
    """List the first `MAX_LISTED` names, and say how many more there are."""
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(names[:MAX_LISTED]) + more


# ------------------------------------------------------------------ the two files


def _write(folder: Path, tensors: Mapping[str, Tensor], header: Header) -> None:
    # Copies, because safetensors refuses storage that two names share, and on a GPU a copy is needed anyway.
    copies = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    _safetensors().save_file(copies, folder / TENSORS)
    fields = {"schema": SCHEMA, **asdict(header), "sha256": _hash(folder / TENSORS)}
    text = json.dumps({**fields, HASH: _hash_of(fields)}, indent=1, allow_nan=False) + "\n"
    rule, do = (
        f"its header must have at most {MAX_HEADER:,} bytes",
        "give the environment a smaller config",
    )
    require(len(text) <= MAX_HEADER, "checkpoint", rule, len(text), do)
    (folder / HEADER).write_text(text)
    shutil.copymode(folder / HEADER, folder / TENSORS)  # safetensors lets nobody else read it


class _DamagedError(CheckpointError):
    """A file of a checkpoint is missing, cut or altered."""


def _verified(path: Path) -> Header:
    """Return the header once both files are found whole."""
    header_file, tensor_file = path / HEADER, path / TENSORS
    for file in (header_file, tensor_file):
        if not file.is_file():
            raise _damaged(f"checkpoint {path}", f"needs {file.name}")
    rule = f"must be a whole JSON object of at most {MAX_HEADER:,} bytes, with schema and sha256"
    try:
        with header_file.open("rb") as opened:
            text = opened.read(MAX_HEADER + 1)
        if len(text) > MAX_HEADER:
            raise _damaged(header_file, rule, "more")
        fields = json.loads(text)
        own_hash = fields.pop(HASH, None)  # earlier releases wrote none
        is_whole = own_hash in (None, _hash_of(fields))
        schema, sha256 = fields.pop("schema"), fields.pop("sha256")
    except (OSError, ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(header_file, rule, error) from error
    check_schema(header_file, schema, fields)
    header = read_header(header_file, fields)
    if not is_whole:
        raise _damaged(header_file, "is altered: its fields must have the SHA-256 that it names", own_hash)
    if (actual := _hash(tensor_file)) != sha256:
        raise _damaged(tensor_file, f"is cut or altered: its SHA-256 must be {sha256}", actual)
    return header


def _damaged(what: str | Path, rule: str, got: object = ...) -> _DamagedError:
    return _DamagedError.of(str(what), rule, got, "remove it and resume from an earlier one or from best")


def check_schema(what: str | Path, schema: object, header: Mapping[str, Any]) -> None:
    """Raise `CheckpointError` unless this release reads checkpoints of a schema, whose header says who wrote it."""
    do = f"use the release that wrote it: {header.get('versions', 'unknown')}"
    require(schema == SCHEMA, str(what), f"schema must be {SCHEMA}", schema, do, CheckpointError)


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _hash_of(fields: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the fields of a header, whatever their order, without that of the tensors."""
    as_read = json.loads(json.dumps({name: value for name, value in fields.items() if name != "sha256"}))
    return hashlib.sha256(json.dumps(as_read, sort_keys=True).encode()).hexdigest()


def _safetensors() -> Any:
    return optional_package("safetensors.torch", "checkpoint", 'pip install "warpdrive-min[train]"')


def _versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that a checkpoint depends on, if installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"  # a checkout that is run in place
    return found


# ------------------------------------------------------------------ folders that appear, change and go in one rename


def _checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Return the iteration and path of each checkpoint of a folder, by iteration."""
    names = {path.name.removeprefix(REPLACED) for path in folder.iterdir()} if folder.is_dir() else set()
    numbered = [(int(match[1]), folder / match[0]) for name in names if (match := NAME.fullmatch(name))]
    return [(iteration, _standing(path)) for iteration, path in sorted(numbered)]


def _standing(path: Path) -> Path:
    """Return the path, or what stands for it since a writer was killed while replacing it."""
    aside = path.with_name(REPLACED + path.name)
    return aside if aside.exists() and not path.exists() else path


def _unfinished(target: Path) -> Path:
    path = target.with_name(UNFINISHED + target.name)
    path.mkdir()
    return path


def _put(unfinished: Path, target: Path) -> None:
    """Give a folder its name once all of it is on the disk."""
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
    path.rename(gone)  # at once, so that a kill leaves no half checkpoint under its name
    shutil.rmtree(gone)


@contextlib.contextmanager
def _tidied(folder: Path) -> Iterator[None]:
    """Finish what a killed writer began, and take back what this one began if it cannot end it."""
    folder.mkdir(parents=True, exist_ok=True)
    _tidy(folder)
    try:
        yield
    except (Exception, SystemExit, KeyboardInterrupt):  # the latter two: a signal has stopped it
        _tidy(folder)
        raise


def _tidy(folder: Path) -> None:
    """Finish what a killed writer began."""
    for path in [*folder.glob(f"{UNFINISHED}*"), *folder.glob(f"{REMOVED}*")]:
        shutil.rmtree(path)
    for aside in folder.glob(f"{REPLACED}*"):
        target = folder / aside.name.removeprefix(REPLACED)
        if target.exists():
            shutil.rmtree(aside)
        else:
            aside.rename(target)


def _sync(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
