"""Kernels: `sampler`, `reset`, `return_scan`, `shuffle`, `record`, `launch`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from warpdrive_min import BACKENDS

from ..core.measure import Timed
from ..core.point import ON_CPU, Point, Preset
from .shared import OURS, has_gpu_sizes

# ------------------------------------------------------------------ points

Row = tuple[Any, ...]
"""One value for each axis of sizes."""


def sizes_of(
    preset: Preset, axes: tuple[str, ...], smoke: Row, usual: Sequence[Row], large: Sequence[Row] = ()
) -> list[dict[str, Any]]:
    """Return one size in preset smoke, else usual and large ones."""
    rows = [*([smoke] if preset == "smoke" else usual), *(large if has_gpu_sizes(preset) else ())]
    return [dict(zip(axes, row, strict=True)) for row in rows]


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
    axes = ("n_envs", "n_agents", "n_actions")
    sizes = sizes_of(preset, axes, (8, 1, 2), [(100, 110, 21), (10_000, 1, 2), (2_000, 1_000, 10)])
    points = implementations(sizes, OURS, "torch.multinomial", "torch.Categorical")
    shown = [point for point in points if point["backend"] not in ON_CPU or point["n_envs"] <= 100]
    return sorted(shown, key=lambda point: list(BACKENDS).index(point["backend"]))


def reset_sizes(preset: Preset) -> list[dict[str, Any]]:
    """Return sizes of CartPole and Tag Continuous."""
    usual = [("cartpole", 10_000, 1), ("tag_continuous", 100, 110)]
    large = [("cartpole", 1_000_000, 1), ("tag_continuous", 2_000, 110)]
    return sizes_of(preset, ("env", "n_envs", "n_agents"), ("cartpole", 64, 1), usual, large)


def reset_points(preset: Preset) -> list[Point]:
    """Return all sizes with the environments' own kernels and with saved arrays."""
    sizes = reset_sizes(preset)
    saved = [{"n_envs": size["n_envs"], "n_agents": size["n_agents"]} for size in sizes]
    return implementations(sizes, OURS) + implementations(saved, "saved arrays")


def return_scan_points(preset: Preset) -> list[Point]:
    """Return rollouts with few and with many rows."""
    usual, large = [(100, 100, 1), (100, 100, 110)], [(100, 10_000, 1), (50, 2_000, 110)]
    return implementations(
        sizes_of(preset, ("n_steps", "n_envs", "n_agents"), (8, 16, 1), usual, large),
        OURS,
        "torch loop",
        "torch cumsum",
    )


def shuffle_points(preset: Preset) -> list[Point]:
    """Return numbers of indices; NumPy only up to a million."""
    large = 10_000_000
    sizes = sizes_of(preset, ("n_indices",), (1_000,), [(10_000,), (1_000_000,)], [(large,)])
    points = implementations(sizes, OURS, "torch.randperm")
    return [point for point in points if point["n_indices"] < large or point["backend"] != "cpu"]


def record_points(preset: Preset) -> list[Point]:
    """Return the sizes of `reset`, with our kernel only."""
    return implementations(reset_sizes(preset), OURS)


def launch_points(preset: Preset) -> list[Point]:
    """Return every backend and torch, eagerly and, if supported, in one graph."""
    return [
        {**point, "mode": mode}
        for point in implementations([{}], OURS, "torch")
        for mode in (("eager",) if point["backend"] in ON_CPU else ("eager", "graph"))
    ]


# ------------------------------------------------------------------ set-up


def _setup_of(name: str, noun: str = "launched") -> Callable[[Point], Timed]:
    """Return the set-up of a `setups.kernels` kernel, called repeatedly."""

    def setup(point: Point) -> Timed:
        from .setups import kernels

        return kernels.measured(getattr(kernels, name), point, noun)

    return setup


sampler = _setup_of("sampler", "draws")
reset, return_scan, shuffle, record, launch = map(_setup_of, ("reset", "return_scan", "shuffle", "record", "launch"))
