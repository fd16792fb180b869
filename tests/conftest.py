"""Fixtures and rules of the whole suite."""

from __future__ import annotations

import functools
import gc
import importlib.util
import inspect
import os
import pickle
import signal
import threading
import time

import pytest
from hypothesis import settings

# OpenMP reads this once, as torch is imported. Threads that spin between operations take the other processes' cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch

settings.load_profile("ci")  # the same examples each time, and no time limit that a busy machine would break

HAS_GPU = torch.cuda.is_available()
MOST_KEPT = 50
"""Number of Numba sources, with their constants, whose kernels a process keeps."""

if not HAS_GPU:
    # Before anything imports Numba or Triton: without a GPU their kernels are tested in a simulator and an interpreter.
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
    os.environ["TRITON_INTERPRET"] = "1"

    if importlib.util.find_spec("numba_cuda"):
        from numba.cuda.simulator.kernel import BlockThread

        def is_alive(self: threading.Thread) -> bool:
            """Yield to other threads before the simulator polls."""
            time.sleep(0)
            return threading.Thread.is_alive(self)

        BlockThread.is_alive = is_alive

    if importlib.util.find_spec("triton"):
        from triton.runtime import interpreter

        @functools.cache
        def names_of_builtins(package: object) -> list[str]:
            """Return the names that Triton's interpreter replaces.

            It would look for them at each launch.
            """
            return [name for name, member in inspect.getmembers(package) if interpreter.tl.core.is_builtin(member)]

        def patch_builtins(package: object, builder: object, scope: object) -> None:
            """Replace a package's functions while a kernel is interpreted."""
            for name in names_of_builtins(package):
                if interpreter.tl.core.is_builtin(member := getattr(package, name)):
                    interpreter._patch_attr(package, name, member, builder, scope)

        interpreter._patch_builtin = patch_builtins


def pytest_configure() -> None:
    """Restore SIGINT and SIGQUIT.

    Processes that a shell starts in the background would ignore them.
    """
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip GPU tests without a GPU; deselect nightly ones.

    `-m` selects nightly ones.
    """
    if "nightly" not in config.option.markexpr:
        by_night = {is_nightly: [] for is_nightly in (True, False)}
        for item in items:
            by_night[item.get_closest_marker("nightly") is not None].append(item)
        config.hook.pytest_deselected(items=by_night[True])
        items[:] = by_night[False]
    if not HAS_GPU:
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect tests without garbage collection, then freeze them.

    Modules and tests stay alive.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _seed():
    """Seed torch, so that no test depends on earlier ones."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def kept_numba_kernels():
    """Cache Numba builds of our sources.

    Each build takes seconds on a GPU.

    Each wrapper would build again.

    Yields:
        The kernels by source and constants.
    """
    from warpdrive_min.backends.numba_cuda import NumbaBackend

    build, kept = NumbaBackend.compile, {}

    def compile(self, source, constants):
        self.enter()
        if not str(source).startswith(("warpdrive_min.", "envs.", "tests.core.", "tests.environments.")):
            return build(self, source, constants)
        key = (str(source), pickle.dumps(sorted(constants.items())))
        if key not in kept:
            kept[key] = build(self, source, constants)
            if len(kept) > MOST_KEPT:
                del kept[next(iter(kept))]
        return dict(kept[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NumbaBackend, "compile", compile)
        yield kept


@pytest.fixture
def _one_thread():
    """Use one torch thread.

    Torch's threads and kernels' threads would wait for each other.
    """
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


@pytest.fixture
def small_blocks(monkeypatch):
    """Use small blocks in the simulator.

    Without a GPU each thread is a Python thread.
    """
    if not HAS_GPU:
        for name in ("PACKED_THREADS", "BLOCK_FROM_AGENTS", "SPREAD_THREADS", "OWNER_THREADS", "FEW_OWNER_THREADS"):
            monkeypatch.setattr(f"warpdrive_min.function_manager.{name}", 8)


@pytest.fixture
def compiler(request, monkeypatch):
    """Build with the C++ compiler of the test; see `tests.support.on_each_compiler`."""
    monkeypatch.setenv("CXX", request.param)
    return request.param


@pytest.fixture(autouse=True, scope="session")
def shipped_optimisation():
    """Build kernels quickly, not for speed, also in fixtures of modules.

    This applies without a GPU. A C++ compiler takes half the time at -Og.

    Yields:
        The optimisation flag of kernels as they ship.
    """
    from warpdrive_min.backends import host

    shipped = host.OPTIMISATION
    with pytest.MonkeyPatch.context() as patch:
        if not HAS_GPU:
            patch.setattr(host, "OPTIMISATION", "-Og")
        yield shipped


@pytest.fixture(autouse=True)
def _quick_builds(request, monkeypatch, shipped_optimisation):
    """Build kernels as they ship if `as_shipped` is set.

    Without it, and without a GPU, tests on Numba have small blocks.
    """
    if HAS_GPU:
        return
    if request.node.get_closest_marker("as_shipped"):
        monkeypatch.setattr("warpdrive_min.backends.host.OPTIMISATION", shipped_optimisation)
        return
    if hasattr(request.node, "callspec") and request.node.callspec.params.get("backend") == "numba":
        request.getfixturevalue("small_blocks")
