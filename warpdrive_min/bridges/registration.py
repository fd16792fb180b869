"""Registration of the environments with Gymnasium.

It runs in every program that imports both packages, so it imports nothing slow and never fails.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Final

NAMESPACE: Final = "warpdrive_min"
ENV_NAMES: Final = ("Acrobot", "CartPole", "ContinuousMountainCar", "MountainCar", "Pendulum")
"""Environments with one agent, registered as ``warpdrive_min/NAME-v0``."""
MAKERS: Final = f"{NAMESPACE}.bridges.gymnasium"
"""Module of the functions that Gymnasium calls; it imports torch."""


def register_envs() -> None:
    """Register the environments with one agent, unless their ids are taken.

    Gymnasium must be imported. An id that it does not accept stays unknown to `gymnasium.make`.
    """
    gymnasium = sys.modules["gymnasium"]
    for name in ENV_NAMES:
        env_id = f"{NAMESPACE}/{name}-v0"
        with contextlib.suppress(Exception):
            if env_id not in gymnasium.registry:
                gymnasium.register(
                    env_id,
                    entry_point=f"{MAKERS}:make",
                    vector_entry_point=f"{MAKERS}:make_vec",
                    kwargs={"env_class": f"{NAMESPACE}.envs:{name}"},
                )
