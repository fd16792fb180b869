"""Results on disk or in a zip archive, whose members have paths such as results/archive.zip/sweeps/RUN.jsonl."""

from __future__ import annotations

import errno
import glob
import lzma
import zipfile
import zlib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

File = Path | zipfile.Path
ARCHIVE: Final = "archive.zip"
"""Name of the archive in the folder of results."""


def located(path: Path) -> File:
    """Return a path, or the member of the archive that it leads into.

    Raises:
        zipfile.BadZipFile: A file on the way is named like an archive and is none.
    """
    archive = _archive_of(path)
    return path if archive is None else zipfile.Path(archive).joinpath(*path.relative_to(archive).parts)


def _archive_of(path: Path) -> Path | None:
    """Return the archive that a path leads into, or is."""
    return next((each for each in (path, *path.parents) if each.suffix == ".zip" and each.is_file()), None)


def exists(path: Path) -> bool:
    """True if a file or folder exists, on disk or in an archive."""
    place = located(path)
    return place.is_dir() or place.exists()


def read_bytes(file: File) -> bytes:
    """Return the content of a file.

    Raises:
        OSError: It cannot be read, or its archive is damaged.
    """
    try:
        return file.read_bytes()
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError) as error:
        raise OSError(errno.EIO, f"damaged archive: {error}") from error


def files_below(folder: Path) -> dict[str, File]:
    """Return all files below a folder by their relative paths, sorted."""
    place = located(folder)
    if isinstance(place, zipfile.Path):
        names = [name.removeprefix(place.at) for name in place.root.namelist() if name.startswith(place.at)]
        return {name: place.joinpath(name) for name in sorted(names) if name and not name.endswith("/")}
    files = sorted(path for path in place.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path for path in files}


def with_archived(folder: Path) -> list[Path]:
    """Return a folder of results and the folder of its name in the archive beside it, those that exist."""
    folders = (folder, folder.parent / ARCHIVE / folder.name)
    return [each for each in folders if located(each).is_dir()]


def matches(pattern: str) -> list[Path]:
    """Return the files and folders that match a shell pattern, sorted; its * enters no subfolder."""
    archive = _archive_of(Path(pattern))
    if archive is None:
        return [Path(name) for name in sorted(glob.glob(pattern))]
    inside = Path(pattern).relative_to(archive).parts
    names = {each for name in files_below(archive) for each in (Path(name), *Path(name).parents)}
    return sorted(
        archive / name for name in names if len(name.parts) == len(inside) and all(map(fnmatchcase, name.parts, inside))
    )
