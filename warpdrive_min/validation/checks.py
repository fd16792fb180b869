"""The checks: one function each, from a case to a result."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import numpy as np
import torch

from warpdrive_min import backends
from warpdrive_min.consistency import FINAL_OBSERVATIONS, EnvironmentCPUvsGPU, step_by_step
from warpdrive_min.constants import DONE, EPISODE, TIMESTEP, Constants
from warpdrive_min.environment import CUDAEnvironmentContext
from warpdrive_min.policies import random_policy
from warpdrive_min.validation.subject import Array, Arrays, Case, Trace, draw_actions, replay, snapshot

TERMINATED: Final = "terminated"
TRUNCATED: Final = "truncated"
OUTPUTS: Final = (Constants.OBSERVATIONS, Constants.REWARDS, DONE, TERMINATED, TRUNCATED, TIMESTEP, EPISODE)
"""Arrays that an environment's user sees of a step; the other arrays are state, or scratch that nobody need reset."""
NOT_RESET: Final = (Constants.REWARDS, Constants.ACTIONS, TERMINATED, TRUNCATED, FINAL_OBSERVATIONS)
"""Arrays that a reset leaves as the last step wrote it."""
SANITIZER: Final = ("compute-sanitizer", "--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", "9")
PATIENCE_S: Final = 600
"""After so long a process that exercises the kernels counts as hung."""

FIRST: Final = ("build", "bounds")
"""The checks without which no other one is run, where they were asked for."""

Status = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Result:
    """What a check found."""

    name: str
    status: Status
    detail: str


class CheckFailedError(Exception):
    """What was checked does not hold; the message says where."""


class CheckSkippedError(Exception):
    """The check does not apply; the message says why."""


def run_checks(case: Case, names: Iterable[str]) -> list[Result]:
    """Run the named checks; an exception of the environment is a failure too.

    After a failure of one of `FIRST` the others are skipped: there is nothing to run, or it might break this process.
    """
    results: list[Result] = []
    for name in names:
        stopped = [each.name for each in results if each.name in FIRST and each.status == "failed"]
        results.append(
            Result(name, "skipped", f"{stopped[0]} failed; mend that first") if stopped else _run(name, case)
        )
    return results


def _run(name: str, case: Case) -> Result:
    try:
        return Result(name, "passed", CHECKS[name](case))
    except CheckFailedError as failure:
        return Result(name, "failed", str(failure))
    except CheckSkippedError as reason:
        return Result(name, "skipped", str(reason))
    except Exception as error:  # noqa: BLE001  (whatever the environment's own code raises is the finding)
        return Result(name, "failed", f"{type(error).__name__}: {error}")


# ------------------------------------------------------------------ whether it can be run


def check_build(case: Case) -> str:
    """The kernels compile, with and without auto-reset, exact and not."""
    wrappers = [
        case.wrapper(auto_reset=auto_reset, exact=exact) for auto_reset in (True, False) for exact in (True, False)
    ]
    return f"{len(wrappers)} builds"


def check_bounds(case: Case) -> str:
    """Kernels write and read nothing outside their arrays: guard zones around each, in a process of its own."""
    if case.backend == "cpu":
        raise CheckSkippedError("NumPy itself checks every index")
    spec = {**asdict(case), "cls": case.cls.__name__, "config": dict(case.config)}
    on_gpu = backends.get(case.backend).device.type == "cuda"
    sanitizer = SANITIZER if on_gpu and shutil.which(SANITIZER[0]) else ()
    command = [*sanitizer, sys.executable, "-m", "warpdrive_min.validation.exercise", json.dumps(spec)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        process = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S
        )
    except subprocess.TimeoutExpired as error:
        raise CheckFailedError(f"the kernels did not end within {PATIENCE_S} s") from error
    lines = process.stdout.splitlines()
    reports = [line for line in lines if line.startswith("{")]
    if reports and (found := json.loads(reports[-1])["found"]):
        raise CheckFailedError(found)
    if process.returncode or not reports:
        last = (process.stderr.strip().splitlines() or lines or ["no message"])[-1]
        what = next((line for line in lines if "Invalid" in line), last) if sanitizer else last
        status = process.returncode
        how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        raise CheckFailedError(f"the kernels broke their process ({how}): {what}")
    return "guard zones intact and without influence" + (", memcheck silent" if sanitizer else "")


# ------------------------------------------------------------------ against the reference


def check_consistency(case: Case) -> str:
    """Each step agrees with the reference from the same state, with fresh random actions."""
    if case.backend == "cpu":
        raise CheckSkippedError("backend cpu runs the reference itself")
    if not case.has_reference:
        return _check_against_python(case)
    tested = case.start()
    oracle = case.start(env_backend="cpu")
    draw = random_policy(tested, case.seed)
    seen = step_by_step(tested, oracle, draw, 0)
    for step in range(1, case.n_steps + 1):
        found = step_by_step(tested, oracle, draw, 1)
        if wrong := [name for name, each in found.largest.items() if each.error > case.tolerance]:
            worst = found.largest[wrong[0]]
            what = f"{_where(wrong[0], worst.index)}: want {worst.want:.9g}, got {worst.got:.9g}"
            raise CheckFailedError(f"step {step}: {what}{_also(wrong)}")
        seen.add(found)
    ended = f"{seen.n_done} episodes ended" if seen.n_done else "no episode ended: use more steps"
    doubt = f"{seen.n_in_doubt} of {seen.n_rows} rows in doubt"
    return f"{case.n_steps} steps, {ended}, largest error {seen.max_error:.2g}, {doubt}"


def _check_against_python(case: Case) -> str:
    """Compare free-running with objects of the environment's Python class."""
    checker = EnvironmentCPUvsGPU(
        cpu_env_class=python_class(case.cls),
        cuda_env_class=case.cls,
        env_configs={"given": case.config},
        num_envs=min(case.n_envs, 3),
        num_episodes=1,
        gpu_env_backend=case.backend,
    )
    try:
        error = checker.test_env_reset_and_step(seed=case.seed)
    except AssertionError as failure:
        raise CheckFailedError(str(failure)) from failure
    return f"one episode beside the Python class, largest relative error {error:.2g}"


def python_class(cls: type[CUDAEnvironmentContext]) -> type:
    """Return the Python reference of a class: its first base with a ``step`` that is no CUDA class, else itself."""
    for base in cls.__mro__:
        if "step" in vars(base) and not issubclass(base, CUDAEnvironmentContext):
            return base
    return cls


def check_bit_identity(case: Case) -> str:
    """An exact build runs through the reference's bits from the start, with auto-reset."""
    if case.backend == "cpu":
        raise CheckSkippedError("backend cpu runs the reference itself")
    if not case.has_reference:
        raise CheckSkippedError("there are no NumPy kernels to compare with")
    _require_same(case.play(env_backend="cpu"), case.trace)
    return f"{len(case.trace.rows[0])} arrays, {case.n_steps} steps free-running"


# ------------------------------------------------------------------ against itself


def check_determinism(case: Case) -> str:
    """The same seed gives the same bits, twice over and after going back; another seed gives others."""
    _require_same(case.trace, case.play(), "the same seed in a new run: ")
    wrapper = case.start(exact=True, auto_reset=True)
    actions = draw_actions(wrapper, case.n_steps, case.seed)
    data = wrapper.cuda_data_manager
    start = {name: data.tensor(name).clone() for name in data.array_names()}
    runs = []
    for _ in range(2):
        for name, tensor in start.items():
            data.tensor(name).copy_(tensor)
        runs.append(Trace([snapshot(wrapper), *(replay(wrapper, each) for each in actions)], wrapper.n_envs))
    _require_same(runs[0], runs[1], "going back to the same arrays: ")
    other = case.play(seed=case.seed + 1)
    names = (Constants.OBSERVATIONS, Constants.REWARDS)
    if not any(_differs(*pair, names) for pair in zip(case.trace.rows, other.rows, strict=True)):
        raise CheckFailedError("another seed of starts and actions gives the same observations and rewards")
    return "same bits twice; another seed differs"


def check_independence(case: Case) -> str:
    """The first environments of a larger run go through the same bits."""
    larger = case.play(num_envs=3 * case.n_envs + 1)
    _require_same(case.trace, larger, f"{larger.n_envs} environments instead of {case.n_envs}: ")
    return f"the same with {case.n_envs} and {larger.n_envs} environments"


def check_written(case: Case) -> str:
    """A step writes all observations and does not look at the old ones: a trainer puts others in their place."""
    plain, spoiled = (case.start(exact=True, auto_reset=True) for _ in "12")
    data = spoiled.cuda_data_manager
    if spoiled.bound_step() is None or not data.is_data_on_device(Constants.OBSERVATIONS):
        raise CheckSkippedError("a trainer copies what this environment observes")
    observations = data.tensor(Constants.OBSERVATIONS)
    for step, actions in enumerate(draw_actions(plain, case.n_steps, case.seed), start=1):
        want = replay(plain, actions)
        observations.view(torch.uint8).fill_(0xFF)  # of floats NaN, of integers -1
        if found := _differs(want, got := replay(spoiled, actions)):
            raise CheckFailedError(f"step {step}, not written or not afresh: {_describe_pair(found, want, got)}")
    return f"{case.n_steps} steps over spoiled observations"


# ------------------------------------------------------------------ resets


def check_reset(case: Case) -> str:
    """A forced reset clears the flags, and the new episode does not depend on what went before it."""
    wrapper = case.start(exact=True)
    data = wrapper.cuda_data_manager
    n_before, n_after = 3, min(10, case.n_steps)
    actions = draw_actions(wrapper, 3 * n_before + n_after, case.seed)
    histories = []
    for before in (actions[:n_before], actions[n_before : 3 * n_before]):
        for each in before:
            replay(wrapper, each)
        data.tensor(EPISODE).fill_(5)
        data.tensor(DONE)[::2] = 1
        wrapper.reset()
        start = snapshot(wrapper)
        for name, want in ((TIMESTEP, 0), (DONE, 0), (EPISODE, 6)):
            _require_value(start, name, start[name] == want, str(want), "after a forced reset: ")
        after = actions[3 * n_before :]
        histories.append(Trace([start, *(replay(wrapper, each) for each in after)], wrapper.n_envs))
    first, second = histories
    left_over = [name for name in _differs(first.rows[0], second.rows[0]) if name not in NOT_RESET]
    what = "the same episode after another one differs" + (f" (not reset: {', '.join(left_over)})" if left_over else "")
    if found := _differs(first.rows[0], second.rows[0], (Constants.OBSERVATIONS,)):
        raise CheckFailedError(f"{what}: {_describe_pair(found, first.rows[0], second.rows[0])}")
    outputs = [Trace([{n: row[n] for n in OUTPUTS if n in row} for row in t.rows[1:]], t.n_envs) for t in histories]
    _require_same(outputs[0], outputs[1], f"{what}: ", first_step=1)
    return f"flags cleared; an episode is the same for {len(after)} steps after two histories"


def check_partial_reset(case: Case) -> str:
    """Only finished environments restart."""
    wrapper = case.start(exact=True)
    for each in draw_actions(wrapper, 3, case.seed):
        replay(wrapper, each)
    finished = np.arange(wrapper.n_envs) % 2 == 0
    wrapper.cuda_data_manager.tensor(DONE).copy_(torch.from_numpy(finished))
    before = snapshot(wrapper)
    wrapper.reset_only_done_envs()
    after = snapshot(wrapper)
    touched = {name: np.where(_column(finished, array), before[name], array) for name, array in after.items()}
    if found := _differs(before, touched):
        raise CheckFailedError(f"an environment that is not done changed: {_describe_pair(found, before, touched)}")
    for name, want in ((TIMESTEP, 0), (DONE, 0), (EPISODE, before[EPISODE] + 1)):
        right = (after[name] == want) | ~finished
        _require_value(after, name, right, "the next episode" if name == EPISODE else "0", "after its reset: ")
    return f"{finished.sum()} of {wrapper.n_envs} environments restarted, the others kept every bit"


def check_auto_reset(case: Case) -> str:
    """A step with auto-reset gives what a step and then a reset of the finished environments give."""
    together, apart = case.start(exact=True, auto_reset=True), case.start(exact=True)
    n_done = 0
    for step, actions in enumerate(draw_actions(together, case.n_steps, case.seed), start=1):
        got, ended = replay(together, actions), replay(apart, actions)
        done = ended[DONE] > 0
        n_done += int(done.sum())
        apart.reset_only_done_envs()
        want = {**snapshot(apart), DONE: ended[DONE]}
        if together.cuda_function_manager.has_function("reset") and FINAL_OBSERVATIONS in got:
            want[FINAL_OBSERVATIONS] = np.where(
                _column(done, got[FINAL_OBSERVATIONS]), ended[Constants.OBSERVATIONS], got[FINAL_OBSERVATIONS]
            )
        if found := _differs(want, got, (*OUTPUTS, FINAL_OBSERVATIONS)):
            names = dict.fromkeys([*found, *_differs(want, got)])
            raise CheckFailedError(f"step {step}: {_describe_pair(list(names), want, got)}")
    if not n_done:
        raise CheckSkippedError(f"no episode ended in {case.n_steps} steps; use more steps or environments")
    return f"{n_done} episodes ended, the same either way"


# ------------------------------------------------------------------ values


def check_finite(case: Case) -> str:
    """Every float is finite."""
    for step, row in enumerate(case.trace.rows):
        for name, array in row.items():
            if array.dtype.kind == "f":
                _require_value(row, name, np.isfinite(array), "a finite number", f"step {step}: ")
    return f"{case.n_steps} steps"


def check_flags(case: Case) -> str:
    """Flags are 0 or 1, and an environment is done exactly if it is terminated or truncated."""
    n_done = 0
    for step, row in enumerate(case.trace.rows[1:], start=1):
        for name in (DONE, TERMINATED, TRUNCATED):
            if name in row:
                _require_value(row, name, (row[name] == 0) | (row[name] == 1), "0 or 1", f"step {step}: ")
        if TERMINATED in row and TRUNCATED in row:
            either = row[TERMINATED] | row[TRUNCATED]
            _require_value(row, DONE, row[DONE] == either, "terminated or truncated", f"step {step}: ")
        n_done += int(row[DONE].sum())
    return f"{case.n_steps} steps, {n_done} episodes ended"


def check_truncation(case: Case) -> str:
    """An episode ends at ``episode_length`` and is not cut off before; a step counts one."""
    wrapper = case.start(exact=True)
    length, timestep = wrapper.episode_length, wrapper.cuda_data_manager.tensor(TIMESTEP)
    early, late = draw_actions(wrapper, 2, case.seed)
    if length > 1:
        timestep.fill_(length - 2)
        row = replay(wrapper, early)
        where = f"one step before the end of {length}: "
        _require_value(row, TIMESTEP, row[TIMESTEP] == length - 1, str(length - 1), where)
        if TRUNCATED in row:
            _require_value(row, TRUNCATED, row[TRUNCATED] == 0, "0", where)
    wrapper.reset()
    timestep.fill_(length - 1)
    row = replay(wrapper, late)
    _require_value(row, DONE, row[DONE] != 0, "1", f"at the end of {length} steps: ")
    if TRUNCATED in row and TERMINATED in row:
        right = (row[TRUNCATED] != 0) | (row[TERMINATED] != 0)
        _require_value(row, TRUNCATED, right, "1 where it is not terminated", f"at the end of {length} steps: ")
    return f"at {length} steps"


CHECKS: Final[dict[str, Callable[[Case], str]]] = {
    "build": check_build,
    "bounds": check_bounds,
    "consistency": check_consistency,
    "bit-identity": check_bit_identity,
    "determinism": check_determinism,
    "independence": check_independence,
    "written": check_written,
    "reset": check_reset,
    "partial-reset": check_partial_reset,
    "auto-reset": check_auto_reset,
    "finite": check_finite,
    "flags": check_flags,
    "truncation": check_truncation,
}
"""Every check by name: it returns what it saw, or raises `CheckFailedError` or `CheckSkippedError`."""


# ------------------------------------------------------------------ comparing and describing


def _require_same(want: Trace, got: Trace, what: str = "", first_step: int = 0) -> None:
    """Raise `CheckFailedError` at the first step whose bits differ in the environments that both runs have."""
    for step, (want_row, all_rows) in enumerate(zip(want.rows, got.rows, strict=True), start=first_step):
        got_row = {name: array[: want.n_envs] for name, array in all_rows.items()}
        if found := _differs(want_row, got_row):
            raise CheckFailedError(f"{what}step {step}: {_describe_pair(found, want_row, got_row)}")


def _differs(want: Arrays, got: Arrays, names: Iterable[str] | None = None) -> list[str]:
    """Return the names, of those that both have, whose bits differ."""
    return [
        name
        for name in (want if names is None else names)
        if name in want and name in got and _unequal(want[name], got[name]).any()
    ]


def _unequal(want: Array, got: Array) -> Array:
    bits = np.dtype(f"u{want.dtype.itemsize}")
    unequal: Array = np.ascontiguousarray(want).view(bits) != np.ascontiguousarray(got).view(bits)
    return unequal


def _describe_pair(names: Sequence[str], want: Arrays, got: Arrays) -> str:
    """Say where the first of the named arrays first differs, what each side has there, and which others differ."""
    name = names[0]
    index = tuple(int(i) for i in np.argwhere(_unequal(want[name], got[name]))[0])
    return f"{_where(name, index)}: want {want[name][index]:.9g}, got {got[name][index]:.9g}{_also(names)}"


def _require_value(row: Arrays, name: str, right: Any, want: str, what: str) -> None:
    """Raise `CheckFailedError` at the first element that is not right."""
    wrong = np.argwhere(~right)
    if len(wrong):
        index = tuple(int(i) for i in wrong[0])
        raise CheckFailedError(f"{what}{_where(name, index)}: want {want}, got {row[name][index]:.9g}")


def _where(name: str, index: Sequence[int]) -> str:
    """Name an array and the axes that most have: the environment and the agent."""
    axes = [f"{axis} {i}" for axis, i in zip(("environment", "agent"), index, strict=False)]
    return ", ".join([f"{name} of {axes[0]}", *axes[1:], *(f"element {i}" for i in index[2:])])


def _also(names: Sequence[str]) -> str:
    return f"; so do {', '.join(names[1:])}" if names[1:] else ""


def _column(flags: Array, like: Array) -> Array:
    return flags.reshape(-1, *(1,) * (like.ndim - 1))
