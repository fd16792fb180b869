"""Gradients through the acting passes equal those of separate passes."""

from __future__ import annotations

import re
from functools import partial, partialmethod

import pytest
import torch

from tests.support import by_night
from tests.training.builders import (
    A2C,
    CENTRAL,
    CLASSIC,
    ON_GPU,
    PPO,
    TAG,
    make_run,
    require_same_weights,
    require_that_it_goes_on,
    runs_here,
    weights,
)
from tests.training.fused_support import DEVICE, interpret  # (before Triton is imported)
from warpdrive_min.errors import ConfigError
from warpdrive_min.training.models.parts import Trunk
from warpdrive_min.training.paths import available
from warpdrive_min.training.paths.fused import kept, wide
from warpdrive_min.training.paths.fused.kept import LearningInput

ON_DEVICE = DEVICE.type == "cuda"
HERE = "pycuda" if ON_DEVICE else "host"
BACKENDS = ON_GPU if ON_DEVICE else [pytest.param("host"), *ON_GPU]
MORE_THAN_ONCE = "a rollout has several updates"
WIDE, TOO_WIDE = {"fc_dims": [8, 65]}, {"fc_dims": [8, 513]}
LEARNS = {**A2C, "model": WIDE}
GROUPS = {**A2C, "model": {"fc_dims": [200, 129]}}
RULES = {
    "A2C": ("cartpole", CLASSIC, {"shared": LEARNS}),
    "one epoch of PPO": ("cartpole", CLASSIC, {"shared": {**PPO, "n_epochs": 1, "n_minibatches": 1, "model": WIDE}}),
    "values first": ("tag_continuous", TAG, {"shared": {**LEARNS, "normalize_advantage": True}}),
    "continuous": ("pendulum", CLASSIC, {"shared": {**LEARNS, "model": {**WIDE, "output_w": 2.0}}}),
    "two policies": ("tag_continuous", TAG, {"runner": LEARNS, "tagger": {**PPO, "model": WIDE}}),
    "some environments": ("cartpole", CLASSIC, {"shared": LEARNS}),
}
BY_GROUPS = {
    "groups of warps": ("tag_continuous", TAG, {"shared": GROUPS}),
    "groups of warps, in place": ("tag_continuous", TAG, dict.fromkeys(("runner", "tagger"), GROUPS)),
}


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    """Use Triton's interpreter without a GPU, with small tiles."""
    monkeypatch.setattr(wide, "LEAST_TILES", 0)
    if ON_DEVICE:
        return
    tile = wide.Tile(16, 32, 4, 2)
    plan = wide.TileSizes(tile, tile, tile._replace(rows=32), by_column=False, n_parts=2)
    monkeypatch.setitem(wide.PLANS, "tf32", (plan, plan))
    interpret(monkeypatch)


def trainer_of(run, backend, *, keeps=None, **given):
    """Return a trainer that keeps its rollouts' passes or not."""
    trainer = {"kept_passes": keeps, "fused_rollout": False, "precision": "tf32"}
    return make_run(run, backend, trainer={**trainer, **given.pop("trainer", {})}, **given)


def noting(trunk, under, seen, inputs, *heads):
    """Evaluate, and note the inputs that require gradients."""
    if torch.is_grad_enabled():
        seen.append(type(inputs))
    return under(trunk, inputs, *heads)


FORMS = [*((rule, None) for rule in RULES), ("A2C", 16), ("values first", 80)]
FORMS = [(*form, precision) for precision in ("tf32", "fp32") for form in FORMS]
FORMS += [(rule, None, "tf32") for rule in BY_GROUPS] if ON_DEVICE else []
SLOW = [("values first", None, "fp32"), ("A2C", None, "tf32"), ("A2C", 16, "tf32"), ("values first", 80, "tf32")]
SLOW += [("two policies", None, "fp32")]
SLOW += [(rule, None, "tf32") for rule in ("values first", "continuous", "two policies", "some environments")]
ON_NUMBA = [("one epoch of PPO", None, "tf32")]


@pytest.mark.parametrize(
    ("backend", "rule", "max_rows", "precision"), runs_here(*FORMS, backends=BACKENDS, on_numba=ON_NUMBA, nightly=SLOW)
)
def test_weights_are_those_of_a_pass_of_its_own(backend, rule, max_rows, precision, monkeypatch):
    """Kept passes give the weights of a separate pass.

    Heads and losses of all kinds, at once or in parts, within rounding.
    """
    keeps = None if rule == "two policies" else True
    settings = {"max_rows": max_rows, "precision": precision}
    settings |= {"neg_pos_env_ratio": 1.0} if rule == "some environments" else {}
    given = {"trainer": settings, "n_envs": 5}
    one, other = (trainer_of({**RULES, **BY_GROUPS}[rule], backend, keeps=each, **given) for each in (keeps, False))
    expected = ["", MORE_THAN_ONCE] if rule == "two policies" else [""] * len(one.groups)
    assert list(one.why_no_saved_passes.values()) == expected
    assert set(other.why_no_saved_passes.values()) == {"trainer.kept_passes is false"}
    if rule in BY_GROUPS:
        is_hopper = available.why_no_warp_groups("cuda") is None
        is_in_place = [group.buffer.is_read_in_place for group in one.groups.values()]
        assert is_in_place == ([True, True] if is_hopper and "in place" in rule else [False] * len(is_in_place))
        assert {choices["forward passes"].path.name for choices in one.choices.values()} == {
            f"kept by kernels, in {'CUDA C' if is_hopper else 'Triton'}"
        }
    seen: list[type] = []
    before = weights(one)
    monkeypatch.setattr(Trunk, "head_outputs", partialmethod(noting, Trunk.head_outputs, seen))
    for trainer, shown in ((one, {LearningInput}), (other, {torch.Tensor})):
        seen.clear()
        for _ in range(2):
            trainer.collect()
            trainer.update()
        assert set(seen) == (shown | {torch.Tensor} if rule == "two policies" else shown)
    require_same_weights(one, other, before, 1e-3 if ON_DEVICE else 2e-6)
    for name, group in one.groups.items():
        values = [each.algorithm.values for each in (group, other.groups[name])]
        torch.testing.assert_close(*values, rtol=0, atol=1e-2 if ON_DEVICE else 1e-5)
    if one.groups and all(group.buffer.is_read_in_place for group in one.groups.values()):
        one.groups["runner"].buffer.passes.observations[1, 2, 0, 3] = torch.nan
        assert re.search(
            r"policy 'runner': .* in environment 2, agent .* after step 1,", str(one.check.non_finite_error(1))
        )


IN_PLACE = {
    "tag": ("tag_continuous", TAG, dict.fromkeys(("runner", "tagger"), LEARNS)),
    "masked": ("covid19_economy", {"episode_length": 540}, dict.fromkeys(("governor", "government"), LEARNS)),
}


@pytest.mark.parametrize("run", ["tag", by_night("masked")])
@pytest.mark.parametrize("backend", BACKENDS)
def test_steps_may_read_rows_in_place(run, backend, monkeypatch):
    """Steps that read the environment's array learn as those that read copies."""

    def evaluate(x, *rest):
        if isinstance(x, wide.OfAgents):
            x = (x.whole if x.agents is None else x.whole[:, x.agents.long()]).flatten(0, 1)
        wide.evaluate(x, *rest)

    copying = trainer_of(IN_PLACE[run], backend, n_envs=3, n_steps=3)
    monkeypatch.setattr(
        kept.by_kernels, "__defaults__", (wide.TRITON._replace(evaluate=evaluate, reads_in_place=True),)
    )
    one = trainer_of(IN_PLACE[run], backend, n_envs=3, n_steps=3)
    groups = [(group, other) for group, other in zip(one.groups.values(), copying.groups.values(), strict=True)
              if group.buffer.passes is not None]  # fmt: skip
    assert groups
    before = weights(one)
    for trainer in (one, copying):
        for _ in range(2):
            trainer.collect()
            trainer.update()
    require_same_weights(one, copying, before, 1e-3 if ON_DEVICE else 2e-6)
    for group, other in groups:
        buffer = group.buffer
        assert buffer.is_read_in_place
        assert buffer.observations[:-1].isnan().all()
        assert torch.equal(buffer.passes.observations, other.buffer.observations[:-1])
        assert buffer.masks is None or torch.equal(buffer.masks, other.buffer.masks)
    assert one.check.non_finite_error(1) is None
    groups[0][0].buffer.passes.observations[1, 2, 0, 3] = torch.nan
    assert re.search(r"policy .* in environment 2, agent .* after step 1,", str(one.check.non_finite_error(1)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_run_that_goes_on_has_the_same_bits(backend, tmp_path):
    """A resumed run equals an uninterrupted one.

    In float32 without a GPU, as Triton interprets the other kernels slowly.
    """
    precision = {"precision": "tf32" if ON_DEVICE else "fp32"}
    require_that_it_goes_on(partial(trainer_of, RULES["A2C"], backend, keeps=True, trainer=precision), tmp_path)


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ({**PPO, "model": WIDE}, MORE_THAN_ONCE),
        ({**LEARNS, **CENTRAL}, "the policy has a centralised critic"),
        ({**LEARNS, "model": {**WIDE, "shared": False}}, "policy and value have separate hidden layers"),
        ({**LEARNS, "model": {"fc_dims": [65]}}, "needs two hidden layers"),
        ({**LEARNS, "model": {**WIDE, "fused": False}}, "model.fused is false"),
        ({**LEARNS, "model": {"fc_dims": [8, 8]}}, "the network is narrow"),
        (
            {**LEARNS, "model": {"fc_dims": [8, 513]}},
            "128 features, 512 units per layer and 128 outputs, in tf32 or bf16",
        ),
        ({**LEARNS, "to_train": False}, "does not learn"),
    ],
)
def test_passes_that_cannot_be_kept_say_why(policy, why):
    """Passes that cannot be kept have a reason.

    A run that requires them is refused; others recompute.
    """
    run = ("tag_continuous", TAG, {"shared": policy})
    assert why in trainer_of(run, HERE).why_no_saved_passes["shared"]
    with pytest.raises(ConfigError, match=f"trainer.kept_passes: .*'shared' cannot be kept: .*{why}"):
        trainer_of(run, HERE, keeps=True)


@pytest.mark.gpu
def test_passes_that_would_fill_the_memory_are_not_kept(monkeypatch):
    """Passes that fill half the memory are not kept.

    A config can require them.
    """
    monkeypatch.setattr(kept, "MOST_MEMORY", 1e-9)
    assert "trainer.kept_passes is null" in trainer_of(RULES["A2C"], "pycuda").why_no_saved_passes["shared"]
    assert trainer_of(RULES["A2C"], "pycuda", keeps=True).why_no_saved_passes["shared"] == ""


def test_without_a_gpu_nothing_is_kept(monkeypatch):
    """Without a GPU no passes are kept: the kernels need one."""
    monkeypatch.setattr(available, "why_no_triton", lambda device: "needs a GPU")
    assert "needs a GPU" in trainer_of(RULES["A2C"], HERE).why_no_saved_passes["shared"]
