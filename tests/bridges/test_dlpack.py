"""Arrays as DLPack: shared with NumPy and torch, filled from them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.environments.lookout import Lookout, seen
from tests.support import managers, on_every_backend, push
from warpdrive_min import CUDADataManager, EnvWrapper
from warpdrive_min.bridges.dlpack import assign, export
from warpdrive_min.errors import DataError


def data_with(**arrays: object) -> CUDADataManager:
    """Return a data manager on the CPU with these arrays."""
    data = managers("cpu")[0]
    for name, value in arrays.items():
        push(data, name, value)
    return data


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint8])
def test_export_shares_memory_with_numpy(dtype):
    """What either side writes, the other reads."""
    data = data_with(x=np.arange(6, dtype=dtype).reshape(2, 3))
    shared = np.from_dlpack(export(data, "x"))
    assert (shared.shape, shared.dtype) == ((2, 3), dtype)
    shared[0, 1] = 9
    assert data.tensor("x")[0, 1] == 9
    data.tensor("x")[1, 2] = 7
    assert shared.tolist() == [[0, 9, 2], [3, 4, 7]]


@on_every_backend
def test_export_shares_memory_with_torch_on_every_backend(backend):
    """The same address on the same device."""
    data, _ = managers(backend)
    push(data, "x", np.ones((2, 3), np.float32))
    shared = torch.from_dlpack(export(data, "x"))
    assert (shared.data_ptr(), shared.device) == (data.tensor("x").data_ptr(), data.device)


@on_every_backend
def test_export_shares_every_part_of_dict_observations(backend):
    """Views that a step writes into: at the data manager's addresses, with its numbers afterwards."""
    wrapper = EnvWrapper(Lookout(), num_envs=2, env_backend=backend)
    wrapper.reset()
    data = wrapper.cuda_data_manager
    parts = {key: torch.from_dlpack(export(data, f"observations_{key}")) for key in seen(0, 0, 0)}
    data.tensor("sampled_actions").fill_(2)
    wrapper.step()
    for key, part in parts.items():
        assert part.data_ptr() == data.tensor(f"observations_{key}").data_ptr()
        np.testing.assert_array_equal(part.cpu(), [[seen(agent, 1, 2)[key] for agent in (0, 1)]] * 2)


def test_export_outlives_the_data_manager():
    """The consumer keeps the memory."""
    data = data_with(x=np.arange(1000, dtype=np.float32))
    shared = np.from_dlpack(export(data, "x"))
    del data
    assert shared.sum() == 499500


def test_assign_copies_from_an_array_or_a_capsule():
    """In place, with the numbers converted; the source is not shared."""
    data = data_with(x=np.zeros((2, 3), np.int32))
    address, source = data.tensor("x").data_ptr(), np.arange(6, dtype=np.int64).reshape(2, 3)
    assign(data, "x", source)
    source[:] = 0
    assert data.tensor("x").tolist() == [[0, 1, 2], [3, 4, 5]]
    assign(data, "x", torch.utils.dlpack.to_dlpack(torch.full((2, 3), 8, dtype=torch.int32)))
    assert data.tensor("x").tolist() == [[8] * 3] * 2
    assert data.tensor("x").data_ptr() == address


def test_unknown_names_and_other_shapes_are_errors():
    """The error names what there is and what was expected."""
    data = data_with(x=np.zeros((2, 3), np.float32))
    with pytest.raises(DataError, match=r"data 'y': is not there; known are .*, x"):
        export(data, "y")
    with pytest.raises(DataError, match=r"assign: 'x' must get shape .2, 3. .got .3, 2."):
        assign(data, "x", np.zeros((3, 2), np.float32))
