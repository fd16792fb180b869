"""Users' environments: their backends, registration, and started wrappers."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from warp_drive.env_wrapper import EnvWrapper
from warp_drive.training.utils.data_loader import create_and_push_data_placeholders
from warp_drive.utils.env_registrar import EnvironmentRegistrar

from tests.compat.environments.towns.towns import Towns
from tests.compat.environments.treaties.treaties import CUDATreaties, Treaties
from tests.compat.walkers import CUDA_SOURCE, NUMBA_SOURCE
from tests.support import BACKENDS_HERE, needs_host
from warpdrive_min import backends

FOLDER = Path(__file__).with_name("environments")
SMALL = {"num_towns": 3, "episode_length": 4, "seed": 1}
"""Three towns and their council."""
FOUR = {"num_regions": 4, "episode_length": 4, "seed": 2}
"""Four regions with treaties."""

N_ENVS = 4

needs_numba = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="needs numba-cuda")
THREADED = [each for each in BACKENDS_HERE if each.values[0] != "cpu"]
"""Backends with a thread for each agent."""
BLOCKS = [
    pytest.param("numba", 1, marks=needs_numba),
    *(pytest.param("host", blocks, marks=needs_host) for blocks in (1, 2)),
    *(pytest.param("pycuda", blocks, marks=pytest.mark.gpu) for blocks in (1, 2)),
]
"""Backend, and blocks of an environment."""
IN_CUDA_C = [pytest.param("host", marks=needs_host), pytest.param("pycuda", marks=pytest.mark.gpu)]
"""Backends that run CUDA C."""


def registrar_of_users() -> EnvironmentRegistrar:
    """Return the registrar, which knows users' classes and sources."""
    registrar = EnvironmentRegistrar()
    registrar.add(["cpu", "numba", "pycuda"])(Towns)
    registrar.add("cpu")(Treaties)
    registrar.add(["numba", "pycuda"])(CUDATreaties)
    sources = {"Walkers": (str(CUDA_SOURCE), NUMBA_SOURCE)}
    for name in ("towns", "treaties"):
        module = f"tests.compat.environments.{name}.{name}_step_numba"
        sources[name] = (str(FOLDER / name / f"{name}_step.cu"), module)
    for name, (source, module) in sources.items():
        registrar.add_cuda_env_src_path(name, source, env_backend="pycuda")
        registrar.add_cuda_env_src_path(name, module, env_backend="numba")
    return registrar


def name_of(backend: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a backend's name in WarpDrive code.

    `host` replaces `pycuda` for a test.
    """
    if backend != "host":
        return backend
    monkeypatch.setitem(backends.REPLACED_BY, "pycuda", "host")
    return "pycuda"


def wrapped(env: Any, backend: str, n_envs: int = 2, blocks: int | None = None) -> EnvWrapper:
    """Return a wrapper; in CUDA C the walkers' moves are constants."""
    wrapper = EnvWrapper(env, num_envs=n_envs, env_backend=backend, blocks_per_env=blocks)
    if backend in ("host", "pycuda") and hasattr(env, "step_actions"):
        wrapper.cuda_data_manager.add_shared_constants({"kIndexToActionArr": env.step_actions})
        wrapper.cuda_function_manager.initialize_shared_constants(wrapper.cuda_data_manager, ["kIndexToActionArr"])
    return wrapper


def start(env: Any, backend: str, n_envs: int = 2, blocks: int | None = None) -> EnvWrapper:
    """Return a started wrapper with a trainer's step arrays."""
    wrapper = wrapped(env, backend, n_envs, blocks)
    wrapper.reset_all_envs()
    push_placeholders(wrapper, push_data_batch_placeholders=False)
    return wrapper


def push_placeholders(wrapper: EnvWrapper, **arguments: Any) -> None:
    """Push a trainer's placeholders; the towns' policies have separate arrays."""
    policies = getattr(wrapper.env, "policy_tag_to_agent_id_map", None)
    create_and_push_data_placeholders(
        wrapper,
        policy_tag_to_agent_id_map=policies,
        create_separate_placeholders_for_each_policy=policies is not None,
        **arguments,
    )


def settings(folder: Path, policies: dict[str, Any], **trainer: Any) -> dict[str, Any]:
    """Return a run config of three short iterations."""
    return {
        "trainer": {"num_envs": N_ENVS, "num_episodes": 10, "train_batch_size": 20, "seed": 1, **trainer},
        "policy": policies,
        "saving": {"basedir": str(folder), "metrics_log_freq": 2, "model_params_save_freq": 100},
    }


def policy(algorithm: str = "A2C", **more: Any) -> dict[str, Any]:
    """Return the config of a learning policy."""
    return {"to_train": True, "algorithm": algorithm, "lr": 0.01, "model": {"fc_dims": [8]}, **more}
