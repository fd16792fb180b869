"""A peer's process, without our packages: ``python worker.py SOCKET``.

It answers JSON requests over the inherited socket, with the protocol of `process/worker.py`.
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
"""Maximum number of runs until compilation must end."""


class Peer:
    """Server of one point of a peer."""

    def device(self, adapter: str) -> dict[str, Any]:
        """Import the peer; return its kind of device, ``cpu`` or ``cuda``, and versions."""
        module = _adapter(adapter)
        return {"device": module.device(), "versions": _versions(module)}

    def set_up(self, adapter: str, point: dict[str, Any]) -> dict[str, Any]:
        """Import the peer and set up a point; return work and versions."""
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
        """Import the peer and train a run; returns its curve and versions."""
        module = _adapter(adapter)
        learned = module.learn(point)
        return {**learned, **_provenance(module, learned["device"])}

    def solve(self, adapter: str, point: dict[str, Any]) -> dict[str, Any]:
        """Import the peer and train a run, as its script does. Waits."""
        self._module = _adapter(adapter)
        self._run = self._module.solve(point)
        return {}

    def solution(self) -> dict[str, Any]:
        """Return the curve, evaluation and versions of the solved run."""
        found = self._run.report()
        return {**found, **_provenance(self._module, found["device"])}

    def repeat(self, adapter: str, point: dict[str, Any], folder: str) -> dict[str, Any]:
        """Import the peer and train; write states, their hashes and times. Waits.

        The files are as of `bench/workloads/determinism/program.py`.
        """
        module = _adapter(adapter)
        found = module.repeat(point)
        import numpy as np  # noqa: PLC0415  (the peer's)

        states, digests = found.pop("states"), list[dict[str, str]]()
        for index, state in enumerate(states):
            np.savez(Path(folder, f"{index}.npz"), **state)
            digests.append({name: _digest(array) for name, array in state.items()})
        if module.device() == "cuda":
            uuid = importlib.import_module("adapters.work").gpu_uuid() or ""
            found["card"] = hashlib.sha256(uuid.encode()).hexdigest()[:16]
        Path(folder, "report.json").write_text(json.dumps({**found, "digests": digests}))
        return {}

    def time(self, runs: int) -> dict[str, Any]:
        """Time a number of runs, ns; ``compiled`` counts compiled programs. Waits."""
        work = self._work
        work.wait()
        compiled = work.compiled or _nothing
        before = compiled()
        if work.laps is not None:
            return {"wall_ns": self._by_laps(work, runs), "compiled": compiled() - before}
        own_ns, start = 0, time.perf_counter_ns()
        for _ in range(runs):
            work.run()
            own_ns += work.own_ns() if work.own_ns else 0
        work.wait()
        wall_ns = own_ns or time.perf_counter_ns() - start
        return {"wall_ns": wall_ns, "compiled": compiled() - before}

    def _by_laps(self, work: Any, runs: int) -> int:
        """Return the time of several runs by each lap's fastest time, ns.

        A run of a Python loop may be so long that other processes always slow part of it.
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
        """Return a step of the point, for its check."""
        return dict(self._work.trace())


def _provenance(module: Any, device: str) -> dict[str, Any]:
    """Return the GPU's UUID, if any, and an adapter's package versions."""
    return {
        "card": importlib.import_module("adapters.work").gpu_uuid() if device == "cuda" else None,
        "versions": _versions(module),
    }


def _versions(module: Any) -> dict[str, Any]:
    """Return the versions of Python and of an adapter's packages."""
    own = module.versions() if hasattr(module, "versions") else {name: _version(name) for name in module.PACKAGES}
    return {"python": platform.python_version(), **own}


def _until_nothing_compiles(work: Any) -> int:
    """Run until a run compiles nothing; return the number of runs.

    JAX compiles again if the types of results differ from those of the inputs, such as weak types.

    Raises:
        RuntimeError: Every run compiles.
    """
    compiled = work.compiled or _nothing
    for n in range(1, MOST_RUNS + 1):
        before = compiled()
        work.run()
        work.wait()
        if n > 1 and compiled() == before:  # without a counter the first run may compile too
            return n
    raise RuntimeError(f"one of its first {MOST_RUNS} runs must not compile (got {compiled()} programs)")


def _nothing() -> int:
    """Return 0: the software compiles nothing, or has no counter."""
    return 0


def _adapter(name: str) -> Any:
    """Import an adapter by path, without our folders on the path."""
    folder = Path(__file__).resolve().with_name("adapters")
    spec = importlib.util.spec_from_file_location(
        "adapters", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["adapters"] = package
    spec.loader.exec_module(package)
    return importlib.import_module(f"adapters.{name}")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return _hash(package)


def _digest(array: Any) -> str:
    """Return the SHA-256 of an array's type, shape and bytes, as of certificates."""
    return hashlib.sha256(f"{array.dtype} {array.shape}\0".encode() + array.tobytes()).hexdigest()


def _hash(package: str) -> str | None:
    """Return a hash of an uninstalled package's sources; None if absent."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.name != package or not spec.submodule_search_locations:
        return None
    digest = hashlib.sha256()
    for file in sorted(Path(spec.submodule_search_locations[0]).rglob("*.py")):
        digest.update(file.read_bytes())
    return f"sources {digest.hexdigest()[:12]}"


def serve(connection: Connection) -> None:
    """Serve requests until an empty one."""
    peer = Peer()
    while request := json.loads(connection.recv_bytes()):
        try:
            reply = getattr(peer, request["method"])(**request["arguments"])
        except Exception as error:  # noqa: BLE001  (the client reports every failure)
            kind = "Unavailable" if isinstance(error, ImportError) else type(error).__name__
            reply = {"error": kind, "message": f"{error}"}
        connection.send_bytes(json.dumps(reply).encode())


if __name__ == "__main__":
    with contextlib.suppress(EOFError):  # the client is gone
        serve(Connection(int(sys.argv[1])))
