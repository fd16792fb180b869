"""CUDA C sources: their constants, their declared parameters, and how they are compiled for GPU and CPU."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from warpdrive_min.backends.base import Constant
from warpdrive_min.backends.cache import cached
from warpdrive_min.backends.cuda_rollouts import BODY, ROLLOUT, ROLLOUT_WITH_POLICY, entries_of, kernel_of, made
from warpdrive_min.backends.cuda_source import (
    CUDA_HEADERS,
    CURAND,
    HEADERS,
    HOST_HEADERS,
    WORDS,
    Signature,
    blocks_per_env,
    defines,
    headers,
    is_for_nvcc,
    needs_nvcc,
    needs_states,
    signatures,
    speaks_warp_drive,
    whole_text,
)
from warpdrive_min.constants import FINAL_OBSERVATIONS
from warpdrive_min.errors import CompileError, require

# ------------------------------------------------------------------ constants


def prelude(constants: Mapping[str, Constant]) -> str:
    """Return the C++ text that goes before a source: one definition for each constant, then the vocabulary.

    Tables without an entry are left out, as C++ has none.
    """
    present = {name: value for name, value in constants.items() if not isinstance(value, Sequence) or value}
    lines = [_definition(name, value) for name, value in sorted(present.items())]
    scalars = [line for line in lines if line.startswith("constexpr")]
    tables = [line for line in lines if not line.startswith("constexpr")]
    return "\n".join([*scalars, *_own_headers("core.cuh"), *tables, ""])


def _own_headers(*names: str) -> list[str]:
    """Return the lines that include headers of the core's by whole paths: a source may have its own of such a name."""
    return [f'#include "{HEADERS / name}"' for name in names]


def _definition(name: str, value: Constant) -> str:
    if isinstance(value, bool):
        return f"constexpr bool {name} = {str(value).lower()};"
    if isinstance(value, int | np.integer):
        return f"constexpr int {name} = {value};"
    if isinstance(value, float | np.floating):
        return f"constexpr float {name} = {_float(value)};"
    is_int = all(isinstance(entry, int | np.integer) for entry in value)
    entries = ", ".join(str(entry) if is_int else _float(entry) for entry in value)
    return f"WD_TABLE {'int' if is_int else 'float'} {name}[{len(value)}] = {{{entries}}};"


def _float(value: float) -> str:
    require(np.isfinite(value), "kernel constant", "must be finite", value)
    return f"{float(np.float32(value))!r}f"  # the shortest decimal of the rounded value reads back as the same float


def declared(source: Path, constants: Mapping[str, Constant]) -> dict[str, Signature]:
    """Read the kernels that are compiled of a source, by name; with the constants of many steps it is one alone.

    Raises:
        CompileError: As `signatures`, or no kernel of many steps can be made of its own.
    """
    whole = whole_text(source)
    found, name = signatures(whole, constants, str(source)), kernel_of(constants)
    if name is None:
        return {name: each for name, each in found.items() if name not in (ROLLOUT, ROLLOUT_WITH_POLICY)}
    if name not in found:
        found = signatures(made(whole, constants, str(source)), constants, str(source))
    return {name: found[name]}


MAX_CLUSTER = 8
"""Blocks of the largest thread block cluster that every GPU with clusters can run."""


def has_clusters(architecture: str) -> bool:
    """Tell whether blocks on an architecture, ``"sm_90"``, can be a thread block cluster."""
    return int(architecture.removeprefix("sm_").rstrip("af")) >= 90


def _check_cluster(source: Path, blocks: int, architecture: str) -> None:
    rule = f"blocks_per_env is the size of a thread block cluster, at most {MAX_CLUSTER}"
    require(blocks <= MAX_CLUSTER, str(source), rule, blocks, "use fewer", CompileError)
    rule = f"blocks_per_env above 1 is a thread block cluster, which needs sm_90 or newer, not {architecture}"
    require(blocks == 1 or has_clusters(architecture), str(source), rule, blocks, "use 1", CompileError)


# ------------------------------------------------------------------ compilers


def unit(source: Path, constants: Mapping[str, Constant], after: str = "") -> str:
    """Return the whole text of one translation unit; messages name the lines of ``source``.

    A source with a thread for each agent was written for nvcc and WarpDrive: it gets their names, but those that it
    defines itself.
    """
    whole, given, many = whole_text(source), constants, kernel_of(constants)
    if many is not None:
        return _unit_of_many_steps(source, whole, constants, many, after)
    speaks = speaks_warp_drive(whole)
    before = [f"#define WD_BLOCKS {blocks_per_env(given)}"] if speaks else []
    if is_for_nvcc(whole):
        constants = {name: value for name, value in given.items() if not defines(whole, name)}
        before += _own_headers("nvcc.cuh")
    if "curand" in whole:  # WarpDrive includes it
        before += ["#define WD_OWN_STATES"] if needs_states(whole) else []
        before += ["#include <curand_kernel.h>"]
    if speaks:
        before += [f"#define WD_OWN_{word}" for word in WORDS if defines(whole, word)]
        before += _own_headers("warp_drive.cuh")
    return _unit(constants, before, source, after)


def _unit(constants: Mapping[str, Constant], before: Sequence[str], source: Path, *after: str) -> str:
    return "\n".join([prelude(constants), *before, f'#line 1 "{source}"', source.read_text(), *after])


def _unit_of_many_steps(source: Path, whole: str, constants: Mapping[str, Constant], name: str, after: str) -> str:
    """Return the unit of a kernel of many steps: the source's own, else one that is made of its ``step``.

    A source has its own behind ``#if defined(WD_ROLLOUT)``, or that with a policy behind ``#if defined(WD_POLICY)``.
    """
    before = ["#define WD_POLICY", *_own_headers("policy.cuh")]
    if name == ROLLOUT:
        before = ["#define WD_ROLLOUT", *(["#define WD_DISCRETE"] if constants.get("CATEGORIES") else [])]
        before += _own_headers("rollout.cuh")
    if name in signatures(whole, constants, str(source)):
        return _unit(constants, before, source, after)
    before += _own_headers("many_steps.cuh")
    before += ["#undef WD_KERNEL", f"#define WD_KERNEL(name) WD_FN void {BODY.format('##name')} WD_TOLD"]
    if constants.get("RECORDS"):
        before += [f"constexpr int N_WORDS = {entries_of(FINAL_OBSERVATIONS)};"]
        before += ["constexpr bool HAS_FLAGS = true, CUTS = true;", *_own_headers("record.cu")]
    kernel = ["#undef WD_KERNEL", "#define WD_KERNEL(name) WD_ENTRY(name)", made(whole, constants, str(source))]
    return _unit(constants, before, source, *kernel, after)


def key(text: str, source: Path, **more: object) -> dict[str, object]:
    """Return the cache key of a unit: its text, the headers that it includes, and what else may change the code."""
    return {"text": text, "headers": [(path.name, path.read_text()) for path in headers(text, source.parent)], **more}


def compile_cubin(source: Path, constants: Mapping[str, Constant], architecture: str) -> Path:
    """Compile a source for a GPU architecture (``"sm_90"``), with NVRTC, else nvcc; return the cached cubin.

    A source that needs nvcc (`needs_nvcc`) is compiled with it where it is there. Needs no GPU.

    Raises:
        CompileError: With the compiler's message, because there is no compiler, or because the architecture cannot
            run that many blocks for an environment.
    """
    text = unit(source, constants)
    _check_cluster(source, blocks_per_env(constants), architecture)
    exact = bool(constants.get("EXACT"))
    compiler = gpu_compiler()
    if compiler is not None and needs_nvcc(source):
        compiler = _nvcc_version() or compiler
    if compiler is None:
        raise CompileError(f"{source}: no CUDA compiler; {GPU_COMPILER_INSTALL}")

    def make(path: Path) -> None:
        build = _nvrtc if compiler.startswith("nvrtc") else _nvcc
        build(text, source, path, architecture, exact)

    toolkit = [str(folder) for folder in _toolkit_headers()]
    more = {"architecture": architecture, "exact": exact, "compiler": compiler, "toolkit": toolkit}
    return cached(key(text, source, **more), ".cubin", make)


GPU_COMPILER_INSTALL = 'install NVRTC (pip install "cuda-core[cu13]") or the CUDA toolkit, so that nvcc is on the PATH'


@functools.cache
def gpu_compiler() -> str | None:
    """Return name and version of the CUDA compiler that would be used, or None."""
    try:
        from cuda.bindings import nvrtc  # noqa: PLC0415  (optional)

        _, major, minor = nvrtc.nvrtcVersion()
    except Exception:  # noqa: BLE001  (no package, no library, or a library that cannot be loaded: try nvcc)
        return _nvcc_version()
    return f"nvrtc {major}.{minor}"


def _nvcc_version() -> str | None:
    nvcc = shutil.which("nvcc")
    return nvcc and "nvcc " + _run([nvcc, "--version"], "nvcc").splitlines()[-1]


def _nvrtc(text: str, source: Path, path: Path, architecture: str, exact: bool) -> None:
    from cuda.core import Program, ProgramOptions  # noqa: PLC0415  (optional)

    with empty_headers(HOST_HEADERS) as folder:
        options = ProgramOptions(
            std="c++17",
            arch=architecture,
            fma=not exact,
            include_path=[*map(str, (source.parent, HEADERS, CURAND, folder, *_toolkit_headers()))],
            device_as_default_execution_space=True,  # constexpr functions need no annotation, as with nvcc
            name=str(source),
        )
        try:
            path.write_bytes(bytes(Program(text, "c++", options).compile("cubin").code))
        except Exception as error:
            raise CompileError(f"{source}: does not compile (NVRTC, {architecture}):\n{error}") from error


@contextlib.contextmanager
def empty_headers(names: Iterable[str]) -> Iterator[Path]:
    """Lend a folder of empty headers."""
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            (Path(folder) / name).touch()
        yield Path(folder)


def _toolkit_headers() -> list[Path]:
    """Return the folders that hold the CUDA toolkit's headers for kernels, such as cuRAND's."""
    roots = [Path(root) for name in ("CUDA_HOME", "CUDA_PATH") if (root := os.environ.get(name))]
    roots += [Path(nvcc).resolve().parents[1]] if (nvcc := shutil.which("nvcc")) else []
    roots += [Path(site) / "nvidia" / "cu13" for site in sys.path]
    needed = ("curand_kernel.h", "cccl/nv/target")
    folders = [root / "include" for root in roots if all((root / "include" / name).is_file() for name in needed)]
    return [each for folder in folders for each in (folder, folder / "cccl")]


def _nvcc(text: str, source: Path, path: Path, architecture: str, exact: bool) -> None:
    unit_path = path.with_suffix(".cu")
    unit_path.write_text(text)
    command = [
        "nvcc",
        "-cubin",
        f"-arch={architecture}",
        "-std=c++17",
        f"-I{source.parent}",
        f"-I{HEADERS}",
        f"-I{CURAND}",
    ]
    command += [f"--fmad={str(not exact).lower()}", "-o", str(path), str(unit_path)]
    _run(command, f"{source}: does not compile (nvcc, {architecture})")


def cpu_compiler() -> str | None:
    """Return the path of the C++ compiler: $CXX, else g++, clang++ or c++ on the PATH; None if there is none."""
    candidates = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "c++"]
    return next((path for name in candidates if (path := shutil.which(name))), None)


@functools.cache
def compiler_version(compiler: str) -> str:
    """Return the first line of ``compiler --version``."""
    return _run([compiler, "--version"], compiler).splitlines()[0]


def compile_shared_library(
    text: str, path: Path, compiler: str, flags: Sequence[str], where: str, unit_flags: Sequence[str] = ()
) -> None:
    """Compile C++ text to a shared library, with some flags for the text that are not for the linker.

    Raises:
        CompileError: With the compiler's message.
    """
    unit_path, what = path.with_suffix(".cpp"), f"{where}: does not compile ({compiler})"
    unit_path.write_text(text)
    if unit_flags:
        object_path = path.with_suffix(".o")
        _run([compiler, *flags, *unit_flags, "-fPIC", "-c", "-o", str(object_path), str(unit_path)], what)
        unit_path = object_path
    _run([compiler, *flags, "-shared", "-fPIC", "-o", str(path), str(unit_path)], what)


def preprocessed(text: str, source: Path, compiler: str, flags: Sequence[str]) -> str:
    """Return what the preprocessor of a C++ compiler leaves of a unit; cached.

    Raises:
        CompileError: With the compiler's message.
    """

    def make(path: Path) -> None:
        with empty_headers(CUDA_HEADERS) as folder:
            unit_path = folder / "unit.cpp"
            unit_path.write_text(text)
            command = [compiler, *flags, f"-I{folder}", "-E", "-P", "-o", str(path), str(unit_path)]
            _run(command, f"{source}: does not compile ({compiler})")

    return cached(key(text, source, flags=flags, compiler=compiler_version(compiler)), ".ii", make).read_text()


def _run(command: Sequence[str], what: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise CompileError(f"{what}:\n{result.stderr.strip() or result.stdout.strip()}")
    return result.stdout
