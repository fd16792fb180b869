"""Collective operations of processes that train together, one GPU each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import distributed

from warpdrive_min.errors import TrainingError, require

Tensors = dict[str, torch.Tensor]
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class World:
    """Ranks of a run; a single process is one rank.

    All ranks call its methods, in the same order.
    """

    rank: int = 0
    size: int = 1

    @classmethod
    def of(cls, size: int | None = None, rank: int | None = None) -> World:
        """Return the world of the open process group, else one rank.

        Raises:
            ConfigError: ``size`` or ``rank`` is given and differs from the process group's.
        """
        is_open = distributed.is_available() and distributed.is_initialized()
        world = cls(distributed.get_rank(), distributed.get_world_size()) if is_open else cls()
        for what, want, got in (("num_devices", size, world.size), ("device_id", rank, world.rank)):
            is_own = want in (None, got) or not (is_open or what == "num_devices")
            rule = f"must be that of the process group, {got}"
            require(is_own, f"trainer.{what}", rule, want, "start several processes with torchrun, or leave it out")
        return world

    @property
    def is_first(self) -> bool:
        """True on the rank that logs and saves."""
        return self.rank == 0

    def agreed(self, value: Value) -> Value:
        """Return the first rank's value on all ranks; synchronises."""
        if self.size == 1:
            return value
        box = [value]
        distributed.broadcast_object_list(box, src=0)
        return box[0]

    def summed(self, numbers: Mapping[str, torch.Tensor]) -> Tensors:
        """Sum 0-d tensors over ranks, by one all-reduce; enqueues."""
        if self.size == 1 or not numbers:
            return dict(numbers)
        total = torch.stack(list(numbers.values()))
        distributed.all_reduce(total)
        return dict(zip(numbers, total.unbind(), strict=True))

    def averaged(self, numbers: Mapping[str, torch.Tensor]) -> Tensors:
        """Average 0-d tensors over ranks, by one all-reduce; enqueues."""
        total = self.summed(numbers)
        return total if self.size == 1 else {name: value / self.size for name, value in total.items()}

    def everyone(self, own: torch.Tensor) -> torch.Tensor:
        """Return all ranks' tensors, (size, *shape), on each rank; enqueues, capturable."""
        if self.size == 1:
            return own[None]
        sent = own.contiguous()
        received = sent.new_empty(self.size, *sent.shape)
        distributed.all_gather(list(received), sent)
        return received

    def gathered(self, own: Mapping[str, torch.Tensor]) -> Tensors | None:
        """Gather tensors as (size, ...) on the first rank, else None.

        Synchronises. With several ranks the results are on the CPU: a GPU may lack the memory for all of them.
        """
        if self.size == 1:
            return {name: tensor[None] for name, tensor in own.items()}
        together: Tensors = {}
        for name, tensor in own.items():
            sent = tensor.contiguous()
            received = sent.new_empty(self.size, *sent.shape) if self.is_first else None
            # As bytes: neither NCCL nor Gloo supports all number types.
            distributed.gather(as_bytes(sent), None if received is None else list(map(as_bytes, received)), dst=0)
            if received is not None:
                together[name] = received.cpu()
        return together if self.is_first else None

    def check_equal(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Check by one all-gather that tensors are bit-identical on all ranks.

        Synchronises.

        Raises:
            TrainingError: They are not; names the ranks and tensors. All ranks raise it.
        """
        if self.size == 1 or not tensors:
            return
        own = torch.stack([checksum(tensor) for tensor in tensors.values()])
        everyone = [torch.empty_like(own) for _ in range(self.size)]
        distributed.all_gather(everyone, own)
        sums = torch.stack(everyone).cpu()
        is_same = sums == sums[0]
        if not is_same.all():
            others = [str(rank) for rank in range(self.size) if not is_same[rank].all()]
            names = [name for name, same in zip(tensors, is_same.all(0), strict=True) if not same]
            raise TrainingError(
                f"ranks: weights and moments must be bit-identical on all ranks (got others on rank "
                f"{', '.join(others)} than on rank 0, in {len(names)} of {len(tensors)} tensors, as {names[0]}); "
                "resume from the last checkpoint, on equal machines with equal software versions"
            )

    def wait(self) -> None:
        """Wait until all ranks call this."""
        if self.size > 1:
            distributed.barrier()


def average(tensor: torch.Tensor) -> torch.Tensor:
    """Average a tensor over ranks in place, by one all-reduce; enqueues, capturable."""
    if distributed.is_available() and distributed.is_initialized() and (size := distributed.get_world_size()) > 1:
        distributed.all_reduce(tensor)
        tensor.div_(size)
    return tensor


def checksum(tensor: torch.Tensor) -> torch.Tensor:
    """Return a checksum, 0-d int64; enqueues.

    Another value of one entry changes it, and so does a swap of two entries. It is the sum of the tensor's words, each
    times its own odd number, modulo 2^64.
    """
    kind = torch.int32 if tensor.element_size() % 4 == 0 else torch.uint8
    words = as_bytes(tensor.detach().contiguous()).view(kind)
    return (words * torch.arange(1, 2 * len(words), 2, device=words.device)).sum()


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of a contiguous tensor's bytes, a uint8 vector."""
    return tensor.reshape(-1).view(torch.uint8)
