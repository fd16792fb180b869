"""How far a figure is from what the machine allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bench.case import Prepared


@dataclass(frozen=True, slots=True)
class Limits:
    """What a device can do at most."""

    bytes_per_s: float
    ops_per_s: float
    source: str


LIMITS: Final[dict[str, Limits]] = {
    "NVIDIA H200": Limits(
        bytes_per_s=4.3e12,
        ops_per_s=132 * 128 * 1.98e9,
        source="copy bandwidth as measured; 132 SMs x 128 lanes x 1.98 GHz",
    ),
}
"""By the name that the driver gives the device."""


def fraction(prepared: Prepared, seconds: float, gpu: str | None) -> tuple[float | None, str]:
    """Return the share of the machine's limit that a run of ``seconds`` reaches, and where the limit is from.

    The limit is the longer of the times that the declared bytes and operations need. None with the reason for a
    device that is not in `LIMITS`.
    """
    if gpu is None or gpu not in LIMITS or prepared.device.type != "cuda":
        return None, f"no limit is known for {gpu or 'this CPU'}"
    limits = LIMITS[gpu]
    least = max(prepared.bytes_per_run / limits.bytes_per_s, prepared.ops_per_run / limits.ops_per_s)
    return least / seconds, limits.source
