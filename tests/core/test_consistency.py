"""Consistency checker: arguments, runs, spaces, reports and tolerances."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.environments.counter import Counter, PlainCounter, PythonCounter
from tests.support import managers, on_every_backend, on_every_other_backend, push
from warpdrive_min import CUDAEnvironmentContext, EnvironmentCPUvsGPU, EnvWrapper
from warpdrive_min.agreement import Tolerance, copy_state, difference, generate_random_actions, step_by_step
from warpdrive_min.dialect.layout import create_and_push_data_placeholders
from warpdrive_min.errors import ConfigError
from warpdrive_min.spaces import Box, Discrete, MultiDiscrete

CONFIGS = {"short": {"episode_length": 3, "limit": 100}, "limit": {"num_agents": 2, "episode_length": 9, "limit": 2}}

SPACES = {"discrete": Discrete(3), "several": MultiDiscrete([2, 5]), "box": Box(-1.0, 2.0, (2,))}

POLICIES = {"one": ["x"], "two": ["z", "y"]}


def checker(backend: str = "cpu", **arguments: object) -> EnvironmentCPUvsGPU:
    """Return a checker of Counter in two scenarios, three copies each."""
    arguments = {"dual_mode_env_class": Counter, "env_configs": CONFIGS, "num_envs": 3, **arguments}
    return EnvironmentCPUvsGPU(gpu_env_backend=backend, **arguments)


def against_counter(wrong: type, **arguments: object) -> EnvironmentCPUvsGPU:
    """Return a checker of a class with a fault."""
    return checker(dual_mode_env_class=None, cpu_env_class=Counter, cuda_env_class=wrong, **arguments)


def report_of(check: EnvironmentCPUvsGPU, *arguments: object, **named: object) -> str:
    """Return the report of a checker with an expected failure."""
    with pytest.raises(AssertionError) as caught:
        check.test_env_reset_and_step(*arguments, **named)
    return str(caught.value)


def draw_config(generator: np.random.Generator) -> dict[str, int]:
    """Draw a config of Counter."""
    return {
        "num_agents": int(generator.integers(1, 4)),
        "episode_length": int(generator.integers(1, 5)),
        "limit": int(generator.integers(1, 6)),
    }


class Summing:
    """Every agent observes its summed actions; the reward is their sum."""

    name = "Summing"

    def __init__(self, space: str = "box", is_dict: bool = False, episode_length: int = 3) -> None:
        self.num_agents, self.episode_length, self.is_dict = 3, episode_length, is_dict
        self.action_space = dict.fromkeys("xyz", SPACES[space])

    def reset(self):
        self.timestep = 0
        n_types = 1 if isinstance(self.action_space["x"], Discrete) else 2
        self.total = {agent: np.zeros(n_types, np.float32) for agent in self.action_space}
        return self.observe()

    def observe(self):
        return {
            agent: {"sum": total, "half": total / 2} if self.is_dict else total for agent, total in self.total.items()
        }

    def step(self, actions=None):
        self.timestep += 1
        self.total = {agent: total + actions[agent] for agent, total in self.total.items()}
        rewards = {agent: total.sum() for agent, total in self.total.items()}
        return self.observe(), rewards, {"__all__": self.timestep == self.episode_length}, {}


class SummingInKernels(Summing, CUDAEnvironmentContext):
    """Summing with kernels from `build`; `Placed` pushes the arrays."""

    kernel_sources = {"numpy": __name__}  # noqa: RUF012  (as in a manual)
    layout = "shared"
    error_of_z = 0.0

    def __init__(self, **config: object) -> None:
        super().__init__(**config)
        CUDAEnvironmentContext.__init__(self)

    def get_constants(self):
        return {"LAYOUT": ["dict", "shared", "first", "last"].index(self.layout), "ERROR_OF_Z": self.error_of_z}

    def step(self, actions=None):
        self.cuda_step()


def build(c):
    """Return Summing's NumPy step for an array layout."""

    def count(_timestep_, _done_):
        _timestep_ += 1
        _done_[_timestep_ >= c.EPISODE_LENGTH] = 1

    def shared(sampled_actions, observations, rewards, _timestep_, _done_):
        observations += sampled_actions
        rewards[:] = observations.sum(-1)
        count(_timestep_, _done_)

    def of_dicts(sampled_actions, observations_sum, observations_half, rewards, _timestep_, _done_):
        shared(sampled_actions, observations_sum, rewards, _timestep_, _done_)
        observations_half[:] = observations_sum / 2

    def separate(
        sampled_actions_one,
        sampled_actions_two,
        observations_one,
        observations_two,
        rewards_one,
        rewards_two,
        _timestep_,
        _done_,
    ):
        observations_one += sampled_actions_one
        by_agent = observations_two.swapaxes(1, 2) if c.LAYOUT == 3 else observations_two
        by_agent += sampled_actions_two
        by_agent[:, 0, 1] += c.ERROR_OF_Z
        rewards_one[:], rewards_two[:] = observations_one.sum(-1), by_agent.sum(-1)
        count(_timestep_, _done_)

    return {"step": [of_dicts, shared, separate, separate][c.LAYOUT]}


class Placed(EnvWrapper):
    """A wrapper that pushes placeholders as a trainer would."""

    def reset_all_envs(self):
        is_first = self.reset_on_host
        observations = super().reset_all_envs()
        if is_first:
            layout = self.env.layout
            is_separate = layout in ("first", "last")
            create_and_push_data_placeholders(
                self,
                policy_tag_to_agent_id_map=POLICIES if is_separate else None,
                create_separate_placeholders_for_each_policy=is_separate,
                obs_dim_corresponding_to_num_agents="last" if layout == "last" else "first",
                push_data_batch_placeholders=False,
            )
        return observations


def summing_checker(layout: str = "shared", error_of_z: float = 0.0, **config: object) -> EnvironmentCPUvsGPU:
    """Return a checker of Summing's kernels against its Python class."""
    wrong = type("Wrong", (SummingInKernels,), {"layout": layout, "error_of_z": error_of_z})
    is_separate = layout in ("first", "last")
    return EnvironmentCPUvsGPU(
        Summing,
        wrong,
        env_configs={"sums": config},
        gpu_env_backend="cpu",
        env_wrapper=Placed,
        policy_tag_to_agent_id_map=POLICIES if is_separate else None,
        create_separate_placeholders_for_each_policy=is_separate,
        obs_dim_corresponding_to_num_agents="last" if layout == "last" else "first",
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dual_mode_env_class": None}, "needs dual_mode_env_class, or cpu_env_class and cuda_env_class"),
        ({"dual_mode_env_class": None, "cpu_env_class": Counter}, "needs dual_mode_env_class"),
        ({"env_configs": {}}, "env_configs must have at least one scenario"),
        ({"env_configs": draw_config, "num_configs": 0}, r"num_configs: must be at least 1 \(got 0\)"),
        (
            {"create_separate_placeholders_for_each_policy": True},
            r"of more than one policy \(got None\); leave them off",
        ),
        ({"obs_dim_corresponding_to_num_agents": "middle"}, r"must be 'first' or 'last' \(got 'middle'\)"),
    ],
)
def test_arguments_are_checked(arguments, message):
    """Missing or unsupported arguments raise before anything runs."""
    with pytest.raises(ConfigError, match=message):
        checker(**arguments)


def test_policy_map_must_hold_every_agent_once():
    """A policy map must name every agent exactly once."""
    one = {"env_configs": {"one": CONFIGS["short"]}}
    checker(policy_tag_to_agent_id_map={"a": [0], "b": [2, 1]}, **one).test_env_reset_and_step(seed=0)
    for policies in ({"a": [0, 1]}, {"a": [0, 1, 2], "b": [2]}):
        with pytest.raises(ConfigError, match="must hold every agent once"):
            checker(policy_tag_to_agent_id_map=policies, **one).test_env_reset_and_step(seed=0)


def test_blocks_must_share_agents_evenly_if_asked():
    """Blocks must share the agents evenly on request."""
    check = checker(blocks_per_env=2, assert_equal_num_agents_per_block=True)
    with pytest.raises(ConfigError, match=r"3 agents must divide over blocks_per_env .got 2"):
        check.test_env_reset_and_step()


@on_every_other_backend
def test_resynchronising_needs_numpy_kernels(backend):
    """Resynchronised runs need NumPy kernels.

    Python objects cannot be put into the kernels' state.
    """
    with pytest.raises(ConfigError, match="'Counter' has no NumPy kernels to resynchronise"):
        checker(backend, dual_mode_env_class=PlainCounter).test_env_reset_and_step(resynchronise=True)


def test_environment_without_kernels_cannot_be_checked():
    """An environment without kernels cannot be checked."""
    with pytest.raises(ConfigError, match=r"'PythonCounter'.* has no kernels"):
        checker(dual_mode_env_class=PythonCounter, env_configs={"one": {}}).test_env_reset_and_step()


# ------------------------------------------------------------------ copies of the state


def test_copy_state_takes_the_first_environments():
    """A smaller copy gets the first environments and all shared arrays."""
    many, few = managers("cpu", n_envs=5)[0], managers("cpu", n_envs=2)[0]
    for data in (many, few):
        push(data, "row", np.zeros(3, np.float32), n_copies=data.n_envs)
        push(data, "shared", np.zeros(4, np.float32))
    many.tensor("row").copy_(torch.arange(5)[:, None])
    many.tensor("shared").fill_(7)
    push(many, "only there", np.zeros(1))
    copy_state(many, few)
    assert few.tensor("row").tolist() == [[0, 0, 0], [1, 1, 1]]
    assert few.tensor("shared").tolist() == [7] * 4


class Working(Counter):
    """Counter with a kernel workspace, meaningless between two steps."""

    def get_data_dictionary(self):
        feed = super().get_data_dictionary()
        feed.add_data("workspace", np.zeros(2, np.int32), per_env=True, scratch=True)
        return feed


def test_scratch_is_neither_copied_nor_compared():
    """Workspace arrays are neither copied nor compared."""
    pair = [EnvWrapper(Working(), num_envs=2) for _ in range(2)]
    for value, wrapper in enumerate(pair):
        wrapper.reset()
        wrapper.cuda_data_manager.tensor("workspace").fill_(value)
    seen = step_by_step(*pair, lambda: None, 2)
    assert seen.max_error == 0
    assert "count" in seen.largest
    assert "workspace" not in seen.largest
    assert pair[1].cuda_data_manager.tensor("workspace").tolist() == [[1, 1]] * 2


# ------------------------------------------------------------------ agreement


@on_every_backend
def test_kernels_agree_with_numpy(backend):
    """Kernels are bit-identical to NumPy over several episodes."""
    assert checker(backend).test_env_reset_and_step(seed=0) == 0
    assert checker(backend).test_env_reset_and_step(seed=0, resynchronise=True) == 0


@on_every_other_backend
def test_kernels_agree_with_python_objects(backend):
    """Kernels agree with Python objects if there are no NumPy kernels."""
    assert checker(backend, dual_mode_env_class=PlainCounter).test_env_reset_and_step(seed=0) == 0


def test_actions_are_fresh_at_every_step():
    """A seed repeats the run, with new actions each step.

    WarpDrive's checker repeats one action forever.
    """
    runs: list[list[bytes]] = []

    class Recording(Counter):
        def launch(self, arguments):
            runs[-1].append(arguments[3].numpy().tobytes())
            super().launch(arguments)

    for seed in (0, 0, 1):
        runs.append([])
        checker(dual_mode_env_class=Recording).test_env_reset_and_step(seed=seed)
    # Both sides of 2 episodes: of 3 steps and 3 agents, of 9 steps and 2.
    assert len(runs[0]) == 2 * 2 * (3 + 9)
    assert len(set(runs[0])) > 10
    assert runs[0] == runs[1] != runs[2]


# ------------------------------------------------------------------ resynchronised


class Changing(Counter):
    """Counter whose step also changes an array of some environments."""

    array, change = "label", 1
    envs = slice(None)

    def launch(self, arguments):
        super().launch(arguments)
        self.cuda_data_manager.tensor(self.array)[self.envs] += self.change


def test_resynchronised_run_compares_the_state():
    """A resynchronised run finds a wrong array that nothing observes.

    A free run does not compare it.
    """
    check = against_counter(Changing)
    assert check.test_env_reset_and_step(seed=0) == 0
    report = report_of(check, seed=0, resynchronise=True)
    assert report.startswith("scenario 'short', step 1: label of environment 0, component 0: want 0, got 1")


def test_resynchronised_errors_do_not_pile_up():
    """Errors do not add up in a resynchronised run."""

    class Drifting(Changing):
        array, change = "place", 0.006

    check = against_counter(Drifting)
    assert "step 3: observations" in report_of(check, seed=0)
    assert check.test_env_reset_and_step(seed=0, resynchronise=True) == pytest.approx(0.006, rel=1e-3)


def test_resynchronised_run_leaves_out_what_rounding_decides():
    """Rows that rounding decides may differ, except in exact builds."""

    class Doubtful(Counter):
        def rounding_decides(self, before, after):
            return np.arange(len(after["_done_"])) == 1, np.zeros((len(after["_done_"]), self.num_agents), bool)

    class Wrong(Doubtful, Changing):
        envs = 1

    arguments = {"dual_mode_env_class": None, "cpu_env_class": Doubtful, "cuda_env_class": Wrong}
    assert checker(**arguments).test_env_reset_and_step(seed=0, resynchronise=True) == 0
    report = report_of(checker(exact=True, **arguments), seed=0, resynchronise=True)
    assert "label of environment 1, component 0" in report


class AllDoubtful(Counter):
    """Counter with every environment in doubt."""

    def rounding_decides(self, before, after):
        return np.ones(len(after["_done_"]), bool), np.zeros((len(after["_done_"]), self.num_agents), bool)


def test_steps_of_which_every_row_is_in_doubt_do_not_agree():
    """A step with every row in doubt does not agree."""
    pair = [EnvWrapper(AllDoubtful(), num_envs=2) for _ in range(2)]
    for wrapper in pair:
        wrapper.reset()
    seen = step_by_step(*pair, lambda: None, 2)
    assert seen.n_in_doubt > 0
    assert seen.max_error == np.inf
    assert "nothing was compared" in str(seen)


def test_resynchronised_run_of_which_every_row_is_in_doubt_is_an_error():
    """A run with every row in doubt is an error.

    It would return 0 for kernels without any comparison.
    """
    check = checker(dual_mode_env_class=AllDoubtful)
    with pytest.raises(ConfigError, match="nothing was compared"):
        check.test_env_reset_and_step(seed=0, resynchronise=True)


def test_integers_of_the_state_must_be_equal():
    """Integers of the state must be equal.

    Half a per cent of a large count is an error: integers have no rounding.
    """

    class Miscounting(Changing):
        array = "_episode_"

        def launch(self, arguments):
            self.cuda_data_manager.tensor("_episode_").fill_(200)
            super().launch(arguments)

    class Counting(Miscounting):
        change = 0

    check = checker(dual_mode_env_class=None, cpu_env_class=Counting, cuda_env_class=Miscounting)
    assert "_episode_ of environment 0: want 200, got 201" in report_of(check, seed=0, resynchronise=True)


# ------------------------------------------------------------------ drawn configs


@pytest.mark.parametrize("resynchronise", [False, True])
def test_configs_can_be_drawn(resynchronise):
    """Drawn configs differ, and a seed repeats them."""
    drawn: list[str] = []

    def recorded(generator):
        config = draw_config(generator)
        drawn.append(str(config))
        return config

    check = checker(env_configs=recorded, num_configs=7)
    assert check.test_env_reset_and_step(seed=3, resynchronise=resynchronise) == 0
    assert len(drawn) == 7
    assert len(set(drawn)) > 4
    check.test_env_reset_and_step(seed=4)
    assert drawn[7:13] == drawn[1:7], "each config must have a seed of its own"


# ------------------------------------------------------------------ spaces, policies and layouts


@pytest.mark.parametrize("space", SPACES)
def test_every_kind_of_action_is_drawn_and_written(space, monkeypatch):
    """Each kind of action reaches both sides, and varies."""
    sums = []
    step = Summing.step
    monkeypatch.setattr(Summing, "step", lambda self, actions: (step(self, actions), sums.append(self.total["y"]))[0])
    assert summing_checker(space=space).test_env_reset_and_step(seed=0) < 1e-6
    assert len(np.unique(sums)) > 4


@pytest.mark.parametrize("layout", ["dict", "first", "last"])
def test_arrays_of_each_policy_and_entry_are_compared(layout):
    """Arrays of each policy and entry agree, in both layouts."""
    assert summing_checker(layout, is_dict=layout == "dict").test_env_reset_and_step(seed=0) < 1e-6


@pytest.mark.parametrize("layout", ["first", "last"])
def test_fault_in_an_array_of_a_policy_names_the_agent(layout):
    """A fault in a policy's array names the agent and component."""
    report = report_of(summing_checker(layout, error_of_z=0.5), seed=0)
    assert report.startswith("scenario 'sums', step 1: observations_two of environment ")
    assert re.search(r"environment \d, agent 'z', component 1: want .*, error 0.5 ", report)
    assert "3 of 12 elements of observations_two differ" in report


# ------------------------------------------------------------------ random actions


def test_random_actions_lie_in_their_spaces():
    """Random actions cover their spaces, and a seed repeats them."""
    spaces = {"a": Discrete(3), "b": MultiDiscrete([2, 5]), "c": Box(-1.0, 2.0, (4,))}
    env, generator = SimpleNamespace(action_space=spaces), np.random.default_rng(0)
    draws = [generate_random_actions(env, generator) for _ in range(200)]
    assert {int(each["a"]) for each in draws} == {0, 1, 2}
    b = np.stack([each["b"] for each in draws])
    assert (b.min(0).tolist(), b.max(0).tolist(), b.dtype) == ([0, 0], [1, 4], np.int32)
    c = np.stack([each["c"] for each in draws])
    assert -1 <= c.min() < -0.9 < 1.9 < c.max() <= 2
    assert c.dtype == np.float32
    np.testing.assert_array_equal(generate_random_actions(env, 5)["c"], generate_random_actions(env, 5)["c"])


def test_random_actions_need_bounds():
    """Random actions of an unbounded box raise."""
    env = SimpleNamespace(action_space={0: Box(-np.inf, 1.0, (2,))})
    with pytest.raises(ConfigError, match=r"needs finite bounds .*\(got .*Box.*use a bounded Box"):
        generate_random_actions(env, 0)


# ------------------------------------------------------------------ planted faults


class Heavier(Counter):
    """Counter with rewards too large by a factor."""

    factor = 1.1

    def __init__(self, **config: object) -> None:
        super().__init__(**config)
        self.weights = (self.weights * self.factor).astype(np.float32)


class Later(Counter):
    """Counter whose kernels have a limit of one more."""

    def get_constants(self):
        return {"LIMIT": self.limit + 1}


class Elsewhere(Counter):
    """Counter with another start."""

    def reset(self):
        super().reset()
        self.place = self.place + np.float32(0.25)
        return dict(enumerate(self.observe()))


@pytest.mark.parametrize("reference", [Counter, PlainCounter])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Heavier, r"scenario 'short', step \d: rewards of environment \d, agent 2: want .*, got .*, error .* \(10 %"),
        (Later, r"scenario 'limit', step \d: _done_ of environment \d: want 1, got 0"),
        (Elsewhere, r"step 0: observations of environment 0, agent 0, component 1: want 0.5, got 0.75, error 0.25"),
    ],
)
def test_planted_fault_is_found_and_named(reference, wrong, message):
    """A planted fault is reported with scenario, step, array and values."""
    check = checker(dual_mode_env_class=None, cpu_env_class=reference, cuda_env_class=wrong)
    with pytest.raises(AssertionError, match=message):
        check.test_env_reset_and_step(seed=0)


def test_report_says_everything():
    """A report has scenario, step, array, values, config and seed."""
    values = "want 0.5, got 0.75, error 0.25 (50 %, 4.19e+06 ulps)"
    assert report_of(against_counter(Elsewhere), seed=7).splitlines() == [
        f"scenario 'short', step 0: observations of environment 0, agent 0, component 1: {values}",
        "  9 of 18 elements of observations differ; the next:",
        f"    environment 0, agent 1, component 1: {values}",
        f"    environment 0, agent 2, component 1: {values}",
        f"    environment 1, agent 0, component 1: {values}",
        f"    environment 1, agent 1, component 1: {values}",
        "  environment 'Counter' on backend 'cpu', config {'episode_length': 3, 'limit': 100}",
        "  run it again with seed=7",
    ]


def test_report_names_a_seed_that_repeats_it():
    """A run without a seed reports one that repeats it."""
    check = against_counter(Heavier)
    report = report_of(check)
    seed = int(re.search(r"run it again with seed=(\d+)", report)[1])
    assert report_of(check, seed=seed) == report
    assert f"seed={seed}" not in report_of(check)


def test_flag_that_outlives_the_reset_is_found():
    """A flag that survives a reset is reported."""

    class Forgetful(EnvWrapper):
        def reset_only_done_envs(self, undo_done_after_reset=False):
            return super().reset_only_done_envs(undo_done_after_reset=False)

    report = report_of(checker(env_wrapper=Forgetful), seed=0)
    assert report.startswith("scenario 'short', step 3, after the reset: _done_ of environment 0: want 0, got 1")


def test_shape_that_differs_is_told():
    """A truncated observation is reported as an error of shape."""

    class Narrow(PlainCounter):
        def observe(self):
            return super().observe()[:, :1]

    check = checker(dual_mode_env_class=None, cpu_env_class=Narrow, cuda_env_class=Counter)
    with pytest.raises(
        ConfigError, match=r"'observations' must have the reference's shape \(3, 3, 1\) \(got \(3, 3, 2\)\)"
    ):
        check.test_env_reset_and_step(seed=0)


def test_units_in_the_last_place_are_a_bound_of_their_own():
    """Units in the last place are an alternative bound."""

    class Rounding(Heavier):
        factor = 1 + 2**-22

    check = against_counter(Rounding)
    assert 0 < check.test_env_reset_and_step(0, seed=0, max_ulps=4) < 1e-6
    assert "rewards" in report_of(check, 0, seed=0)
    assert "2 ulps" in report_of(check, 0, seed=0, max_ulps=1)


# ------------------------------------------------------------------ drawn configs


def test_drawn_config_that_fails_can_be_repeated():
    """A drawn config that fails is repeated by the reported seed."""

    class LateInLongEpisodes(Later):
        def get_constants(self):
            return {"LIMIT": self.limit + (self.limit < self.episode_length and self.num_agents == 3)}

    report = report_of(against_counter(LateInLongEpisodes, env_configs=draw_config, num_configs=40), seed=0)
    assert "'num_agents': 3" in report
    seed = int(re.search(r"scenario drawn with seed (\d+)", report)[1])
    assert seed > 0, "the first config must pass, or nothing is shown"
    assert f"run it again with num_configs=1 and seed={seed}" in report
    assert report_of(against_counter(LateInLongEpisodes, env_configs=draw_config, num_configs=1), seed=seed) == report


def test_environment_that_raises_is_told_with_its_config():
    """An exception passes, with its scenario and how to repeat it."""

    class Picky(Counter):
        def step(self, actions=None):
            if self.limit == 5:
                raise ZeroDivisionError("limit 5")
            super().step(actions)

    with pytest.raises(ZeroDivisionError) as caught:
        checker(dual_mode_env_class=Picky, env_configs=draw_config, num_configs=40).test_env_reset_and_step(seed=0)
    (note,) = caught.value.__notes__
    assert re.fullmatch(
        r"scenario drawn with seed \d+, config {.*'limit': 5}; run again with num_configs=1 and .*", note
    )


def test_array_of_a_config_is_told_by_its_type_and_shape():
    """A config's array is reported by type and shape.

    The numbers of a large array would hide the fault.
    """

    class Fails(Counter):
        def __init__(self, table=None):
            super().__init__(episode_length=3)
            raise ZeroDivisionError

    tables = {"large": {"table": np.zeros((200, 7), np.float32)}}
    with pytest.raises(ZeroDivisionError) as caught:
        checker(dual_mode_env_class=Fails, env_configs=tables).test_env_reset_and_step(seed=0)
    assert "config {'table': 'float32 array (200, 7)'}" in caught.value.__notes__[0]


# ------------------------------------------------------------------ difference


def test_difference_is_the_largest_and_says_where():
    """The difference is the largest error, with index and values."""
    got = difference(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.5, 2.0], [3.0, 2.0]]))
    assert (got.error, got.index, got.want, got.got) == (2.0, (1, 1), 4.0, 2.0)
    assert got.ulps == 2 / 2**-21
    assert str(got) == "at [1, 1]: want 4, got 2, error 2 (50 %, 4.19e+06 ulps)"


def test_difference_of_angles_is_taken_around_the_circle():
    """Differences of angles are taken around the circle.

    A period of 0 means none.
    """
    want, got = np.array([[0.01, 0.01]]), np.array([[6.27, 6.27]])
    found = difference(want, got, period=(2 * np.pi, 0))
    assert (found.index, found.error) == ((0, 1), pytest.approx(6.26))
    assert difference(want, got, period=2 * np.pi).error == pytest.approx(2 * np.pi - 6.26)


def test_difference_counts_nan_as_infinite():
    """A NaN on either side never agrees."""
    for want, got in ((np.nan, 1.0), (1.0, np.nan), (np.nan, np.nan)):
        assert difference(np.array([want, 0]), np.array([got, 5.0])).error == np.inf
    assert difference(np.zeros((0, 3)), np.zeros((0, 3))).error == 0


def test_difference_of_equal_infinities_is_none():
    """Equal infinities agree; opposite ones differ by infinity."""
    inf = np.array([np.inf])
    assert difference(inf, inf).error == 0
    assert difference(inf, -inf).error == difference(inf, -inf, period=1.0).error == np.inf


# ------------------------------------------------------------------ tolerance


def agrees(want: float, got: float, tolerance: Tolerance, period: float = 0.0) -> bool:
    """Return true if two single values agree."""
    return tolerance.compare(np.array([want]), np.array([got]), period).n_wrong == 0


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6) | st.floats(-0.02, 0.02), st.floats(0.001, 50))
def test_tolerance_is_the_rule_of_warp_drive(want, error, percent):
    """Values agree exactly if they agree by WarpDrive's formula."""
    got = want + error
    distance = abs(got - want)
    rule = distance < percent / 100 or 100 * distance / abs(1e-10 + want) < percent
    assert agrees(want, got, Tolerance(percent)) is (rule or got == want)


def test_tolerance_takes_an_absolute_bound():
    """An absolute bound replaces the relative one."""
    assert agrees(0, 0.4, Tolerance(absolute=0.5))
    assert not agrees(0, 0.009, Tolerance(absolute=0.001))
    assert agrees(100, 100.9, Tolerance(absolute=0.001))


@given(st.integers(1, 254), st.integers(0, 2**22), st.integers(1, 1000), st.sampled_from([1, -1]))
def test_tolerance_counts_units_in_the_last_place(exponent, fraction, n_ulps, sign):
    """A tolerance in ulps counts floats in the reference's binade."""
    bits = (exponent << 23) + fraction
    want, got = sign * np.array([bits, bits + n_ulps], np.int32).view(np.float32)
    assert agrees(want, got, Tolerance(0, ulps=n_ulps))
    assert not agrees(want, got, Tolerance(0, ulps=n_ulps - 1))


def test_tolerance_in_units_needs_another_bound_around_zero():
    """Next to zero, a tolerance in ulps needs an absolute bound.

    A float next to 0 is a billion units away from it.
    """
    assert not agrees(0.0, 1e-9, Tolerance(0, ulps=1000))
    assert agrees(0.0, 1e-9, Tolerance(0, absolute=1e-8, ulps=1000))


def test_tolerance_goes_around_the_circle():
    """Angles on both sides of 0 agree; plain numbers do not."""
    turn = 2 * np.pi
    want, got = np.float32(1e-7), np.float32(turn - 1e-7)
    assert agrees(want, got, Tolerance(0, ulps=1), turn)
    assert agrees(want, got, Tolerance(), turn)
    assert not agrees(want, got, Tolerance())
    assert not agrees(want, np.float32(turn - 0.02), Tolerance(), turn)


def test_comparison_counts_all_and_keeps_the_five_worst():
    """A comparison counts all wrong elements, and has the five worst."""
    want, got = np.full((3, 4), 2.0), np.full((3, 4), 2.0)
    got.flat[:10] += np.arange(1, 11)
    found = Tolerance().compare(want, got)
    assert (found.n_elements, found.n_wrong, found.relative_error) == (12, 10, 5.0)
    assert [(each.index, each.error) for each in found.worst] == [
        ((2, 1), 10),
        ((2, 0), 9),
        ((1, 3), 8),
        ((1, 2), 7),
        ((1, 1), 6),
    ]
    assert Tolerance().compare(np.zeros((0, 3)), np.zeros((0, 3))).n_wrong == 0


@pytest.mark.parametrize("bound", [{"relative_pct": -1}, {"absolute": -0.1}, {"ulps": float("nan")}])
def test_tolerance_is_checked(bound):
    """A negative or NaN tolerance raises.

    It would silently let nothing pass.
    """
    (name,) = bound
    with pytest.raises(ConfigError, match=f"{name} must be 0 or more"):
        Tolerance(**bound)


@pytest.mark.parametrize(
    ("want", "got", "says"),
    [
        (np.int32([14]), np.int32([3]), "want 14, got 3, error 11 (78.6 %)"),
        (np.int32([0]), np.int32([9]), "want 0, got 9, error 9"),
        (np.float32([2]), np.float32([1]), "want 2, got 1, error 1 (50 %, 4.19e+06 ulps)"),
    ],
)
def test_errors_have_the_units_of_their_arrays(want, got, says):
    """Reports give integers no ulps, and 0 no percentage."""
    assert Tolerance(0).compare(want, got).first.values == says
