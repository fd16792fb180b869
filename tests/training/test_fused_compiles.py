"""Triton's kernels compile for GPUs that are not there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("capability", [90])
def test_kernels_compile_for_a_gpu(capability, tmp_path):
    """The compiler takes all of them, in a process of its own: here they are interpreted."""
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.training.triton_kernels", str(capability)],
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    forward_and_back = ["backward", "evaluate", "first_layer", "forward", "learn"]
    assert ran.stdout.split() == ["add_squares", "add_up", *forward_and_back, "of_agents", "take", "take_step"]
