"""Checks of environments' outputs, before checkpoints and errors of policies."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import torch

from warpdrive_min.constants import DONE, FINAL_OBSERVATIONS, TIMESTEP, Constants
from warpdrive_min.errors import TrainingError, require
from warpdrive_min.training.loop.metrics import SKIPPED_STEPS, fetch

if TYPE_CHECKING:
    from warpdrive_min.env_wrapper import EnvWrapper
    from warpdrive_min.training.loop.policies import PolicyGroup
    from warpdrive_min.training.loop.rollout import RolloutRecorder

Tensor = torch.Tensor

VALIDATE: Final = "python -m warpdrive_min validate checks the environment"


class RolloutCheck:
    """Checker of environments' outputs: finite numbers, and the trainer's contract.

    Args:
        wrapper: Started wrapper.
        groups: All policies.
        recorders: Recorders by the suffix of their arrays.
        has_cuts: Learning uses the last observations of truncated episodes.
    """

    def __init__(
        self,
        wrapper: EnvWrapper,
        groups: Sequence[PolicyGroup],
        recorders: Mapping[str, RolloutRecorder],
        *,
        has_cuts: bool,
    ) -> None:
        self._wrapper, self._has_cuts = wrapper, has_cuts
        self._who = f"environment {wrapper.name!r}"
        self._parts = [(group, recorders[group.arrays.suffix]) for group in groups]

    def sums(self) -> dict[str, Tensor]:
        """Return the few numbers that show whether other checks may find errors; enqueues."""
        sums: dict[str, Tensor] = {}
        for index, (group, recorder) in enumerate(self._parts):
            parts = [each for each in group.arrays.observations if each.is_floating_point()]
            sums |= {f"{index} seen {part}": each.sum() for part, each in enumerate(parts)}
            sums |= {f"{index} paid {part}": each.sum() for part, each in enumerate(recorder.episode_rewards)}
            if group.buffer is not None and recorder.truncated_observations is not None:
                sums[f"{index} last"] = recorder.truncated_observations.sum()
            if group.buffer is not None and group.is_noisy:  # it may learn from them only later
                sums[f"{index} kept"] = group.buffer.observations.sum()
            counts = [recorder.faults if self._has_cuts and group.buffer is not None else recorder.faults[:, 1]]
            if group.actions.impossible is not None:
                counts.append(group.actions.impossible)
            if group.memory is not None:
                counts.append((recorder.episode_steps != group.arrays.timestep).any())
            if group.algorithm is not None:
                counts += [each for key, each in group.algorithm.metrics.items() if key.startswith(SKIPPED_STEPS)]
            # Same dtype: otherwise all numbers would be copied first
            sums |= {f"{index} fault {kind}": each.sum(dtype=each.dtype) for kind, each in enumerate(counts)}
        return sums

    def is_suspect(self, sums: Mapping[str, float] | None = None) -> bool:
        """Return True if the other checks may find errors.

        Synchronises, unless it gets the `sums` that were fetched.
        """
        read = fetch(self.sums()) if sums is None else sums
        # A non-finite number makes its sum non-finite; an overflow only costs a needless check
        return not all(number == 0 if "fault" in name else abs(number) < float("inf") for name, number in read.items())

    def require_contract(self) -> None:
        """Check that environments kept their contract since training began; synchronises.

        Raises:
            TrainingError: They truncate more episodes than their class states, or their flags contradict each other. Or
                the array that shows a recurrent policy new episodes does not count steps.
        """
        for group, recorder in self._parts:
            lost, contradictions = recorder.faults.amax(0).tolist()
            worst = recorder.faults.argmax(0).tolist()
            if lost and self._has_cuts and group.buffer is not None:
                assert recorder.truncated_observations is not None
                n_kept, n_steps = len(recorder.truncated_observations), len(recorder.rewards)
                raise TrainingError(
                    f"{self._who}: must truncate at most {n_kept} episodes in {n_steps} steps, whose last observations "
                    f"are kept (got {lost} in environment {worst[0]}); set its class's earliest_truncation to the "
                    "fewest steps after which it truncates an episode"
                )
            if contradictions:
                raise TrainingError(
                    f"{self._who}: {DONE} must be set exactly where terminated or truncated is (got {contradictions} "
                    f"steps of environment {worst[1]} where it is not); {VALIDATE}"
                )
            if group.memory is not None:
                steps, timestep = recorder.episode_steps, group.arrays.timestep
                for env in (steps != timestep).nonzero().flatten().tolist():
                    raise TrainingError(
                        f"{self._who}: {TIMESTEP} must count the steps of an episode, for a recurrent policy (got "
                        f"{timestep[env]} after {steps[env]} steps in environment {env}); {VALIDATE}"
                    )

    def non_finite_error(self, iteration: int, envs: slice = slice(None)) -> TrainingError | None:
        """Return an error for the first non-finite number, or None; synchronises.

        Args:
            iteration: Iteration of the last rollout, from 1.
            envs: Environments to check.
        """
        first_env = envs.start or 0
        found: list[tuple[int, str, str]] = []
        for group, recorder in self._parts:
            for array, name, steps in self._arrays(group, recorder):
                part = array[:, envs]
                if part.sum().isfinite():  # allocates nothing: a rollout may have filled the memory
                    continue
                for row, env, agent, feature in (~part.isfinite()).nonzero()[:1].tolist():
                    number = float(part[row, env, agent, feature])
                    who = f"agent {group.agents[agent]!r}" if array.shape[2] == group.arrays.n_agents else "all agents"
                    env += first_env
                    what = f"policy {group.name!r}: array {name[feature]!r} of {self._who}"
                    found.append((int(steps[row, env]), what, f"{number} in environment {env}, {who}"))
        if not found:
            return None
        step, what, got = min(found, key=lambda each: each[0])
        step += (max(iteration, 1) - 1) * len(self._parts[0][1].rewards)
        when = f"after step {step:,}, in iteration {iteration:,}"
        return TrainingError(f"{what} must be finite (got {got}, {when}); {VALIDATE}")

    def _arrays(self, group: PolicyGroup, recorder: RolloutRecorder) -> Iterator[tuple[Tensor, list[str], Tensor]]:
        """Yield outputs (rows, n_envs, n_agents, numbers), names of arrays, and steps.

        Steps are the numbers of the steps that led to each row in each environment, from 1 in this rollout.
        """
        arrays, buffer = group.arrays, group.buffer
        n_steps, n_envs, _ = recorder.rewards.shape
        steps = torch.arange(n_steps + 1, device=recorder.rewards.device)[:, None].expand(-1, n_envs)
        seen = arrays.names_of_features(Constants.OBSERVATIONS)
        if buffer is None:
            now = recorder.rewards.new_empty(n_envs, arrays.n_agents, arrays.n_features)
            arrays.observe(now)
            yield now[None], seen, steps[-1:]
            return
        if buffer.passes is not None and buffer.is_read_in_place:
            yield buffer.passes.observations, seen, steps[:-1]
            yield buffer.observations[-1:], seen, steps[-1:]
        else:
            yield buffer.observations, seen, steps
        rows = slice(None) if arrays.rows is None else arrays.rows
        yield recorder.rewards[:, :, rows, None], [Constants.REWARDS + arrays.suffix], steps[1:]
        if buffer.truncated_observations is not None and not buffer.truncated_observations.sum().isfinite():
            n_kept = len(buffer.truncated_observations)
            slots = torch.arange(n_kept, device=steps.device)[:, None]
            is_kept = (slots < recorder.n_truncated)[..., None, None]
            last = torch.where(is_kept, buffer.truncated_observations, 0.0)
            counted = recorder.truncated.cumsum(0)
            at = torch.stack([(counted <= slot).sum(0) for slot in range(n_kept)]) + 1
            name = FINAL_OBSERVATIONS if self._wrapper.auto_reset else Constants.OBSERVATIONS
            yield last, arrays.names_of_features(name), at

    @contextlib.contextmanager
    def unwritten_is_nan(self) -> Iterator[None]:
        """Put NaN where the block must write, so that `non_finite_error` finds gaps.

        Last observations of environments in which no episode ends are restored; enqueues.
        """
        last: dict[int, Tensor] = {}
        for group, _ in self._parts:
            if group.buffer is not None and group.is_direct:
                group.buffer.observations[1:].fill_(torch.nan)
            if self._wrapper.auto_reset:
                last |= {each.data_ptr(): each for each in group.arrays.last_observations if each.is_floating_point()}
        before = [each.clone() for each in last.values()]
        for each in last.values():
            each.fill_(torch.nan)
        yield
        for each, old in zip(last.values(), before, strict=True):
            each.copy_(torch.where(each.isnan(), old, each))


def require_finite_state(tensors: Mapping[str, Tensor]) -> None:
    """Check that the policies' tensors to be saved are finite; synchronises.

    Raises:
        TrainingError: A tensor is not; names it.
    """
    floats = {name: each for name, each in tensors.items() if name.startswith("policy/") and each.is_floating_point()}
    for name, total in fetch({name: tensor.sum() for name, tensor in floats.items()}).items():
        if not math.isfinite(total):
            rule, do = "must be finite to be saved", "resume from the last checkpoint with a lower lr"
            require(
                bool(floats[name].isfinite().all()), f"training: {name}", rule, "NaN or infinity", do, TrainingError
            )
