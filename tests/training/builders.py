"""Shared by training tests: run configs, trainers, and run states."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributions import Categorical, Normal

from envs import ENVS
from tests.support import BACKENDS_HERE, is_simulated
from warpdrive_min import BACKENDS, EnvWrapper
from warpdrive_min.agreement.compare import differing
from warpdrive_min.backends import host
from warpdrive_min.errors import ConfigError
from warpdrive_min.training.config import PolicyConfig, TrainerConfig
from warpdrive_min.training.loop.arrays import SharedLayout
from warpdrive_min.training.loop.policies import PolicyGroup, is_weight
from warpdrive_min.training.loop.rollout import RolloutBuffer, RolloutRecorder
from warpdrive_min.training.trainer import Trainer

TAG = {
    "num_taggers": 2,
    "num_runners": 3,
    "grid_length": 2.0,
    "episode_length": 7,
    "max_acceleration": 0.2,
    "min_acceleration": -0.2,
    "num_acceleration_levels": 2,
    "num_turn_levels": 2,
    "use_full_observation": False,
    "num_other_agents_observed": 2,
    "tagging_distance": 0.2,
    "seed": 3,
}
"""Tag Continuous with five agents, whose taggers and runners alternate."""
CLASSIC = {"episode_length": 9}

SMALL = {"fc_dims": [8]}
A2C = {"to_train": True, "algorithm": "A2C", "lr": 1e-2, "model": SMALL}
PPO = {**A2C, "algorithm": "PPO", "n_epochs": 2, "n_minibatches": 2}
NORMALISED = {**SMALL, "normalize_observations": True}
CENTRAL = {"centralised_critic": SMALL}
DDPG = {
    **A2C,
    "algorithm": "DDPG",
    "tau": 0.1,
    "buffer_size": 60,
    "batch_size": 8,
    "updates_per_iteration": 2,
    "model": {"actor": SMALL, "critic": SMALL},
}
RUNS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "A2C": ("cartpole", CLASSIC, {"shared": A2C}),
    "PPO": ("cartpole", CLASSIC, {"shared": PPO}),
    "PPO, continuous": ("pendulum", CLASSIC, {"shared": PPO}),
    "DDPG": ("pendulum", CLASSIC, {"shared": DDPG}),
    "shared": ("tag_continuous", TAG, {"shared": A2C}),
    "shared, grid": ("tag_gridworld", {"num_taggers": 3, "grid_length": 4, "episode_length": 7}, {"shared": PPO}),
    "two policies": ("tag_continuous", TAG, {"runner": A2C, "tagger": PPO}),
}
"""Small runs: environment, its config, policies."""

SEED = 11
COEFFICIENTS = {"lr": 0.02, "vf_loss_coeff": 0.3, "entropy_coeff": 0.05}
"""Scheduled numbers of A2C and PPO in tests of one update."""
TIMES = ("seconds", "steps_per_s", "rollout_s", "update_s", "capture_s")
MADE: list[Trainer] = []
"""Trainers that `conftest` closes after the test."""

ON_GPU = [pytest.param(backend, marks=pytest.mark.gpu) for backend in ("numba", "pycuda")]
FAST = [each for each in BACKENDS_HERE if not is_simulated(each.values[0])]
FAST_OR_ON_GPU = [*(each for each in FAST if not each.marks), *ON_GPU]
"""Backends that run here, but for Numba's simulator."""


def need_interpreter() -> None:
    """Skip a test of Triton's interpreter if a GPU is available."""
    if torch.cuda.is_available():
        pytest.skip("Triton's kernels are interpreted where there is no GPU")


def runs_here(*names, backends=BACKENDS_HERE, on_numba=None, nightly=()):
    """Return backends and names, or tuples of names, as test parameters.

    Numba's simulator runs the first one only. On a GPU Numba runs ``on_numba``; the others are nightly, since it
    compiles each for seconds; those in ``nightly`` are so on every backend.
    """
    parameters = []
    for backend in backends:
        (name_of_backend,) = backend.values
        simulated = is_simulated(name_of_backend)
        for name in names[:1] if simulated else names:
            is_slow = name in nightly or (
                name_of_backend == "numba" and not simulated and on_numba is not None and name not in on_numba
            )
            words = name if isinstance(name, tuple) else (name,)
            marks = [*backend.marks, *([pytest.mark.nightly] if is_slow else [])]
            parameters.append(pytest.param(name_of_backend, *words, marks=marks))
    return parameters


def run_config(policies, n_envs=4, n_steps=6, backend="cpu", *, basedir="unused", trainer=None, **saving) -> dict:
    """Return a run config as a mapping, with an endless run."""
    return {
        "trainer": {
            "num_envs": n_envs,
            "num_episodes": 10**6,
            "train_batch_size": n_envs * n_steps,
            "env_backend": backend,
            "seed": 7,
            **(trainer or {}),
        },
        "policy": policies,
        "saving": {"basedir": str(basedir), "metrics_log_freq": 1, **saving},
    }


def make_trainer(env, policies, backend="cpu", *, n_envs=4, seed=7, wrapper=None, folder="run", **given) -> Trainer:
    """Return a quiet trainer; `run_config` explains the arguments."""
    arguments = {"policies": given.pop("agents", None), "layout": given.pop("layout", None)}
    given["trainer"] = {"seed": seed} | (given.get("trainer") or {})
    config = run_config(policies, n_envs, backend=backend, **given)
    options = {"auto_reset": True} | (wrapper or {})
    copies = EnvWrapper(env, num_envs=n_envs, env_backend=backend, **options)
    MADE.append(Trainer(copies, config, folder=folder, verbose=False, **arguments))
    return MADE[-1]


def make_run(run, backend="cpu", **given) -> Trainer:
    """Return a trainer of a run in `RUNS`, or a similar one."""
    env, env_config, policies = RUNS[run] if isinstance(run, str) else run
    return make_trainer(ENVS[env](**env_config), policies, backend, **given)


def require_same_weights(one: Trainer, other: Trainer, before: dict[str, torch.Tensor], within: float) -> None:
    """Check that two trainers learned the same, within rounding.

    Every weight must differ from its value before.
    """
    taught = [weights(trainer) for trainer in (one, other)]
    for name, weight in taught[0].items():
        assert not torch.equal(weight, before[name]), name
        torch.testing.assert_close(weight, taught[1][name], rtol=0, atol=within)


def require_that_it_goes_on(make: Callable[..., Trainer], basedir: Path) -> None:
    """Check that a resumed run equals an uninterrupted one, which is the first."""
    folders = ("whole", {}), ("parts", {}), ("parts", {"seed": 99})
    whole, first, second = (make(basedir=basedir / name, **given) for name, given in folders)
    whole.train(4)
    first.train(2)
    first.save_checkpoint()
    second.load_checkpoint()
    second.train(2)
    assert not differences(everything(whole), everything(second))


def make_recorder(wrapper, n_steps) -> RolloutRecorder:
    """Return a recorder of all agents of a started wrapper."""
    arrays = SharedLayout().arrays(wrapper, {"all": list(wrapper.env.action_space)})
    return RolloutRecorder(wrapper, n_steps, arrays["all"])


def make_buffer(n_steps, n_envs, n_agents, n_truncated=1, n_features=1, n_types=2, device="cpu") -> RolloutBuffer:
    """Return a zero buffer; without last observations if ``n_truncated`` is 0."""
    rows = (n_steps, n_envs, n_agents)

    def zeros(*shape, dtype=torch.float32):
        return torch.zeros(shape, dtype=dtype, device=device)

    return RolloutBuffer(
        observations=zeros(n_steps + 1, *rows[1:], n_features),
        masks=None,
        actions=zeros(*rows, n_types),
        log_probs=zeros(*rows),
        rewards=zeros(*rows),
        **{flag: zeros(*rows[:2], dtype=torch.int32) for flag in ("terminated", "truncated", "successes")},
        truncated_observations=zeros(n_truncated, *rows[1:], n_features) if n_truncated else None,
    )


def make_group(config: PolicyConfig, models, space, buffer) -> PolicyGroup:
    """Return a policy "p" that learns from a buffer."""
    n_envs, n_agents = buffer.rewards.shape[1:]
    timestep = torch.zeros(n_envs, dtype=torch.int32, device=buffer.rewards.device)
    arrays = SimpleNamespace(space=space, rewards=buffer.rewards[0], timestep=timestep, n_agents=n_agents)
    arrays.backend = "numba" if timestep.is_cuda else "host"
    arrays.mask, arrays.own_columns, arrays.last_observations = buffer.masks, None, ()
    return PolicyGroup("p", config, arrays, models, buffer)


def make_algorithm(kind, settings, models, space, buffer, *, rate=0.0, **trainer):
    """Return an algorithm with scheduled values, DDPG's as `rate`.

    Its ``iterate()`` learns from the buffer.
    """
    n_steps, n_envs = buffer.terminated.shape
    shared = TrainerConfig(num_envs=n_envs, train_batch_size=n_steps * n_envs, **trainer)
    made = kind(make_group(settings, models, space, buffer), shared, BACKENDS["cpu"], SEED)
    made.iterate = functools.partial(learn, made, buffer)
    for name, tensor in made.scheduled.items():
        tensor.fill_(COEFFICIENTS.get(name, rate))
    return made


def distributions(space, head, masks=None, log_std=None):
    """Return torch's own distribution of each type of action."""
    if space.is_continuous:
        return [Normal(mean, scale) for mean, scale in zip(head.unbind(-1), log_std.exp(), strict=True)]
    if masks is not None:
        head = head.masked_fill(masks == 0, -torch.inf)
    return [Categorical(logits=logits) for logits in head.split(list(space.categories), -1)]


def log_prob_and_entropy(space, head, actions, masks=None, log_std=None):
    """Return torch's own log-probability of actions, and entropy, summed over types."""
    each = distributions(space, head, masks, log_std)
    log_prob = sum(one.log_prob(action) for one, action in zip(each, actions.unbind(-1), strict=True))
    return log_prob, sum(one.entropy() for one in each).expand_as(log_prob)


def learn(algorithm, buffer) -> None:
    """Let an algorithm learn from a rollout, as the trainer does."""
    algorithm.compute_returns(buffer)
    algorithm.update(buffer)


@contextlib.contextmanager
def refused(what, got=..., error=ConfigError):
    """Expect an error with this subject and value."""
    with pytest.raises(error) as caught:
        yield
    assert (caught.value.what, caught.value.got) == (what, got)


@contextlib.contextmanager
def limited(n_bytes: int):
    """Limit the size of files of this process and its children.

    No bytecode is written: older Pythons leave a truncated `.pyc`, which the next import fails on.
    """
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "dont_write_bytecode", True)
        patch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def everything(trainer) -> dict[str, torch.Tensor]:
    """Return a copy of a run's full state, by name."""
    state, _ = trainer.state()
    return {name: tensor.detach().cpu().clone() for name, tensor in state.items()}


def weights(trainer) -> dict[str, torch.Tensor]:
    """Return a copy of all models' parameters and buffers, by name."""
    return {name: tensor for name, tensor in everything(trainer).items() if is_weight(name)}


def rows_of(trainer) -> list[dict[str, Any]]:
    """Return a run's metric rows, without clock values."""
    return rows_in(trainer.folder)


def rows_in(folder) -> list[dict[str, Any]]:
    """Return the metric rows of a folder."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name not in TIMES} for line in lines]


def fingerprint(trainer) -> str:
    """Return a hash of every bit of `everything`."""
    digest = hashlib.sha256()
    for name, tensor in sorted(everything(trainer).items()):
        digest.update(name.encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def differences(first, second) -> list[str]:
    """Return names of tensors that differ, or exist only once."""
    arrays = ({name: tensor.cpu() for name, tensor in each.items()} for each in (first, second))
    return sorted((first.keys() ^ second.keys()) | set(differing(*arrays)))


def build_quickly() -> None:
    """Build this program's kernels as the tests' own process does."""
    if not torch.cuda.is_available():
        host.OPTIMISATION = "-Og"


@pytest.fixture(scope="module", autouse=True)
def surroundings_of_ranks():
    """Let ranks find this program, without a setting for threads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OMP_NUM_THREADS", raising=False)
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)
        yield
