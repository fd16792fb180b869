"""Ranges around launches: none when off, and named by what they fuse in a trace."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from pathlib import Path

import pytest
import torch

from envs import CartPole
from warpdrive_min import EnvWrapper, tracing
from warpdrive_min.errors import ConfigError, WriteError
from warpdrive_min.tracing import N_RUNS, named, ranges, trace


def wrapper(backend: str = "host") -> EnvWrapper:
    made = EnvWrapper(CartPole(), num_envs=4, env_backend=backend, auto_reset=True)
    made.reset()
    return made


@pytest.fixture
def nvtx(monkeypatch):
    """NVTX ranges of the environment variable, as they open and close."""
    seen: list[str] = []

    @contextlib.contextmanager
    def open_range(name):
        seen.append(f"open {name}")
        yield
        seen.append(f"close {name}")

    monkeypatch.setenv(tracing.NVTX_VARIABLE, "1")
    monkeypatch.setattr(torch.cuda.nvtx, "mark", lambda name: None)
    monkeypatch.setattr(torch.cuda.nvtx, "range", open_range)
    tracing._nvtx.cache_clear()
    yield seen
    tracing._nvtx.cache_clear()


def is_in_range(made: EnvWrapper) -> bool:
    launch = made.cuda_function_manager.bind("step", made.cuda_data_manager)
    return hasattr(launch, "__wrapped__")


def test_ranges_that_are_off_cost_no_call():
    """Without ranges a prepared launch is the kernel's own function."""

    def launch() -> None: ...

    made = wrapper()
    assert named("step", launch) is launch
    assert not is_in_range(made)
    with ranges():
        assert named("step", launch) is not launch
        assert is_in_range(made)
    assert not is_in_range(made)


def test_trace_has_a_range_for_each_launch():
    """It is a Chrome trace: runs that contain launches, and the given facts."""
    with ranges():
        made = wrapper()
        step = made.bound_step()
        assert step is not None

        def work() -> None:
            step()
            made.rollout(5)

        found = json.loads(trace(work, made.backend.synchronize, {"envs": 4}))
    assert found["warpdrive_min"] == {"envs": 4}
    spans = [event for event in found["traceEvents"] if event.get("cat") == "user_annotation"]
    assert all(span["ph"] == "X" and span["dur"] >= 0 for span in spans)
    launches = dict.fromkeys(("step: env step + reset", "rollout: draw + env step + reset"), N_RUNS)
    assert Counter(span["name"] for span in spans) == {"run 3": 1, "run 4": 1, "run 5": 1, **launches}
    runs = [(span["ts"], span["ts"] + span["dur"]) for span in spans if span["name"].startswith("run ")]
    for span in spans:
        end = span["ts"] + span["dur"]
        assert any(start <= span["ts"] and end <= last for start, last in runs), span["name"]


def test_launches_are_nvtx_ranges(nvtx):
    """The environment variable gives each launch an NVTX range."""
    step = wrapper().bound_step()
    assert step is not None
    nvtx.clear()
    step()
    assert nvtx == ["open step: env step + reset", "close step: env step + reset"]


def test_nvtx_needs_a_torch_that_has_it(nvtx, monkeypatch):
    """A build of torch without CUDA is an error in one line, not a range left out."""

    def missing(name: str) -> None:
        raise RuntimeError("NVTX functions not installed")

    monkeypatch.setattr(torch.cuda.nvtx, "mark", missing)
    with pytest.raises(ConfigError, match=r"^\$WARPDRIVE_MIN_NVTX: needs a CUDA build of torch.* \(got '1'\); install"):
        named("step", lambda: None)


@pytest.mark.parametrize("written", [None, '{"traceEvents": [{"ph":'])
def test_trace_that_torch_could_not_write_is_an_error(written, monkeypatch):
    """A full disk leaves no file or half of one; torch raises nothing."""

    def export(profiler: object, path: str) -> None:
        if written is not None:
            Path(path).write_text(written, encoding="utf-8")

    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", export)
    with pytest.raises(WriteError, match="trace: torch must write all of it to a temporary file"):
        trace(lambda: None, lambda: None, {}, n_runs=1)
