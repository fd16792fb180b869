"""One side of a comparison: sets a point up, checks it, and times one block whenever it is asked to.

`Side` does so in this process. `RemoteSide` has the same methods and does so in a process of its own, on the code of
another checkout: it runs this very file there, which takes the cases and the timer from that checkout, and talks to it
over pipes, a JSON object a line each way.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import torch

import bench
from bench import machine
from bench.case import Case, Check, Skip
from bench.cases import CASES
from bench.measure import Plan, Timed, Timer

Reply = dict[str, Any]


class SideError(RuntimeError):
    """A side could not do what it was asked; ``kind`` is the name of the exception that it met."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message if kind == "Skip" else f"{kind}: {message}")
        self.kind = kind


class AnySide(Protocol):
    """What a side can be asked; every answer is what JSON can say."""

    def describe(self) -> Reply:
        """Return machine, commit and installed packages, and the folder of the code."""
        ...

    def set_up(self, case: str, point: Mapping[str, Any], sample_s: float, warm_up_cap_s: float) -> Reply:
        """Make a point ready, check it and warm it up; raises SideError. Waits for the device."""
        ...

    def sample(self) -> Reply:
        """Time one block and wait for it; returns ``wall_ns`` and ``device_ns`` of one run."""
        ...

    def finish(self) -> Reply:
        """Check the point again and let go of it; raises SideError."""
        ...


class Side:
    """A side in this process."""

    def __init__(self, cases: Mapping[str, Case] = CASES) -> None:
        self._cases = cases
        self._timed: Timed | None = None

    def describe(self) -> Reply:
        """Return machine, commit and installed packages, and the folder of the code."""
        root = Path(bench.__file__).resolve().parents[1]
        return {
            "root": str(root),
            "machine": machine.fingerprint(torch.device("cuda" if torch.cuda.is_available() else "cpu")),
            "git": machine.git_state(root),
            "dependencies_hash": machine.dependencies_hash(),
        }

    def set_up(self, case: str, point: Mapping[str, Any], sample_s: float, warm_up_cap_s: float) -> Reply:
        """Make a point ready, check it and warm it up; raises SideError. Waits for the device."""
        self._let_go()
        try:
            if case not in self._cases:
                raise Skip(f"this code has no case {case}")
            found = self._cases[case]
            timed = found.setup(point)
            if not isinstance(timed, Timed):
                raise Skip(f"{case} is run once, it has no blocks to be timed in turns")
            timer = Timer(timed)
            before = _right(timed.check(), "before")
            timer.settle(Plan(sample_s=sample_s, warm_up_cap_s=warm_up_cap_s))
        except Exception as error:
            raise SideError(type(error).__name__, str(error)) from error
        self._timed, self._timer, facts = timed, timer, timed.facts
        return {
            "case_version": found.version,
            "scope": found.scope,
            "mode": facts.mode,
            "threads": facts.threads,
            "device": facts.device.type,
            "work": dict(facts.work),
            "notes": dict(facts.notes),
            "runs_per_sample": timer.runs,
            "warm_up": timer.warm_up,
            "check": before,
        }

    def sample(self) -> Reply:
        """Time one block and wait for it; returns ``wall_ns`` and ``device_ns`` of one run."""
        assert self._timed is not None, "a point is set up before it is sampled"
        wall_ns, device_ns = self._timer.sample()
        return {"wall_ns": wall_ns, "device_ns": device_ns}

    def finish(self) -> Reply:
        """Check the point again and let go of it; raises SideError."""
        assert self._timed is not None, "a point is set up before it is finished"
        try:
            return {"check": _right(self._timed.check(), "after")}
        except Exception as error:
            raise SideError(type(error).__name__, str(error)) from error
        finally:
            self._let_go()

    def _let_go(self) -> None:
        """Free what a point took: the other side, or the next point, may need it."""
        if self._timed is None:
            return
        self._timed = None
        del self._timer
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _right(seen: Check, when: str) -> Reply:
    if not seen.passed:
        raise ArithmeticError(f"{when} the timing, against {seen.oracle}: {seen.detail}")
    return {"passed": seen.passed, "max_error": seen.max_error, "oracle": seen.oracle, "detail": seen.detail}


# ------------------------------------------------------------------ over pipes


class RemoteSide:
    """A side in a process of its own, on the code under ``root``; use it in a ``with``.

    Raises:
        SideError: The process ends, or takes its code from elsewhere.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()

    def __enter__(self) -> RemoteSide:
        # Replies have a pipe of their own: whatever the code prints, also as it is imported, goes to standard error.
        read_end, write_end = os.pipe()
        self._replies = os.fdopen(read_end)
        # -P: this file's folder stays off the path, so `bench` is the package under root.
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).resolve()), str(write_end)],
            cwd=self._root,
            env=_environment(self._root),
            stdin=subprocess.PIPE,
            stdout=2,
            pass_fds=(write_end,),
            text=True,
        )
        os.close(write_end)
        try:
            self._described = self._ask("describe")
            if Path(self._described["root"]) != self._root:
                raise SideError("ImportError", f"the code is taken from {self._described['root']}, not {self._root}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with self._replies, self._process as process:  # the process ends when its input is closed, and is waited for
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()

    def describe(self) -> Reply:
        """Return machine, commit and installed packages, and the folder of the code."""
        return self._described

    def set_up(self, case: str, point: Mapping[str, Any], sample_s: float, warm_up_cap_s: float) -> Reply:
        """Make a point ready, check it and warm it up; raises SideError. Waits for the device."""
        return self._ask("set_up", case=case, point=dict(point), sample_s=sample_s, warm_up_cap_s=warm_up_cap_s)

    def sample(self) -> Reply:
        """Time one block and wait for it; returns ``wall_ns`` and ``device_ns`` of one run."""
        return self._ask("sample")

    def finish(self) -> Reply:
        """Check the point again and let go of it; raises SideError."""
        return self._ask("finish")

    def _ask(self, method: str, **arguments: Any) -> Reply:
        process = self._process
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps({"method": method, "arguments": arguments}) + "\n")
            process.stdin.flush()
            line = self._replies.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise SideError("WorkerDied", f"the worker on {self._root} ended at {method} (code {process.wait()})")
        reply: Reply = json.loads(line)
        if "error" in reply:
            raise SideError(reply["error"], reply["message"])
        return reply


def _environment(root: Path) -> dict[str, str]:
    """Return the environment of a worker: it finds the code under ``root`` first, and packages where we find them.

    $BENCH_GIT_SHA names the commit of this checkout, and of no other.
    """
    here = root == Path(__file__).resolve().parents[2]
    kept = {name: value for name, value in os.environ.items() if here or name != "BENCH_GIT_SHA"}
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, [str(root), kept.get("PYTHONPATH")]))}


METHODS: Final = ("describe", "set_up", "sample", "finish")


def serve(replies_to: int) -> None:
    """Answer requests on standard input, until it ends, through a file descriptor."""
    side = Side()
    with os.fdopen(replies_to, "w") as replies:
        for line in sys.stdin:
            request = json.loads(line)
            assert request["method"] in METHODS, f"no such method: {request['method']}"
            try:
                reply = getattr(side, request["method"])(**request["arguments"])
            except SideError as error:
                reply = {"error": error.kind, "message": str(error).removeprefix(f"{error.kind}: ")}
            replies.write(json.dumps(reply) + "\n")
            replies.flush()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
