"""Named arrays and scalars that an environment gives the data manager."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warpdrive_min.errors import DataError, require


class DataFeed(dict[str, dict[str, Any]]):
    """Dict ``name -> {"data": value, "attributes": {...}}``, filled by methods.

    Values are Python or NumPy scalars, lists and arrays. The core adds the axis of environments where it replicates a
    row for each (attributes ``save_copy_and_apply_at_reset`` and ``per_env``); such shapes are given without it. A
    replicated number is an array ``(n_envs,)`` for kernels.
    """

    def add_data(
        self,
        name: str,
        data: Any,
        save_copy_and_apply_at_reset: bool = False,
        log_data_across_episode: bool = False,
        **attributes: Any,
    ) -> None:
        """Add one entry; replaces an entry of the same name.

        Args:
            name: Name of the kernel parameter that gets it.
            data: Scalar, list or array.
            save_copy_and_apply_at_reset: Keep a copy on the device, which resets restore.
            log_data_across_episode: Record it at each env step of the logged environment.
            attributes: Further attributes. The core reads ``per_env=True``: one row for each environment.
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
        """Add entries, given as tuples or dicts.

        A tuple is ``(name, data[, save[, log]])``; a dict has the arguments of `add_data`.

        Raises:
            DataError: ``data_list`` is not a list, or an item has neither form.
        """
        got = type(data_list).__name__
        require(isinstance(data_list, list), "add_data_list", "must get a list", got, error=DataError)
        for item in data_list:
            if isinstance(item, dict):
                is_whole = {"name", "data"} <= item.keys()
                require(is_whole, "add_data_list", "an item needs 'name' and 'data'", sorted(item), error=DataError)
                self.add_data(**item)
            elif isinstance(item, tuple) and len(item) >= 2:
                # A flag that is not a bool counts as False, as in WarpDrive.
                save, log = (flag if isinstance(flag, bool) else False for flag in (*item[2:4], False, False)[:2])
                self.add_data(item[0], item[1], save, log)
            else:
                raise DataError(f"add_data_list: an item must be (name, data[, save[, log]]) or a dict (got {item!r})")

    def add_pool_for_reset(self, name: str, data: Any, reset_target: str) -> None:
        """Add a reset pool ``(n_rows, *row)`` for the array ``reset_target``.

        Each reset fills the target from one of the rows.
        """
        self.add_data(name, data, is_reset_pool=True, reset_target=reset_target)
