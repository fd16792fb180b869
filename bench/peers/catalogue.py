"""Other software and its points, from catalogue.toml."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from ..core.archive import read_toml
from ..core.point import ORACLE, Point, Preset
from ..core.record import CaseVersion, Comparison, Record
from ..judge.evidence import key, point_key
from ..judge.published.anchors import ANCHORS, Anchor
from ..workloads.points import point_of
from ..workloads.shared import FULLY_OBSERVED_AGENTS
from ..workloads.time_to_solution import solution_point

_FILE: Final = read_toml(Path(__file__).with_suffix(".toml"))
WORKS: Final[Mapping[str, CaseVersion]] = {work: CaseVersion(**of, version=2) for work, of in _FILE["works"].items()}
"""Case of the records of each kind of work."""
RANDOM_SLOTS: Final = 170_000
"""Number of agents at which WarpDrive's random numbers overflow their heap."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """Software of other authors."""

    name: str
    package: str
    """Package to install; `--python` takes its name."""
    adapter: str
    """Adapter module in ``adapters/``, e.g. ``learners.cleanrl``."""
    install: str
    """Installation command."""
    rows: Mapping[str, Any]
    """Rows of points in each preset."""
    variants: Mapping[str, Mapping[str, Any]]
    """Options of the adapter, by variant."""
    is_eager: bool = False
    """True if a Python loop steps it; only its fastest blocks count."""
    is_alone: bool = False
    """True if idle workers may spin; no other pair is set up concurrently."""

    def points(self, preset: Preset) -> list[Point]:
        """Return a preset's points, without the axis `peer`; fewer without a GPU.

        Preset paper has none of peers that are not compared in each set.
        """
        rows = self.rows["rows"]
        if preset in ("smoke", "paper"):
            rows = self.rows.get(preset, [])
        elif not torch.cuda.is_available():
            rows = self.rows.get("on_cpu", rows)
        each = ({"variant": list(self.variants), **row} for row in rows)
        return list(itertools.chain(*((_anchored if "anchors" in row else _product)(**row) for row in each)))


def _product(env: Any, n_envs: Any, n_agents: Any = 1, **more: Any) -> Iterator[Point]:
    """Yield the points of a row: the product of its values."""
    work = {} if "work" in more else {"work": "simulate"}
    axes = {"env": env, "n_envs": n_envs, "n_agents": n_agents, **work, **more}
    lists = [each if isinstance(each, list) else [each] for each in axes.values()]
    return (dict(zip(axes, values, strict=True)) for values in itertools.product(*lists))


def _anchored(anchors: str, backend: str = "", algorithm: str = "", **axes: Any) -> Iterator[Point]:
    """Yield the training points of published rates."""

    def fits(each: Anchor) -> bool:
        runs = each.env_steps_per_s is not None and each.n_envs * each.n_agents < RANDOM_SLOTS
        return runs and (each.by, each.backend) == (anchors, backend) and algorithm in ("", each.algorithm)

    return itertools.chain(*(_product(**{**each.axes, "work": "train", **axes}) for each in filter(fits, ANCHORS)))


@dataclass(frozen=True, slots=True)
class PeerJob:
    """One point of a peer."""

    peer: Peer
    axes: Point

    @property
    def version(self) -> CaseVersion:
        """Case of its records."""
        return WORKS[self.axes["work"]]

    @property
    def case(self) -> str:
        """Name of that case."""
        return self.version.name

    @property
    def point(self) -> Point:
        """Point of its records."""
        return {"peer": self.peer.name, **self.axes}

    @property
    def given(self) -> dict[str, Any]:
        """Arguments of the adapter."""
        seen = {"full_observation": self.axes["n_agents"] <= FULLY_OBSERVED_AGENTS}
        return {**self.axes, **seen, "options": dict(self.peer.variants[self.axes["variant"]])}

    def ours(self, backend: str) -> tuple[str, Point]:
        """Return our case and point of the same work."""
        if self.axes["work"] == "learn":
            env, algorithm, threshold, seed = (self.axes[name] for name in ("env", "algorithm", "threshold", "seed"))
            task = {"env": env, "algorithm": algorithm, "learner": "shared", "threshold": threshold, "seed": seed}
            return "learn", point_of(**task, backend=backend)
        if self.axes["work"] == "solve":
            return "time_to_solution", solution_point(backend, self.axes["caches"], self.axes["threshold"])
        axes = {name: value for name, value in self.axes.items() if name not in ("work", "variant")}
        if self.axes["work"] == "simulate":
            axes["backend"] = backend
            options = self.peer.variants[self.axes["variant"]]
            is_many = options.get("unroll", 0) > 0 or "n_steps" in options
            # With many agents our fused steps skip unread observations; the reference takes single steps.
            if is_many and axes["n_agents"] == 1 and backend != ORACLE:
                return "many_steps", {**axes, "mode": "fused", "kept": "last"}
            return "env_step", {**axes, "exact": False}
        mode = "graph" if backend in ("numba", "pycuda") else "eager"
        return "train", {"precision": "fp32", **axes, "backend": backend, "mode": mode}


PEERS: Final = {
    name: Peer(name=name, rows=_FILE["points"][fields["points"]], **{k: v for k, v in fields.items() if k != "points"})
    for name, fields in _FILE["peers"].items()
}
"""All peers, by name."""


def unfinished(jobs: Iterable[PeerJob], records: Sequence[Record], comparisons: Iterable[Comparison]) -> list[PeerJob]:
    """Return points without a comparison or, if not paired, without a valid record."""
    compared = {each.b for each in comparisons}
    unpaired = [WORKS[work].name for work in ("learn", "repeat")]
    alone = {record.id for record in records if record.case in unpaired and record.is_evidence}
    finished = {key(record) for record in records if record.id in compared | alone}
    return [job for job in jobs if point_key(job.case, job.point) not in finished]
