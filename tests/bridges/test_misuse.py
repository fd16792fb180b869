"""Misuse of bridges: wrong step order, actions or seeds."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

from envs import CartPole, Covid19Economy
from envs.classic_control.pendulum import Pendulum
from tests.environments.counter import Counter
from tests.support import on_every_fast_backend, push
from warpdrive_min import CUDASampler, EnvWrapper
from warpdrive_min.bridges.dlpack import assign
from warpdrive_min.errors import ActionError, ConfigError, DataError

pytest.importorskip("gymnasium")
pytest.importorskip("pettingzoo")
pytest.importorskip("torchrl")

from gymnasium.error import ResetNeeded
from tensordict import TensorDict

from warpdrive_min.bridges.gymnasium import GymnasiumEnv, GymnasiumVectorEnv
from warpdrive_min.bridges.pettingzoo import PettingZooParallelEnv
from warpdrive_min.bridges.torchrl import TorchRLEnv


class Case:
    """Bridge to a one-agent environment, with ``n`` copies."""

    def __init__(self, bridge: str, env: Any, n: int = 3, **options: Any) -> None:
        self.kind, self.n = bridge, n if bridge in ("tensors", "arrays", "torchrl") else 1
        classes = {"plain": GymnasiumEnv, "parallel": PettingZooParallelEnv, "torchrl": TorchRLEnv}
        options |= {"to_numpy": True} if bridge == "arrays" else {}
        options |= {} if isinstance(env, EnvWrapper) else {"num_envs": self.n}
        self.env = classes.get(bridge, GymnasiumVectorEnv)(env, **options)

    def step(self, actions: Any) -> Any:
        """Step with one action per copy, in the bridge's form."""
        if self.kind == "torchrl":
            return self.env.step(TensorDict({"action": torch.as_tensor(actions)}, [self.n]))
        if self.kind == "tensors":
            return self.env.step(torch.as_tensor(actions))
        return self.env.step({"plain": actions[0], "parallel": {"agent_0": actions[0]}}.get(self.kind, actions))

    def actions(self, last: Any, like: Any = 0) -> np.ndarray:
        """Return actions: ``like`` for each copy, ``last`` for the last."""
        return np.array([*[like] * (self.n - 1), last])


KINDS = ["tensors", "arrays", "plain", "parallel", "torchrl"]
on_every_bridge = pytest.mark.parametrize("kind", KINDS)


# ------------------------------------------------------------------ torch's graph


@on_every_fast_backend
@on_every_bridge
def test_actions_of_a_graph_leave_it(kind, backend):
    """Actions with gradients are accepted, and no array joins their graph."""
    case = Case(kind, Pendulum(), env_backend=backend)
    data = case.env.wrapper.cuda_data_manager
    case.env.reset()
    weight = torch.ones(1, requires_grad=True, device=data.device)
    output = torch.full((case.n, 1), 0.5, device=data.device) * weight
    for _ in range(2):
        if kind == "torchrl":
            case.env.step(TensorDict({"action": output}, [case.n]))
        else:
            case.env.step({"plain": output[0], "parallel": {"agent_0": output[0]}}.get(kind, output))
        assert (data.tensor("sampled_actions") == 0.5).all()
        case.env.reset()
    assert not any(data.tensor(name).requires_grad for name in data.array_names())


@on_every_fast_backend
def test_tensors_of_a_graph_are_taken_by_the_core(backend):
    """The core accepts tensors with gradients in every place.

    They may be actions, a rollout's policy, pushed data, or a single environment's action.
    """
    wrapper = EnvWrapper(Pendulum(), num_envs=2, env_backend=backend, auto_reset=True)
    wrapper.reset()
    data, weight = wrapper.cuda_data_manager, torch.ones(1, requires_grad=True)
    actions = torch.full((2, 1, 1), 0.5) * weight
    CUDASampler(wrapper.cuda_function_manager).assign(data, actions, "sampled_actions")
    wrapper.step()
    for keep in ("last", "all"):
        wrapper.rollout(3, actions.expand(3, 2, 1, 1).contiguous().to(data.device), keep=keep)
    push(data, "pushed", actions)
    assert not any(data.tensor(name).requires_grad for name in data.array_names())
    wrapper.env.reset()
    wrapper.env.step({0: actions[0, 0]})


# ------------------------------------------------------------------ the order of calls


@on_every_bridge
@pytest.mark.parametrize("is_reset", [False, True])
def test_step_needs_a_reset(kind, is_reset):
    """A step before `reset` raises, also if the wrapper was reset.

    Gymnasium's bridges raise an error that is also Gymnasium's.
    """
    env = CartPole()
    if is_reset:
        env = EnvWrapper(env, num_envs=1)
        env.reset()
    case = Case(kind, env, n=1)
    with pytest.raises(ConfigError, match=r"\w\.step: no episode is running; call reset\(\)") as caught:
        case.step(case.actions(1))
    assert isinstance(caught.value, ResetNeeded) == (kind in ("tensors", "arrays", "plain"))
    case.env.reset()
    case.step(case.actions(1))


@on_every_bridge
def test_closed_environment_takes_no_step(kind):
    """A closed bridge refuses to step and reset."""
    case = Case(kind, CartPole())
    case.env.reset()
    case.env.close()
    with pytest.raises(ConfigError, match=r"\w\.step: the environment is closed; create a new one"):
        case.step(case.actions(1))
    with pytest.raises(ConfigError, match=r"\w\.reset: the environment is closed; create a new one"):
        case.env.reset()


MASKS = ["abc", [[1], [1, 2]], np.array([True, False]), np.ones(3)]


@pytest.mark.parametrize("options", ["abc", [1], *({"reset_mask": mask} for mask in MASKS)])
def test_options_of_another_type_are_refused(options):
    """The error names the options of a wrong type."""
    case = Case("tensors", CartPole())
    with pytest.raises(ConfigError, match=r"GymnasiumVectorEnv.reset: options.* must be "):
        case.env.reset(options=options)


@pytest.mark.parametrize("actions", [None, [0], "agent_0"])
def test_parallel_actions_must_be_a_mapping(actions):
    """Actions must be a mapping from agents to actions."""
    env = PettingZooParallelEnv(CartPole())
    env.reset()
    with pytest.raises(ActionError, match=r"step: actions: must be a Mapping .* give a dict"):
        env.step(actions)


@pytest.mark.parametrize("space", ["action_space", "observation_space"])
def test_space_of_an_unknown_agent_is_refused(space):
    """The error for an unknown agent lists the known ones."""
    with pytest.raises(ConfigError, match=r"unknown agent .got 'bob'.; known are agent_0"):
        getattr(PettingZooParallelEnv(CartPole()), space)("bob")


@pytest.mark.parametrize("kind", ["tensors", "arrays", "torchrl"])
def test_first_reset_starts_all(kind):
    """A first reset with a partial mask is refused."""
    case, some, all_of_them = Case(kind, CartPole()), torch.tensor([True, False, True]), torch.ones(3, dtype=torch.bool)

    def reset(mask):
        if kind == "torchrl":
            return case.env.reset(TensorDict({"_reset": mask[:, None]}, [3]))
        options = {"reset_mask": mask.numpy()}
        case.env.reset(options=options)
        assert "reset_mask" in options

    with pytest.raises(ConfigError, match=r"reset: the first reset must start all copies"):
        reset(some)
    reset(all_of_them)
    case.step(case.actions(1))
    reset(some)


def test_plain_env_warns_after_the_end_and_pays_nothing():
    """A step after the end warns once per episode.

    Gymnasium's CartPole does so too. The reward is 0.
    """
    env = GymnasiumEnv(CartPole(episode_length=2))
    for _ in range(2):
        env.reset()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert [env.step(0)[1::2] for _ in range(2)] == [(1.0, False), (1.0, True)]
        with pytest.warns(UserWarning, match=r"GymnasiumEnv.step: the episode has ended; call reset") as caught:
            assert [env.step(0)[1] for _ in range(3)] == [0.0] * 3
        assert len(caught) == 1


@pytest.mark.parametrize("kind", ["tensors", "arrays"])
def test_vector_env_without_auto_reset_wants_ended_copies_reset(kind):
    """Without auto-reset, an error names ended copies that need a reset.

    Gymnasium's SyncVectorEnv does so in the mode DISABLED.
    """
    case = Case(kind, CartPole(episode_length=2), auto_reset=False)
    case.env.reset()
    case.step(case.actions(1))
    case.env.reset(options={"reset_mask": np.array([True, False, False])})
    case.step(case.actions(1))
    match = r"environments that ended must be reset first .got \[1, 2\]"
    with pytest.raises(ResetNeeded, match=match):
        case.step(case.actions(1))
    case.env.reset(options={"reset_mask": np.array([False, True, False])})
    with pytest.raises(ResetNeeded, match=r".got \[2\]"):
        case.step(case.actions(1))
    case.env.reset()
    case.step(case.actions(1))


# ------------------------------------------------------------------ actions


@on_every_bridge
@pytest.mark.parametrize(
    ("env", "wrong"),
    [
        (CartPole, 7),
        (CartPole, -1),
        (CartPole, 2**32),
        (CartPole, np.int8(2)),
        (Pendulum, [np.nan]),
        (Pendulum, [2.1]),
        (Pendulum, [-np.inf]),
        (Pendulum, [3]),
    ],
)
def test_actions_outside_their_space_are_refused(kind, env, wrong):
    """The error names action, value and space, and nothing is stepped."""
    case = Case(kind, env())
    case.env.reset()
    actions = case.actions(wrong, like=[0] if env is Pendulum else 0)
    before = case.env.wrapper.cuda_data_manager.tensor("observations").clone()
    index = {"plain": r"\[0\]" if env is Pendulum else "", "parallel": r"\[0\]" if env is Pendulum else ""}
    index = index.get(kind, r"\[2, 0\]" if env is Pendulum else r"\[2\]")
    name = "the action of agent_0" if kind == "parallel" else "actions"
    number = f"{np.ravel(wrong)[0]:g}".replace("+", r"\+")
    space = "Discrete" if env is CartPole else "Box"
    match = rf"^\w+\.step: {name}{index}: must be from -?\d to \d .got {number}; 1 of .* here {space}[^\n]*$"
    with pytest.raises(ActionError, match=match):
        case.step(actions)
    assert torch.equal(case.env.wrapper.cuda_data_manager.tensor("observations"), before)


@on_every_bridge
@pytest.mark.parametrize(
    ("env", "wrong"),
    [(CartPole, [1.0]), (CartPole, [True]), (CartPole, [1j]), (CartPole, [[0]]), (Pendulum, [[1j]]), (Pendulum, [0.0])],
)
def test_actions_of_another_kind_or_shape_are_refused(kind, env, wrong):
    """Actions of another kind or shape are refused."""
    case = Case(kind, env(), n=1)
    case.env.reset()
    with pytest.raises(ActionError, match=r"step: (actions must (be|have)|the action of agent_0 must be of)"):
        case.step(np.array(wrong))


@pytest.mark.parametrize("wrong", ["left", None, [[0], [0, 1], 1], [None] * 3, {}, [2**70] * 3, object()])
def test_what_is_no_array_of_numbers_is_refused(wrong):
    """A non-numeric array gives a one-line error, not torch's."""
    envs = GymnasiumVectorEnv(CartPole(), num_envs=3)
    envs.reset()
    with pytest.raises(ActionError, match=r"^[^\n]*step: actions must [^\n]*$"):
        envs.step(wrong)
    game = PettingZooParallelEnv(CartPole())
    game.reset()
    with pytest.raises(ActionError, match=r"^[^\n]*step: the action of agent_0 must be of [^\n]*$"):
        game.step({"agent_0": wrong})


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
@on_every_bridge
def test_integers_of_every_size_are_choices(kind, dtype):
    """Integers of every size are choices; the largest one is refused."""
    case = Case(kind, CartPole())
    case.env.reset()
    case.step(case.actions(1).astype(dtype))
    with pytest.raises(ActionError, match="must be from 0 to 1"):
        case.step(np.full(case.n, np.iinfo(dtype).max, dtype))


def test_bounds_are_those_of_float32():
    """Numbers that round to a float32 bound are accepted."""
    for kind in KINDS:
        case = Case(kind, Pendulum())
        case.env.reset()
        for value in (2.0, np.nextafter(2.0, 3), -2, np.float16(2)):
            case.step(np.array([[value]] * case.n))


def test_roles_are_named():
    """The error names the agent by its role and index.

    PettingZoo has a name for each agent, TorchRL an index in the agent's group.
    """
    env = PettingZooParallelEnv(Covid19Economy(episode_length=5, num_subsidy_levels=4))
    env.reset()
    actions = dict.fromkeys(env.agents, 1)
    match = r"the action of government_51: must be from 0 to 5 .got 6; .* here Discrete.n=6."
    with pytest.raises(ActionError, match=match):
        env.step(actions | {"government_51": 6})
    env.step(actions | {"government_51": 5, "governor_3": 10})


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_values_on_a_gpu_are_checked_where_the_bridge_waits(kind):
    """NumPy actions are always checked, GPU tensors only with ``debug``."""
    case = Case(kind, CartPole(), env_backend="pycuda")
    case.env.reset()
    if kind in ("tensors", "torchrl"):
        case.step(torch.full((3,), 7, device="cuda"))
        case = Case(kind, CartPole(), env_backend="pycuda", debug=True)
        case.env.reset()
        with pytest.raises(ActionError, match=r"must be from 0 to 1 .got 7"):
            case.step(torch.full((3,), 7, device="cuda"))
    if kind != "torchrl":
        with pytest.raises(ActionError, match=r"must be from 0 to 1 .got 7"):
            case.step(case.actions(7) if kind != "tensors" else torch.full((3,), 7))


# ------------------------------------------------------------------ the wrapper


@pytest.mark.parametrize(
    ("actions", "match"),
    [
        ({0: 1, 1: 2, 2: 0}, r"step: the action of agent 1: must be from 0 to 1 .got 2"),
        ({0: 1, 3: 0}, r"step: the action of agent 3: unknown agent; known are 0, 1, 2"),
        ({0: 0.5}, r"step: the action of agent 0 must be integers .got torch.float32"),
        ({0: [1]}, r"step: the action of agent 0 must have shape .. .got .1,"),
    ],
)
def test_debug_checks_the_actions_of_the_python_environment(actions, match):
    """On `cpu`, the wrapper checks each agent's action only with ``debug``."""
    wrapper = EnvWrapper(Counter(), debug=True)
    wrapper.reset()
    with pytest.raises(ActionError, match=match):
        wrapper.step(actions)
    wrapper.step({0: 1, 1: 0, 2: 1})


def test_debug_finds_nan():
    """With ``debug``, NaN is found.

    NaN is neither below nor above a bound.
    """
    wrapper = EnvWrapper(Pendulum(), num_envs=2, debug=True)
    wrapper.reset()
    wrapper.cuda_data_manager.tensor("sampled_actions")[1] = float("nan")
    with pytest.raises(ActionError, match=r"sampled_actions\[1, 0, 0\]: must be from -2 to 2 .got nan"):
        wrapper.step()


# ------------------------------------------------------------------ seeds


@pytest.mark.parametrize("backend", ["cpu", "host"])
def test_seed_for_each_copy(backend):
    """Each copy starts by its seed; None continues its draws."""
    envs = GymnasiumVectorEnv(CartPole(), num_envs=3, env_backend=backend, seed=1)
    unseeded = envs.reset()[0]
    alone = {seed: envs.reset(seed=seed)[0] for seed in (1, 2, 2**63)}
    assert torch.equal(unseeded, alone[1])
    assert len(torch.cat([*alone.values()]).unique(dim=0)) == 9
    seeds = [2, 2**63, 2]
    first, second = envs.reset(seed=seeds)[0], envs.reset()[0]
    for row, seed in enumerate(seeds):
        assert torch.equal(first[row], alone[seed][row])
    for given in (seeds, tuple(seeds), np.array(seeds, np.uint64)):
        assert torch.equal(envs.reset(seed=given)[0], first)
        assert torch.equal(envs.reset()[0], second)
    envs.reset(seed=1)
    nexts = envs.reset()[0]
    envs.reset(seed=1)
    mixed = envs.reset(seed=[None, 1, None])[0]
    assert torch.equal(mixed[[0, 2]], nexts[[0, 2]])
    assert torch.equal(mixed[1], alone[1][1])
    envs.reset(seed=1)
    assert torch.equal(envs.reset(seed=[None] * 3)[0], nexts)
    mask = {"reset_mask": np.array([False, True, True])}
    masked = envs.reset(seed=[2, 1, 2], options=mask)[0]
    assert torch.equal(masked, torch.stack([nexts[0], alone[1][1], alone[2][2]]))


def test_seeds_of_agents_are_those_of_their_environment():
    """A seed list needs equal seeds for one environment's agents."""
    envs = GymnasiumVectorEnv(Counter(), num_envs=2, agents_as_envs=True, auto_reset=False)
    envs.reset(seed=[1, 1, 1, 2, 2, 2])
    with pytest.raises(ConfigError, match=r"seed: must be the same for all agents of an environment, .* .got .1, 2, 1"):
        envs.reset(seed=[1, 2, 1, 2, 2, 2])


@pytest.mark.parametrize(
    "seed", [[1], [1, 2, 3, 4], [1, 2, -1], [1, 2, 2**64], [1, 2, 0.5], [1, 2, "3"], "abc", 0.5, {1: 2}, [True] * 3]
)
def test_wrong_seeds_are_refused(seed):
    """Invalid seeds raise a one-line error, and nothing restarts."""
    envs = GymnasiumVectorEnv(CartPole(), num_envs=3)
    before = envs.reset()[0]
    with pytest.raises(ConfigError, match=r"^[^\n]*seed: must be (an integer|in |at least |at most )[^\n]*$"):
        envs.reset(seed=seed)
    assert torch.equal(envs.wrapper.cuda_data_manager.tensor("observations")[:, 0], before)


@pytest.mark.parametrize("seed", [-1, 2**64, "a", 0.5])
@pytest.mark.parametrize("kind", ["parallel", "torchrl"])
def test_seeds_that_are_none_are_refused_where_they_are_given(kind, seed):
    """Invalid seeds are refused.

    PettingZoo's in reset, TorchRL's in set_seed.
    """
    env = Case(kind, CartPole()).env
    with pytest.raises(ConfigError, match=r"seed: must be (an integer|in |at least |at most )"):
        env.reset(seed=seed) if kind == "parallel" else env._set_seed(seed)


# ------------------------------------------------------------------ DLPack


@pytest.mark.parametrize(
    ("source", "match"),
    [
        (np.full((2, 1, 1), 0.5), r"assign: 'sampled_actions' must get numbers of torch.int32 .got torch.float64"),
        (np.zeros((2, 1, 1), np.complex64), r"must get numbers of torch.int32 .got torch.complex64"),
        ([[[1]], [[0]]], r"must get an array that supports DLPack"),
        (None, r"must get an array that supports DLPack"),
        (np.array([[["1"]], [["0"]]]), r"must get an array that supports DLPack"),
    ],
)
def test_assign_refuses_what_an_array_cannot_hold(source, match):
    """`assign` refuses real numbers for integers, and non-arrays."""
    wrapper = EnvWrapper(CartPole(), num_envs=2)
    wrapper.reset()
    with pytest.raises(DataError, match=rf"^[^\n]*{match}[^\n]*$"):
        assign(wrapper.cuda_data_manager, "sampled_actions", source)
