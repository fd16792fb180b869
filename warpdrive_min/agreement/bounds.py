"""Bounds check: run kernels between guard zones, in a separate process.

A wrong kernel may crash the process. It prints one line of JSON, ``{"found": "..."}``: the fault, or "" if none.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import sys
from dataclasses import asdict, dataclass
from subprocess import TimeoutExpired
from typing import Final

import numpy as np
import torch

from warpdrive_min import backends, processes
from warpdrive_min.agreement.report import first_step_difference
from warpdrive_min.agreement.stepping import Trace, play
from warpdrive_min.agreement.subject import CheckFailedError, Subject, draw_actions
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.environment import push_environment, seed_resets
from warpdrive_min.errors import WarpDriveError
from warpdrive_min.registrar import load_class

SANITIZER: Final = ("compute-sanitizer", "--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", "9")
MAIN: Final = f"from {__name__} import main; main()"
"""Program of the separate process."""
TIMEOUT_S: Final = 600
"""Timeout of the separate process."""
PATTERNS: Final = (0x7FC0A5A5, 0x7FC0A5A5, 1)
"""Fill values of the guard zones, one per run.

The first is NaN as a float and large as an integer; the last is close to 0 as a float and 1 as an integer.
"""
ALIGNMENT: Final = 64
"""Elements; a guard is a multiple of it, which keeps the array aligned."""


def check_bounds(subject: Subject) -> str:
    """Check that kernels access only their own arrays, in a separate process."""
    subject.skip_reference("NumPy itself checks every index")
    spec = {**asdict(subject), "cls": subject.cls.__name__, "config": dict(subject.config)}
    on_gpu = backends.get(subject.backend).device.type == "cuda"
    sanitizer = SANITIZER if on_gpu and shutil.which(SANITIZER[0]) else ()
    command = [*sanitizer, sys.executable, "-c", MAIN, json.dumps(spec)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        process = processes.run(command, env=environment, timeout=TIMEOUT_S)
    except TimeoutExpired as error:
        raise CheckFailedError(f"the kernels did not end within {TIMEOUT_S} s") from error
    lines = process.stdout.splitlines()
    reports = [line for line in lines if line.startswith("{")]
    if found := json.loads(reports[-1])["found"] if reports else "":
        raise CheckFailedError(found)
    if process.returncode or not reports:
        last = (process.stderr.strip().splitlines() or lines or ["no message"])[-1]
        what = next((line for line in lines if "Invalid" in line), last) if sanitizer else last
        status = process.returncode
        how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        raise CheckFailedError(f"the kernels crashed their process ({how}): {what}")
    return "guard zones unchanged and without effect" + (", no error from memcheck" if sanitizer else "")


def find_fault(subject: Subject) -> str:
    """Return the fault: an overwritten guard, or a read of one; "" if none."""
    traces = []
    for pattern in PATTERNS:
        trace, overwritten = run_guarded(subject, pattern)
        if overwritten:
            return f"written outside the array: {'; '.join(overwritten)}"
        traces.append(trace)
    first, again, other = traces
    if first_step_difference(first, again):
        return ""  # the determinism check reports this
    found = first_step_difference(first, other)
    return f"read outside an array: the memory there changes {found}" if found else ""


def run_guarded(subject: Subject, pattern: int) -> tuple[Trace, list[str]]:
    """Run with auto-reset between guards; return the trace and broken guards."""
    wrapper = subject.wrapper(auto_reset=True, exact=True)
    data = wrapper.cuda_data_manager
    wrapper.env.reset()  # push without a start: the arrays must move before a kernel binds them
    push_environment(wrapper.env, data)
    seed_resets(data, subject.seed)
    wrapper.reset_on_host = False
    guards = {name: Guard.around(data.tensor(name), pattern, wrapper) for name in data.array_names()}
    wrapper.reset()
    trace = play(wrapper, draw_actions(wrapper, subject.n_steps, subject.seed))
    return trace, [f"{name} {broken}" for name, guard in guards.items() if (broken := guard.broken())]


@dataclass(frozen=True, slots=True)
class Guard:
    """Memory before and after an array, filled with a pattern."""

    whole: torch.Tensor
    """Guard, array, guard; as int32 or bytes."""
    margin: int
    """Elements of a guard."""
    filling: int

    @classmethod
    def around(cls, tensor: torch.Tensor, pattern: int, wrapper: EnvWrapper) -> Guard:
        """Move a tensor, in place, between two guards; call before a kernel binds it.

        A guard is as long as the rows of one block's environments. This catches a block that does not check its last
        environment.
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
        """Return the write nearest to the array, as text; "" if none; synchronises."""
        changed = (self.whole != self.filling).cpu().numpy()
        before, after = changed[: self.margin][::-1], changed[-self.margin :]
        parts = [
            f"{int(np.argmax(side)) + 1} elements {word} it"
            for side, word in ((before, "before"), (after, "after"))
            if side.any()
        ]
        return " and ".join(parts)


def main() -> None:
    """Print the fault of the subject given as JSON on the command line."""
    spec = json.loads(sys.argv[1])
    spec["cls"] = load_class(spec["target"], spec["cls"])
    try:
        found = find_fault(Subject(**spec))
    except WarpDriveError as error:
        found = str(error)
    print(json.dumps({"found": found}))  # noqa: T201  (the parent process reads it)
