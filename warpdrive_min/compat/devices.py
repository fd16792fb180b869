"""WarpDrive's processes and contexts of one device each."""

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
from warpdrive_min.processes import be_rank, end_with_parent
from warpdrive_min.training.scale.distributed import joined

log = logging.getLogger(__name__)

PORT: Final = "8888"
"""Port of WarpDrive's process groups."""

_SPAWN = multiprocessing.get_context("spawn")  # a forked process has no GPU

event_messenger = _SPAWN.Event()
"""WarpDrive's event that a build is done; nothing here waits for it."""


class ProcessWrapper(SpawnProcess):
    """A process that hands its parent the exception that ended it; arguments as of `multiprocessing.Process`."""

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
            except Exception:  # noqa: BLE001  (an error may hold what cannot be sent)
                self._own_end.send(RuntimeError(f"{type(error).__name__}: {error}"))

    def _work(self) -> None:
        super().run()

    @property
    def exception(self) -> Exception | None:
        """Exception that the target raised; None while it runs, or where it has ended well."""
        if self._parent_end.poll():
            self._exception = self._parent_end.recv()
        return self._exception


class DeviceContextProcessWrapper(ProcessWrapper):
    """A process on a GPU of its own, joined with its fellows where they are several.

    The target's keyword arguments ``device_id`` and ``num_devices`` say which one of how many it is.
    """

    env_backend: ClassVar[str]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        given = named.get("kwargs") or {}
        self.device_id: int = given.get("device_id") or 0
        self.num_devices: int = given.get("num_devices", 1)

    def assert_context_consistency(self) -> None:
        """Raise `ConfigError` where torch's current GPU is not that of this process."""
        got = torch.cuda.current_device()
        require(got == self.device_id, "process", f"torch's GPU must be the process's own, {self.device_id}", got)

    def _work(self) -> None:
        address, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), os.environ.get("MASTER_PORT", PORT)
        be_rank(self.device_id, self.num_devices, address, port)
        with joined(self.env_backend):
            super()._work()


class NumbaDeviceContextProcessWrapper(DeviceContextProcessWrapper):
    """A process on a GPU of its own for backend `numba`."""

    env_backend = "numba"


class PyCUDADeviceContextProcessWrapper(DeviceContextProcessWrapper):
    """A process on a GPU of its own for backend `pycuda`."""

    env_backend = "pycuda"


def setup_torch_process_group(
    device_id: int,
    num_devices: int,
    master_addr: str = "127.0.0.1",
    master_port: str = PORT,
    backend: str = "gloo",
) -> None:
    """Open the process group of so many processes as this one of them; waits for the others."""
    os.environ.update(MASTER_ADDR=master_addr, MASTER_PORT=str(master_port))
    distributed.init_process_group(backend, rank=device_id, world_size=num_devices)


def clear_torch_process_group() -> None:
    """Close the process group, if one is open."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


# ------------------------------------------------------------------ contexts


class _SingleDeviceContext:
    """A device's primary context, which torch uses too; its own attributes are those of the context."""

    def __init__(self) -> None:
        self._context: Any = None

    @property
    def context(self) -> Any:
        """The context.

        Raises:
            ConfigError: `init_context` was not called.
        """
        if self._context is None:
            raise ConfigError("device context: is not there yet; call init_context() first")
        return self._context

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.context, name)


class NumbaSingleDeviceContext(_SingleDeviceContext):
    """Numba's context of a device."""

    def init_context(self, device_id: int | None = None) -> None:
        """Make the device the current one of Numba and torch.

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
        """Let go of the context, which torch goes on with."""
        self._context = None


class PyCUDASingleDeviceContext(_SingleDeviceContext):
    """PyCUDA's context of a device."""

    def init_context(self, device_id: int | None = None) -> None:
        """Push the context, as `make_current_context` does; `clear_context` pops it."""
        self._context = make_current_context(device_id)


def clear_context(context: Any) -> None:
    """Pop a context of PyCUDA."""
    context.pop()
