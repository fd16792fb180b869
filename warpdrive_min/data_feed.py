"""Data that an environment gives the data manager: named arrays and scalars, each with its attributes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warpdrive_min.errors import DataError, require


class DataFeed(dict[str, dict[str, Any]]):
    """A dict ``name -> {"data": value, "attributes": {...}}`` that is filled by its methods.

    Values are Python or NumPy scalars, lists and arrays. Shapes are without the axis of environments
    wherever the core replicates a row for each (attributes ``save_copy_and_apply_at_reset`` and ``per_env``); a number
    that it replicates is an array ``(n_envs,)`` for kernels.
    """

    def add_data(
        self,
        name: str,
        data: Any,
        save_copy_and_apply_at_reset: bool = False,
        log_data_across_episode: bool = False,
        **attributes: Any,
    ) -> None:
        """Add one entry; a name that is already there is replaced.

        Args:
            name: Name under which kernels ask for it.
            data: Scalar, list or array.
            save_copy_and_apply_at_reset: Keep a device copy and restore it when an environment is reset.
            log_data_across_episode: Let the logger record it at every step of one environment.
            attributes: Further attributes. The core knows ``per_env=True``: one row of it for each environment.
        """
        self[name] = {
            "data": data,
            "attributes": {
                "save_copy_and_apply_at_reset": save_copy_and_apply_at_reset,
                "log_data_across_episode": log_data_across_episode,
                **attributes,
            },
        }

    def add_data_list(self, data_list: Sequence[tuple[Any, ...] | dict[str, Any]]) -> None:
        """Add several entries, each ``(name, data[, save[, log]])`` or a dict of ``add_data``'s arguments.

        Raises:
            DataError: ``data_list`` is no list, or an item is neither form.
        """
        got = type(data_list).__name__
        require(isinstance(data_list, list), "add_data_list", "must get a list", got, error=DataError)
        for item in data_list:
            if isinstance(item, dict):
                is_whole = {"name", "data"} <= item.keys()
                require(is_whole, "add_data_list", "an item needs 'name' and 'data'", sorted(item), error=DataError)
                self.add_data(**item)
            elif isinstance(item, tuple) and len(item) >= 2:
                # A flag that is no bool counts as unset, as in WarpDrive.
                save, log = (flag if isinstance(flag, bool) else False for flag in (*item[2:4], False, False)[:2])
                self.add_data(item[0], item[1], save, log)
            else:
                raise DataError(f"add_data_list: an item must be (name, data[, save[, log]]) or a dict (got {item!r})")

    def add_pool_for_reset(self, name: str, data: Any, reset_target: str) -> None:
        """Add a pool ``(n_rows, *row)`` from whose rows ``reset_target`` is refilled at each reset."""
        self.add_data(name, data, is_reset_pool=True, reset_target=reset_target)
