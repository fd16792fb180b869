"""WarpDrive's processes and contexts, each on one device."""

from __future__ import annotations

import logging
import multiprocessing
import os
from multiprocessing.context import SpawnProcess
from typing import Any, ClassVar, Final

import torch
from torch import distributed

from warpdrive_min import backends
from warpdrive_min.compat.functions import make_current_context
from warpdrive_min.errors import BackendUnavailable, ConfigError, require
from warpdrive_min.processes import end_with_parent, set_rank_variables
from warpdrive_min.training.scale.distributed import process_group

log = logging.getLogger(__name__)

PORT: Final = "8888"
"""Port of WarpDrive's process groups."""

_SPAWN = multiprocessing.get_context("spawn")  # a forked process cannot use the GPU

event_messenger = _SPAWN.Event()
"""WarpDrive's event for a finished build; nothing here waits for it."""


class ProcessWrapper(SpawnProcess):
    """Process that passes its exception to the parent.

    Takes the arguments of `multiprocessing.Process`.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._parent_end, self._own_end = _SPAWN.Pipe(duplex=False)
        self._exception: Exception | None = None

    def run(self) -> None:
        """Call the target."""
        end_with_parent(os.getppid())
        try:
            self._work()
        except Exception as error:
            log.exception("process %s", self.name)
            try:
                self._own_end.send(error)
            except Exception:  # noqa: BLE001  (an error may not be picklable)
                self._own_end.send(RuntimeError(f"{type(error).__name__}: {error}"))

    def _work(self) -> None:
        super().run()

    @property
    def exception(self) -> Exception | None:
        """Exception of the target; None while it runs or after success."""
        if self._parent_end.poll():
            self._exception = self._parent_end.recv()
        return self._exception


class DeviceContextProcessWrapper(ProcessWrapper):
    """Process on its own GPU, joined with the others in a process group.

    The target's keyword arguments ``device_id`` and ``num_devices`` give its index and their number.
    """

    env_backend: ClassVar[str]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        given = named.get("kwargs") or {}
        self.device_id: int = given.get("device_id") or 0
        self.num_devices: int = given.get("num_devices", 1)

    def assert_context_consistency(self) -> None:
        """Raise `ConfigError` if torch's current GPU is not this process's GPU."""
        got = torch.cuda.current_device()
        require(got == self.device_id, "process", f"torch's GPU must be the process's own, {self.device_id}", got)

    def _work(self) -> None:
        address, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), os.environ.get("MASTER_PORT", PORT)
        set_rank_variables(self.device_id, self.num_devices, address, port)
        with process_group(self.env_backend):
            super()._work()


class NumbaDeviceContextProcessWrapper(DeviceContextProcessWrapper):
    """Process on its own GPU for backend `numba`."""

    env_backend = "numba"


class PyCUDADeviceContextProcessWrapper(DeviceContextProcessWrapper):
    """Process on its own GPU for backend `pycuda`."""

    env_backend = "pycuda"


def setup_torch_process_group(
    device_id: int,
    num_devices: int,
    master_addr: str = "127.0.0.1",
    master_port: str = PORT,
    backend: str = "gloo",
) -> None:
    """Open the process group as rank ``device_id``; waits for the others."""
    os.environ.update(MASTER_ADDR=master_addr, MASTER_PORT=str(master_port))
    distributed.init_process_group(backend, rank=device_id, world_size=num_devices)


def clear_torch_process_group() -> None:
    """Close the process group, if one is open."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


# ------------------------------------------------------------------ contexts


class _SingleDeviceContext:
    """Primary context of a device, shared with torch; attributes are the context's."""

    def __init__(self) -> None:
        self._context: Any = None

    @property
    def context(self) -> Any:
        """Current context.

        Raises:
            ConfigError: `init_context` was not called.
        """
        if self._context is None:
            raise ConfigError("device context: does not exist yet; call init_context() first")
        return self._context

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.context, name)


class NumbaSingleDeviceContext(_SingleDeviceContext):
    """Numba's context of a device."""

    def init_context(self, device_id: int | None = None) -> None:
        """Make the device current in Numba and torch.

        Raises:
            BackendUnavailable: Numba or a GPU is missing.
        """
        if not backends.get("numba").captures_graphs:
            raise BackendUnavailable("numba: a device context needs a GPU (got the simulator); run it on one")
        from numba import cuda  # noqa: PLC0415  (optional)

        number = torch.cuda.current_device() if device_id is None else device_id
        torch.cuda.set_device(number)
        self._context = cuda.select_device(number).get_primary_context()

    def clear_context(self) -> None:
        """Drop the reference to the context; torch continues to use it."""
        self._context = None


class PyCUDASingleDeviceContext(_SingleDeviceContext):
    """PyCUDA's context of a device."""

    def init_context(self, device_id: int | None = None) -> None:
        """Push the context, as `make_current_context` does; `clear_context` pops it."""
        self._context = make_current_context(device_id)


def clear_context(context: Any) -> None:
    """Pop a context of PyCUDA."""
    context.pop()
