"""Atomic writes: a file is replaced as a whole or unchanged."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import resource
import shutil
import stat
import sys
import tempfile
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

from warpdrive_min.errors import DiskFullError, WriteError

DISK_FULL_ERRNOS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a full disk, quota and file size limit."""
FULL_BELOW_BYTES: Final = 2**16
"""Free bytes below which an unnumbered error means a full disk."""
UNFINISHED: Final = ".partial-"
"""Prefix of temporary folders for files that will replace another one."""


@contextmanager
def replacing(path: Path, n_bytes: int | None = None) -> Iterator[Path]:
    """Yield a temporary path; rename it to ``path`` on success.

    An error leaves the earlier content. The folder is created if missing and holds the temporary path, which has the
    same suffix. A link stays a link, and a replaced file keeps its mode. A device or pipe is written at the end.

    Args:
        path: File.
        n_bytes: Final length, if known.

    Raises:
        DiskFullError: There is no room for it.
        WriteError: It cannot be written.
    """
    is_stream = _is_stream(path)
    target = Path(os.path.realpath(path))
    with explain_full_disk(path, n_bytes), ExitStack() as stack:
        with errors_name_path(path):
            folder = Path(tempfile.gettempdir()) if is_stream else target.parent
            folder.mkdir(parents=True, exist_ok=True)
            scratch = stack.enter_context(own_folder(folder, UNFINISHED))
        unfinished = scratch / path.name
        with _restore_errno(unfinished):
            yield unfinished
        with errors_name_path(path):
            if is_stream:
                _write_stream(path, unfinished.read_bytes())
                return
            # Synced before the rename, or a crash of the machine could leave an empty file.
            with unfinished.open("r+b") as file:
                os.fsync(file.fileno())
            if target.exists():
                shutil.copymode(target, unfinished)
            os.replace(unfinished, target)


def write_atomically(path: Path, content: str | bytes) -> Path:
    """Write a file and return its path; an error leaves its earlier content.

    Text is written as UTF-8. Missing folders are created.

    Raises:
        WriteError: It cannot be written. `DiskFullError` if the disk is full.
    """
    encoded = content.encode() if isinstance(content, str) else content
    with replacing(path, len(encoded)) as unfinished, errors_name_path(path):
        unfinished.write_bytes(encoded)
    return path


def append(path: Path, text: str, do: str = "make room", *, sync: bool = True) -> None:
    """Append lines to a file, all or none.

    Several processes may append to one file; each holds the file's lock while it writes. A last line without an end, as
    a killed process leaves it, is removed first.

    Args:
        path: File; created if missing, with its folders.
        text: Lines with their line ends.
        do: Advice if the disk is full.
        sync: Wait for the disk. A killed process loses nothing without it, a crash of the machine may.

    Raises:
        WriteError: It cannot be written. `DiskFullError` if the disk is full.
    """
    line = text.encode()
    with explain_full_disk(path, len(line), do, more=True), errors_name_path(path):
        if _is_stream(path):
            _write_stream(path, line)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        lock = lock_of(path, wait=True)
        try:
            end = os.fstat(descriptor).st_size
            if cut := _unfinished_line_bytes(path):
                if lock is None:  # another process may be writing it
                    line = b"\n" + line
                else:
                    end -= cut
                    os.ftruncate(descriptor, end)
            try:
                write_all(descriptor, line)
                if sync:
                    os.fsync(descriptor)
            except OSError:
                if lock is not None:
                    os.ftruncate(descriptor, end)
                raise
        finally:
            os.close(descriptor)
            if lock is not None:
                os.close(lock)


def write_all(descriptor: int, content: bytes) -> None:
    """Write all bytes; the system may write fewer at a time.

    It reports the reason only at the next call.
    """
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]


def _is_stream(path: Path) -> bool:
    """True for a device, pipe, or standard output or error.

    Renaming would remove those.
    """
    with suppress(OSError):
        state = path.stat()
        is_plain = stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode)
        return not is_plain or _descriptor_of(state) is not None
    return False


def _descriptor_of(state: os.stat_result) -> int | None:
    """Return 1 or 2 if a file is standard output or error, else None."""
    for descriptor in (1, 2):
        with suppress(OSError):
            if os.path.samestat(state, os.fstat(descriptor)):
                return descriptor
    return None


def _write_stream(path: Path, content: bytes) -> None:
    """Write to a stream (see `_is_stream`), after buffered standard output."""
    shared = _descriptor_of(path.stat())
    if shared == 1 and sys.stdout is not None:
        sys.stdout.flush()
    descriptor = os.open(path, os.O_WRONLY) if shared is None else os.dup(shared)
    try:
        write_all(descriptor, content)
    finally:
        os.close(descriptor)


def _unfinished_line_bytes(path: Path) -> int:
    """Return the length of a last line without an end, bytes."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return 0
        file.seek(-1, os.SEEK_END)
        if file.read(1) == b"\n":
            return 0
    content = path.read_bytes()
    return len(content) - 1 - content.rfind(b"\n")


def require_writable(path: Path, option: str, *, is_file: bool = False) -> None:
    """Check, before long work, that an option's path is writable.

    Leaves nothing behind.

    Args:
        path: Folder, or with ``is_file`` a file in it.
        option: Name of the option, for the error.
        is_file: ``path`` is a file.

    Raises:
        WriteError: It cannot be written.
    """
    folder = Path(os.path.realpath(path)).parent if is_file else path.absolute()
    try:
        if is_file and _is_stream(path):
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        existing = next(each for each in (folder, *folder.parents) if os.path.lexists(each))
        tempfile.TemporaryFile(dir=existing, prefix=UNFINISHED).close()
        if is_file and path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    except OSError as error:
        what = "a file" if is_file else "a folder"
        rule = f"must be {what} that can be written (got {path}: {_error_text(error)})"
        raise WriteError.of(option, rule, do="name another one") from error


# ------------------------------------------------------------------ errors


@contextmanager
def explain_full_disk(
    path: Path, n_bytes: int | None = None, do: str = "make room", *, more: bool = False
) -> Iterator[None]:
    """Add path and needed bytes to the error of a full disk.

    Args:
        path: File or folder that is written.
        n_bytes: Length, if known.
        do: Advice.
        more: The bytes are appended.

    Raises:
        DiskFullError: There is no room for it.
    """
    try:
        yield
    except Exception as error:
        number = _system_error(error)
        if number not in DISK_FULL_ERRNOS or isinstance(error, WriteError):
            raise
        raise _disk_full_error(path, number, n_bytes, do, " more" * more) from error


def _disk_full_error(path: Path, number: int, n_bytes: int | None, do: str, more: str) -> DiskFullError:
    """Build a full disk's error; free bytes only if they explain it."""
    rule = "needs more bytes" if n_bytes is None else f"needs {n_bytes:,}{more} bytes"
    if number == errno.EFBIG and (limit := _file_size_limit()) is not None:
        rule, do = f"{rule}, and a file may have {limit:,} (ulimit -f)", do.replace("make room", "raise the limit")
    elif number == errno.ENOSPC:
        free = shutil.disk_usage(next(folder for folder in path.absolute().parents if folder.is_dir())).free
        rule += f", and {free:,} are free" if n_bytes is None or free < n_bytes else ""
    return DiskFullError.of(str(path), rule, do=f"{os.strerror(number).lower()}: {do}")


def _file_size_limit() -> int | None:
    """Return this process's file size limit, bytes, or None."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def _system_error(error: Exception) -> int | None:
    """Return the system's error number, for Rust libraries from the text."""
    found = re.search(r"\(os error (\d+)\)", str(error))
    return error.errno if isinstance(error, OSError) else int(found[1]) if found else None


def full_disk_errno(message: str) -> int | None:
    """Return the number of a full disk's error in a text, or None."""
    return next((number for number in DISK_FULL_ERRNOS if os.strerror(number) in message), None)


@contextmanager
def _restore_errno(path: Path) -> Iterator[None]:
    """Restore a full disk's error number, which image libraries drop."""
    try:
        yield
    except OSError as error:
        if error.errno is not None or isinstance(error, WriteError):
            raise
        n_bytes, limit = path.stat().st_size if path.exists() else 0, _file_size_limit()
        is_full = shutil.disk_usage(path.parent).free < FULL_BELOW_BYTES
        number = errno.EFBIG if limit is not None and n_bytes >= limit else errno.ENOSPC if is_full else None
        if number is None:
            raise
        raise OSError(number, os.strerror(number)) from error


@contextmanager
def errors_name_path(path: Path) -> Iterator[None]:
    """Name the path in system errors, in place of a temporary one."""
    try:
        yield
    except OSError as error:
        if isinstance(error, WriteError) or error.errno in DISK_FULL_ERRNOS:
            raise
        raise WriteError.of(
            str(path), f"cannot be written ({_error_text(error)})", do="choose another place"
        ) from error


def _error_text(error: OSError) -> str:
    return error.strerror or str(error)


# ------------------------------------------------------------------ folders and locks


@contextmanager
def own_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Yield a new folder, which is removed at the end.

    Folders that killed processes left are removed first. A process locks its folder while it lives, so that no folder
    in use is removed.

    Args:
        parent: Parent folder.
        prefix: Prefix of its name; no other file may have it.

    Raises:
        OSError: It cannot be created.
    """
    remove_leftovers(parent, prefix)
    folder, lock = Path(tempfile.mkdtemp(dir=parent, prefix=prefix)), None
    try:
        lock = lock_of(folder, wait=True)
        while not folder.exists():  # another process removed it as left over before it was locked
            if lock is not None:
                os.close(lock)
            folder.mkdir(mode=0o700)
            lock = lock_of(folder, wait=True)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def remove_leftovers(parent: Path, prefix: str = UNFINISHED) -> None:
    """Remove folders of `own_folder` that killed processes left."""
    for left in parent.glob(f"{prefix}????????"):
        if (lock := lock_of(left)) is not None:
            shutil.rmtree(left, ignore_errors=True)
            os.close(lock)


def lock_of(path: Path, *, wait: bool = False) -> int | None:
    """Lock a file or folder; closing the descriptor or exiting releases it.

    None: another process has the lock, the path is missing or a link, or the system has no such locks: some
    network file systems have none for folders.

    Args:
        path: File or folder.
        wait: Wait for the process that has it.
    """
    with suppress(OSError):
        return _lock(path, wait)
    return None


def _lock(path: Path, wait: bool) -> int | None:
    """Lock as `lock_of`; raise BlockingIOError if another process has the lock."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder while one process uses its files; create it if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = lock_of(folder, wait=True)
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def new_folder(parent: Path, names: Iterable[str]) -> Path:
    """Create a folder under the first free name, and return it.

    Processes that do so at the same time get different folders.

    Raises:
        OSError: It cannot be created.
    """
    parent.mkdir(parents=True, exist_ok=True)
    for name in names:
        with suppress(FileExistsError):
            (parent / name).mkdir()
            return parent / name
    raise FileExistsError(errno.EEXIST, "all names are taken", str(parent))


def last_below(folder: Path, pattern: str, levels: int = 3) -> Path | None:
    """Return the last match by name in the nearest level of subfolders, or None."""
    matches = (max(folder.glob("*/" * level + pattern), default=None) for level in range(1, levels + 1))
    return next(filter(None, matches), None)


def remove_unused(folder: Path) -> None:
    """Remove a folder if it is empty."""
    with suppress(OSError):
        folder.rmdir()


class FolderLock:
    """Lock of a folder with one writing process.

    It is released with its last user, or with the process.
    """

    def __init__(self, descriptor: int | None) -> None:
        if descriptor is not None:
            weakref.finalize(self, os.close, descriptor)


_LOCKED_FOLDERS: Final[WeakValueDictionary[tuple[int, int], FolderLock]] = WeakValueDictionary()


def lock_folder(folder: Path, wait_s: float = 0.0) -> FolderLock:
    """Lock a folder for this process, whose users share the lock.

    Without locks of folders (see `lock_of`) it succeeds for all processes.

    Args:
        folder: Existing folder.
        wait_s: Timeout for another process, which may be ending, s.

    Raises:
        BlockingIOError: Another process has the lock.
    """
    state, until = os.stat(folder), time.monotonic() + wait_s
    place = (state.st_dev, state.st_ino)
    while (held := _LOCKED_FOLDERS.get(place)) is None:
        try:
            held = _LOCKED_FOLDERS[place] = FolderLock(_lock(folder.resolve(), wait=False))
        except BlockingIOError:
            if time.monotonic() >= until:
                raise
            time.sleep(0.05)
        except OSError:  # the system has no locks of folders
            held = _LOCKED_FOLDERS[place] = FolderLock(None)
    return held
