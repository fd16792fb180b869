"""Who is measured beside ours, and on which points."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from ..anchors import ANCHORS, JAX, SEPARATE, WARPDRIVE
from ..case import Point, Preset
from ..workloads.shared import FULLY_OBSERVED_AGENTS


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """Other people's software, in one way of running it."""

    name: str
    package: str
    """Package to install; its interpreter is given by this name."""
    adapter: str
    """File in ``theirs/``."""
    install: str
    """The line that installs it."""
    points: Callable[[Preset], list[Point]]
    """Returns the points of a preset, without the axis `peer`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the adapter beside the point."""


@dataclass(frozen=True, slots=True)
class PeerJob:
    """One point of a peer."""

    peer: Peer
    axes: Point

    @property
    def point(self) -> Point:
        """The point as records have it."""
        return {"peer": self.peer.name, **self.axes}

    @property
    def given(self) -> dict[str, Any]:
        """Arguments of the adapter."""
        seen = {"full_observation": self.axes["n_agents"] <= FULLY_OBSERVED_AGENTS}
        return {**self.axes, **seen, "options": dict(self.peer.options)}

    def ours(self, backend: str) -> tuple[str, dict[str, Any]]:
        """Return the name of our case and its point that do the same work."""
        axes = {name: value for name, value in self.axes.items() if name != "work"}
        if self.axes["work"] == "simulate":
            return "env_step", {**axes, "backend": backend, "exact": False}
        mode = "graph" if backend in ("numba", "pycuda") else "eager"
        return "train", {"precision": "fp32", **axes, "backend": backend, "mode": mode}


def _simulate(env: str, n_envs: int, n_agents: int = 1, **more: int) -> Point:
    return {"env": env, "n_envs": n_envs, "n_agents": n_agents, "work": "simulate", **more}


SINGLE: Final = ("cartpole", "acrobot", "pendulum", "mountain_car")
SMOKE_ENVS: Final = 4
ON_CPU_ENVS: Final = (64, 1_024, 16_384)
ON_GPU_ENVS: Final = (10_000, 100_000, 1_000_000)


def on_a_cpu(preset: Preset) -> list[Point]:
    """Return CartPole in sizes that Python objects can be stepped in, and the others in the middle one."""
    if preset == "smoke":
        return [_simulate("cartpole", SMOKE_ENVS)]
    return [_simulate("cartpole", n) for n in ON_CPU_ENVS] + [_simulate(env, ON_CPU_ENVS[1]) for env in SINGLE[1:]]


def cartpole_alone(preset: Preset) -> list[Point]:
    """Return the points of CartPole among `on_a_cpu`."""
    return [point for point in on_a_cpu(preset) if point["env"] == "cartpole"]


def compiled(preset: Preset) -> list[Point]:
    """Return CartPole over environments and the others at the smallest and the largest size; fewer on a CPU."""
    if preset == "smoke":
        return [_simulate("cartpole", SMOKE_ENVS)]
    sizes = ON_GPU_ENVS if torch.cuda.is_available() else ON_CPU_ENVS
    ends = (sizes[0], sizes[-1])
    return [_simulate("cartpole", n) for n in sizes] + [_simulate(env, n) for env in SINGLE[1:] for n in ends]


def jax_training(preset: Preset) -> list[Point]:
    """Return CartPole in the sizes of our anchors, in TF32: so JAX multiplies on a GPU unless told otherwise.

    PPO also in float32, which JAX is told to keep to.
    """
    if preset == "smoke":
        return [{**_train("cartpole", SMOKE_ENVS, 1, 8, "PPO", SEPARATE), "precision": "fp32"}]
    points = _anchors(JAX)
    in_full: list[Point] = [{**point, "precision": "fp32"} for point in points if point["algorithm"] == "PPO"]
    return [{**point, "precision": "tf32"} for point in points] + in_full


def warp_drive(backend: str) -> Callable[[Preset], list[Point]]:
    """Return the points of one of its backends: those that it runs as shipped on an H200."""
    single = [("cartpole", n) for n in (100, 1_000, 10_000, 100_000)] + [("acrobot", 10_000), ("pendulum", 10_000)]
    tags = [
        _simulate("tag_gridworld", 2_000, 5),
        _simulate("tag_gridworld", 1_000, 100),
        _simulate("tag_continuous", 60, 105, n_taggers=5),
        _simulate("tag_continuous", 100, 110, n_taggers=10),
    ]

    def points(preset: Preset) -> list[Point]:
        if preset == "smoke":
            return [
                _simulate("tag_gridworld", SMOKE_ENVS, 5),
                _train("tag_gridworld", SMOKE_ENVS, 5, 8, "A2C", "32-32"),
            ]
        stepped = tags if backend == "pycuda" else [_simulate(env, n) for env, n in single] + tags
        return stepped + _anchors(WARPDRIVE, backend)

    return points


RANDOM_SLOTS: Final = 170_000
"""Agents in all environments from which WarpDrive's random numbers overflow their heap."""


def _anchors(by: str, backend: str = "") -> list[Point]:
    """Return the points of training that somebody's backend was measured on and runs as shipped."""
    return [
        {**each.axes, "work": "train"}
        for each in ANCHORS
        if (each.by, each.backend) == (by, backend)
        and each.env_steps_per_s is not None
        and each.n_envs * each.n_agents < RANDOM_SLOTS
    ]


def _train(env: str, n_envs: int, n_agents: int, n_steps: int, algorithm: str, network: str) -> Point:
    return {
        "env": env,
        "n_envs": n_envs,
        "n_agents": n_agents,
        "n_steps": n_steps,
        "algorithm": algorithm,
        "network": network,
        "work": "train",
    }


PEERS: Final = {
    peer.name: peer
    for peer in (
        Peer(
            name="gymnasium-sync",
            package="gymnasium",
            adapter="gymnasium",
            install="pip install gymnasium",
            points=on_a_cpu,
            options={"vectorization_mode": "sync"},
        ),
        Peer(
            name="gymnasium-vectorised",
            package="gymnasium",
            adapter="gymnasium",
            install="pip install gymnasium",
            points=cartpole_alone,
            options={"vectorization_mode": "vector_entry_point"},
        ),
        Peer(name="envpool", package="envpool", adapter="envpool", install="pip install envpool", points=on_a_cpu),
        Peer(
            name="gymnax",
            package="gymnax",
            adapter="gymnax",
            install='pip install gymnax six "jax[cuda13]"',
            points=compiled,
        ),
        Peer(
            name="purejaxrl",
            package="purejaxrl",
            adapter="purejaxrl",
            install="it is no package: put its repository (luchris429/purejaxrl) on PYTHONPATH, and "
            'pip install "gymnax<1" brax distrax optax flax "jax[cuda13]"',
            points=jax_training,
        ),
        *(
            Peer(
                name=f"rl-warp-drive-{backend}",
                package="rl-warp-drive",
                adapter="warp_drive",
                install=f"pip install --no-deps rl-warp-drive; pip install gymnasium pyyaml torch {extra}",
                points=warp_drive(backend),
                options={"env_backend": backend},
            )
            for backend, extra in (("numba", '"numba-cuda[cu13]"'), ("pycuda", "pycuda"))
        ),
    )
}
"""All peers, by name."""
