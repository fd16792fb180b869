"""Data manager: all arrays of a run by name, as torch tensors."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from warpdrive_min import backends, constants, memory
from warpdrive_min.backends.base import Argument, Backend, dtype_name
from warpdrive_min.data_feed import DataFeed
from warpdrive_min.errors import DataError, DeviceMemoryError, known, require, require_int
from warpdrive_min.lazy import LazyModule

if TYPE_CHECKING:
    import torch
else:
    torch = LazyModule("torch", globals())

Array = npt.NDArray[Any]
Scalar = np.int32 | np.float32
Value = TypeVar("Value")

NARROWED = {np.dtype(np.float64): np.dtype(np.float32), np.dtype(np.int64): np.dtype(np.int32)}
"""Device dtype of wider arrays: kernels use 32 bits."""


class CUDADataManager:
    """Owner of all arrays of a run, on the backend's device.

    Torch allocates the memory, which torch, PyCUDA, Numba, C++ and NumPy share.

    Args:
        num_agents: Agents in each environment.
        num_envs: Environments.
        blocks_per_env: CUDA blocks that share one environment.
        episode_length: Steps after which an episode ends.
        backend: Name of the backend whose device holds the arrays, or the backend.

    Raises:
        DataError: A number is missing or not positive.
    """

    def __init__(
        self,
        num_agents: int | None = None,
        num_envs: int | None = None,
        blocks_per_env: int = 1,
        episode_length: int | None = None,
        *,
        backend: str | Backend = "cpu",
    ) -> None:
        sizes = {
            "num_agents": num_agents,
            "num_envs": num_envs,
            "blocks_per_env": blocks_per_env,
            "episode_length": episode_length,
        }
        self.n_agents, self.n_envs, blocks_per_env, self.episode_length = (
            _size(name, value) for name, value in sizes.items()
        )
        self.backend = backends.get(backend) if isinstance(backend, str) else backend
        self.device = self.backend.device
        self.reset_data_list: list[str] = []
        """Names of arrays with a saved copy."""
        self.log_data_list: list[str] = []
        """Names of arrays that the logger records."""
        self.reset_target_to_pool: dict[str, str] = {}
        """Pool of each array that resets fill from a pool."""
        self._tensors: dict[str, torch.Tensor] = {}
        self._external: dict[str, torch.Tensor] = {}
        self._scalars: dict[str, Scalar] = {}
        self._meta: dict[str, Scalar] = {}
        self._shared: dict[str, Array | Scalar] = {}
        self._shared_tensors: dict[str, torch.Tensor] = {}
        self._attributes: dict[str, Mapping[str, Any]] = {}
        self._torch_accessible: set[str] = set()
        self._host: dict[str, Array] = {}
        self.add_meta_info(
            {
                "n_agents": self.n_agents,
                "episode_length": self.episode_length,
                "n_envs": self.n_envs,
                "blocks_per_env": blocks_per_env,
            }
        )
        self._push_reserved()

    def _push_reserved(self) -> None:
        def zeros(n: int) -> Array:
            return np.zeros(n, np.int32)

        plain, shared_with_torch = DataFeed(), DataFeed()
        plain.add_data(constants.LOG_MASK, zeros(self.episode_length + 1))
        plain.add_data(constants.TIMESTEP, zeros(self.n_envs), per_env=True)
        plain.add_data(constants.EPISODE, zeros(self.n_envs), per_env=True)
        plain.add_data(constants.RESET_SEED, zeros(2))
        shared_with_torch.add_data(constants.DONE, zeros(self.n_envs), per_env=True)
        self.push_data_to_device(plain)
        self.push_data_to_device(shared_with_torch, torch_accessible=True)

    # -------------------------------------------------------------- meta information and shared constants

    def add_meta_info(self, meta: Mapping[str, Any]) -> None:
        """Add scalars that describe the run; ints become int32, floats float32.

        Raises:
            DataError: A value is not a number, or the name is taken.
        """
        for name, value in meta.items():
            _require(name not in self._meta, f"meta info {name!r}", "exists already", value, "use another name")
            self._meta[name] = _scalar(name, value)

    def meta_info(self, name: str) -> Scalar:
        """Return a scalar of the meta information."""
        return _get(self._meta, name, "meta info")

    def add_shared_constants(self, shared: Mapping[str, Any]) -> None:
        """Add constants for `CUDAFunctionManager.initialize_shared_constants`.

        Values are arrays, lists or scalars.

        Raises:
            DataError: The name is taken.
        """
        for name, value in shared.items():
            _require(name not in self._shared, f"shared constant {name!r}", "exists already", do="use another name")
            is_array = isinstance(value, list | tuple | np.ndarray)
            self._shared[name] = _array(name, value) if is_array else _scalar(name, value)

    @property
    def shared_constants(self) -> dict[str, Array | Scalar]:
        """All shared constants by name, on the host."""
        return dict(self._shared)

    def shared_constant(self, name: str) -> Array | Scalar:
        """Return a shared constant, on the host."""
        return _get(self._shared, name, "shared constant")

    # -------------------------------------------------------------- push, pull, reset

    def push_data_to_device(self, data: DataFeed, torch_accessible: bool = False) -> None:
        """Copy all arrays of a feed to the device.

        Scalars stay on the host and are passed to kernels by value. A scalar with the attribute ``n_copies`` becomes an
        array ``(n_envs,)``.

        float64 and int64 are narrowed to 32 bits; other dtypes stay. ``torch_accessible`` only matters to
        `is_data_on_device_via_torch`: here every array is a torch tensor.

        Raises:
            DataError: A name is taken, a value is not a number or does not fit 32 bits, a pool or its target breaks a
                rule, or a logged array lacks the axes (n_envs, n_agents).
            DeviceMemoryError: The device is full.
        """
        for name, entry in data.items():
            self._push(name, entry["data"], entry["attributes"], torch_accessible)

    def _push(self, name: str, value: Any, attributes: Mapping[str, Any], torch_accessible: bool) -> None:
        self._require_new(name)
        n_copies = attributes.get("n_copies")
        if not isinstance(value, list | tuple | np.ndarray | torch.Tensor):
            number = _scalar(name, value)
            if not n_copies:
                self._scalars[name] = number
                return
            value = np.asarray(number)
        array = _array(name, value)
        shape = (n_copies, *array.shape) if n_copies else array.shape
        save = bool(attributes.get("save_copy_and_apply_at_reset"))
        is_pool = bool(attributes.get("is_reset_pool"))
        if is_pool:
            self._check_pool(name, array, attributes["reset_target"])
        rule = "is refilled from a pool, so it cannot have a saved copy too"
        _require(is_pool or not save or name not in self.reset_target_to_pool, f"data {name!r}", rule, do="drop one")
        log = bool(attributes.get("log_data_across_episode")) and not is_pool
        axes = (self.n_envs, self.n_agents)
        rule = f"must have shape (n_envs, n_agents, ...) = ({self.n_envs}, {self.n_agents}, ...) to be logged"
        _require(not log or shape[:2] == axes, f"data {name!r}", rule, shape)
        save = save and not is_pool
        row = torch.from_numpy(array)
        rows = (self.episode_length + 1, *shape[1:])
        n_bytes = row.nbytes * (n_copies or 1) * (1 + save) + log * math.prod(rows) * row.element_size()
        # Tensors created in inference mode cannot be modified outside it.
        with self._memory(name, n_bytes), torch.inference_mode(False):
            tensor = row.to(self.device, copy=True)
            if n_copies:
                tensor = tensor.expand(shape).clone(memory_format=torch.contiguous_format)
            if save:
                self._require_new(name + constants.AT_RESET)
                saved = tensor.clone()
            if log:
                self._require_new(name + constants.FOR_LOG)
                logged = torch.zeros(rows, dtype=tensor.dtype, device=self.device)
        if save:
            self._tensors[name + constants.AT_RESET] = saved
            self.reset_data_list.append(name)
        if log:
            self._tensors[name + constants.FOR_LOG] = logged
            self.log_data_list.append(name)
        if is_pool:
            self.reset_target_to_pool[attributes["reset_target"]] = name
        self._tensors[name] = tensor
        self._external.pop(name, None)
        self._attributes[name] = attributes
        self._host[name] = array
        if torch_accessible:
            self._torch_accessible.add(name)

    def _require_new(self, name: str) -> None:
        _require(not self.is_data_on_device(name), f"data {name!r}", "was pushed already", do="use another name")

    def _check_pool(self, name: str, pool: Array, target: str) -> None:
        what = f"reset pool {name!r} of {target!r}"
        is_saved, other = target in self.reset_data_list, self.reset_target_to_pool.get(target)
        _require(not is_saved, what, "the target has a saved copy that resets restore", do="drop one of the two")
        _require(other is None, what, f"the target has the pool {other!r} already")
        _require(len(pool.shape[:1]) == 1 and len(pool) > 1, what, "must have at least 2 rows", pool.shape)

    @contextlib.contextmanager
    def _memory(self, name: str, asked: int) -> Iterator[None]:
        memory.require_room(f"data {name!r}", asked, self.device, "use fewer environments")
        try:
            yield
        except torch.cuda.OutOfMemoryError as error:
            raise DeviceMemoryError(
                f"data {name!r}: {self.device} has too little memory (asked for {asked:,} bytes, "
                f"{self.free_bytes():,} are free); use fewer environments"
            ) from error

    @property
    def entries(self) -> dict[str, int]:
        """Numbers per environment of each array with a row for each environment, by name."""
        arrays = {name: self.tensor(name) for name in self.array_names() if name.isidentifier()}
        return {name: array[0].numel() for name, array in arrays.items() if array.shape[:1] == (self.n_envs,)}

    def free_bytes(self) -> int:
        """Return the device's free memory in bytes; see `memory.free_bytes`."""
        return memory.free_bytes(self.device)

    def pull_data_from_device(self, name: str) -> Array | Scalar:
        """Return a scalar, or a new host copy of an array; synchronises."""
        if name in self._scalars:
            return self._scalars[name]
        array: Array = self.tensor(name).detach().to("cpu", copy=True).numpy()
        return array

    def reset_device(self, name: str | None = None) -> None:
        """Restore the pushed content of one array, or of all, in place.

        Scalars never change.
        """
        for each in [name] if name is not None else list(self._host):
            if each not in self._scalars:
                self.tensor(each).copy_(torch.from_numpy(_get(self._host, each, "data")))

    # -------------------------------------------------------------- look-up

    def tensor(self, name: str) -> torch.Tensor:
        """Return the live tensor of an array.

        Reserved arrays, saved copies, log buffers and external tensors have names, too.
        """
        return self._external[name] if name in self._external else _get(self._tensors, name, "data")

    def use_external(self, name: str, tensor: torch.Tensor) -> None:
        """Make `tensor` return another owner's tensor for a name.

        Pushed data of that name takes precedence, also if it is pushed later. Kernels, resets and `is_data_on_device`
        ignore external tensors.
        """
        if not self.is_data_on_device(name):
            self._external[name] = tensor

    def device_data(self, name: str) -> torch.Tensor | Scalar:
        """Return a kernel's argument: the live tensor, or the scalar."""
        return self._scalars[name] if name in self._scalars else self.tensor(name)

    data_on_device_via_torch = tensor

    def is_data_on_device(self, name: str) -> bool:
        """True if an array or scalar of that name was pushed."""
        return name in self._tensors or name in self._scalars

    def is_data_on_device_via_torch(self, name: str) -> bool:
        """True if an array of that name was pushed with ``torch_accessible``."""
        return name in self._torch_accessible

    def get_shape(self, name: str) -> tuple[int, ...]:
        """Return an array's shape; () for a scalar."""
        return () if name in self._scalars else tuple(self.tensor(name).shape)

    def get_dtype(self, name: str) -> str:
        """Return NumPy's dtype name of an array or scalar."""
        return str(self._scalars[name].dtype) if name in self._scalars else dtype_name(self.tensor(name).dtype)

    def get_reset_pool(self, target: str) -> str:
        """Return the name of an array's reset pool."""
        return _get(self.reset_target_to_pool, target, "reset pool of")

    def find(self, name: str) -> Argument | None:
        """Return the argument for a kernel parameter of that name, or None.

        Searches arrays and scalars, then the meta information, then the shared constants.
        """
        if self.is_data_on_device(name):
            return _plain(self.device_data(name))
        if name in self._meta:
            return _plain(self._meta[name])
        return self.shared_argument(name) if name in self._shared else None

    def shared_argument(self, name: str) -> Argument:
        """Return a shared constant as kernel argument: a device tensor or scalar."""
        value = self.shared_constant(name)
        if not isinstance(value, np.ndarray):
            return _plain(value)
        if name not in self._shared_tensors:
            self._shared_tensors[name] = torch.from_numpy(value).to(self.device)
        return self._shared_tensors[name]

    def attribute(self, name: str, key: str, default: Any = None) -> Any:
        """Return an attribute of a pushed array."""
        return self._attributes[name].get(key, default)

    def array_names(self) -> list[str]:
        """Return the names of all pushed arrays."""
        return list(self._host)

    def names(self) -> list[str]:
        """Return all names that `find` knows."""
        return sorted({*self._tensors, *self._scalars, *self._meta, *self._shared})


def _plain(value: torch.Tensor | Scalar) -> Argument:
    return value if isinstance(value, torch.Tensor) else value.item()


def _get(table: Mapping[str, Value], name: str, what: str) -> Value:
    if name not in table:
        raise DataError(f"{what} {name!r}: does not exist; known are {known(table)}")
    return table[name]


def _size(name: str, value: Any) -> int:
    return require_int(f"data manager: {name}", value, error=DataError)


def _scalar(name: str, value: Any) -> Scalar:
    if isinstance(value, bool | np.bool_ | int | np.integer):
        _check_range(name, int(value), int(value))
        return np.int32(value)
    if isinstance(value, float | np.floating):
        return np.float32(_narrowed(name, np.asarray(value)))
    raise DataError(f"data {name!r}: must be a number, list or array (got {type(value).__name__})")


def _array(name: str, value: Any) -> Array:
    array = np.asarray(value.detach().cpu() if isinstance(value, torch.Tensor) else value)
    _require(array.dtype.kind in "fiub", f"data {name!r}", "must hold numbers", array.dtype)
    if array.dtype == np.int64 and array.size:
        _check_range(name, int(array.min()), int(array.max()))
    return _narrowed(name, array)


def _narrowed(name: str, array: Array) -> Array:
    """Return a copy of at most 32 bits; finite numbers stay finite."""
    with np.errstate(over="ignore"):
        narrowed = np.array(array, NARROWED.get(array.dtype, array.dtype), order="C")
    if array.dtype == np.float64:
        lost = np.isinf(narrowed) & np.isfinite(array)
        rule = "real numbers become 32 bits wide, which must hold them"
        _require(not lost.any(), f"data {name!r}", rule, array[lost].ravel()[:1])
    return narrowed


def _check_range(name: str, low: int, high: int) -> None:
    is_within = low >= -(2**31) and high < 2**31
    _require(is_within, f"data {name!r}", "integers become 32 bits wide, which must hold them", (low, high))


def _require(holds: object, what: str, rule: str, got: Any = ..., do: str = "") -> None:
    require(holds, what, rule, got, do, DataError)
