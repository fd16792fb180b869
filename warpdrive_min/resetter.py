"""Resetter: restarts environments from saved copies, pools or by their kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from warpdrive_min.backends.base import Argument, Launch
from warpdrive_min.constants import AT_RESET, DONE, TIMESTEP
from warpdrive_min.data_manager import CUDADataManager
from warpdrive_min.environment import seed_resets
from warpdrive_min.errors import ConfigError, DataError, require
from warpdrive_min.function_manager import CUDAFunctionFeed, CUDAFunctionManager, KernelFunction, core_sources
from warpdrive_min.lazy import LazyModule

if TYPE_CHECKING:
    import torch
else:
    torch = LazyModule("torch", globals())

OWN_KERNEL: Final = "reset"
"""Name of an environment's own reset kernel."""
MODES: Final = {"if_done": 0, "force_reset": 1}


class CUDAEnvironmentReset:
    """Resetter of environments on the device.

    An environment with a kernel ``reset`` restarts itself. For others, each array with a saved copy or a pool is
    restored in one launch. All pools of an environment use the same row.

    Args:
        function_manager: Manager of the environment's kernels.
    """

    def __init__(self, function_manager: CUDAFunctionManager) -> None:
        self._functions = function_manager
        self._rows: CUDAFunctionManager | None = None
        self._launches: dict[tuple[CUDADataManager, int, bool, int], list[Launch]] = {}
        self._custom: tuple[KernelFunction, CUDAFunctionFeed] | None = None

    def init_reset_pool(self, data_manager: CUDADataManager, seed: int | None = None) -> None:
        """Check all reset pools and set the seed of their draws; synchronises.

        Raises:
            DataError: A pool's dtype or row shape differs from its target's.
            ConfigError: The seed is not an integer, is negative, or has more than 64 bits.
        """
        _check_pools(data_manager)
        seed_resets(data_manager, 0 if seed is None else seed)

    def reset_when_done(
        self, data_manager: CUDADataManager, mode: str = "if_done", undo_done_after_reset: bool = True
    ) -> None:
        """Reset finished environments, or all with ``"force_reset"``; enqueues.

        Args:
            data_manager: Manager of the environment's arrays.
            mode: ``"if_done"`` or ``"force_reset"``.
            undo_done_after_reset: Set ``_done_`` and ``_timestep_`` of those environments to 0.

        Raises:
            ConfigError: Unknown mode.
            DataError: An array cannot be restored: it has no row for each environment, or its pool does not fit.
        """
        require(mode in MODES, "reset_when_done", f"mode must be one of {', '.join(MODES)}", mode)
        n_arrays = len(data_manager.reset_data_list) + len(data_manager.reset_target_to_pool)  # more may be pushed
        key = (data_manager, MODES[mode], undo_done_after_reset, n_arrays)
        if key not in self._launches:
            self._launches[key] = self._prepare(data_manager, MODES[mode], undo_done_after_reset)
        for launch in self._launches[key]:
            launch()

    def _prepare(self, data: CUDADataManager, force: int, undo: bool) -> list[Launch]:
        if self._functions.has_function(OWN_KERNEL):
            own = self._functions.bind(OWN_KERNEL, data, force=force)
            return [own] if undo else [lambda: launch_preserving(data, (DONE, TIMESTEP), own)]
        _check_pools(data)
        rows = self._row_kernels()
        sources = {name: (data.tensor(name + AT_RESET), 0) for name in data.reset_data_list}
        for target, pool in data.reset_target_to_pool.items():
            sources[target] = (data.tensor(pool), data.get_shape(pool)[0])
        launches = []
        for name, (source, n_rows) in sources.items():
            words = _words(name, data.tensor(name), data.n_envs)
            given: dict[str, Argument] = {
                "target": words,
                "source": _words(name, source, source.shape[0]),
                "n_words": words.shape[1],
                "n_rows": n_rows,
                "force": force,
            }
            launches.append(rows.bind("reset_rows", data, **given))
        # Always launched: it increments the episode count, which selects the next pool row.
        finish = rows.bind("undo_done", data, force=force)
        return [*launches, finish if undo else lambda: launch_preserving(data, (DONE, TIMESTEP), finish)]

    def _row_kernels(self) -> CUDAFunctionManager:
        """Compile the core's reset kernels, which see an environment as one item."""
        if self._rows is None:
            self._rows = CUDAFunctionManager(1, self._functions.n_envs, backend=self._functions.backend)
            self._rows.envs_before = self._functions.envs_before
            self._rows.load(core_sources("reset"))
        return self._rows

    # -------------------------------------------------------------- custom reset

    def register_custom_reset_function(self, data_manager: CUDADataManager, reset_function_name: str) -> None:
        """Set the loaded kernel that `custom_reset` launches."""
        function = self._functions.get_function(reset_function_name).bound_to(data_manager)
        self._custom = (function, CUDAFunctionFeed(data_manager))

    def custom_reset(
        self,
        args: Sequence[str | tuple[str, str]] | None = None,
        block: Sequence[int] | None = None,
        grid: Sequence[int] | None = None,
    ) -> None:
        """Launch the custom reset kernel; enqueues, does not synchronise.

        Arguments are the named ones in order, or all bound by name.

        Raises:
            ConfigError: No custom reset kernel is registered.
        """
        if self._custom is None:
            raise ConfigError("custom_reset: no kernel is registered; call register_custom_reset_function first")
        function, feed = self._custom
        function(*(feed(args) if args else ()), block=block, grid=grid)


def _check_pools(data: CUDADataManager) -> None:
    for target, pool in data.reset_target_to_pool.items():
        what = f"reset pool {pool!r} of {target!r}"
        got, want = data.get_dtype(pool), data.get_dtype(target)
        require(got == want, what, f"must have the target's dtype {want}", got, error=DataError)
        row, target_shape = data.get_shape(pool)[1:], data.get_shape(target)
        rule = f"must have rows of the target's shape {target_shape[1:]}"
        require(row == target_shape[1:], what, rule, row, error=DataError)
        rule = f"the target must have a row for each of {data.n_envs} environments"
        require(target_shape[:1] == (data.n_envs,), what, rule, target_shape, error=DataError)


def launch_preserving(data: CUDADataManager, names: Sequence[str], launch: Launch) -> None:
    """Launch, then restore the named arrays; does not synchronise."""
    saved = {name: data.tensor(name).clone() for name in names}
    launch()
    for name, tensor in saved.items():
        data.tensor(name).copy_(tensor)


def _words(name: str, tensor: torch.Tensor, n_rows: int) -> torch.Tensor:
    """View an array as rows of 32-bit words."""
    is_whole = tensor.shape[0] == n_rows and (tensor.element_size() * tensor[0].numel()) % 4 == 0
    rule, got = f"must have {n_rows} rows of whole 32-bit words to be reset", f"{tensor.dtype} {tuple(tensor.shape)}"
    require(is_whole, f"data {name!r}", rule, got, "use float32 or int32", DataError)
    return tensor.reshape(n_rows, -1).view(torch.int32)
