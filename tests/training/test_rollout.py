"""Rollout: stored data equal the events, for every arrangement of agents."""

from __future__ import annotations

import pytest
import torch

from envs import ENVS
from tests.environments.clock import N_CHOICES, Clock
from tests.environments.counter import Counter
from tests.support import SCENARIOS, is_simulated
from tests.training.builders import (
    A2C,
    CENTRAL,
    FAST,
    PPO,
    RUNS,
    differences,
    everything,
    log_prob_and_entropy,
    make_run,
    make_trainer,
    runs_here,
    weights,
)
from warpdrive_min import EnvWrapper
from warpdrive_min.dialect.layout import WarpDriveLayout
from warpdrive_min.environment import seed_resets
from warpdrive_min.training.build import RESET_SEED, derived_seed

SEED = 7
N_ENVS = 3


def play(trainer):
    """Play one rollout and return each policy's batch, by name."""
    trainer.schedules.write(trainer.steps_per_iteration)
    trainer.collect()
    return {name: group.buffer for name, group in trainer.groups.items() if group.buffer is not None}


def host(array):
    """Return a copy on the host."""
    return array.detach().cpu().clone()


# ------------------------------------------------------------------ played again


FORMS = [(name, auto_reset) for auto_reset in (True, False) for name in RUNS]
ON_NUMBA = [("A2C", True), ("shared, grid", True), ("DDPG", False)]


@pytest.mark.parametrize(("backend", "name", "auto_reset"), runs_here(*FORMS, on_numba=ON_NUMBA))
def test_rollout_keeps_what_happens(backend, name, auto_reset, tmp_path):
    """A rollout's actions, played again, give its stored data.

    Observations, rewards and ends of copies with an equal seed, and sums over episodes.
    """
    n_steps = 12 if not is_simulated(backend) else 4
    given = {"n_envs": N_ENVS, "n_steps": n_steps, "wrapper": {"auto_reset": auto_reset}, "basedir": tmp_path}
    trainer = make_run(name, backend, trainer={"fused_rollout": False}, **given)
    batches = play(trainer)
    env, config, _ = RUNS[name]
    wrapper = EnvWrapper(ENVS[env](**config), num_envs=N_ENVS, env_backend=backend, auto_reset=auto_reset)
    wrapper.reset()
    data = wrapper.cuda_data_manager
    seed_resets(data, derived_seed(SEED, RESET_SEED, 0))
    wrapper.reset()
    space = next(iter(trainer.groups.values())).arrays.space
    low, high = torch.tensor([space.low, space.high]) if space.is_continuous else (0, 99)
    running, finished = torch.zeros(2, N_ENVS, trainer.wrapper.n_agents + 1)
    n_ends = torch.zeros(N_ENVS, dtype=torch.int32)
    cuts = {policy: [[] for _ in range(N_ENVS)] for policy in batches}
    for step in range(n_steps):
        actions = host(data.tensor("sampled_actions"))
        for policy, batch in batches.items():
            rows = trainer.policy_map[policy]
            assert torch.equal(host(batch.observations[step]), host(data.tensor("observations"))[:, rows]), step
            actions[:, rows] = host(batch.actions[step]).clamp(low, high)
        data.tensor("sampled_actions").copy_(actions)
        wrapper.step()
        last = host(data.tensor("final_observations" if auto_reset else "observations"))
        flags = {flag: host(data.tensor(flag)) for flag in ("terminated", "truncated")}
        for policy, batch in batches.items():
            rows = trainer.policy_map[policy]
            assert torch.equal(host(batch.rewards[step]), host(data.tensor("rewards"))[:, rows]), step
            for flag, value in flags.items():
                assert torch.equal(host(getattr(batch, flag)[step]), value), step
            for index in flags["truncated"].nonzero().flatten().tolist():
                cuts[policy][index].append(last[index, rows])
        assert torch.equal(host(trainer.recorders[""].successes[step]), flags["terminated"])
        running += torch.cat([host(data.tensor("rewards")), torch.ones(N_ENVS, 1)], -1)
        has_ended = (flags["terminated"] | flags["truncated"])[:, None] != 0
        finished += running * has_ended
        running *= ~has_ended
        n_ends += has_ended[:, 0]
        if not auto_reset:
            wrapper.reset_only_done_envs()
    for policy, batch in batches.items():
        rows = trainer.policy_map[policy]
        assert torch.equal(host(batch.observations[-1]), host(data.tensor("observations"))[:, rows])
        for index, observations in enumerate(cuts[policy]):
            for slot, observation in enumerate(observations):
                assert torch.equal(host(batch.truncated_observations[slot, index]), observation)
    assert n_ends.any() or is_simulated(backend), "an episode must end"
    sums = {name: host(tensor) for name, tensor in trainer.recorders[""].state().items()}
    assert torch.equal(sums.pop("finished_episodes"), n_ends)
    for name, want in (("running", running), ("finished", finished)):
        assert torch.equal(sums.pop(f"{name}_return"), want[:, :-1])
        assert torch.equal(sums.pop(f"{name}_steps"), want[:, -1].int())
    assert not sums


@pytest.mark.parametrize("auto_reset", [True, False])
@pytest.mark.parametrize("backend", FAST)
def test_environment_in_warpdrives_manner_is_played(backend, auto_reset, tmp_path):
    """An environment in WarpDrive's style is played.

    It only sets ``_done_``, and the core restarts it: ends and action counts.
    """
    env = Counter(num_agents=3, episode_length=3, limit=99)
    trainer = make_trainer(
        env, {"shared": A2C}, backend, wrapper={"auto_reset": auto_reset}, n_steps=7, basedir=tmp_path
    )
    batch = play(trainer)["shared"]
    ends = torch.tensor([0, 0, 1, 0, 0, 1, 0], dtype=torch.int32)[:, None].expand(7, 4)
    assert torch.equal(host(batch.terminated), ends)
    assert not batch.truncated.any()
    assert batch.truncated_observations is None
    count = torch.zeros(4, 3)
    for step in range(7):
        assert torch.equal(host(batch.observations[step, ..., 0]), count)
        count += host(batch.actions[step, ..., 0])
        assert torch.equal(host(batch.rewards[step]), count * torch.tensor([0.5, 1, 1.5]))
        count *= 1 - ends[step, :, None]
    assert torch.equal(host(batch.observations[-1, ..., 0]), count)
    assert 0 < batch.actions.float().mean() < 1


@pytest.mark.parametrize(("backend", "name"), runs_here("A2C", "PPO, continuous", "two policies"))
def test_stored_log_probs_are_those_of_the_stored_actions(backend, name, tmp_path):
    """Stored log-probabilities equal torch's for the stored actions."""
    trainer = make_run(name, backend, n_envs=2, n_steps=3, basedir=tmp_path)
    for policy, batch in play(trainer).items():
        group = trainer.groups[policy]
        with torch.no_grad():
            head = group.acting.act(batch.observations[:-1])
        log_std = getattr(group.acting, "log_std", None)
        want, _ = log_prob_and_entropy(group.arrays.space, head, batch.actions, log_std=log_std)
        torch.testing.assert_close(batch.log_probs, want, rtol=1e-5, atol=1e-5)
        assert len(batch.actions.unique()) > 1


@pytest.mark.parametrize("backend", FAST)
def test_rollouts_follow_one_another(backend, tmp_path):
    """A rollout begins where the last one ended.

    It draws other actions.
    """
    trainer = make_run("A2C", backend, n_steps=8, basedir=tmp_path)
    first = host(play(trainer)["shared"].observations)
    actions = host(play(trainer)["shared"].actions)
    batch = play(trainer)["shared"]
    assert not torch.equal(first[0], host(batch.observations[0]))
    before = host(batch.observations[-1])
    assert torch.equal(before, host(play(trainer)["shared"].observations[0]))
    assert not torch.equal(actions, host(batch.actions))


# ------------------------------------------------------------------ arrays of each policy


def clock(tmp_path, agents=None, n_steps=4, policy=None, **config):
    """Return a trainer of Clock with given agents and settings."""
    kinds = {name: {**A2C, "gamma": 0.5, **(policy or {})} for name in agents or {"shared": None}}
    separate = config.get("policies") is not None
    layout = WarpDriveLayout(separate, "last" if config.get("is_last") else "first")
    wrapper = {"auto_reset": config.pop("auto_reset", True)}
    return make_trainer(
        Clock(**config), kinds, wrapper=wrapper, n_steps=n_steps, basedir=tmp_path, agents=agents, layout=layout
    )


ARRANGEMENTS = {
    "shared": {"num_agents": 3},
    "interleaved": {"num_agents": 4, "agents": {"even": [0, 2], "odd": [1, 3]}},
    "out of order": {"num_agents": 3, "agents": {"odd": [1], "even": [2, 0]}},
    "separate": {"num_agents": 3, "policies": {"even": [0, 2], "odd": [1]}},
    "separate, last": {"num_agents": 5, "policies": {"even": [0, 2, 4], "odd": [1, 3]}, "is_last": True},
    "separate, last, alone": {"num_agents": 3, "policies": {"even": [0, 2], "odd": [1]}, "is_last": True},
    "last": {"num_agents": 3, "is_last": True},
    "last, as many agents as features": {"num_agents": 2, "is_last": True},
    "last, alone": {"num_agents": 1, "is_last": True},
    "last, interleaved": {"num_agents": 4, "agents": {"even": [0, 2], "odd": [1, 3]}, "is_last": True},
    "masked": {"num_agents": 3, "is_masked": True},
    "masked, interleaved": {"num_agents": 4, "agents": {"even": [0, 2], "odd": [1, 3]}, "is_masked": True},
}


def assert_shown(seen, last, members):
    """Assert that observations are Clock's times and agent ids."""
    times, members = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1.0]), torch.tensor(list(members)).float()
    assert torch.equal(seen[..., 0], times[:, None, None].expand(8, 4, len(members)))
    assert torch.equal(seen[..., 1], members.expand(8, 4, -1))
    if last is not None:
        assert torch.equal(last[:2, ..., 0], torch.full((2, 4, len(members)), 3.0))
        assert torch.equal(last[:2, ..., 1], members.expand(2, 4, -1))


@pytest.mark.parametrize("has_critic", [False, True])
@pytest.mark.parametrize("auto_reset", [True, False])
@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_agents_and_centralised_critics_get_what_is_theirs(arrangement, auto_reset, has_critic, tmp_path):
    """Each agent and each critic receives its own data.

    Every agent sees its id and the time, and is paid for its action. Last observations are its own. A critic sees
    those of all agents, in the order of the arrays, whatever its policy has.
    """
    config = {**ARRANGEMENTS[arrangement], "auto_reset": auto_reset}
    agents, everyone = config.pop("agents", config.get("policies")), range(config["num_agents"])
    batches = play(clock(tmp_path, agents, n_steps=7, policy=CENTRAL if has_critic else None, **config))
    for policy, batch in batches.items():
        members = (agents or {policy: everyone})[policy]
        assert_shown(batch.observations, batch.truncated_observations if batch.masks is None else None, members)
        assert torch.equal(batch.rewards, 10 * torch.tensor(list(members)).float() + batch.actions[..., 0])
        assert len(batch.actions.unique()) == N_CHOICES
    if not has_critic:
        return
    if config.get("policies"):
        everyone = [agent for members in config["policies"].values() for agent in members]
    for batch in batches.values():
        last = batch.truncated_global_states.unflatten(-1, (-1, 2)) if batch.masks is None else None
        assert_shown(batch.global_states.unflatten(-1, (-1, 2)), last, everyone)
    storages = {batch.global_states.untyped_storage().data_ptr() for batch in batches.values()}
    assert len(storages) == 1, "policies share one"
    is_view = storages == {batch.observations.untyped_storage().data_ptr() for batch in batches.values()}
    assert is_view == (len(batches) == 1)


def test_masks_are_stored_with_each_step(tmp_path):
    """Each step's mask is stored, and applied to its action.

    It applies to the draw and to the log-probability.
    """
    trainer = clock(tmp_path, {"even": [0, 2], "odd": [1, 3]}, num_agents=4, is_masked=True, n_steps=7)
    for policy, batch in play(trainer).items():
        agents = torch.tensor(trainer.policy_map[policy])
        forbidden = (batch.observations[..., 0].long() + agents) % N_CHOICES
        want = torch.ones_like(batch.masks).scatter_(-1, forbidden[..., None], 0)
        assert torch.equal(batch.masks, want)
        assert not (batch.actions[..., 0] == forbidden[:-1]).any()
        with torch.no_grad():
            head = trainer.groups[policy].acting.act(batch.observations[:-1])
        want, _ = log_prob_and_entropy(trainer.groups[policy].arrays.space, head, batch.actions, batch.masks[:-1])
        torch.testing.assert_close(batch.log_probs, want, rtol=1e-5, atol=1e-5)


def test_policy_that_is_not_trained_acts_and_stays(tmp_path):
    """A policy that is not trained acts, with constant weights."""
    policies = {"even": A2C, "odd": {**PPO, "to_train": False}}
    agents = {"even": [0, 2], "odd": [1]}
    trainer = make_trainer(Clock(num_agents=3), policies, agents=agents, n_steps=6, basedir=tmp_path)
    before = weights(trainer)
    row = trainer.train(3)
    changed = differences(before, weights(trainer))
    assert changed
    assert all(name.startswith("policy/even/") for name in changed)
    assert 30 < row["odd/mean_episodic_return"] < 36, "three steps, 10 and a drawn action each"
    assert "odd/loss" not in row


# ------------------------------------------------------------------ time limits


class Watch(torch.nn.Module):
    """Model with Clock's value: ten times its time."""

    def value(self, observations):
        return 10 * observations[..., 0]


@pytest.mark.parametrize("policy", [{}, CENTRAL], ids=["own", "centralised"])
@pytest.mark.parametrize("ends_at", [0, 3])
@pytest.mark.parametrize("auto_reset", [True, False])
@pytest.mark.parametrize("arrangement", ["shared", "interleaved", "separate", "last"])
def test_time_limit_is_bootstrapped(arrangement, auto_reset, ends_at, policy, tmp_path):
    """A time limit is bootstrapped with the last value.

    With gamma 1/2 a step before a time limit returns reward + 30/2. Before an end it returns its reward alone. The
    last observation of the rollout is one step into the next episode and worth 10.
    """
    config = {**ARRANGEMENTS[arrangement], "auto_reset": auto_reset, "ends_at": ends_at}
    agents = config.pop("agents", config.get("policies"))
    trainer = clock(tmp_path, agents, policy=policy, **config)
    for name, batch in play(trainer).items():
        algorithm = trainer.groups[name].algorithm
        algorithm.model = Watch()
        if policy:
            n_agents = batch.rewards.shape[2]
            algorithm.critic = lambda states, n=n_agents: 10 * states[..., :1].expand(*states.shape[:-1], n)
        algorithm.compute_returns(batch)
        r = batch.rewards
        want = [0, 0, r[2] + (0 if ends_at else 15), r[3] + 5]
        want[1] = r[1] + want[2] / 2
        want[0] = r[0] + want[1] / 2
        torch.testing.assert_close(algorithm.returns, torch.stack(want))
        assert batch.terminated.any() == bool(ends_at)
        assert batch.truncated.any() != bool(ends_at)


# ------------------------------------------------------------------ steps that write into the buffer


def steps_directly(env):
    """True if agents share arrays without roles or masks."""
    return not (env.roles or env.masks_actions)


DIRECT = [name for name, (env, config) in SCENARIOS.items() if steps_directly(ENVS[env](**config))]
DIRECT_BY_DAY = ["cartpole", "tag_gridworld, partial, pool", "tag_continuous, spread", "rice, trade"]
DIRECT_BY_NIGHT = [name for name in DIRECT if name not in DIRECT_BY_DAY]


@pytest.mark.parametrize(
    ("backend", "scenario"), runs_here(*DIRECT, on_numba=DIRECT_BY_DAY[::2], nightly=DIRECT_BY_NIGHT)
)
def test_direct_steps_do_what_copies_do(tmp_path, monkeypatch, scenario, backend):
    """Direct steps equal steps with copies, bit by bit.

    Weights, environments and statistics over ends, if supported.
    """
    env, config = SCENARIOS[scenario]
    n_envs, n_steps = (2, 2) if is_simulated(backend) else (8, 40)
    ends = []
    for is_direct in (True, False):
        run = (env, config, {"all": {**PPO, "n_minibatches": 1, "model": {}}})
        sizes = {"n_envs": n_envs, "n_steps": n_steps, "trainer": {"fused_rollout": False}}
        trainer = make_run(run, backend, **sizes, basedir=tmp_path / str(is_direct))
        assert trainer.groups["all"].is_direct == is_direct
        trainer.train(2)
        ends.append(everything(trainer))
        monkeypatch.setattr(EnvWrapper, "bound_step", lambda self, **arrays: None)
    assert not differences(*ends)
    assert is_simulated(backend) or ends[0]["env/_episode_"].min() > 1, "episodes must end"
