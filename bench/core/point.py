"""A point of a benchmark: axes, facts, checks and measurement."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from .schema import Amount, Index, Model, Number
from .stats import SpreadKind, median, median_interval

if TYPE_CHECKING:
    import torch

Point = Mapping[str, Any]
"""Value of each axis: a string, number or bool, by axis."""
Mode = Literal["eager", "graph", "fused"]
"""Launch mode; "fused": a peer compiles all work into one program."""
NOT_WATCHED: Final = "this process does not watch the device"
"""Reason of a record without telemetry, which another process of the point may have."""
Preset = Literal["smoke", "default", "full", "paper"]


class PresetName(StrEnum):
    """Preset names for the command line: points and sampling effort."""

    smoke = "smoke"
    default = "default"
    full = "full"
    paper = "paper"


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """Properties of a prepared point, known before it is measured."""

    mode: Mode
    device: torch.device
    threads: int | None
    """CPU threads that do the work; None on a GPU."""
    work: Mapping[str, int] = field(default_factory=dict)
    """Amount of work per run; the gate uses the first entry. Empty: not counted."""
    bytes_per_run: int = 0
    """Minimum bytes that a run must move, for the roofline."""
    ops_per_run: int = 0
    """Minimum arithmetic operations of a run, for the roofline."""
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Check:
    """Result of checking a point against its reference."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    passed: bool
    max_error: Amount
    oracle: str = ""
    detail: str = ""

    @classmethod
    def within(cls, error: float, tolerance: float, oracle: str, detail: str = "") -> Check:
        """Return the check of an error that may not exceed the tolerance."""
        return cls(passed=error <= tolerance, max_error=error, oracle=oracle, detail=detail)

    def why(self, when: str) -> str:
        """Describe the check before or after the timing."""
        return f"{when} the timing, against {self.oracle}: {self.detail}"

    def require(self, when: str) -> Check:
        """Return the check; raises ArithmeticError if it failed."""
        if not self.passed:
            raise ArithmeticError(self.why(when))
        return self


Direction = Literal["higher", "lower"]
"""Direction of better values."""


class Metric(Model):
    """Stored value with unit, better direction and ends.

    The ends of a rate are an interval of the median of its samples, and too narrow for other processes: see `Figure`.
    """

    value: Number
    unit: str
    direction: Direction
    low: Number
    high: Number

    @classmethod
    def exact(cls, value: float, unit: str, direction: Direction) -> Metric:
        """Return a figure without spread."""
        return cls(value=value, unit=unit, direction=direction, low=value, high=value)


class Figure(Metric):
    """Metric over all processes that measured a point."""

    kind: SpreadKind | None = None
    """Meaning of ``low`` and ``high``; None: not from samples, as stored."""


class Curve(Model):
    """Learning curve; each list has one entry per row of metrics."""

    env_steps: list[Index]
    """Steps of all environments since the start."""
    seconds: list[Amount]
    """Wall time since the start of training, s.

    Building, compilation and capture are excluded."""
    mean_return: dict[str, list[Number | None]]
    """Mean over episodes of the summed rewards of each policy's agents.

    It covers the latest rows: enough for a whole episode in every environment. null: there were fewer rows, or no
    episode ended."""

    @model_validator(mode="after")
    def _has_one_length(self) -> Self:
        """Check that all lists have one entry per row."""
        lengths = {len(self.env_steps), len(self.seconds), *map(len, self.mean_return.values())}
        if len(lengths) > 1:
            rule = "env_steps, seconds and each mean_return must have one length (got {lengths})"
            raise PydanticCustomError("length", rule, {"lengths": sorted(lengths)})
        return self


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """Result of one point: samples, figures, and both checks."""

    samples_ns: tuple[float, ...] = ()
    """Wall time per run in each sample, ns.

    Empty if the work is not repeated."""
    device_ns: tuple[float, ...] | None = None
    """Device time per run in each sample, ns, from events; None on a CPU."""
    runs_per_sample: int | None = None
    stop_reason: str | None = None
    warm_up: dict[str, Any] | None = None
    """Duration and end of the warm-up; None without warm-up."""
    metrics: dict[str, Metric] = field(default_factory=dict)
    curve: Curve | None = None
    roofline: float | None = None
    """Share of the machine's limit (roofline)."""
    telemetry: dict[str, Any] | None = None
    before: Check | None = None
    after: Check | None = None
    process: tuple[int, ...] | None = None
    """Index of each sample's process; None: one process took all."""
    others_busy: float | None = None
    """Share of our cores that other processes kept busy during the timing; None if unknown."""
    notes: dict[str, Any] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    """Reason for each None of a field that could have a value."""

    @property
    def median_ns(self) -> float:
        """Median time of one run, ns."""
        return median(self.samples_ns)

    @property
    def interval_ns(self) -> tuple[float, float]:
        """95 % interval of the median, ns."""
        return median_interval(self.samples_ns)

    @property
    def rejection_reason(self) -> str | None:
        """Reason to reject it; None if correct and below the roofline."""
        for when, check in (("before", self.before), ("after", self.after)):
            if check is not None and not check.passed:
                return f"ArithmeticError: {check.why(when)}"
        if (self.roofline or 0.0) > 1:
            return (
                f"ArithmeticError: roofline: {self.roofline:.0%} of what the machine allows; "
                "the work was not done, or its declared amount is wrong"
            )
        return None


# ------------------------------------------------------------------ names and conditions


def point_name(case: str, point: Point) -> str:
    """Name a point, for progress lines, tables and test ids."""
    return f"{case}[{','.join(conditions(point))}]"


ORACLE: Final = "cpu"
"""Reference backend: single-threaded NumPy, written for comparison."""
HOST: Final = "host"
"""Backend of the CUDA C kernels compiled by a C++ compiler."""
ON_CPU: Final = (ORACLE, HOST)
"""Backends of a CPU."""
PLAIN: Final = "numpy"
"""Value of the axis `backend` for the NumPy baseline (vectorised, one thread)."""
PLAIN_ENVS: Final = (
    "cartpole",
    "mountain_car",
    "continuous_mountain_car",
    "acrobot",
    "pendulum",
    "tag_gridworld",
    "tag_continuous",
)
"""Environments of `bench.plain`; for the others C++ is the CPU baseline."""
PLAIN_CASES: Final = ("env_step", "published", "step")
"""Cases with points of the NumPy baseline."""


def why_no_plain(envs: Iterable[str]) -> str:
    """Return why environments have no points of the NumPy baseline; empty if all have."""
    absent = ", ".join(env for env in envs if env not in PLAIN_ENVS)
    return absent and f"{absent}: no NumPy baseline (backend={PLAIN}); the fastest CPU code is C++ (backend={HOST})"


ALSO_DIFFER: Final = {"backend": ("mode",), "implementation": ("backend",)}
"""Axes, besides the base's, that may differ within a ratio."""


def shared_axes(point: Point, axis: str, *ignored: str) -> tuple[Any, ...]:
    """Return the values shared by a point and its base.

    Args:
        point: One side.
        axis: Axis of the base; unless it is the backend, both sides are on a GPU or both on a CPU.
        ignored: More axes that may differ, besides those of `ALSO_DIFFER`.
    """
    free = {axis, *ALSO_DIFFER.get(axis, ()), *ignored}
    same = sorted((name, value) for name, value in point.items() if name not in free)
    return (axis == "backend" or point["backend"] not in (*ON_CPU, PLAIN), *same)


def conditions(point: Point) -> list[str]:
    """Return ``AXIS=VALUE`` for each axis of a point."""
    return [f"{axis}={value}" for axis, value in point.items()]


def class_and_config(env: str) -> tuple[str, dict[str, Any]]:
    """Split an environment's name, class or path from its JSON config.

    Raises:
        json.JSONDecodeError: What follows is no JSON.
    """
    target, brace, config = env.partition("{")
    return target, json.loads(brace + config or "{}")


def run_options(point: Point) -> dict[str, str | list[str]]:
    """Return the options of `python -m bench run` that select a point."""
    env = str(point.get("env", ""))
    if not env or env.isidentifier():
        return {"where": conditions(point)}
    own = {"env": env, "backend": str(point["backend"]), "n_envs": str(point["n_envs"])}
    return {**own, "where": conditions({axis: point[axis] for axis in point if axis not in (*own, "n_agents")})}


PROGRAM: Final = __name__.rpartition(".core.")[0]
"""Package of these commands: `bench`, or `warpdrive_min.bench` of a wheel."""


def command_line(command: str, **options: str | Iterable[str]) -> str:
    """Return a command line of this package, quoted for a shell."""
    words = ["python", "-m", PROGRAM, command]
    for name, values in options.items():
        for value in [values] if isinstance(values, str) else values:
            words += [f"--{name.replace('_', '-')}", value]
    return shlex.join(words)


ABSENT: Final = "absent"
"""Value for an axis that a point must not have.

Used in conditions and in TOML, which has no null."""


def unmet_condition(where: Sequence[str], points: Iterable[Point]) -> str:
    """Return the first ``AXIS=VALUE`` condition that no point meets.

    Empty if all are met, or if there are no points.
    """
    points = list(points)
    return next((each for each in where if points and not any(matches(point, [each]) for point in points)), "")


def matches(point: Point, where: Sequence[str]) -> bool:
    """True if a point satisfies ``AXIS=VALUE`` conditions.

    Conditions on the same axis are alternatives. `ABSENT` matches a point without the axis.
    """
    wanted: dict[str, set[str]] = {}
    for condition in where:
        axis, _, value = condition.partition("=")
        wanted.setdefault(axis, set()).add(value)
    return all(str(point.get(axis, ABSENT)) in values for axis, values in wanted.items())
