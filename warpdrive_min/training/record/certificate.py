"""Certificates: hashes of a run's state at several iterations, and its origin.

Anyone can replay the run and compare the hashes.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import logging
import math
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

import warpdrive_min
from warpdrive_min.backends import cuda_c
from warpdrive_min.backends.host import processor
from warpdrive_min.checkout import GitError, commit_of_code
from warpdrive_min.errors import CertificateError, one_line, require
from warpdrive_min.files import write_atomically
from warpdrive_min.training.config import RunConfig
from warpdrive_min.training.loop.checkpoint import listed
from warpdrive_min.training.loop.metrics import EPISODIC_RETURN, Row
from warpdrive_min.training.models.members import BEST, BEST_RETURNS
from warpdrive_min.training.ranks import as_bytes
from warpdrive_min.training.trainer import Trainer

log = logging.getLogger(__name__)

NAME: Final = "certificate.json"
"""File name of the certificate in its run's folder."""
SCHEMA: Final = 1
"""Schema version; incremented when a field changes its meaning or is removed."""
PACKAGES: Final = (
    *("warpdrive-min", "torch", "triton", "numpy", "numba", "numba-cuda", "pycuda"),
    *("cuda-core", "cuda-bindings", "cuda-toolkit"),
)
"""Recorded packages that compute, in addition to those of `LIBRARIES`."""
LIBRARIES: Final = "nvidia-"
"""Prefix of the names of packages with CUDA's libraries."""
VARIABLES: Final = (
    *("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG"),
    *("ATEN_CPU_CAPABILITY", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA"),
)
"""Environment variables that change how the same code rounds."""
CPU_FIELDS: Final = ("architecture", "cpu", "cpu_capability")
"""Fields of `Origin.machine` that may change the bits of a run on a CPU."""
MOST_THREADS: Final = 4096
"""Upper limit of a run's threads; more than any machine has cores."""
SHOWN: Final = 80
"""Number of characters of a wrong value that an error prints."""
NEW_COPY_ADVICE: Final = "get a new copy from its author, or train with --certify"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


Count = Annotated[int, Field(ge=0, lt=2**63)]
Hash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Point(_Part):
    """State of a run after an iteration."""

    iteration: Count
    """Iterations done; 0 at the start."""
    env_steps: Count
    """Env steps done, summed over all environments."""
    tensors: Annotated[dict[str, Hash], Field(min_length=1)]
    """Hash of each tensor of the run's state.

    These are weights, optimisers, environments, replay buffers and counters.
    """


class CurvePoint(_Part):
    """Point of the learning curve."""

    iteration: Count
    """Iterations done."""
    env_steps: Count
    """Env steps done, summed over all environments."""
    mean_return: dict[str, FiniteFloat | None]
    """Mean return of each policy since the last point; None if no episode ended."""


class Origin(_Part):
    """Code and machine that determine a run's bits.

    It contains no name of a host, a user or a folder.
    """

    commit: str | None
    """Commit of the sources; None outside a checkout."""
    sources: dict[str, str]
    """Hash of each file of the core and the environments, by its path in a checkout."""
    machine_code: dict[str, str]
    """Hash of the instructions of each CUDA C kernel.

    These are the kernels of the environment, the sampler and exact training.
    """
    dependencies: dict[str, str]
    """Versions of Python, packages and compiler, and the `VARIABLES` that are set.

    A variable's name starts with "$".
    """
    machine: dict[str, str | None]
    """Backend, GPU and CPU."""

    @classmethod
    def of(cls, trainer: Trainer) -> Origin:
        """Return the origin of a run on this machine."""
        wrapper = trainer.wrapper
        binaries = dict(wrapper.cuda_function_manager.binaries)
        for group in trainer.groups.values():
            if group.exact is not None:
                binaries |= group.exact.binaries
        hashes = {file: _machine_code_hash(file) for file in set(binaries.values())}
        return cls(
            commit=_commit(),
            sources={name: _sha256(file.read_bytes()) for name, file in sorted(_sources(wrapper.env).items())},
            machine_code={name: hashes[file] for name, file in sorted(binaries.items())},
            dependencies=_dependencies(wrapper.env_backend),
            machine=_machine(wrapper.env_backend, wrapper.backend.device, trainer.world.size),
        )

    def differences(self, here: Origin) -> dict[str, tuple[str | None, str | None]]:
        """Return the differing entries by name: this value and the other's.

        A missing value is None.
        """
        old, new = dict(self._parts()), dict(here._parts())
        return {name: (old.get(name), new.get(name)) for name in {**old, **new} if old.get(name) != new.get(name)}

    def other_hardware(self, here: Origin) -> dict[str, tuple[str | None, str | None]]:
        """Return differences of hardware that determines the bits, as `differences`."""
        decide = ("backend", "gpu") if self.machine.get("gpu") else ("backend", *CPU_FIELDS)
        pairs = {name: (self.machine.get(name), here.machine.get(name)) for name in decide}
        return {name: both for name, both in pairs.items() if both[0] != both[1]}

    def _parts(self) -> Iterator[tuple[str, str | None]]:
        yield "commit", self.commit
        for word in ("sources", "machine_code", "dependencies", "machine"):
            for name, value in getattr(self, word).items():
                yield f"{word.removesuffix('s').replace('_', ' ').replace('ie', 'y')} {name}", value


class Certificate(_Part):
    """Settings and origin of a run, and hashes of its state.

    Hashes are of iterations 0, 1, 2, 4, ... and the last.
    """

    schema_version: Literal[1] = SCHEMA
    created: str
    """Time of creation, UTC."""
    env: str
    """Name of the environment in the table of environments."""
    run_config: dict[str, Any]
    """Run config with the seed; of ``saving``, only the logging interval of metrics."""
    environment: dict[str, Any]
    """Sizes of the environment, and agents of each policy."""
    threads: Annotated[int, Field(ge=1, le=MOST_THREADS)]
    """Threads of torch, which determine the order of its sums on a CPU."""
    origin: Origin
    points: tuple[Point, ...]
    """Hashes of the run's state, by increasing iteration."""
    curve: tuple[CurvePoint, ...]
    """Learning curve, by increasing iteration."""

    def write(self, path: Path) -> None:
        """Write the certificate atomically, with a hash over its content.

        Raises:
            OSError: It cannot be written.
        """
        fields = self.model_dump(mode="json")
        write_atomically(path, json.dumps(fields | {"sha256": _digest(fields)}, indent=1, allow_nan=False) + "\n")

    @classmethod
    def read(cls, path: str | Path) -> Certificate:
        """Read a certificate from its file or its run's folder.

        Raises:
            CertificateError: The file does not exist, is truncated or altered, or has another schema version.
        """
        path = Path(path) / NAME if Path(path).is_dir() else Path(path)
        who = f"certificate {path}"
        try:
            fields = json.loads(path.read_bytes(), parse_constant=_refuse_constant)
        except OSError as error:
            rule = "must be a file that can be read, or a run's folder that has one"
            raise CertificateError.of(who, rule, error, "train with --certify") from error
        except (ValueError, RecursionError) as error:
            raise CertificateError.of(
                who, "is truncated or altered: it must be a whole JSON object", error, NEW_COPY_ADVICE
            ) from error
        has_version = isinstance(fields, dict) and "schema_version" in fields
        require(
            has_version, who, "must be a JSON object with a schema_version", do=NEW_COPY_ADVICE, error=CertificateError
        )
        rule, do = f"schema_version must be {SCHEMA}", "verify it by the release that wrote it"
        require(fields["schema_version"] == SCHEMA, who, rule, fields["schema_version"], do, CertificateError)
        recorded = fields.pop("sha256", None)
        try:
            digest = _digest(fields)
        except (ValueError, RecursionError) as error:
            raise CertificateError.of(
                who, "is truncated or altered: it must be JSON that can be written", error, NEW_COPY_ADVICE
            ) from error
        rule = f"is truncated or altered: its SHA-256 must be {recorded!s:.64}"
        require(digest == recorded, who, rule, digest, NEW_COPY_ADVICE, CertificateError)
        try:
            found = cls.model_validate_json(json.dumps(fields), strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place, got = ".".join(map(str, first["loc"])), f"{first['input']!r:.{SHOWN}}"
            raise CertificateError(
                f"{who}: {one_line(place)}: {first['msg']} (got {got}); {NEW_COPY_ADVICE}"
            ) from error
        for name, parts, starts in (("points", found.points, [0]), ("curve", found.curve, [])):
            places = [each.iteration for each in parts]
            is_whole = places == sorted({*places}) and places[: len(starts)] == starts
            rule = f"{name}: iterations must increase{', from 0 on' if starts else ''}"
            require(is_whole, who, rule, listed([*map(str, places)]), NEW_COPY_ADVICE, CertificateError)
        last = max([found.iterations, *(each.iteration for each in found.curve)])
        places = [each.iteration for each in found.points]
        rule = "is truncated: it must have points after iterations 0, 1, 2, 4, ... to the end of its curve"
        require(
            _certified_until(last) <= {*places},
            who,
            rule,
            listed([*map(str, places)]),
            NEW_COPY_ADVICE,
            CertificateError,
        )
        return found

    @property
    def config(self) -> RunConfig:
        """Run config, checked to be replayable.

        Raises:
            ConfigError: It breaks a rule of this release.
            CertificateError: Such a run cannot be certified, or the config has no seed.
        """
        config = RunConfig.from_dict(self.run_config)
        require_replayable("certificate", config, 1)
        n_gpus, rule = config.trainer.num_gpus, "run_config.trainer.num_gpus must be 1, with the environments of all"
        require(n_gpus == 1, "certificate", rule, n_gpus, NEW_COPY_ADVICE, CertificateError)
        seed, rule = config.trainer.seed, "run_config.trainer.seed must be a number"
        require(seed is not None, "certificate", rule, seed, NEW_COPY_ADVICE, CertificateError)
        return config

    @property
    def iterations(self) -> int:
        """Number of iterations covered."""
        return self.points[-1].iteration


def is_certified(iteration: int) -> bool:
    """Return True for iterations 0, 1, 2, 4, 8, ...

    A certificate has a point after each of them.

    The last iteration has a point too.
    """
    return iteration & (iteration - 1) == 0


def _certified_until(last: int) -> set[int]:
    """Return all certified iterations up to ``last``; see `is_certified`."""
    return {0} | {1 << power for power in range(last.bit_length())}


# ------------------------------------------------------------------ writing along with a run


class Certifier:
    """Writer of a run's certificate during training.

    It writes into the run's folder, and synchronises at each point. On several ranks each has one; the first writes.

    Args:
        trainer: Run at iteration 0, or at the checkpoint that it resumes from.
        env: Name of the environment in the table of environments, for `verify`. A run of another environment can be
            replayed only in Python.
        resumed: Folder of the resumed run, whose certificate is continued; None for a new run.

    Raises:
        CertificateError: The run cannot be replayed from its certificate only, or its settings or origin differ from
            the certificate's.
    """

    def __init__(self, trainer: Trainer, env: str, resumed: Path | None = None) -> None:
        require_replayable("train.certify", trainer.config, max(trainer.world.size, trainer.config.trainer.num_gpus))
        self._trainer = trainer
        self.path = trainer.folder / NAME
        """File of the certificate."""
        begun = Certificate(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            env=env,
            run_config=_replayed_config(trainer),
            environment=_environment(trainer),
            threads=torch.get_num_threads(),
            origin=Origin.of(trainer),
            points=(),
            curve=(),
        )
        n_ranks, rule = trainer.world.size, "a certified run of several processes must not be resumed"
        require(resumed is None or n_ranks == 1, "train.certify", rule, n_ranks, "resume without --certify")
        self.certificate = begun if resumed is None else _resumed_certificate(Certificate.read(resumed), begun, trainer)
        if resumed is None:
            self._add_point()
        self._write()

    def note(self, row: Row) -> None:
        """Add an iteration, with its row of metrics if logged."""
        trainer = self._trainer
        if row:
            self._extend(curve=(*self.certificate.curve, curve_point(row, trainer)))
        if is_certified(trainer.iteration):
            self._add_point()
        if is_certified(trainer.iteration) or trainer.is_due(trainer.config.saving.model_params_save_freq):
            self._write()

    def end(self) -> None:
        """Write the state at the end of the run."""
        if self.certificate.iterations < self._trainer.iteration:
            self._add_point()
        self._write()

    def _write(self) -> None:
        if self._trainer.world.is_first:
            self.certificate.write(self.path)

    def _add_point(self) -> None:
        self._extend(points=(*self.certificate.points, point(self._trainer)))

    def _extend(self, **changes: Any) -> None:
        self.certificate = self.certificate.model_copy(update=changes)


def point(trainer: Trainer) -> Point:
    """Return the hashes of a run's current state; synchronises.

    All ranks must call it; only the first one's has tensors. They are those of one process with all environments. The
    best weights of members, which evaluation chooses, are left out.
    """
    state = trainer.whole_state()
    tensors = {name: tensor_hash(tensor) for name, tensor in state.items() if not name.startswith((BEST, BEST_RETURNS))}
    return Point.model_construct(iteration=trainer.iteration, env_steps=trainer.env_steps, tensors=tensors)


def curve_point(row: Row, trainer: Trainer) -> CurvePoint:
    """Return the point of the learning curve from a row of metrics."""
    returns = {name: float(row[f"{name}/{EPISODIC_RETURN}"]) for name in trainer.groups}
    return CurvePoint(
        iteration=int(row["iteration"]),
        env_steps=int(row["env_steps"]),
        mean_return={name: value if math.isfinite(value) else None for name, value in returns.items()},
    )


def tensor_hash(tensor: torch.Tensor) -> str:
    """Return the SHA-256 of a tensor's type, shape and bytes; synchronises."""
    digest = hashlib.sha256(f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}\0".encode())
    here = tensor.detach().cpu().contiguous()
    digest.update(as_bytes(here).numpy().data)
    return digest.hexdigest()


def require_replayable(who: str, config: RunConfig, n_processes: int) -> None:
    """Raise `CertificateError` if a run cannot be replayed from its run config.

    The message starts with ``who``.
    """
    rule, do = "a certified run must have one process, or be exact", "set trainer.num_gpus=1 or trainer.exact=true"
    require(n_processes == 1 or config.trainer.exact, who, rule, n_processes, do, CertificateError)
    for name, policy in config.policy.items():
        rule, do = "a certified run starts from its seed alone", f"leave policy.{name}'s model_ckpt_filepath out"
        files = policy.weight_files
        require(not files, who, rule, ", ".join(files.values()), do, CertificateError)


def _refuse_constant(constant: str) -> float:
    raise ValueError(f"{constant} is not a JSON number")


def _replayed_config(trainer: Trainer) -> dict[str, Any]:
    """Return the run config without settings that do not change the bits.

    The logging interval of metrics stays: logging resets the sums over episodes. Of several ranks it is that of one
    process with all environments.
    """
    config, n_ranks = trainer.config.to_dict(), trainer.world.size
    whole = {name: config["trainer"][name] * n_ranks for name in ("num_envs", "train_batch_size", "num_episodes")}
    config["trainer"] |= {**whole, "num_gpus": 1, "seed": trainer.seed}
    config["saving"] = {"metrics_log_freq": trainer.config.saving.metrics_log_freq}
    return config


def _environment(trainer: Trainer) -> dict[str, Any]:
    """Return the sizes of one process with the environments of all ranks."""
    sizes = trainer.environment()
    whole = {**sizes, "n_envs": sizes["n_envs"] * sizes["ranks"], "ranks": 1}
    return json.loads(json.dumps(whole))  # type: ignore[no-any-return]  # lists, as JSON has them


def _resumed_certificate(found: Certificate, here: Certificate, trainer: Trainer) -> Certificate:
    """Return a certificate up to the resumed run's iteration.

    Raises `CertificateError` if it does not match the run.
    """
    who, at = "train.certify", trainer.iteration
    rule = "a run with a stop_return restarts its count of episodes when it is resumed"
    stop = trainer.config.trainer.stop_return
    require(stop is None, who, rule, stop, "certify it in one run, without resuming", CertificateError)
    compared = ("env", "run_config", "environment", "threads")
    keys = [key for name in compared for key in _changed_keys(getattr(found, name), getattr(here, name), name)]
    keys += [name for name in found.origin.differences(here.origin) if name != "commit"]
    rule, do = (
        "a resumed certified run must keep its code and settings; these changed",
        "resume without --certify, or start a new run with it",
    )
    require(not keys, who, rule, listed(keys), do, CertificateError)
    continued = found.model_copy(
        update={
            "points": tuple(point for point in found.points if point.iteration <= at),
            "curve": tuple(point for point in found.curve if point.iteration <= at),
        }
    )
    logged = {n for n in range(1, at + 1) if n == 1 or n % trainer.config.saving.metrics_log_freq == 0}
    missing = _certified_until(at) - {point.iteration for point in continued.points}
    missing |= logged - {point.iteration for point in continued.curve}
    rule = "a run must be certified from its start, and this iteration is not certified"
    do = "resume from an earlier checkpoint, or without --certify"
    require(not missing, who, rule, min(missing, default=0), do, CertificateError)
    last = continued.points[-1]
    if last.iteration == at and (difference := first_difference(last, point(trainer))):
        rule = f"the checkpoint must be that of the certified run, in which {difference}"
        raise CertificateError.of(who, rule, do="resume from an earlier checkpoint")
    return continued


def _changed_keys(old: Any, new: Any, place: str) -> list[str]:
    """Return the dotted keys of differing values."""
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        return [] if old == new else [place]
    return [key for each in {**old, **new} for key in _changed_keys(old.get(each), new.get(each), f"{place}.{each}")]


# ------------------------------------------------------------------ replaying


@dataclass(frozen=True, slots=True, kw_only=True)
class PointDifference:
    """First difference between a recorded and a replayed point."""

    iteration: int
    """Iterations done."""
    what: str
    """Name of the tensor, or "the learning curve" or "the length of the run"."""
    recorded: str
    """Recorded hash or value."""
    here: str
    """Hash or value of the replay."""
    more: str = ""
    """Text with the number of further differences; may be empty."""

    def __str__(self) -> str:
        values = f"{self.recorded} recorded, {self.here} here"
        return f"{self.what} after iteration {self.iteration:,}: {values}{self.more}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """Result of a replay."""

    last: int | None
    """Last iteration up to which all points agree; None if the start differs."""
    difference: PointDifference | None
    """First difference; None if all points agree."""
    n_points: int
    """Number of equal points."""
    n_tensors: int
    """Number of tensors in a point."""


def replay(certificate: Certificate, trainer: Trainer, iterations: int | None = None) -> ReplayResult:
    """Replay a run and compare points, to the first difference.

    Args:
        certificate: Recorded run.
        trainer: The same run at its start; see `replay_config`.
        iterations: Last iteration to compare; None: all.

    Raises:
        CertificateError: The trainer has another environment, other agents or other sizes.
    """
    here = _environment(trainer)
    keys = _changed_keys(certificate.environment, here, "environment")
    rule, do = "the run config must give the same environment and policies; this differs", "replay it in Python"
    require(not keys, "certificate", rule, listed(keys), do, CertificateError)
    wanted = [each for each in certificate.points if iterations is None or each.iteration <= iterations]
    curve = {each.iteration: each for each in certificate.curve}
    in_curve: PointDifference | None = None
    agreed: int | None = None
    for n, recorded in enumerate(wanted):
        while trainer.iteration < recorded.iteration and not trainer.is_finished:
            row = trainer.train(1)
            got = curve_point(row, trainer) if row else None
            in_curve = in_curve or _difference_of_curves(trainer.iteration, curve.get(trainer.iteration), got)
        difference = _difference_of_lengths(recorded, trainer) or first_difference(recorded, point(trainer)) or in_curve
        if difference is not None:
            return ReplayResult(last=agreed, difference=difference, n_points=n, n_tensors=len(recorded.tensors))
        agreed = recorded.iteration
    return ReplayResult(last=agreed, difference=None, n_points=len(wanted), n_tensors=len(wanted[-1].tensors))


def replay_config(certificate: Certificate, backend: str, folder: str = os.devnull) -> dict[str, Any]:
    """Return the run config of a replay, as a mapping.

    Args:
        certificate: Recorded run; its settings do not determine where the replay saves.
        backend: Backend of the replay.
        folder: Folder for the last checkpoint; a `replay_trainer` needs none.
    """
    config = certificate.run_config
    return {
        **config,
        "trainer": {**config.get("trainer", {}), "env_backend": backend},
        "saving": {
            "metrics_log_freq": certificate.config.saving.metrics_log_freq,
            "model_params_save_freq": certificate.iterations + 1,
            "keep_best": False,
            "sinks": [],
            "basedir": folder,
            "name": "replay",
            "tag": "replay",
        },
    }


def first_difference(recorded: Point, here: Point) -> PointDifference | None:
    """Return the first tensor, in recorded order, whose hash differs, or None."""
    names = [
        name for name in {**recorded.tensors, **here.tensors} if recorded.tensors.get(name) != here.tensors.get(name)
    ]
    if not names:
        return None
    more = f", and {len(names) - 1} of {len(recorded.tensors)} other tensors differ" if names[1:] else ""
    old, new = (each.tensors.get(names[0], "missing") for each in (recorded, here))
    return PointDifference(iteration=recorded.iteration, what=names[0], recorded=old, here=new, more=more)


def _difference_of_lengths(recorded: Point, trainer: Trainer) -> PointDifference | None:
    if (recorded.iteration, recorded.env_steps) == (trainer.iteration, trainer.env_steps):
        return None
    told, here = (f"{n:,} iterations, {steps:,} steps" for n, steps in (
        (recorded.iteration, recorded.env_steps), (trainer.iteration, trainer.env_steps)))  # fmt: skip
    return PointDifference(iteration=trainer.iteration, what="the length of the run", recorded=told, here=here)


def _difference_of_curves(
    iteration: int, recorded: CurvePoint | None, here: CurvePoint | None
) -> PointDifference | None:
    if recorded == here:
        return None
    told, got = ("none" if each is None else str(each.mean_return) for each in (recorded, here))
    return PointDifference(iteration=iteration, what="the learning curve", recorded=told, here=got)


# ------------------------------------------------------------------ where bits come from


def _sources(env: Any) -> dict[str, Path]:
    """Return source files by their path in a checkout.

    They are files of the core, the shipped environments, and the folder of the run's environment.
    """
    core = Path(warpdrive_min.__file__).resolve().parent
    shipped = core / "envs" if (core / "envs").is_dir() else core.parent / "envs"  # in a wheel, in a checkout
    roots = {core.name: core, "envs": shipped}
    own = Path(inspect.getfile(type(env))).resolve().parent
    if not any(own.is_relative_to(root) for root in roots.values()):
        roots[own.name] = own
    found = {f"{name}/{path}": root / path for name, root in roots.items() for path in _files(root)}
    elsewhere = tuple(f"{core.name}/{name}" for name in ("envs/", "envs.py", "bench/"))
    return {name: path for name, path in found.items() if not name.startswith(elsewhere)}


def _files(root: Path) -> Iterator[str]:
    for folder, folders, names in os.walk(root):
        folders[:] = [each for each in folders if each != "__pycache__" and not each.startswith(".")]
        yield from (Path(folder, name).relative_to(root).as_posix() for name in names if not name.startswith("."))


def _commit() -> str | None:
    try:
        return commit_of_code(Path(__file__).parent, ".")
    except GitError as error:
        log.warning("certificate: has no commit of the code (%s)", error)
        return None


@functools.cache
def _installed() -> dict[str, str]:
    """Return the versions of all installed packages, which takes a tenth of a second."""
    return {str(each.metadata["Name"]).lower(): each.version for each in metadata.distributions()}


def _dependencies(backend: str) -> dict[str, str]:
    installed = _installed()
    names = [*PACKAGES, *sorted(name for name in installed if name.startswith(LIBRARIES))]
    found = {"python": platform.python_version()} | {name: installed[name] for name in names if name in installed}
    if backend == "host" and (compiler := cuda_c.cpu_compiler()):
        found["compiler"] = cuda_c.compiler_version(compiler)
    if backend == "pycuda" and (compiler := cuda_c.gpu_compiler()):
        found["compiler"] = compiler
    return found | {f"${name}": os.environ[name] for name in VARIABLES if name in os.environ}


def _machine(backend: str, device: torch.device, n_ranks: int) -> dict[str, str | None]:
    return {
        **({"ranks": str(n_ranks)} if n_ranks > 1 else {}),
        "backend": backend,
        "gpu": torch.cuda.get_device_properties(device).name if device.type == "cuda" else None,
        "architecture": platform.machine(),
        "cpu": processor("model name").removeprefix("model name").lstrip("\t :"),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def _machine_code_hash(binary: Path) -> str:
    """Return the hash of a binary's instructions.

    Unlike the whole file, they do not depend on the folder of compilation. A file that is not ELF is hashed whole.
    """
    data = binary.read_bytes()
    return _sha256(b"".join(_instructions(data)) if data[:5] == b"\x7fELF\x02" else data)


def _instructions(elf: bytes) -> Iterator[bytes]:
    """Yield the executable sections of a 64-bit ELF file."""

    def number(place: int, n_bytes: int) -> int:
        return int.from_bytes(elf[place : place + n_bytes], "little")

    table, size, n_sections = number(0x28, 8), number(0x3A, 2), number(0x3C, 2)
    for header in range(table, table + size * n_sections, size):
        is_executed = number(header + 8, 8) & 4
        if is_executed:
            start = number(header + 24, 8)
            yield elf[start : start + number(header + 32, 8)]


def _digest(fields: Mapping[str, Any]) -> str:
    return _sha256(json.dumps(fields, sort_keys=True).encode())


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
