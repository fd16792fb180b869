"""Peers: the installed Gymnasium, and fakes of other packages."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import math
import multiprocessing
import os
import re
import stat
import sys
import time
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bench.core.errors import NotComparable
from bench.core.machine import card_hash, fingerprint
from bench.core.measure import PLANS, ColdStart
from bench.core.point import Check, Metric
from bench.core.record import Context, Host, Record, append, read_all, read_comparisons
from bench.judge.published.anchors import JAX, WARPDRIVE, anchor
from bench.peers import learning, search, sides, worker
from bench.peers.adapters import pufferlib, purejaxrl, rl_tools
from bench.peers.adapters.gymnasium import IDS, prepare
from bench.peers.adapters.learners import cleanrl, returns
from bench.peers.adapters.work import Unavailable, Work, gpu_uuid
from bench.peers.catalogue import PEERS, PeerJob
from bench.peers.check import correctness
from bench.peers.command import chosen
from bench.peers.sides import Run, ask, measure_each, started
from bench.process.rounds import TURNS
from bench.process.server import Server
from bench.process.worker import WorkerError
from bench.show.documents import markdown
from bench.workloads.cases import CASES
from bench.workloads.setups.trainers import settings
from envs import ENVS
from tests.bench.builders import FakeWatch, bench, case, metric, record, timed
from tests.support import by_night
from warpdrive_min.training.config import RunConfig

# ------------------------------------------------------------------ fakes

JAX_FAKE = """
import types
import numpy as np

class Keys:
    key = PRNGKey = staticmethod(lambda seed: np.array([seed, 0]))
    split = staticmethod(lambda key, n=2: np.stack([np.asarray(key) + [0, i + 1] for i in range(n)]))
    bits = staticmethod(lambda key, shape: np.array([3, 1, 2]))

random = Keys
numpy = np
config = types.SimpleNamespace(update=lambda name, value: None)
listeners = []
monitoring = types.SimpleNamespace(register_event_duration_secs_listener=listeners.append)
compiling = [1]  # calls of a jitted function that compile it

def jit(f):
    calls = 0
    def jitted(*args):
        nonlocal calls
        calls += 1
        for each in listeners if calls in compiling else ():
            each("/jax/core/compile/backend_compile_duration", 0.1)
        return f(*args)
    jitted.lower = lambda *args: types.SimpleNamespace(compile=lambda: (jitted(*args), jitted)[1])
    return jitted

def leaves(tree):
    return [leaf for each in tree.values() for leaf in leaves(each)] if isinstance(tree, dict) else [tree]

tree = types.SimpleNamespace(leaves=leaves)
block_until_ready = lambda value: value
default_backend = lambda: "cpu"
devices = lambda: [types.SimpleNamespace(device_kind="fake")]

def vmap(f, axes=0):
    def mapped(*args):
        kept = axes if isinstance(axes, tuple) else (axes,) * len(args)
        rows = [f(*(a if axis is None else row(a, i) for a, axis in zip(args, kept))) for i in range(len(args[0]))]
        return stacked(rows)
    return mapped

def row(values, i):
    return {name: row(each, i) for name, each in values.items()} if isinstance(values, dict) else values[i]

def stacked(rows):
    if isinstance(rows[0], tuple):
        return tuple(stacked([row[j] for row in rows]) for j in range(len(rows[0])))
    if isinstance(rows[0], dict):
        return {name: stacked([row[name] for row in rows]) for name in rows[0]}
    return np.stack(rows).view(type(np.asanyarray(rows[0])))

def scan(f, carry, xs, length, unroll=1):
    scan.unroll = unroll
    for _ in range(length):
        carry, _ = f(carry, None)
    return carry, None

lax = types.SimpleNamespace(scan=scan)
"""
GYMNAX_FAKE = """
import numpy as np

class Space:
    n = 2
    def sample(self, key):
        return np.float64(1.0)

class Env:
    # Of a pole that starts upright and at rest, gravity and its own turning do nothing in the first step.
    def action_space(self, params):
        return Space()
    def reset(self, key, params):
        return np.array([0.1, 0.0, 0.0, 0.0]), np.array([0.1, 0.0, 0.0, 0.0])
    def step(self, key, state, action, params):
        x, v, angle, w = state
        temp = 10.0 / 1.1
        turn = -temp / (0.5 * (4 / 3 - 0.1 / 1.1))
        push = temp - 0.05 * turn / 1.1
        state = np.array([x + 0.02 * v, v + 0.02 * push, angle + 0.02 * w, w + 0.02 * turn])
        restart = np.array([0.1, 0.0, 0.0, 0.0])
        return state, restart, 1.0, False, False, 0.0

def make(name):
    assert name == "CartPole-v1", name
    return Env(), None
"""
JAXMARL_FAKE = """
import types
import numpy as np

class Clocks(np.ndarray):
    step = property(np.asarray)

class Env:
    agents = ["adversary_0", "adversary_1", "adversary_2", "agent_0"]
    def action_space(self, agent):
        return types.SimpleNamespace(sample=lambda key: np.int64(1))
    def reset(self, key):
        return {agent: np.zeros(16) for agent in self.agents}, np.array(0).view(Clocks)
    def step(self, key, state, actions):
        assert list(actions) == self.agents, actions
        each = {agent: np.ones(2) for agent in self.agents}
        return each, np.array(state + STEP).view(Clocks), each, each, {}

def make(name, num_adversaries, num_good_agents):
    assert (name, num_adversaries, num_good_agents) == ("MPE_simple_tag_v3", 3, 1)
    return Env()
"""
PPO_FAKE = """
import types
import beside
import jax
import numpy as np

class LogWrapper:
    def __init__(self, env):
        self.is_logged = True

def make_train(config):
    assert config["TOTAL_TIMESTEPS"] == 10 * config["NUM_ENVS"] * config["NUM_STEPS"]
    is_logged = hasattr(LogWrapper(object()), "is_logged")
    metrics = {"returned_episode_returns": np.array([beside.RETURN])} if is_logged else {}

    def _env_step(carry, _):
        return carry, None

    def train(key):
        scanned = jax.lax.scan(_env_step, 0, None, 3)
        order = jax.random.permutation(key, 3) if hasattr(jax.random, "permutation") else [0]
        state = types.SimpleNamespace(params={"w": np.array([order[0] + 0.5, -2.0 * beside.SCAN.unroll])})
        return {"runner_state": (state,), "metrics": metrics}

    return train
"""
LEARNING_PPO_FAKE = """
import types
import numpy as np

class ActorCritic:
    def __init__(self, n, activation):
        assert (n, activation) == (2, "tanh")
    def apply(self, weights, observations):
        return types.SimpleNamespace(mode=lambda: np.ones(len(observations))), None

def make_train(config):
    assert (config["LR"], config["NUM_STEPS"], config["TOTAL_TIMESTEPS"]) == (2.5e-4, 128, 65_536)
    n = config["TOTAL_TIMESTEPS"] // config["NUM_STEPS"] // config["NUM_ENVS"]
    returns = np.where(np.arange(n) < n // 2, EARLY, LATE)[:, None] * np.ones(config["NUM_ENVS"])
    metrics = {"returned_episode": np.ones(returns.shape, bool), "returned_episode_returns": returns}
    state = types.SimpleNamespace(params={})
    return lambda key: {"runner_state": (state,), "metrics": metrics}
"""
ENVPOOL_FAKE = """
import gymnasium

class Pool:
    def __init__(self, envs, seed, n_batch):
        self.envs, self.seed, self.action_space = envs, seed, envs.single_action_space
        self.close, self.n_batch, self.waiting = envs.close, n_batch, list(range(envs.num_envs))
    def reset(self):
        return self.envs.reset(seed=self.seed)
    def step(self, actions):
        return self.envs.step(actions)

    def async_reset(self):
        self.reset()
    def recv(self):
        ids, self.waiting = self.waiting[:self.n_batch], self.waiting[self.n_batch:]
        return None, None, None, None, {"env_id": ids}
    def send(self, actions, env_id):
        assert len(actions) == len(env_id) == self.n_batch
        self.waiting += env_id

def make_gymnasium(name, num_envs, num_threads, seed, batch_size=None):
    return Pool(gymnasium.make_vec(name, num_envs=num_envs), seed, batch_size)
"""
CARTPOLE_IN_C_FAKE = """
import gymnasium

class Cartpole:
    def __init__(self, num_envs, report_interval):
        self.envs = gymnasium.make_vec("CartPole-v1", num_envs=num_envs)
        self.single_action_space, self.close = self.envs.single_action_space, self.envs.close
    def reset(self, seed):
        self.seen = self.envs.reset(seed=seed)[0].copy()
        return self.seen, []
    def step(self, actions):
        self.seen[:], rewards, *_ = self.envs.step(actions)  # what it has shown before is written over
        return self.seen, rewards, None, None, []
"""
EMULATION_FAKE = """
class GymnasiumPufferEnv:
    def __init__(self, env, buf=None, seed=0):
        self.env = env
"""
VECTOR_FAKE = """
import gymnasium

def make(create, backend, num_envs, num_workers=None):
    assert backend in ("Serial", "Multiprocessing") and num_envs % (num_workers or 1) == 0
    return gymnasium.vector.SyncVectorEnv([lambda: create(buf=None, seed=0).env] * num_envs)
"""
PSUTIL_FAKE = "cpu_count = lambda logical: 3"
TORCH_FAKE = """
import types
cuda = types.SimpleNamespace(is_available=lambda: False)
"""


TORCH_ON_GPU_FAKE = """
import types
import numpy as np
cuda = types.SimpleNamespace(is_available=lambda: True, get_device_name=lambda: "fake", synchronize=lambda: None)
cuda.get_device_capability = lambda: (9, 0)
full_like = np.full_like
"""
GRIDWORLD_FAKE = """
class CUDATagGridWorld:
    def __init__(self, num_taggers, use_full_observation):
        assert use_full_observation
        self.taggers, self.runners = {i: True for i in range(num_taggers)}, {num_taggers: True}
"""
WRAPPER_FAKE = """
import numpy as np

class EnvWrapper:
    def __init__(self, env, num_envs, env_backend):
        assert env_backend == "pycuda", env_backend
        self.cuda_data_manager = self
        self.arrays = {name: np.zeros(num_envs) for name in ("_timestep_", "observations", "rewards")}
    def pull_data_from_device(self, name):
        return self.arrays[name].copy()
    def reset_all_envs(self):
        self.arrays["_timestep_"][:] = 0
    def step_all_envs(self):
        self.arrays["_timestep_"] += STEP
    def reset_only_done_envs(self):
        self.arrays["_timestep_"][self.arrays["_timestep_"] >= 3] = 0
"""
TRAINER_FAKE = """
import types
import numpy as np

class TrainerA2C:
    def __init__(self, wrapper, config, agents, verbose):
        assert agents == {"shared": [0, 1, 2, 3, 4]} and config["env"]["num_taggers"] == 4
        assert config["trainer"]["num_envs"] == 4, config
        self.cuda_envs, self.steps = wrapper, config["trainer"]["train_batch_size"] // 4
        weight = self.weight = np.ones(2).view(Weights)
        parameters, named_parameters = (lambda: [weight]), (lambda: [("w", weight)])
        self.models = {"shared": types.SimpleNamespace(parameters=parameters, named_parameters=named_parameters)}
        self.optimizers = {"shared": types.SimpleNamespace(state={})}
    def _evaluate_policies(self, batch_index):
        return {"shared": [np.zeros((4, 5, 5), np.float32)]}
    def _sample_actions(self, probabilities, batch_index):
        assert batch_index == -1 and np.all(probabilities["shared"][0] == np.float32(0.2))
    def _generate_rollout_batch(self):
        assert self.steps == 8
    def _update_model_params(self, iteration):
        self.cuda_envs.iteration = iteration
        self.weight += 1

class Weights(np.ndarray):
    __hash__ = object.__hash__
    detach = cpu = lambda self: self
    def numpy(self):
        return np.array(self)
    def isfinite(self):
        return np.isfinite(self)
"""
RUN_CONFIG_FAKE = "{env: {}, trainer: {}, policy: {shared: {algorithm: A2C}}, saving: {}}"


def warp_drive_files(step: int) -> dict[str, str]:
    """Return fake files of WarpDrive and of torch with a GPU.

    The fake clock advances by ``step`` per env step.
    """
    return {
        "torch/__init__.py": TORCH_ON_GPU_FAKE,
        "warp_drive/__init__.py": "",
        "warp_drive/env_wrapper.py": WRAPPER_FAKE.replace("STEP", str(step)),
        "warp_drive/training/trainers/trainer_a2c.py": TRAINER_FAKE,
        "warp_drive/training/run_configs/tag_gridworld.yaml": RUN_CONFIG_FAKE,
        "example_envs/tag_gridworld/tag_gridworld.py": GRIDWORLD_FAKE,
    }


@pytest.fixture
def fakes(tmp_path, monkeypatch):
    """Return a function that installs fake packages.

    Every process finds them through ``PYTHONPATH``.
    """
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(site))

    def add(name: str, files: dict[str, str], version: str = "9.9") -> None:
        for path, text in files.items():
            (site / path).parent.mkdir(parents=True, exist_ok=True)
            (site / path).write_text(text)
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    return add


def script(path: Path, body: str) -> str:
    """Write a fake interpreter."""
    path.write_text(f"#!{sys.executable}\nimport os, sys, time\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def smoke(name: str, variant: str = "", work: str = "") -> PeerJob:
    """Return a peer's first matching smoke point."""
    where = [f"{axis}={value}" for axis, value in (("variant", variant), ("work", work)) if value]
    return chosen("smoke", [name], where)[0]


def a_run(timeout_s: float = 60.0, **pythons: str) -> Run:
    """Return a smoke run with a fake clock for our side."""
    return Run(
        context=Context.here("smoke", run_id="test"),
        pythons={"": sys.executable, **pythons},
        timeout_s=timeout_s,
        backend="cpu",
        ours=lambda: contextlib.nullcontext(Server({"env_step": OURS, "train": replace(OURS, name="train")})),
    )


def our_setup(point):
    watch = FakeWatch(lambda run: 1e6)
    return timed(watch.run, stopwatch=watch)


OURS = case(our_setup, name="env_step")
OF_ENV_STEP = {"backend": "cpu", "exact": False}


def records_of(job: PeerJob, run: Run | None = None) -> list[Record]:
    """Return the peer's record, and ours if paired."""
    ((_, records, _),) = measure_each([job], run or a_run())
    return records


# ------------------------------------------------------------------ the command


def test_command_measures_gymnasium_beside_ours_and_goes_on_after_a_peer_that_dies(tmp_path):
    """`bench peers` pairs Gymnasium with ours and records a dead peer."""
    dying = script(tmp_path / "dying", "print('out of luck')\nsys.exit(3)")
    words = ["peers", "--preset", "smoke", "--peer", "gymnasium", "--peer", "envpool", "--backend", "cpu"]
    words += ["--where", "variant=sync"]
    said = bench(*words, "--python", f"envpool={dying}", "--out", tmp_path / "out", exits=1)
    assert "1 failed" in said, said
    theirs, mine, dead = read_all([tmp_path / "out"])
    (comparison,) = read_comparisons([tmp_path / "out"])
    assert dead.status == "failed"
    assert re.search(r"^envpool: died at set_up with exit code 3; its last line of output: out of luck$", dead.reason)
    assert dead.reason in said
    version = metadata.version("gymnasium")
    assert theirs.is_evidence
    assert theirs.notes["version"] == version
    assert theirs.correctness.oracle.startswith("NumPy")
    assert (theirs.scope, theirs.n, len(theirs.samples_ns)) == ("env", 2 * TURNS, 2 * TURNS)
    assert mine.is_evidence
    assert (mine.case, mine.point["backend"], mine.n) == ("env_step", "cpu", 2 * TURNS)
    assert (comparison.a, comparison.b) == (mine.id, theirs.id)
    got = theirs.metrics["ours_over_peer"]
    want = comparison.ratio()
    np.testing.assert_allclose([got.value, got.low, got.high], [want.value, want.low, want.high])
    stored, shown = theirs.metrics["ours_env_steps_per_s"], mine.figure("env_steps_per_s")
    assert (stored.value, stored.low, stored.high) == (shown.value, shown.low, shown.high)


# ------------------------------------------------------------------ failures


ANSWER = "os.write(int(sys.argv[2]), b'rubbish' + bytes([10]))\n"


@pytest.mark.parametrize(
    ("body", "timeout_s", "message"),
    [
        ("sys.exit(7)", 60.0, "gymnax: died at set_up with exit code 7; its last line of output: nothing"),
        (ANSWER + "time.sleep(60)", 60.0, "gymnax: must answer set_up with a JSON object"),
        ("time.sleep(60)", 0.3, r"gymnax: did not answer set_up within 0\.3 s; increase --timeout"),
        ("os.close(int(sys.argv[2]))\nsys.exit(4)", 60.0, "gymnax: died at set_up with exit code 4"),
        ("sys.exit(int(sys.dont_write_bytecode))", 60.0, "gymnax: died at set_up with exit code 0"),
    ],
)
def test_peer_that_dies_or_talks_rubbish_or_hangs_is_named(tmp_path, monkeypatch, body, timeout_s, message):
    """Errors name a peer that dies, hangs or answers wrongly.

    Its process has ended, and kept its bytecode.
    """
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    run = a_run(timeout_s, gymnax=script(tmp_path / "python", body))
    with started(smoke("gymnax"), run) as peer, pytest.raises(WorkerError, match=message):
        ask(smoke("gymnax"), peer, "set_up", adapter="gymnax", point={})
    assert peer.wait(0) is not None


def test_interpreter_that_does_not_exist_is_named():
    """A missing interpreter is reported without its path."""
    (record,) = records_of(smoke("gymnax"), a_run(gymnax="/nowhere/python"))
    assert record.reason.startswith("gymnax: its interpreter must start (got No such file")
    assert "/nowhere" not in record.reason


def test_peer_that_is_not_installed_is_skipped_with_the_line_that_installs_it(fakes):
    """A peer without its package or a GPU is skipped."""
    (record,) = records_of(smoke("purejaxrl"))
    assert record.status == "skipped"
    assert "No module named 'purejaxrl'" in record.reason
    assert "luchris429/purejaxrl" in record.reason
    (repeated,) = records_of(smoke("purejaxrl-determinism", "usual"))
    assert (repeated.status, "luchris429/purejaxrl" in repeated.reason) == ("skipped", True)
    packages = {f"{name}/__init__.py": "" for name in ("warp_drive", "example_envs")}
    fakes("rl-warp-drive", {"torch/__init__.py": TORCH_FAKE, **packages})
    (record,) = records_of(smoke("rl-warp-drive", "numba"))
    assert record.status == "skipped"
    assert "it needs an NVIDIA GPU, and its torch" in record.reason


def test_peer_that_breaks_while_it_is_timed_fails_its_point(fakes):
    """An exception in a peer fails its point."""
    broken = GYMNAX_FAKE.replace('assert name == "CartPole-v1", name', 'raise ValueError("no such world")')
    fakes("gymnax", {"jax/__init__.py": JAX_FAKE, "gymnax/__init__.py": broken})
    (record,) = records_of(smoke("gymnax"))
    assert (record.status, record.reason) == ("failed", "gymnax: ValueError at set_up: no such world")


def test_wrong_step_of_a_peer_fails_its_point(fakes):
    """A peer with wrong dynamics fails and is not timed."""
    fakes(
        "gymnax", {"jax/__init__.py": JAX_FAKE, "gymnax/__init__.py": GYMNAX_FAKE.replace("10.0 / 1.1", "20.0 / 1.1")}
    )
    (record,) = records_of(smoke("gymnax"))
    assert record.status == "failed"
    assert record.reason.startswith("gymnax: before the timing, against NumPy")
    assert record.notes == {"failed_check": True}


@pytest.mark.parametrize(
    ("name", "preset", "is_longer"),
    [("rl-warp-drive", "full", True), ("gymnax", "full", False), ("rl-warp-drive", "smoke", False)],
)
def test_blocks_last_beside_loops_in_python(name, preset, is_longer):
    """Only Python-bound peers have timed blocks.

    Other processes slow a Python loop; the fastest sample of a block counts.
    """
    run = replace(a_run(), context=replace(a_run().context, preset=preset), replies={name: {"device": "cpu"}})
    _, theirs = sides._both_sides(smoke(name), run)
    assert (theirs.block_s > 0) == is_longer


def test_of_each_lap_of_a_run_the_fastest_counts(monkeypatch):
    """A run's time adds up the fastest of each lap."""
    now = 0
    durations = iter([(1, 1), (1, 1), (30, 2), (1, 40), (4, 4)])  # the first two runs are not timed
    monkeypatch.setattr(worker.time, "perf_counter_ns", lambda: now)

    def run():
        nonlocal now
        for duration in next(durations):
            now += duration
            if not laps:
                laps.append(now)

    laps = list[int]()
    monkeypatch.setattr(worker, "_adapter", lambda name: SimpleNamespace(prepare=lambda point: work, PACKAGES=()))
    work = Work(run=run, wait=lambda: None, env_steps=1, trace=dict, counts="", laps=laps)
    peer = worker.Peer()
    assert "laps" in peer.set_up("", {})["notes"]
    assert [peer.time(1)["wall_ns"] for _ in range(3)] == [30 + 2, 1 + 2, 1 + 2]


def test_peers_whose_workers_may_wait_busily_are_measured_alone(monkeypatch):
    """Peers that may busy-wait are never set up concurrently.

    Others are, including Python loops on a GPU.
    """
    asked = []

    def measure_rounds(todo, preset, at_once, say, limit, after_batch):
        asked.append(([theirs.point["peer"] for _, theirs in todo], at_once))
        return ((place, WorkerError("Skip", "not measured")) for place in range(len(todo)))

    monkeypatch.setattr(sides.interleaved, "measure_rounds", measure_rounds)
    monkeypatch.setattr(
        sides,
        "_both_sides",
        lambda job, run: (None, SimpleNamespace(case=SimpleNamespace(scope="env"), point=job.point)),
    )
    names = ["rl-warp-drive", "gymnax", "envpool", "jaxmarl"]
    found = list(sides.measure_each([smoke(name) for name in names], a_run(), 8))
    assert asked == [(["rl-warp-drive", "gymnax", "jaxmarl"], 8), (["envpool"], 1)]
    assert [job.peer.name for job, _, _ in found] == ["rl-warp-drive", "gymnax", "jaxmarl", "envpool"]


# ------------------------------------------------------------------ adapters


@pytest.mark.parametrize(
    ("variant", "mode"), [by_night("scan", "fused"), ("scan-8", "fused"), ("step", "eager"), ("scan-2-state", "fused")]
)
def test_gymnax_is_scanned_or_stepped_and_its_steps_are_held_against_ours(fakes, variant, mode):
    """The peer gymnax runs compiled or step by step, like ours.

    It may carry its state only, without results.
    """
    fakes("gymnax", {"jax/__init__.py": JAX_FAKE, "gymnax/__init__.py": GYMNAX_FAKE})
    jobs = [*chosen("smoke", ["gymnax"], []), *searched("gymnax", 4)]
    theirs, _ = records_of(next(job for job in jobs if job.axes["variant"] == variant))
    assert theirs.is_evidence
    assert 0 < theirs.correctness.max_error < 1e-6
    assert theirs.work_per_run == {"env_steps": 50 * 4, "agent_steps": 50 * 4}
    assert (theirs.mode, theirs.notes["version"]) == (mode, "9.9")
    assert (theirs.point["variant"], theirs.notes["compiling"]) == (variant, {"programs": 1, "runs": 1})
    assert theirs.notes.get("carried", "results") == ("state" if variant == "scan-2-state" else "results")


def searched(name: str, n_envs: int) -> list[PeerJob]:
    """Return all variants of a peer's smallest point that are searched, resized."""
    jobs = search.groups(chosen("paper", [name], []))[0]
    return [PeerJob(job.peer, {**job.axes, "n_envs": n_envs}) for job in jobs]


def test_fastest_variant_is_searched_once_per_version_and_kind_of_card(monkeypatch, tmp_path):
    """Later sets search it and its neighbours; another version is searched again."""
    jobs, measured, file = searched("gymnax", 4), list[str](), tmp_path / "search.jsonl"
    rates = {job.axes["variant"]: rate for rate, job in enumerate(jobs, start=1)} | {"scan-4": 99.0, "scan-8": 98.0}
    found, run = {"gymnax": "1.0"}, a_run()
    monkeypatch.setattr(search, "versions", lambda job, run: found)

    def measure_each(todo, run, at_once, limit):
        assert limit.rounds == 1
        for job in todo:
            measured.append(job.axes["variant"])
            facts = {"case": job.case, "point": job.point, "git": run.context.git, "machine": run.context.machine}
            notes = {"versions": dict(found), "ours": {"case": "env_step", "point": {}}, "version": "1", "counts": ""}
            failed = {"status": "failed", "samples_ns": None, "metrics": None}
            fails = job.axes["variant"] == "scan-state"
            yield job, [record(rates[job.axes["variant"]], **facts, notes=notes, **(failed if fails else {}))], None

    def searching(now) -> list[str]:
        measured.clear()
        for _, records, _ in search.search(jobs, now, [file]):
            append(file, records[0])
        return [job.axes["variant"] for job in search.after_search(jobs, now, [file])]

    monkeypatch.setattr(search, "measure_each", measure_each)
    assert searching(run) == ["scan-4"]
    assert measured == [job.axes["variant"] for job in jobs]
    later = replace(run, context=replace(run.context, git={"sha": "later"}))
    rates["scan-8"] = 100.0
    assert searching(later) == ["scan-8"], "the newest round of each counts"
    assert set(measured) == {"scan-4", "scan-2", "scan-8", "scan-4-state"}
    assert searching(later) == ["scan-8"]
    assert set(measured) == {"scan-16", "scan-8-state"}, "neighbours of the variant that is now the fastest"
    rates["scan-8"] = 50.0
    latest = replace(run, context=replace(run.context, git={"sha": "latest"}))
    assert searching(latest) == ["scan-4", "scan-8"], "one was the fastest, the other had a slow round"
    (failed,) = (record(case=job.case, point=job.point) for job in jobs if job.axes["variant"] == "scan-4")
    failed = failed.model_copy(update={"status": "failed", "notes": {"failed_check": True}})
    (left,) = search.after_search(jobs, latest, [file], [failed])
    assert left.axes["variant"] == "scan-8", "a variant that failed its check is neither"
    elsewhere = replace(run, context=replace(run.context, machine={**run.context.machine, "gpu": "NVIDIA B200"}))
    assert search.after_search(jobs, elsewhere, [file]) == jobs[:1], "not searched on that card"
    assert search.unsearched(jobs, elsewhere, [file]) == [jobs]
    assert search.unsearched(jobs, later, [file]) == []
    found = {"gymnax": "1.1"}
    searching(later)
    assert measured == [name for name in rates if name != "scan-state"], "a variant that failed is not tried again"


@pytest.mark.parametrize(
    ("theirs", "ours", "fails"),
    [(50.0, 1_000.0, True), (90.0, 1_000.0, False), (50.0, 500.0, False), (50.0, 2e3, True)],
)
@pytest.mark.parametrize(("name", "peer"), [("env_steps_per_s", "gymnax"), ("total_s", "stable-baselines3")])
def test_peer_that_is_slower_than_in_its_search_is_measured_again(tmp_path, name, peer, theirs, ours, fails):
    """So a busy host does not flatter ours; a machine that is slower for both is none."""
    fast, slow, *_ = searched(peer, 4)
    run, file = a_run(), tmp_path / "search.jsonl"

    def compared(job, theirs, ours, **changes):
        notes = {
            "versions": {"gymnax": "1.0"},
            "ours": {"case": "env_step", "point": {}},
            "version": "1",
            "counts": "",
            "samples_s": {},
        }
        power = 1 if name == "env_steps_per_s" else -1
        metrics = {name: metric(theirs**power), f"ours_{name}": metric(ours**power)}
        facts = {"case": job.case, "scope": job.version.scope, "machine": run.context.machine, "metrics": metrics}
        return record(point=job.point, **{**facts, "notes": notes, **changes})

    append(file, compared(fast, 1_000.0, 1_000.0))
    append(file, compared(slow, 400.0, 1_000.0, started_at="2026-01-01T00:00:00+00:00"))
    append(file, compared(slow, 100.0, 1_000.0, started_at="2026-01-02T00:00:00+00:00"))
    got = search.if_not_slowed(slow, compared(slow, theirs, ours), run, [file])
    assert (got.status == "failed") == fails
    assert not fails or "in its search (got 2 times); the host may be busy: measure it again" in got.reason
    for other in (compared(slow, 50.0, 1_000.0, notes={}), compared(slow, 50.0, 1_000.0, preset="smoke")):
        assert search.if_not_slowed(slow, other, run, [file]).is_evidence


def test_shortest_time_to_a_solution_is_the_fastest(monkeypatch):
    """Variants with other options are no neighbours."""
    jobs = searched("stable-baselines3", 8)
    times = {job.axes["variant"]: 30.0 + place for place, job in enumerate(jobs)} | {"one-thread": 20.0}
    found = [record(point=job.point, metrics={"total_s": metric(times[job.axes["variant"]])}) for job in jobs]
    assert search._fastest(found) == {"one-thread"}
    (learner, *_) = chosen("paper", ["purejaxrl-learning"], [])
    assert search.neighbours(learner.peer, "more") == ["more-random", "more-parallel", "more-untuned"], "no order"
    assert search.neighbours(jobs[0].peer, "one-thread") == ["tuned", "one-thread-10", "one-thread-128", "two-threads"]


def test_peer_that_cannot_start_is_not_searched(monkeypatch):
    """One of its variants remains, whose record has the reason."""
    jobs = searched("gymnax", 4)
    assert list(search.search(jobs, a_run(gymnax="/nowhere/python"), [])) == []
    assert search.after_search(jobs, a_run(gymnax="/nowhere/python"), []) == jobs[:1]
    assert search.unsearched(jobs, a_run(gymnax="/nowhere/python"), []) == []


@pytest.mark.parametrize(
    ("calls", "status", "reason"),
    [
        ([1, 2, 3], "ok", None),
        (range(99), "failed", "gymnax: RuntimeError at set_up: one of its first 8 runs must not compile"),
        ([1, 4], "failed", "measure: gymnax: a timed block must not compile (got 1 programs)"),
    ],
)
def test_what_compiles_while_it_is_timed_is_refused(fakes, calls, status, reason):
    """Timing starts once a run compiles nothing.

    A compilation after that fails the point.
    """
    jax = JAX_FAKE.replace("compiling = [1]", f"compiling = {list(calls)}")
    fakes("gymnax", {"jax/__init__.py": jax, "gymnax/__init__.py": GYMNAX_FAKE})
    theirs, *_ = records_of(smoke("gymnax", "scan"))
    assert theirs.status == status
    if reason:
        assert reason in theirs.reason
    else:
        assert theirs.notes["compiling"] == {"programs": 3, "runs": 3}


def test_jaxmarl_plays_another_game_in_our_sizes(fakes):
    """JaxMARL's game runs with our numbers of agents."""
    files = {"jax/__init__.py": JAX_FAKE, "jaxmarl/__init__.py": JAXMARL_FAKE.replace("STEP", "1")}
    fakes("jaxmarl", files, version="0.2")
    theirs, mine = records_of(smoke("jaxmarl", "scan-8"))
    assert theirs.is_evidence, theirs.reason
    assert theirs.work_per_run == {"env_steps": 50 * 4, "agent_steps": 50 * 16}
    assert mine.point == {"env": "tag_continuous", "n_envs": 4, "n_agents": 4, "n_taggers": 3, **OF_ENV_STEP}
    assert theirs.correctness.before.detail.startswith("another game: all 4 environments moved on")


def test_our_wrong_result_is_no_failed_check_of_the_peer(fakes):
    """Another variant of the peer would not help."""
    fakes("gymnax", {"jax/__init__.py": JAX_FAKE, "gymnax/__init__.py": GYMNAX_FAKE})

    def wrong(point):
        return replace(our_setup(point), check=lambda: Check(passed=False, max_error=1.0))

    run = replace(a_run(), ours=lambda: contextlib.nullcontext(Server({"env_step": replace(OURS, setup=wrong)})))
    (failed,) = records_of(smoke("gymnax", "step"), run)
    assert (failed.status, failed.notes) == ("failed", {})
    assert "before the timing" in failed.reason


def test_jaxmarl_whose_clocks_stand_still_is_wrong(fakes):
    """JaxMARL environments with constant clocks fail the check."""
    fakes("jaxmarl", {"jax/__init__.py": JAX_FAKE, "jaxmarl/__init__.py": JAXMARL_FAKE.replace("STEP", "0")})
    (record,) = records_of(smoke("jaxmarl", "scan"))
    assert "jaxmarl: ArithmeticError at trace: of 4 environments 0 moved on by a step" in record.reason
    assert record.notes == {"failed_check": True}


def test_purejaxrl_trains_in_the_sizes_of_the_point(fakes):
    """PureJaxRL trains in the point's sizes with its variant's settings."""
    beside = "import jax; RETURN = 21.0; SCAN = jax.lax.scan"
    fakes("gymnax", {"jax/__init__.py": JAX_FAKE, "purejaxrl/ppo.py": PPO_FAKE, "purejaxrl/beside.py": beside})
    theirs, mine = records_of(smoke("purejaxrl", "logged"))
    assert theirs.is_evidence, theirs.reason
    assert theirs.point["precision"] == mine.point["precision"] == "fp32"
    assert (theirs.scope, mine.case) == ("train", "train")
    assert theirs.work_per_run["env_steps"] == 10 * 4 * 8
    assert theirs.correctness.before.detail == "its mean return is finite, 21"
    digest = hashlib.sha256(f"{beside}{PPO_FAKE}".encode()).hexdigest()
    assert theirs.notes["version"] == f"sources {digest[:12]}"
    theirs, _ = records_of(smoke("purejaxrl", "unlogged"))
    assert theirs.is_evidence, theirs.reason
    assert theirs.correctness.before.detail == "its largest weight is finite, 2"
    for variant, weight in (("unlogged-2", 4), ("sort", 2)):  # unrolled twice, and with an order from bits
        theirs, _ = records_of(smoke("purejaxrl", variant))
        assert theirs.correctness.before.detail == f"its largest weight is finite, {weight}"


def test_rl_tools_is_timed_by_its_own_clock(tmp_path, monkeypatch):
    """The program's own time counts; other sizes and errors are refused."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    point = {"n_envs": 100, "options": {"threads": 64, "n_steps": 20}}
    program = "print('(GPU):  0.5 ms (4 Msteps/s, 1 Years/s)', file=sys.stdout)"
    script(tmp_path / "l2f-benchmark-64", program)
    peer = worker.Peer()
    peer._work = rl_tools.prepare(point)
    assert peer.time(3) == {"wall_ns": 1_500_000, "compiled": 0}
    assert peer.trace()["says"] == "another task, which prints no state: 2,000 steps took 0.5 ms"
    assert list(rl_tools.versions()) == ["rl-tools"]
    with pytest.raises(ValueError, match=r"must take 4,000 steps \(got 2,000\): build it so"):
        rl_tools.prepare({**point, "n_envs": 200}).run()
    script(tmp_path / "l2f-benchmark-64", program.replace("stdout", "stderr"))
    with pytest.raises(ValueError, match="must print its time on the GPU"):
        peer.time(1)
    (tmp_path / "l2f-benchmark-64").unlink()
    for missing in (rl_tools.versions, lambda: rl_tools.prepare(point)):
        with pytest.raises(Unavailable, match=r"no l2f-benchmark-.* on PATH"):
            missing()


SOLVING_CLEANRL_FAKE = """
import sys
from types import SimpleNamespace
import gymnasium as gym
import numpy as np
import torch
from torch.utils.tensorboard import SummaryWriter

options = dict(each.removeprefix("--").split("=") for each in sys.argv[1:])
steps = int(options.pop("total-timesteps"))
assert options == {"env-id": "CartPole-v1", "num-envs": "2", "seed": "3", "num-steps": "8"}
SummaryWriter("runs").close()
agent = SimpleNamespace(actor=torch.nn.Linear(4, 2), parameters=lambda: agent.actor.parameters())
make = lambda: gym.wrappers.RecordEpisodeStatistics(gym.make(options["env-id"]))
envs = gym.vector.SyncVectorEnv([make, make])
envs.reset(seed=3)
for _ in range(steps // 2):
    envs.step(np.zeros(2, int))  # falls after 8 to 10 steps
"""


@pytest.mark.parametrize("threshold", [9.0, 400.0])
def test_cleanrl_stops_at_the_mean_of_its_latest_episodes(fakes, monkeypatch, tmp_path, threshold):
    """Its script ends at the threshold, or after all steps."""
    fakes("cleanrl", {"cleanrl/ppo.py": SOLVING_CLEANRL_FAKE})
    monkeypatch.syspath_prepend(os.environ["PYTHONPATH"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [])
    point = {"env": "cartpole", "n_envs": 2, "seed": 3, "total_steps": 1000, "threshold": threshold}
    point |= {"row_steps": 20, "n_episodes": 2, "options": {"num-steps": 8, "threads": 3}, "is_timed": True}
    monkeypatch.setattr(returns, "N_EPISODES", 10)
    threads = list[int]()
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    found = cleanrl.solve(point).report()
    assert (found["env_steps"] < 200) if threshold == 9.0 else (found["env_steps"] == 1000)
    assert threads == [3]
    *_, (end, n_episodes, mean) = found["rows"]
    assert (end, n_episodes > 0, 8 <= mean <= 11) == (found["env_steps"], True, True)
    assert len(found["played"]) == 2
    assert correctness("cartpole", found["trace"]).passed
    shorter = cleanrl.solve({**point, "is_timed": False}).report()
    assert shorter["env_steps"] == 50


class Learned:
    """Fake of our learning run, which takes ``seconds``.

    It reaches the threshold after 50,000 env steps; with ``None`` it never does.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds

    def ask(self, method, case, point, context):
        """Return the record of the requested run."""
        assert (method, case, point["threshold"]) == ("measure", "learn", 40.0)
        values = {"env_steps_to_threshold": 5e4, "seconds_to_threshold": self._seconds} if self._seconds else {}
        figures = {name: Metric.exact(value, "s", "lower") for name, value in values.items()}
        return {
            "record": record(case=case, scope="learn", samples_ns=None, point=dict(point), metrics=figures).model_dump(
                mode="json", by_alias=True
            )
        }


@pytest.mark.parametrize(
    ("returns", "ours_s", "reached"),
    [((30.0, 50.0), 2.0, True), ((20.0, 30.0), 2.0, False), ((30.0, 50.0), None, True)],
)
def test_purejaxrl_learns_from_the_seed_and_is_judged_as_ours_is(fakes, monkeypatch, returns, ours_s, reached):
    """PureJaxRL's learning curve is judged as ours is."""
    early, late = returns
    ppo = LEARNING_PPO_FAKE.replace("EARLY", str(early)).replace("LATE", str(late))
    files = {"jax/__init__.py": JAX_FAKE, "gymnax/__init__.py": GYMNAX_FAKE, "purejaxrl/ppo.py": ppo}
    fakes("gymnax", files)
    monkeypatch.setattr(learning, "EVALUATED", 2)
    run = replace(a_run(), ours=lambda: contextlib.nullcontext(Learned(ours_s)))
    ((_, (theirs, mine), comparison),) = measure_each([smoke("purejaxrl-learning")], run)
    assert theirs.is_evidence, theirs.reason
    assert comparison is None
    assert (theirs.case, theirs.scope, mine.taken) == ("peer_learn", "learn", "in turns with a peer")
    assert theirs.curve.env_steps == [16_384, 32_768, 49_152, 65_536]
    assert theirs.curve.mean_return["shared"] == [None, early, (early + late) / 2, late]
    seconds, whole = (theirs.metrics.get(name) for name in ("seconds_to_threshold", "whole_run_s"))
    assert theirs.metrics["return_after"].value == 500.0
    if reached:
        assert theirs.metrics["env_steps_to_threshold"].value == 49_152
        assert seconds.value == pytest.approx(whole.value * 0.75)
    else:
        assert theirs.unread["seconds_to_threshold"]
        assert seconds is None
    if reached and ours_s:
        assert theirs.metrics["ours_over_peer"].value == pytest.approx(seconds.value / ours_s)
    else:
        assert "ours_over_peer" not in theirs.metrics
    assert "PPO" in markdown([theirs])


OF_JAX = """
_made = make_train

def make_train(config):
    import jax, os
    assert jax.updates == [("jax_default_prng_impl", "fast")]
    assert os.environ["XLA_FLAGS"].split()[-1] == "--parallel"
    assert os.path.dirname(os.environ["JAX_COMPILATION_CACHE_DIR"]) == os.environ["WARPDRIVE_MIN_CACHE"].rstrip("/")
    return _made(config)
"""


@pytest.mark.parametrize(("threshold", "status"), [(40.0, "ok"), (501.0, "failed")])
def test_purejaxrl_is_timed_from_the_start_of_its_process(fakes, monkeypatch, threshold, status):
    """Weights below the threshold are wrong; each side starts a process in a round.

    A variant's generator and flags apply, and JAX's compiled programs are in the folder of the caches.
    """
    ppo = LEARNING_PPO_FAKE.replace("EARLY", "20.0").replace("LATE", "50.0") + OF_JAX
    jax = JAX_FAKE.replace("lambda name, value: None", "lambda *given: updates.append(given)") + "updates = []\n"
    files = {"jax/__init__.py": jax, "gymnax/__init__.py": GYMNAX_FAKE, "purejaxrl/ppo.py": ppo}
    fakes("gymnax", files)
    monkeypatch.setattr(learning, "EVALUATED", 2)

    def ours(point):
        assert (point["threshold"], point["caches"]) == (threshold, "warm")
        facts = replace(timed().facts, work={"starts": 1})
        check = Check(passed=True, max_error=0.0)
        run = lambda index: {"import_torch_s": 1.0, "ours_s": 2.0 + index}  # noqa: E731
        return ColdStart(run=run, check=lambda: check, facts=facts)

    fake = case(ours, name="time_to_solution", scope="startup", workload=ColdStart)
    run = replace(a_run(), ours=lambda: contextlib.nullcontext(Server({fake.name: fake})))
    job = smoke("purejaxrl-learning", work="solve")
    peer = replace(job.peer, variants={"shipped": {"random": "fast", "flags": "--parallel"}})
    job = replace(job, peer=peer, axes={**job.axes, "threshold": threshold})
    ((_, (theirs, *mine), comparison),) = measure_each([job], run)
    assert (theirs.case, theirs.scope, theirs.status) == ("peer_solution", "startup", status), theirs.reason
    if status == "failed":
        assert theirs.reason.startswith("purejaxrl-learning: after the timing, against none: the peer's own account: ")
        assert "runs missed a mean return of 501" in theirs.reason
        assert theirs.notes == {"failed_check": True}
        return
    assert comparison is not None
    assert mine[0].samples_ns == [3e9, 4e9]
    metrics = {name: found.value for name, found in theirs.metrics.items()}
    parts = theirs.notes["samples_s"]
    assert theirs.samples_ns == pytest.approx([1e9 * sum(both) for both in zip(*parts.values(), strict=True)])
    assert metrics["ours_total_s"] == pytest.approx(12**0.5), "the geometric mean, as in tables"
    assert metrics["ours_import_torch_s"] == 1.0
    assert metrics["ours_over_peer"] == pytest.approx((math.prod(theirs.samples_ns) / 12e18) ** 0.5)
    assert "PPO" in markdown([theirs])
    ((_, (once, _), comparison),) = measure_each([job], run, limit=search.ONE_ROUND)
    assert (len(once.samples_ns), comparison) == (1, None), "a search starts each side once"
    assert once.metrics["total_s"].value == pytest.approx(once.samples_ns[0] / 1e9)
    assert "ours_over_peer" not in once.metrics, "one ratio has no interval"


def test_envpool_steps_with_gymnasiums_interface(fakes):
    """EnvPool steps synchronously and asynchronously."""
    fakes("envpool", {"envpool/__init__.py": ENVPOOL_FAKE}, version="1.2")
    with started(smoke("envpool"), a_run()) as peer:
        said = peer.ask("device", adapter="envpool")
        assert (said["device"], said["versions"]["envpool"]) == ("cpu", "1.2")
        for variant in ("sync", "async"):
            said = peer.ask("set_up", adapter="envpool", point=smoke("envpool", variant).given)
            assert said["versions"]["envpool"] == "1.2"
            assert (said["threads"], said["env_steps"]) == (len(os.sched_getaffinity(0)), 4)
            assert said["notes"] == ({} if variant == "sync" else {"batch_size": 1})
            assert peer.ask("time", runs=3)["wall_ns"] > 0
            assert correctness("cartpole", peer.ask("trace")).passed


PUFFERLIB_FAKE = {
    "psutil.py": PSUTIL_FAKE,
    "pufferlib/__init__.py": "",
    "pufferlib/emulation.py": EMULATION_FAKE,
    "pufferlib/vector.py": VECTOR_FAKE,
    "pufferlib/ocean/cartpole/cartpole.py": CARTPOLE_IN_C_FAKE,
}


def test_pufferlib_steps_in_c_or_around_gymnasium(fakes):
    """PufferLib steps its C environments, or Gymnasium's."""
    fakes("pufferlib", PUFFERLIB_FAKE, version="3.0")
    with started(smoke("pufferlib"), a_run()) as peer:
        for variant in ("native", "serial", "multiprocessing"):
            said = peer.ask("set_up", adapter="pufferlib", point=smoke("pufferlib", variant).given | {"n_envs": 6})
            workers = max(n for n in (1, 2, 3) if n <= len(os.sched_getaffinity(0)))
            assert said["threads"] == (workers if variant == "multiprocessing" else 1)
            assert said["counts"].endswith("within it" if variant == "native" else "takes a step")
            assert correctness("cartpole", peer.ask("trace")).passed
    Path(os.environ["PYTHONPATH"], "pufferlib/ocean/cartpole/cartpole.py").unlink()
    (record,) = records_of(smoke("pufferlib", "native"))
    assert record.status == "skipped"
    assert "No module named 'pufferlib.ocean" in record.reason


def test_processes_of_a_peer_stand_still_between_its_blocks():
    """A peer's processes are suspended between its blocks.

    Otherwise they would take cores from our timing.
    """
    states: list[str] = []
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,), daemon=True)
    process.start()

    def state() -> str:
        return Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2][0]

    given = Work(run=lambda: states.append(state()), wait=lambda: None, env_steps=1, trace=dict, counts="")
    work = pufferlib._stopping(given)
    work.wait()
    while state() != "T":  # signals arrive a little later
        time.sleep(0.001)
    work.run()
    assert "T" not in states
    process.kill()


def test_gymnasium_steps_in_processes_of_their_own():
    """Gymnasium's asynchronous environments have a process each."""
    with started(smoke("gymnasium"), a_run()) as peer:
        said = peer.ask("set_up", adapter="gymnasium", point=smoke("gymnasium", "async").given | {"n_envs": 2})
        assert (said["threads"], said["compiling"]) == (min(2, len(os.sched_getaffinity(0))), None)
        assert correctness("cartpole", peer.ask("trace")).passed


def test_card_is_the_one_that_the_driver_names(monkeypatch):
    """The CUDA driver gives the GPU's UUID, if it works."""

    def driver(code):
        def uuid_of(found, device):
            found[:] = bytes(range(16))
            return code

        return SimpleNamespace(cuInit=lambda flags: 0, cuDeviceGet=lambda device, index: 0, cuDeviceGetUuid=uuid_of)

    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver(0))
    assert gpu_uuid() == "00010203-0405-0607-0809-0a0b0c0d0e0f"
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver(100))
    assert gpu_uuid() is None


@pytest.mark.gpu
def test_card_of_a_peer_is_the_one_that_torch_finds():
    """Driver and torch report the same GPU UUID."""
    assert card_hash(gpu_uuid()) == fingerprint(torch.device("cuda"))["gpu_uuid_hash"]


def test_what_disturbed_both_sides_is_said_once():
    """Remarks about both sides of a pair appear once."""
    loud = Host(load_before=0.0, pinned_cores=None, others_busy=0.5)
    ours, theirs = record(host=loud), record(host=loud, warm_up={"settled": False, "cap_s": 2.0})
    assert sides._remarks(ours, theirs) == [
        "ours and theirs: other processes used 50% of our cores",
        "theirs: times did not stabilise in 2.0 s of warm-up",
    ]


def test_peer_on_another_card_is_refused(fakes, monkeypatch):
    """A peer on a different GPU is refused."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(sides, "fingerprint", lambda device: {"gpu_uuid_hash": card_hash("mine")})
    with pytest.raises(NotComparable, match=rf"must use our GPU \(got {card_hash('mine')} and {card_hash('else')}"):
        sides._require_our_card(smoke("gymnax"), "GPU-else")
    sides._require_our_card(smoke("gymnax"), "GPU-mine")


def test_warp_drive_steps_and_trains_with_its_own_run_config(fakes, tmp_path):
    """WarpDrive steps and trains with its own run config.

    It runs from a copy of its packages, and cannot change the installed ones.
    """
    files = warp_drive_files(step=1)
    files["warp_drive/env_wrapper.py"] += "\nimport pathlib; pathlib.Path(__file__).with_name('written').touch()\n"
    fakes("rl-warp-drive", files, version="2.7.1")
    jobs = chosen("smoke", ["rl-warp-drive"], ["variant=pycuda"])
    (stepped, _), (trained, _), (repeated,) = (records_of(job) for job in jobs)
    assert (stepped.status, trained.status) == ("ok", "ok"), (stepped.reason, trained.reason)
    assert (stepped.scope, trained.scope) == ("env", "train")
    assert stepped.correctness.before.detail.startswith("all 4 environments moved on by a step")
    assert stepped.work_per_run == {"env_steps": 4, "agent_steps": 20}
    assert trained.work_per_run == {"env_steps": 32, "agent_steps": 160}
    assert re.match(r"its 1 arrays of weights are finite after \d+ iterations", trained.correctness.after.detail)
    assert (stepped.notes["version"], stepped.threads) == ("2.7.1", None)
    assert stepped.notes["shims"] == "gymnasium is imported as gym"
    assert repeated.is_evidence, repeated.reason
    assert (repeated.case, repeated.scope, repeated.notes["difference"]) == ("peer_determinism", "determinism", None)
    assert repeated.notes["reference"]["architecture"] == "sm_90"
    assert "none in 3 iterations" in markdown([repeated])
    assert not list(tmp_path.rglob("written"))


CLEANRL_FAKE = """
import argparse, os, torch
parser = argparse.ArgumentParser()
for name in ("env-id", "num-envs", "num-steps", "total-timesteps", "seed"):
    parser.add_argument("--" + name)
args = parser.parse_args()
n_steps = int(args.num_envs) * int(args.num_steps)
weight = torch.nn.Parameter(torch.ones(3))
adam = torch.optim.Adam([weight])
for iteration in range(int(args.total_timesteps) // n_steps):
    for _ in range(16):
        noise = os.getpid() * 1e-3 if iteration else 0.0
        adam.zero_grad()
        (weight * (1.0 + noise)).sum().backward()
        adam.step()
"""


@pytest.mark.nightly
def test_cleanrl_is_repeated_and_its_difference_is_named(fakes):
    """The script runs unchanged; noise from iteration 2 on is found there."""
    fakes("cleanrl", {"cleanrl/ppo.py": CLEANRL_FAKE})
    (record,) = records_of(smoke("cleanrl-determinism", "usual"))
    assert record.is_evidence, record.reason
    assert record.notes["difference"]["iteration"] == 2
    assert record.notes["difference"]["tensor"].startswith("policy/shared/")


def test_purejaxrl_yields_the_state_of_each_iteration(monkeypatch):
    """The carry of its outer loop is stored after each iteration, of no other."""

    def scan(step, carry, xs, length):
        every = []
        for _ in range(length):
            carry, y = step(carry, None)
            every.append(y)
        return carry, [np.stack(leaf) for leaf in zip(*every, strict=True)] if every[0] is not None else None

    lax = SimpleNamespace(scan=scan)

    def make_train(config):
        def step(carry, _):
            (weights, seen), _ = lax.scan(lambda inner, _: ((inner[0] + 1, inner[1] * 2), None), carry, None, 3)
            return (weights, seen), None

        def train(key):
            last, metrics = lax.scan(step, (np.zeros(2), np.ones(1)), None, config["TOTAL_TIMESTEPS"] // 8)
            return {"runner_state": last, "metrics": metrics}

        return train

    tree = SimpleNamespace(
        tree_leaves_with_path=lambda leaves: [((SimpleNamespace(idx=2 * i),), leaf) for i, leaf in enumerate(leaves)],
        keystr=lambda path: f"[{path[0].idx}].params",
    )
    options = {
        "config": SimpleNamespace(update=lambda name, value: None),
        "devices": lambda: [SimpleNamespace(device_kind="fake", compute_capability="9.0")],
    }
    jax = SimpleNamespace(
        lax=lax,
        jit=functools.cache,  # traces once
        random=SimpleNamespace(PRNGKey=int),
        block_until_ready=lambda each: each,
        tree_util=tree,
        **options,
    )
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setattr(purejaxrl, "imported", lambda: SimpleNamespace(make_train=make_train))
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    point = {"env": "cartpole", "n_envs": 4, "n_steps": 2, "algorithm": "PPO", "precision": "fp32", "n_iterations": 2}
    found = purejaxrl.repeat({**point, "options": {"flags": "--deterministic"}})
    assert os.environ.pop("XLA_FLAGS") == "--deterministic"
    assert (found["architecture"], len(found["seconds"])) == ("sm_90", 2)
    name = "policy/shared/model/[0].params"
    assert [(state[name][0], state["env/observations"][0]) for state in found["states"]] == [(0, 1), (3, 8), (6, 64)]


def test_warp_drive_whose_clocks_stand_still_is_wrong(fakes):
    """WarpDrive environments with constant clocks fail the check."""
    fakes("rl-warp-drive", warp_drive_files(step=0), version="2.7.1")
    (record,) = records_of(smoke("rl-warp-drive", "pycuda"))
    assert record.status == "failed"
    assert "rl-warp-drive: ArithmeticError at trace: 0 of 4 environments" in record.reason


@pytest.mark.parametrize("env", IDS)
def test_steps_of_gymnasium_are_ours_and_a_wrong_one_is_seen(env):
    """Gymnasium's steps match ours; a changed one is found."""
    work = prepare({"env": env, "n_envs": 3, "options": {"vectorization_mode": "sync"}})
    work.run()
    trace = work.trace()
    seen = correctness(env, trace)
    assert seen.passed, seen.detail
    assert np.shape(trace["before"])[0] == 3
    trace["after"][2][-1] += 0.01
    assert not correctness(env, trace).passed


# ------------------------------------------------------------------ the catalogue


@pytest.mark.parametrize(
    ("peer", "variant", "backend", "is_in_one_launch"),
    [
        ("gymnax", "scan-8", "host", True),
        ("gymnax", "scan-8", "cpu", False),
        ("gymnax", "step", "host", False),
        ("jaxmarl", "scan", "host", False),
    ],
)
def test_ours_takes_many_steps_a_launch_where_the_peer_does(peer, variant, backend, is_in_one_launch):
    """Ours and the peer take equally many steps per launch.

    With several agents, or on the reference, ours takes single steps.
    """
    case, point = smoke(peer, variant).ours(backend)
    assert case == ("many_steps" if is_in_one_launch else "env_step")
    assert point.get("mode") == ("fused" if is_in_one_launch else None)
    facts = CASES[case].setup(point).facts
    assert facts.work["env_steps"] % (100 * 4 if is_in_one_launch else 4) == 0


@pytest.mark.parametrize("name", PEERS)
def test_every_point_of_a_peer_is_the_same_work_of_ours(name):
    """Each peer point has the same work as ours."""
    for preset in PLANS:
        if preset == "paper" and not PEERS[name].points(preset):
            continue
        for job in chosen(preset, [name], []):
            assert job.given["options"] == job.peer.variants[job.point["variant"]]
            if job.axes["work"] == "repeat":
                continue  # not paired with ours
            case, point = job.ours("cpu")
            assert "variant" not in point
            assert case in CASES
            assert point["env"] in ENVS
            if case == "train":
                config = RunConfig.from_dict(settings(point))
                assert config.trainer.num_envs == job.axes["n_envs"]
                assert preset == "smoke" or anchor(point).by in (JAX, WARPDRIVE)


@pytest.mark.parametrize(("returned", "steps"), [(10.0, 64), (40.0, 40)])
def test_stable_baselines3_stops_at_the_mean_of_its_latest_episodes(monkeypatch, returned, steps):
    """It stops when the latest 8 episodes reach the threshold.

    The first four have no return, so six others must.
    """
    from bench.peers.adapters.learners import stable_baselines3 as adapter

    class PPO:
        def __init__(self, policy, envs, *, learning_rate, **_):
            self.num_timesteps, self.rate = 0, learning_rate

        def learn(self, total_steps, callback):
            while self.num_timesteps < total_steps:
                self.num_timesteps += 4
                reward = 0.0 if self.num_timesteps <= 16 else returned
                if not callback({"infos": [{"episode": {"r": reward}}, {}]}, {}):
                    return

        def get_env(self):
            return None

    def evaluate_policy(model, envs, n_episodes, *, return_episode_rewards):
        return [returned] * n_episodes, []

    fake = {
        "stable_baselines3": SimpleNamespace(PPO=PPO),
        "stable_baselines3.common": SimpleNamespace(),
        "stable_baselines3.common.env_util": SimpleNamespace(make_vec_env=lambda *given, **named: None),
        "stable_baselines3.common.evaluation": SimpleNamespace(evaluate_policy=evaluate_policy),
    }
    for name, module in fake.items():
        monkeypatch.setitem(sys.modules, name, module)
    threads = list[int]()
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    options = {"learning_rate": 0.5, "clip_range": 0.2, "decays": True, "threads": 3}
    sizes = {"n_envs": 4, "total_steps": 64, "row_steps": 16, "n_episodes": 3, "is_timed": True}
    monkeypatch.setattr(returns, "N_EPISODES", 8)
    learner = adapter.solve({"env": "cartpole", "seed": 1, "threshold": 30.0, "options": options, **sizes})
    assert (learner._model.rate(0.5), threads) == (0.25, [3])
    found = learner.report()
    ends = sorted({*range(16, steps + 1, 16), steps})
    assert found["rows"] == [(end, 2 if end == 40 else 4, 0.0 if end == 16 else returned) for end in ends]
    assert found["env_steps"] == steps
    assert found["played"] == [returned] * 3
