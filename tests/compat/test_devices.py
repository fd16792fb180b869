"""WarpDrive's processes and contexts of one device each."""

from __future__ import annotations

import contextlib
import operator
import os
import socket

import pytest
import torch
from torch import distributed
from warp_drive.training.utils.device_child_process.child_process_base import ProcessWrapper
from warp_drive.training.utils.device_child_process.process_group_torch import (
    clear_torch_process_group,
    setup_torch_process_group,
)
from warp_drive.training.utils.single_device_context.device_context_numba import NumbaSingleDeviceContext
from warp_drive.training.utils.single_device_context.device_context_pycuda import PyCUDASingleDeviceContext

from warpdrive_min.compat import devices
from warpdrive_min.errors import BackendUnavailable, ConfigError
from warpdrive_min.processes import RANK_VARIABLES


def test_process_hands_its_error_to_its_parent():
    """A spawned process sends its exception."""
    process = ProcessWrapper(target=operator.truediv, args=(1, 0))
    process.start()
    process.join()
    assert isinstance(process.exception, ZeroDivisionError)


def test_error_that_cannot_be_sent_is_told():
    """A text replaces an exception that cannot be pickled."""

    def fail():
        raise ValueError(lambda: 1)

    process = ProcessWrapper(target=fail)
    process.run()
    assert isinstance(process.exception, RuntimeError)
    assert "ValueError" in str(process.exception)
    assert "function" in str(process.exception)


def test_process_joins_its_fellows(monkeypatch):
    """The target runs in its process group, on its backend."""
    seen = []

    @contextlib.contextmanager
    def process_group(env_backend):
        seen.append((env_backend, *(os.environ[name] for name in RANK_VARIABLES)))
        yield

    for name in RANK_VARIABLES:
        monkeypatch.setenv(name, "")
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name)
    monkeypatch.setattr(devices, "process_group", process_group)
    arguments = {"device_id": 1, "num_devices": 2}
    process = devices.PyCUDADeviceContextProcessWrapper(target=lambda **given: seen.append(given), kwargs=arguments)
    process.run()
    assert process.exception is None
    assert seen == [("pycuda", "1", "1", "2", "2", "127.0.0.1", "8888"), arguments]


def test_process_group_opens_and_closes(monkeypatch):
    """One process is a group; closing twice is fine."""
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")
    with socket.socket() as unused:
        unused.bind(("localhost", 0))
        port = str(unused.getsockname()[1])
    setup_torch_process_group(0, 1, master_port=port)
    assert distributed.get_world_size() == 1
    clear_torch_process_group()
    clear_torch_process_group()
    assert not distributed.is_initialized()


@pytest.mark.parametrize("cls", [NumbaSingleDeviceContext, PyCUDASingleDeviceContext])
def test_context_must_be_made_first(cls):
    """A missing context attribute raises, naming the call to make."""
    with pytest.raises(ConfigError, match=r"call init_context\(\) first"):
        _ = cls().push


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("cls", [NumbaSingleDeviceContext, PyCUDASingleDeviceContext])
def test_context_needs_a_gpu(cls):
    """The error names the missing GPU."""
    with pytest.raises(BackendUnavailable):
        cls().init_context(0)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["Numba", "PyCUDA"])
def test_context_is_that_of_torch(name):
    """A context uses torch's device, and torch works after its release."""
    context = getattr(devices, f"{name}SingleDeviceContext")()
    context.init_context(0)
    assert context.context is not None
    values = torch.arange(3, device="cuda")
    context.clear_context() if name == "Numba" else devices.clear_context(context.context)
    assert values.sum().item() == 3
