"""Sizes, configs of environments and axes that several families share."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import inspect
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from warpdrive_min import BACKENDS
from warpdrive_min.packages import is_class_path

from ..core.archive import read_toml
from ..core.point import ON_CPU, PLAIN, Mode, Point, Preset, class_and_config

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

CONFIGS: Final = read_toml(Path(__file__).with_name("configs.toml"))
EPISODE_LENGTHS: Final[Mapping[str, int]] = CONFIGS["episode_lengths"]
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
    config: dict[str, Any] = CONFIGS["others"][env]
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


def continues_after_threshold(point: Point) -> bool:
    """True if a run continues after the threshold; it is untimed."""
    return point.get("until") == UNTIL_END["until"]


SOURCES: Final = frozenset({".py", ".cu", ".cuh", ".h", ".hpp", ".c", ".cpp"})
"""Suffixes of an environment's source files."""


def outside_sources(env: str) -> dict[str, str]:
    """Return a hash of an outside environment's sources, as a note; else nothing.

    They are its class's file, its kernels and all sources of its package. A commit does not tell their versions.
    """
    target, _ = class_and_config(env)
    if not is_outside(target):
        return {}
    from warpdrive_min.registrar import load_class

    cls = load_class(target)
    file = Path(inspect.getfile(cls)).resolve()
    files = {file}
    for source in getattr(cls, "kernel_sources", {}).values():
        is_module = not Path(source).is_file()
        spec = importlib.util.find_spec(str(source)) if is_module else None
        files |= {Path(spec.origin if spec and spec.origin else source).resolve()}
    if (file.parent / "__init__.py").exists():
        files |= {each for each in file.parent.rglob("*") if each.suffix in SOURCES}
    digest = hashlib.sha256()
    for name, path in sorted((os.path.relpath(each, file.parent), each) for each in files if each.is_file()):
        digest.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}".encode())
    return {"environment_sources": digest.hexdigest()[:12]}
