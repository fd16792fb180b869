"""What others claim and what we set out to reach, each stated once, and which of our records would show it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from bench.cases.learn_case import SEEDS, TASKS, Task
from bench.cases.published import SIZES
from bench.reference import ANCHORS, JAX, WARPDRIVE, Anchor
from bench.verdicts.quantities import Learned, Quantity, Rate, Ratio, Reached, Select, TimesSooner, Traffic


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A figure that somebody published, or that we set out to reach."""

    name: str
    source: str
    says: str
    """The set-up, exactly."""
    low: float
    """What is claimed at least; with ``at_most``, at most."""
    high: float | None = None
    """The upper end of a claimed range."""
    unit: str
    about: bool = False
    """The source says "about"."""
    at_most: bool = False
    hardware: str
    """That of the source."""
    ours: Quantity | None = None
    """What measures it here."""
    differs: str = ""
    """In what ours is not the set-up of the claim."""
    cannot: str = ""
    """Why no figure of ours can decide it."""
    made_by: str = ""
    """Of our own claims the run that made the figure; another one must show it again."""


PAPER: Final = "WarpDrive paper, JMLR 23 (2022) 316"
README: Final = "WarpDrive README"
POST: Final = "WarpDrive v2 post"
TUTORIAL: Final = "WarpDrive tutorial 2"
DOCUMENTS: Final = "WarpDrive documents"
GOALS: Final = "goals of this project"
A100: Final = "A100"
H200: Final = "H200"
A100_AND_N1: Final = "A100 / N1, 16 CPUs"
UNNAMED: Final = "not named"
TIMES: Final = "times"

WARPDRIVE_CODE: Final = "https://github.com/salesforce/warp-drive"
LINKS: Final = {
    PAPER: "https://jmlr.org/papers/v23/22-0185.html",
    README: f"{WARPDRIVE_CODE}/blob/master/README.md",
    POST: "https://blog.salesforceairesearch.com/warpdrive-v2-numba-nvidia-gpu-simulations/",
    TUTORIAL: f"{WARPDRIVE_CODE}/blob/master/tutorials/tutorial-2.a-warp_drive_sampler.ipynb",
    DOCUMENTS: WARPDRIVE_CODE,
    GOALS: "#sources",
}
"""Where each source is to be read; the figures of others that goals are made of are told at the foot of the report."""

BASELINES: Final = (("cpu", "NumPy on 1 thread"), ("host", "C++ on all cores"))
"""Backends on a CPU that a GPU is compared with."""
NO_POLICY: Final = "ours is sample + step + restart without a policy; theirs is training"


def _env_step(env: str, backend: str, n_envs: int, n_agents: int) -> Select:
    return Select(
        case="env_step",
        axes={"env": env, "backend": backend, "n_envs": n_envs, "n_agents": n_agents, "exact": False},
    )


def _published(env: str, backend: str, n_envs: int, n_agents: int, **more: int) -> Select:
    axes = {"env": env, "backend": backend, "n_envs": n_envs, "n_agents": n_agents, **more}
    return Select(case="published", axes=axes)


def _sampler(implementation: str) -> Select:
    axes = {"backend": "pycuda", "n_envs": 100, "n_agents": 110, "n_actions": 21}
    return Select(case="sampler", axes={"implementation": implementation, **axes})


def _learn(env: str, algorithm: str, n_envs: int, precision: str | None = None, **more: Any) -> Select:
    axes = {"env": env, "backend": "pycuda", "algorithm": algorithm, "n_envs": n_envs, "precision": precision, **more}
    return Select(case="learn", axes=axes)


def _train(anchor: Anchor, precision: str) -> Select:
    how = {"backend": "pycuda", "precision": precision, "mode": "graph", "fused": None}
    return Select(case="train", axes={**anchor.axes, **how})


def _scaling(env: str, n_ranks: int) -> Select:
    return Select(case="scaling", axes={"env": env, "backend": "pycuda", "n_ranks": n_ranks})


def _over_cpu(backend: str, threads: str) -> Claim:
    return Claim(
        name=f"Tag 5+100 on a GPU over {threads}",
        source=README,
        says=f"training Tag Continuous, 5 taggers, 100 runners, in 60 environments over a 16-CPU node; here {threads}",
        low=10,
        unit=TIMES,
        about=True,
        hardware=A100_AND_N1,
        ours=Ratio(
            of=_published("tag_continuous", "pycuda", 60, 105, n_taggers=5),
            over=_published("tag_continuous", backend, 60, 105, n_taggers=5),
        ),
        differs=NO_POLICY,
    )


def _over_any_cpu(threads: str, of: Select, over: Select, differs: str = "") -> Claim:
    return Claim(
        name=f"{of.axes['env']}: a GPU over {threads}",
        source=PAPER,
        says=f"Tag in 2,000 environments of 1,000 agents over a CPU implementation; here {threads}",
        low=100,
        unit=TIMES,
        hardware=A100_AND_N1,
        ours=Ratio(of=of, over=over),
        differs=differs,
    )


def _languages(env: str, n_envs: int, n_agents: int) -> Claim:
    return Claim(
        name=f"{env}: CUDA C over Numba, {n_envs:,} x {n_agents:,}",
        source=POST,
        says='CUDA C over Numba "at very large scale"',
        low=1.5,
        high=3,
        unit=TIMES,
        hardware=UNNAMED,
        ours=Ratio(of=_env_step(env, "pycuda", n_envs, n_agents), over=_env_step(env, "numba", n_envs, n_agents)),
        differs="ours is sample + step + restart",
    )


def _no_transfer(env: str, n_envs: int, n_agents: int) -> Claim:
    return Claim(
        name=f"{env}: nothing goes over PCIe",
        source=PAPER,
        says="no data is copied between CPU and GPU in the loop: less than a hundredth of one action of 4 bytes",
        low=0.04,
        at_most=True,
        unit="bytes/agent-step",
        hardware=A100,
        ours=Traffic(select=_env_step(env, "pycuda", n_envs, n_agents)),
        differs=f"{n_envs:,} x {n_agents:,} agents; other traffic of the GPU is counted too",
    )


# ------------------------------------------------------------------ of training

SCALED: Final = ("tag_gridworld", "tag_continuous")
"""Environments that `scaling` has."""
TRANSITIONS: Final = (("cartpole", 100_000, 6), ("tag_continuous", 2_000, 74), ("tag_gridworld", 2_000, 23))
"""Points of `train`, and how many numbers of 4 bytes an agent's observation, action and reward are."""


def _no_transfer_in_training(env: str, n_envs: int, n_floats: int) -> Claim:
    (anchor,) = (each for each in BY_WARPDRIVE if (each.env, each.n_envs) == (env, n_envs) and each.env_steps_per_s)
    return Claim(
        name=f"{env}: training sends nothing over PCIe",
        source=PAPER,
        says="no data is copied between CPU and GPU in the loop: less than a hundredth of one agent's observation, "
        f"action and reward, which are {n_floats} numbers of 4 bytes",
        low=n_floats * 4 / 100,
        at_most=True,
        unit="bytes/agent-step",
        hardware=A100,
        ours=Traffic(select=_train(anchor, "fp32")),
        differs=f"{_size(anchor)}, fp32; launches and other traffic of the GPU are counted too",
    )


def _sooner(env: str, algorithm: str, n_envs: int, in_seconds: bool) -> Claim:
    def learned(n: int) -> Learned:
        metric, per = ("seconds_to_threshold", 1) if in_seconds else ("env_steps_to_threshold", n)
        return Learned(select=_learn(env, algorithm, n), metric=metric, per=per, n_seeds=len(SEEDS))

    few = next(task for task in TASKS if (task.env, task.algorithm) == (env, algorithm)).n_envs
    what = "less time" if in_seconds else "fewer iterations"
    return Claim(
        name=f"{env}, {algorithm}: {n_envs:,} environments take {what} than {few}",
        source=DOCUMENTS,
        says="return over 3,000 iterations with 10 to 10,000 environments: more reach a return sooner",
        low=1,
        unit="times",
        hardware=UNNAMED,
        ours=TimesSooner(of=learned(n_envs), than=learned(few)),
        differs=f"to a threshold, with the hyper-parameters of {few} environments; theirs is read off curves",
    )


def _linear(env: str, n_gpus: int, low: float, says: str) -> Claim:
    return Claim(
        name=f"{env}: training on {n_gpus} GPUs",
        source=DOCUMENTS,
        says=says,
        low=low,
        unit="of linear",
        hardware=UNNAMED,
        ours=Ratio(of=_scaling(env, n_gpus), over=_scaling(env, 1), per=n_gpus),
        differs="as many environments on each GPU as on one",
    )


# ------------------------------------------------------------------ goals

BY_WARPDRIVE: Final = tuple(each for each in ANCHORS if each.by == WARPDRIVE)
BY_JAX: Final = tuple(each for each in ANCHORS if each.by == JAX)
TENFOLD: Final = 10
MEDIANS: Final = "theirs is the median of 5 repeats in another run on an H200, and taken without an interval"
MENDED: Final = "as shipped theirs crashes here, so its random numbers got a larger heap and all environments one reset"
TF32: Final = (
    "which multiplies in TF32, as JAX does unless told otherwise: a product of 4096x64 and 64x64 is off by 2.9e-4 of "
    'its size, and by 1.4e-7 with precision "highest"'
)

STEPPED: Final = (
    ("cartpole", 100, 1, 0.376e6),
    ("cartpole", 1_000, 1, 3.82e6),
    ("cartpole", 10_000, 1, 41.2e6),
    ("cartpole", 100_000, 1, 318e6),
    ("acrobot", 10_000, 1, 38.9e6),
    ("pendulum", 10_000, 1, 39.0e6),
    ("tag_gridworld", 2_000, 5, 18.8e6),
    ("tag_gridworld", 1_000, 100, 5.03e6),
    ("tag_continuous", 60, 105, 0.143e6),
    ("tag_continuous", 100, 110, 0.259e6),
    ("tag_continuous", 2_000, 110, 1.53e6),
)
"""WarpDrive without a policy on one H200: env, environments, agents, env-steps/s of its faster backend."""

JAX_LEARNED: Final = ((2_048, 0.225), (16_384, 0.56), (65_536, 1.85))
"""Environments of PureJaxRL's PPO on CartPole, 128 steps between updates, and when its mean return is 475, s."""


def _tenfold_steps(env: str, n_envs: int, n_agents: int, theirs: float) -> Claim:
    size = {"env": env, "n_envs": n_envs, "n_agents": n_agents}
    published = next((each for each in SIZES if size.items() <= each.items()), None)
    select = (
        Select(case="published", axes={"backend": "pycuda", **published})
        if published
        else _env_step(env, "pycuda", n_envs, n_agents)
    )
    return Claim(
        name=f"{env}: steps over WarpDrive's, {n_envs:,} x {n_agents}",
        source=GOALS,
        says="sample + step + restart without a policy over the same of the faster backend of theirs; "
        + _how_theirs(env, n_envs),
        low=TENFOLD,
        unit=TIMES,
        hardware=H200,
        ours=Rate(select=select, per=theirs),
    )


def _precisions(anchor: Anchor) -> tuple[str, ...]:
    """Return in which precisions a point is held against WarpDrive, which multiplies in fp32.

    Of several agents lower precisions stand beside it, each by itself.
    """
    return ("fp32", "tf32", "bf16") if anchor.n_agents > 1 and anchor.env_steps_per_s else ("fp32",)


def _tenfold(anchor: Anchor, precision: str) -> Claim:
    theirs = anchor.env_steps_per_s
    return Claim(
        name=f"{anchor.env}: training over WarpDrive's, {_size(anchor)}, {precision}",
        source=GOALS,
        says=f"{_learner(anchor)} over the same of the faster backend of theirs, in fp32; "
        + _how_theirs(anchor.env, anchor.n_envs),
        low=TENFOLD,
        unit=TIMES,
        hardware=H200,
        ours=Rate(select=_train(anchor, precision), per=theirs) if theirs else None,
        differs="" if precision == "fp32" else f"ours multiplies in {precision}, theirs in fp32",
        cannot="" if theirs else "WarpDrive does not launch at this size; `train` has ours, in tf32 and bf16",
    )


def _as_jax(anchor: Anchor, precision: str) -> Claim:
    assert anchor.env_steps_per_s is not None, "JAX runs at all of its sizes"
    like_a2c = ", there PPO of one epoch and one minibatch," if anchor.algorithm == "A2C" else ""
    return Claim(
        name=f"{anchor.env}: {anchor.algorithm} over {JAX}'s, {_size(anchor)}, {precision}",
        source=GOALS,
        says=f"{_learner(anchor)}{like_a2c} over the same of {JAX}, {TF32}; {MEDIANS}",
        low=1,
        unit=TIMES,
        hardware=H200,
        ours=Rate(select=_train(anchor, precision), per=anchor.env_steps_per_s),
        differs=_beside_jax(precision),
    )


def _as_soon_as_jax(n_envs: int, theirs: float, precision: str) -> Claim:
    return Claim(
        name=f"cartpole: PPO learns sooner than {JAX}'s, {n_envs:,} x 128, {precision}",
        source=GOALS,
        says=f"training to a mean return of 475 of 500, without compiling, over {len(SEEDS)} seeds; "
        f"theirs is one run, {TF32}",
        low=theirs,
        at_most=True,
        unit="s",
        hardware=H200,
        ours=Learned(
            select=_learn("cartpole", "PPO", n_envs, None if precision == "fp32" else precision), n_seeds=len(SEEDS)
        ),
        differs=_beside_jax(precision),
    )


def _all_seeds(task: Task) -> Claim:
    who = "" if task.learner == "shared" else f" ({task.learner})"
    return Claim(
        name=f"{task.env}{who}: {task.algorithm} learns from every seed",
        source=GOALS,
        says=f"a mean return of {task.threshold:g} in {task.n_envs:,} environments, fp32, of the policy as it explores",
        low=len(SEEDS),
        unit=f"of {len(SEEDS)} seeds",
        hardware=H200,
        ours=Reached(
            select=_learn(task.env, task.algorithm, task.n_envs, learner=task.learner, threshold=task.threshold),
            n_seeds=len(SEEDS),
        ),
    )


def _how_theirs(env: str, n_envs: int) -> str:
    """Say how WarpDrive was measured."""
    return f"{MEDIANS}; {MENDED}" if (env, n_envs) == ("tag_continuous", 2_000) else MEDIANS


def _size(anchor: Anchor) -> str:
    return f"{anchor.n_envs:,} x {anchor.n_agents:,}, {anchor.n_steps} steps"


def _learner(anchor: Anchor) -> str:
    return f"{anchor.algorithm} with networks {anchor.network}"


def _beside_jax(precision: str) -> str:
    return "ours multiplies in fp32, JAX in TF32" if precision == "fp32" else "both multiply in TF32"


CLAIMS: Final = (
    Claim(
        name="Tag, 2,000 x 1,000",
        source=PAPER,
        says="a Tag of 1,000 agents in 2,000 environments whose work grows linearly with the agents",
        low=2.9e6,
        unit="env_steps/s",
        hardware=A100,
        ours=Rate(select=_published("tag_continuous", "pycuda", 2_000, 1_000, n_taggers=100)),
        cannot="ours, shown for its scale, looks for the 10 nearest agents, which is another environment",
    ),
    Claim(
        name="Tag GridWorld, 2,000 x 1,000",
        source=PAPER,
        says="a Tag of 1,000 agents in 2,000 environments whose work grows linearly with the agents",
        low=2.9e6,
        unit="env_steps/s",
        hardware=A100,
        ours=Rate(select=_published("tag_gridworld", "pycuda", 2_000, 1_000)),
        differs="999 taggers and a runner; each agent observes the runner and itself",
    ),
    *(
        _over_any_cpu(
            threads,
            of=_env_step("tag_continuous", "pycuda", 100, 110),
            over=_env_step("tag_continuous", backend, 100, 110),
            differs="100 environments of 110 agents that look for the 10 nearest",
        )
        for backend, threads in BASELINES
    ),
    *(
        _over_any_cpu(
            threads,
            of=_published("tag_gridworld", "pycuda", 2_000, 1_000),
            over=_published("tag_gridworld", backend, 2_000, 1_000),
        )
        for backend, threads in BASELINES
    ),
    Claim(
        name="Tag GridWorld scales linearly with environments",
        source=PAPER,
        says="discrete Tag of 5 agents, nearly perfect parallelism over thousands of environments",
        low=0.9,
        unit="of linear",
        hardware=A100,
        ours=Ratio(
            of=_env_step("tag_gridworld", "pycuda", 2_000, 5), over=_env_step("tag_gridworld", "pycuda", 100, 5), per=20
        ),
        differs='2,000 environments against 100; "nearly" is read as nine tenths',
    ),
    *(_over_cpu(backend, threads) for backend, threads in BASELINES),
    Claim(
        name="Tag runs at millions of steps a second",
        source=README,
        says="Tag Continuous on one GPU",
        low=1e6,
        unit="env_steps/s",
        hardware=A100,
        ours=Rate(select=_env_step("tag_continuous", "pycuda", 2_000, 110)),
        differs="110 agents in 2,000 environments",
    ),
    Claim(
        name="COVID-19 economy in 60 environments",
        source=POST,
        says="60 environments, a GPU over 16 CPUs",
        low=24,
        unit=TIMES,
        hardware=A100_AND_N1,
        cannot="the suite has no economy",
    ),
    _languages("tag_continuous", 2_000, 110),
    _languages("tag_gridworld", 2_000, 5),
    _languages("cartpole", 1_000_000, 1),
    Claim(
        name="sampler over torch's",
        source=POST,
        says="the action sampler over PyTorch's",
        low=3,
        unit=TIMES,
        about=True,
        hardware=UNNAMED,
        ours=Ratio(of=_sampler("ours"), over=_sampler("torch.multinomial"), metric="samples_per_s"),
        differs="torch.multinomial in a CUDA graph, 11,000 agents with 21 actions",
    ),
    Claim(
        name="sampler over torch's Categorical",
        source=TUTORIAL,
        says="the action sampler over torch.distributions.Categorical",
        low=7,
        unit=TIMES,
        hardware=UNNAMED,
        ours=Ratio(of=_sampler("ours"), over=_sampler("torch.Categorical"), metric="samples_per_s"),
        differs="Categorical eagerly, for it cannot be captured; 11,000 agents with 21 actions",
    ),
    *(
        _sooner("cartpole", algorithm, n_envs, in_seconds)
        for algorithm in ("A2C", "PPO")
        for n_envs in (2_048, 16_384)
        for in_seconds in (True, False)
    ),
    *(_sooner("acrobot", "PPO", 2_048, in_seconds) for in_seconds in (True, False)),
    Claim(
        name="tag_gridworld: training on 1 GPU",
        source=DOCUMENTS,
        says="Tag GridWorld on 1 GPU, read off a chart",
        low=1.38e6,
        unit="env_steps/s",
        hardware=UNNAMED,
        ours=Rate(select=_train(next(each for each in ANCHORS if each.env == "tag_gridworld"), "fp32")),
        differs="5 agents in 2,000 environments",
    ),
    *(
        _linear(
            "tag_gridworld",
            n_gpus,
            0.93,
            f"Tag GridWorld on {n_gpus} GPUs: {rate} M steps/s over 1.38 M on one, read off a chart",
        )
        for n_gpus, rate in ((2, 2.57), (4, 5.12))
    ),
    *(_linear(env, 8, 0.9, "nearly linear on 2 to 16 GPUs; read as nine tenths") for env in SCALED),
    _no_transfer("cartpole", 1_000_000, 1),
    _no_transfer("tag_continuous", 2_000, 110),
    *(_no_transfer_in_training(env, n_envs, n_floats) for env, n_envs, n_floats in TRANSITIONS),
    *(_tenfold_steps(*row) for row in STEPPED),
    *(_tenfold(anchor, precision) for anchor in BY_WARPDRIVE for precision in _precisions(anchor)),
    *(_as_jax(anchor, precision) for anchor in BY_JAX for precision in ("fp32", "tf32")),
    *(_as_soon_as_jax(*row, precision) for row in JAX_LEARNED for precision in ("fp32", "tf32")),
    *(_all_seeds(task) for task in TASKS),
)
"""WarpDrive's claims about speed, then what we set out to reach."""
