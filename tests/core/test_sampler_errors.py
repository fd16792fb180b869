"""Sampler errors: arrays, tensors, numbers, and calls in the wrong order."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch

from tests.support import managers, push
from warpdrive_min import CUDADataManager, CUDASampler
from warpdrive_min.errors import ConfigError, DataError

N_ENVS, N_AGENTS = 2, 5
TENSORS = {
    "sample": {"distribution": (2, 5, 3), "mask": (2, 5, 3), "log_prob": (2, 5), "entropy": (2, 5)},
    "sample noise": {"distribution": (2, 5, 2), "damping": (), "stddev": (), "scale": ()},
    "sample mean": {"distribution": (2, 5, 2)},
    "sample_gaussian": {"mean": (2, 5, 2), "log_std": (5, 2), "log_prob": (2, 5), "entropy": (2, 5)},
    "sample_uniform": {"low": (5, 2), "high": (5, 2)},
}
"""Tensors of each draw, with their shapes."""
CHANGES = {
    "one axis more": lambda each: each[None].contiguous(),
    "a view of the same memory": lambda each: each.view(*each.shape[::-1], 1),
    "another type": lambda each: each.double(),
    "another device": lambda each: each.to("meta"),
    "another layout": lambda each: each.transpose(0, -1).contiguous().transpose(0, -1),
}


def sampler_of(seed: int | None = 0) -> tuple[CUDADataManager, CUDASampler]:
    """Return a sampler of ``choices`` (3) and two ``numbers``.

    A seed of None leaves it unseeded.
    """
    data, functions = managers("cpu", N_AGENTS, N_ENVS)
    push(data, "choices", np.zeros((N_ENVS, N_AGENTS, 1), np.int32))
    push(data, "numbers", np.zeros((N_ENVS, N_AGENTS, 2), np.float32))
    sampler = CUDASampler(functions)
    sampler.register_actions(data, "choices", 3)
    sampler.register_actions(data, "numbers", 2, is_deterministic=True)
    if seed is not None:
        sampler.init_random(seed)
    return data, sampler


def tensors_of(way: str) -> dict[str, torch.Tensor]:
    """Return valid tensors for a draw."""
    types = {"mask": torch.int32}
    return {name: torch.ones(shape, dtype=types.get(name, torch.float32)) for name, shape in TENSORS[way].items()}


def draw(way: str, data: CUDADataManager, sampler: CUDASampler, action_name: str = "", **tensors: object) -> None:
    """Draw in one of the ways of `TENSORS`."""
    method, _, kind = way.partition(" ")
    name = action_name or ("choices" if way == "sample" else "numbers")
    getattr(sampler, method)(data, **tensors, action_name=name, **({"use_argmax": True} if kind == "mean" else {}))


@pytest.mark.parametrize(
    ("way", "name", "change"),
    [
        (way, name, change)
        for way, shapes in TENSORS.items()
        for name, shape in shapes.items()
        for change in CHANGES
        if shape or change != "another layout"  # a scalar has one
    ],
)
def test_tensors_must_be_as_the_kernel_takes_them(way, name, change):
    """Tensors of another shape, dtype, layout or device are refused.

    No silent broadcast or cast, at any call; no draw is consumed.
    """
    shape = TENSORS[way][name]
    data, sampler = sampler_of()
    good = tensors_of(way)
    for _ in range(2):
        counts = [data.tensor(f"{array}_draws").tolist() for array in ("choices", "numbers")]
        message = rf"{name} must be contiguous torch\.\w+ of shape {re.escape(str(shape))} on cpu \(got"
        with pytest.raises(DataError, match=message):
            draw(way, data, sampler, **{**good, name: CHANGES[change](good[name])})
        assert [data.tensor(f"{array}_draws").tolist() for array in ("choices", "numbers")] == counts
        draw(way, data, sampler, **good)


@pytest.mark.parametrize("way", TENSORS)
def test_draws_need_seed_and_registration(way):
    """The error names the missing call, or lists the known arrays."""
    data, sampler = sampler_of(seed=None)
    with pytest.raises(ConfigError, match=r"has no seed; call init_random\(seed\)"):
        draw(way, data, sampler, **tensors_of(way))
    sampler.init_random(0)
    with pytest.raises(ConfigError, match="'other' is not registered; known are choices, numbers"):
        draw(way, data, sampler, "other", **tensors_of(way))
    with pytest.raises(ConfigError, match="'other' is not registered; known are choices, numbers"):
        sampler.reset_noise(data, "other")


@pytest.mark.parametrize("way", ["sample_gaussian", "sample_uniform", "reset_noise"])
def test_choices_have_no_numbers(way):
    """Calls for continuous actions refuse discrete ones.

    The error explains registration.
    """
    data, sampler = sampler_of()
    tensors = tensors_of(way) if way in TENSORS else {}
    with pytest.raises(ConfigError, match=f"{way}: 'choices' must be continuous .*is_deterministic=True"):
        draw(way, data, sampler, "choices", **tensors)


@pytest.mark.parametrize(
    ("way", "keyword", "known"),
    [("sample noise", "logits", "damping, scale, stddev"), ("sample", "scale", "entropy, log_prob, logits, mask")],
)
def test_unknown_keyword_is_an_error_that_names_the_known_ones(way, keyword, known):
    """The error of an unknown keyword lists the known ones.

    Keywords of discrete draws are not for continuous ones, and vice versa.
    """
    with pytest.raises(ConfigError, match=f"has no keyword '{keyword}'; known are {known}"):
        draw(way, *sampler_of(), **tensors_of(way), **{keyword: True})


@pytest.mark.parametrize("name", ["damping", "stddev", "scale"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_must_be_finite(name, value):
    """Numbers must be finite, or every later action would be NaN."""
    data, sampler = sampler_of()
    with pytest.raises(ConfigError, match=rf"{name} of 'numbers' must be finite \(got {value}"):
        draw("sample noise", data, sampler, **{**tensors_of("sample noise"), name: value})
    assert not data.tensor("numbers_ou_state").any()


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seed_must_have_64_bits(seed):
    """Seeds outside 64 bits are refused: they would be truncated."""
    with pytest.raises(ValueError, match=rf"seed: must be at (least 0|most {2**64 - 1}) \(got {seed}"):
        sampler_of(seed)


@pytest.mark.parametrize("actions", [np.zeros((2, 5), np.int32), np.zeros((2, 5, 1)), np.zeros((2, 5, 1), np.int64)])
def test_assign_refuses_another_shape_or_dtype(actions):
    """`assign` refuses other shapes and dtypes, without cast or broadcast."""
    data, sampler = sampler_of()
    with pytest.raises(DataError, match=r"actions must be torch.int32 of shape \(2, 5, 1\) \(got"):
        sampler.assign(data, actions, "choices")


@pytest.mark.parametrize(
    ("shape", "dtype", "counts", "is_deterministic", "message"),
    [
        ((2, 5, 1), np.int32, 3, False, "'choices' is registered already"),
        ((5,), np.int32, 3, False, r"must be int32 of shape \(2, n_agents, 1\) \(got 'int32 \(5,\)'\)"),
        ((2, 5), np.int32, (3, 2), False, r"must be int32 of shape \(2, n_agents, 2\)"),
        ((3, 5, 1), np.int32, 3, False, r"got 'int32 \(3, 5, 1\)"),
        ((2, 5, 1), np.int32, (3, 2), False, r"of shape \(2, n_agents, 2\)"),
        ((2, 5, 1), np.float32, 3, False, "got 'float32"),
        ((2, 5, 1), np.int32, 0, False, r"needs at least one choice \(got \(0,\)\)"),
        ((2, 5, 1), np.int32, 3, True, r"must be float32 of shape \(2, n_agents, 3\) \(got 'int32"),
        ((2, 5, 1), np.float32, 2, True, r"of shape \(2, n_agents, 2\) \(got 'float32 \(2, 5, 1\)'\)"),
        ((2, 5), np.float32, 2, True, r"got 'float32 \(2, 5, 1\)"),
        ((3, 5, 1), np.float32, 1, True, r"got 'float32 \(3, 5, 1\)"),
    ],
)
def test_registration_checks_the_array(shape, dtype, counts, is_deterministic, message):
    """Registration checks shape, dtype and repetition.

    int32 or float32, one per environment, agent and type; registered once.
    """
    data, sampler = sampler_of()
    name = "choices" if "already" in message else "more"
    push(data, "more", np.zeros(shape, dtype))
    with pytest.raises(ConfigError, match=f"'{name}'.*{message}" if name == "more" else message):
        sampler.register_actions(data, name, counts, is_deterministic=is_deterministic)
