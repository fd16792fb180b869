"""Every benchmark of the project, each stated once. Whatever measures, gates or plots reads `CASES`."""

from __future__ import annotations

from typing import Final

from bench.case import Case
from bench.cases.env_case import env_step, env_step_points, graph_points, neighbor_search_points, step, step_points
from bench.cases.kernels.launches import launch, launch_points
from bench.cases.kernels.records import record, record_points
from bench.cases.kernels.resets import reset, reset_points
from bench.cases.kernels.returns import return_scan, scan_points
from bench.cases.kernels.shuffles import shuffle, shuffle_points
from bench.cases.learn_case import learn, learn_points
from bench.cases.memory_case import memory, memory_points
from bench.cases.published import published_points
from bench.cases.rollout_case import rollout, rollout_points
from bench.cases.sampler_case import sampler, sampler_points
from bench.cases.scaling_case import scaling, scaling_points
from bench.cases.startup_case import startup, startup_points
from bench.cases.train_case import train, train_points
from bench.measure import ColdStart, Once, Ranks, Timed

CASES: Final[dict[str, Case]] = {
    case.name: case
    for case in (
        Case(
            name="env_step",
            title="sample random actions, step every environment, restart those that ended",
            scope="env",
            version=1,
            workload=Timed,
            points=env_step_points,
            setup=env_step,
        ),
        Case(
            name="graph",
            title="env_step with every launch by itself, and all of many steps in one graph",
            scope="env",
            version=1,
            workload=Timed,
            points=graph_points,
            setup=env_step,
        ),
        Case(
            name="neighbor_search",
            title="step Tag Continuous, looking for neighbours among all pairs of agents or in a grid of cells",
            scope="env",
            version=1,
            workload=Timed,
            points=neighbor_search_points,
            setup=env_step,
        ),
        Case(
            name="published",
            title="env_step at sizes that others were measured at",
            scope="env",
            version=1,
            workload=Timed,
            points=published_points,
            setup=env_step,
        ),
        Case(
            name="sampler",
            title="draw an action for every agent: ours against torch.multinomial and Categorical",
            scope="kernel",
            version=1,
            workload=Timed,
            points=sampler_points,
            setup=sampler,
        ),
        Case(
            name="step",
            title="step every environment and restart those that ended, with actions that stay",
            scope="kernel",
            version=1,
            workload=Timed,
            points=step_points,
            setup=step,
        ),
        Case(
            name="reset",
            title="restart every environment: by its own kernel, or by copying saved arrays",
            scope="kernel",
            version=1,
            workload=Timed,
            points=reset_points,
            setup=reset,
        ),
        Case(
            name="return_scan",
            title="sum up discounted rewards: our kernel against a loop and a cumulative sum of torch",
            scope="kernel",
            version=1,
            workload=Timed,
            points=scan_points,
            setup=return_scan,
        ),
        Case(
            name="shuffle",
            title="draw a permutation: ours against torch.randperm",
            scope="kernel",
            version=1,
            workload=Timed,
            points=shuffle_points,
            setup=shuffle,
        ),
        Case(
            name="record",
            title="keep a step of a rollout and sum over its episodes",
            scope="kernel",
            version=1,
            workload=Timed,
            points=record_points,
            setup=record,
        ),
        Case(
            name="launch",
            title="launch next to nothing, one by one and in a graph: ours against torch",
            scope="kernel",
            version=1,
            workload=Timed,
            points=launch_points,
            setup=launch,
        ),
        Case(
            name="rollout",
            title="let the policies play and keep what could be learned from",
            scope="rollout",
            version=1,
            workload=Timed,
            points=rollout_points,
            setup=rollout,
        ),
        Case(
            name="train",
            title="play a rollout of the policies and learn from it",
            scope="train",
            version=1,
            workload=Timed,
            points=train_points,
            setup=train,
        ),
        Case(
            name="scaling",
            title="train in several ranks of one host, with as many environments in each",
            scope="train",
            version=1,
            workload=Ranks,
            points=scaling_points,
            setup=scaling,
        ),
        Case(
            name="learn",
            title="train from a seed until the mean return reaches a threshold",
            scope="learn",
            version=1,
            workload=Once,
            points=learn_points,
            setup=learn,
        ),
        Case(
            name="startup",
            title="from a fresh process to the first step, or to a trainer that has learned and is captured",
            scope="startup",
            version=1,
            workload=ColdStart,
            points=startup_points,
            setup=startup,
        ),
        Case(
            name="memory",
            title="what an environment needs of memory, and how many fit",
            scope="memory",
            version=1,
            workload=Once,
            points=memory_points,
            setup=memory,
        ),
    )
}
"""All benchmarks, by name."""
