"""Process that compiles kernels without a GPU and reports the launches.

`python probe.py ARCHITECTURE... SOCKET` answers programs over an inherited socket, with the protocol of
`process/worker.py`: the launches of each part, with the compiled files. `warpdrive_min` may be of another commit, so
only long-standing names are used.

Its own backends replace those in `BACKENDS`. They compile for named architectures, keep arrays on the CPU, and count
launches instead of making them. So kernels, constants, types and shapes are those of a real run.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch

from warpdrive_min import (
    BACKENDS,
    CUDADataManager,
    CUDAEnvironmentReset,
    CUDAFunctionManager,
    CUDASampler,
    DataFeed,
    Environment,
    EnvWrapper,
)
from warpdrive_min.backends import cuda_c, numba_cuda
from warpdrive_min.backends.base import Argument, Availability, Constant, Kernel, Launch, Source
from warpdrive_min.backends.cache import cached
from warpdrive_min.backends.gpu import GpuBackend
from warpdrive_min.backends.numba_cuda import NumbaBackend, NumbaKernel, scalar
from warpdrive_min.backends.pycuda_driver import PyCudaBackend
from warpdrive_min.packages import install_command
from warpdrive_min.policies import random_policy
from warpdrive_min.registrar import load_class
from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.algorithms.returns import ReturnScan
from warpdrive_min.training.algorithms.shuffle import RowDraw, Shuffle
from warpdrive_min.training.config import ModelConfig
from warpdrive_min.training.loop.arrays import SharedLayout
from warpdrive_min.training.loop.rollout import RolloutRecorder
from warpdrive_min.training.models.fully_connected import FullyConnected

SEED: Final = 1
HERE: Final = torch.device("cpu")


Part = tuple[str, int, list[dict[str, Any]]]
"""Name, units of work per call, and launches."""


@dataclass(slots=True)
class Trace:
    """Launches of the current part of a program."""

    architectures: Sequence[str]
    """Names such as ``sm_90``."""
    seen: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Launches of each prepared kernel, in order."""

    def launch(self, number: int, facts: Mapping[str, Any]) -> None:
        """Count a launch."""
        found = self.seen.setdefault(number, {**facts, "launches": 0})
        found["launches"] += 1

    def part(self, name: str, units: int, call: Callable[[], object]) -> Part:
        """Call a function, and return its launches."""
        self.seen = {}
        call()
        return name, units, list(self.seen.values())


Compile = Callable[[Sequence[Argument], int], dict[str, str]]
"""Compiles for each architecture, given arguments and threads per block."""


class CountingKernel:
    """Kernel that is compiled, and counted instead of launched."""

    def __init__(self, kernel: Any, compile_for: Compile, trace: Trace) -> None:
        self.name, self.parameters = kernel.name, kernel.parameters
        self.owns_environments = kernel.owns_environments
        self._compile, self._trace = compile_for, trace

    def prepare(self, arguments: Sequence[Argument], blocks: int, threads: int) -> Launch:
        """Compile for the arguments; return a counter of launches."""
        arrays = {
            parameter.name: argument
            for parameter, argument in zip(self.parameters, arguments, strict=True)
            if isinstance(argument, torch.Tensor)
        }
        facts = {
            "kernel": self.name,
            "blocks": blocks,
            "threads": threads,
            "arrays": {name: array.nbytes for name, array in arrays.items()},
            "compiled": self._compile(arguments, threads),
        }

        def launch() -> None:
            self._trace.launch(id(launch), facts)

        return launch


class DevicelessGpu(GpuBackend):
    """GPU backend without a device."""

    @property
    def device(self) -> torch.device:
        """The CPU: only the addresses of arrays matter."""
        return HERE

    def synchronize(self) -> None:
        """Nothing is enqueued."""

    @contextlib.contextmanager
    def stream(self) -> Iterator[None]:
        """Nothing is enqueued."""
        yield None

    def enter(self) -> None:
        """Compiling needs no context."""


class CudaC(DevicelessGpu, PyCudaBackend):
    """CUDA C, compiled for architectures by name."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def availability(self) -> Availability:
        """Availability of a compiler."""
        found = cuda_c.gpu_compiler()
        return Availability(found is not None, found or "found no CUDA compiler", cuda_c.GPU_COMPILER_INSTALL)

    def compile(self, source: Source, constants: Mapping[str, Constant]) -> dict[str, Kernel]:
        """Compile for each architecture."""
        path = Path(source)
        compiled = {each: _compiled(path, constants, each) for each in self._trace.architectures}
        declared = cuda_c.declared(path, constants)
        return {name: CountingKernel(each, lambda *_: compiled, self._trace) for name, each in declared.items()}


def _compiled(source: Path, constants: Mapping[str, Constant], architecture: str) -> str:
    """Compile a file; checkouts of a revision share the result."""
    text, root = cuda_c.unit(source, constants), str(Path(cuda_c.__file__).parents[2])
    how = {"architecture": architecture, "compiler": cuda_c.gpu_compiler(), "exact": bool(constants.get("EXACT"))}
    # The text includes headers by their paths.
    key = {**cuda_c.key(text, source, **how), "text": text.replace(root, ""), "anywhere": True}

    def make(path: Path) -> None:
        shutil.copy(cuda_c.compile_cubin(source, constants, architecture), path)

    return str(cached(key, ".cubin", make))


class NumbaCuda(DevicelessGpu, NumbaBackend):
    """Numba, compiled for architectures by name."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def availability(self) -> Availability:
        """Availability of its compilers."""
        try:
            metadata.version("numba-cuda")
            from cuda.bindings import nvrtc, nvvm  # noqa: PLC0415  (optional)

            nvrtc.nvrtcVersion(), nvvm.version()
        except Exception as error:  # noqa: BLE001  (no package, no library, or one that cannot be loaded)
            return Availability(False, f"cannot compile ({' '.join(str(error).split())})", install_command("static"))
        return Availability(True)

    def compile(self, source: Source, constants: Mapping[str, Constant]) -> dict[str, Kernel]:
        """Build the kernels; they are compiled when prepared."""
        exact = bool(constants.get("EXACT"))
        kernels = numba_cuda.built(source, constants)
        return {name: self._counting(name, kernel, exact, source, constants) for name, kernel in kernels.items()}

    def _counting(
        self, name: str, kernel: Any, exact: bool, source: Source, constants: Mapping[str, Constant]
    ) -> CountingKernel:
        own = NumbaKernel(name, kernel, exact)
        key = {"kernel": name, "constants": dict(constants), "sources": _texts(str(source)), "tools": _tools()}

        def compile_for(arguments: Sequence[Argument], threads: int) -> dict[str, str]:
            from numba.cuda.typing.typeof import typeof  # noqa: PLC0415  (optional)

            values = [
                each.detach().numpy() if isinstance(each, torch.Tensor) else scalar(each, parameter.dtype)
                for each, parameter in zip(arguments, own.parameters, strict=True)
            ]
            shapes = [tuple(each.shape) if isinstance(each, torch.Tensor) else None for each in arguments]
            launched = own.of_sizes(shapes, threads)
            types, sizes, compiled = [typeof(value) for value in values], [each and each[1:] for each in shapes], {}
            for each in self._trace.architectures:
                of_these = {**key, "types": str(types), "sizes": str(sizes), "threads": threads, "architecture": each}
                make = _assembled(launched, types, each, exact)
                compiled[each] = str(cached(of_these, ".cubin", make))
            return compiled

        return CountingKernel(own, compile_for, self._trace)


def _texts(module: str) -> list[str]:
    """Return the sources of a kernel: its folder, shared ones, the core's."""
    found = importlib.import_module(module).__file__
    assert found is not None, "a module of kernels is a file"
    backends = Path(cuda_c.__file__).parent
    own = Path(found).parent
    folders = {own, own.parent / "_common", backends, backends.parent / "kernels"}
    return [path.read_text() for folder in sorted(folders) for path in sorted(folder.glob("*.py"))]


def _tools() -> list[str]:
    from cuda.bindings import nvjitlink, nvvm  # noqa: PLC0415  (optional)

    versions = {"NVVM": nvvm.version(), "nvJitLink": nvjitlink.version()}
    numbers = [f"{name} {'.'.join(map(str, version))}" for name, version in versions.items()]
    return [f"numba-cuda {metadata.version('numba-cuda')}", *numbers]


def _assembled(kernel: Any, types: Sequence[Any], architecture: str, exact: bool) -> Callable[[Path], None]:
    """Return a function that compiles a Numba kernel via LTO-IR."""

    def make(path: Path) -> None:
        from types import SimpleNamespace  # noqa: PLC0415
        from unittest import mock  # noqa: PLC0415

        from cuda.core import Linker, LinkerOptions, ObjectCode  # noqa: PLC0415  (optional)
        from numba import cuda  # noqa: PLC0415
        from numba.cuda import dispatcher  # noqa: PLC0415
        from numba.cuda import types as of_numba  # noqa: PLC0415

        from warpdrive_min.kernels.core_numba import contraction_off  # noqa: PLC0415

        number = int(architecture.removeprefix("sm_"))
        capability = divmod(number, 10)
        suffix = "a" if capability >= (9, 0) else ""  # as numba-cuda does
        options = kernel.targetoptions
        device = SimpleNamespace(compute_capability=capability)  # read by device functions
        with (
            mock.patch.object(dispatcher, "get_current_device", return_value=device),
            contraction_off() if exact else contextlib.nullcontext(),
        ):
            code, _ = cuda.compile(
                kernel.py_func,
                of_numba.void(*types),
                device=False,
                abi="numba",
                cc=(*capability, suffix),
                output="ltoir",
                fastmath=bool(options.get("fastmath")),
                launch_bounds=options["launch_bounds"],
            )
        linked = LinkerOptions(
            arch=architecture + suffix,
            max_register_count=options.get("max_registers") or None,
            link_time_optimization=True,
        )
        path.write_bytes(bytes(Linker(ObjectCode.from_ltoir(code), options=linked).link("cubin").code))

    return make


# ------------------------------------------------------------------ programs
#
# With `more` a program has forms that the gate does not measure; `tests/every_kernel.py` launches all of them.


def environment(program: Mapping[str, Any], backend: str, trace: Trace) -> Iterator[Part]:
    """Reset, step, roll out, sample and record an environment."""
    n_envs, n_steps, more = program["n_envs"], program.get("n_steps", 1), program.get("more", False)
    wrapper = EnvWrapper(
        load_class(program["source"])(**program["config"]),
        num_envs=n_envs,
        env_backend=backend,
        blocks_per_env=program.get("blocks_per_env"),
        seed=SEED,
        auto_reset=program.get("auto_reset", True),
        exact=program.get("exact", False),
    )
    yield trace.part("reset", n_envs, wrapper.reset)
    yield trace.part("step", n_envs, wrapper.step)
    is_ours, roles = isinstance(wrapper.env, Environment), getattr(wrapper.env, "roles", {})
    if not program.get("auto_reset", True):
        yield trace.part("reset_only_done_envs", n_envs, wrapper.reset_only_done_envs)
    elif is_ours and not roles and (more or wrapper.rollout_mode.name == "fused"):
        keeps: tuple[Literal["last", "all"], ...] = ("last", "all")
        for keep in keeps:
            yield trace.part(f"rollout_{keep}", n_envs, partial(wrapper.rollout, n_steps, keep=keep))
        if more:
            actions = wrapper.rollout(n_steps, keep="all").sampled_actions.clone()
            yield trace.part("rollout_of_actions", n_envs, partial(wrapper.rollout, n_steps, actions))
        if not hasattr(next(iter(wrapper.env.action_space.values())), "low"):
            for name, network in NETWORKS.items() if more else [("with_policy", {"activation": "tanh"})]:
                model = _policy(wrapper, network)
                takes = more or wrapper.rollout_mode_of(model).name == "fused"
                for keep in keeps[not more :] if takes else ():
                    yield trace.part(f"rollout_{name}", n_envs, partial(wrapper.rollout, n_steps, model, keep=keep))
    yield trace.part("draw", n_envs, random_policy(wrapper, SEED))
    if not is_ours:
        return
    policies = {role: list(agents) for role, agents in roles.items()}
    arrays = SharedLayout().arrays(wrapper, policies or {"all": list(wrapper.env.action_space)})
    for policy, of_policy in arrays.items():
        recorder = RolloutRecorder(wrapper, n_steps=n_steps, arrays=of_policy)

        def keep_steps(recorder: RolloutRecorder = recorder) -> None:
            recorder.begin()
            for step in range(n_steps):
                recorder.record(step)

        yield trace.part(f"record_{policy}" if policies else "record", n_envs, keep_steps)


NETWORKS: Final[Mapping[str, Mapping[str, Any]]] = {
    "with_two_trunks": {"fc_dims": (72, 9), "shared": False},
    "with_one_layer": {"fc_dims": (20,), "activation": "tanh"},
}


def _policy(wrapper: EnvWrapper, network: Mapping[str, Any]) -> Any:
    """Return a network for the agents of an environment."""
    space = ActionSpace.of(next(iter(wrapper.env.action_space.values())))
    n_features = wrapper.cuda_data_manager.tensor("observations").flatten(2).shape[2]
    return FullyConnected(n_features, space, ModelConfig(**network)).to(wrapper.backend.device)


def sampling(program: Mapping[str, Any], backend: str, trace: Trace) -> Iterator[Part]:
    """Sample discrete actions, or ``n_types`` continuous ones."""
    n_envs, n_agents, categories = program["n_envs"], program["n_agents"], tuple(program.get("categories", ()))
    n_types, device = program.get("n_types", len(categories)), BACKENDS[backend].device
    data, functions = _managers(program, backend)
    feed = DataFeed()
    feed.add_data("sampled_actions", np.zeros((n_envs, n_agents, n_types), np.int32 if categories else np.float32))
    data.push_data_to_device(feed, torch_accessible=True)
    sampler = CUDASampler(functions)
    sampler.register_actions(data, "sampled_actions", categories or n_types, is_deterministic=not categories)
    sampler.init_random(SEED)
    values = torch.ones(n_envs, n_agents, sum(categories) or n_types, device=device)
    of_draw = dict(zip(("log_prob", "entropy"), torch.zeros(2, n_envs, n_agents, device=device), strict=True))
    forms: dict[str, Callable[[], object]] = {
        "noise": partial(sampler.sample, data, values),
        "gaussian": partial(sampler.sample_gaussian, data, values, values[0], **of_draw),
        "uniform": partial(sampler.sample_uniform, data, values[0], values[0] + 1),
    }
    if categories:
        forms = {
            "probabilities": partial(sampler.sample, data, values),
            "logits": partial(sampler.sample, data, values, logits=True, **of_draw),
            "argmax": partial(sampler.sample, data, values, use_argmax=True),
            "uniform": sampler.bound_random(data, ()),
        }
    if program.get("more") and categories:
        for logits in (False, True):
            forms[f"masked {logits}"] = partial(
                sampler.sample, data, values, logits=logits, mask=values.int(), **of_draw
            )
        forms["only logits"] = partial(sampler.sample, data, values, logits=True)
    elif program.get("more"):
        forms["mean"] = partial(sampler.sample, data, values, use_argmax=True)
        forms["scaled noise"] = partial(sampler.sample, data, values, scale=torch.ones((), device=device))
        forms["only gaussian"] = partial(sampler.sample_gaussian, data, values, values[0])
        forms["gaussian mean"] = partial(sampler.sample_gaussian, data, values, values[0], use_argmax=True, **of_draw)
    for name, draw in forms.items():
        yield trace.part(name, n_envs, draw)


def resetting(program: Mapping[str, Any], backend: str, trace: Trace) -> Iterator[Part]:
    """Restore saved copies, and draw from a pool."""
    n_envs, n_agents = program["n_envs"], program["n_agents"]
    data, functions = _managers(program, backend)
    feed = DataFeed()
    feed.add_data("saved", np.ones((n_envs, n_agents, 4), np.float32), save_copy_and_apply_at_reset=True)
    feed.add_data("refilled", np.ones((n_envs, n_agents), np.int32))
    feed.add_pool_for_reset("refilled_reset_pool", np.ones((4, n_agents), np.int32), "refilled")
    data.push_data_to_device(feed)
    data.tensor("_done_")[::2] = 1
    resetter = CUDAEnvironmentReset(functions)
    for mode in ("if_done", "force_reset") if program.get("more") else ("if_done",):
        yield trace.part("reset_when_done", n_envs, partial(resetter.reset_when_done, data, mode))


def scanning(program: Mapping[str, Any], backend: str, trace: Trace) -> Iterator[Part]:
    """Scan a rollout for returns, and for generalised advantages."""
    n_envs, n_agents, n_steps = program["n_envs"], program["n_agents"], program["n_steps"]
    device = BACKENDS[backend].device
    rewards, values, advantages, returns = torch.zeros(4, n_steps, n_envs, n_agents, device=device)
    terminated, truncated = torch.randint(2, (2, n_steps, n_envs), dtype=torch.int32, device=device)
    forms: list[tuple[str, float, bool, bool, bool]] = [
        ("returns", 1.0, False, False, False),
        ("advantages", 0.95, True, False, False),
    ]
    if program.get("more"):
        forms += [("returns with cuts", 1.0, False, True, False), ("advantages with cuts", 0.95, True, True, False)]
        forms += [("WarpDrive's", 1.0, True, has_cuts, True) for has_cuts in (False, True)]
    for name, lam, has_values, has_cuts, compat in forms:
        scan = ReturnScan(backend, n_envs, n_agents, 0.99, lam, **({"compat": True} if compat else {}))
        seen, filled = (values, advantages) if has_values else (None, None)
        cuts = values if has_cuts else None
        tensors = (rewards, seen, terminated, truncated, values[0], cuts, filled, returns)
        yield trace.part(name, n_envs * n_steps, partial(scan.scan, *tensors))


def shuffling(program: Mapping[str, Any], backend: str, trace: Trace) -> Iterator[Part]:
    """Draw a permutation, and rows of a replay buffer."""
    n = program["n_envs"]
    yield trace.part("permute", n, Shuffle(backend, n, SEED).permute)
    n_filled = torch.full((1,), min(n, 9) if program.get("more") else n, dtype=torch.int32)
    yield trace.part("rows", n, partial(RowDraw(backend, n, SEED).draw, n_filled.to(BACKENDS[backend].device)))


def _managers(program: Mapping[str, Any], backend: str) -> tuple[CUDADataManager, CUDAFunctionManager]:
    n_envs, n_agents = program["n_envs"], program["n_agents"]
    data = CUDADataManager(n_agents, n_envs, episode_length=1, backend=BACKENDS[backend])
    return data, CUDAFunctionManager(n_agents, n_envs, backend=BACKENDS[backend])


PROGRAMS: Final = {
    "noise": sampling,
    **{each.__name__: each for each in (environment, sampling, resetting, scanning, shuffling)},
}


def answer(program: Mapping[str, Any], trace: Trace) -> dict[str, Any]:
    """Run a program; return its parts, or the reason for having none."""
    backend = program["backend"]
    try:
        if not (state := BACKENDS[backend].availability()).available:
            return {"skipped": f"{backend}: {state}"}
        parts = PROGRAMS[program["kind"]](program, backend, trace)
        found = [dict(zip(("part", "units", "launches"), part, strict=True)) for part in parts]
        return {"parts": found, "compiler": cuda_c.gpu_compiler() if backend == "pycuda" else ", ".join(_tools())}
    except Exception as error:  # noqa: BLE001  (an error in one program must not lose the others)
        return {"failed": f"{type(error).__name__}: {error}"}


def main(*architectures: str, socket: int) -> None:
    """Answer programs until an empty request."""
    with contextlib.suppress(ImportError):
        importlib.import_module("_numba_cuda_redirector")  # Python reads its .pth only in its own folders
    sys.path.append(os.getcwd())  # for a user's modules; last, so that the checkout's take precedence
    trace, connection = Trace(architectures), Connection(socket)
    BACKENDS.update({"pycuda": CudaC(trace), "numba": NumbaCuda(trace)})
    while request := json.loads(connection.recv_bytes()):
        connection.send_bytes(json.dumps(answer(**request["arguments"], trace=trace)).encode())


if __name__ == "__main__":
    with contextlib.suppress(EOFError):  # the client is gone
        main(*sys.argv[1:-1], socket=int(sys.argv[-1]))
