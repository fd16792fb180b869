"""Compilation of CUDA C sources, with their constants, for GPU and CPU."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from warpdrive_min.backends.base import Constant
from warpdrive_min.backends.cache import VARIABLE, cached, excerpt
from warpdrive_min.backends.cuda_rollouts import (
    EPISODES,
    ROLLOUT,
    ROLLOUT_WITH_POLICY,
    STEP_FUNCTION,
    entries_constant,
    generate_rollout,
    kernel_of,
)
from warpdrive_min.backends.cuda_source import (
    CUDA_HEADERS,
    CURAND,
    HEADERS,
    HOST_HEADERS,
    ROOT,
    WORDS,
    Signature,
    blocks_per_env,
    defines,
    headers,
    is_for_nvcc,
    literal,
    needs_nvcc,
    needs_states,
    read,
    signatures,
    uses_warp_drive_names,
    whole_text,
    with_starts,
    write,
)
from warpdrive_min.constants import FINAL_OBSERVATIONS
from warpdrive_min.errors import CompileError, DiskFullError, require, shortened
from warpdrive_min.files import full_disk_errno, own_folder
from warpdrive_min.lazy import LazyModule
from warpdrive_min.processes import run

PROBE_TIMEOUT_S = 20.0
"""Timeout of a compiler's ``--version``, s."""

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy", globals(), "np")

# ------------------------------------------------------------------ constants


MACROS: dict[str, str] = {}
"""Macros of every unit, before its constants; `debug` sets them."""
DELAY: Final = "WD_DELAY"
"""Macro with the seed of random delays of a GPU's warps."""


def prelude(constants: Mapping[str, Constant]) -> str:
    """Return the C++ text before a source: constants, then the core's headers.

    Empty tables are omitted, as C++ has no empty arrays.
    """
    present = {name: value for name, value in constants.items() if not isinstance(value, Sequence) or value}
    macros = [f"#define {name} {value}" for name, value in MACROS.items()]
    lines = [_definition(name, value) for name, value in sorted(present.items())]
    scalars = [line for line in lines if line.startswith("constexpr")]
    tables = [line for line in lines if not line.startswith("constexpr")]
    offset = ["#define WD_ENVS_BEFORE ENVS_BEFORE"] if "ENVS_BEFORE" in constants else []
    return "\n".join([*macros, *scalars, *offset, *_own_headers("core.cuh"), *tables, ""])


def _own_headers(*names: str) -> list[str]:
    """Return ``#include`` lines of the core's headers, relative to `ROOT`.

    A source may have its own headers of the same names.
    """
    return [f"#include <{HEADERS.parent.name}/{HEADERS.name}/{name}>" for name in names]


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
    return f"{float(np.float32(value))!r}f"  # the shortest decimal converts back to the same float


def declared(source: Path, constants: Mapping[str, Constant]) -> dict[str, Signature]:
    """Read the signatures of a source's compiled kernels, by name.

    With the constants of a rollout it is a single kernel.

    Raises:
        CompileError: As `signatures`, or no rollout kernel can be generated from the source.
    """
    whole = whole_text(source)
    found, name = signatures(whole, constants, str(source)), kernel_of(constants)
    if name is None:
        return {name: each for name, each in found.items() if name not in (EPISODES, ROLLOUT, ROLLOUT_WITH_POLICY)}
    if name not in found:
        generated = generate_rollout(whole, constants, str(source))
        found = signatures(f"{whole}\n{generated}", constants, str(source))  # with the types that the source names
    return {name: found[name]}


MAX_CLUSTER = 8
"""Largest thread block cluster that all GPUs with clusters support."""


def has_clusters(architecture: str) -> bool:
    """True if an architecture, ``"sm_90"``, supports thread block clusters."""
    return int(architecture.removeprefix("sm_").rstrip("af")) >= 90


def _check_cluster(source: Path, blocks: int, architecture: str) -> None:
    rule = f"blocks_per_env is the size of a thread block cluster, at most {MAX_CLUSTER}"
    require(blocks <= MAX_CLUSTER, str(source), rule, blocks, "use fewer", CompileError)
    rule = f"blocks_per_env above 1 is a thread block cluster, which needs sm_90 or newer, not {architecture}"
    require(blocks == 1 or has_clusters(architecture), str(source), rule, blocks, "use 1", CompileError)


# ------------------------------------------------------------------ compilers


def unit(source: Path, constants: Mapping[str, Constant], after: str = "") -> str:
    """Return the text of a translation unit; messages name lines of ``source``.

    A source with a thread for each agent was written for nvcc and WarpDrive. It gets their names, except those that it
    defines itself.
    """
    whole, given, many = whole_text(source), constants, kernel_of(constants)
    if many is not None:
        return _rollout_unit(source, whole, constants, many, after)
    speaks = uses_warp_drive_names(whole)
    before = [f"#define WD_BLOCKS {blocks_per_env(given)}"] if speaks else []
    if is_for_nvcc(whole):
        constants = {name: value for name, value in given.items() if not defines(whole, name)}
        before += _own_headers("nvcc.cuh")
    if "curand" in whole:  # WarpDrive includes its header
        before += ["#define WD_OWN_STATES"] if needs_states(whole) else []
        before += ["#include <curand_kernel.h>"]
    if speaks:
        before += [f"#define WD_OWN_{word}" for word in WORDS if defines(whole, word)]
        before += _own_headers("warp_drive.cuh")
    return _unit(constants, before, source, after)


def _unit(constants: Mapping[str, Constant], before: Sequence[str], source: Path, *after: str) -> str:
    words, text = _own_headers("words.cuh"), read(source)
    if DELAY in MACROS:
        words += ["#if defined(__CUDACC__)", "#define __syncthreads() (__syncthreads(), wd_delay(__LINE__))", "#endif"]
        text = with_starts(text, " wd_delay(__LINE__);")
    return "\n".join([prelude(constants), *before, *words, f"#line 1 {literal(str(source))}", text, *after])


def _rollout_unit(source: Path, whole: str, constants: Mapping[str, Constant], name: str, after: str) -> str:
    """Return the unit of a rollout kernel, from the source or generated.

    A source's own is guarded by ``#if defined(WD_ROLLOUT)``, or with a policy by ``#if defined(WD_POLICY)``. A
    generated one is built from its ``step``.
    """
    before = ["#define WD_POLICY", *_own_headers("policy.cuh")]
    if name == ROLLOUT:
        before = ["#define WD_ROLLOUT", *(["#define WD_DISCRETE"] if constants.get("CATEGORIES") else [])]
        before += _own_headers("rollout.cuh")
    elif name == EPISODES:
        before = _own_headers("episodes.cuh")
    if name in signatures(whole, constants, str(source)):
        return _unit(constants, before, source, after)
    before += _own_headers("many_steps.cuh")
    before += ["#undef WD_KERNEL", f"#define WD_KERNEL(name) WD_FN void {STEP_FUNCTION.format('##name')} WD_TOLD"]
    if constants.get("RECORDS"):
        before += [f"constexpr int N_WORDS = {entries_constant(FINAL_OBSERVATIONS)};"]
        before += ["constexpr bool HAS_FLAGS = true, CUTS = true;", *_own_headers("record.cu")]
    kernel = [
        "#undef WD_KERNEL",
        "#define WD_KERNEL(name) WD_ENTRY(name)",
        generate_rollout(whole, constants, str(source)),
    ]
    return _unit(constants, before, source, *kernel, after)


def key(text: str, source: Path, **more: object) -> dict[str, Any]:
    """Return a unit's cache key: text, included headers, other inputs."""
    return {"text": text, "headers": [(path.name, read(path)) for path in headers(text, source.parent)], **more}


def compile_cubin(source: Path, constants: Mapping[str, Constant], architecture: str) -> Path:
    """Compile a source to a cached cubin for a GPU architecture.

    The architecture is for example ``"sm_90"``. NVRTC compiles, else nvcc. A source that needs nvcc (`needs_nvcc`) is
    compiled with it if it is installed. For ``"sm_90"`` one that multiplies by groups of warps (``wgmma``) gets the
    architecture's own instructions (``"sm_90a"``). Needs no GPU.

    Raises:
        CompileError: The source does not compile, there is no compiler, or the architecture does not support that many
            blocks for an environment.
    """
    text = unit(source, constants)
    _check_cluster(source, blocks_per_env(constants), architecture)
    parts = key(text, source)
    if architecture == "sm_90" and any(
        "wgmma.mma" in each for each in (text, *(whole for _, whole in parts["headers"]))
    ):
        architecture = "sm_90a"
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
    return cached({**parts, **more}, SUFFIX, make)


SUFFIX: Final = ".cubin"
"""Suffix of files with a GPU's machine code."""
GPU_COMPILER_INSTALL = 'install NVRTC (pip install "cuda-core[cu13]") or the CUDA toolkit, so that nvcc is on the PATH'


@functools.cache
def gpu_compiler() -> str | None:
    """Return name and version of the available CUDA compiler, or None."""
    try:
        from cuda.bindings import nvrtc  # noqa: PLC0415  (optional)

        _, major, minor = nvrtc.nvrtcVersion()
    except Exception:  # noqa: BLE001  (package or library is missing or cannot be loaded: try nvcc)
        return _nvcc_version()
    return f"nvrtc {major}.{minor}"


def _nvcc_version() -> str | None:
    nvcc = shutil.which("nvcc")
    try:
        return nvcc and "nvcc " + _run([nvcc, "--version"], "nvcc", timeout=PROBE_TIMEOUT_S).splitlines()[-1]
    except (CompileError, IndexError):  # nvcc does not work
        return None


_IMPORTING: Final = threading.Lock()
"""Held while `cuda.core` is imported, which other threads would otherwise get unfinished."""


def nvrtc() -> Any:
    """Return the package that calls NVRTC; its import is slow."""
    with _IMPORTING:
        import cuda.core  # noqa: PLC0415  (optional)
    return cuda.core


def prepare_nvrtc() -> None:
    """Load what NVRTC's first compilation loads."""
    package = nvrtc()
    package.Program("__global__ void nothing() {}", "c++", package.ProgramOptions(arch="sm_90")).compile("cubin")


def _nvrtc(text: str, source: Path, path: Path, architecture: str, exact: bool) -> None:
    package = nvrtc()
    with empty_headers(HOST_HEADERS) as folder:
        options = package.ProgramOptions(
            std="c++17",
            arch=architecture,
            fma=not exact,
            include_path=[*map(str, (source.parent, HEADERS, CURAND, folder, *_toolkit_headers(), ROOT))],
            device_as_default_execution_space=True,  # constexpr functions need no annotation, as with nvcc
            name=str(source),
        )
        try:
            path.write_bytes(bytes(package.Program(text, "c++", options).compile("cubin").code))
        except Exception as error:
            what = f"{source}: does not compile (NVRTC, {architecture})"
            raise CompileError(f"{what}: {excerpt(errors_first(str(error)))}") from error


@contextlib.contextmanager
def empty_headers(names: Iterable[str]) -> Iterator[Path]:
    """Yield a folder of empty headers."""
    with own_folder(Path(tempfile.gettempdir()), "warpdrive-headers-") as folder:
        for name in names:
            (folder / name).touch()
        yield folder


def _toolkit_headers() -> list[Path]:
    """Return folders of the CUDA toolkit's device headers, such as cuRAND's."""
    roots = [Path(root) for name in ("CUDA_HOME", "CUDA_PATH") if (root := os.environ.get(name))]
    roots += [Path(nvcc).resolve().parents[1]] if (nvcc := shutil.which("nvcc")) else []
    roots += [Path(site) / "nvidia" / "cu13" for site in sys.path]
    needed = ("curand_kernel.h", "cccl/nv/target")
    folders = [root / "include" for root in roots if all((root / "include" / name).is_file() for name in needed)]
    return [each for folder in folders for each in (folder, folder / "cccl")]


def _nvcc(text: str, source: Path, path: Path, architecture: str, exact: bool) -> None:
    flags = ["-cubin", f"-arch={architecture}", "-std=c++17", f"--fmad={str(not exact).lower()}"]
    included = {"source": source.parent, "kernels": HEADERS, "curand": CURAND, "root": ROOT}
    # nvcc starts subprograms through a shell; links in a temporary folder give it safe names.
    with tempfile.TemporaryDirectory() as folder:
        for name, target in included.items():
            (Path(folder) / name).symlink_to(target.resolve())
        write(Path(folder) / "unit.cu", text)
        command = ["nvcc", *flags, *(f"-I{name}" for name in included), "-o", "unit.cubin", "unit.cu"]
        _run(command, f"{source}: does not compile (nvcc, {architecture})", Path(folder))
        shutil.move(Path(folder) / "unit.cubin", path)


def cpu_compiler() -> str | None:
    """Return the command of a working C++ compiler, or None.

    Tries $CXX, else g++, clang++ and c++ on the PATH. The command is quoted for a shell, as $CXX may have arguments.
    """
    return _cpu_compiler(os.environ.get("CXX"), os.environ.get("PATH"))[0]


def no_cpu_compiler() -> str:
    """Return the reason why no C++ compiler was found."""
    return _cpu_compiler(os.environ.get("CXX"), os.environ.get("PATH"))[1]


@functools.cache
def _cpu_compiler(chosen: str | None, _path: str | None) -> tuple[str | None, str]:
    """Return the command, or None and the reason; cached by environment."""
    reason = "found no C++ compiler"
    candidates = [["g++"], ["clang++"], ["c++"]]
    if chosen:
        reason += f": $CXX must name one that answers --version (got {shortened(chosen)!r})"
        try:
            candidates = [[chosen] if shutil.which(chosen) else shlex.split(chosen)]  # a path may have spaces
        except ValueError:
            return None, reason
    for words in candidates:
        if words and (program := shutil.which(words[0])):
            command = shlex.join([program, *words[1:]])
            with contextlib.suppress(CompileError):
                compiler_version(command)
                return command, ""
    return None, reason


@functools.cache
def compiler_version(compiler: str) -> str:
    """Return the first line of ``compiler --version``, and $CXX's arguments.

    Raises:
        CompileError: The compiler cannot be run, or prints nothing.
    """
    program, *arguments = shlex.split(compiler)
    lines = _run([program, *arguments, "--version"], compiler, timeout=PROBE_TIMEOUT_S).splitlines()
    require(lines, program, "must answer --version", do="name a C++ compiler in $CXX", error=CompileError)
    return " ".join([lines[0], *arguments])


def compile_shared_library(
    text: str, path: Path, compiler: str, flags: Sequence[str], where: str, unit_flags: Sequence[str] = ()
) -> None:
    """Compile C++ text to a shared library.

    ``unit_flags`` are only for the compiler, not for the linker.

    Raises:
        CompileError: With the compiler's message.
    """
    what = f"{where}: does not compile ({shortened(compiler)})"
    unit_path = path.with_suffix(".cpp")
    write(unit_path, text)
    command = [*shlex.split(compiler), *flags]
    if unit_flags:
        object_path = path.with_suffix(".o")
        _run([*command, *unit_flags, "-fPIC", "-c", "-o", str(object_path), str(unit_path)], what)
        unit_path = object_path
    _run([*command, "-shared", "-fPIC", "-o", str(path), str(unit_path)], what)
    require(path.exists(), what, "the compiler has written no file", error=CompileError)


def preprocessed(text: str, source: Path, compiler: str, flags: Sequence[str]) -> str:
    """Return a C++ compiler's preprocessor output of a unit; cached.

    Raises:
        CompileError: With the compiler's message.
    """

    def make(path: Path) -> None:
        with empty_headers(CUDA_HEADERS) as folder:
            unit_path = folder / "unit.cpp"
            write(unit_path, text)
            command = [*shlex.split(compiler), *flags, f"-I{folder}", "-E", "-P", "-o", str(path), str(unit_path)]
            _run(command, f"{source}: does not compile ({shortened(compiler)})")

    return read(cached(key(text, source, flags=flags, compiler=compiler_version(compiler)), ".ii", make))


def _run(
    command: Sequence[str],
    what: str,
    folder: Path | None = None,
    timeout: float | None = None,
) -> str:
    """Run a compiler and return its output.

    Args:
        command: Program and arguments.
        what: Start of the error message.
        folder: Working folder, also for temporary files; None: this process's.
        timeout: Timeout, s.

    Raises:
        CompileError: It cannot be run, exceeds the timeout, or fails; with its message.
        DiskFullError: It failed because a disk is full.
    """
    env = {**os.environ, "LC_ALL": "C"}  # or "error" would be translated
    env |= {"TMPDIR": "."} if folder else {}
    try:
        done = run(command, env=env, cwd=folder, timeout=timeout)
    except OSError as error:
        raise CompileError(f"{what}: cannot run {command[0]!r} ({os.strerror(error.errno or 0).lower()})") from error
    except subprocess.TimeoutExpired as error:
        raise CompileError(f"{what}: {command[0]!r} does not answer within {timeout:g} s") from error
    output, errors = done.stdout.strip(), done.stderr.strip()
    if done.returncode:
        said = errors or output or f"{command[0]} ended with exit code {done.returncode} and no message"
        if number := full_disk_errno(said):
            do = f"make room, or set $TMPDIR and ${VARIABLE} to folders on another disk"
            raise DiskFullError.of(what, os.strerror(number).lower(), do=do)
        raise CompileError(f"{what}: {excerpt(errors_first(said))}")
    return output


def errors_first(output: str) -> str:
    """Return a compiler's output with the lines before its first error at the end."""
    lines = output.splitlines()
    first = next((index for index, line in enumerate(lines) if re.search(r"[\d)]: (\w+ )?error\b", line)), 0)
    return "\n".join([*lines[first:], *lines[:first]])
