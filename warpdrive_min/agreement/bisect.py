"""Two runs that should be equal: the first launch, array and element that differ.

Both runs advance alternately. With ``is_located``, the arguments of each launch are copied before and after it, so that
both values are those of the runs that differed.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final

import numpy as np
import torch

from warpdrive_min import tracing
from warpdrive_min.agreement.changes import Change, Setting, is_fresh, shared_memory_filler
from warpdrive_min.agreement.compare import Array, bits, difference
from warpdrive_min.agreement.report import place
from warpdrive_min.agreement.subject import Subject
from warpdrive_min.backends.base import Launch
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.policies import random_policy

ROUNDING: Final = 1e-4
"""Largest relative difference that may be the order of a float sum."""


# ------------------------------------------------------------------ a run and its records


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Started run, which advances by env steps or iterations."""

    advance: Callable[[], object]
    arrays: Callable[[], Mapping[str, torch.Tensor]]
    """Tensors that two equal runs have in common, by name."""
    wrapper: EnvWrapper
    unit: str = "step"
    """Unit of `advance`, for messages."""


def environment_run(subject: Subject) -> Run:
    """Start an exact run of random actions with auto-reset."""
    wrapper = subject.start_exact()
    draw, data = random_policy(wrapper, subject.seed), wrapper.cuda_data_manager

    def advance() -> None:
        draw()
        wrapper.step()

    return Run(
        advance=advance, arrays=lambda: {name: data.tensor(name) for name in data.array_names()}, wrapper=wrapper
    )


OUT_OF_MEMORY: Final = (MemoryError, torch.OutOfMemoryError)
Copies = dict[str, Array]


@dataclass(frozen=True, slots=True)
class Record:
    """Arrays before and after a launch, or another part of a run."""

    name: str
    """Name of the launch; empty: the end of a step or iteration."""
    before: Copies
    after: Copies
    is_launch: bool = False


class _Side:
    """One of two runs, under its setting."""

    def __init__(self, start: Callable[[], Run], setting: Setting, *, is_located: bool) -> None:
        self._start, self._setting, self._is_located = start, setting, is_located
        self._copied: dict[bytes, Array] = {}
        self._end: Copies = {}
        self._filler: Launch | None = None
        self.run: Run | None = None
        self.records: list[Record] = []
        self.error: Exception | None = None

    def play(self, copied: dict[bytes, Array]) -> None:
        """Start, or advance by one unit; record the launches; synchronises.

        Args:
            copied: Copies of the unit by their contents, of both sides; equal contents are stored once.
        """
        self.records, self._copied = [], copied
        watch = tracing.watched(self._watched) if self._is_located else contextlib.nullcontext()
        with self._setting.applied(), watch:
            try:
                if self.run is None:
                    self.run = self._start()
                    if (backend := self.run.wrapper.backend).name == "pycuda":
                        self._filler = shared_memory_filler(backend, self._setting.filling)
                else:
                    self.run.advance()
                before, self._end = self._end, self._copies(self._arrays())
                self.records.append(Record("", before, self._end))
            except Exception as error:  # noqa: BLE001  (raised again unless the other run has none)
                self.error = error

    def _watched(
        self, name: str, function: Callable[..., Any], arguments: Iterable[tuple[str, Any]]
    ) -> Callable[..., Any]:
        tensors = {each: value for each, value in arguments if isinstance(value, torch.Tensor)}

        @wraps(function)
        def watched(*given: Any, **named: Any) -> Any:
            before = self._copies(tensors or self._arrays())
            if self._filler is not None and tensors:
                self._filler()
            result = function(*given, **named)
            after = self._copies(tensors or self._arrays())
            self.records.append(Record(name, before, after, is_launch=bool(tensors)))
            return result

        return watched

    def _arrays(self) -> Mapping[str, torch.Tensor]:
        return self.run.arrays() if self.run else {}

    def _copies(self, tensors: Mapping[str, torch.Tensor]) -> Copies:
        """Copy tensors to the host."""
        copies = {}
        for name, tensor in tensors.items():
            given = tensor.detach()
            array = (given.float() if given.dtype == torch.bfloat16 else given).cpu().numpy()
            digest = hashlib.blake2b(f"{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
            key = digest.digest()
            if key not in self._copied:
                self._copied[key] = array.copy()
            copies[name] = self._copied[key]
        return copies


# ------------------------------------------------------------------ comparison


@dataclass(frozen=True, slots=True)
class Fault:
    """First difference of two runs."""

    where: str
    """Step and launch, as text."""
    kernel: str
    """Kernel or part of the run that wrote the difference; empty if none did."""
    array: str
    index: tuple[int, ...]
    values: str
    is_rounding: bool = False
    """Floats that differ only in last places."""

    def __str__(self) -> str:
        return f"{self.where}: {self.values}"


def first_fault(start: Callable[[], Run], change: Change, n: int, *, is_located: bool) -> Fault | None:
    """Return the first difference of two runs, or None; synchronises.

    Args:
        start: Starts a run; called once for each of both.
        change: Settings of both.
        n: Steps or iterations.
        is_located: Compare after each launch, which names the kernel. Keeps one unit's arrays of both on the host.

    Raises:
        Exception: Both runs raised it, or one ran out of memory.
    """
    one, other = (_Side(start, each, is_located=is_located) for each in (change.first, change.second))
    for unit in range(n + 1):
        copied: dict[bytes, Array] = {}
        for side in (one, other):
            side.play(copied)
        if fault := _difference(one, other, unit):
            return fault
        if (error := one.error or other.error) and ((one.error and other.error) or isinstance(error, OUT_OF_MEMORY)):
            raise error
        if error:
            which = "first" if one.error else "second"
            values = f"only the {which} run failed: {type(error).__name__}: {error}"
            return Fault(_name(unit, one.run or other.run), "", "", (), values)
    return None


def _name(unit: int, run: Run | None) -> str:
    return f"{run.unit} {unit}" if run and unit else "the start"


def _difference(one: _Side, other: _Side, unit: int) -> Fault | None:
    """Return the first difference of a unit's records."""
    run = one.run or other.run
    step, last, n_launches = _name(unit, run), "", 0
    for a, b in zip(one.records, other.records, strict=False):
        n_launches += a.is_launch or b.is_launch
        launch = f"{step}, launch {n_launches}" if a.is_launch else step
        if a.name != b.name:
            values = f"the first run has {a.name or 'its end'!r} here, the second {b.name or 'its end'!r}"
            return Fault(launch, "", "", (), values)
        after = f"after kernel {last!r}" if last else "before its first kernel"
        kernel, _, fuses = a.name.partition(": ") if a.is_launch else (a.name, "", "")
        part = f", {'kernel ' if a.is_launch else ''}{kernel!r}" if kernel else ""
        part += f" ({fuses})" if fuses else ""
        for where, writer, pair in (
            (f"{step}, {after}, outside of kernels", "", ((a.before, {}), (b.before, {}))),
            (launch + part, kernel, ((a.after, a.before), (b.after, b.before))),
        ):
            if fault := _of_arrays(where, writer, *pair, run):
                return fault
        last = kernel if a.is_launch else last
    return None


Pair = tuple[Copies, Copies]
"""Arrays, and those of before the launch, if there was one."""


def _of_arrays(where: str, kernel: str, one: Pair, other: Pair, run: Run | None) -> Fault | None:
    """Return the first element of arrays that differs and that the launch wrote.

    Fresh memory that nothing wrote yet may differ, and so may scratch arrays.
    """
    (a, a_before), (b, b_before) = one, other
    for name, want in a.items():
        got = b.get(name)
        if got is None or got is want or got.shape != want.shape or got.dtype != want.dtype or _is_scratch(name, run):
            continue
        differs = bits(want) != bits(got)
        if name in a_before:
            differs &= (bits(want) != bits(a_before[name])) | (bits(got) != bits(b_before[name]))
        elif differs.any():
            differs &= ~is_fresh(want, got)
        if differs.any():
            index = tuple(int(i) for i in np.unravel_index(int(np.argmax(differs)), differs.shape))
            at, n = _place(name, index, want.shape, run), int(differs.sum())
            more = f"; {n} of {differs.size} elements differ" if n > 1 else ""
            values = f"{at}: {want[index]:.9g} in the first run, {got[index]:.9g} in the second{more}"
            error = difference(want[differs], got[differs]).error
            size = float(np.abs(want[differs].astype(np.float64)).max())
            is_rounding = want.dtype.kind == "f" and error <= ROUNDING * size
            return Fault(where, kernel, name, index, values, is_rounding)
    return None


def _is_scratch(name: str, run: Run | None) -> bool:
    """True for the kernels' own workspace, whose order may differ."""
    data = run and run.wrapper.cuda_data_manager
    own = name.removeprefix("env/")
    return bool(data and own in data.array_names() and data.attribute(own, "scratch", False))


def _place(name: str, index: Sequence[int], shape: Sequence[int], run: Run | None) -> str:
    """Name an element; rows of environments by environment, agent and component."""
    wrapper = run and run.wrapper
    if not wrapper or not index or shape[0] != wrapper.n_envs:
        return f"{name}{list(index) if index else ''}"
    has_agents = len(shape) > 1 and shape[1] == wrapper.n_agents
    return f"{name} of {place(index, axis=1 if has_agents else None)}"
