"""A peer's process, seen from ours: asked over pipes, a JSON object a line each way, and never waited for endlessly."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from bench.case import Skip

WORKER: Final = Path(__file__).with_name("worker.py")
ENDING_S: Final = 10.0
"""How long a process may take to end that was asked to, s."""
ALONE: Final = {
    "PYTHONSAFEPATH": "1",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}
"""Its environment's own variables: no folder of ours on its path, and JAX takes no more memory than it needs."""


class PeerError(RuntimeError):
    """A peer is wrong, breaks, dies, or does not answer; the message names it."""


class PeerProcess:
    """An interpreter with a peer in it; use it in a ``with``, which ends it.

    Args:
        name: Of the peer, for messages.
        install: The line that installs it.
        python: The interpreter.
        timeout_s: Longest wait for an answer, s.
    """

    def __init__(self, name: str, install: str, python: str, timeout_s: float) -> None:
        self._name, self._install, self._python, self._timeout_s = name, install, python, timeout_s
        self._buffer = b""

    def __enter__(self) -> PeerProcess:
        """Start it.

        Raises:
            PeerError: The interpreter cannot be started.
        """
        self._noise = tempfile.TemporaryFile()
        self._replies, write_end = os.pipe()
        try:
            self._process = subprocess.Popen(
                [self._python, str(WORKER), str(write_end)],
                env={**os.environ, **ALONE},
                stdin=subprocess.PIPE,
                stdout=self._noise,
                stderr=subprocess.STDOUT,
                pass_fds=(write_end,),
                start_new_session=True,  # so that its own children end with it
            )
        except OSError as error:
            os.close(self._replies)
            self._noise.close()
            raise PeerError(
                f"{self._name}: its interpreter must start (got {error.strerror}); give one: --python NAME=PATH"
            ) from error
        finally:
            os.close(write_end)
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            self._kill()
        os.close(self._replies)
        self._noise.close()

    def ask(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Return the answer to a request; waits for it.

        Raises:
            Skip: The peer cannot run in this interpreter.
            PeerError: It raised, died, was too slow, or did not answer with a JSON object.
        """
        line = self._exchange(json.dumps({"method": method, "arguments": arguments}).encode() + b"\n", method)
        try:
            reply = json.loads(line)
        except ValueError:
            reply = None
        if not isinstance(reply, dict):
            self._kill()
            raise PeerError(f"{self._name}: must answer {method} with a JSON object (got {line[:80]!r})")
        if reply.get("error") == "Unavailable":
            raise Skip(f"{self._name}: {reply['message']}; in its interpreter: {self._install}")
        if "error" in reply:
            raise PeerError(f"{self._name}: {reply['error']} at {method}: {reply['message']}")
        return reply

    def _exchange(self, request: bytes, method: str) -> bytes:
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(request)
            stdin.flush()
        except BrokenPipeError:
            raise self._died(method) from None
        deadline = time.monotonic() + self._timeout_s
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._replies], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self._kill()
                raise PeerError(f"{self._name}: did not answer {method} within {self._timeout_s:g} s; raise --timeout")
            chunk = os.read(self._replies, 1 << 16)
            if not chunk:
                raise self._died(method)
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _died(self, method: str) -> PeerError:
        try:
            code = self._process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            self._kill()
            return PeerError(f"{self._name}: closed its end at {method} and went on")
        self._noise.seek(0)
        said = self._noise.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(said) if line.strip()), "nothing")
        return PeerError(f"{self._name}: died at {method} with code {code}; its last words: {last:.200}")

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
