"""Every CUDA C source compiles, without a GPU."""

from __future__ import annotations

import pytest

from envs import ENVS
from tests.support import QUICK_KINDS, SCENARIOS, by_night, needs_cuda_compiler
from warpdrive_min.backends import cuda_c
from warpdrive_min.environment import environment_constants
from warpdrive_min.function_manager import LaunchShape, core_sources

pytestmark = needs_cuda_compiler

TAG_110 = {"num_taggers": 10, "num_runners": 100, "num_other_agents_observed": 10, "use_full_observation": False}
SAMPLER = {"CATEGORIES": (21, 21), "N_TYPES": 2, "N_CATEGORIES": 42, "LOGITS": True, "ARGMAX": False}


ROWS = {"N_AGENTS": 1, **LaunchShape.of(1).constants()}
TRAINING = {
    "scan": {"AGENTS_PER_ENV": 110, "VALUES": True, "CUTS": True, "COMPAT": False, "EXACT": True, **ROWS},
    "shuffle": {"EXACT": False, **ROWS},
    "record": {"HAS_FLAGS": True, "CUTS": True, "N_WORDS": 7700, "EXACT": False, "N_AGENTS": 110}
    | LaunchShape.of(110).constants(),
}


def test_core_sources_compile_for_the_gpu():
    """Sampler, training kernels (all features) and generic reset compile."""
    shape = {"N_AGENTS": 110, "EXACT": True, **LaunchShape.of(110).constants()}
    flags = {"MASKED": True, "LOG_PROB": True, "ENTROPY": True}
    for stem, constants in (("sample", {**SAMPLER, **flags, **shape}), ("reset", shape), *TRAINING.items()):
        cubin = cuda_c.compile_cubin(core_sources(stem)["cuda_c"], constants, "sm_90")
        assert cubin.read_bytes()[:4] == b"\x7fELF"


CROWD = {"num_taggers": 500, "num_runners": 4500, "num_other_agents_observed": 10, "use_full_observation": False}
FORMS = {
    **{form: (*scenario, None) for form, scenario in SCENARIOS.items()},
    "tag_continuous, 110": ("tag_continuous", TAG_110, None),
    "tag_continuous, 5000": ("tag_continuous", CROWD, None),
    "tag_gridworld, shared": ("tag_gridworld", {"num_taggers": 999}, 4),
    "tag_gridworld, 10000, shared": ("tag_gridworld", {"num_taggers": 9_999, "use_full_observation": False}, 40),
}
"""Environment, config, and number of blocks (None: its own choice)."""
VARIANTS = ("cartpole, pool", "tag_gridworld, partial, pool", "rice", "rice, trade")
"""Forms of a source which is built exact in another form."""
BUILDS = [(form, False) for form in FORMS] + [(form, True) for form in SCENARIOS if form not in VARIANTS]
BY_DAY = (
    *((form, False) for form in (*QUICK_KINDS, "tag_continuous, 5000", "tag_gridworld, 10000, shared")),
    ("acrobot", True),
)
"""Builds of each kind of source; the others are nightly."""


@pytest.mark.parametrize(("form", "exact"), [each if each in BY_DAY else by_night(*each) for each in BUILDS])
def test_environments_compile_for_the_gpu(form, exact):
    """Each environment's kernels compile, in both builds."""
    name, config, blocks_per_env = FORMS[form]
    env = ENVS[name](**config)
    blocks = env.settle_blocks(blocks_per_env, "cuda_c")
    shape = LaunchShape.of(env.num_agents, blocks if env.kernel_sequences(auto_reset=True) else None)
    constants = environment_constants(env, auto_reset=True, exact=exact) | shape.constants()
    cubin = cuda_c.compile_cubin(env.kernel_sources["cuda_c"], constants, "sm_90")
    assert cubin.read_bytes()[:4] == b"\x7fELF"
