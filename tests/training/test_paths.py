"""Paths of a run: requirements, choice, and reports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

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
NETWORKS = {
    "unknown": "the network's layers are unknown",
    "ungated": "it has no gated units",
    "narrow": NARROW,
    "wide": WIDE,
    "large": LARGE,
    "small": NARROW._replace(hidden=(4,)),
    "one-layer": WIDE._replace(hidden=(256,)),
    "separate": WIDE._replace(is_shared=False),
    "many-features": WIDE._replace(n_features=129),
    "very-wide": WIDE._replace(hidden=(512, 512)),
}
TRITON = "is_exact device=cpu"
GRU = Facts(device="cuda", backend="pycuda", gated=NARROW)
GATED = f"is_population {TRITON} precision=bf16 own_columns=3 is_box gated=ungated gated=wide"
KEPT = (
    "-learns -is_on_policy -kept_passes device=cpu n_updates=2 is_recurrent is_one_launch has_critic is_population "
    "is_exact own_columns=0 network=one-layer network=separate network=narrow"
)
IN_TF32 = replace(ON_GPU, precision="tf32", network=WIDE, n_rows=10**6, gpu_bytes=10**10)
NEEDS = {
    ("network", 0): (ON_GPU, f"-fused {TRITON} network=unknown network=wide"),
    ("network", 1): (
        replace(ON_GPU, precision="bf16", network=WIDE),
        "-fused is_exact is_population network=unknown precision=fp32 device=cpu",
    ),
    ("network", 2): (
        replace(ON_GPU, precision="bf16", network=WIDE),
        f"-fused {TRITON} is_population network=unknown precision=fp32",
    ),
    ("network", 3): (Facts(is_exact=True), "-is_exact"),
    ("acting", 0): (ON_GPU, f"is_population {TRITON} precision=bf16 own_columns=3 is_box network=unknown network=wide"),
    ("acting", 1): (Facts(network=WIDE), "device=cuda precision=bf16 is_exact is_population network=unknown"),
    ("acting", 2): (GRU, GATED),
    ("evaluation", 0): (
        ON_GPU,
        f"is_eager n_policies=2 is_population {TRITON} precision=bf16 own_columns=3 is_box network=unknown "
        "network=wide n_types=2 why_not_whole_array=unseen is_masked rollout_kernel=numba",
    ),
    ("learning", 0): (ON_GPU, f"has_critic {TRITON} precision=bf16 own_columns=3 is_box network=unknown network=wide"),
    ("learning", 1): (ON_GPU, f"has_critic {TRITON} network=unknown is_box network=large"),
    ("learning", 2): (
        Facts(network=WIDE),
        "has_critic device=cuda precision=bf16 is_exact is_population network=small",
    ),
    ("learning", 3): (
        Facts(is_exact=True, network=NARROW),
        "-is_exact has_critic is_population selects_envs n_other_parameters=2",
    ),
    ("learning", 4): (GRU, f"has_critic {GATED}"),
    ("learning", 5): (ON_GPU, f"-fused {TRITON} is_population"),
    ("learning", 6): (Facts(is_exact=True), "-is_exact"),
    ("minibatch rows", 0): (ON_GPU, f"-fused {TRITON}"),
    ("Adam", 0): (ON_GPU, TRITON),
    ("Adam", 1): (Facts(), "is_exact device=cuda is_population"),
    ("Adam", 2): (Facts(is_exact=True), "-is_exact"),
    ("forward passes", 0): (IN_TF32, f"{KEPT} network=very-wide device=cpu gpu_bytes=1000000000"),
    ("forward passes", 1): (IN_TF32, f"{KEPT} network=many-features network=very-wide gpu_bytes=1000000000"),
    ("forward passes", 2): (replace(IN_TF32, precision="fp32"), f"{KEPT} precision=bf16 gpu_bytes=1000000000"),
    ("observations", 0): (
        Facts(network=LARGE, own_columns=3),
        "-shared_observations n_policies=2 own_columns=null why_not_whole_array=unseen is_masked "
        "-writes_last_observations -learns -is_on_policy is_compat has_critic is_population is_exact network=unknown "
        "network=narrow",
    ),
    ("steps", 0): (ON_GPU, "n_policies=2 -learns why_not_whole_array=unseen is_masked -is_bound"),
    ("rollout", 0): (
        ON_GPU,
        "-fused_rollout -has_graphs n_policies=2 own_columns=3 precision=bf16 is_greedy -learns -is_direct is_box "
        "is_recurrent is_population -writes_last_observations rollout_kernel=missing",
    ),
    ("iteration", 0): (ON_GPU, "-has_graphs is_eager is_debug"),
}
"""Facts that allow a path, and changes that forbid it, one for each rule: ``name`` is true, ``-name`` false."""


def changed(facts, word):
    """Return facts with a change of `NEEDS`."""
    name, has_value, value = word.lstrip("-").partition("=")
    new = NETWORKS.get(value) or yaml.safe_load(value) if has_value else not word.startswith("-")
    return replace(facts, **{name: new})


@pytest.fixture(autouse=True)
def _all_installed(monkeypatch):
    """Make everything available but the device."""
    reasons = {"cuda": None, "cpu": "needs a GPU"}
    monkeypatch.setattr(available, "why_no_triton", reasons.__getitem__)
    monkeypatch.setattr(available, "why_no_cuda_c", lambda device, backend: reasons[device])
    monkeypatch.setattr(available, "why_no_warp_groups", reasons.__getitem__)
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
    path, (facts, words) = PATHS[part][index], NEEDS[part, index]
    assert path.why_not(facts) is None
    for rule, word in zip(path.rules, words.split(), strict=True):
        other = changed(facts, word)
        reason = rule.why_not(other)
        assert reason, (rule.needs, word)
        assert "\n" not in reason
        refused = choose(part, other).refused
        assert path.name not in refused or refused[path.name]
        assert path.why_not(other), word


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
    assert torch.why.count("; ") == 3
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
