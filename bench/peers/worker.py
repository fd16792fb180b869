"""A peer's process: ``python worker.py SOCKET`` in its own interpreter, which need not have anything of ours.

It answers requests over a socket that it inherits by its number, JSON objects framed by `multiprocessing.connection`.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import json
import platform
import sys
import time
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

MOST_RUNS = 8
"""Runs after which nothing may be compiled any more."""


class Peer:
    """A point of a peer in this process."""

    def device(self, adapter: str) -> dict[str, Any]:
        """Import the peer and return the kind of device that it runs on: ``cpu`` or ``cuda``."""
        return {"device": _adapter(adapter).device()}

    def set_up(self, adapter: str, point: dict[str, Any]) -> dict[str, Any]:
        """Import the peer and make a point ready; returns what the work is, and the versions that do it."""
        module = _adapter(adapter)
        work = self._work = module.prepare(point)
        self._fastest = list[int]()
        n_runs = _until_nothing_compiles(work)
        names = ("env_steps", "counts", "mode", "device", "threads")
        return {
            **{name: getattr(work, name) for name in names},
            "notes": {**work.notes, **({} if work.laps is None else {"laps": "of each the fastest counts"})},
            **_provenance(module, work.device),
            "compiling": None if work.compiled is None else {"programs": work.compiled(), "runs": n_runs - 1},
        }

    def learn(self, adapter: str, point: dict[str, Any]) -> dict[str, Any]:
        """Import the peer, and train a whole run of a point; returns its course, and what has done it."""
        module = _adapter(adapter)
        learned = module.learn(point)
        return {**learned, **_provenance(module, learned["device"])}

    def time(self, runs: int) -> dict[str, Any]:
        """Time so many runs and wait for them, ns; ``compiled`` is how many programs that compiled."""
        work = self._work
        work.wait()
        compiled = work.compiled or _nothing
        before = compiled()
        if work.laps is not None:
            return {"wall_ns": self._by_laps(work, runs), "compiled": compiled() - before}
        start = time.perf_counter_ns()
        for _ in range(runs):
            work.run()
        work.wait()
        wall_ns = time.perf_counter_ns() - start
        return {"wall_ns": wall_ns, "compiled": compiled() - before}

    def _by_laps(self, work: Any, runs: int) -> int:
        """Return the time of so many runs in which each lap took as long as its fastest one in this process so far, ns.

        A run of a loop in Python may take so long that something else on the machine always slows a part of it down.
        """
        for _ in range(runs):
            work.laps.clear()
            start = time.perf_counter_ns()
            work.run()
            work.wait()
            ends = [*work.laps, time.perf_counter_ns()]
            laps = [end - begin for begin, end in zip([start, *ends], ends, strict=False)]
            self._fastest = list(map(min, laps, self._fastest or laps))
        return runs * sum(self._fastest)

    def trace(self) -> dict[str, Any]:
        """Return what the point can be checked by."""
        return dict(self._work.trace())


def _provenance(module: Any, device: str) -> dict[str, Any]:
    """Return the card that an adapter's work is done on, if it is one, and the versions that do it."""
    versions = {name: _version(name) for name in module.PACKAGES}
    return {
        "card": importlib.import_module("theirs.work").card() if device == "cuda" else None,
        "versions": {"python": platform.python_version(), **versions},
    }


def _until_nothing_compiles(work: Any) -> int:
    """Run a work until a run of it compiles nothing; returns how many runs that took.

    The first one may not be enough: JAX compiles again for results whose types are other than those of what it began
    with, of weak types above all.

    Raises:
        RuntimeError: It goes on compiling.
    """
    compiled = work.compiled or _nothing
    for n in range(1, MOST_RUNS + 1):
        before = compiled()
        work.run()
        work.wait()
        if n > 1 and compiled() == before:  # what does not count compiles at its first run, too
            return n
    raise RuntimeError(f"each of its first {MOST_RUNS} runs must not compile (got {compiled()} programs)")


def _nothing() -> int:
    """Return how much is compiled by what compiles nothing, or does not tell."""
    return 0


def _adapter(name: str) -> Any:
    """Import an adapter by the place of its file: no folder of ours is on the path, nor any module in the way."""
    folder = Path(__file__).resolve().with_name("theirs")
    spec = importlib.util.spec_from_file_location(
        "theirs", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["theirs"] = package
    spec.loader.exec_module(package)
    return importlib.import_module(f"theirs.{name}")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return _hash(package)


def _hash(package: str) -> str | None:
    """Name a package that is there without having been installed by its sources; None: it is not there."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.name != package or not spec.submodule_search_locations:
        return None
    digest = hashlib.sha256()
    for file in sorted(Path(spec.submodule_search_locations[0]).rglob("*.py")):
        digest.update(file.read_bytes())
    return f"sources {digest.hexdigest()[:12]}"


def serve(connection: Connection) -> None:
    """Answer requests until one says that it was the last."""
    peer = Peer()
    while request := json.loads(connection.recv_bytes()):
        try:
            reply = getattr(peer, request["method"])(**request["arguments"])
        except Exception as error:  # noqa: BLE001  (whatever breaks a peer is told to who asked)
            kind = "Unavailable" if isinstance(error, ImportError) else type(error).__name__
            reply = {"error": kind, "message": f"{error}"}
        connection.send_bytes(json.dumps(reply).encode())


if __name__ == "__main__":
    with contextlib.suppress(EOFError):  # who asks is gone
        serve(Connection(int(sys.argv[1])))
