"""Named ranges around launches, for NVTX tools and for traces that Perfetto opens.

Ranges are off by default. Then `named` returns its function unchanged, so a prepared launch costs nothing more.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache, wraps
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

from warpdrive_min.errors import ConfigError, WriteError, require

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Range = Callable[[str], AbstractContextManager[Any]]
"""Returns a context that is a range of a name."""
Watch = Callable[[str, Callable[..., Any], Iterable[tuple[str, Any]]], Callable[..., Any]]
"""Returns a function in place of another; takes its name, the function, and its bound arguments by name."""

NVTX_VARIABLE: Final = "WARPDRIVE_MIN_NVTX"
"""Environment variable that turns NVTX ranges on."""
WARM_UP: Final = 2
"""Untraced runs before a trace: the first one compiles, the second captures CUDA graphs."""
N_RUNS: Final = 3
"""Runs in a trace."""
MOST_RUNS: Final = 1_000
"""Maximum runs in a trace; a separate kernel's launch takes some hundred bytes."""

_in_trace: Range | None = None
_watch: Watch | None = None


def named(
    name: str, function: Callable[Parameters, Result], arguments: Iterable[tuple[str, Any]] = ()
) -> Callable[Parameters, Result]:
    """Return a function within a range; without ranges, the function itself.

    Args:
        name: Name of the range.
        function: Launch, or another part of a run.
        arguments: Names and values that are bound to the function, for `watched`.
    """
    if _watch is not None:
        return _watch(name, function, arguments)
    make = _in_trace or _nvtx()
    if make is None:
        return function

    @wraps(function)
    def in_range(*given: Parameters.args, **named: Parameters.kwargs) -> Result:
        with make(name):
            return function(*given, **named)

    return in_range


@cache
def _nvtx() -> Range | None:
    """Return NVTX ranges if the environment variable asks for them.

    Raises:
        ConfigError: torch is a build without NVTX.
    """
    if os.environ.get(NVTX_VARIABLE, "0") in ("", "0"):
        return None
    from torch.cuda import nvtx  # noqa: PLC0415  (takes seconds)

    try:
        nvtx.mark(NVTX_VARIABLE)
    except RuntimeError as error:
        rule, do = "needs a CUDA build of torch, which has NVTX", "install one, or unset the variable"
        raise ConfigError.of(f"${NVTX_VARIABLE}", rule, os.environ[NVTX_VARIABLE], do) from error
    nvtx_range: Range = nvtx.range
    return nvtx_range


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Replace launches that are prepared in the block by those that ``watch`` returns."""
    global _watch
    before, _watch = _watch, watch
    try:
        yield
    finally:
        _watch = before


@contextmanager
def ranges() -> Iterator[None]:
    """Give launches that are prepared in the block ranges in traces."""
    global _in_trace
    from torch.profiler import record_function  # noqa: PLC0415  (takes seconds)

    before, _in_trace = _in_trace, record_function
    try:
        yield
    finally:
        _in_trace = before


def trace(
    work: Callable[[], object],
    synchronize: Callable[[], None],
    facts: Mapping[str, Any],
    *,
    name: str = "run",
    n_runs: int = N_RUNS,
) -> bytes:
    """Trace repeated work after a warm-up; return Chrome's trace format; synchronises.

    Args:
        work: Work of a run; prepare it in a block of `ranges`, or its launches have no names.
        synchronize: Waits until everything enqueued is done.
        facts: JSON object that the trace has as ``warpdrive_min``.
        name: Name of the range of a run, before its number.
        n_runs: Number of traced runs.

    Raises:
        WriteError: torch could not write the whole trace to a temporary file.
    """
    import torch  # noqa: PLC0415  (takes seconds)
    from torch.profiler import ProfilerActivity, profile, record_function  # noqa: PLC0415

    for _ in range(WARM_UP):
        work()
    synchronize()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    with profile(activities=activities, acc_events=True) as profiler:
        for index in range(WARM_UP + 1, WARM_UP + n_runs + 1):
            with record_function(f"{name} {index}"):
                work()
        synchronize()
        profiler.add_metadata_json("warpdrive_min", json.dumps(facts))
    with tempfile.TemporaryDirectory(prefix="warpdrive-trace-") as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        content = path.read_bytes() if path.exists() else b""
    # torch reports no failed write.
    rule, do = "torch must write all of it to a temporary file", "make room there, or set TMPDIR to another folder"
    is_whole = content.rstrip().endswith(b"}")
    require(is_whole, "trace", rule, f"{len(content):,} bytes in {tempfile.gettempdir()}", do, WriteError)
    return content
