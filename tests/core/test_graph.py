"""CUDA graphs: replays are bit-identical to eager calls."""

from __future__ import annotations

import gc

import pytest
import torch

from tests.agreement import assert_same_bits, start
from tests.support import QUICK_KINDS, SCENARIOS, on_backends
from warpdrive_min import BACKENDS, capture
from warpdrive_min.agreement.stepping import snapshot
from warpdrive_min.errors import BindingError, ConfigError
from warpdrive_min.policies import random_policy

N_STEPS, N_REPLAYS = 7, 12

gpu_backends = [
    pytest.param(name, marks=pytest.mark.gpu) for name in ("numba", "pycuda") if BACKENDS[name].availability().available
] or [pytest.param("pycuda", marks=pytest.mark.gpu)]


@on_backends("case", SCENARIOS, gpu_backends, numba=QUICK_KINDS)
def test_replay_equals_eager(case, backend):
    """A replay of draws, steps and restarts is bit-identical to eager."""
    name, config = SCENARIOS[case]
    ends = {}
    for mode in ("eager", "graph"):
        wrapper = start(name, config, backend, 300, seed=3, auto_reset=True)
        draw = random_policy(wrapper, 5)

        def block(wrapper=wrapper, draw=draw):
            for _ in range(N_STEPS):
                draw()
                wrapper.step()

        block()
        replay = capture(wrapper.backend, block) if mode == "graph" else block
        for _ in range(N_REPLAYS):
            replay()
        ends[mode] = snapshot(wrapper.cuda_data_manager)
    assert ends["eager"]["_episode_"].max() > 2, "the run must restart episodes"
    assert_same_bits(ends["graph"], ends["eager"])


@pytest.mark.parametrize("backend", gpu_backends)
def test_replay_keeps_what_it_runs_on(backend, kept_numba_kernels):
    """A replay keeps its kernels and arrays alive."""
    wrapper = start("cartpole", {}, backend, 300, auto_reset=True)
    wrapper.step()
    played = wrapper.cuda_data_manager.tensor("_timestep_")
    replay = capture(wrapper.backend, wrapper.step)
    del wrapper
    kept_numba_kernels.clear()
    gc.collect()
    torch.cuda.empty_cache()
    for _ in range(2):
        replay()
    assert played.max() == 3


@pytest.mark.parametrize("backend", gpu_backends)
def test_backend_has_one_stream(backend):
    """A backend always captures on the same stream."""
    with BACKENDS[backend].stream() as first, BACKENDS[backend].stream() as second:
        assert first.cuda_stream == second.cuda_stream == torch.cuda.current_stream().cuda_stream
    assert torch.cuda.current_stream().cuda_stream == 0


@pytest.mark.gpu
def test_pycuda_refuses_a_stream_it_did_not_make():
    """PyCUDA refuses another library's stream, with a remedy."""
    wrapper = start("cartpole", {}, "pycuda", 4)
    with torch.cuda.stream(torch.cuda.Stream()), pytest.raises(BindingError, match=r"with backend.stream"):
        wrapper.step()


def test_cpu_has_no_graphs():
    """Capturing on a CPU backend raises with a remedy."""
    with pytest.raises(ConfigError, match="backend 'cpu' has no CUDA graphs; call the work itself"):
        capture(BACKENDS["cpu"], lambda: None)
