"""Kernels: `sampler`, `reset`, `return_scan`, `shuffle`, `record`, `launch`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from warpdrive_min import BACKENDS

from ..core.measure import Timed
from ..core.point import ON_CPU, Point, Preset
from .shared import OURS, SIZES, has_gpu_sizes

# ------------------------------------------------------------------ points


def sizes_of(preset: Preset, kernel: str) -> list[dict[str, Any]]:
    """Return one size in preset smoke, else usual and large ones."""
    sizes = SIZES["kernels"][kernel]
    rows = sizes["smoke" if preset == "smoke" else "usual"] + (sizes["large"] if has_gpu_sizes(preset) else [])
    return [dict(zip(sizes["axes"], row, strict=True)) for row in rows]


def implementations(sizes: Sequence[Mapping[str, Any]], *names: str) -> list[Point]:
    """Return each size with every implementation; torch's once per device."""
    return [
        {"implementation": name, "backend": backend, **size}
        for size in sizes
        for backend in BACKENDS
        for name in names
        if not name.startswith("torch") or backend in ("cpu", "pycuda")
    ]


def sampler_points(preset: Preset) -> list[Point]:
    """Return our sampler and torch's on each backend's device."""
    points = implementations(sizes_of(preset, "sampler"), OURS, "torch.multinomial", "torch.Categorical")
    shown = [point for point in points if point["backend"] not in ON_CPU or point["n_envs"] <= 100]
    return sorted(shown, key=lambda point: list(BACKENDS).index(point["backend"]))


def reset_points(preset: Preset) -> list[Point]:
    """Return all sizes with the environments' own kernels and with saved arrays."""
    sizes = sizes_of(preset, "reset")
    saved = [{"n_envs": size["n_envs"], "n_agents": size["n_agents"]} for size in sizes]
    return implementations(sizes, OURS) + implementations(saved, "saved arrays")


def return_scan_points(preset: Preset) -> list[Point]:
    """Return rollouts with few and with many rows."""
    return implementations(sizes_of(preset, "return_scan"), OURS, "torch loop", "torch cumsum")


def shuffle_points(preset: Preset) -> list[Point]:
    """Return numbers of indices; NumPy only up to a million."""
    points = implementations(sizes_of(preset, "shuffle"), OURS, "torch.randperm")
    return [point for point in points if point["n_indices"] <= 1_000_000 or point["backend"] != "cpu"]


def record_points(preset: Preset) -> list[Point]:
    """Return the sizes of `reset`, with our kernel only."""
    return implementations(sizes_of(preset, "reset"), OURS)


def launch_points(preset: Preset) -> list[Point]:
    """Return every backend and torch, eagerly and, if supported, in one graph."""
    return [
        {**point, "mode": mode}
        for point in implementations([{}], OURS, "torch")
        for mode in (("eager",) if point["backend"] in ON_CPU else ("eager", "graph"))
    ]


# ------------------------------------------------------------------ set-up


def _kernel(name: str, noun: str, point: Point) -> Timed:
    """Set up a `setups.kernels` kernel, called repeatedly."""
    from .setups import kernels

    return kernels.measured(getattr(kernels, name), point, noun)


sampler = partial(_kernel, "sampler", "draws")
reset, return_scan, shuffle, record, launch = (
    partial(_kernel, name, "launched") for name in ("reset", "return_scan", "shuffle", "record", "launch")
)
