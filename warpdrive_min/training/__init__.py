"""Training: A2C, PPO and DDPG on the device of the environments."""

from __future__ import annotations

from typing import Final

from warpdrive_min.lazy import MovedModules, on_first_use

MOVED: Final = {
    "arrays": "loop",
    "autoscale": "scale",
    "central": "models",
    "certificate": "record",
    "checkpoint": "loop",
    "distributed": "scale",
    "evaluation": "loop",
    "members": "models",
    "metrics": "loop",
    "normalisation": "models",
    "policies": "loop",
    "population": "scale",
    "rollout": "loop",
    "trained": "record",
}
"""Current folder of each module that has moved."""

MovedModules({f"{__name__}.{name}": f"{__name__}.{folder}.{name}" for name, folder in MOVED.items()})
__getattr__ = on_first_use(__name__, dict.fromkeys(MOVED, ()))
