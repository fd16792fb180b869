"""Paths of a run: requirements, choice, and reports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.training import paths_page as page
from tests.training.builders import A2C, CLASSIC, RUNS, make_run
from warpdrive_min.training.paths import available
from warpdrive_min.training.paths.facts import Facts, Layers
from warpdrive_min.training.paths.fused import cpu
from warpdrive_min.training.paths.table import PATHS, choose

ROOT = Path(__file__).parents[2]
NARROW = Layers(4, (64, 64), 2, "tanh", is_shared=True)
WIDE = NARROW._replace(hidden=(256, 256))
ON_GPU = Facts(device="cuda", backend="pycuda", network=NARROW, has_graphs=True, is_bound=True, is_direct=True)
LARGE = Layers(401, (32, 16), 6, is_shared=True)
TRITON = {"is_exact": True}, {"device": "cpu"}
FUSED = {"fused": False}, *TRITON
GRU = Facts(device="cuda", backend="pycuda", gated=NARROW)
GATED = (
    *({"is_population": True}, {"is_exact": True}, {"device": "cpu"}, {"precision": "bf16"}, {"own_columns": 3}),
    *({"is_box": True}, {"gated": "it has no gated units"}, {"gated": WIDE}),
)
LAYERS = {"network": "the network's layers are unknown"}
NEEDS = {
    ("network", 0): (ON_GPU, [*FUSED, LAYERS, {"network": WIDE}]),
    ("network", 1): (
        replace(ON_GPU, precision="bf16", network=WIDE),
        [*FUSED, {"is_population": True}, LAYERS, {"precision": "fp32"}],
    ),
    ("network", 2): (Facts(is_exact=True), [{"is_exact": False}]),
    ("acting", 0): (
        ON_GPU,
        [
            {"is_population": True},
            *TRITON,
            {"precision": "bf16"},
            {"own_columns": 3},
            {"is_box": True},
            LAYERS,
            {"network": WIDE},
        ],
    ),
    ("acting", 1): (
        Facts(network=WIDE),
        [{"device": "cuda"}, {"precision": "bf16"}, {"is_exact": True}, {"is_population": True}, LAYERS],
    ),
    ("acting", 2): (GRU, [*GATED]),
    ("evaluation", 0): (
        ON_GPU,
        [
            {"is_eager": True},
            {"n_policies": 2},
            {"is_population": True},
            *TRITON,
            {"precision": "bf16"},
            {"own_columns": 3},
            {"is_box": True},
            LAYERS,
            {"network": WIDE},
            {"n_types": 2},
            {"why_not_whole_array": "it sees not all agents"},
            {"is_masked": True},
            {"rollout_kernel": "backend 'numba' does not run CUDA C on a GPU"},
        ],
    ),
    ("learning", 0): (
        ON_GPU,
        [
            {"has_critic": True},
            *TRITON,
            {"precision": "bf16"},
            {"own_columns": 3},
            {"is_box": True},
            LAYERS,
            {"network": WIDE},
        ],
    ),
    ("learning", 1): (ON_GPU, [{"has_critic": True}, *TRITON, LAYERS, {"is_box": True}, {"network": LARGE}]),
    ("learning", 2): (
        Facts(network=WIDE),
        [
            {"has_critic": True},
            {"device": "cuda"},
            {"precision": "bf16"},
            {"is_exact": True},
            {"is_population": True},
            {"network": WIDE._replace(hidden=(4,))},
        ],
    ),
    ("learning", 3): (
        Facts(is_exact=True, network=NARROW),
        [
            {"is_exact": False},
            {"has_critic": True},
            {"is_population": True},
            {"selects_envs": True},
            {"n_other_parameters": 2},
        ],
    ),
    ("learning", 4): (GRU, [{"has_critic": True}, *GATED]),
    ("learning", 5): (ON_GPU, [*FUSED, {"is_population": True}]),
    ("learning", 6): (Facts(is_exact=True), [{"is_exact": False}]),
    ("minibatch rows", 0): (ON_GPU, [*FUSED]),
    ("Adam", 0): (ON_GPU, [*TRITON]),
    ("Adam", 1): (Facts(), [{"is_exact": True}, {"device": "cuda"}, {"is_population": True}]),
    ("Adam", 2): (Facts(is_exact=True), [{"is_exact": False}]),
    ("forward passes", 0): (
        replace(ON_GPU, precision="tf32", network=WIDE, n_rows=10**6, gpu_bytes=10**10),
        [
            {"learns": False},
            {"is_on_policy": False},
            {"kept_passes": False},
            {"device": "cpu"},
            {"n_updates": 2},
            {"is_recurrent": True},
            {"is_one_launch": True},
            {"has_critic": True},
            {"is_population": True},
            {"is_exact": True},
            {"own_columns": 0},
            {"network": WIDE._replace(hidden=(256,))},
            {"network": WIDE._replace(is_shared=False)},
            {"network": NARROW},
            {"network": WIDE._replace(n_features=129)},
            {"network": WIDE._replace(hidden=(512, 512))},
            {"gpu_bytes": 10**9},
        ],
    ),
    ("observations", 0): (
        Facts(network=LARGE, own_columns=3),
        [
            {"shared_observations": False},
            {"n_policies": 2},
            {"own_columns": None},
            {"why_not_whole_array": "it sees not all agents"},
            {"is_masked": True},
            {"writes_last_observations": False},
            {"learns": False},
            {"is_on_policy": False},
            {"is_compat": True},
            {"has_critic": True},
            {"is_population": True},
            {"is_exact": True},
            LAYERS,
            {"network": NARROW},
        ],
    ),
    ("steps", 0): (
        ON_GPU,
        [
            {"n_policies": 2},
            {"learns": False},
            {"why_not_whole_array": "it sees not all"},
            {"is_masked": True},
            {"is_bound": False},
        ],
    ),
    ("rollout", 0): (
        ON_GPU,
        [
            {"fused_rollout": False},
            {"has_graphs": False},
            {"n_policies": 2},
            {"own_columns": 3},
            {"precision": "bf16"},
            {"is_greedy": True},
            {"learns": False},
            {"is_direct": False},
            {"is_box": True},
            {"is_recurrent": True},
            {"is_population": True},
            {"writes_last_observations": False},
            {"rollout_kernel": "it has no kernel with a policy"},
        ],
    ),
    ("iteration", 0): (ON_GPU, [{"has_graphs": False}, {"is_eager": True}, {"is_debug": True}]),
}
"""Facts that allow a path, with changes that forbid it."""
KEPT_BY_TORCH = (
    replace(NEEDS["forward passes", 0][0], precision="fp32"),
    [*NEEDS["forward passes", 0][1][:14], {"precision": "bf16"}, {"gpu_bytes": 10**9}],
)
NEEDS["forward passes", 1] = KEPT_BY_TORCH


@pytest.fixture(autouse=True)
def _all_installed(monkeypatch):
    """Make everything available but the device."""
    reasons = {"cuda": None, "cpu": "needs a GPU"}
    monkeypatch.setattr(available, "why_no_triton", reasons.__getitem__)
    monkeypatch.setattr(available, "why_no_cuda_c", lambda device, backend: reasons[device])
    monkeypatch.setattr(available, "why_no_cpp", lambda: None)


def test_every_path_has_rules_but_the_last():
    """Each path but the last has rules, so one is chosen."""
    assert set(NEEDS) == {(part, index) for part, paths in PATHS.items() for index in range(len(paths) - 1)}
    for part, paths in PATHS.items():
        assert all(path.rules for path in paths[:-1]), part
        assert not paths[-1].rules, part
        assert len({path.name for path in paths}) == len(paths), part


@pytest.mark.parametrize(("part", "index"), NEEDS)
def test_each_rule_of_a_path_can_refuse_it(part, index):
    """Each rule of a path can refuse it.

    Facts for all rules select it; each change breaks one rule.
    """
    path, (facts, changes) = PATHS[part][index], NEEDS[part, index]
    assert path.why_not(facts) is None
    assert len(changes) == len(path.rules)
    for rule, change in zip(path.rules, changes, strict=True):
        reason = rule.why_not(replace(facts, **change))
        assert reason, (rule.needs, change)
        assert "\n" not in reason
        refused = choose(part, replace(facts, **change)).refused
        assert path.name not in refused or refused[path.name]
        assert path.why_not(replace(facts, **change)), change


def test_choice_has_the_reasons_of_faster_paths_alone():
    """The first path without a reason is chosen.

    The reasons are those of faster paths.
    """
    wide = choose("network", replace(ON_GPU, network=WIDE, precision="tf32"))
    assert wide.path is PATHS["network"][1]
    assert list(wide.refused) == ["kernel for narrow networks"]
    assert "(got 4 features, 256 and 256 units, 3 outputs)" in wide.refused["kernel for narrow networks"]
    assert wide.why == ""
    torch = choose("network", replace(ON_GPU, network=WIDE))
    assert torch.path is PATHS["network"][-1]
    assert list(torch.refused) == [path.name for path in PATHS["network"][:-1]]
    assert torch.why.count("; ") == 2
    assert choose("network", Facts(fused=False)).why == "model.fused is false; trainer.exact is false"


@pytest.mark.parametrize("name", ["A2C", "DDPG", "two policies"])
def test_run_remembers_what_each_part_takes(name):
    """A run records a path for each part of each policy."""
    trainer = make_run(RUNS[name], "cpu")
    assert trainer.choices.keys() == trainer.groups.keys()
    for policy, choices in trainer.choices.items():
        assert {"observations", "steps", "rollout", "acting", "forward passes", "Adam", "iteration"} <= choices.keys()
        assert ("learning" in choices) == (name != "DDPG"), policy
        names = [part for part in choices if part.startswith("network")]
        assert names == (["network of actor", "network of critic"] if name == "DDPG" else ["network"])


def test_run_takes_what_it_remembers():
    """A run learns and acts by the paths that it records."""
    model = {"fc_dims": [8, 8]}
    one, other = (
        make_run(("cartpole", CLASSIC, {"shared": {**A2C, "model": {**model, "fused": fused}}}), "cpu")
        for fused in (None, False)
    )
    assert one.choices["shared"]["learning"].path.name == "one pass, in C++"
    assert isinstance(one.groups["shared"].algorithm._learning, cpu.Learning)
    assert other.choices["shared"]["learning"].path is PATHS["learning"][-1]
    assert other.choices["shared"]["learning"].refused["one pass, in C++"] == "model.fused is false"
    assert other.groups["shared"].algorithm._learning is None


def test_page_has_the_current_tables():
    """docs/training-speed.md has the current tables."""
    text = (ROOT / "docs" / "training-speed.md").read_text()
    assert page.with_tables(text) == text
    named = {part for found in page.PLACE.finditer(text) for part in found[2].split(", ")}
    assert named == set(PATHS)
    assert page.with_tables(text.replace("| nothing |", "| stale |")) == text
