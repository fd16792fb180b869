"""Limits and occupancy of a multiprocessor by compute capability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

WARP: Final = 32
SUBPARTITIONS: Final = 4
"""Partitions of a multiprocessor; registers and warps are divided equally."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Capability:
    """Resources of one multiprocessor.

    Source: "CUDA C++ Programming Guide" 13.0, table "Technical Specifications per Compute Capability"; units of
    allocation as in `cuda_occupancy.h` of the same toolkit.
    """

    warps: int
    """Maximum number of resident warps."""
    blocks: int
    registers: int = 65_536
    shared_bytes: int
    register_unit: int = 256
    """Allocation unit of a warp's registers."""
    shared_unit: int = 128
    reserved_bytes: int = 1_024
    """Shared memory that the system uses in each block, bytes."""
    multiprocessors: int
    """Multiprocessors of an A100, H100 or H200, B200, RTX 5090.

    Source: NVIDIA's white papers of their architectures."""


CAPABILITIES: Final[dict[str, Capability]] = {
    "sm_80": Capability(warps=64, blocks=32, shared_bytes=164 * 1024, multiprocessors=108),
    "sm_90": Capability(warps=64, blocks=32, shared_bytes=228 * 1024, multiprocessors=132),
    "sm_100": Capability(warps=64, blocks=32, shared_bytes=228 * 1024, multiprocessors=148),
    "sm_120": Capability(warps=48, blocks=24, shared_bytes=100 * 1024, multiprocessors=170),
}
"""Capabilities by the compiler's name."""


def warps_at_once(capability: Capability, *, threads: int, registers: int, shared_bytes: int) -> tuple[int, str]:
    """Return the resident warps of a multiprocessor, and the limiting resource.

    Args:
        capability: Resources of the multiprocessor.
        threads: Threads per block.
        registers: Registers per thread.
        shared_bytes: Shared memory per block, bytes.

    Source: `cudaOccMaxActiveBlocksPerMultiprocessor` in `cuda_occupancy.h`.
    """
    warps = -(-threads // WARP)
    of_warp = max(1, _up(registers * WARP, capability.register_unit))
    by_registers = capability.registers // SUBPARTITIONS // of_warp * SUBPARTITIONS // warps
    of_block = _up(shared_bytes + capability.reserved_bytes, capability.shared_unit)
    limits = {
        "warps": capability.warps // warps,
        "blocks": capability.blocks,
        "registers": by_registers if registers else capability.blocks,
        "shared memory": capability.shared_bytes // of_block,
    }
    limit = min(limits, key=lambda name: limits[name])
    return limits[limit] * warps, limit


def blocks_at_once(capability: Capability, *, threads: int, warps: int) -> int:
    """Return the number of blocks in a wave.

    Args:
        capability: Resources of the multiprocessors.
        threads: Threads per block.
        warps: On a multiprocessor at once, see `warps_at_once`.
    """
    return max(1, warps // -(-threads // WARP)) * capability.multiprocessors


def wave_quantization(blocks: int, at_once: int) -> float:
    """Return the block slots of all waves over the blocks launched; 1 in one wave."""
    return -(-blocks // at_once) * at_once / blocks if blocks > at_once else 1.0


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
