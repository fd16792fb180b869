"""What others claim, each claim stated once, and which of our records would show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from bench.record import Metric, Record
from bench.stats import median, median_interval

# ------------------------------------------------------------------ how a claim is measured


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What records show, with its interval at 95 %; that of a ratio spans both records' intervals."""

    value: float
    low: float
    high: float
    records: tuple[Record, ...]

    @property
    def on(self) -> str:
        """The hardware that did the work, and on a CPU its threads."""
        return " / ".join(dict.fromkeys(map(worker, self.records)))

    @property
    def run_id(self) -> str:
        """The sweep that it comes from; all of it comes from one."""
        return self.records[0].run_id


def worker(record: Record) -> str:
    """Name the hardware that did the work of a record."""
    if record.threads is None:
        return str(record.machine.get("gpu"))
    threads = f"{record.threads} thread{'s' if record.threads > 1 else ''}"
    return f"{record.point.get('backend')}, {threads} of {record.machine.get('cpu')}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Select:
    """The records of a case whose points have these values."""

    case: str
    axes: Mapping[str, Any]

    def fits(self, record: Record) -> bool:
        """Whether it is one of them."""
        return record.case == self.case and self.axes.items() <= record.point.items()

    def by_run(self, records: Sequence[Record]) -> dict[str, list[Record]]:
        """Return them by run, those of the newest run first and in it the newest record first."""
        runs: dict[str, list[Record]] = {}
        for record in sorted(filter(self.fits, records), key=lambda record: record.started_at, reverse=True):
            runs.setdefault(record.run_id, []).append(record)
        return runs


class Quantity(Protocol):
    """Something that records show."""

    @property
    def selects(self) -> tuple[Select, ...]:
        """The records that it needs."""
        ...

    @property
    def is_ratio(self) -> bool:
        """Whether it compares on one machine, so that a claim is decided on another machine than its own."""
        ...

    def measure(self, records: Sequence[Record]) -> Measured | None:
        """Return what the newest fitting run shows; None: there is none."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """One metric of one point."""

    select: Select
    metric: str = "env_steps_per_s"
    is_ratio: bool = False

    @property
    def selects(self) -> tuple[Select, ...]:
        """The records that it needs."""
        return (self.select,)

    def measure(self, records: Sequence[Record]) -> Measured | None:
        """Return what the newest fitting record shows."""
        for found in self.select.by_run(records).values():
            for record in found:
                if metric := _metric(record, self.metric):
                    return Measured(value=metric.value, low=metric.low, high=metric.high, records=(record,))
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """A metric of one point over that of another one in the same run."""

    of: Select
    over: Select
    metric: str = "env_steps_per_s"
    per: float = 1.0
    """What the ratio is divided by: so many times as much was put in."""
    is_ratio: bool = True

    @property
    def selects(self) -> tuple[Select, ...]:
        """The records that it needs."""
        return (self.of, self.over)

    def measure(self, records: Sequence[Record]) -> Measured | None:
        """Return what the newest run with both points shows."""
        bases = self.over.by_run(records)
        for run_id, (record, *_) in self.of.by_run(records).items():
            base = bases.get(run_id, [None])[0]
            above = _metric(record, self.metric)
            below = base and _metric(base, self.metric)
            if base and above and below:
                return Measured(
                    value=above.value / below.value / self.per,
                    low=above.low / below.high / self.per,
                    high=above.high / below.low / self.per,
                    records=(record, base),
                )
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Learned:
    """Time to the threshold of a `learn` point: the median over its seeds."""

    select: Select
    is_ratio: bool = False

    @property
    def selects(self) -> tuple[Select, ...]:
        """The records that it needs."""
        return (self.select,)

    def measure(self, records: Sequence[Record]) -> Measured | None:
        """Return what the newest run shows in which most seeds reached the threshold; s."""
        for seeds in self.select.by_run(records).values():
            found = [metric.value for record in seeds if (metric := _metric(record, "seconds_to_threshold"))]
            if 2 * len(found) <= len(seeds):
                continue
            # A seed that did not reach it took longer than all others.
            times = [*found, *[max(found)] * (len(seeds) - len(found))]
            low, high = median_interval(times)
            return Measured(value=median(times), low=low, high=high, records=tuple(seeds))
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class TimesSooner:
    """How many times sooner one `learn` point reaches its threshold than another one."""

    of: Select
    than: Select
    is_ratio: bool = True

    @property
    def selects(self) -> tuple[Select, ...]:
        """The records that it needs."""
        return (self.of, self.than)

    def measure(self, records: Sequence[Record]) -> Measured | None:
        """Return what the newest run with both points shows."""
        for run_id in self.of.by_run(records):
            run = [record for record in records if record.run_id == run_id]
            fast, slow = Learned(select=self.of).measure(run), Learned(select=self.than).measure(run)
            if fast and slow:
                return Measured(
                    value=slow.value / fast.value,
                    low=slow.low / fast.high,
                    high=slow.high / fast.low,
                    records=(*fast.records, *slow.records),
                )
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """Bytes over PCIe in both directions for each agent-step, as the GPU counted them while the point was repeated."""

    select: Select
    is_ratio: bool = True

    @property
    def selects(self) -> tuple[Select, ...]:
        """The records that it needs."""
        return (self.select,)

    def measure(self, records: Sequence[Record]) -> Measured | None:
        """Return what the newest fitting record with telemetry shows."""
        for found in self.select.by_run(records).values():
            for record in found:
                gpm = (record.telemetry or {}).get("gpm") or {}
                received, sent = gpm.get("pcie_received_mib_per_s"), gpm.get("pcie_sent_mib_per_s")
                steps = _metric(record, "agent_steps_per_s")
                if steps and received is not None and sent is not None:
                    each = (received + sent) * 2**20 / steps.value
                    return Measured(value=each, low=each, high=each, records=(record,))
        return None


def _metric(record: Record, name: str) -> Metric | None:
    return (record.metrics or {}).get(name)


# ------------------------------------------------------------------ what is claimed


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A figure that somebody published."""

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
A100: Final = "A100"
A100_AND_N1: Final = "A100 / N1, 16 CPUs"
UNNAMED: Final = "not named"
TIMES: Final = "times"

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


def _learn(env: str, n_envs: int) -> Select:
    axes = {"env": env, "backend": "pycuda", "algorithm": "PPO", "n_envs": n_envs}
    return Select(case="learn", axes=axes)


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
        Claim(
            name=f"{env} learns sooner in more environments",
            source=DOCUMENTS,
            says="return over 3,000 iterations with 10 to 10,000 environments: more reach a return sooner",
            low=1,
            unit="times sooner",
            hardware=UNNAMED,
            ours=TimesSooner(of=_learn(env, 16_384), than=_learn(env, 64)),
            differs="PPO to a threshold return in 16,384 environments against 64; hyper-parameters are those of 64",
        )
        for env in ("cartpole", "acrobot")
    ),
    Claim(
        name="training on 4 GPUs",
        source=DOCUMENTS,
        says="Tag GridWorld on 1, 2 and 4 GPUs: 1.38, 2.57 and 5.12 M steps/s, read off a chart",
        low=0.93,
        unit="of linear",
        hardware=UNNAMED,
        cannot="no case spans several GPUs; `python -m warpdrive_min train -e tag_gridworld -n 4` logs its steps_per_s",
    ),
    _no_transfer("cartpole", 1_000_000, 1),
    _no_transfer("tag_continuous", 2_000, 110),
)
"""WarpDrive's claims about speed."""
