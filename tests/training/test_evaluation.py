"""Evaluation: scores of known policies by hand; training is unaffected."""

from __future__ import annotations

import itertools
import random
import threading
from functools import partial

import numpy as np
import pytest
import torch

from tests.environments.clock import Clock
from tests.support import by_day
from tests.training.builders import FAST_OR_ON_GPU, RUNS, make_run, refused
from warpdrive_min import EnvWrapper
from warpdrive_min.dialect.episodes import episode_states
from warpdrive_min.dialect.layout import WarpDriveLayout
from warpdrive_min.errors import DataError
from warpdrive_min.training.loop.evaluation import MAX_KEPT, EvaluationEnvs, Evaluator, evaluate


class Always(torch.nn.Module):
    """Policy with constant outputs, which prefers later choices.

    It plays Clock; other outputs can be given.
    """

    def __init__(self, *logits):
        super().__init__()
        self.logits = torch.tensor(logits or (0.0, 1.0, 2.0))

    def act(self, observations):
        return self.logits.expand(*observations.shape[:-1], -1)


ALL = {"shared": [0, 1]}
SPLIT = {"even": [0, 2], "odd": [1]}


def scores(env=None, policies=ALL, layout=None, model=None, **given):
    """Return the scores of `Always` where training copies restart automatically."""
    wrapper = EnvWrapper(env or Clock(), num_envs=2, auto_reset=True)
    models = dict.fromkeys(policies, model or Always())
    return evaluate(wrapper, models, policies, layout, **{"n_episodes": 5, **given})


def fetch(trainer, **given):
    """Return the actions of an episode by the deprecated method."""
    with pytest.warns(DeprecationWarning, match="fetch_episode_states: 0.2 removes it"):
        return trainer.fetch_episode_states(["sampled_actions"], **given)


# ------------------------------------------------------------------ scores


@pytest.mark.parametrize("breaks_at", [0, 3])
def test_first_episode_alone_counts(breaks_at):
    """Only the first episode counts, even before a NaN.

    Two steps of five score 28.
    """
    score = scores(Clock(episode_length=5, ends_at=2, breaks_at=breaks_at))["shared"]
    assert (score.mean_return, score.mean_steps, score.standard_error, score.n_episodes) == (28, 2, 0, 5)


@pytest.mark.parametrize(
    ("env", "policies", "layout"),
    [
        (Clock(num_agents=3), SPLIT, None),
        (Clock(num_agents=3, is_last=True), SPLIT, WarpDriveLayout(agents_axis="last")),
        (Clock(num_agents=3, policies=SPLIT), SPLIT, WarpDriveLayout(separate=True)),
    ],
    ids=["interleaved", "last", "separate"],
)
def test_each_policy_gets_the_score_of_its_agents(env, policies, layout):
    """Each policy gets its agents' score.

    Agents 0 and 2 earn 2 and 22 a step, agent 1 earns 12.
    """
    got = scores(env, policies, layout)
    assert {name: score.mean_return for name, score in got.items()} == {"even": 72, "odd": 36}
    assert got["even"].mean_agent_return == 36


def test_masks_hold_in_evaluation():
    """Evaluation draws no masked action.

    Best allowed choices: agent 0 takes 2, 2, 1, agent 1 takes 2, 1, 2.
    """
    assert scores(Clock(is_masked=True))["shared"].mean_return == 40


def test_one_episode_has_no_spread():
    """The standard error of one episode is 0, not NaN."""
    assert scores(n_episodes=1)["shared"].standard_error == 0


def test_no_episode_is_refused():
    """An evaluation needs at least one episode."""
    with refused("evaluate.n_episodes", 0):
        scores(n_episodes=0)


def test_ddpg_is_evaluated_without_noise(tmp_path):
    """DDPG is evaluated without noise, greedy or not."""
    trainer = make_run("DDPG", basedir=tmp_path)
    first, second = (trainer.evaluate(4, greedy=greedy) for greedy in (True, False))
    assert first == second
    assert trainer.evaluate(4, seed=1) != first


# ------------------------------------------------------------------ the environment's own state


class Drifting(Clock):
    """Clock whose Python step changes lists and generators, and rewards by them."""

    def __init__(self):
        super().__init__()
        self.past, self.by_name = [], {"latest": np.zeros(1)}
        self.generators = (np.random.default_rng(3), random.Random(4), torch.Generator().manual_seed(5))
        self.lock = threading.Lock()

    def step(self, actions=None):
        result = super().step(actions)
        of_numpy, of_python, of_torch = self.generators
        self.past.append(of_numpy.random() + of_python.random() + torch.rand(1, generator=of_torch).item())
        self.by_name["latest"] += self.past[-1]
        self.cuda_data_manager.tensor("rewards").add_(sum(self.past) + float(self.by_name["latest"][0]))
        return result


class OwnWrapper(EnvWrapper):
    """Wrapper with another constructor, so evaluations borrow its environments."""

    def __init__(self, env):
        super().__init__(env, num_envs=5)


@pytest.mark.parametrize("wrap", [OwnWrapper, partial(EnvWrapper, num_envs=5, auto_reset=True)])
def test_evaluations_share_no_python_state_with_training(wrap):
    """Lists and generators change neither later scores nor training."""
    (wrapper, alone) = made = [wrap(Drifting()) for _ in range(2)]
    for each in made:
        each.reset()
    evaluator = Evaluator(wrapper, ALL)
    models = {"shared": Always()}
    first = evaluator.scores(models, 5)
    assert first["shared"].mean_return > 42.1
    assert evaluator.scores(models, 5) == first == Evaluator(wrapper, ALL).scores(models, 5)
    for each in made:
        each.step()
        each.step()
    assert len(wrapper.env.past) == 2
    assert wrapper.env.past == alone.env.past
    if wrapper.can_be_repeated:
        assert Evaluator(wrapper, ALL).scores(models, 5) == first == evaluator.scores(models, 5)


# ------------------------------------------------------------------ kept environments and graphs

LONG = {"episode_length": 40}
PLAYED = {
    "A2C": ("cartpole", LONG, RUNS["A2C"][2]),
    "DDPG": ("pendulum", LONG, RUNS["DDPG"][2]),
    **{name: RUNS[name] for name in ("PPO, continuous", "shared, grid", "two policies")},
    "recurrent": ("pendulum", LONG, {"shared": {**RUNS["A2C"][2]["shared"], "model": {"fc_dims": [8], "type": "gru"}}}),
}


def of_a_loop(trainer, n_episodes, greedy, seed):
    """Play all steps in new environments; return returns and steps."""
    given = (trainer.wrapper, trainer.acting_models, trainer.policy_map, trainer.layout)
    envs = EvaluationEnvs(*given, n_episodes, seed)
    data = envs.wrapper.cuda_data_manager
    is_playing = torch.ones(n_episodes, dtype=torch.bool, device=data.device)
    steps = torch.zeros(n_episodes, device=data.device)
    returns = {name: torch.zeros(n_episodes, group.arrays.n_agents, device=data.device) for name, group in
               envs.groups.items()}  # fmt: skip
    for _ in range(envs.wrapper.episode_length):
        envs.act(greedy)
        envs.wrapper.step()
        steps += is_playing
        for name, group in envs.groups.items():
            rewards = torch.zeros_like(returns[name])
            group.arrays.pick(group.arrays.rewards, rewards)
            returns[name] += torch.where(is_playing[:, None], rewards, 0.0)
        is_playing &= data.tensor("_done_") == 0
    return returns, steps


SCORED = list(itertools.product(PLAYED, (True, False)))
SCORED_BY_DAY = [each for each in SCORED[::4] + SCORED[3::4] if each[0] != "two policies"]
"""Greedy and drawn actions, one agent and several, and a memory."""


@pytest.mark.parametrize(("name", "greedy"), by_day(SCORED, SCORED_BY_DAY))
@pytest.mark.parametrize("backend", FAST_OR_ON_GPU)
def test_evaluation_equals_a_loop_in_new_environments(backend, name, greedy, tmp_path):
    """Restarts, early stops and graphs change no bit of a score."""
    trainer = make_run(PLAYED[name], backend, basedir=tmp_path)
    seen = []
    for _ in range(3):
        scores = trainer.evaluate(20, greedy=greedy, seed=5)
        returns, steps = of_a_loop(trainer, 20, greedy, 5)
        assert trainer.evaluate(20, greedy=greedy, seed=5) == scores, "restarted"
        for policy, total in returns.items():
            score = scores[policy]
            assert score.mean_return == float(total.double().sum(1).mean())
            assert score.standard_error == float(total.double().sum(1).std()) / 20**0.5
            assert score.mean_steps == float(steps.double().mean())
        seen.append(scores)
        trainer.train(2)
    assert seen[0] != seen[-1], "the weights must make a difference"


def test_environments_are_kept_for_equal_arguments(tmp_path, monkeypatch):
    """Two sets stay; other arguments or models get new ones."""
    made, like = [], EnvWrapper.like
    monkeypatch.setattr(EnvWrapper, "like", lambda *of, **given: made.append(given["seed"]) or like(*of, **given))
    trainer = make_run("A2C", basedir=tmp_path)
    for seed in (1, 2, 1, 2, 3, 2, 3, 1):
        trainer.evaluate(4, seed=seed)
        trainer.evaluate(4, seed=seed, greedy=False)
    assert made == [1, 2, 3, 1]
    assert len(trainer._evaluator._kept) == MAX_KEPT
    trainer.evaluate(5, seed=1)
    group = trainer.groups["shared"]
    group.models = {"model": torch.nn.ModuleList([group.models["model"]])[0]}
    trainer.evaluate(5, seed=1)
    assert made == [1, 2, 3, 1, 1], "the same model"
    group.models = {"model": Always(0.0, 1.0)}
    assert trainer.evaluate(5, seed=1)["shared"].mean_steps > 0
    assert made == [1, 2, 3, 1, 1, 1]
    trainer.graceful_close()
    assert trainer._evaluator._kept == {}


# ------------------------------------------------------------------ episodes


def states(env, list_of_states=("observations",), policies=ALL, layout=None, model=None, **given):
    """Return the fetched states of an episode of `Always`."""
    wrapper = EnvWrapper(env, num_envs=2, auto_reset=True)
    models = dict.fromkeys(policies, model or Always())
    return episode_states(wrapper, models, policies, layout, list_of_states, **given)


def test_episode_states_end_in_nan():
    """Episode states end in NaN after an early end.

    2 of 5 steps give 3 rows of states, 2 of actions.
    """
    env = Clock(episode_length=5, ends_at=2)
    names = ["observations", "sampled_actions", "rewards"]
    seen, chances = states(env, names, env_id=1, include_probabilities=True, greedy=True)
    observations, actions, rewards = seen["observations"], seen["sampled_actions"][1:], seen["rewards"][1:]
    assert (observations.shape, actions.shape, rewards.shape) == ((6, 2, 2), (5, 2, 1), (5, 2))
    assert {array.dtype for array in (observations, actions, rewards)} == {np.dtype(np.float64)}
    assert observations[:3, 0, 0].tolist() == [0, 1, 2]
    assert observations[:3, 1, 1].tolist() == [1, 1, 1]
    assert actions[:2].flatten().tolist() == [2] * 4
    assert rewards[:2].tolist() == [[2, 12]] * 2
    for array, n_rows in ((observations, 3), (actions, 2), (rewards, 2)):
        assert np.isnan(array[n_rows:]).all()
    assert list(chances) == [0, 1]
    want = torch.tensor([0.0, 1.0, 2.0]).softmax(0)
    np.testing.assert_allclose(chances[0]["shared"], want.expand(2, 3), rtol=1e-6)


def test_episode_states_fill_all_rows_of_a_whole_episode():
    """States of a complete episode contain no NaN.

    States alone come as a dict.
    """
    got = states(Clock())
    assert list(got) == ["observations"]
    assert got["observations"][:, 0, 0].tolist() == [0, 1, 2, 3]


def test_probabilities_are_those_under_the_mask():
    """Forbidden choices have probability 0; the others add up to 1."""
    env = Clock(is_masked=True)
    _, chances = states(env, ["observations_action_mask"], include_probabilities=True)
    for step, each in chances.items():
        forbidden = [(step + agent) % 3 for agent in range(2)]
        assert each["shared"][[0, 1], forbidden].tolist() == [0, 0]
        np.testing.assert_allclose(each["shared"].sum(-1), 1, rtol=1e-6)


def test_episode_of_separate_arrays_is_named_by_policy():
    """Separate arrays are fetched by their names."""
    env, names = Clock(num_agents=3, policies=SPLIT), ["sampled_actions_odd", "rewards_even"]
    got = states(env, names, SPLIT, WarpDriveLayout(separate=True), greedy=True)
    assert got["sampled_actions_odd"].shape == (4, 1, 1)
    assert got["rewards_even"][1:].tolist() == [[2, 22]] * 3


def test_episode_states_must_be_there():
    """A request for an unknown array is refused."""
    with pytest.raises(DataError, match="'place' has no row for each environment"):
        states(Clock(), ["place"])


def test_continuous_probabilities_are_the_mean(tmp_path):
    """For continuous actions, the mean replaces probabilities.

    Greedy actions equal it.
    """
    trainer = make_run("PPO, continuous", basedir=tmp_path)
    seen, means = fetch(trainer, include_probabilities=True, greedy=True)
    actions = seen["sampled_actions"][1:]
    assert len(means) == len(actions)
    for step, each in means.items():
        np.testing.assert_allclose(each["shared"], actions[step], rtol=1e-6)
