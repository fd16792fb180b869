"""Rollout kernels in CUDA C, generated from a source's ``step``.

A block owns its environments, so it does not wait for other blocks between steps. ``step`` becomes a device function
named by `STEP_FUNCTION`; an argument tells it whether its observations are read. Constants give the entries per
environment of arrays with rows of environments (`entries_constant`). On a GPU, written arrays stay in shared memory
during the rollout. Of arrays with a row per step, those that a step may read again stay there until it has ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, cast

from warpdrive_min.backends.base import (
    ACTIONS,
    ANY_RANK,
    FLAGS,
    KEPT,
    LAYERS,
    Constant,
    Parameter,
    rows_of,
    rows_of_steps,
)
from warpdrive_min.backends.cuda_source import DTYPES, Signature, signatures
from warpdrive_min.constants import DONE, FINAL_OBSERVATIONS, TERMINATED, TRUNCATED, Constants
from warpdrive_min.errors import CompileError, known, require
from warpdrive_min.lazy import LazyModule

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy", globals(), "np")

STEP: Final = re.compile("step|Cuda.*Step")
"""Names of step kernels, also in WarpDrive's convention."""
ROLLOUT: Final = "rollout"
"""Name of the rollout kernel with random or given actions."""
ROLLOUT_WITH_POLICY: Final = "rollout_with_policy"
"""Name of the rollout kernel whose actions a network draws."""
EPISODES: Final = "play_episodes"
"""Name of the kernel that plays whole episodes with a network."""
STEP_FUNCTION: Final = "wd_one_{}"
"""Name of the device function that a kernel becomes."""
POLICY_OUTPUTS: Final = ("log_probs", "values")
"""Outputs of a policy for each step, apart from its actions."""
SHARED_MEMORY_BYTES: Final = 16_384
"""Limit of a block's arrays in shared memory, bytes, for occupancy."""
MANY_AGENTS: Final = 512
"""Most agents for `SHARED_MEMORY_BYTES`; with more, steps need the shared memory."""
SHARED_MEMORY_BYTES_OF_MANY: Final = 1_024
"""Limit for a block's arrays in shared memory with more agents, bytes."""


def kernel_of(constants: Mapping[str, Constant]) -> str | None:
    """Return the name of the constants' rollout kernel; None for single steps."""
    if "PLAYS_EPISODES" in constants:
        return EPISODES
    if constants.keys() >= {"KEEP_ALL", "HIDDEN1"}:
        return ROLLOUT_WITH_POLICY
    return ROLLOUT if "RANDOM" in constants else None


def entries_constant(name: str) -> str:
    """Return the constant name of an array's entries per environment."""
    return f"ENTRIES_{name}"


def generate_rollout(whole: str, constants: Mapping[str, Constant], where: str) -> str:
    """Return a rollout kernel generated from the ``step`` of a source.

    The constants select the kernel. It has the parameters of ``step``, with a row per step for the stored arrays, and
    further ones.

    Raises:
        CompileError: The source has no single step kernel whose blocks own environments.
    """
    found = signatures(whole, constants, where).values()
    steps = [each for each in found if each.owns_environments and STEP.fullmatch(each.name)]
    rule, do = "must be a WD_KERNEL named 'step', to be repeated in a launch", "use single steps"
    require(bool(steps), f"{where}: the step", rule, do=do, error=CompileError)
    if kernel_of(constants) == ROLLOUT:
        return _Rollout(steps[0], constants).text()
    missing = [name for name in (ACTIONS, *KEPT) if name not in {each.name for each in steps[0].parameters}]
    rule = f"must take {known([ACTIONS, *KEPT])}, for a policy to act between its steps"
    require(not missing, f"{where}: the step", rule, f"none of {known(missing)}", do, CompileError)
    kind = _Episodes if kernel_of(constants) == EPISODES else _WithPolicy
    return kind(steps[0], constants).text()


class _Rollout:
    """Rollout kernel with random actions or given ones.

    Random actions follow from ``draws``, ``seed`` and ``stream``.
    """

    name = ROLLOUT
    read_back: tuple[str, ...] = (ACTIONS, Constants.REWARDS)
    """Arrays that are read in the step that writes them."""

    def __init__(self, step: Signature, constants: Mapping[str, Constant]) -> None:
        self._step, self._constants = step, constants
        self._names = [each.name for each in step.parameters]
        self._by_step = self._rows_of_steps()
        self._flags = [name for name in FLAGS if name in self._names and self._keeps_flags()]
        self._declared = dict(zip(self._names, step.texts, strict=True))
        self._may_write_actions = "const " not in self._declared[ACTIONS]
        if self._draws():
            self._declared[ACTIONS] = re.sub(r"\bconst\b", "", self._declared[ACTIONS])
        rows = {rows_of(name): f"bool* {rows_of(name)}" for name in self._flags}
        more = {**self._extra_parameters(), **rows, "n_steps": "int n_steps", "n_envs": "int n_envs"}
        self._declared |= {name: text for name, text in more.items() if name not in self._declared}
        self._near = self._shared_memory_arrays()

    def text(self) -> str:
        """Return the kernel's source text."""
        lines = [
            *(f"WD_BRING({', '.join(each)});" for each in self._near.values()),
            *self._begin(),
            *(["WD_SYNC();"] if self._near else []),
            "for (int wd_step = 0; wd_step < n_steps; ++wd_step) {",
            *(f"  {line}" for line in self._body()),
            "}",
            *self._end(),
            *self._take_back(name for name in self._near if name not in self._by_step),
        ]
        return f"WD_KERNEL({self.name})({', '.join(self._declared.values())}) {{\n  " + "\n  ".join(lines) + "\n}\n"

    # -------------------------------------------------------------- overridden by subclasses

    def _rows_of_steps(self) -> dict[str, str]:
        """Return the row index of arrays with one row per step."""
        return {name: "wd_step" for name in rows_of_steps(self._constants) if name not in FLAGS}

    def _draws(self) -> bool:
        """True if the kernel writes the actions."""
        return bool(self._constants["RANDOM"])

    def _keeps_flags(self) -> bool:
        """True if each step's flags are copied to byte rows."""
        return bool(self._constants["KEEP_ALL"])

    def _extra_parameters(self) -> dict[str, str]:
        """Return declarations of parameters beyond those of the step, by name."""
        return {"draws": "int* draws", "seed": "const int* seed", "stream": "int stream"} if self._draws() else {}

    def _environment_arrays(self) -> dict[str, tuple[Parameter, str]]:
        """Return arrays with rows of environments and their entries constant, by name."""
        arrays = (*self._step.parameters, Parameter("draws", "int32", ANY_RANK))
        named = {each.name: (each, entries_constant(each.name)) for each in arrays}
        return {name: each for name, each in named.items() if each[1] in self._constants}

    def _begin(self) -> list[str]:
        """Return the code before the first step, without the barrier after it."""
        return ["wd_supply wd_supplied = {};"] if self._draws() else []

    def _end(self) -> list[str]:
        """Return the code after the last step."""
        return [f"wd_count_draws({self._at('draws')}, n_steps, n_envs);"] if self._draws() else []

    def _body(self) -> list[str]:
        """Return the code of each step."""
        is_observed = "true" if self._constants["KEEP_ALL"] else "wd_step == n_steps - 1"
        keep = [*self._complete(Constants.REWARDS), *self._copy_flags()]
        if not self._draws():
            return [*self._take_step(is_observed), *keep, *(["WD_SYNC();"] if keep else [])]
        given = ["wd_supplied", *self._drawn("wd_action*"), "wd_step", self._at("draws"), "seed", "stream", "n_envs"]
        draw = f"wd_draw_actions({', '.join(given)});"
        return [draw, "WD_SYNC();", *self._step_with_drawn(is_observed), *keep]

    # -------------------------------------------------------------- shared by both kernels

    def _drawn(self, pointer: str) -> list[str]:
        """Return both destinations of drawn actions, which may be the same."""
        kept = self._row(ACTIONS) if self._draw_fills_row else self._at(ACTIONS)
        return [f"reinterpret_cast<{pointer}>({each})" for each in (self._at(ACTIONS), kept)]

    @property
    def _draw_fills_row(self) -> bool:
        """True if drawn actions are stored at once to their row.

        Several types of an agent would be stored to addresses apart: these are copied, as is what the step may write.
        """
        return ACTIONS in self._by_step and not self._may_write_actions and self._constants["N_TYPES"] == 1

    def _step_with_drawn(self, is_observed: str) -> list[str]:
        """Return the step, and the copy of its drawn actions if it needs one.

        The copy is after the step if that may write them. With several types it must then end before the next draw, as
        a thread draws other entries than it copies.
        """
        row, step = self._complete(ACTIONS), self._take_step(is_observed)
        if self._may_write_actions:
            return [*step, *row, *(["WD_SYNC();"] if row and self._constants["N_TYPES"] != 1 else [])]
        return step if self._draw_fills_row else [*row, *step]

    def _take_back(self, names: Iterable[str]) -> list[str]:
        near = [(*self._near[name][:3], self._row(name)) for name in names if name in self._near]
        return [f"WD_TAKE_BACK({', '.join(each)});" for each in near]

    def _complete(self, *names: str) -> list[str]:
        return self._take_back(name for name in names if name in self._by_step)

    def _take_step(self, is_observed: str) -> list[str]:
        given = ", ".join([is_observed, *map(self._at, self._names)])
        return [f"{STEP_FUNCTION.format(self._step.name)}({given});", "WD_SYNC();"]

    def _copy_flags(self) -> list[str]:
        read = [f"const bool {name}_is_set = {self._at(name)}[env] != 0;" for name in self._flags]
        keep = [f"{rows_of(name)}[wd_row + env] = {name}_is_set;" for name in self._flags]
        row = "const long long wd_row = static_cast<long long>(wd_step) * n_envs;"
        return [row, f"WD_EACH_ENV(local, env) {{ {' '.join([*read, *keep])} }}"] if keep else []

    def _at(self, name: str) -> str:
        """Return a step's argument for an array, near or at the current row."""
        return f"WD_NEAR({name}, {self._row(name)})" if name in self._near else self._row(name)

    def _row(self, name: str) -> str:
        """Return the current row of an array with rows of steps, or the array."""
        if name not in self._by_step:
            return name
        entries = "" if "[" in self._declared[name] or name == "successes" else f" * {entries_constant(name)}"
        return f"{name} + static_cast<long long>({self._by_step[name]}) * n_envs{entries}"

    def _shared_memory_arrays(self) -> dict[str, tuple[str, ...]]:
        """Return the arrays that stay in shared memory, the small ones first.

        These are written and have rows of environments; of those with one row per step only `read_back`. By name: C
        type of an entry, array, entries per environment, and the pointer's step from one environment to the next.
        """
        found, n_bytes = dict[str, tuple[str, ...]](), 0
        is_small = cast("int", self._constants["N_AGENTS"]) <= MANY_AGENTS
        most = SHARED_MEMORY_BYTES if is_small else SHARED_MEMORY_BYTES_OF_MANY
        arrays = self._environment_arrays()
        n_envs, c_types = (
            self._constants["ENVS_PER_BLOCK"],
            {dtype: c_type for c_type, dtype in reversed(DTYPES.items())},
        )
        sizes = {
            name: int(np.prod([self._constants[entries], n_envs, np.dtype(each.dtype).itemsize]))
            for name, (each, entries) in arrays.items()
            if name in self._declared and "const " not in self._declared[name]
            if name not in self._by_step or (name in self.read_back and (name != ACTIONS or self._draws()))
        }
        for name in sorted(sizes, key=lambda name: sizes[name]):
            n_bytes += sizes[name]
            if n_bytes <= most:
                array, entries = arrays[name]
                found[name] = (c_types[str(array.dtype)], name, entries, entries if array.rank == ANY_RANK else "1")
        return found


RECORDED: Final = {
    "successes": "int* successes",
    "running_return": "float (*running_return)[N_AGENTS]",
    "running_steps": "int* running_steps",
    "finished_return": "float (*finished_return)[N_AGENTS]",
    "finished_steps": "int* finished_steps",
    "finished_episodes": "int* finished_episodes",
    "cuts": "float* cuts",
    "n_cut": "int* n_cut",
    "n_cuts": "int n_cuts",
    "faults": "int (*faults)[2]",
}
"""Declarations of ``record``'s parameters beyond the step's.

The first has a row per step.
"""
RECORD: Final = {
    Constants.REWARDS: "float (*)[N_AGENTS]",
    DONE: "int*",
    TERMINATED: "int*",
    TRUNCATED: "int*",
    FINAL_OBSERVATIONS: "float*",
}
"""C types of the arrays of a step that ``record`` reads, in its order."""
RECORD_ROWS: Final = (Constants.REWARDS, TERMINATED, TRUNCATED)
"""Arrays whose rows ``record`` writes, in its order."""


class _WithPolicy(_Rollout):
    """Rollout kernel whose actions a network draws from ``observations``.

    These have a row for the observations before the first step. With RECORDS the kernel stores training data of each
    step, by the device function of the kernel ``record``.
    """

    name = ROLLOUT_WITH_POLICY
    read_back = (*_Rollout.read_back, Constants.OBSERVATIONS, TERMINATED, TRUNCATED)

    def _rows_of_steps(self) -> dict[str, str]:
        if not self._constants["KEEP_ALL"]:
            return {}
        kept = (TERMINATED, TRUNCATED, "successes") if self._constants["RECORDS"] else (FINAL_OBSERVATIONS,)
        here = dict.fromkeys((ACTIONS, Constants.REWARDS, *POLICY_OUTPUTS, *kept), "wd_step")
        return {**here, Constants.OBSERVATIONS: "wd_step + 1"}

    def _draws(self) -> bool:
        return True

    def _keeps_flags(self) -> bool:
        return bool(self._constants["KEEP_ALL"]) and not self._constants["RECORDS"]

    def _extra_parameters(self) -> dict[str, str]:
        said = {name: f"float (*{name})[N_AGENTS]" for name in POLICY_OUTPUTS}
        rows = {rows_of(name): f"bool* {rows_of(name)}" for name in FLAGS}
        of_policy = {"weights": "const float* weights", "impossible": "int* impossible"}
        return {**of_policy, **said, **super()._extra_parameters(), **RECORDED, **rows}

    def _environment_arrays(self) -> dict[str, tuple[Parameter, str]]:
        if not self._constants["RECORDS"]:
            return super()._environment_arrays()
        steps = entries_constant("running_steps")
        running = {
            "running_return": (Parameter("running_return", "float32", 2), "N_AGENTS"),
            "running_steps": (Parameter("running_steps", "int32", 1), steps),
        }
        return {**super()._environment_arrays(), **running}

    def _begin(self) -> list[str]:
        return [*super()._begin(), "WD_SHARED wd_policy_of_block policy;", "policy.begin(weights);"]

    def _body(self) -> list[str]:
        written = self._at(Constants.OBSERVATIONS)
        seen = f"reinterpret_cast<const float*>({written.replace('wd_step + 1', 'wd_step')})"
        drawn = ["wd_supplied", "wd_step", self._at("draws"), "seed", "stream", "impossible", *self._drawn("int*")]
        given = [seen, "weights", *drawn, *map(self._at, POLICY_OUTPUTS), "n_envs"]
        act = [f"wd_act(policy, {', '.join(given)});", "WD_SYNC();"]
        keep = self._complete(Constants.OBSERVATIONS, *([] if self._constants["RECORDS"] else [Constants.REWARDS]))
        return [*act, *self._step_with_drawn("true"), *keep, *self._record(), *self._copy_flags()]

    def _record(self) -> list[str]:
        if not self._constants["RECORDS"]:
            return []
        of_step = [f"reinterpret_cast<{kind}>({self._at(name)})" for name, kind in RECORD.items()]
        rows = [f"reinterpret_cast<{RECORD[name]}>({self._row(name)})" for name in RECORD_ROWS]
        given = ", ".join(["true", *of_step, *rows, *map(self._at, RECORDED), "n_envs"])
        return [f"{STEP_FUNCTION.format('record')}({given});"]


class _Episodes(_Rollout):
    """Kernel that plays one episode in each environment with a network, greedily.

    An episode ends at ``_done_``, or after ``n_steps``. See `episodes.cuh`.
    """

    name = EPISODES

    def _rows_of_steps(self) -> dict[str, str]:
        return {}

    def _draws(self) -> bool:
        return True

    def _keeps_flags(self) -> bool:
        return False

    def _extra_parameters(self) -> dict[str, str]:
        results = {"episode_returns": "float (*episode_returns)[N_AGENTS]", "episode_steps": "float* episode_steps"}
        return {**{name: f"const float* {name}" for name in LAYERS}, **results}

    def _begin(self) -> list[str]:
        return ["WD_SHARED wd_player player;", f"player.begin({{{', '.join(LAYERS)}, nullptr, nullptr}});"]

    def _body(self) -> list[str]:
        seen = f"reinterpret_cast<const float*>({self._at(Constants.OBSERVATIONS)})"
        actions = f"reinterpret_cast<int*>({self._at(ACTIONS)})"
        rewards = f"reinterpret_cast<const float (*)[N_AGENTS]>({self._at(Constants.REWARDS)})"
        done = f"reinterpret_cast<const int*>({self._at(DONE)})"
        act = [f"player.act({seen}, {actions}, n_envs);", "WD_SYNC();"]
        return [*act, *self._take_step("true"), f"if (player.note({rewards}, {done}, n_envs)) break;"]

    def _end(self) -> list[str]:
        return ["player.end(episode_returns, episode_steps, n_envs);"]
