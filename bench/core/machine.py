"""Machine, code and installed packages of a record.

Records contain no host, user or folder names.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import re
import time
import timeit
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from warpdrive_min import cores
from warpdrive_min.checkout import GitError, commit_of_code, git

from .errors import FileError
from .schema import COMMIT, COMMIT_RULE, short_text

if TYPE_CHECKING:
    import torch

    from .point import Facts

log = logging.getLogger(__name__)

ROOT: Final = Path(__file__).resolve().parents[__name__.count(".")]
PACKAGES = ("numpy", "numba", "numba-cuda", "pycuda", "triton")
_SETTINGS: Final = tomllib.loads(Path(__file__).with_name("settings.toml").read_text())
SETTINGS: Final[Sequence[str]] = _SETTINGS["names"]
"""Environment variables that change the speed or precision of the same code."""
MISLEADING: Final[Mapping[str, str]] = _SETTINGS["misleading"]
"""Environment variables that invalidate a measurement, and why."""


def visible_cards() -> list[str]:
    """Return the ids of this process's GPUs, as in CUDA_VISIBLE_DEVICES."""
    import torch  # noqa: PLC0415  (seconds)

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else [str(index) for index in range(torch.cuda.device_count())]


def fingerprint(device: torch.device) -> dict[str, Any]:
    """Describe the machine.

    A field that cannot be read is None; `unread` has the reason.
    """
    import torch  # noqa: PLC0415  (takes seconds)

    from warpdrive_min.backends import cuda_c  # noqa: PLC0415

    readers: dict[str, Callable[[], Any]] = {
        "gpu": lambda: _gpu(device).name,
        "gpu_uuid_hash": lambda: card_hash(str(_gpu(device).uuid)),
        "gpu_count": torch.cuda.device_count,
        "driver": _driver,
        "cuda": lambda: torch.version.cuda,
        "torch": lambda: str(torch.__version__),
        **{name.replace("-", "_"): partial(metadata.version, name) for name in PACKAGES},
        "cuda_compiler": cuda_c.gpu_compiler,
        "cpp_compiler": _cpp_compiler,
        "python": platform.python_version,
        "os": lambda: f"{platform.system()} {platform.release()}",
        "cpu": _cpu,
        "cores": cores.n_cores,
        "cpu_limit": cores.limit,
        "settings": settings,
        "memory_bytes": lambda: os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    }
    fields: dict[str, Any] = {}
    unread: dict[str, str] = {}
    for name, reader in readers.items():
        try:
            fields[name] = reader()
        except (OSError, RuntimeError, ValueError, metadata.PackageNotFoundError) as error:
            fields[name], unread[name] = None, f"{type(error).__name__}: {error}"
    return {**fields, "unread": unread}


def card_hash(uuid: str) -> str:
    """Hash a GPU's UUID, without its prefix "GPU-"."""
    return _hash(uuid.removeprefix("GPU-"))[:16]


COMPARABLE: Final = (
    *("gpu", "driver", "cuda", "cuda_compiler", "cpp_compiler", "torch", "numpy", "numba", "numba_cuda", "pycuda"),
    *("python", "cpu", "cores", "cpu_limit", "settings"),
)
"""Fingerprint fields that must match to compare times.

Another card of the same model, another OS kernel and unused packages are allowed."""


def differences(
    a: Mapping[str, Any], b: Mapping[str, Any], names: Iterable[str] | None = COMPARABLE
) -> dict[str, tuple[Any, Any]]:
    """Return the fields that differ between two machines, with both values.

    ``names`` None compares all fields.
    """
    names = {**a, **b} if names is None else names
    return {name: (a.get(name), b.get(name)) for name in names if a.get(name) != b.get(name)}


def difference_texts(differs: Mapping[str, tuple[Any, Any]]) -> list[str]:
    """Return `differences` as text."""
    return [f"{name}: {a!r} against {b!r}" for name, (a, b) in differs.items()]


def kind(fingerprint: Mapping[str, Any]) -> str:
    """Name a kind of machine: GPU, else CPU, and cores."""
    name = f"{fingerprint.get('gpu') or fingerprint.get('cpu')} {fingerprint.get('cores')} cores"
    return slug(name.lower())


def slug(text: str) -> str:
    """Return a text as a file name of at most 100 ASCII characters."""
    return "-".join(re.findall("[A-Za-z0-9]+", text))[:100] or "unnamed"


def commit_of(git: Mapping[str, Any]) -> str | None:
    """Return the commit of a record; None if unknown or invalid."""
    sha = git.get("sha")
    return sha if isinstance(sha, str) and re.fullmatch("[0-9a-f]{4,64}", sha) else None


def settings() -> str | None:
    """Return the `SETTINGS` of the environment as NAME=VALUE; None if absent."""
    found = [f"{name}={os.environ[name]}" for name in SETTINGS if name in os.environ]
    return " ".join(found) or None


def _gpu(device: torch.device) -> Any:
    if device.type != "cuda":
        raise RuntimeError("torch finds no NVIDIA GPU")
    import torch  # noqa: PLC0415

    return torch.cuda.get_device_properties(device)


def _driver() -> str:
    text = Path("/proc/driver/nvidia/version").read_text()
    words = text.split()
    return next(word for word in words if word.count(".") >= 1 and word.replace(".", "").isdigit())


def _cpp_compiler() -> str:
    from warpdrive_min.backends import cuda_c  # noqa: PLC0415

    compiler = cuda_c.cpu_compiler()
    if compiler is None:
        raise RuntimeError(cuda_c.no_cpu_compiler())
    return cuda_c.compiler_version(compiler)


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


# ------------------------------------------------------------------ the host, now


def pinned_cores() -> list[int] | None:
    """Return the cores that this process is pinned to; None: all."""
    if cores.n_cores() == os.cpu_count() or not hasattr(os, "sched_getaffinity"):
        return None
    return sorted(os.sched_getaffinity(0))


def loop_ns() -> int:
    """Return the median time of a Python loop, ns; a slow core raises it.

    It shows work of another virtual machine on the same execution units, which `/proc/stat` does not.
    """
    times = timeit.repeat(number=LOOP_TURNS, repeat=5, timer=time.perf_counter_ns)
    return int(sorted(times)[2])


LOOP_TURNS: Final = 50_000


class OtherProcesses:
    """Processes that are neither a given process nor its descendants.

    Args:
        root: The given process; None: this one.
        cores: Cores on which their work counts; None: those that this process may use.
    """

    def __init__(self, root: int | None = None, cores: Sequence[int] | None = None) -> None:
        self._root, self._cores = root, cores or pinned_cores()
        self._start, self._began = self._read(), time.monotonic()

    def busy(self, min_s: float = 0.0) -> float | None:
        """Return their share of our cores since construction; None if unknown.

        Time that a hypervisor took for other virtual machines counts.

        Args:
            min_s: Duration, s, below which the share is unknown.
        """
        if time.monotonic() - self._began < min_s:
            return None
        end = self._read()
        if self._start is None or end is None:
            return None
        used, spent, ours = (after - before for before, after in zip(self._start, end, strict=True))
        return min(1.0, max(0.0, (used - ours) / spent)) if spent else None

    def _read(self) -> tuple[float, float, float] | None:
        """Return seconds: used on all cores, elapsed, and used by our processes."""
        try:
            import psutil  # noqa: PLC0415  (of the extra `bench`)
        except ImportError:
            return None
        try:
            every = psutil.cpu_times(percpu=True)
            rows = [every[core] for core in self._cores] if self._cores else every
            root = psutil.Process(self._root)
            ours = [root, *root.children(recursive=True)]
        except (OSError, IndexError, psutil.Error):
            return None
        used = 0.0
        for process in ours:
            with suppress(psutil.Error):  # it has ended
                used += sum(process.cpu_times()[:4])  # includes children that have ended
        elapsed = sum(sum(row[:8]) for row in rows)  # the rest counts time of guests again
        return elapsed - sum(row.idle + getattr(row, "iowait", 0.0) for row in rows), elapsed, used


# ------------------------------------------------------------------ limits


LIMITS: Final[Mapping[str, Mapping[str, Any]]] = _SETTINGS["limits"]
"""Bytes and operations per second, and their source, by the driver's name of the device."""


def roofline(facts: Facts, seconds: float) -> tuple[float | None, str]:
    """Return a run's share of the machine's limit, and the limit's source.

    The limit is the longer of the times that the declared bytes and operations need. For a device that is not in
    `LIMITS` the share is None and the second value is the reason.
    """
    gpu = _gpu(facts.device).name if facts.device.type == "cuda" else "this CPU"
    if gpu not in LIMITS:
        return None, f"no limit is known for {gpu}"
    limits = LIMITS[gpu]
    least = max(facts.bytes_per_run / limits["bytes_per_s"], facts.ops_per_run / limits["ops_per_s"])
    return least / seconds, limits["source"]


# ------------------------------------------------------------------ the code


def git_state(root: Path) -> dict[str, Any]:
    """Return the commit and a hash of uncommitted changes.

    Outside a checkout the values are None, with git's reason. A copy without git history, such as in a container, may
    name its commit in $BENCH_GIT_SHA. That value must be a commit's name.
    """
    given = os.environ.get("BENCH_GIT_SHA") or None
    if given is not None and not COMMIT.fullmatch(given):
        raise FileError(f"$BENCH_GIT_SHA: {COMMIT_RULE} (got {short_text(given)}); set it to a commit, or unset it")
    sha: str | None
    try:
        sha = commit_of_code(root, *CODE)
        changes = git("status", "--porcelain", "--", *CODE, root=root)
        diff = git("diff", "HEAD", "--", *CODE, root=root) if changes else ""
        reason = f"git is at {sha}"
    except GitError as error:
        sha, reason = None, _without_folders(str(error), root)
    if sha is None or given not in (None, sha):
        named = "; $BENCH_GIT_SHA names the commit" if given else ""
        return {"sha": given, "dirty": None, "diff_hash": None, "unread": reason + named}
    return {"sha": sha, "dirty": bool(changes), "diff_hash": _hash(changes + diff)[:16] if changes else None}


def _without_folders(text: str, root: Path) -> str:
    """Return git's message without folder names, for a record."""
    for folder in (root.absolute(), *root.absolute().parents[:-1]):
        text = text.replace(str(folder), ".")
    return text


@cache
def warn_without_commit() -> None:
    """Warn, once, that records will have no commit, with git's message."""
    state = git_state(ROOT)
    if state["sha"] is None:
        do = "mend that, or name the commit in $BENCH_GIT_SHA"
        log.warning("git: the records of this run will have no commit (%s); %s", state["unread"], do)


PACKAGES_OF_CODE = ("warpdrive_min", "envs", "bench")
CODE = (*PACKAGES_OF_CODE, "pyproject.toml")
"""Files that affect a figure; records and documents may change."""


def dependencies_hash() -> str:
    """Return a hash over name and version of everything installed."""
    installed = {f"{each.metadata['Name']}=={each.version}".lower() for each in metadata.distributions()}
    return _hash("\n".join(sorted(installed)))[:16]


@cache
def sources_hash() -> str:
    """Return `hash_below` of this code at the time of the first call."""
    return hash_below(ROOT)


def hash_below(root: Path) -> str:
    """Hash all package files of a checkout by name and content, without git."""
    digest = hashlib.sha256()
    for folder in (root / name for name in PACKAGES_OF_CODE):
        for file in sorted(folder.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(f"{file.relative_to(root).as_posix()}\0".encode())
                digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
