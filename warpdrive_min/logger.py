"""Logger: records each step of one environment on the device.

A log is fetched in one copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from warpdrive_min.constants import FOR_LOG, LOG_MASK
from warpdrive_min.data_manager import CUDADataManager
from warpdrive_min.errors import DataError, require
from warpdrive_min.function_manager import CUDAFunctionManager


class CUDALogController:
    """Logger of the arrays pushed with ``log_data_across_episode``.

    It logs one environment. Torch copies the rows on the current stream; a custom kernel would not pay off.

    Args:
        function_manager: Accepted for WarpDrive's calls.
    """

    def __init__(self, function_manager: CUDAFunctionManager | None = None) -> None:
        self._env_id = 0
        self.last_valid_step = -1

    def reset_log(self, data_manager: CUDADataManager, env_id: int = 0) -> None:
        """Clear the log, and log an environment's step 0; enqueues."""
        n_envs = data_manager.n_envs
        require(0 <= env_id < n_envs, "reset_log", f"env_id must be from 0 to {n_envs - 1}", env_id, error=DataError)
        self._env_id = env_id
        self.last_valid_step = -1
        data_manager.tensor(LOG_MASK).zero_()
        self.update_log(data_manager, 0)

    def update_log(self, data_manager: CUDADataManager, step: int) -> None:
        """Log the state as ``step``; enqueues, does not synchronise.

        Steps beyond the episode's length are ignored.

        Raises:
            DataError: The step does not follow the last one logged.
        """
        if step > data_manager.episode_length:
            return
        rule = f"step must follow the last one logged, {self.last_valid_step}"
        is_next = step == self.last_valid_step + 1
        require(is_next, "update_log", rule, step, "call reset_log to start again", DataError)
        for name in data_manager.log_data_list:
            data_manager.tensor(name + FOR_LOG)[step].copy_(data_manager.tensor(name)[self._env_id])
        data_manager.tensor(LOG_MASK)[step] = 1
        self.last_valid_step = step

    def fetch_log(
        self,
        data_manager: CUDADataManager,
        names: Sequence[str] | None = None,
        last_step: int | None = None,
        check_last_valid_step: bool = True,
    ) -> dict[str, npt.NDArray[Any]]:
        """Return ``{"X_for_log": rows up to the last step}``; synchronises.

        Contains the named arrays, or all.

        Raises:
            DataError: The mask on the device is not one run of ones that ends at the last valid step.
        """
        if check_last_valid_step:
            mask = data_manager.tensor(LOG_MASK).cpu().numpy()
            want = np.arange(len(mask)) <= self.last_valid_step
            rule, ones = f"the mask must be 1 up to step {self.last_valid_step} and 0 after it", np.flatnonzero(mask)
            require(np.array_equal(mask, want), "fetch_log", rule, f"ones at {ones.tolist()}", error=DataError)
        last = self.last_valid_step if last_step is None else min(last_step, self.last_valid_step)
        logged = data_manager.log_data_list if names is None else names
        return {name + FOR_LOG: data_manager.tensor(name + FOR_LOG)[: last + 1].cpu().numpy().copy() for name in logged}
