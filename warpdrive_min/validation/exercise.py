"""Run kernels on arrays between guard zones: `python -m warpdrive_min.validation.exercise SUBJECT`, as JSON.

A process of its own, because a wrong kernel may crash it. Prints one line of JSON, ``{"found": "..."}``: what was
wrong, or nothing.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass

import numpy as np
import torch

from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.errors import WarpDriveError
from warpdrive_min.validation.compare import first_difference
from warpdrive_min.validation.subject import Subject, Trace, draw_actions, load_class, play, push_unstarted

PATTERNS = (0x7FC0A5A5, 0x7FC0A5A5, 1)
"""Fillings of the guard zones: NaN or large, twice, and next to 0 or 1, as a float or an integer."""
ALIGNMENT = 64
"""A guard is a multiple of so many elements, which keeps an array's alignment."""


def main(subject: Subject) -> str:
    """Return what is wrong, or nothing: a guard was overwritten, or what lies in it had an influence."""
    traces = []
    for pattern in PATTERNS:
        trace, overwritten = run_guarded(subject, pattern)
        if overwritten:
            return f"written outside the array: {'; '.join(overwritten)}"
        traces.append(trace)
    first, again, other = traces
    if first_difference(first, again):
        return ""  # the runs differ anyway, which is for the check of determinism to tell
    found = first_difference(first, other)
    return f"read outside an array: what lies there shows at {found}" if found else ""


def run_guarded(subject: Subject, pattern: int) -> tuple[Trace, list[str]]:
    """Run with auto-reset between guards of a pattern; returns what it wrote and which guards it overwrote."""
    wrapper = subject.wrapper(auto_reset=True, exact=True)
    push_unstarted(wrapper, subject.seed)
    data = wrapper.cuda_data_manager
    guards = {name: Guard.around(data.tensor(name), pattern, wrapper) for name in data.array_names()}
    wrapper.reset()
    actions = draw_actions(wrapper, subject.n_steps, subject.seed)
    trace = play(wrapper, actions)
    return trace, [f"{name} {broken}" for name, guard in guards.items() if (broken := guard.broken())]


@dataclass(frozen=True, slots=True)
class Guard:
    """The memory before and after an array, filled with a pattern."""

    whole: torch.Tensor
    """Guard, array, guard; as int32 or bytes."""
    margin: int
    """Elements of a guard."""
    filling: int

    @classmethod
    def around(cls, tensor: torch.Tensor, pattern: int, wrapper: EnvWrapper) -> Guard:
        """Move a tensor, in place, to the middle of new memory; do it before a kernel is bound to it.

        The guards are as long as the rows of a block's environments, so that a block without a check of its last
        environment is caught.
        """
        row = math.prod(tensor.shape[1:])
        margin = -(-max(1024, row * wrapper.cuda_function_manager.shape.envs_per_block) // ALIGNMENT) * ALIGNMENT
        words = {4: torch.int32, 1: torch.uint8, 2: torch.int16, 8: torch.int64}[tensor.element_size()]
        filling = pattern & 0x7F if tensor.element_size() < 4 else pattern
        whole = torch.full((tensor.numel() + 2 * margin,), filling, dtype=words, device=tensor.device)
        inside = whole[margin : margin + tensor.numel()].view(tensor.dtype).view(tensor.shape)
        inside.copy_(tensor)
        tensor.set_(inside.untyped_storage(), inside.storage_offset(), inside.shape, inside.stride())
        return cls(whole, margin, filling)

    def broken(self) -> str:
        """Return how far outside the array the nearest write was, or nothing; synchronises."""
        changed = (self.whole != self.filling).cpu().numpy()
        before, after = changed[: self.margin][::-1], changed[-self.margin :]
        parts = [
            f"{int(np.argmax(side)) + 1} elements {word} it"
            for side, word in ((before, "before"), (after, "after"))
            if side.any()
        ]
        return " and ".join(parts)


if __name__ == "__main__":
    spec = json.loads(sys.argv[1])
    spec["cls"] = load_class(spec["target"], spec["cls"])
    try:
        found = main(Subject(**spec))
    except WarpDriveError as error:
        found = str(error)
    print(json.dumps({"found": found}))  # noqa: T201  (read by the process that asks)
