"""WarpDrive's data and function managers, by WarpDrive's names and methods."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch

from warpdrive_min import backends, data_manager, resetter
from warpdrive_min.backends.cache import cached
from warpdrive_min.backends.cuda_c import compile_cubin
from warpdrive_min.backends.cuda_source import warp_drive_sizes, whole_text
from warpdrive_min.compat import numba_modules
from warpdrive_min.compat.functions import header_sizes
from warpdrive_min.compat.project import default_source, source_of_binary
from warpdrive_min.errors import ConfigError, require
from warpdrive_min.files import replacing
from warpdrive_min.function_manager import CUDAFunctionManager
from warpdrive_min.registrar import EnvironmentRegistrar, env_registrar
from warpdrive_min.sampler import CUDASampler

# ------------------------------------------------------------------ data


class WrapperDataManager(data_manager.CUDADataManager):
    """Our data manager, as a wrapper makes it, with WarpDrive's names."""

    @property
    def scalar_data_list(self) -> list[str]:
        """Names of the scalars, which are passed by value."""
        return list(self._scalars)

    @property
    def host_data(self) -> Mapping[str, Any]:
        """Arrays by name, as pushed."""
        return {**self._scalars, **self._host}

    @property
    def device_data_via_torch(self) -> Mapping[str, torch.Tensor]:
        """Tensors by name that torch may read and write."""
        return {name: self.tensor(name) for name in self._tensors if self.is_data_on_device_via_torch(name)}


class CUDADataManager(WrapperDataManager):
    """WarpDrive's data manager, on PyCUDA; takes our class's arguments."""

    of_backend: ClassVar[str] = "pycuda"

    def __init__(
        self,
        num_agents: int | None = None,
        num_envs: int | None = None,
        blocks_per_env: int = 1,
        episode_length: int | None = None,
    ) -> None:
        super().__init__(num_agents, num_envs, blocks_per_env, episode_length, backend=self.of_backend)

    def attribute(self, name: str, key: str, default: Any = None) -> Any:
        """Return an attribute of an array.

        An array pushed by hand has a row per environment if its length matches.
        """
        found = super().attribute(name, key, default)
        has_rows = key == "n_copies" and found is None and self.get_shape(name)[:1] == (self.n_envs,)
        return self.n_envs if has_rows else found


class PyCUDADataManager(CUDADataManager):
    """Data manager of backend `pycuda`; takes our class's arguments."""


class NumbaDataManager(CUDADataManager):
    """Data manager of backend `numba`; takes our class's arguments."""

    of_backend = "numba"


class CudaTensorHolder:
    """Torch tensor as a pointer for PyCUDA's own functions.

    Args:
        t: Tensor; the holder keeps it alive.
    """

    def __init__(self, t: torch.Tensor) -> None:
        self.t = t
        self.gpudata = t.data_ptr()

    def get_pointer(self) -> int:
        """Return the address of the tensor's memory."""
        return self.t.data_ptr()


# ------------------------------------------------------------------ functions


class WrapperFunctionManager(CUDAFunctionManager):
    """Our function manager, as a wrapper makes it, with WarpDrive's names."""

    def initialize_default_functions(self) -> None:
        """Do nothing: sampler, resetter and logger bring their own kernels."""

    def _get_function(self, name: str) -> Any:
        """Return a handle that launches the kernel; see `get_function`."""
        return self.get_function(name)

    @property
    def function_names(self) -> list[str]:
        """Names of the loaded kernels."""
        return list(self._kernels)

    cuda_function_names = numba_function_names = function_names


class _FunctionManager(WrapperFunctionManager, abc.ABC):
    """WarpDrive's function manager on one backend: one thread per agent."""

    of_backend: ClassVar[str]

    def __init__(self, num_agents: int = 1, num_envs: int = 1, blocks_per_env: int = 1, process_id: int = 0) -> None:
        super().__init__(num_agents, num_envs, blocks_per_env, process_id, backend=self.of_backend)

    def load_registered(
        self,
        env_name: str,
        template_header_file: str | None = None,
        template_runner_file: str | None = None,
        template_path: str | Path | None = None,
        default_functions_included: bool = True,
        customized_env_registrar: EnvironmentRegistrar | None = None,
        event_messenger: Any = None,
    ) -> None:
        """Build the registered source of an environment and load its kernels.

        Args:
            env_name: Environment.
            template_header_file: Ignored: the sizes need no template.
            template_runner_file: Ignored.
            template_path: Ignored.
            default_functions_included: Ignored: sampler, resetter and logger bring their own kernels.
            customized_env_registrar: Registrar with the source; None: the shared registrar.
            event_messenger: Ignored: nothing here needs coordination.

        Raises:
            ConfigError: No source has that name, or a Numba module would need several blocks.
            CompileError: The build failed (with the compiler's message), or a name is taken.
        """
        source = (customized_env_registrar or env_registrar).get_cuda_env_src_path(env_name, self.of_backend)
        source = source or default_source(env_name, self.backend.language)
        if source is None:
            raise ConfigError(
                f"environment {env_name!r}: has no source for {self.of_backend!r} in the registrar; add it with "
                "add_cuda_env_src_path. The environments of example_envs load through EnvWrapper"
            )
        self._load_source(str(source))

    @abc.abstractmethod
    def _load_source(self, source: str) -> None:
        """Build a source and load its kernels."""


class PyCUDAFunctionManager(_FunctionManager):
    """Function manager for CUDA C, with one thread per agent.

    Args:
        num_agents: Agents in each environment.
        num_envs: Environments.
        blocks_per_env: Blocks that share an environment; above 1 they are a thread block cluster.
        process_id: Ignored; the cache of compiled code needs no coordination.
    """

    of_backend = "pycuda"

    def load_cuda_from_source_code(self, code: str, default_functions_included: bool = True) -> None:
        """Compile CUDA C text and load its kernels.

        Args:
            code: Text with kernels that are ``extern "C" __global__ void``.
            default_functions_included: Ignored: sampler, resetter and logger bring their own kernels.

        Raises:
            CompileError: The build failed; with the compiler's message.
        """
        self._load_source(str(cached({"code": code}, ".cu", lambda path: _write(path, code))))

    def load_cuda_from_binary_file(self, cubin: str | Path, default_functions_included: bool = True) -> None:
        """Build the source of a compiled file.

        That is ``cuda_includes/x.cu`` for ``cuda_bin/x.fatbin``.

        Args:
            cubin: File of compiled code; it need not exist.
            default_functions_included: Ignored: sampler, resetter and logger bring their own kernels.

        Raises:
            ConfigError: There is no such source.
        """
        source, do = source_of_binary(Path(cubin)), "put it there, or load the source"
        require(source, "load_cuda_from_binary_file", "needs the source cuda_includes/x.cu of cuda_bin/x", cubin, do)
        self._load_source(str(source))

    compile_and_load_cuda = _FunctionManager.load_registered

    @staticmethod
    def compile(main_file: str | Path, cubin_file: str | Path, arch: str | None = None) -> None:
        """Compile a CUDA C source into a file.

        Uses the sizes of `update_env_header`. If `host` replaces `pycuda`, it compiles there and writes no file;
        loading compiles again.

        Args:
            main_file: Source.
            cubin_file: Output file; its folder is created.
            arch: Architecture, ``"sm_90"``; None: that of the current GPU, which must exist.

        Raises:
            CompileError: The build failed (with the compiler's message), or no compiler is installed.
        """
        source = Path(main_file)
        sizes = warp_drive_sizes(whole_text(source), **header_sizes)
        constants = CUDAFunctionManager(header_sizes["n_agents"]).with_defaults(sizes)
        if arch is None:
            player = backends.get("pycuda")
            if player.name == "host":
                player.compile(source, constants)
                return
            arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
        with replacing(Path(cubin_file)) as unfinished:
            unfinished.write_bytes(compile_cubin(source, constants, arch).read_bytes())

    _compile = compile

    def _load_source(self, source: str) -> None:
        sizes = warp_drive_sizes(whole_text(Path(source)), self.n_envs, self.n_agents, self.blocks_per_env)
        self.load({"cuda_c": Path(source)}, sizes)


class NumbaFunctionManager(_FunctionManager):
    """Function manager for Numba modules, with one thread per agent.

    Args:
        num_agents: Agents in each environment.
        num_envs: Environments.
        blocks_per_env: Must be 1 once a module is loaded.
        process_id: Ignored; nothing here needs coordination.
    """

    of_backend = "numba"
    dynamic_import_numba = _FunctionManager.load_registered

    def import_numba_from_source_code(self, numba_path: str, default_functions_included: bool = True) -> None:
        """Execute a module for this manager's sizes and load its kernels.

        Args:
            numba_path: Dotted name of the module.
            default_functions_included: Ignored: sampler, resetter and logger bring their own kernels.

        Raises:
            ConfigError: ``blocks_per_env`` is above 1.
            CompileError: A kernel with explicit signatures does not compile, or a name is taken.
        """
        self._load_source(numba_path)

    def import_numba_env_config(
        self, template_header_file: str | None = None, template_path: str | Path | None = None
    ) -> None:
        """Do nothing: each loaded module gets a config with this manager's sizes."""

    def _load_source(self, source: str) -> None:
        numba_modules.load(self, source)


def _write(path: Path, text: str) -> None:
    path.write_text(text)


# ------------------------------------------------------------------ resets and sampling


class CUDAEnvironmentReset(resetter.CUDAEnvironmentReset):
    """Our resetter with separate methods for the parts of a reset."""

    def reset_when_done_deterministic(self, data_manager: data_manager.CUDADataManager, force_reset: int) -> None:
        """Enqueue the restore of saved arrays; ``_done_`` and ``_timestep_`` stay.

        Args:
            data_manager: Data manager with the environment's arrays.
            force_reset: 1: all environments, 0: finished ones.

        Raises:
            ConfigError: Pools or a kernel ``reset`` exist and restore other arrays: call `reset_when_done`.
        """
        is_all = not (data_manager.reset_target_to_pool or self._functions.has_function(resetter.OWN_KERNEL))
        self._reset("reset_when_done_deterministic", data_manager, force_reset, is_all)

    def reset_when_done_from_pool(self, data_manager: data_manager.CUDADataManager, force_reset: int) -> None:
        """Enqueue the draw of a row of each pool; nothing without pools.

        See `reset_when_done_deterministic` for the arguments.

        Raises:
            ConfigError: Saved arrays exist too: call `reset_when_done`.
        """
        if data_manager.reset_target_to_pool:
            self._reset("reset_when_done_from_pool", data_manager, force_reset, not data_manager.reset_data_list)

    def _reset(self, who: str, data: data_manager.CUDADataManager, force_reset: int, is_all: bool) -> None:
        require(is_all, who, "is only a part of this environment's reset", do="call reset_when_done")
        self.reset_when_done(data, "force_reset" if force_reset else "if_done", undo_done_after_reset=False)


class NumbaOUProcess(CUDASampler):
    """Our sampler of continuous actions."""

    reset_state = CUDASampler.reset_noise
