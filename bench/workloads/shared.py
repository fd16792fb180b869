"""Sizes, configs of environments and axes that several families share."""

from __future__ import annotations

import functools
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from warpdrive_min import BACKENDS
from warpdrive_min.packages import is_class_path

from ..core.archive import read_toml
from ..core.point import ON_CPU, PLAIN, Mode, Point, Preset

if TYPE_CHECKING:
    from warpdrive_min.backends import Availability


SEED: Final = 274880
"""Seed of all cases without an axis of seeds."""
FP32: Final = "fp32"
"""Precision of points without an axis of precisions."""
UNTIL_END: Final = {"until": "end"}
"""Axis of runs that continue after the threshold."""
MEMBERS: Final = "members"
"""Note in a population's record: metrics per member, null below the threshold."""
OURS: Final = "ours"
"""Our implementation, on each backend; torch's are measured once per device."""
ON_GPU: Final = tuple(name for name in BACKENDS if name not in ON_CPU)


# ------------------------------------------------------------------ environments and their configs

ENVS_FOLDER: Final = Path(__file__).resolve().parents[2] / "envs"
"""Folder of the environments, in a checkout or a wheel."""

SIZES: Final = read_toml(Path(__file__).with_name("sizes.toml"))
EPISODE_LENGTHS: Final[Mapping[str, int]] = SIZES["episode_lengths"]
"""Episode lengths of environments with one agent."""
FULLY_OBSERVED_AGENTS: Final = 110
"""Agents up to which Tag GridWorld observes all others.

Above that the observations would fill the memory."""
TAG_SIDE: Final = 20.0
"""Side length of Tag Continuous, as in WarpDrive's run config."""
ROOMY_AGENTS: Final = 110
"""Number of agents in WarpDrive's run config of Tag Continuous."""
CROWDED_AGENTS: Final = 10_000
"""Agents up to which they share that square.

Above that each has as much room as one of `ROOMY_AGENTS`."""


def env_config(env: str, n_agents: int, neighbor_search: str = "auto", n_taggers: int | None = None) -> dict[str, Any]:
    """Return the config of an environment, as in published run configs.

    Args:
        env: Name in `ENVS`.
        n_agents: Number of all agents.
        neighbor_search: Setting of Tag Continuous.
        n_taggers: Number of taggers in Tag Continuous; None: one in eleven agents.
    """
    if env in EPISODE_LENGTHS:
        return {"episode_length": EPISODE_LENGTHS[env]}
    config: dict[str, Any] = SIZES["others"][env]
    if env == "rice":
        return {"num_regions": n_agents}
    if env == "tag_gridworld":
        return config | {"num_taggers": n_agents - 1, "use_full_observation": n_agents <= FULLY_OBSERVED_AGENTS}
    if env == "covid19_economy":
        return config
    n_taggers = n_taggers or max(1, n_agents // 11)
    side = TAG_SIDE * (math.sqrt(n_agents / ROOMY_AGENTS) if n_agents > CROWDED_AGENTS else 1)
    return config | {
        "num_taggers": n_taggers,
        "num_runners": n_agents - n_taggers,
        "grid_length": side,
        "num_other_agents_observed": min(10, n_agents - 1),
        "neighbor_search": neighbor_search,
        "tagging_distance": 0.02 * TAG_SIDE / side,
    }


def run_config_file(env: str, name: str) -> Path:
    """Return the path of an environment's shipped ``run_config<name>.yaml``."""
    return next(ENVS_FOLDER.rglob(f"{env}/run_config{name}.yaml"))


@functools.cache
def shipped_envs(env: str, algorithm: str) -> int:
    """Return the number of environments of a shipped run config."""
    import yaml

    config = yaml.safe_load(run_config_file(env, f"_{algorithm.lower()}").read_text())
    return int(config["trainer"]["num_envs"])


def is_outside(name: str) -> bool:
    """True if a name is ``module:Class`` or a path, optionally with config."""
    target = name.partition("{")[0]
    if not is_class_path(target):
        return False
    from warpdrive_min.envs import ENVS

    return target not in ENVS


# ------------------------------------------------------------------ the machine


def availability() -> dict[str, Availability]:
    """Return the availability of each backend, and of vectorised NumPy."""
    from warpdrive_min.backends import Availability, availability

    return {**availability(), PLAIN: Availability(True, "NumPy")}


def has_gpu() -> bool:
    """True if this machine has a CUDA GPU; without torch, by NVML."""
    torch = sys.modules.get("torch")
    return bool(torch.cuda.is_available()) if torch else _has_nvml_gpu()


@functools.cache
def _has_nvml_gpu() -> bool:
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return False
    try:
        import pynvml

        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount()) > 0
    except ImportError:
        import torch

        return torch.cuda.is_available()
    except Exception:  # noqa: BLE001  (no driver)
        return False


def has_gpu_sizes(preset: Preset) -> bool:
    """True if a preset has GPU sizes: `full`, others with a GPU."""
    return preset == "full" or (preset != "smoke" and has_gpu())


# ------------------------------------------------------------------ points


def default_mode(backend: str) -> Mode:
    """Return ``graph`` on a GPU, else ``eager``."""
    return "graph" if backend in ON_GPU else "eager"


def steps_of(n_envs: int, n_agents: int) -> dict[str, int]:
    """Return the work of a step of environments."""
    return {"env_steps": n_envs, "agent_steps": n_envs * n_agents}


AGENT_COUNTS: Final = [5, 20, 110, 500, 1_000, 2_000, 5_000, 10_000]
"""Numbers of agents in each of `N_ENVS_OVER_AGENTS` environments."""
N_ENVS_OVER_AGENTS: Final = 100
CARTPOLE: Final = ("cartpole", 1)
TAG_GRIDWORLD: Final = ("tag_gridworld", 5)
TAG_CONTINUOUS: Final = ("tag_continuous", 110)
RICE: Final = ("rice", 27)
COVID19_ECONOMY: Final = ("covid19_economy", 52)
CROWD: Final[dict[str, Any]] = {"env": "tag_continuous", "n_agents": 1_000, "n_taggers": 100}
"""Environment that one whole block steps, in CUDA C only."""


def env_point(env: str, backend: str, n_envs: int, n_agents: int, **axes: Any) -> dict[str, Any]:
    """Return a point of an environment."""
    return {"env": env, "backend": backend, "n_envs": n_envs, "n_agents": n_agents, **axes}


def training_point(
    env: str,
    backend: str,
    n_envs: int,
    n_agents: int,
    n_steps: int,
    *,
    network: str = "",
    precision: str = "fp32",
    mode: str = "",
    **first: Any,
) -> dict[str, Any]:
    """Return a trainer's point, with axes in record order."""
    network = network or ("256-256" if env in ("tag_continuous", "covid19_economy") else "32-32")
    algorithm = {"algorithm": first.pop("algorithm")} if "algorithm" in first else {}
    how = {"network": network, "precision": precision, "mode": mode or default_mode(backend)}
    return env_point(env, backend, n_envs, n_agents, n_steps=n_steps, **algorithm, **how, **first)


def env_step_sizes(preset: Preset) -> dict[tuple[str, int], list[int]]:
    """Return numbers of environments, by environment and number of agents.

    Preset default has every second one, so that with all other cases it takes less than an hour on a machine with a
    GPU.
    """
    classic = [(env, 1) for env in EPISODE_LENGTHS]
    if preset == "smoke":
        return {key: [64] for key in classic} | {TAG_GRIDWORLD: [4], ("tag_continuous", 5): [4], RICE: [4]}
    on_gpu = has_gpu_sizes(preset)
    of_one = [1, 100, 10_000, *([1_000_000] if on_gpu else [])]
    of_tag = [1, 10, 100, *([1_000, 2_000] if on_gpu else [])]
    if preset == "default":
        of_one, of_tag = of_one[1:], [10, 100, *of_tag[4:]]
    sizes = {key: list(of_one) for key in classic} | {key: list(of_tag) for key in (TAG_GRIDWORLD, TAG_CONTINUOUS)}
    sizes[CARTPOLE] = sorted({*of_one, 100_000})
    sizes[RICE] = [60, 1_000, *([10_000] if on_gpu else [])]
    if preset == "full":
        sizes["tag_continuous", 5] = [100, 1_000, 10_000, 100_000]
        sizes[TAG_GRIDWORLD] = [*sizes[TAG_GRIDWORLD], 100_000]
    sizes[COVID19_ECONOMY] = [60, *([1_000, 10_000] if on_gpu else [])]  # 60 is WarpDrive's number
    for env in ("tag_gridworld", "tag_continuous"):
        for n_agents in agent_counts(preset):
            if on_gpu or n_agents <= 1_000:
                sizes.setdefault((env, n_agents), [N_ENVS_OVER_AGENTS])
    return sizes


def agent_counts(preset: Preset) -> list[int]:
    """Return `AGENT_COUNTS`; in preset default every second one."""
    return AGENT_COUNTS[:: 2 if preset == "default" else 1]


def continues_after_threshold(point: Point) -> bool:
    """True if a run continues after the threshold; it is untimed."""
    return point.get("until") == UNTIL_END["until"]
