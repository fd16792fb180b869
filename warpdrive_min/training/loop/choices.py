"""Paths that all policies share: stored rows, steps and rollouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch

from warpdrive_min.backends.base import Argument, Launch
from warpdrive_min.constants import FINAL_OBSERVATIONS, TERMINATED, TRUNCATED, Constants
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.environment import Environment
from warpdrive_min.errors import require
from warpdrive_min.sampler import CUDASampler
from warpdrive_min.training.config import TrainerConfig
from warpdrive_min.training.loop.arrays import AgentArrays
from warpdrive_min.training.loop.policies import PolicyGroup
from warpdrive_min.training.loop.rollout import RolloutRecorder
from warpdrive_min.training.models.parts import trunks_and_heads
from warpdrive_min.training.paths.facts import Facts
from warpdrive_min.training.paths.table import Choice, choose
from warpdrive_min.training.paths.triton.launch import planned_ahead


class Choices:
    """Chosen paths of a run that all policies share.

    Args:
        trainer: Settings of the run.
        wrapper: Started wrapper.
        groups: All policies.
    """

    def __init__(self, trainer: TrainerConfig, wrapper: EnvWrapper, groups: Sequence[PolicyGroup]) -> None:
        self.trainer, self.wrapper, self.groups = trainer, wrapper, groups

    def _facts(self, **more: Any) -> Facts:
        """Return the facts of the first policy and of the run."""
        given = {
            "has_graphs": self.wrapper.backend.captures_graphs,
            "is_debug": self.wrapper.debug,
            "is_eager": self.trainer.mode == "eager",
            "n_policies": len(self.groups),
            "why_not_whole_array": self.groups[0].arrays.why_not_whole(self.wrapper),
        }
        return self.groups[0].facts(self.trainer, **{**given, **more})

    def _choose(self, part: str, facts: Facts) -> Choice:
        """Choose one path of a part for all policies."""
        choice = choose(part, facts)
        for group in self.groups:
            group.choices[part] = choice
        return choice

    def _reason(self, key: str, rule: str, choice: Choice) -> str:
        """Return why no fast path is taken; raise `ConfigError` if required."""
        what, do = f"run config trainer.{key}", "leave the key out, or set it to false"
        require(choice.is_fast or not getattr(self.trainer, key), what, f"{rule}: {choice.why}", True, do)
        return choice.why

    def share_observations(self, arrays: dict[str, AgentArrays]) -> str:
        """Share one observation row among agents; return why not, or "".

        A single policy gets the new arrays.

        Args:
            arrays: Arrays of all policies, by name.

        Raises:
            ConfigError: The config requires sharing, which is impossible.
        """
        group, wrapper = self.groups[0], self.wrapper
        own_columns = wrapper.env.own_columns if isinstance(wrapper.env, Environment) else None
        choice = self._choose("observations", self._facts(own_columns=own_columns))
        reason = self._reason("shared_observations", "observations cannot be shared", choice)
        if reason:
            return reason
        last = group.arrays.last_observations[0][:, :1]
        row = torch.zeros_like(last)
        if wrapper.bound_step(of_one_row=True, **{Constants.OBSERVATIONS: row, FINAL_OBSERVATIONS: row}) is not None:
            last = row  # otherwise copied from all agents' rows
        group.arrays = replace(group.arrays, own_columns=own_columns, last_observations=(last,))
        arrays[group.name] = group.arrays
        return ""

    def step_into_buffer(self) -> Callable[[int], Launch] | None:
        """Return a function that binds a rollout's step to its row of the buffer.

        None: steps do not write observations into the buffer; copy them.
        """
        group, facts, given = self.groups[0], self._facts(), dict[str, Any]()
        if not self._choose("steps", facts).is_fast:
            return None
        arrays, buffer = group.arrays, group.buffer
        assert buffer is not None
        if arrays.own_columns is not None:
            given = {"of_one_row": True, FINAL_OBSERVATIONS: arrays.last_observations[0]}
        rows, bound_step = buffer.observations[1:], partial(self.wrapper.bound_step, **given)
        if bound_step(observations=rows[0]) is None:
            self._choose("steps", replace(facts, is_bound=False))
            return None
        return lambda t: cast(Launch, bound_step(observations=rows[t]))

    def rehearse_fused_rollout(self, recorder: RolloutRecorder, *, greedy: bool) -> bool:
        """Compile the kernel of whole rollouts, for `ahead.compiled`, if any.

        Returns False if there is none.
        """
        _, choice = self._rollout(recorder.all_steps_arguments(), greedy=greedy)
        if not choice.is_fast:
            return False
        kernel = self.wrapper.prepared_rollouts().collection(
            self.groups[0].acting, is_tf32=self.trainer.precision == "tf32"
        )
        return kernel is not None and planned_ahead(kernel)

    def _rollout(self, of_all: Mapping[str, Argument] | None, *, greedy: bool) -> tuple[Facts, Choice]:
        more = {"is_direct": self.groups[0].is_direct, "writes_last_observations": of_all is not None}
        facts = self._facts(is_greedy=greedy, **more)
        return facts, self._choose("rollout", facts)

    def bind_fused_rollout(self, recorder: RolloutRecorder, sampler: CUDASampler, *, greedy: bool) -> Launch | str:
        """Return a launch of a whole rollout, or why it cannot exist.

        Raises:
            ConfigError: The config requires one launch, which is impossible.
        """
        group, of_all = self.groups[0], recorder.all_steps_arguments()
        facts, choice = self._rollout(of_all, greedy=greedy)
        if choice.is_fast:
            buffer, how = group.buffer, {"is_tf32": self.trainer.precision == "tf32"}
            assert of_all is not None
            assert buffer is not None
            rows = {
                Constants.ACTIONS: buffer.actions,
                "log_probs": buffer.log_probs,
                Constants.REWARDS: recorder.rewards,
                TERMINATED: recorder.terminated,
                TRUNCATED: recorder.truncated,
            }
            bind = self.wrapper.prepared_rollouts().bound_collection
            launch = bind(group.acting, sampler, buffer.observations, rows, of_all, **how)
            if not isinstance(launch, str):
                return launch
            choice = self._choose("rollout", replace(facts, rollout_kernel=launch))
        return self._reason("fused_rollout", "a rollout cannot be one launch", choice)

    def save_passes(self, *, is_one_launch: bool) -> dict[str, str]:
        """Store forward passes for learning; return why not, or "", by policy.

        Args:
            is_one_launch: Rollouts are played in one launch.

        Raises:
            ConfigError: The config requires storing them, which is impossible.
            torch.cuda.OutOfMemoryError: They do not fit.
        """
        reasons, n_bytes = dict[str, str](), 0
        for group in self.groups:
            buffer, more = group.buffer, dict[str, Any]()
            if buffer is not None:
                device = buffer.rewards.device
                on_gpu = device.type == "cuda"
                more = {
                    "n_updates": getattr(group.algorithm, "n_updates", 1),
                    "n_rows": buffer.rewards.numel(),
                    "n_bytes": n_bytes + buffer.observations.nbytes,
                    "gpu_bytes": torch.cuda.get_device_properties(device).total_memory if on_gpu else None,
                }
            facts = group.facts(self.trainer, is_one_launch=is_one_launch, **more)
            choice = group.choose("forward passes", facts)
            rule = f"forward passes of policy {group.name!r} cannot be kept"
            reasons[group.name] = self._reason("kept_passes", rule, choice)
            if buffer is not None and choice.path.build is not None:
                buffer.passes = choice.path.build(buffer.observations[:-1], facts)
                n_bytes = facts.n_bytes + buffer.passes.n_bytes
                if buffer.passes.reads_in_place and not group.is_direct:
                    buffer.passes.source = group.arrays.in_place()
                if buffer.is_read_in_place:
                    buffer.observations[:-1].fill_(torch.nan)  # never written: a reader must notice
        return reasons

    def record_network_choices(self) -> None:
        """Record the kernels that networks will choose at their first call."""
        for group in self.groups:
            facts = group.facts(self.trainer)
            acting = group.choose("acting", facts)
            if acting.is_fast and (learning := group.choices.get("learning")) and learning.path.build:
                continue  # the model itself never runs
            for part, model in group.models.items():
                trunks, heads = trunks_and_heads(model)
                if not trunks:
                    continue
                outputs = [head.out_features for head in heads]
                layers = trunks[0].layers(sum(outputs) if len(trunks) == 1 else outputs[0])
                if facts.own_columns is not None:
                    layers = layers._replace(n_features=0)
                of_part = replace(facts, network=layers, fused=group.config.models[part].fused)
                name = "network" if len(group.models) == 1 else f"network of {part}"
                group.choices[name] = choose("network", of_part)

    def paths(self, *parts: str) -> str:
        """Return the paths of parts as text, for names of ranges."""
        found = [(part, group.choices[part].path) for part in parts for group in self.groups if part in group.choices]
        return "; ".join(dict.fromkeys(f"{part}: {path.name}" for part, path in found))

    def captures_graphs(self) -> bool:
        """Return True if each half-iteration is a CUDA graph."""
        return self._choose("iteration", self._facts()).is_fast
