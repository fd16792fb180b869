"""Memory that an environment needs, and how many environments fit: `memory`."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any, Final

from warpdrive_min import BACKENDS

from ..core.measure import Once
from ..core.point import Check, Facts, Measurement, Metric, Point, Preset
from .points import points_of
from .shared import ON_GPU, env_point

if TYPE_CHECKING:
    import torch

    from warpdrive_min import EnvWrapper
    from warpdrive_min.backends import Backend

SLACK_BYTES: Final = 1 << 20
"""GPU memory outside arrays, bytes; fixed, such as kernel constants."""
REQUESTED: Final = "requested_bytes.all.current"
"""Statistic of torch's allocator: requested bytes, before rounding.

Rounding adds up to 1 MiB per array, which would hide the slope."""
FILLED: Final = 0.9
"""Share of the computed maximum that a GPU starts to verify it."""
MOST_ENVS: Final = 2**31 - 1
"""Maximum number of environments: kernels count them in 32 bits."""
AT_ONCE: Final = 2**26
"""Environments whose step counters are checked at once, to limit memory."""


# ------------------------------------------------------------------ points


def memory_points(preset: Preset) -> list[Point]:
    """Return every environment, and the Tag environments over numbers of agents."""
    if preset == "smoke":
        sizes = [("cartpole", 1), ("tag_continuous", 5)]
    else:
        stepped = {(each["env"], each["n_agents"]) for each in points_of("env_step", preset) if not each["exact"]}
        sizes = sorted(size for size in stepped if preset == "full" or size[1] <= 1_000)
    return [
        env_point(env, backend, counted_envs(backend, n_agents), n_agents)
        for env, n_agents in sizes
        for backend in (BACKENDS if preset == "full" else [name for name in BACKENDS if name != "numba"])
    ]


def counted_envs(backend: str, n_agents: int) -> int:
    """Return the number of environments for a million agents (CPU: 10,000)."""
    return max(1, (1_000_000 if backend in ON_GPU else 10_000) // n_agents)


# ------------------------------------------------------------------ set-up


def memory(point: Point) -> Once:
    """Measure the memory of n and 2 n environments; the slope is the result."""
    from .setups.timing import available

    backend = available(point["backend"])
    n_envs = point["n_envs"]

    def run() -> Measurement:
        once, twice = used_bytes(point, backend, n_envs), used_bytes(point, backend, 2 * n_envs)
        per_env = (twice - once) / n_envs
        fixed = max(0.0, once - per_env * n_envs)
        free = free_bytes(point, backend)
        largest = min(int((free - fixed) / per_env), MOST_ENVS)
        notes: dict[str, Any] = {
            "fixed_bytes": round(fixed),
            "free_bytes": free,
            "counted": "torch's allocator" if backend.device.type == "cuda" else "storage of the arrays",
        }
        unread = {}
        if backend.device.type == "cuda":
            notes["stepped_envs"] = fill(point, int(FILLED * largest))
        else:
            unread["stepped_envs"] = "a CPU's memory is not filled"
        return Measurement(
            metrics={
                "bytes_per_env": Metric.exact(per_env, "bytes", "lower"),
                "bytes_per_agent": Metric.exact(per_env / point["n_agents"], "bytes", "lower"),
                "largest_n_envs": Metric.exact(largest, "environments", "higher"),
            },
            notes=notes,
            unread=unread,
        )

    return Once(
        run=run,
        check=lambda: as_declared(point, backend),
        facts=Facts(mode="eager", device=backend.device, threads=backend.threads),
    )


def used_bytes(point: Point, backend: Backend, n_envs: int) -> int:
    """Return the bytes of started environments: allocated, or of all arrays."""
    from .setups.environments import start_env

    if backend.device.type == "cuda":
        import torch

        gc.collect()
        before = int(torch.cuda.memory_stats(backend.device)[REQUESTED])
        started = start_env(point, point["backend"], n_envs)
        backend.synchronize()
        used = int(torch.cuda.memory_stats(backend.device)[REQUESTED]) - before
        del started
        return used
    storages = {
        each.untyped_storage().data_ptr(): each.untyped_storage().nbytes()
        for each in arrays(start_env(point, point["backend"], n_envs))
    }
    return sum(storages.values())


def arrays(wrapper: EnvWrapper) -> list[torch.Tensor]:
    """Return every array of a wrapper, reserved ones and saved copies included."""
    import torch

    data = wrapper.cuda_data_manager
    return [array for name in data.names() if isinstance(array := data.find(name), torch.Tensor)]


def free_bytes(point: Point, backend: Backend) -> int:
    """Return the device's free memory, including torch's cache."""
    from .setups.environments import start_env

    gc.collect()
    return int(start_env(point, backend.name, 1).cuda_data_manager.free_bytes())


def fill(point: Point, n_envs: int) -> int:
    """Start a number of environments, step them once, and return that number.

    Raises:
        DeviceMemoryError: The environments do not fit.
    """
    import torch

    from .setups.environments import start_env

    gc.collect()
    torch.cuda.empty_cache()
    wrapper = start_env(point, point["backend"], n_envs)
    wrapper.step()
    wrapper.backend.synchronize()
    parts = wrapper.cuda_data_manager.tensor("_timestep_").split(AT_ONCE)
    if not sum(int((part == 1).sum()) for part in parts) > n_envs // 2:
        raise ArithmeticError(f"memory: {n_envs:,} environments were started, but most of them did not step")
    return n_envs


# ------------------------------------------------------------------ check


def as_declared(point: Point, backend: Backend) -> Check:
    """Check the bytes of 3 n environments against shapes and dtypes.

    So every size must be linear in the number of environments, and no array may share or waste memory.
    """
    from .setups.environments import start_env

    n_envs = point["n_envs"]
    one, two = (declared_bytes(start_env(point, backend.name, n)) for n in (1, 2))
    want = one + (two - one) * (3 * n_envs - 1)
    got = used_bytes(point, backend, 3 * n_envs)
    allowed = SLACK_BYTES if backend.device.type == "cuda" else 0
    oracle = "shapes and dtypes of the arrays of one environment and of two, in bytes"
    detail = f"{3 * n_envs:,} environments take {got:,} bytes, {want:,} are declared"
    return Check.within(abs(got - want), allowed, oracle, detail)


def declared_bytes(wrapper: EnvWrapper) -> int:
    """Return the bytes of all arrays by their shapes and dtypes."""
    return sum(each.numel() * each.element_size() for each in arrays(wrapper))
