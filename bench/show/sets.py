"""Sets: one commit's records on one kind of machine, with manifest."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Final, Literal

from pydantic import Field

from warpdrive_min.files import write_atomically

from ..core.archive import files_below, load_or_none, read_bytes, with_archived
from ..core.errors import FileError
from ..core.point import Preset
from ..core.record import PEER_RECORDS, RESULTS, SWEEPS, RecordError
from ..core.schema import Machine, Model, Time

SETS: Final = RESULTS / "sets"
MANIFEST: Final = "manifest.json"
RECORDS: Final = "records.jsonl"
COMPARISONS: Final = "comparisons.jsonl"
CRATE: Final = "ro-crate-metadata.json"


class SetError(RecordError):
    """A set does not match its manifest; names the file."""


class Manifest(Model):
    """Contents of a set, and their origin."""

    schema_version: Literal[1] = 1
    commit: str
    command: str
    """Command that creates the set, or continues an unfinished one."""
    preset: Preset
    processes: int = 1
    """Number of processes that measured each timed point."""
    chosen: list[str] = Field(default_factory=list)
    """Selected points as AXIS and value, also ``case`` and ``peer``; empty: all."""
    run_id: str
    kind: str
    """Kind of machine: its GPU, else its CPU, and its cores."""
    machine: Machine
    """Machine that started the set."""
    cards: list[str] = Field(default_factory=list)
    """Hashes of the ids of the records' GPUs."""
    started_at: Time
    finished_at: Time | None = None
    """End of the last step; null: unfinished, and not read."""
    files: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of each file."""
    skipped: dict[str, str] = Field(default_factory=dict)
    """Points and steps that did not run, each with the reason."""
    failed: dict[str, str] = Field(default_factory=dict)
    """Points that are wrong or failed, each with the reason."""

    @property
    def is_whole(self) -> bool:
        """True if all steps are done and nothing failed."""
        left_out = any(name.startswith("step ") for name in self.skipped)
        return self.finished_at is not None and not self.failed and not left_out

    def write(self, folder: Path) -> None:
        """Write it into the folder of its set, atomically."""
        write_atomically(folder / MANIFEST, self.model_dump_json(indent=1) + "\n")


def write_crate(folder: Path, manifest: Manifest) -> None:
    """Write a set's description as an RO-Crate 1.1, for archives and search engines.

    It must be written before the manifest, which has its SHA-256.
    """
    from .render import template  # noqa: PLC0415  (reading sets needs no templates)

    names = sorted({*files_below(folder), MANIFEST} - {CRATE})
    parts = {name: _encoding(name) for name in names}
    crate = json.loads(template("crate.json").render(crate=CRATE, manifest=manifest, parts=parts))
    write_atomically(folder / CRATE, json.dumps(crate, indent=1) + "\n")


def _encoding(name: str) -> str:
    types = {".jsonl": "application/jsonl", ".json": "application/json", ".md": "text/markdown", ".png": "image/png"}
    return types.get(Path(name).suffix, "application/octet-stream")


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of a set; None if absent.

    Raises:
        SetError: It breaks the schema.
    """
    try:
        return load_or_none(folder / MANIFEST, Manifest)
    except FileError as error:
        raise SetError(f"{error}; publish it again") from error


def hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of a set's files, without manifest and figures."""
    files = {name: file for name, file in files_below(folder).items() if is_evidence(name)}
    return {name: hashlib.sha256(read_bytes(file)).hexdigest() for name, file in files.items()}


def is_evidence(name: str) -> bool:
    """True for a set's records and tables; figures can be redrawn."""
    return name != MANIFEST and not name.startswith("figures/")


def verify(folder: Path) -> None:
    """Check that the files of a finished set match its manifest.

    Raises:
        SetError: One is missing, has changed, or is not named; or there is no manifest.
    """
    if (manifest := read_manifest(folder)) is None:
        raise SetError(f"{folder}: a set must have a {MANIFEST} (got none); publish it again")
    there = hashes(folder)
    for name in sorted({*filter(is_evidence, manifest.files), *there}):
        if manifest.files.get(name) != there.get(name):
            raise SetError(f"{folder / name}: must be as {MANIFEST} says (got another SHA-256); publish it again")


def newest_sets(root: Path = RESULTS) -> list[Path]:
    """Return the newest finished set of each kind of machine.

    A kind that has only sets of selected points contributes all of them.

    Raises:
        SetError: A manifest breaks the schema.
    """
    finished: dict[str, list[tuple[str, bool, Path]]] = {}
    manifests = [
        folder / name
        for folder in with_archived(root / SETS.name)
        for name in files_below(folder)
        if Path(name).name == MANIFEST
    ]
    for folder in (path.parent for path in manifests):
        manifest = read_manifest(folder)
        if manifest and manifest.finished_at:
            finished.setdefault(manifest.kind, []).append((manifest.finished_at, not manifest.chosen, folder))
    found = []
    for of_kind in map(sorted, finished.values()):
        of_all_points = [each for each in of_kind if each[1]]
        found += [folder for *_, folder in of_all_points[-1:] or of_kind]
    return found


def published_records(root: Path = RESULTS) -> list[Path]:
    """Return the folders of records for documents: newest sets, else the archive.

    Raises:
        SetError: A set is not as its manifest says.
    """
    sets = newest_sets(root)
    for folder in sets:
        verify(folder)
    return sets or _archive(root)


def past_records(root: Path = RESULTS) -> list[Path]:
    """Return the history's extra folders: the archive, if a set exists."""
    return _archive(root) if newest_sets(root) else []


def _archive(root: Path) -> list[Path]:
    return [*with_archived(root / SWEEPS.name), *with_archived(root / PEER_RECORDS.name)]
