"""WarpDrive's example environments that are a setting of one of ours."""

from __future__ import annotations

from typing import Any

from warpdrive_min.envs import TagGridWorld


class CUDATagGridWorldWithResetPool(TagGridWorld):
    """Tag on a grid whose taggers start in one of five drawn arrangements."""

    def __init__(self, *, reset_pool_size: int = 5, **config: Any) -> None:
        """Take the config of `TagGridWorld` as keyword arguments."""
        super().__init__(reset_pool_size=reset_pool_size, **config)
