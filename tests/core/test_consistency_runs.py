"""Runs of the consistency checker: free, resynchronised, and in drawn configs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.core.consistency_support import against_counter, checker, draw_config, report_of
from tests.environments.counter import Counter, PlainCounter
from tests.support import managers, on_every_backend, on_every_other_backend, push
from warpdrive_min import EnvWrapper
from warpdrive_min.agreement import copy_state, step_by_step
from warpdrive_min.errors import ConfigError

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
