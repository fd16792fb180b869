"""Checks of kernels; each returns its finding or raises `CheckFailedError`."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch

from warpdrive_min.agreement import report
from warpdrive_min.agreement.bounds import check_bounds
from warpdrive_min.agreement.checker import EnvironmentCPUvsGPU
from warpdrive_min.agreement.compare import Array, differing
from warpdrive_min.agreement.stepping import Agreement, Arrays, Trace, play, replay, rows_of, step_by_step
from warpdrive_min.agreement.subject import CheckFailedError, CheckSkippedError, Subject, draw_actions
from warpdrive_min.backends.cache import excerpt
from warpdrive_min.constants import DONE, EPISODE, FINAL_OBSERVATIONS, TERMINATED, TIMESTEP, TRUNCATED, Constants
from warpdrive_min.environment import CUDAEnvironmentContext, Environment, earliest_truncation
from warpdrive_min.errors import ConfigError
from warpdrive_min.policies import random_policy
from warpdrive_min.rollouts import Keep

OUTPUTS: Final = (Constants.OBSERVATIONS, Constants.REWARDS, DONE, TERMINATED, TRUNCATED, TIMESTEP, EPISODE)
"""Outputs of a step; the other arrays are state, or scratch without a reset."""
NOT_RESET: Final = (Constants.REWARDS, Constants.ACTIONS, TERMINATED, TRUNCATED, FINAL_OBSERVATIONS)
"""Arrays that a reset leaves unchanged."""
PREFIXES: Final = (Constants.OBSERVATIONS, Constants.REWARDS, Constants.ACTIONS, FINAL_OBSERVATIONS)
"""Name prefixes of arrays that exist once per role and per key of a Dict."""
PACKAGE: Final = Path(__file__).parents[1]
REQUIRED_FIRST: Final = ("build", "bounds")
"""Checks that must pass, if requested, before the others run."""

Status = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Result:
    """Result of one check."""

    name: str
    status: Status
    detail: str


def run_checks(subject: Subject, names: Iterable[str]) -> list[Result]:
    """Run the named checks; an exception in the environment is a failure.

    If one of `REQUIRED_FIRST` fails, the others are skipped: nothing runs, or a kernel might crash this process.
    """
    results: list[Result] = []
    for name in names:
        stopped = next((each.name for each in results if each.name in REQUIRED_FIRST and each.status == "failed"), None)
        reason = f"{stopped} failed; fix that first"
        results.append(Result(name, "skipped", reason) if stopped else _run(name, subject))
    return results


def _run(name: str, subject: Subject) -> Result:
    try:
        return Result(name, "passed", CHECKS[name](subject))
    except CheckFailedError as failure:
        return Result(name, "failed", excerpt(str(failure)))
    except CheckSkippedError as reason:
        return Result(name, "skipped", str(reason))
    except Exception as error:  # noqa: BLE001  (an exception of the environment's code is the finding)
        return Result(name, "failed", excerpt(f"{type(error).__name__}: {error}{_error_location(error)}", 4000))


def _error_location(error: Exception) -> str:
    """Return the last traceback line outside this package and site-packages."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if PACKAGE not in Path(frame.filename).parents and "site-packages" not in Path(frame.filename).parts
    ]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def names_in_row(row: Arrays, *names: str) -> list[str]:
    """Return the arrays with these names, including those per role or Dict key."""
    prefixes = tuple(f"{name}_" for name in names if name in PREFIXES)
    return [each for each in row if each in names or each.startswith(prefixes)]


# ------------------------------------------------------------------ rules


def require_same(want: Trace, got: Trace, what: str = "", first_step: int = 0) -> None:
    """Raise `CheckFailedError` at the first step whose bits differ.

    Compares the environments present in both runs.
    """
    if found := report.first_step_difference(want, got, first_step):
        raise CheckFailedError(f"{what}{found}")


def require_equal(want: Arrays, got: Arrays, what: str, names: Iterable[str] | None = None) -> None:
    """Raise `CheckFailedError` if named arrays differ in bits; None: all arrays.

    The message also lists other arrays that differ.
    """
    if found := differing(want, got, names):
        others = [name for name in differing(want, got) if name not in found]
        raise CheckFailedError(f"{what}: {report.first_difference(want, got, [*found, *others])}")


def require_value(row: Arrays, name: str, is_right: Any, want: str, what: str) -> None:
    """Raise `CheckFailedError` at the first wrong element."""
    for index in np.argwhere(~is_right)[:1].tolist():
        got = f"{row[name][tuple(index)]:.9g}"
        raise CheckFailedError(f"{what}{name} of {report.place(index)}: want {want}, got {got}")


# ------------------------------------------------------------------ build


def check_build(subject: Subject) -> str:
    """Check that all kernels of the reference compile, in every build.

    Builds: with and without auto-reset, exact and not exact.
    """
    builds = [{"auto_reset": auto_reset, "exact": exact} for auto_reset in (True, False) for exact in (True, False)]
    built = [subject.wrapper(**build) for build in builds]
    if subject.has_reference and subject.language != "numpy":
        reference, sources = subject.wrapper(env_backend="cpu").cuda_function_manager, subject.cls.kernel_sources
        for name in ("step", "reset"):
            if reference.has_function(name) and not built[0].cuda_function_manager.has_function(name):
                where = f"{sources[subject.language]} has no kernel {name!r}, which {sources['numpy']} has"
                raise CheckFailedError(f"{where}: write it, or fix its name")
    return f"{len(built)} builds compile"


# ------------------------------------------------------------------ against the reference


def check_consistency(subject: Subject) -> str:
    """Check steps against the reference, from the same state, random actions."""
    subject.skip_reference()
    if not subject.has_reference:
        return _check_against_python(subject)
    tested, reference = subject.start(), subject.start(env_backend="cpu")
    draw, seen = random_policy(tested, subject.seed), Agreement()
    for step in range(1, subject.n_steps + 1):
        found = step_by_step(tested, reference, draw, 1)
        if wrong := [name for name, each in found.largest.items() if each.error > subject.tolerance]:
            raise CheckFailedError(f"step {step}: {report.at(wrong[0], found.largest[wrong[0]], wrong[1:])}")
        seen.add(found)
    if seen.max_error == math.inf:
        raise CheckFailedError(f"{seen}; use more steps or environments")
    ended = f"{seen.n_done} episodes ended" if seen.n_done else "no episode ended: use more steps"
    return f"{subject.n_steps} steps, {ended}, largest error {seen.max_error:.2g}, {seen.excluded_rows}"


def _check_against_python(subject: Subject) -> str:
    """Compare free-running with objects of the environment's Python class."""
    checker = EnvironmentCPUvsGPU(
        cpu_env_class=python_class(subject.cls),
        cuda_env_class=subject.cls,
        env_configs={"given": subject.config},
        num_envs=min(subject.n_envs, 3),
        num_episodes=1,
        gpu_env_backend=subject.backend,
    )
    try:
        error = checker.test_env_reset_and_step(seed=subject.seed)
    except AssertionError as failure:
        raise CheckFailedError(str(failure)) from failure
    return f"one episode against the Python class, largest relative error {error:.2g}"


def python_class(cls: type[CUDAEnvironmentContext]) -> type:
    """Return the Python reference: the first non-CUDA base with ``step``.

    Without such a base, returns the class itself.
    """
    for base in cls.__mro__:
        if "step" in vars(base) and not issubclass(base, CUDAEnvironmentContext):
            return base
    return cls


def check_bit_identity(subject: Subject) -> str:
    """Check that an exact build is bit-identical to the reference, with auto-reset."""
    subject.skip_reference()
    if not subject.has_reference:
        raise CheckSkippedError("there are no NumPy kernels to compare with")
    require_same(subject.play(env_backend="cpu"), subject.trace)
    return f"{len(subject.trace[0])} arrays are bit-identical over {subject.n_steps} steps"


# ------------------------------------------------------------------ against itself


def check_determinism(subject: Subject) -> str:
    """Check that a seed reproduces its bits, and that another seed differs.

    Repeats the run in a new wrapper, and twice from the same saved arrays.
    """
    require_same(subject.trace, subject.play(), "the same seed in a new run: ")
    wrapper = subject.start_exact()
    actions = draw_actions(wrapper, subject.n_steps, subject.seed)
    data = wrapper.cuda_data_manager
    start = {name: data.tensor(name).clone() for name in data.array_names()}
    runs = []
    for _ in range(2):
        for name, tensor in start.items():
            data.tensor(name).copy_(tensor)
        runs.append(play(wrapper, actions))
    require_same(runs[0], runs[1], "restoring the same arrays: ")
    other = subject.play(seed=subject.seed + 1)
    names = names_in_row(other[0], Constants.OBSERVATIONS, Constants.REWARDS)
    if not any(differing(*pair, names) for pair in zip(subject.trace, other, strict=True)):
        raise CheckFailedError("another seed of starts and actions gives the same observations and rewards")
    return "two runs are bit-identical; another seed differs"


def check_independence(subject: Subject) -> str:
    """Check that results do not depend on the number of environments."""
    n_envs = 3 * subject.n_envs + 1
    more = subject.play(num_envs=n_envs)
    few = [{name: row[name] for name in row if name in more[0]} for row in subject.trace]  # others' length is a chance
    require_same(few, more, f"{n_envs} environments instead of {subject.n_envs}: ")
    return f"bit-identical with {subject.n_envs} and {n_envs} environments"


def check_written(subject: Subject) -> str:
    """Check that a step writes all observations and does not read old ones.

    A trainer overwrites the old ones.
    """
    plain, spoiled = (subject.start_exact() for _ in "12")
    data = spoiled.cuda_data_manager
    if spoiled.bound_step() is None or not data.is_data_on_device(Constants.OBSERVATIONS):
        raise CheckSkippedError("a trainer copies this environment's observations")
    observations = data.tensor(Constants.OBSERVATIONS)
    for step, actions in subject.numbered_actions(plain):
        want = replay(plain, actions)
        observations.view(torch.uint8).fill_(0xFF)  # of floats NaN, of integers -1
        require_equal(want, replay(spoiled, actions), f"step {step}, not written, or computed from its old value")
    return f"{subject.n_steps} steps over overwritten observations"


# ------------------------------------------------------------------ resets


def check_reset(subject: Subject) -> str:
    """Check that a forced reset clears flags and does not depend on history."""
    wrapper = subject.start(exact=True)
    data = wrapper.cuda_data_manager
    n_before, n_after = 3, min(10, subject.n_steps)
    actions = draw_actions(wrapper, 3 * n_before + n_after, subject.seed)
    histories = []
    for before in (actions[:n_before], actions[n_before : 3 * n_before]):
        for each in before:
            replay(wrapper, each)
        data.tensor(EPISODE).fill_(5)
        data.tensor(DONE)[::2] = 1
        wrapper.reset()
        _require_restart(rows_of(wrapper), np.True_, 6, "after a forced reset: ")
        histories.append(play(wrapper, actions[3 * n_before :]))
    starts = histories[0][0], histories[1][0]
    left_over = [name for name in differing(*starts) if name not in names_in_row(starts[0], *NOT_RESET)]
    not_reset = f" (not reset: {', '.join(left_over)})" if left_over else ""
    what = f"the same episode after another one differs{not_reset}"
    require_equal(*starts, what, names_in_row(starts[0], Constants.OBSERVATIONS))
    outputs: list[Trace] = [
        [{name: row[name] for name in names_in_row(row, *OUTPUTS)} for row in t[1:]] for t in histories
    ]
    require_same(outputs[0], outputs[1], f"{what}: ", first_step=1)
    return f"flags cleared; an episode is the same for {n_after} steps after two histories{not_reset}"


def _require_restart(row: Arrays, envs: Any, episode: Any, what: str) -> None:
    """Raise `CheckFailedError` unless environments are at their next start."""
    for name, want, text in ((TIMESTEP, 0, "0"), (DONE, 0, "0"), (EPISODE, episode, "the next episode")):
        require_value(row, name, (row[name] == want) | ~envs, text, what)


def check_partial_reset(subject: Subject) -> str:
    """Check that only finished environments restart."""
    wrapper = subject.start(exact=True)
    for each in draw_actions(wrapper, 3, subject.seed):
        replay(wrapper, each)
    finished = np.arange(wrapper.n_envs) % 2 == 0
    wrapper.cuda_data_manager.tensor(DONE).copy_(torch.from_numpy(finished))
    before = rows_of(wrapper)
    wrapper.reset_only_done_envs()
    after = rows_of(wrapper)
    touched = {name: np.where(_column(finished, array), before[name], array) for name, array in after.items()}
    require_equal(before, touched, "an environment that is not done changed")
    _require_restart(after, finished, before[EPISODE] + 1, "after its reset: ")
    return f"{finished.sum()} of {wrapper.n_envs} environments restarted, the others are unchanged"


def check_auto_reset(subject: Subject) -> str:
    """Check that auto-reset equals a step and a reset of done environments."""
    together, apart = subject.start_exact(), subject.start(exact=True)
    n_done = 0
    for step, actions in subject.numbered_actions(together):
        got, ended = replay(together, actions), replay(apart, actions)
        done = ended[DONE] > 0
        n_done += int(done.sum())
        apart.reset_only_done_envs()
        want = {**rows_of(apart), DONE: ended[DONE]}
        if together.cuda_function_manager.has_function("reset"):
            for name in names_in_row(got, FINAL_OBSERVATIONS):
                last = ended[name.removeprefix("final_")]
                want[name] = np.where(_column(done, got[name]), last, got[name])
        require_equal(want, got, f"step {step}", names_in_row(got, *OUTPUTS, FINAL_OBSERVATIONS))
    if not n_done:
        raise CheckSkippedError(f"no episode ended in {subject.n_steps} steps; use more steps or environments")
    return f"{n_done} episodes ended, bit-identical either way"


# ------------------------------------------------------------------ many steps per launch


def check_rollout(subject: Subject) -> str:
    """Check that one launch of many steps equals single steps.

    Covers both modes: only the last step recorded, or all.
    """
    single, many = (subject.start_exact() for _ in "12")
    try:
        mode = many.rollout_mode
    except ConfigError as error:
        raise CheckSkippedError(str(error)) from error
    if mode.name != "fused":
        raise CheckSkippedError(mode.reason)
    drawn = [each[Constants.ACTIONS] for each in draw_actions(single, 2 * subject.n_steps, subject.seed)]
    halves: tuple[tuple[int, Keep], ...] = ((0, "last"), (subject.n_steps, "all"))
    for first, keep in halves:
        actions = torch.stack(drawn[first : first + subject.n_steps])
        steps = many.rollout(subject.n_steps, actions, keep=keep)
        for index, each in enumerate(actions):
            want = replay(single, {Constants.ACTIONS: each})
            if keep == "all":
                got = {name: getattr(steps, name.strip("_"))[index].cpu().numpy() for name in ROLLOUT_ROWS}
                require_equal({name: want[name].astype(got[name].dtype) for name in got}, got, f"row {index}")
        stale = {Constants.ACTIONS} if keep == "last" else {FINAL_OBSERVATIONS}
        names = [name for name in want if name not in stale]
        require_equal(want, rows_of(many), f"{subject.n_steps} steps in one launch, keep={keep!r}", names)
    return f"2 launches of {subject.n_steps} steps equal single steps"


ROLLOUT_ROWS: Final = (Constants.OBSERVATIONS, Constants.REWARDS, DONE, TERMINATED, TRUNCATED)
"""Arrays compared in each row of a rollout."""


def check_one_row(subject: Subject) -> str:
    """Check kernels that write one observation row for all agents.

    The row must hold the columns that the agents' own rows have in common.
    """
    each, one = (subject.start_exact() for _ in "12")
    first = each.env.own_columns if isinstance(each.env, Environment) else None
    if first is None:
        raise CheckSkippedError("its class has no `own_columns`, which mark the agent of an observation")
    own = slice(first, first + each.n_agents)
    names = (Constants.OBSERVATIONS, FINAL_OBSERVATIONS)
    rows = {name: torch.zeros_like(one.cuda_data_manager.tensor(name)[:, :1]) for name in names}
    step = one.bound_step(of_one_row=True, **rows)
    if step is None:
        raise CheckSkippedError(f"backend {subject.backend} writes the row of each agent")
    marks = np.eye(each.n_agents, dtype=np.float32)
    for index, actions in subject.numbered_actions(each):
        want = replay(each, actions)
        got = replay(one, actions, step)
        ended = want[DONE] > 0
        for name, row in rows.items():
            spread = row.cpu().numpy().repeat(each.n_agents, axis=1)
            spread[..., own] += marks
            got[name] = spread if name in OUTPUTS else np.where(_column(ended, spread), spread, want[name])
        require_equal(want, got, f"step {index}")
    return f"{subject.n_steps} steps, in which agents mark themselves from column {first} on"


# ------------------------------------------------------------------ values


def check_finite(subject: Subject) -> str:
    """Check that every float is finite."""
    for step, row in enumerate(subject.trace):
        for name, array in row.items():
            if array.dtype.kind == "f":
                require_value(row, name, np.isfinite(array), "a finite number", f"step {step}: ")
    return f"all floats are finite in {subject.n_steps} steps"


def check_flags(subject: Subject) -> str:
    """Check that flags are 0 or 1, and done equals terminated or truncated."""
    n_ended = dict.fromkeys((DONE, TERMINATED, TRUNCATED), 0)
    for step, row in enumerate(subject.trace[1:], start=1):
        for name in n_ended:
            if name in row:
                require_value(row, name, (row[name] == 0) | (row[name] == 1), "0 or 1", f"step {step}: ")
                n_ended[name] += int(row[name].sum())
        if TERMINATED in row and TRUNCATED in row:
            either = row[TERMINATED] | row[TRUNCATED]
            require_value(row, DONE, row[DONE] == either, "terminated or truncated", f"step {step}: ")
    how = [f"{n_ended[name]} {name}" for name in (TERMINATED, TRUNCATED) if name in subject.trace[0]]
    return f"{subject.n_steps} steps, {n_ended[DONE]} episodes ended" + (f": {', '.join(how)}" if how else "")


def check_truncation(subject: Subject) -> str:
    """Check that episodes end at ``episode_length``, and steps count by one.

    An earlier truncation fails, unless the class declares ``earliest_truncation``.
    """
    wrapper = subject.start(exact=True)
    length, timestep = wrapper.episode_length, wrapper.cuda_data_manager.tensor(TIMESTEP)
    early, late = draw_actions(wrapper, 2, subject.seed)
    if length > 1:
        timestep.fill_(length - 2)
        row = replay(wrapper, early)
        where = f"one step before the end of {length}: "
        require_value(row, TIMESTEP, row[TIMESTEP] == length - 1, str(length - 1), where)
        if TRUNCATED in row and earliest_truncation(wrapper.env) == length:
            want = "0, or less than episode_length in the class's earliest_truncation"
            require_value(row, TRUNCATED, row[TRUNCATED] == 0, want, where)
    wrapper.reset()
    timestep.fill_(length - 1)
    row = replay(wrapper, late)
    require_value(row, DONE, row[DONE] != 0, "1", f"at the end of {length} steps: ")
    if TRUNCATED in row and TERMINATED in row:
        right = (row[TRUNCATED] != 0) | (row[TERMINATED] != 0)
        require_value(row, TRUNCATED, right, "1 where it is not terminated", f"at the end of {length} steps: ")
    return f"episodes end at {length} steps"


CHECKS: Final[dict[str, Callable[[Subject], str]]] = {
    each.__name__.removeprefix("check_").replace("_", "-"): each
    for each in (
        *(check_build, check_bounds, check_consistency, check_bit_identity, check_determinism, check_independence),
        *(check_written, check_reset, check_partial_reset, check_auto_reset, check_rollout, check_one_row),
        *(check_finite, check_flags, check_truncation),
    )
}
"""Checks by name.

Each returns its finding, or raises `CheckFailedError` or `CheckSkippedError`.
"""


def _column(flags: Array, like: Array) -> Array:
    return flags.reshape(-1, *(1,) * (like.ndim - 1))
