"""WarpDrive's module paths: `NAMES` is the one table of them, served to ``import`` by a finder."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

from warpdrive_min.errors import ConfigError, known

CHOICE: Final = "WARPDRIVE_MIN_COMPAT"
"""Environment variable; ``replace`` goes before a `warp_drive` that is really installed."""


_MANAGERS: Final = "warpdrive_min.compat.managers"
_PLACEHOLDERS: Final = "warpdrive_min.training.placeholders"
_TRAINERS: Final = "warpdrive_min.compat.trainers"
_MODELS: Final = "warpdrive_min.compat.models"
_SCALING: Final = "warpdrive_min.compat.scaling"
_CLASSIC: Final = "example_envs.single_agent.classic_control"

NAMES: Final[dict[str, dict[str, str]]] = {
    "warp_drive.env_wrapper": {"EnvWrapper": "warpdrive_min.compat.env_wrapper:EnvWrapper"},
    "warp_drive.env_cpu_gpu_consistency_checker": {
        "EnvironmentCPUvsGPU": "warpdrive_min.compat.env_wrapper:EnvironmentCPUvsGPU",
        "generate_random_actions": "warpdrive_min.consistency:generate_random_actions",
    },
    "warp_drive.utils.data_feed": {"DataFeed": "warpdrive_min.data_feed:DataFeed"},
    "warp_drive.utils.constants": {"Constants": "warpdrive_min.constants:Constants"},
    "warp_drive.utils.common": {"get_project_root": "warpdrive_min.compat.functions:get_project_root"},
    "warp_drive.utils.env_registrar": {
        "EnvironmentRegistrar": "warpdrive_min.registrar:EnvironmentRegistrar",
        "env_registrar": "warpdrive_min.registrar:env_registrar",
    },
    "warp_drive.utils.gpu_environment_context": {
        "CUDAEnvironmentContext": "warpdrive_min.environment:CUDAEnvironmentContext"
    },
    "warp_drive.utils.recursive_obs_dict_to_spaces_dict": {
        "recursive_obs_dict_to_spaces_dict": "warpdrive_min.spaces:space_of"
    },
    "warp_drive.utils.architecture_validate": {
        "calculate_blocks_per_env": "warpdrive_min.compat.functions:calculate_blocks_per_env",
        "validate_device_setup": "warpdrive_min.compat.functions:validate_device_setup",
    },
    "warp_drive.utils.argument_fix": {"Argfix": "warpdrive_min.compat.functions:Argfix"},
    "warp_drive.utils.device_context": {"make_current_context": "warpdrive_min.compat.functions:make_current_context"},
    "warp_drive.managers.data_manager": {"CUDADataManager": "warpdrive_min.data_manager:CUDADataManager"},
    "warp_drive.managers.function_manager": {
        "CUDAFunctionManager": "warpdrive_min.function_manager:CUDAFunctionManager",
        "CUDAFunctionFeed": "warpdrive_min.function_manager:CUDAFunctionFeed",
        "CUDASampler": "warpdrive_min.sampler:CUDASampler",
        "CUDAEnvironmentReset": "warpdrive_min.resetter:CUDAEnvironmentReset",
        "CUDALogController": "warpdrive_min.logger:CUDALogController",
    },
    "warp_drive.managers.pycuda_managers.pycuda_data_manager": {
        "PyCUDADataManager": f"{_MANAGERS}:PyCUDADataManager",
        "CudaTensorHolder": f"{_MANAGERS}:CudaTensorHolder",
    },
    "warp_drive.managers.pycuda_managers.pycuda_function_manager": {
        "PyCUDAFunctionManager": f"{_MANAGERS}:PyCUDAFunctionManager",
        "PyCUDASampler": "warpdrive_min.sampler:CUDASampler",
        "PyCUDAEnvironmentReset": "warpdrive_min.resetter:CUDAEnvironmentReset",
        "PyCUDALogController": "warpdrive_min.logger:CUDALogController",
    },
    "warp_drive.managers.numba_managers.numba_data_manager": {"NumbaDataManager": f"{_MANAGERS}:NumbaDataManager"},
    "warp_drive.managers.numba_managers.numba_function_manager": {
        "NumbaFunctionManager": f"{_MANAGERS}:NumbaFunctionManager",
        "NumbaSampler": "warpdrive_min.sampler:CUDASampler",
        "NumbaOUProcess": "warpdrive_min.sampler:CUDASampler",
        "NumbaEnvironmentReset": "warpdrive_min.resetter:CUDAEnvironmentReset",
        "NumbaLogController": "warpdrive_min.logger:CUDALogController",
    },
    # What a step module may import before its kernels; the core's own kernels take their place.
    "warp_drive.numba_includes.core.log": {},
    "warp_drive.numba_includes.core.pool_reset": {},
    "warp_drive.numba_includes.core.random": {},
    "warp_drive.numba_includes.core.reset": {},
    "warp_drive.numba_includes.test_build": {},
    "warp_drive.training.utils.data_loader": {
        "create_and_push_data_placeholders": f"{_PLACEHOLDERS}:create_and_push_data_placeholders",
        "get_obs": f"{_PLACEHOLDERS}:get_obs",
        "get_flattened_obs_size": f"{_PLACEHOLDERS}:get_flattened_obs_size",
    },
    "warp_drive.training.utils.param_scheduler": {
        "ParamScheduler": "warpdrive_min.compat.schedules:ParamScheduler",
        "LRScheduler": "warpdrive_min.compat.schedules:LRScheduler",
    },
    "warp_drive.training.utils.ring_buffer": {
        "RingBuffer": "warpdrive_min.ring_buffer:RingBuffer",
        "RingBufferManager": "warpdrive_min.ring_buffer:RingBufferManager",
    },
    "warp_drive.training.trainers.trainer_base": {
        name: f"{_TRAINERS}:{name}" for name in ("TrainerBase", "PerfStats", "Metrics", "SamplerParamsLog")
    },
    "warp_drive.training.trainers.trainer_a2c": {"TrainerA2C": f"{_TRAINERS}:TrainerA2C"},
    "warp_drive.training.trainers.trainer_ddpg": {"TrainerDDPG": f"{_TRAINERS}:TrainerDDPG"},
    "warp_drive.training.algorithms.policygradient.a2c": {"A2C": "warpdrive_min.compat.algorithms:A2C"},
    "warp_drive.training.algorithms.policygradient.ppo": {"PPO": "warpdrive_min.compat.algorithms:PPO"},
    "warp_drive.training.algorithms.policygradient.ddpg": {"DDPG": "warpdrive_min.compat.algorithms:DDPG"},
    "warp_drive.training.models.factory": {"ModelFactory": f"{_MODELS}:ModelFactory"},
    "warp_drive.training.models.fully_connected": {"FullyConnected": f"{_MODELS}:FullyConnected"},
    "warp_drive.training.models.fully_connected_actor_critic": {
        name: f"{_MODELS}:{name}" for name in ("FullyConnectedActor", "FullyConnectedActionValueCritic")
    },
    "warp_drive.training.models.model_base": {
        name: f"{_MODELS}:{name}" for name in ("ModelBaseFullyConnected", "apply_logit_mask")
    },
    "warp_drive.training.utils.vertical_scaler": {
        "best_param_search": f"{_SCALING}:best_param_search",
        "perform_auto_vertical_scaling": f"{_SCALING}:perform_auto_vertical_scaling",
    },
    **{
        f"warp_drive.training.utils.distributed_train.distributed_trainer_{backend}": {
            "perform_distributed_training": f"{_SCALING}:distribute_on_{backend}"
        }
        for backend in ("pycuda", "numba")
    },
    **{
        f"warp_drive.training.scripts.example_training_script_{backend}": {
            "setup_trainer_and_train": f"warpdrive_min.compat.scripts:setup_on_{backend}"
        }
        for backend in ("pycuda", "numba")
    },
    "warp_drive.training.deprecate.trainer": {"Trainer": f"{_TRAINERS}:TrainerA2C"},
    "warp_drive.training.deprecate.pytorch_lightning": {
        name: f"warpdrive_min.compat.lightning:{name}"
        for name in ("WarpDriveModule", "WarpDriveDataset", "CUDACallback", "PerfStatsCallback")
    },
    "example_envs.tag_gridworld.tag_gridworld": {
        "TagGridWorld": "envs.tag_gridworld:TagGridWorld",
        "CUDATagGridWorld": "envs.tag_gridworld:TagGridWorld",
        "CUDATagGridWorldWithResetPool": "warpdrive_min.compat.environments:CUDATagGridWorldWithResetPool",
    },
    "example_envs.tag_continuous.tag_continuous": {"TagContinuous": "envs.tag_continuous:TagContinuous"},
    **{
        f"{_CLASSIC}.{folder}.{folder}": {
            f"{prefix}ClassicControl{name}Env": f"envs.classic_control.{folder}:{name}" for prefix in ("", "CUDA")
        }
        for folder, name in {
            "acrobot": "Acrobot",
            "cartpole": "CartPole",
            "continuous_mountain_car": "ContinuousMountainCar",
            "mountain_car": "MountainCar",
            "pendulum": "Pendulum",
        }.items()
    },
}
"""Where each name of each module is: ``module:attribute``, imported when it is first asked for."""


# ------------------------------------------------------------------ import


class _Finder(MetaPathFinder, Loader):
    """Finds and makes the modules of the table below one top-level name, and the packages that they lie in."""

    def __init__(self, top: str, *, hides: bool) -> None:
        self.top = top
        self.hides = hides
        """It stands before the other finders, whose module of the name it would hide."""
        self._modules = {name for name in NAMES if name.split(".")[0] == top}
        parts = [name.split(".") for name in self._modules]
        self._packages = {".".join(part[:length]) for part in parts for length in range(1, len(part))}
        self._is_looking_elsewhere = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module of the table, or of a package on the way to one."""
        if self._is_looking_elsewhere:  # some finders ask all others
            return None
        if self.hides and fullname == self.top:
            self.refuse_to_shadow()
        if fullname in self._packages or fullname in self._modules:
            return ModuleSpec(fullname, self, origin="warpdrive_min.compat", is_package=fullname in self._packages)
        return None

    def refuse_to_shadow(self) -> None:
        """Raise `ConfigError` if another finder knows the top-level name, unless the user has chosen ours."""
        if os.environ.get(CHOICE) == "replace":
            return
        self._is_looking_elsewhere = True
        try:
            specs = [finder.find_spec(self.top, None) for finder in sys.meta_path if finder is not self]
        finally:
            self._is_looking_elsewhere = False
        for spec in filter(None, specs):
            raise ConfigError(
                f"warpdrive_min.compat: would hide the {self.top} that is installed here (got {_place(spec)}); "
                f"uninstall it, or set {CHOICE}=replace"
            )

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Leave it to the import system."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its names, each of which is imported when it is first asked for."""
        names = NAMES.get(module.__name__, {})
        module.__doc__ = f"WarpDrive's module {module.__name__}, by warpdrive_min."
        vars(module)["__all__"] = list(names)

        def get(name: str) -> Any:
            value = _resolve(module.__name__, name, names)
            setattr(module, name, value)
            return value

        vars(module)["__getattr__"] = get


def _resolve(module: str, name: str, names: Mapping[str, str]) -> Any:
    if name not in names:
        raise AttributeError(f"module {module!r}: has no {name!r}; known are {known(names)}", name=name)
    source, _, attribute = names[name].partition(":")
    return getattr(importlib.import_module(source), attribute)


def install() -> None:
    """Offer WarpDrive's modules to ``import``; a second call does nothing.

    `warp_drive` goes before whatever else has that name, which there must not be: see Raises. `example_envs` goes
    last, so that a folder of that name beside the user's script is the user's own.

    Raises:
        ConfigError: A `warp_drive` is really installed, and the environment variable WARPDRIVE_MIN_COMPAT is not
            ``replace``.
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    loaded = sys.modules.get("warp_drive")
    if loaded is not None:
        raise ConfigError(
            f"warpdrive_min.compat: must be imported before warp_drive (got {_place(loaded.__spec__)} already imported)"
        )
    first = _Finder("warp_drive", hides=True)
    first.refuse_to_shadow()
    sys.meta_path.insert(0, first)
    sys.meta_path.append(_Finder("example_envs", hides=False))


def _place(spec: ModuleSpec | None) -> str:
    """Say where a module lies; a folder without ``__init__.py`` has locations only."""
    if spec is None:
        return "a module without a file"
    return spec.origin or ", ".join(spec.submodule_search_locations or [])
