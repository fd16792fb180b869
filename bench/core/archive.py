"""Read files on disk or in a zip archive.

A member of an archive has a path such as results/archive.zip/sweeps/RUN.jsonl.
"""

from __future__ import annotations

import errno
import glob
import json
import lzma
import tomllib
import zipfile
import zlib
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from .errors import FileError
from .schema import error_text

File = Path | zipfile.Path
ARCHIVE: Final = "archive.zip"
"""Name of the archive in the results folder."""
CUT: Final = "is cut short"
"""Start of the message for incomplete JSON, such as a killed sweep's."""
Loaded = TypeVar("Loaded")


def resolve_path(path: Path) -> File:
    """Return a path, or the archive member it leads into.

    Raises:
        FileError: A file on the way is named like an archive and is none.
    """
    archive = _archive_of(path)
    if archive is None:
        return path
    try:
        return zipfile.Path(archive).joinpath(*path.relative_to(archive).parts)
    except zipfile.BadZipFile as error:
        raise FileError(f"{archive}: must be a zip archive ({error}); copy it again") from error


def _archive_of(path: Path) -> Path | None:
    """Return the archive that contains a path, or equals it."""
    return next((each for each in (path, *path.parents) if each.suffix == ".zip" and each.is_file()), None)


def exists(path: Path) -> bool:
    """True if a path exists, on disk or in an archive."""
    try:
        place = resolve_path(path)
        return place.is_dir() or place.exists()
    except OSError:  # too long for a file's name
        return False


def read_bytes(file: File) -> bytes:
    """Return the content of a file.

    Raises:
        OSError: It cannot be read, or its archive is damaged.
    """
    try:
        return file.read_bytes()
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError) as error:
        raise OSError(errno.EIO, f"damaged archive: {error}", str(file)) from error


def files_below(folder: Path) -> dict[str, File]:
    """Return all files below a folder by their relative paths, sorted."""
    place = resolve_path(folder)
    if isinstance(place, zipfile.Path):
        names = [name.removeprefix(place.at) for name in place.root.namelist() if name.startswith(place.at)]
        return {name: place.joinpath(name) for name in sorted(names) if name and not name.endswith("/")}
    files = sorted(path for path in place.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path for path in files}


def with_archived(folder: Path) -> list[Path]:
    """Return a folder and its counterpart in the archive, those that exist."""
    folders = (folder, folder.parent / ARCHIVE / folder.name)
    return [each for each in folders if resolve_path(each).is_dir()]


def glob_paths(pattern: str) -> list[Path]:
    """Return the sorted files and folders that match a shell pattern.

    A `*` matches no slash.
    """
    archive = _archive_of(Path(pattern))
    if archive is None:
        return [Path(name) for name in sorted(glob.glob(pattern))]
    inside = Path(pattern).relative_to(archive).parts
    names = {each for name in files_below(archive) for each in (Path(name), *Path(name).parents)}
    return sorted(
        archive / name for name in names if len(name.parts) == len(inside) and all(map(fnmatchcase, name.parts, inside))
    )


# ------------------------------------------------------------------ JSON and TOML


def parse_json(text: str) -> Any:
    """Parse JSON; halves of a character that no UTF-8 can hold become "?"."""
    value = json.loads(text)
    if "\\ud" not in text.lower():
        return value
    return json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))


def parse_text(text: bytes | str, parse: Callable[[str], Any] = parse_json) -> Any:
    """Parse a text.

    Raises:
        FileError: It cannot be parsed; gives the reason.
    """
    try:
        return parse(text.decode("utf-8-sig") if isinstance(text, bytes) else text)
    except json.JSONDecodeError as error:
        raise FileError(f"{CUT} ({error.msg} at column {error.colno})") from error
    except UnicodeDecodeError as error:
        raise FileError(f"must be UTF-8 (got byte 0x{error.object[error.start]:02x} at {error.start})") from error
    except RecursionError as error:
        raise FileError("is nested too deeply to be read") from error
    except ValueError as error:
        raise FileError(f"cannot be read ({error})") from error


def read(path: File, parse: Callable[[str], Any] = parse_json) -> Any:
    """Parse a file; raises FileError, which names the file."""
    try:
        return parse_text(read_bytes(path), parse)
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error.strerror})") from error
    except FileError as error:
        raise FileError(f"{path}: {error}") from error


def read_text(path: Path) -> str:
    """Read a text file; raises FileError, which names the file."""
    return str(read(path, str))


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; raises FileError, which names the file."""
    tables: dict[str, Any] = read(path, tomllib.loads)
    return tables


def load(path: File, kind: type[Loaded]) -> Loaded:
    """Read a model, or a list of dataclasses, from a JSON file.

    Raises:
        FileError: It cannot be read, or breaks the model; names file, field, rule and value.
    """
    fields = read(path)
    try:
        return TypeAdapter(kind).validate_python(fields)
    except ValidationError as error:
        raise FileError(f"{path}: {error_text(error)}") from error


def load_or_none(path: Path, kind: type[Loaded]) -> Loaded | None:
    """Read a model from a file, see `load`; None if missing."""
    return load(resolve_path(path), kind) if exists(path) else None
