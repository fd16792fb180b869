"""CUDA C sources: their constants, their declared parameters, and how they are compiled for GPU and CPU."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from warpdrive_min.backends.base import ANY_RANK, Constant, Parameter
from warpdrive_min.backends.cache import cached
from warpdrive_min.errors import CompileError, require

HEADERS = Path(__file__).parents[1] / "kernels"

DTYPES = {
    "float": "float32",
    "int": "int32",
    "unsigned": "uint32",
    "unsigned int": "uint32",
    "double": "float64",
    "long long": "int64",
    "unsigned char": "uint8",
    "bool": "bool",
}
"""C element types that a parameter may have, and NumPy's names of them."""


class Signature(NamedTuple):
    """Name, parameters and kind of one kernel, read from its source."""

    name: str
    parameters: tuple[Parameter, ...]
    owns_environments: bool


# ------------------------------------------------------------------ constants


def prelude(constants: Mapping[str, Constant]) -> str:
    """Return the C++ text that goes before a source: one definition for each constant, then the vocabulary."""
    lines = [_definition(name, value) for name, value in sorted(constants.items())]
    scalars = [line for line in lines if line.startswith("constexpr")]
    tables = [line for line in lines if not line.startswith("constexpr")]
    return "\n".join([*scalars, '#include "core.cuh"', *tables, ""])


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


# ------------------------------------------------------------------ signatures

_KERNEL = re.compile(
    r"(?:WD_KERNEL\s*\(\s*(?P<own>\w+)\s*\)"
    r"|__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(?P<plain>\w+))\s*\("
)
_PARAMETER = re.compile(
    r"(?:const\s+)?(?P<type>unsigned\s+int|unsigned\s+char|long\s+long|unsigned|float|int|double|bool)\s*(?:const\s*)?"
    r"(?:\(\s*\*\s*(?:__restrict__\s*)?(?P<array>\w+)\s*\)\s*(?P<sizes>(?:\[[^\]]+\]\s*)+)"
    r"|\*\s*(?:(?:__restrict__|const)\b\s*)*(?P<pointer>\w+)"
    r"|\s(?P<scalar>\w+))$"
)


def signatures(text: str, constants: Mapping[str, Constant], where: str) -> dict[str, Signature]:
    """Read the kernels that a source declares, by name.

    Raises:
        CompileError: A parameter has a type that cannot be bound.
    """
    code = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)
    found = {}
    for match in _KERNEL.finditer(code):
        name = match["own"] or match["plain"]
        inside = code[match.end() : _closing(code, match.end())]
        parameters = tuple(
            _parameter(part, constants, f"{where}: kernel {name!r}") for part in inside.split(",") if part.strip()
        )
        found[name] = Signature(name, parameters, owns_environments=match["own"] is not None)
    return found


def _closing(code: str, start: int) -> int:
    depth = 1
    for index in range(start, len(code)):
        depth += {"(": 1, ")": -1}.get(code[index], 0)
        if depth == 0:
            return index
    return len(code)


def _parameter(declaration: str, constants: Mapping[str, Constant], where: str) -> Parameter:
    text = " ".join(declaration.split())
    match = _PARAMETER.fullmatch(text)
    if match is None:
        raise CompileError(f"{where}: cannot bind the parameter {text!r}; element types are {', '.join(DTYPES)}")
    dtype = DTYPES[" ".join(match["type"].split())]
    if match["array"]:
        sizes = tuple(_size(size, constants) for size in re.findall(r"\[([^\]]+)\]", match["sizes"]))
        return Parameter(match["array"], dtype, 1 + len(sizes), (None, *sizes))
    if match["pointer"]:
        return Parameter(match["pointer"], dtype, ANY_RANK)
    return Parameter(match["scalar"], dtype, 0)


def _size(text: str, constants: Mapping[str, Constant]) -> int | None:
    value = constants.get(text.strip(), text.strip())
    return int(value) if isinstance(value, int) or (isinstance(value, str) and value.isdecimal()) else None


# ------------------------------------------------------------------ WarpDrive's vocabulary

_WARP_DRIVE = re.compile(r"\b(?:wk[A-Z]\w*|getEnvID|getAgentID|get_flattened_array_index|__sync_env_threads)\b")

MAX_CLUSTER = 8
"""Blocks of the largest thread block cluster that every GPU with clusters can run."""


def speaks_warp_drive(text: str) -> bool:
    """Tell whether a source uses a word that `warp_drive.cuh` explains."""
    return _WARP_DRIVE.search(text) is not None


def warp_drive_sizes(text: str, n_envs: int, n_agents: int, blocks_per_env: int) -> dict[str, Constant]:
    """Return WarpDrive's constants that a source needs, by name; none where it uses no word of its vocabulary."""
    if not speaks_warp_drive(text):
        return {}
    sizes: dict[str, Constant] = {"wkNumberAgents": n_agents, "wkBlocksPerEnv": blocks_per_env}
    if "wkNumberEnvs" in text:  # else every number of environments would compile anew
        sizes["wkNumberEnvs"] = n_envs
    return sizes


def _blocks_per_env(constants: Mapping[str, Constant]) -> int:
    value = constants.get("wkBlocksPerEnv", 1)
    assert isinstance(value, int)
    return value


def _check_cluster(source: Path, blocks: int, architecture: str) -> None:
    rule = f"blocks_per_env is the size of a thread block cluster, at most {MAX_CLUSTER}"
    require(blocks <= MAX_CLUSTER, str(source), rule, blocks, "use fewer", CompileError)
    has_clusters = int(architecture.removeprefix("sm_").rstrip("af")) >= 90
    rule = f"blocks_per_env above 1 is a thread block cluster, which needs sm_90 or newer, not {architecture}"
    require(blocks == 1 or has_clusters, str(source), rule, blocks, "use 1", CompileError)


# ------------------------------------------------------------------ compilers


def unit(source: Path, constants: Mapping[str, Constant], after: str = "") -> str:
    """Return the whole text of one translation unit; messages name the lines of ``source``."""
    text = source.read_text()
    before = prelude(constants)
    if speaks_warp_drive(text):
        if _blocks_per_env(constants) > 1:
            before += "#define WD_CLUSTER\n"
        before += '#include "warp_drive.cuh"\n'
    return f'{before}#line 1 "{source}"\n{text}\n{after}'


def key(text: str, source: Path, **more: object) -> dict[str, object]:
    """Return the cache key of a unit: its text, the headers that it includes, and what else may change the code."""
    return {"text": text, "headers": [(path.name, path.read_text()) for path in headers(text, source.parent)], **more}


def headers(text: str, folder: Path) -> list[Path]:
    """Return the files that a text includes by ``"name"``, and those that they include, each once."""
    found: dict[Path, None] = {}
    pending = [(name, folder) for name in _INCLUDE.findall(text)]
    while pending:
        name, folder = pending.pop()
        path = next((path for at in (folder, HEADERS) if (path := (at / name).resolve()).is_file()), None)
        if path is not None and path not in found:  # a missing one is the compiler's to report
            found[path] = None
            pending += [(inner, path.parent) for inner in _INCLUDE.findall(path.read_text())]
    return sorted(found)


_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def compile_cubin(source: Path, constants: Mapping[str, Constant], architecture: str) -> Path:
    """Compile a source for a GPU architecture (``"sm_90"``), with NVRTC, else nvcc; return the cached cubin.

    Needs no GPU.

    Raises:
        CompileError: With the compiler's message, because there is no compiler, or because the architecture cannot
            run that many blocks for an environment.
    """
    text = unit(source, constants)
    _check_cluster(source, _blocks_per_env(constants), architecture)
    exact = bool(constants.get("EXACT"))
    compiler = gpu_compiler()
    if compiler is None:
        raise CompileError(f"{source}: no CUDA compiler; {GPU_COMPILER_INSTALL}")

    def make(path: Path) -> None:
        build = _nvrtc if compiler.startswith("nvrtc") else _nvcc
        build(text, source, path, architecture, exact)

    return cached(key(text, source, architecture=architecture, exact=exact, compiler=compiler), ".cubin", make)


GPU_COMPILER_INSTALL = 'install NVRTC (pip install "cuda-core[cu13]") or the CUDA toolkit, so that nvcc is on the PATH'


@functools.cache
def gpu_compiler() -> str | None:
    """Return name and version of the CUDA compiler that would be used, or None."""
    try:
        from cuda.bindings import nvrtc  # noqa: PLC0415  (optional)

        _, major, minor = nvrtc.nvrtcVersion()
    except Exception:  # noqa: BLE001  (no package, no library, or a library that cannot be loaded: try nvcc)
        nvcc = shutil.which("nvcc")
        if nvcc is None:
            return None
        return "nvcc " + _run([nvcc, "--version"], "nvcc").splitlines()[-1]
    return f"nvrtc {major}.{minor}"


def _nvrtc(text: str, source: Path, path: Path, architecture: str, exact: bool) -> None:
    from cuda.core import Program, ProgramOptions  # noqa: PLC0415  (optional)

    options = ProgramOptions(
        std="c++17",
        arch=architecture,
        fma=not exact,
        include_path=[str(HEADERS), str(source.parent)],
        device_as_default_execution_space=True,  # constexpr functions need no annotation, as with nvcc
        name=str(source),
    )
    try:
        path.write_bytes(bytes(Program(text, "c++", options).compile("cubin").code))
    except Exception as error:
        raise CompileError(f"{source}: does not compile (NVRTC, {architecture}):\n{error}") from error


def _nvcc(text: str, source: Path, path: Path, architecture: str, exact: bool) -> None:
    unit_path = path.with_suffix(".cu")
    unit_path.write_text(text)
    command = ["nvcc", "-cubin", f"-arch={architecture}", "-std=c++17", f"-I{HEADERS}", f"-I{source.parent}"]
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


def compile_shared_library(text: str, path: Path, compiler: str, flags: Sequence[str], where: str) -> None:
    """Compile C++ text to a shared library.

    Raises:
        CompileError: With the compiler's message.
    """
    unit_path = path.with_suffix(".cpp")
    unit_path.write_text(text)
    _run(
        [compiler, *flags, "-shared", "-fPIC", "-o", str(path), str(unit_path)],
        f"{where}: does not compile ({compiler})",
    )


def _run(command: Sequence[str], what: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise CompileError(f"{what}:\n{result.stderr.strip() or result.stdout.strip()}")
    return result.stdout
