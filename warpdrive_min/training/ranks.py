"""Several processes that train together, one GPU each: what they agree on, add up and collect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import distributed

from warpdrive_min.errors import ConfigError

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class World:
    """The ranks of a run; alone it is one."""

    rank: int = 0
    size: int = 1

    @classmethod
    def of(cls, size: int | None = None, rank: int | None = None) -> World:
        """Return the world that torch's process group makes, checked against what is expected.

        Raises:
            ConfigError: Another size or rank is expected.
        """
        is_open = distributed.is_available() and distributed.is_initialized()
        world = cls(distributed.get_rank(), distributed.get_world_size()) if is_open else cls()
        for what, want, got in (("num_devices", size, world.size), ("device_id", rank, world.rank)):
            if want is not None and want != got and (is_open or what == "num_devices"):
                raise ConfigError(
                    f"trainer.{what}: must be that of the process group, {got} (got {want}); "
                    "start several processes with torchrun, or leave it out"
                )
        return world

    @property
    def is_first(self) -> bool:
        """This rank logs and saves."""
        return self.rank == 0

    def agreed(self, value: int) -> int:
        """Return the first rank's value."""
        if self.size == 1:
            return value
        box = [value]
        distributed.broadcast_object_list(box, src=0)
        return box[0]

    def summed(self, numbers: Mapping[str, torch.Tensor]) -> Tensors:
        """Return the sums over ranks of 0-d tensors, by one all-reduce; enqueues."""
        if self.size == 1 or not numbers:
            return dict(numbers)
        total = torch.stack(list(numbers.values()))
        distributed.all_reduce(total)
        return dict(zip(numbers, total.unbind(), strict=True))

    def averaged(self, numbers: Mapping[str, torch.Tensor]) -> Tensors:
        """Return the means over ranks of 0-d tensors, by one all-reduce; enqueues."""
        return {name: value / self.size for name, value in self.summed(numbers).items()}

    def gathered(self, own: Mapping[str, torch.Tensor]) -> Tensors | None:
        """Return each tensor of all ranks side by side, (size, ...), on the first rank; None on the others."""
        if self.size == 1:
            return {name: tensor[None] for name, tensor in own.items()}
        together: Tensors = {}
        for name, tensor in own.items():
            sent = tensor.contiguous()
            parts = [torch.empty_like(sent) for _ in range(self.size)] if self.is_first else None
            distributed.gather(sent, parts, dst=0)
            if parts is not None:
                together[name] = torch.stack(parts)
        return together if self.is_first else None

    def wait(self) -> None:
        """Wait until all ranks are here."""
        if self.size > 1:
            distributed.barrier()
